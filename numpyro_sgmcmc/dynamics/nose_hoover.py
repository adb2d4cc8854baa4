r"""
Nosé-Hoover thermostats (Ding et al. 2014; Gan et al. 2015; Li et al. 2016, equation 2).

.. math::

    dz = M^{-1} p\, dt, \quad dp = -\nabla U(z)\, dt - \xi p\, dt + \sqrt{2 D M}\, dW, \quad
    d\xi = (p^T M^{-1} p / d - 1)\, dt

with one thermostat :math:`\xi` for all d coordinates (SGNHT), or one for each, :math:`d\xi_j = (p_j^2 / M_j - 1)\, dt`
(MSGNHT). It leaves :math:`\exp(-U(z) - p^T M^{-1} p / 2 - d (\xi - D)^2 / 2)` invariant, where for MSGNHT the last term
is summed over coordinates with d = 1. Gradient noise of constant variance :math:`s^2` only shifts the mean of
:math:`\xi` to :math:`D + h s^2 / 2`: the thermostat finds the friction that balances noise of unknown variance.

===== ================ =====================================================================
``A``  drift            z += h M^-1 p
``B``  kick             p -= h g
``F``  friction         p *= exp(-xi h)
``N``  noise            p += sqrt(2 D h) M^1/2 n
``O``  F and N, exact   OU given xi; variance D (1 - exp(-2 xi h)) / xi, its series at xi -> 0
``D``  thermostat       xi += h (p M^-1 p / d - 1), or elementwise
``E``  first order      p += -h (g + xi p) + sqrt(2 D h) M^1/2 n
===== ================ =====================================================================
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics import underdamped
from numpyro_sgmcmc.types import Flow, Phase
from numpyro_sgmcmc.utils import trees

# without G: the thermostat itself balances the gradient noise
FLOWS = {letter: flow for letter, flow in underdamped.FLOWS.items() if letter != "G"} | {"D": Flow("thermostat")}


@dataclass(frozen=True)
class NoseHoover(underdamped.Underdamped):
    """
    The underdamped dynamics whose friction is a thermostat.

    :param float noise: D, intensity of the injected noise; the thermostats start at D.
    :param bool elementwise: one thermostat per coordinate instead of one for all.
    """

    elementwise: bool = False
    letters: ClassVar[dict[str, Flow]] = FLOWS
    words: ClassVar[dict[str, str]] = {"euler": "AED", "ssi": "ADFBNFDA"}

    def friction(self, phase: Phase) -> Any:
        return trees.like(phase.thermostat, phase.momentum)

    def init(self, z: Any, noise: Any) -> Phase:
        if self.elementwise:
            thermostat = jax.tree.map(lambda x: jnp.full_like(x, self.noise), z)
        else:
            thermostat = jnp.asarray(self.noise, jnp.result_type(*jax.tree.leaves(z)))
        return super().init(z, noise)._replace(thermostat=thermostat)

    def at_equilibrium(self, phase: Phase, h: jax.Array, variance: Any) -> Phase:
        """Thermostats at D + h M^-1 s^2 / 2, where they balance independent gradient noise of variance s^2."""
        shifts = self.gradient_heat(h, variance)
        if self.elementwise:
            return phase._replace(thermostat=jax.tree.map(jnp.add, phase.thermostat, shifts))
        return phase._replace(thermostat=phase.thermostat + trees.total(shifts) / trees.size(shifts))

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """The inflation that remains when the thermostats are in balance: 0, or that by the common friction."""
        heat = self.gradient_heat(h, variance)
        if self.elementwise:
            return jax.tree.map(jnp.zeros_like, heat)
        mean = trees.total(heat) / trees.size(heat)
        return jax.tree.map(lambda x: (x - mean) / (self.noise + mean), heat)

    def D(self, phase: Phase, h: jax.Array) -> Phase:
        if self.elementwise:
            thermostat = jax.tree.map(lambda xi, e: xi + h * (e - 1), phase.thermostat, self.kinetic(phase))
        else:
            thermostat = phase.thermostat + h * (self.temperature(phase) - 1)
        return phase._replace(thermostat=thermostat)
