r"""
Isokinetic Langevin dynamics, also called microcanonical (Robnik & Seljak 2023; with minibatches Sommer et al. 2026,
arXiv 2602.06500). The momentum is a direction u, :math:`|u| = 1`, of constant length:

.. math::

    dz = \sqrt{d}\, M^{-1/2} u\, dt, \qquad
    du = -\frac{\sqrt{d}}{d - 1}\, P_u M^{-1/2} \nabla U(z)\, dt + \sqrt{2 D / d}\; P_u \circ dW, \qquad P_u = I - u u^T

leaves :math:`\exp(-U(z))` times the uniform distribution of directions invariant, for :math:`d \ge 2` coordinates. The
mean of :math:`(\sqrt{d}\, u_j)^2` is 1, so h and D have the same meaning as in
:mod:`~numpyro_sgmcmc.dynamics.underdamped`, and both dynamics agree in the limit of many coordinates. Even a very large
gradient cannot move z by more than :math:`h \sqrt{d}\, |M^{-1/2}|` in a step.

===== ========= ==============================================================================
``A``  drift     z += h sqrt(d) M^-1/2 u
``B``  turn      u = (u + (sinh a + (cosh a - 1) e.u) e) / (cosh a + e.u sinh a), exact, with
                 e = -M^-1/2 g / |M^-1/2 g| and a = h |M^-1/2 g| sqrt(d) / (d - 1)
``O``  noise     u = v / |v|,  v = exp(-D h) u + sqrt((1 - exp(-2 D h)) / d) n
===== ========= ==============================================================================

O leaves the uniform distribution invariant, for every h.

White gradient noise also turns u. With variance :math:`s_j^2` it heats coordinate j by
:math:`x_j = h s_j^2 / (2 M_j)`. As the length of u is constant, all coordinates are cooled equally. So to first order
in h and for many coordinates, the variance of z increases by the relative amount

.. math:: \frac{x_j - \bar x}{D + \bar x},

as with one thermostat for all coordinates, but without a thermostat that could grow too large. It is 0 if
:math:`M_j \propto s_j^2`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import math
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC, part
from numpyro_sgmcmc.rows.schemes import WithoutReplacement
from numpyro_sgmcmc.types import Dynamics, Flow, Phase
from numpyro_sgmcmc.utils import noise, trees
from numpyro_sgmcmc.utils.validation import checked_inverse_mass, checked_rate

FLOWS = {
    "A": Flow("drift", moves=True),
    "B": Flow("turn", needs_gradient=True),
    "O": Flow("noise", needs_key=True),  # the noise is not normal
}
FLOOR = 1e-2  # added to the variances that define a mass, relative to their mean


@dataclass(frozen=True)
class Isokinetic(Dynamics):
    r"""
    The isokinetic Langevin dynamics. The momentum of a phase is u.

    :param float noise: D, the rate at which the direction is refreshed.
    :param inverse_mass_matrix: 1.0, a scalar, or a dict of diagonals like ``z``.
    :param bool by_noise: whether the mass is proportional to the variance of the gradient noise:
        :math:`M_j = (s_j^2 + .01\, \overline{s^2}) / \overline{s^2}`.
    """

    noise: float
    inverse_mass_matrix: Any = 1.0
    by_noise: bool = False

    integrators: ClassVar[Mapping[str, str]] = {}

    @property
    def flows(self) -> Mapping[str, Flow]:
        return {letter: flow._replace(needs_variance=self.by_noise) for letter, flow in FLOWS.items()}

    def largest_step(self, curvature: Any) -> Any:
        return 0.3 / curvature**0.5

    def init(self, z: Any, noise: Any) -> Phase:
        """A phase with u uniform on the sphere. Raises a ValueError for one coordinate, whose direction cannot turn."""
        if trees.size(z) < 2:
            raise ValueError(
                "the model has a single latent coordinate, but an isokinetic sampler needs at least two, between which "
                "its momentum turns. Use SGHMC."
            )
        return Phase(z, _unit(noise))

    def reverse(self, phase: Phase, scale: Any) -> Phase:
        """The phase with u reversed; its length is 1 for any ``scale``."""
        return phase._replace(momentum=jax.tree.map(jnp.negative, phase.momentum))

    def inverse_mass(self, phase: Phase) -> Any:
        """M^-1, for every leaf; 1 without gradient noise."""
        variance = phase.noise_variance
        if not self.by_noise or isinstance(variance, tuple):
            return trees.like(self.inverse_mass_matrix, phase.z)
        mean = trees.total(variance) / trees.size(variance)
        return jax.tree.map(lambda s2: jnp.where(mean == 0, 1.0, mean / (s2 + FLOOR * mean)), variance)

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white gradient noise of this variance adds to z."""
        heat = jax.tree.map(lambda s2, im: 0.5 * h * im * s2, variance, self.inverse_mass(phase._replace(z=variance)))
        mean = trees.total(heat) / trees.size(heat)
        return jax.tree.map(lambda x: (x - mean) / (self.noise + mean), heat)

    def A(self, phase: Phase, h: jax.Array) -> Phase:
        length = math.sqrt(trees.size(phase.z))
        move = lambda z, u, im: z + h * length * jnp.sqrt(im) * u  # noqa: E731
        return phase._replace(z=jax.tree.map(move, phase.z, phase.momentum, self.inverse_mass(phase)))

    def B(self, phase: Phase, h: jax.Array, gradient: Any) -> Phase:
        d, u = trees.size(phase.z), phase.momentum
        g = jax.tree.map(lambda g, im: jnp.sqrt(im) * g, gradient, self.inverse_mass(phase))
        size = _length(g)
        cosine = -_dot(g, u) / jnp.where(size > 0, size, 1)
        # the equation times exp(-a), so that nothing overflows if the gradient is large
        left = jnp.exp(-h * size * math.sqrt(d) / (d - 1))
        along = 0.5 * (1 - left) * (1 + left + cosine * (1 - left)) / jnp.where(size > 0, size, 1)
        return phase._replace(momentum=_unit(jax.tree.map(lambda u, g: left * u - along * g, u, g)))

    def O(self, phase: Phase, h: jax.Array, rng_key: jax.Array) -> Phase:  # noqa: E743
        keep = jnp.exp(-self.noise * h)
        spread = jnp.sqrt(-jnp.expm1(-2 * self.noise * h) / trees.size(phase.z))
        numbers = noise.normal_like(rng_key, phase.momentum)
        return phase._replace(momentum=_unit(jax.tree.map(lambda u, n: keep * u + spread * n, phase.momentum, numbers)))


