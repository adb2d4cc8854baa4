"""
Records draws of local sites with the starts of their chains and the moves that they accept, which a run does not keep.
The draws are made anew, so a step of the global chain has no additional cost.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from numpyro.primitives import Messenger

from numpyro_sgmcmc.local.function import Conditional
from numpyro_sgmcmc.local.models import drawn_locally, visit
from numpyro_sgmcmc.types import Rows, Sites


class Recorded(NamedTuple):
    start: Sites  # local site -> the initial values of its chain, in the coordinates of the sampler
    values: Sites  # local site -> the values drawn, like start
    stored: Sites  # the values drawn with rows along axis 0, for the next visit; empty if no values are kept
    accepted: jax.Array | None  # whether each move was accepted, shape (moves, *plates); None if there are no moves
    plates: Mapping[str, int]  # number of axes of the plates, which come first in start and values, by site


class _record(Messenger):
    """Runs a model that draws local sites in the place of their sampler, and records the draws."""

    def __init__(self, fn: Any):
        self.recorded: Any = None
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "local_sampler":
            self.sampler, msg["value"] = msg["value"], self

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> Any:
        accepted = None
        if hasattr(self.sampler, "draw_watched"):
            values, accepted = self.sampler.draw_watched(rng_key, conditional)
        else:
            values = self.sampler.draw(rng_key, conditional)
        plates = {name: len(fn.batch_shape) for name, fn in conditional.sites.items()}
        self.recorded = Recorded(dict(conditional.start), dict(values), {}, accepted, plates)
        return values


def makes_moves(model: Any) -> bool:
    """Whether local sites are drawn by moves that may be rejected."""
    return isinstance(model, drawn_locally) and hasattr(model.local, "draw_watched")


def recorded_draw(
    potential: Any,
    z: Sites,
    rows: Rows,
    rng_key: jax.Array,
    before: tuple[Sites, jax.Array] | None = None,
) -> Recorded:
    """One draw of the local sites of these rows."""
    visited = visit(potential.model, before)
    record = _record(visited)
    potential.replace(model=record).estimate(z, rows, rng_key)
    return record.recorded._replace(stored=dict(visited.values))
