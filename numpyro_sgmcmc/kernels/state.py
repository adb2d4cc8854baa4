"""The state of a chain, and the streams of random numbers that it feeds."""

from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.kernels.report import Collected
from numpyro_sgmcmc.kernels.run_checks import Monitor, projection, squared_step
from numpyro_sgmcmc.types import BySteps, Phase

# What the key of a state is used for, a stream each. The key itself is used for nothing else.
NEXT, STEPS, DRAW, REFRESH, PROBE, TUNE = range(6)


def stream(rng_key: jax.Array, use: int) -> jax.Array:
    """The key of one of the streams above."""
    return random.fold_in(rng_key, use)


def next_key(rng_key: jax.Array) -> jax.Array:
    """The key of the next transition."""
    return stream(rng_key, NEXT)


def raw_key(rng_key: jax.Array) -> jax.Array:
    """
    Typed keys of the usual kind as their data: NumPyro cannot collect a typed key as an extra field. Data of another
    kind would be taken for that of the default, and those of ``rbg``, four numbers, for several keys.
    """
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        if random.key_impl(rng_key) == random.key_impl(random.key(0)) == "threefry2x32":
            return random.key_data(rng_key)
    return rng_key


class Marks(NamedTuple):
    """
    What seldom changes, four uint32 kept in one array: each array of a state costs some 3 us in every call.

    - **wraps** - how often the counter ``i`` has come back to 0.
    - **num_warmup** - integrator steps of the warm-up.
    - **fingerprint** - of the data that the chain was started with, see :mod:`~numpyro_sgmcmc.model.fingerprint`.
    - **data_changed** - 1 once a transition has seen other data.
    """

    wraps: Any
    num_warmup: Any
    fingerprint: Any
    data_changed: Any

    def packed(self) -> jax.Array:
        """As one array."""
        return jnp.stack([jnp.asarray(mark, jnp.uint32) for mark in self])

    @classmethod
    def of(cls, marks: jax.Array) -> "Marks":
        """From the array of a state, of one chain or of several."""
        return cls(*(marks[..., k] for k in range(4)))


class SGMCMCState(NamedTuple):
    """
    - **i** - integrator steps so far, uint32; 0 again after 2**32.
    - **z** - dict of unconstrained values.
    - **x** - position in the coordinates of the dynamics, raveled; ``()`` where these are those of ``z``.
    - **momentum** - like the position, or ``()``.
    - **thermostat** - scalar, like the position, or ``()``.
    - **auxiliary** - any other variables of the dynamics, or ``()``.
    - **last_finite** - the last position whose energy was finite, for words that evaluate the position where they
      begin (SGLD, ``EA``), else ``()``.
    - **gradient** - gradient at ``z`` for words that begin with a kick (BAOAB), else ``()``.
    - **gradient_state** - what the gradient estimator remembers.
    - **rows_state** - place in the sequence of minibatches.
    - **step_size** - that of the last step.
    - **potential_estimate** - minibatch estimate of U where the gradient was last evaluated: noisy, and not at ``z``.
    - **temperature** - kinetic temperature, NaN after a step without noise; or ``()``, or ``BySteps()``.
    - **diverging** - whether the last transition refused a step that left the finite numbers or the support.
    - **refused** - steps refused in a row.
    - **marks** - see :class:`Marks`.
    - **rng_key** - key of the next transition.
    - **tuning** - what the warm-up has found, the same for all chains, or ``()``: see
      :class:`~numpyro_sgmcmc.tuning.tuner.Tuning`.
    """

    i: jax.Array
    z: Any
    x: Any
    momentum: Any
    thermostat: Any
    auxiliary: Any
    last_finite: Any
    gradient: Any
    gradient_state: Any
    rows_state: Any
    step_size: jax.Array
    potential_estimate: jax.Array
    temperature: Any
    diverging: jax.Array
    refused: jax.Array
    marks: jax.Array
    rng_key: jax.Array
    tuning: Any = ()

    @property
    def phase(self) -> Phase:
        """What the dynamics moves."""
        return Phase(self.z if isinstance(self.x, tuple) else self.x, self.momentum, self.thermostat, self.auxiliary)

    def at(self, phase: Phase, **fields: Any) -> "SGMCMCState":
        """This state at another phase, and with other values of ``fields``."""
        position, *rest = phase
        name = "z" if isinstance(self.x, tuple) else "x"
        return self._replace(**{name: position}, **dict(zip(Phase._fields[1:], rest)), **fields)

    @property
    def monitor(self) -> Collected:
        """What is collected of every draw to tell the user what is wrong, see :mod:`~numpyro_sgmcmc.kernels.report`."""
        batched = jnp.ndim(self.i) == 1
        chain = jnp.arange(jnp.size(self.i)) if batched else 0
        temperature = (
            jnp.full_like(self.step_size, jnp.nan) if isinstance(self.temperature, tuple) else self.temperature
        )
        changed = Marks.of(self.marks).data_changed
        found = self.tuning.told if hasattr(self.tuning, "told") else [0.0] * 7
        found = [jnp.full_like(self.step_size, number) for number in found]
        place = projection(self.phase.z, batched)
        jump = jnp.zeros_like(self.step_size)
        if isinstance(self.temperature, BySteps):
            jump = squared_step(self.phase.z, self.last_finite, self.step_size, batched)
        own = chain, self.refused, temperature, self.step_size, changed, self.potential_estimate, place, jump
        monitor = Monitor(*own, *found)
        chains = jnp.size(self.i) if batched else 1
        return Collected.of(monitor, chains, sum(map(jnp.size, jax.tree.leaves(self.phase.z))) // chains)
