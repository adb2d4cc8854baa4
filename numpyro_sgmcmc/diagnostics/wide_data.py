"""
The data of a run with 32 bits instead of 8 or 16. A model that computes with narrow data may overflow without an error:
``x**2`` of an int8 wraps at 127. The gradients of the diagnostics use wide data, so that they show the difference.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.arrays import named_leaves

LARGEST = 2**26  # more numbers than these stay narrow, because a wide copy would take too much memory


def widened(model_args: tuple, model_kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any], tuple[str, ...]]:
    """The arguments, with narrow arrays replaced by wide ones, and the names of these."""
    names = tuple(name for name, leaf in named_leaves(model_args, model_kwargs) if _is_narrow(leaf))
    wide = jax.tree.map(lambda leaf: _wide(leaf) if _is_narrow(leaf) else leaf, (model_args, dict(model_kwargs)))
    return *wide, names


def _is_narrow(leaf: Any) -> bool:
    if not isinstance(leaf, (np.ndarray, jax.Array)) or not 0 < leaf.size <= LARGEST:
        return False
    number = jnp.issubdtype(leaf.dtype, jnp.integer) or jnp.issubdtype(leaf.dtype, jnp.floating)
    return bool(number) and leaf.dtype.itemsize < 4


def _wide(leaf: Any) -> Any:
    return leaf.astype(jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32)
