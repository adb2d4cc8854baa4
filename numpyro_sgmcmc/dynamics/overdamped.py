r"""
Overdamped Langevin dynamics.

.. math:: dz = -(M^{-1} + Q) \nabla U(z)\, dt + \sqrt{2 M^{-1}}\, dW

leaves :math:`\exp(-U(z))` invariant, for every :mod:`skew <numpyro_sgmcmc.dynamics.skew>` Q (by default 0). It has one
flow:

==== ===================== ==================================================
``E`` first-order step      z += -h (M^-1 + Q) g + sqrt(2 h) M^-1/2 n
==== ===================== ==================================================
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics.skew import Skew
from numpyro_sgmcmc.types import Dynamics, Flow, Phase, TemperatureFromSteps
from numpyro_sgmcmc.utils import trees


@dataclass(frozen=True)
class Overdamped(Dynamics):
    """
    The overdamped Langevin dynamics.

    :param inverse_mass_matrix: preconditioner: 1.0, a scalar, or a dict of diagonals like ``z``.
    :param skew: Q, or None.
    """

    inverse_mass_matrix: Any = 1.0
    skew: Skew | None = None
    flows: ClassVar[dict[str, Flow]] = {
        "E": Flow("first-order step", needs_gradient=True, needs_noise=True, moves=True)
    }
    integrators: ClassVar[dict[str, str]] = {"euler": "E"}

    def largest_step(self, curvature: Any) -> Any:
        return 0.04 / curvature  # adds h / 2 to the relative variance

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white gradient noise of this variance adds to z (no ``skew``): h M^-1 s^2 / 2."""
        return jax.tree.map(lambda s2, im: 0.5 * h * im * s2, variance, trees.like(self.inverse_mass_matrix, variance))

    def temperature(self, phase: Phase) -> Any:
        """There is no kinetic temperature. For unit mass, it is estimated from the size of the steps instead."""
        mass = self.inverse_mass_matrix
        return TemperatureFromSteps() if isinstance(mass, float) and mass == 1 and self.skew is None else ()

    def E(self, phase: Phase, h: jax.Array, gradient: Any, noise: Any) -> Phase:
        z = jax.tree.map(
            lambda z, g, n, im: z - h * im * g + jnp.sqrt(2 * h * im) * n,
            phase.z,
            gradient,
            noise,
            trees.like(self.inverse_mass_matrix, phase.z),
        )
        if self.skew is not None:
            z = jax.tree.map(lambda z, around: z - h * around, z, self.skew.times(gradient))
        return phase._replace(z=z)
