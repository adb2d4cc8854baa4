r"""
The largest step size for a given gradient noise.

In coordinates where the posterior has unit covariance, h is as large as the word, the noise of variance :math:`s^2`,
which is known up to a relative error :math:`\epsilon`, and the shape of the posterior allow:

.. math:: h \le h_{max}, \qquad h^2 s^2 / 4 \le 0.04, \qquad h s^2 / 2 \le 0.5, \qquad
    \text{inflation}(h, s^2) \le 0.02, \qquad \epsilon h s^2 / 2 \le 0.1, \qquad |E[b]| \le 0.5, \qquad
    h^3 q \le 0.05.

The fourth bound matters for words that do not subtract the gradient noise from the injected noise, the fifth for
coordinates that few minibatches hit: their noise has heavy tails, so its measured variance is inaccurate. The sixth
matters for posteriors that are not normal, such as hierarchies; :math:`E[b]` is proportional to :math:`h^2`, see
:mod:`~numpyro_sgmcmc.tuning.probes`.

The last bound matters for noise that grows with the coordinate itself, :math:`e_j = \xi x_j`, as that of a group with
few rows does with control variates. Each kick adds :math:`h^4 q x_j^4` to :math:`p_j^4`, with :math:`q = E[\xi^4]`;
friction takes :math:`4 h p_j^4` away, so a chain whose :math:`h^3 q` is not small has no fourth moment: it explodes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Phase, Thermostatted

INFLATION = 0.02  # maximal inflation of the variance by gradient noise
FORGOTTEN = 0.04  # maximal h^2 s^2 / 4
HEAT = 0.5  # maximal h s^2 / 2: the temperature that the noise would add, which is known to a tenth
UNKNOWN = 0.1  # maximal part of it that is unknown, to one standard error
BENT = 0.5  # maximal |E[b]|
GROWING = 0.05  # maximal h^3 q


class Noise(NamedTuple):
    """The gradient noise in x, by coordinate."""

    variance: jax.Array  # s^2
    error: jax.Array  # its relative standard error
    growth: jax.Array  # q


@dataclass(frozen=True)
class StepRule:
    dynamics: Dynamics  # dynamics of the kernel
    needs_variance: bool  # whether its word needs the variance of the gradient noise

    def phase(self, x: jax.Array, momentum: jax.Array, h: jax.Array, variance: jax.Array) -> Phase:
        """The initial phase of a chain whose gradient noise has this variance."""
        phase = self.dynamics.init(x, momentum)
        if isinstance(self.dynamics, Thermostatted):
            phase = self.dynamics.at_equilibrium(phase, h, variance)
        return phase._replace(noise_variance=variance) if self.needs_variance else phase

    def inflation(self, h: jax.Array, variance: jax.Array) -> jax.Array:
        """Relative variance that the noise adds to the worst coordinate, to first order."""
        phase = self.phase(jnp.zeros_like(variance), jnp.zeros_like(variance), h, variance)
        return jnp.abs(self.dynamics.inflation(phase, h, variance)).max().astype(variance.dtype)

    def reach(self, h: jax.Array) -> jax.Array:
        """r: half of the drift of a step, h / 2; without a momentum half of the step of its noise, sqrt(h / 2)."""
        momentum = self.dynamics.init(jnp.zeros(1), jnp.zeros(1)).momentum
        return jnp.sqrt(h / 2) if isinstance(momentum, tuple) else h / 2

    def step_size(self, noise: Noise, bend: jax.Array, largest: jax.Array) -> jax.Array:
        """
        The largest allowed step size in a decreasing sequence that starts with ``largest``; the smallest one if none is
        allowed.

        :param bend: :math:`|E[b]|` for the step size ``largest``.
        """
        steps = largest * 2.0 ** (-jnp.arange(64, dtype=largest.dtype) / 4)
        most, unknown = noise.variance.max(), (noise.variance * noise.error).max()

        def allowed(h):
            quiet = (h * h * most / 4 <= FORGOTTEN) & (h * most / 2 <= HEAT) & (h * unknown / 2 <= UNKNOWN)
            quiet &= h**3 * noise.growth.max() <= GROWING
            straight = bend * (self.reach(h) / self.reach(largest)) ** 2 <= BENT
            return quiet & straight & (self.inflation(h, noise.variance) <= INFLATION)

        fits = jax.vmap(allowed)(steps)
        return steps[jnp.where(fits.any(), jnp.argmax(fits), len(steps) - 1)]
