"""
Values on which many leaves of a tree depend, such as whether all of them are finite. XLA computes such a value again
for each leaf, so a program grows with the square of the leaves: a model with 40 scalar sites took minutes to compile.
"""

from typing import Any

import jax
from jax import lax

FEW_LEAVES = 8  # up to which XLA may compute it again


def once(value: jax.Array, tree: Any) -> jax.Array:
    """The same value, behind a barrier if the tree has many leaves."""
    return lax.optimization_barrier(value) if len(jax.tree.leaves(tree)) > FEW_LEAVES else value
