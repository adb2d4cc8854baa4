"""Reads and writes a table without copying it."""

from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap
import jax.numpy as jnp

from numpyro_sgmcmc.utils import trees


def read_at(table: Any, units: jax.Array) -> Any:
    """
    ``table[units]`` for each leaf, read once and before anything is written.

    XLA may repeat a cheap read wherever its result is used. If it repeats the read after the write, it must copy the
    table. A ``cond`` prevents this.
    """
    read = lambda: jax.tree.map(lambda t: t[units], table)  # noqa: E731
    return lax.cond(units[0] >= 0, read, lambda: jax.tree.map(jnp.zeros_like, jax.eval_shape(read)))


def add_at(table: Any, units: jax.Array, change: Any) -> Any:
    """
    ``table.at[units].add(change)`` for each leaf, in place inside a compiled loop.

    A change is added, because reading old values and setting new ones would copy the table. On CPU the units of a
    minibatch are written one by one, which is faster than a scatter (twice as fast for single numbers on jax 0.12).
    Under a map over chains, and on other devices, they are scattered.
    """
    return jax.tree.map(lambda t, c: _add_at(t, units, c), table, change)


def set_at(table: Any, units: jax.Array, values: Any, where: jax.Array) -> Any:
    """
    ``table.at[units].set(values)`` for each leaf where the flag ``where`` is set, in place inside a compiled loop:
    nothing is read. The other values get an index beyond the end, so that they are dropped.
    """

    def write(t, v):
        return t.at[jnp.where(where, units, len(t))].set(v.astype(t.dtype), mode="drop")

    return jax.tree.map(write, table, values)


def _scatter(table, units, change):
    return table.at[units].add(change)


def _one_by_one(table, units, change):
    def write(k, table):
        new = lax.dynamic_index_in_dim(table, units[k], keepdims=False) + change[k]
        return lax.dynamic_update_index_in_dim(table, new, units[k], 0)

    return lax.fori_loop(0, units.shape[0], write, table)


@custom_vmap
def _add_at(table, units, change):
    return lax.platform_dependent(table, units, change, cpu=_one_by_one, default=_scatter)


@_add_at.def_vmap
def _(axis_size, in_batched, table, units, change):
    return jax.vmap(_scatter)(*trees.mapped(axis_size, tuple(in_batched), (table, units, change))), True
