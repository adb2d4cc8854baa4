r"""
Adds the draws of a run to the averages of :mod:`~numpyro_sgmcmc.report.run_scores`, while it is sampling.

A word that ends with a kick, such as ``BAGAB``, has evaluated the gradient at the draw for its next step. If batches
are independent, the draw does not depend on their rows, so this gradient is used. Otherwise one is evaluated on rows of
its own, after every k-th draw, such that there are 20 steps for each, or several after a draw of many steps.

A run is not checked if the gradient at a draw is not defined or costs too much: local values that are kept from visit
to visit, a block of Gibbs, data on disk, other variables than those of NumPyro (a simplex), replicas that exchange
temperatures; nor with a schedule, whose draws have no common distribution.
"""

from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.state import CHECK, Marks, SGMCMCState, stream
from numpyro_sgmcmc.engine.tuned import axes_of_chains
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.run_scores import Layout, RunScores
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.tuning.coordinates import Identity, raveled
from numpyro_sgmcmc.types import RowsState

STEPS = 20  # steps for each gradient that is evaluated for the check
FREE_STEPS = 8  # the same if the gradient has been evaluated for a step
MOST = 8  # maximal number of gradients at a draw


def layout_of(potential: ModelPotential) -> Layout:
    """The averages of the model of this potential."""
    inside = [name for name, site in potential.structure.latents.items() if site.plates]
    return Layout.of(potential.prototype, inside)


def can_check(chain: Chain, potential: ModelPotential) -> bool:
    """Whether the draws of this chain are checked."""
    undefined = potential.keeps_local_values or potential.transforms is not None
    defined = not undefined and GIBBS_SITES_KWARG not in potential.kwargs
    return chain.checked and defined and not potential.sources and isinstance(chain.schedule, Constant)


def with_scores(chain: Chain, potential: ModelPotential, state: SGMCMCState, chains: int) -> SGMCMCState:
    """A new state, with the averages that its draws will be added to if they are checked."""
    if not can_check(chain, potential):
        return state
    return state._replace(scores=RunScores.zeros(layout_of(potential), chains, raveled(state.z).dtype, not chain.tuned))


def checked(chain: Chain, potential: ModelPotential, steps: Any, before: SGMCMCState, state: SGMCMCState):
    """
    The state after a transition, where its draws have been added to the averages.

    :param potential: that of the variables in which the chains move.
    :param steps: steps of the transition.
    :param before: the state before it.
    """
    if isinstance(state.scores, tuple) and not isinstance(state.scores, RunScores):
        return state
    batched = jnp.ndim(state.i) == 1
    marks = Marks.of(state.marks)
    i = jnp.ravel(state.i)[0]
    if chain.tuned:
        sampling = state.tuning.transition > state.tuning.num_warmup
    else:
        sampling = jnp.ravel((marks.wraps > 0) | (state.i > marks.num_warmup))[0]
    steps = jnp.asarray(steps, jnp.int32)
    free = chain.integrator.carries_gradient and getattr(chain.rows, "independent", False)
    period = jnp.maximum(-(-(FREE_STEPS if free else STEPS) // steps), 1)
    repeats = jnp.clip(steps // STEPS, 1, MOST)
    due = (sampling & (state.scores.draws % period == 0)).astype(jnp.int32)
    late = (
        ~sampling
        & (i > jnp.ravel(marks.num_warmup)[0] // 2)
        & ((i // steps.astype(i.dtype)) % period.astype(i.dtype) == 0)
    ).astype(jnp.int32)
    layout = layout_of(potential)
    coordinates = state.tuning.coordinates
    learns = isinstance(coordinates, Identity)
    ones = jnp.ones(layout.coordinates, state.scores.center.dtype)

    def over(fn):
        """Over chains."""
        axes = axes_of_chains(chain)
        return (lambda state, *keys: jax.vmap(fn, (axes, *[0] * len(keys)))(state, *keys)) if batched else fn

    def gradient(state, key):
        """At the position of a chain, in its coordinates."""
        if free:
            return raveled(state.gradient)
        position = chain._sites(potential, state)

        def of_rows(k, total):
            key_rows, key_model = random.split(random.fold_in(key, k))
            rows, _ = next_rows(chain.rows, RowsState(key_rows, jnp.zeros((), jnp.uint32)), potential.plates)
            evaluation = chain.evaluate(potential, position, rows, state.gradient_state, key_model)
            return total + raveled(evaluation.gradient)

        total = lax.fori_loop(0, repeats, of_rows, jnp.zeros_like(raveled(position))) / repeats
        return total if isinstance(state.tuning.coordinates, Identity) else state.tuning.coordinates.pull_back(total)

    def position(state):
        """The position of a chain, in the coordinates of z relative to c of the warm-up."""
        x, coordinates = raveled(state.phase.z), state.tuning.coordinates
        return x if isinstance(coordinates, Identity) else coordinates.times(x)

    def look(_, scores):
        key = jax.vmap(lambda key: stream(key, CHECK))(before.rng_key) if batched else stream(before.rng_key, CHECK)
        z, g = over(position)(state), jnp.atleast_2d(over(gradient)(state, key))
        v, diagonal = scores.times(g) if learns else (jax.vmap(coordinates.times)(g), coordinates.variances(ones))
        return scores.add(layout, jnp.atleast_2d(z), v, diagonal)

    scores = lax.fori_loop(0, due, look, state.scores)
    if learns:
        scores = lax.fori_loop(0, late, lambda _, scores: scores.learn(jnp.atleast_2d(over(position)(state))), scores)
    return state._replace(scores=scores._replace(draws=scores.draws + sampling))
