"""
Chains that continue from the last state of a run with another step size or other batches, without changing the run.

All other settings of a tuned kernel are kept. The variance that NOGIN subtracts is rescaled for the new batches: with n
of N rows it is proportional to 1 / n - 1 / N.
"""

from collections.abc import Mapping
import copy
from dataclasses import replace
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.draws import states_of
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.potential.compiled import compiled
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.tuning.coordinates import raveled
from numpyro_sgmcmc.types import Plate


def altered(
    kernel: SGMCMC,
    states: list[SGMCMCState],
    plates: Mapping[str, Plate],
    *,
    step: float = 1.0,
    longer: int = 1,
    batch: int = 1,
) -> tuple[SGMCMC, list[SGMCMCState]]:
    """
    The kernel and the states with the last step size times ``step``, ``longer`` times as many steps per draw, and
    ``batch`` times as many rows per minibatch.
    """
    changed = copy.copy(kernel)
    set_to = lambda name, value: object.__setattr__(changed, name, value)  # noqa: E731
    if kernel.steps_per_sample is not None:
        set_to("steps_per_sample", kernel.steps_per_sample * longer)
    # a schedule stops at its last step size: that of a tuned kernel is part of the states, see below
    h = last_step(states)
    set_to("_chain", replace(kernel._chain, schedule=Constant(1.0 if kernel._chain.tuned else h * step)))
    if plates:
        set_to("batch_size", {name: plate.batch_size * batch for name, plate in plates.items()})
    less = 1.0
    if batch != 1 and len(plates) == 1:
        ((_, plate),) = plates.items()
        n, N = plate.batch_size, plate.size
        less = (1 / (batch * n) - 1 / N) / (1 / n - 1 / N)

    def of(state):
        if kernel.integrator.needs_variance:
            state = state.at(kernel.dynamics.reckoning(state.phase, less))
        if not kernel._chain.tuned:
            return state
        tuning = state.tuning
        tuning = tuning._replace(
            step_size=state.step_size * step, num_steps=tuning.num_steps * longer, variance=tuning.variance * less
        )
        return state._replace(tuning=tuning)

    return changed, [of(state) for state in states]


def last_step(states: list[SGMCMCState]) -> float:
    """
    :raises ValueError: for a schedule that has ended at 0.
    """
    h = float(np.asarray(states[0].step_size))
    if not h > 0:
        raise ValueError(
            f"the last step size of the run is {h:g}, so its chains cannot be continued. Use a schedule that stays "
            "positive, such as Polynomial, or give optax an end value."
        )
    return h


def go_on(
    kernel: SGMCMC,
    states: list[SGMCMCState],
    model_args: tuple,
    model_kwargs: Mapping[str, Any],
    num_samples: int,
    rng_key: jax.Array,
) -> np.ndarray:
    """Draws of each chain as NumPyro's unconstrained values, raveled, shape ``(chains, num_samples, d)``."""
    keys = random.split(rng_key, len(states))
    if not jnp.issubdtype(states[0].rng_key.dtype, jax.dtypes.prng_key) and keys.dtype != jnp.uint32:
        keys = random.key_data(keys)

    def run(potential, state):
        chains = replace(kernel._chains(potential), searching=False)
        usual = potential_of(kernel, potential.args, potential.kwargs)

        def of(z):
            if kernel._transforms is not None:
                values = potential.constrain(z)
                z = usual.unconstrain({name: values[name] for name in z})
            return raveled(z)

        def one(state, _):
            state = chains.transition(state, fingerprint=0)
            return state, jax.vmap(of)(state.z) if state.i.ndim else of(state.z)

        return lax.scan(one, state, None, length=num_samples)[1]

    draw = compiled(run, kernel._model, model_args, model_kwargs, kernel._batch_size, kernel._transforms)
    states = [state._replace(rng_key=key) for state, key in zip(states, keys)]
    if kernel._chain.tuned or len(states) == 1:
        return np.stack([np.asarray(draw(state), float) for state in states])
    together = jax.tree.map(lambda *x: jnp.stack(x), *states)
    return np.asarray(draw(together), float).swapaxes(0, 1)


def last_states(kernel: SGMCMC, state: SGMCMCState) -> list[SGMCMCState]:
    """The state of each chain, on the device."""
    return [jax.tree.map(jnp.asarray, one) for one in states_of(kernel, state)]


def potential_of(kernel: SGMCMC, model_args: tuple, model_kwargs: Mapping[str, Any]) -> ModelPotential:
    """The potential of NumPyro's unconstrained values."""
    return ModelPotential.of(kernel._model, model_args, model_kwargs, kernel._batch_size)
