"""
A ``cond`` that stays one under ``vmap``. Under a map over chains the predicate of ``lax.cond`` gets an axis and both
branches are computed at every step; chains that run in step all ask the same question, so it can be asked once.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from numpyro_sgmcmc import trees


def when_any(due: jax.Array, fn: Callable[[Any], Any], operand: Any, otherwise: Any) -> Any:
    """
    ``fn(operand)`` where ``due``, else ``otherwise``. Mapped over chains: for all of them if one of them is due.

    :param due: shape ``()``.
    :param fn: may close over arrays that are not mapped, the data for one.
    """

    @custom_vmap
    def choose(due, operand, otherwise):
        return lax.cond(due, fn, lambda _: otherwise, operand)

    @choose.def_vmap
    def _(axis_size, in_batched, due, operand, otherwise):
        due, operand, otherwise = trees.mapped(axis_size, tuple(in_batched), (due, operand, otherwise))
        chosen = when_any(due.any(), jax.vmap(fn), operand, otherwise)
        return chosen, jax.tree.map(lambda _: True, chosen)

    return choose(due, operand, otherwise)
