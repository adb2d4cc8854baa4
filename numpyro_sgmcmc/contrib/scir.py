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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
import math
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.contrib.simplex import Charts, supports_of_sites
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.types import Dynamics, Flow, Phase, Sites
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.validation import check_sites, checked_rates

TOLERANCE = 1e-3  # relative tolerance for a total count that must not change


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

    flows: ClassVar[Mapping[str, Flow]] = {
        "E": Flow("Cox-Ingersoll-Ross transition", needs_gradient=True, needs_key=True, moves=True)
    }
    integrators: ClassVar[Mapping[str, str]] = {"euler": "E", "exact": "E"}

    def largest_step(self, curvature: Any) -> Any:
        return math.nan  # the warm-up cannot choose one

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


class SCIR(SGMCMC):
    r"""
    Stochastic Cox-Ingersoll-Ross: steps without a discretisation error on the half-line and on the simplex, also near
    the boundary, where gradient steps fail,

    .. math:: \theta' = \frac{1 - e^{-h}}{2} \chi^2_{nc}\left(2 b, \frac{2 \theta e^{-h}}{1 - e^{-h}}\right), \qquad
        b = \theta - \frac{\partial U}{\partial \log \theta}.

    Every site must be positive, or on the simplex, where :math:`\pi_k = \theta_k / \sum_j \theta_j`. A site with the
    prior Gamma(a, b) is :math:`\theta / b`. The counts b come from the gradient of the model. If the prior is Gamma or
    Dirichlet and the likelihood is a product of powers of :math:`\theta` or :math:`\pi`, they are the parameters of the
    prior plus the counts of the data, estimated by N/n times those of the minibatch; for mixtures, plus the expected
    counts. With an unbiased b of mean :math:`\mu` and target Gamma(:math:`\mu`, 1)

    .. math:: \mathrm{E}\,\theta = \mu, \qquad \mathrm{Var}\,\theta = \mu + \tanh(h / 2)\, \mathrm{Var}\, b.

    **On the simplex** the likelihood must be homogeneous in :math:`\pi`: :math:`p(x | c \pi) = c^n p(x | \pi)` with a
    constant n. The likelihood of :math:`\theta` is then :math:`s^n` times that of :math:`\pi`, where s is the sum of
    :math:`\theta`, and the distribution of :math:`\pi` is correct for any distribution of s. Categorical data and
    multinomial counts have n = N. Distributions that divide :math:`\pi` by its sum, such as mixtures, have n = 0, and
    their counts lack :math:`n \pi_k`: add the number of counts with ``counts={site: N}``. Any number that keeps b
    positive is correct. Every other likelihood, such as that of the words in a topic model, becomes homogeneous by
    ``p = p / p.sum(-1, keepdims=True)`` in the model.

    Sites are stored as :math:`\log \theta`, K values for K probabilities: :math:`\theta` itself is often smaller than
    the smallest floating point number.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param step_size: h > 0, or a function of the step index, in units of the relaxation time of theta: 0.5 is large.
    :param rate: rate r of each site's conditional Gamma(b, r), relative to the rate of its prior: a dict of numbers or
        of arrays like the sites; other sites have 1. For Poisson counts of mean :math:`e_i \theta` and the prior
        Gamma(a, b): :math:`1 + \sum_i e_i / b`.
    :param counts: n by site, a number or an array of the batch shape of the site, if the likelihood divides by the
        sum, see above.
    :raises ValueError: at the start of a chain, for a site that is neither positive nor on the simplex, counts that are
        not positive, or a likelihood that is not homogeneous. Later a step with counts that are not positive is
        refused, and the draw is ``diverging``.

    **References:**

    1. *Large-Scale Stochastic Sampling from the Probability Simplex*, J. Baker, P. Fearnhead, E. B. Fox, C. Nemeth
       (2018), equation 3.2 and algorithm 1

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SCIR
        >>> def model(x):
        ...     p = numpyro.sample("p", dist.Dirichlet(jnp.full(3, 0.1)))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Categorical(p), obs=x[rows])
        >>> x = jnp.repeat(jnp.arange(3), jnp.array([900, 100, 0]))
        >>> kernel = SCIR(model, step_size=0.1, batch_size=100)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=1000, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> [round(float(p), 2) for p in mcmc.get_samples()["p"].mean(0)]
        [0.9, 0.1, 0.0]
    """

    transforms = Charts(log=True, raw=True)

    missing_step_size = ". Give one in units of the relaxation time of theta, for example 0.1."

    def __init__(
        self,
        model: Any,
        *,
        rate: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
        **options: Unpack[KernelOptions],
    ):
        dynamics = CoxIngersollRoss(checked_rates("rate", rate), checked_rates("counts", counts))
        super().__init__(model, dynamics, "exact", **options)

    def check_model(self, potential: ModelPotential) -> None:
        supports = supports_of_sites(potential)
        other = [name for name, support in supports.items() if support == "other"]
        if other:
            raise ValueError(
                "SCIR needs sites that are positive or on the simplex, as with Gamma and Dirichlet priors; site "
                f"{other[0]!r} is neither. Use SGRLD, or sample it in a block of its own with numpyro.infer.Gibbs."
            )
        check_sites("rate", self.dynamics.rate, potential.prototype, scalars=True)
        totals = {name: s for name, s in potential.prototype.items() if supports[name] == "simplex"}
        totals = {name: jax.ShapeDtypeStruct(s.shape[:-1], s.dtype) for name, s in totals.items()}
        check_sites("counts", self.dynamics.divided, totals, scalars=True)

    def check_start(self, on_potential: Callable, z: Sites, state: SGMCMCState) -> None:
        here, there = on_potential(partial(_counts_at_two_places, self.dynamics))(z)
        for name, b in here.items():
            b = np.asarray(b)
            if not (b > 0).all():
                i = tuple(int(k) for k in np.argwhere(~(b > 0))[0])
                raise ValueError(
                    f"the counts of site {name!r} are {b[i]:.6g} at {list(i)} at the start of the chain; SCIR needs "
                    f"them positive. If its likelihood divides by the sum, as in mixtures, give counts={{{name!r}: N}} "
                    "with the number of rows; if its conditional is a Gamma distribution with another rate than its "
                    "prior, give rate=; otherwise use SGRLD(model, metric=ExpandedMean())."
                )
        for name, (first, second) in there.items():
            first, second = np.asarray(first, float), np.asarray(second, float)
            if (np.abs(first - second) > TOLERANCE * np.abs(first)).any():
                raise ValueError(
                    f"the likelihood is not homogeneous in site {name!r}: its total count depends on the latents, "
                    f"{first.ravel()[0]:.6g} at one position and {second.ravel()[0]:.6g} at another, so SCIR would "
                    f"sample another distribution. Divide by the sum in the model, {name} / {name}.sum(-1, "
                    f"keepdims=True), and give counts={{{name!r}: the number of counts}}, or use "
                    "SGRLD(model, metric=ExpandedMean())."
                )


def _counts_at_two_places(dynamics: CoxIngersollRoss, potential: ModelPotential, z: Sites) -> tuple[Any, Any]:
    """The counts at z; and for sites on the simplex, their totals at z and at another position, on the same rows."""
    gradient = jax.grad(potential.estimate)
    rows = potential.some_rows()
    moved = {name: x + jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for name, x in z.items()}
    here, there = (dynamics.counts(place, gradient(place, rows)) for place in (z, moved))
    simplex = [name for name, support in supports_of_sites(potential).items() if support == "simplex"]
    return here, {name: (here[name].sum(-1), there[name].sum(-1)) for name in simplex}
