"""A few operations on pytrees."""

from collections.abc import Callable
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils.workarounds.once import once


def size(tree: Any) -> int:
    """Number of coordinates."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def total(tree: Any) -> jax.Array:
    """Sum over all coordinates of all leaves."""
    return once(jax.tree.reduce(operator.add, jax.tree.map(lambda leaf: leaf.sum(), tree)), tree)


def all_finite(tree: Any) -> jax.Array:
    """Whether every coordinate of every leaf is a finite number."""
    return jax.tree.reduce(operator.and_, jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), tree), jnp.array(True))


def where(condition: jax.Array, new: Any, old: Any) -> Any:
    """Leafwise choice by one scalar; the dtypes are those of ``old``."""
    condition = once(condition, old)
    return jax.tree.map(lambda n, o: jnp.where(condition, n.astype(o.dtype), o), new, old)


def like(value: Any, tree: Any) -> Any:
    """``value`` for every leaf: a scalar is repeated, a dict like ``tree`` is returned unchanged."""
    if isinstance(value, dict):
        return value
    return jax.tree.map(lambda _: value, tree)


def mapped(axis_size: int, in_batched: Any, tree: Any) -> Any:
    """The arguments of a rule for vmap, where leaves that are not mapped also get the mapped axis in front."""
    return jax.tree.map(
        lambda x, batched: x if batched else jnp.broadcast_to(x, (axis_size, *jnp.shape(x))), tree, in_batched
    )


def arrays_apart(tree: Any) -> tuple[list[Any], Callable]:
    """The array leaves, as arguments of a compiled function, and a function that rebuilds the tree from them."""
    leaves, treedef = jax.tree.flatten(tree)
    # strings and dates are not arguments
    numbers = lambda leaf: isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"  # noqa: E731
    is_array = [isinstance(leaf, jax.Array) or numbers(leaf) for leaf in leaves]

    def rebuild(arrays):
        arrays = iter(arrays)
        return treedef.unflatten([next(arrays) if flag else leaf for leaf, flag in zip(leaves, is_array)])

    return [leaf for leaf, flag in zip(leaves, is_array) if flag], rebuild
