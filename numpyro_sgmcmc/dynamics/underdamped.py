r"""
Underdamped Langevin dynamics (Chen, Fox & Guestrin 2014; Chen, Ding & Carin 2015; Matthews & Weare 2018).

.. math:: dz = M^{-1} p\, dt, \qquad dp = -\nabla U(z)\, dt - D p\, dt + \sqrt{2 D M}\, dW

leaves :math:`\exp(-U(z) - p^T M^{-1} p / 2)` invariant, and with a :mod:`skew <numpyro_sgmcmc.dynamics.skew>` Q also
:math:`dp = \dots - Q M^{-1} p\, dt`. D is a rate (the C of Chen, Fox & Guestrin is D M).

===== ===================== =======================================================
``A``  drift                 z += h M^-1 p
``B``  kick                  p -= h g
``F``  friction              p *= exp(-D h)
``N``  noise                 p += sqrt(2 D h) M^1/2 n
``O``  F and N, exact        p = c p + sqrt(1 - c^2) M^1/2 n,  c = exp(-D h)
``E``  momentum, first order p += -h (g + D p) + sqrt(2 D h) M^1/2 n
``G``  F and N, minus g's    p = a p + (1 + a) sqrt(c1) M^1/2 n,
                             a = (1 - c1 - k) / (1 + c1 + k),
                             c1 = tanh(D h / 2), k = h^2 M^-1 s^2 / 4
``R``  rotation, with a Q    p = exp(-h Q M^-1) p
===== ===================== =======================================================

G is the flow of NOGIN, the word ``ABGBA`` (Matthews & Weare 2018, arXiv 1805.08863), where s^2 is the variance of the
white noise of g in each coordinate. The two kicks around G use the same g. Together they are

.. math:: p' = a p + (1 + a) \left(-\tfrac{h}{2} \nabla U + M^{1/2} \sqrt{c_1 + k}\, n\right)
    \quad\text{with}\quad a = e^{-D' h}, \quad \tanh(D' h / 2) = c_1 + k,

which has the law of ``ABOBA`` with full gradients and the larger friction D'. So on a Gaussian the distribution of z is
exact for all h, D and s^2, if the noise of g is Gaussian and independent between coordinates. Without noise of g,
s^2 = 0, it is ``ABOBA`` itself. At c1 + k = 1, near h s = 2 M^1/2, each step replaces the momentum; for larger values
each step reverses it, and the chain moves less and less.

In ``BAGAB`` the last kick of a step and the first of the next one use the same g. With noise of g the distribution of z
is then exact for :math:`k = h^2 M^{-1} s^2 / (4 - h^2 M^{-1} \lambda)`, where :math:`\lambda` is the curvature of U; G
leaves out :math:`\lambda`, so the relative error of the variance is about :math:`k h^2 M^{-1} \lambda / (4 c_1)`: less
than 1 % with the step sizes of the warm-up. Without noise of g it is ``BAOAB`` itself.

If the posterior is not normal, ``BAGAB`` is more accurate than ``ABGBA``. Let :math:`z_g` be a position at which the
gradient is evaluated. In equilibrium the mean momentum stays 0, so :math:`E[\nabla U(z_g)] = 0`, whatever h is.
``BAGAB`` ends there. ``ABGBA`` ends half a drift later, where in unit mass

.. math:: E[\nabla U(z)] = -\frac{h^2}{8} E[\nabla \Delta U] + O(h^4),

as :math:`E[p \mid z_g] = -h \nabla U(z_g) / 2` and :math:`E[\nabla^2 U\, \nabla U] = E[\nabla \Delta U]`. In the
log of a scale this error adds up over the groups of a hierarchy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics.skew import Skew
from numpyro_sgmcmc.types import Dynamics, Flow, Phase, Sites
from numpyro_sgmcmc.utils import trees


def _ou_noise(rate: Any, h: jax.Array) -> jax.Array:
    """(1 - exp(-2 r h)) / (2 r h), by its series if r h is small: variance of OU noise per unit of 2 D h."""
    x = jnp.asarray(2 * rate * h)
    small = jnp.abs(x) < 1e-2
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1 - x / 2 * (1 - x / 3 * (1 - x / 4)), -jnp.expm1(-safe) / safe)


FLOWS = {
    "A": Flow("drift", moves=True, reversible=True),
    "B": Flow("kick", needs_gradient=True, reversible=True),
    "F": Flow("friction"),
    "N": Flow("noise", needs_noise=True),
    "O": Flow("Ornstein-Uhlenbeck flow", needs_noise=True, contains="FN", reversible=True),
    "E": Flow("first-order momentum update", needs_gradient=True, needs_noise=True, contains="BFN"),
    "G": Flow(
        "friction and noise, minus that of the gradient",
        needs_noise=True,
        contains="FN",
        places=("BGB", "BAGAB"),  # k is the noise of the two kicks that use the same gradient
        needs_variance=True,
        reversible=True,  # without gradient noise, where it is O
    ),
}
ROTATION = {"R": Flow("rotation of the momentum")}


@dataclass(frozen=True)
class Underdamped(Dynamics):
    """
    The underdamped Langevin dynamics.

    :param float noise: D, intensity of the injected noise; also the friction, so that the two balance.
    :param inverse_mass_matrix: 1.0, a scalar, or a dict of diagonals like ``z``; with a ``skew`` it must be a scalar.
    :param skew: Q, or None. With a Q, the words of named integrators rotate the momentum first and last.
    """

    noise: float
    inverse_mass_matrix: Any = 1.0
    skew: Skew | None = None
    letters: ClassVar[dict[str, Flow]] = FLOWS
    words: ClassVar[dict[str, str]] = {"euler": "EA", "ssi": "AFBNFA", "NOGIN": "ABGBA"}

    @property
    def flows(self) -> Mapping[str, Flow]:
        return self.letters if self.skew is None else self.letters | ROTATION

    @property
    def integrators(self) -> Mapping[str, str]:
        return self.words if self.skew is None else {name: f"R{word}R" for name, word in self.words.items()}

    def largest_step(self, curvature: Any) -> Any:
        return 0.3 / curvature**0.5

    def friction(self, phase: Phase) -> Any:
        """The friction, for every leaf."""
        return trees.like(self.noise, phase.momentum)

    def inverse_mass(self, z: Sites) -> Any:
        """M^-1, for every leaf."""
        return trees.like(self.inverse_mass_matrix, z)

    def init(self, z: Any, noise: Any) -> Phase:
        """Momentum from its equilibrium N(0, M)."""
        momentum = jax.tree.map(lambda n, im: n / jnp.sqrt(jnp.asarray(im, n.dtype)), noise, self.inverse_mass(z))
        return Phase(z, momentum)

    def temperature(self, phase: Phase) -> jax.Array:
        """p^T M^-1 p / d."""
        energy = self.kinetic(phase)
        return trees.total(energy) / trees.size(energy)

    def kinetic(self, phase: Phase) -> Any:
        """p_j^2 / M_j of each coordinate, twice its kinetic energy."""
        return jax.tree.map(lambda p, im: im * p * p, phase.momentum, self.inverse_mass(phase.z))

    def gradient_heat(self, h: jax.Array, variance: Any) -> Any:
        """The intensity that white gradient noise of variance s^2 adds to D: h M^-1 s^2 / 2."""
        return jax.tree.map(lambda s2, im: 0.5 * h * im * s2, variance, self.inverse_mass(variance))

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """
        Relative variance that white gradient noise of this variance adds to z: h M^-1 s^2 / (2 D). With ``G``, the rest
        (x - x0) / (D + x0), where x0 is the ``gradient_heat`` of ``phase.noise_variance`` and x that of this variance.
        """
        heat = self.gradient_heat(h, variance)
        if isinstance(phase.noise_variance, tuple):
            return jax.tree.map(lambda x: x / self.noise, heat)
        subtracted = self.gradient_heat(h, phase.noise_variance)
        return jax.tree.map(lambda x, x0: (x - x0) / (self.noise + x0), heat, subtracted)

    def A(self, phase: Phase, h: jax.Array) -> Phase:
        z = jax.tree.map(lambda z, p, im: z + h * im * p, phase.z, phase.momentum, self.inverse_mass(phase.z))
        return phase._replace(z=z)

    def B(self, phase: Phase, h: jax.Array, gradient: Any) -> Phase:
        return _kicked(phase, lambda p, g: p - h * g, gradient)

    def F(self, phase: Phase, h: jax.Array) -> Phase:
        return _kicked(phase, lambda p, r: p * jnp.exp(-r * h), self.friction(phase))

    def R(self, phase: Phase, h: jax.Array) -> Phase:
        assert self.skew is not None
        return phase._replace(momentum=self.skew.rotated(phase.momentum, h * self.inverse_mass_matrix))

    def N(self, phase: Phase, h: jax.Array, noise: Any) -> Phase:
        inverse_mass = self.inverse_mass(phase.z)
        return _kicked(phase, lambda p, n, im: p + jnp.sqrt(2 * self.noise * h / im) * n, noise, inverse_mass)

    def O(self, phase: Phase, h: jax.Array, noise: Any) -> Phase:
        def flow(p, n, r, im):
            return p * jnp.exp(-r * h) + jnp.sqrt(2 * self.noise * h * _ou_noise(r, h) / im) * n

        return _kicked(phase, flow, noise, self.friction(phase), self.inverse_mass(phase.z))

    def E(self, phase: Phase, h: jax.Array, gradient: Any, noise: Any) -> Phase:
        def flow(p, g, n, r, im):
            return p - h * (g + r * p) + jnp.sqrt(2 * self.noise * h / im) * n

        return _kicked(phase, flow, gradient, noise, self.friction(phase), self.inverse_mass(phase.z))

    def G(self, phase: Phase, h: jax.Array, noise: Any) -> Phase:
        injected = jnp.tanh(0.5 * self.noise * h)

        def flow(p, n, s2, im):
            b = 2 / (1 + injected + 0.25 * h * h * im * s2)  # 1 + a, also if k is infinite
            return (b - 1) * p + b * jnp.sqrt(injected / im) * n

        return _kicked(phase, flow, noise, phase.noise_variance, self.inverse_mass(phase.z))


def _kicked(phase: Phase, flow: Callable[..., jax.Array], *inputs: Any) -> Phase:
    """The phase with the momentum ``flow(p, *inputs)``, leaf by leaf."""
    return phase._replace(momentum=jax.tree.map(flow, phase.momentum, *inputs))
