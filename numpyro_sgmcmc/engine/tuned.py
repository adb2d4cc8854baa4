"""Puts the settings found by the warm-up into the states of chains: one ``Tuning`` for all chains of a state."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.state import TUNE, SGMCMCState, stream
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.tuner import Tuner


def axes_of_chains(chain: Chain) -> Any:
    """The axis of chains in each field of a state of several chains; None if they share the field."""
    axes: dict[str, Any] = dict.fromkeys(SGMCMCState._fields, 0)
    axes |= {"tuning": None, "centering": None, "scores": None, "gradient_state": None if chain.gradient.shared else 0}
    return SGMCMCState(**axes)


def with_tuning(
    chain: Chain,
    tuner: Tuner,
    potential: ModelPotential,
    state: SGMCMCState,
    chains: int | None,
    num_warmup: int,
    passes: float,
    layout: Layout | None = None,
) -> SGMCMCState:
    """
    A new state, whose settings are chosen by its first transition.

    :param chains: number of chains, or None for a single chain without an axis.
    :param int num_warmup: transitions of the warm-up.
    :param float passes: passes over the data for the start.
    :param layout: the groups of a hierarchy.
    """
    tuning = tuner.start(potential, chains or 1, num_warmup, layout)
    state = state._replace(tuning=tuning._replace(passes=tuning.passes + passes))
    if not chain.gradient.shared:
        return state
    z = jax.tree.map(lambda x: jnp.zeros_like(x if chains is None else x[0]), state.z)
    return state._replace(gradient_state=chain.gradient.start(potential, z, random.key(0)))


def tuned(tuner: Tuner, potential: ModelPotential, state: SGMCMCState, first_gradient: Callable | None) -> SGMCMCState:
    """
    The state at the start of a transition, with the settings that the warm-up has found so far.

    After the warm-up nothing is computed. This is a loop of one iteration or none, because XLA updates the variables of
    a loop in place, while a conditional would copy the moments of the warm-up in every transition.

    :param first_gradient: (state, key) -> the state with its gradient, for words that carry one; None for others.
    """
    t = state.tuning.transition
    during = (t <= state.tuning.num_warmup).astype(jnp.int32)
    state = lax.fori_loop(0, during, lambda _, state: _updated(tuner, potential, state, first_gradient), state)
    return state._replace(tuning=state.tuning._replace(transition=jnp.minimum(t + 1, 2**31 - 2)))


def _updated(tuner: Tuner, usual: ModelPotential, state: SGMCMCState, first_gradient: Callable | None) -> SGMCMCState:
    batched = jnp.ndim(state.i) == 1
    with_axis = lambda tree: tree if batched else jax.tree.map(lambda x: x[None], tree)  # noqa: E731
    without = lambda tree: tree if batched else jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    key, key_first = random.split(stream(state.rng_key[0] if batched else state.rng_key, TUNE))
    z, phase = with_axis((state.z, state.phase))
    potential = usual.centred(state.centering)
    z = jax.vmap(partial(usual.in_variables_of, potential))(z) if state.centering else z
    shared = tuner.gradient.shared
    gradient_state = state.gradient_state if shared else with_axis(state.gradient_state)
    tuning, phase, gradient_state, due = tuner.before(potential, state.tuning, z, phase, gradient_state, key)
    gradient_state = gradient_state if shared else without(gradient_state)
    state = state.at(without(phase), tuning=tuning, gradient_state=gradient_state)
    if isinstance(state.last_finite, jax.Array):  # the gradient is finite at new positions
        state = state._replace(last_finite=jnp.where(due, state.x, state.last_finite))
    if first_gradient is None:
        return state
    keys = random.split(key_first, len(phase.z)) if batched else key_first

    def renewed():
        new = first_gradient(state, keys)
        return new.gradient, new.potential_estimate

    gradient, energy = lax.cond(due, renewed, lambda: (state.gradient, state.potential_estimate))
    return state._replace(gradient=gradient, potential_estimate=energy)
