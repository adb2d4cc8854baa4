r"""
The largest step size for a given gradient noise.

In coordinates where the posterior has unit covariance, h is as large as the word and the noise of variance :math:`s^2`
allow:

.. math:: h \le h_{max}, \qquad h^2 s^2 / 4 \le 0.04, \qquad h s^2 / 2 \le 0.5, \qquad
    \text{inflation}(h, s^2) \le 0.02,

where the last condition matters for words that do not subtract the gradient noise from the injected noise.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Phase, Thermostatted

INFLATION = 0.02  # maximal inflation of the variance by gradient noise
FORGOTTEN = 0.04  # maximal h^2 s^2 / 4
HEAT = 0.5  # maximal h s^2 / 2: the temperature that the noise would add, which is known to a tenth


@dataclass(frozen=True)
class StepRule:
    """
    :param dynamics: dynamics of the kernel.
    :param needs_variance: whether its word needs the variance of the gradient noise.
    """

    dynamics: Dynamics
    needs_variance: bool

    def phase(self, x: jax.Array, momentum: jax.Array, h: jax.Array, variance: jax.Array) -> Phase:
        """The initial phase of a chain whose gradient noise has this variance."""
        phase = self.dynamics.init(x, momentum)
        if isinstance(self.dynamics, Thermostatted):
            phase = self.dynamics.balanced(phase, h, variance)
        return self.dynamics.informed(phase, variance) if self.needs_variance else phase

    def inflation(self, h: jax.Array, variance: jax.Array) -> jax.Array:
        """Relative variance that the noise adds to the worst coordinate, to first order."""
        phase = self.phase(jnp.zeros_like(variance), jnp.zeros_like(variance), h, variance)
        return jnp.abs(self.dynamics.inflation(phase, h, variance)).max().astype(variance.dtype)

    def step_size(self, variance: jax.Array, largest: jax.Array) -> jax.Array:
        """
        The largest allowed step size in a decreasing sequence that starts with ``largest``; the smallest one if none is
        allowed.
        """
        steps = largest * 2.0 ** (-jnp.arange(64, dtype=variance.dtype) / 4)

        def allowed(h):
            most = variance.max()
            quiet = (h * h * most / 4 <= FORGOTTEN) & (h * most / 2 <= HEAT)
            return quiet & (self.inflation(h, variance) <= INFLATION)

        fits = jax.vmap(allowed)(steps)
        return steps[jnp.where(fits.any(), jnp.argmax(fits), len(steps) - 1)]