def _dot(a: Any, b: Any) -> jax.Array:
    return trees.total(jax.tree.map(jnp.multiply, a, b))


def _length(tree: Any) -> jax.Array:
    return jnp.sqrt(_dot(tree, tree))


def _unit(tree: Any) -> Any:
    length = _length(tree)
    return jax.tree.map(lambda x: x / length, tree)


class SGIsokinetic(SGMCMC):
    r"""
    Stochastic gradient isokinetic (microcanonical) Langevin dynamics. Experimental: it may change or be removed.

    The momentum is a direction u with :math:`|u| = 1`, which gradient and noise turn. For many coordinates h and D have
    the same meaning as for :class:`~numpyro_sgmcmc.SGHMC`, and z moves by :math:`h \sqrt{d}` in every step, for any
    gradient.

    Gradient noise with the same variance in all coordinates causes no bias. Otherwise the relative error of the
    variance of z is :math:`(x_j - \bar x) / (D + \bar x)` with :math:`x_j = h s_j^2 / (2 M_j)`, as with
    :class:`~numpyro_sgmcmc.SGNHT`. ``inverse_mass_matrix="noise"`` makes :math:`s_j^2 / M_j` equal: the mass is
    proportional to the variance of the noise, measured once with 300 minibatches at the start of the chain
    (the paper's preconditioner). :class:`~numpyro_sgmcmc.MSGNHT` needs no such mass, and was better in our measurements
    (docs/maintainers/measurements.md). The paper's tuning of the step size by the energy error is not implemented.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param model: NumPyro model with two or more latent coordinates.
    :param float friction: D >= 0, the rate (1 / time) at which the direction is refreshed.
    :param str integrator: a word over ``A B O``.
    :param rows: row scheme. Independent batches by default: the constant length of u balances only white noise.
    :param inverse_mass_matrix: None, a scalar, a dict of diagonals like ``z``, or ``"noise"``.
    :raises ValueError: if there is no step size; at ``init``, for a model with a single coordinate.

    **References:**

    1. *Can Microcanonical Langevin Dynamics Leverage Mini-Batch Gradient Noise?*, E. Sommer, K. Diao, J. Robnik,
       U. Seljak, D. Rügamer (2026), arXiv 2602.06500
    2. *Microcanonical Langevin Monte Carlo*, J. Robnik, U. Seljak (2023), arXiv 2303.18221

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc.contrib.isokinetic import SGIsokinetic
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10).expand([2]).to_event(1))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000, 2))
        >>> kernel = SGIsokinetic(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean(0) - x.mean(0)).max() < 0.02)
        True
    """

    missing_step_size = ". Give one, or use SGHMC, whose warm-up chooses it."
    friction: float = part("dynamics.noise", "D.")

    def __init__(
        self,
        model: Any,
        *,
        friction: float = 1.0,
        integrator: str = "ABOBA",
        inverse_mass_matrix: Any = None,
        **options: Unpack[KernelOptions],
    ):
        by_noise = isinstance(inverse_mass_matrix, str) and inverse_mass_matrix == "noise"
        mass = checked_inverse_mass(None if by_noise else inverse_mass_matrix)
        dynamics = Isokinetic(checked_rate("friction", friction), mass, by_noise)
        if options.get("rows") is None:
            options["rows"] = WithoutReplacement()
        super().__init__(model, dynamics, integrator, **options)
