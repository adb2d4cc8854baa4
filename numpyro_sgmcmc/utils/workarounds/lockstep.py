"""
A ``cond`` that remains one under ``vmap``. Under a map over chains the predicate of ``lax.cond`` gets an axis, and both
branches are computed at every step. But for chains that run in lockstep the predicate is the same, so one is enough.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun

from numpyro_sgmcmc.utils import trees


def when_any(due: jax.Array, fn: Callable[[Any], Any], operand: Any, otherwise: Any) -> Any:
    """
    ``fn(operand)`` if ``due``, else ``otherwise``. Mapped over chains: for all of them if one of them is due.

    :param due: shape ``()``.
    :param fn: a function that may close over arrays, for example the data.
    """
    # the arrays that it closes over become arguments, because the rule below needs to know whether they are mapped
    closed = jax.make_jaxpr(fn)(operand)
    treedef = jax.tree.structure(otherwise)

    def opened(operand, closed_over):
        flat = jaxpr_as_fun(closed.replace(consts=closed_over))(*jax.tree.leaves(operand))
        return jax.tree.unflatten(treedef, flat)

    @custom_vmap
    def choose(due, operand, otherwise, closed_over):
        return lax.cond(due, opened, lambda *_: otherwise, operand, closed_over)

    @choose.def_vmap
    def _(axis_size, in_batched, due, operand, otherwise, closed_over):
        *of_chains, of_closed_over = in_batched
        due, operand, otherwise = trees.mapped(axis_size, tuple(of_chains), (due, operand, otherwise))
        axes = [0 if batched else None for batched in of_closed_over]
        every = jax.vmap(lambda operand, *rest: opened(operand, list(rest)), (0, *axes))
        chosen = when_any(due.any(), lambda operand: every(operand, *closed_over), operand, otherwise)
        return chosen, jax.tree.map(lambda _: True, chosen)

    return choose(due, operand, otherwise, list(closed.consts))
