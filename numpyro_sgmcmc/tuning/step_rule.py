r"""
The step size that the noise of the gradient allows.

In coordinates where the posterior is round and of unit width, a step h is as large as the word and the noise, of
variance :math:`s^2`, allow:

.. math:: h \le h_{max}, \qquad h^2 s^2 / 4 \le 0.04, \qquad h s^2 / 2 \le 0.5, \qquad
    \text{inflation}(h, s^2) \le 0.02,

the last of which holds for the words that take no noise out of what they inject.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Phase, Thermostatted

INFLATION = 0.02  # of the variance, by the noise of the gradient
FORGOTTEN = 0.04  # h^2 s^2 / 4, at most
HEAT = 0.5  # h s^2 / 2, at most: the temperature that the noise would add, which is known to a tenth of it


@dataclass(frozen=True)
class StepRule:
    """
    :param dynamics: of the kernel.
    :param needs_variance: whether its word is to be told the variance of the gradient's noise.
    """

    dynamics: Dynamics
    needs_variance: bool

    def phase(self, x: jax.Array, momentum: jax.Array, h: jax.Array, variance: jax.Array) -> Phase:
        """Where a chain begins that knows the variance of its gradient's noise."""
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
        The largest of a falling row of steps, the first of which is ``largest``, that the noise allows; the smallest of
        them where it allows none.
        """
        steps = largest * 2.0 ** (-jnp.arange(64, dtype=variance.dtype) / 4)

        def allowed(h):
            most = variance.max()
            quiet = (h * h * most / 4 <= FORGOTTEN) & (h * most / 2 <= HEAT)
            return quiet & (self.inflation(h, variance) <= INFLATION)

        fits = jax.vmap(allowed)(steps)
        return steps[jnp.where(fits.any(), jnp.argmax(fits), len(steps) - 1)]
