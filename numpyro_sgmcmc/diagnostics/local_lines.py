r"""
The line of a summary for local sites that are drawn by moves: the share s of the rows whose local chain rejects every
move. It is measured on new minibatches at draws of the run.

If the chains start at the prior, such a row keeps a draw from the prior, which carries no information on the data. In a
normal hierarchy the part of the gradient that comes from the data is then multiplied by 1 - s, and to first order the
variance of the posterior is too large by the factor 1 / (1 - s). The score identities do not show this, because they
use the same local values. Values of the previous visit are wrong only if no visit moves them, so s is the share of rows
that reject the moves of all visits of the run. A function may return good starts. Then only a chain without any
movement is wrong, as the start alone decides.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.draws import Draws, on_model, states_of, unravel_of
from numpyro_sgmcmc.diagnostics.kept_lines import VARIANCE
from numpyro_sgmcmc.diagnostics.table import Line, graded
from numpyro_sgmcmc.gradients.visits import read
from numpyro_sgmcmc.kernels.sgmcmc import SGMCMC
from numpyro_sgmcmc.kernels.state import Marks, SGMCMCState
from numpyro_sgmcmc.model.coordinates import raveled
from numpyro_sgmcmc.model.local import keeps_values
from numpyro_sgmcmc.model.local_acceptance import makes_moves, watched_draw
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import WithoutReplacement, next_rows
from numpyro_sgmcmc.types import RowsState

PLACES = 100  # draws of the run, each with a minibatch of its own
VISITS = 40  # at most so many visits to a row with a stored value
OF_A_FUNCTION = 0.3, 0.99  # bounds of s, if a function returns the starts


def local_lines(
    kernel: SGMCMC,
    state: SGMCMCState,
    draws: Draws | None,
    model_args: tuple,
    model_kwargs: Mapping[str, Any],
    rng_key: jax.Array,
) -> dict[str, Line]:
    """
    Empty if local sites are not drawn by moves.

    :param draws: the places to measure at. None if local values are kept: they fit the last position only.
    """
    if not makes_moves(kernel._model):
        return {}
    local, kept = kernel._model.local, keeps_values(kernel._model)
    sites: tuple[str, ...] = ()
    visits = _visits(kernel, state, model_args, model_kwargs) if kept else 1

    def shares(potential, z, table, rng_key):
        key_rows, key_draws = random.split(rng_key)
        rows, _ = next_rows(WithoutReplacement(), RowsState(key_rows, jnp.zeros((), jnp.uint32)), potential.plates)
        before = read(table, rows) if kept else None

        def accepted(key):
            nonlocal sites
            sites, found = watched_draw(potential, z, rows, key, before)
            return found.mean(), found.any(0)

        mean, moved = lax.map(accepted, random.split(key_draws, visits))
        return mean.mean(), 1 - moved.any(0).mean()

    def at(potential, z, table, keys):
        unravel = unravel_of(potential)
        return lax.map(lambda each: shares(potential, unravel(each[0]), table, each[1]), (z, keys))

    at_draws = on_model(kernel, at, model_args, model_kwargs)
    places = max(PLACES // visits, 10)
    acceptance, still = [], []
    for k, (own, table) in enumerate(_places(kernel, state, draws, places, kept)):
        keys = random.split(random.fold_in(rng_key, k), len(own))
        for found, new in zip((acceptance, still), at_draws(jnp.asarray(own, jnp.result_type(float)), table, keys)):
            found.append(np.asarray(new, float))
    return {"local_moves": _line(local, sites, np.concatenate(acceptance), np.concatenate(still), visits)}


def _places(kernel, state, draws, places, kept):
    """Positions and, if values are kept, the table that belongs to them: stored values fit the last position only."""
    if not kept:
        every = max(1, len(draws.flat) // places)
        return [(draws.flat[::every], ())]
    chains = states_of(kernel, state)[:places]
    each = -(-places // len(chains))
    return [(np.repeat(np.asarray(raveled(chain.z))[None], each, 0), chain.gradient_state) for chain in chains]


def _visits(kernel: SGMCMC, state: SGMCMCState, model_args: tuple, model_kwargs: Mapping[str, Any]) -> int:
    """The number of visits to a row in the run, at most ``VISITS``."""
    potential = ModelPotential.of(kernel._model, model_args, model_kwargs, kernel._batch_size)
    ((size, batch),) = potential.plates.values()
    steps = np.asarray(state.i, float) + 2.0**32 * np.asarray(Marks.of(state.marks).wraps, float)
    return int(np.clip(steps.min() * batch / size, 1, VISITS))


def _line(local: Any, sites: tuple[str, ...], acceptance: np.ndarray, still: np.ndarray, visits: int) -> Line:
    share, error = float(still.mean()), float(still.std() / len(still) ** 0.5)
    doubtful, wrong = OF_A_FUNCTION if callable(local.start) else VARIANCE
    names = " and ".join(map(repr, sites))
    return Line(
        "rows whose local moves are all rejected",
        share,
        f"{share:.1%} +- {error:.1%}; {acceptance.mean():.1%} of the moves accepted",
        f"<= {doubtful:.0%}",
        graded(share - 3 * error, doubtful, wrong),
        f"local values of {names} stay at their start, and the posterior of the other sites is wrong: a smaller "
        f"step_size than {local.step_size:g} for {type(local).__name__}, or more moves than {local.moves}.",
        {"acceptance": float(acceptance.mean()), "error": error, "visits": visits, "sites": sites},
    )
