"""
The moves of local chains that are accepted. A chain that rejects everything stays at its start, which no field of a run
shows. The moves are counted in draws of their own, so that a step of the global chain costs what it did.
"""

import copy
from typing import Any, NamedTuple

import jax
from numpyro.primitives import Messenger

from numpyro_sgmcmc.model.local import drawn_locally, visit
from numpyro_sgmcmc.model.local_function import Conditional
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.types import Rows, Sites


class Watched(NamedTuple):
    """
    - **sites** - the names of the local sites.
    - **accepted** - whether each move was accepted, shape ``(moves, *plates)``.
    """

    sites: tuple[str, ...]
    accepted: jax.Array


class _watch(Messenger):
    """Runs a model that draws local sites, and records what their sampler accepts."""

    def __init__(self, fn: Any):
        self.found: Any = None
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "local_sampler":
            self.sampler, msg["value"] = msg["value"], self

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> Any:
        values, accepted = self.sampler.draw_watched(rng_key, conditional)
        self.found = Watched(tuple(conditional.sites), accepted)
        return values


def makes_moves(model: Any) -> bool:
    """Whether local sites are drawn by moves that may be rejected."""
    return isinstance(model, drawn_locally) and hasattr(model.local, "draw_watched")


def watched_draw(
    potential: ModelPotential,
    z: Sites,
    rows: Rows,
    rng_key: jax.Array,
    before: tuple[Sites, jax.Array] | None = None,
) -> Watched:
    """
    One draw of the local sites of these rows.

    :param before: as for :meth:`~numpyro_sgmcmc.model.potential.ModelPotential.visit`.
    """
    watched = copy.copy(potential)
    watched._model = watch = _watch(visit(potential._model, before))
    watched.estimate(z, rows, rng_key)
    return watch.found
