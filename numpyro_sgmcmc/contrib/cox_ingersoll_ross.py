r"""
The Cox-Ingersoll-Ross process (Baker, Fearnhead, Fox & Nemeth 2018), for positive variables :math:`\theta = e^z`,

.. math:: d\theta = (b - r \theta)\, dt + \sqrt{2 \theta}\, dW,

leaves Gamma(b, r) invariant, for each coordinate. Its transition is known: with :math:`c = (1 - e^{-r h}) / r`,

.. math:: \theta' = \frac{c}{2}\, \chi^2_{nc}\left(2 b, \frac{2 \theta e^{-r h}}{c}\right)
    = c\, \mathrm{Gamma}(b + J), \qquad J \sim \mathrm{Poisson}(\theta e^{-r h} / c).

It is a step of a recipe: :math:`D = \theta`, whose drift :math:`-\theta\, \partial U / \partial \theta + 1` is
:math:`b - r \theta` with

.. math:: b = r \theta - \frac{\partial U}{\partial z}, \qquad z = \log \theta,

where U is the potential of z, with the Jacobian. If the density of each :math:`\theta` is that of a Gamma distribution,
b does not depend on :math:`\theta`: it is a count, which is estimated from the minibatch, and the step has no other
error. For any other density with b > 0 the step keeps b constant and is of order 1.

==== =================== ===============================
``E`` exact transition    z = log(c Gamma(b + J))
==== =================== ===============================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
import math
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Flow, Phase
from numpyro_sgmcmc.utils import noise

FLOWS = {"E": Flow("Cox-Ingersoll-Ross transition", needs_gradient=True, needs_key=True, moves=True)}


@dataclass(frozen=True, eq=False)
class CoxIngersollRoss(Dynamics):
    """
    The process in z = log theta.

    :param dict rate: r > 0 by site, a number or an array like the site; 1 for other sites.
    :param dict divided: n by site: the density is multiplied by :math:`s^n`, where s is the sum of theta over the last
        axis. If the rest of the density depends only on theta / s, this changes only the distribution of s. It adds
        n theta / s to b.
    """

    rate: Mapping[str, Any] = field(default_factory=dict)
    divided: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flows(self) -> Mapping[str, Flow]:
        return FLOWS

    @property
    def integrators(self) -> Mapping[str, str]:
        return {"euler": "E", "exact": "E"}

    def largest_step(self, curvature: Any) -> Any:
        del curvature
        return math.nan  # the warm-up cannot choose one

    def init(self, z: Any, noise: Any) -> Phase:
        del noise
        return Phase(z)

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white noise of b adds to theta: tanh(r h / 2) Var b / (r theta), at the mean theta."""
        heat = lambda s2, z, r: jnp.tanh(r * h / 2) * s2 / (r * jnp.exp(z))  # noqa: E731
        return jax.tree.map(heat, variance, phase.z, self._rates(phase.z))

    def counts(self, z: Any, gradient: Any) -> Any:
        """The counts b."""
        counts = jax.tree.map(lambda z, g, r: r * jnp.exp(z) - g, z, gradient, self._rates(z))
        for name, n in self.divided.items():
            counts[name] = counts[name] + jnp.asarray(n, z[name].dtype)[..., None] * jax.nn.softmax(z[name])
        return counts

    def _rates(self, z: Any) -> Any:
        return {name: jnp.asarray(self.rate.get(name, 1.0), x.dtype) for name, x in z.items()}

    def E(self, phase: Phase, h: jax.Array, gradient: Any, rng_key: jax.Array) -> Phase:
        leaves, treedef = jax.tree.flatten(phase.z)
        of_leaves = self._rates(phase.z), self.counts(phase.z, gradient)
        rates, counts = (treedef.flatten_up_to(tree) for tree in of_leaves)
        keys = jax.random.split(rng_key, len(leaves)) if len(leaves) > 1 else [rng_key]
        moved = []
        for key, z, r, b in zip(keys, leaves, rates, counts):
            log_c = jnp.log(-jnp.expm1(-r * h) / r)
            valid = (b > 0) & jnp.isfinite(b)
            new = log_c + noise.log_central_mixture(key, jnp.where(valid, b, 1.0), jnp.exp(z - r * h - log_c))
            moved.append(jnp.where(valid, new, jnp.nan).astype(z.dtype))
        return phase._replace(z=treedef.unflatten(moved))
