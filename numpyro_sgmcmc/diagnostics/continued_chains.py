"""
Chains that continue from the last state of a run with another step size or other batches, without changing the run.

All other settings of a tuned kernel are kept. The variance that NOGIN subtracts is rescaled for the new batches: with n
of N rows it is proportional to 1 / n - 1 / N.
"""

from dataclasses import replace
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.tuning.coordinates import raveled


def with_changes(run: Run, *, step: float = 1.0, longer: int = 1, batch: int = 1) -> tuple[SGMCMC, list[SGMCMCState]]:
    """
    The kernel and the states with the last step size times ``step``, ``longer`` times as many steps per draw, and
    ``batch`` times as many rows per minibatch.
    """
    kernel, plates = run.kernel, run.potential.plates
    # a schedule stops at its last step size: that of a tuned kernel is part of the states, see below
    h = last_step(run)
    chain = replace(kernel.chain, schedule=Constant(1.0 if run.warm_up else h * step))
    if chain.steps_per_sample is not None:
        chain = replace(chain, steps_per_sample=chain.steps_per_sample * longer)
    changes: dict[str, Any] = {"chain": chain}
    if plates:
        changes["batch_size"] = {name: plate.batch_size * batch for name, plate in plates.items()}
    less = 1.0
    if batch != 1 and len(plates) == 1:
        ((_, plate),) = plates.items()
        n, N = plate.batch_size, plate.size
        less = (1 / (batch * n) - 1 / N) / (1 / n - 1 / N)

    def changed(state):
        state = state._replace(noise_variance=jax.tree.map(lambda s2: less * s2, state.noise_variance))
        if run.warm_up is None:
            return state
        settings = replace(
            state.settings,
            step_size=state.step_size * step,
            steps_per_sample=state.settings.steps_per_sample * longer,
            noise_variance=state.settings.noise_variance * less,
        )
        return state._replace(settings=settings)

    return kernel.replace(**changes), [changed(state) for state in run.states]


def last_step(run: Run) -> float:
    """Raises a ValueError for a schedule that has ended at 0."""
    h = float(np.asarray(run.states[0].step_size))
    if not h > 0:
        raise ValueError(
            f"the last step size of the run is {h:g}, so its chains cannot be continued. Use a schedule that stays "
            "positive, such as Polynomial, or give optax an end value."
        )
    return h


def continue_chains(
    run: Run, kernel: SGMCMC, states: list[SGMCMCState], num_warmup: int, num_samples: int, rng_key: jax.Array
) -> Draws:
    """Draws of each chain after ``num_warmup`` others, as NumPyro's unconstrained values."""
    keys = random.split(rng_key, len(states))
    if not jnp.issubdtype(states[0].rng_key.dtype, jax.dtypes.prng_key) and keys.dtype != jnp.uint32:
        keys = random.key_data(keys)

    def draws(potential, state):
        chains = replace(kernel.chains_for(potential), searching=False)
        usual = kernel.potential_of_values(potential.args, potential.kwargs)

        def values_of(z):
            if kernel.transforms is not None:
                values = potential.constrain(z)
                z = usual.unconstrain({name: values[name] for name in z})
            return raveled(z)

        def next_draw(state, _):
            state = chains.transition(state, fingerprint=0)
            return state, jax.vmap(values_of)(state.z) if state.i.ndim else values_of(state.z)

        return lax.scan(next_draw, state, None, length=num_warmup + num_samples)[1]

    draw = kernel.compiled(draws, run.args, run.kwargs)
    states = [state._replace(rng_key=key) for state, key in zip(states, keys)]
    if run.warm_up is not None or len(states) == 1:
        z = np.stack([np.asarray(draw(state), float) for state in states])
    else:
        together = jax.tree.map(lambda *x: jnp.stack(x), *states)._replace(settings=states[0].settings)
        z = np.asarray(draw(together), float).swapaxes(0, 1)
    return Draws.of_sites(z[:, num_warmup:], run.potential.prototype)
