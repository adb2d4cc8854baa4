"""A cheap checksum that distinguishes data sets, so that a chain that is resumed with other data can be detected."""

from collections.abc import Mapping
from typing import Any
import zlib

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.row_array import RowArray

ROWS = 16  # number of evenly spaced rows of each array that are used


def fingerprint(model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> int:
    """
    A checksum of 31 bits of the shapes and some rows of the arrays among a model's arguments, and of its plain numbers
    and strings, at a cost that does not depend on the number of rows. 0 if an argument is traced.
    """
    leaves = jax.tree.leaves((model_args, dict(model_kwargs or {})))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return 0
    with jax.ensure_compile_time_eval():
        parts = sorted(map(_bytes, leaves))  # sorted, because an argument may be given by position or by name
    return zlib.crc32(b"".join(parts)) & 0x7FFFFFFF or 1


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, str) or (isinstance(leaf, int) and abs(leaf) >= 2**63):
        return repr(leaf).encode()
    if isinstance(leaf, (bool, int, float, complex, np.generic)):  # 1 and 1.0 are the same data
        leaf = np.asarray(leaf)
    if not isinstance(leaf, (np.ndarray, jax.Array, RowArray)):
        return b""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) or leaf.dtype == object:
        return f"{leaf.shape}{leaf.dtype}".encode()
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)  # so that the same data agree on the device and off it
    shape = leaf.shape
    if shape and shape[0]:
        leaf = leaf[np.unique(np.linspace(0, shape[0] - 1, ROWS).astype(int))]
    values = np.ascontiguousarray(leaf, dtype)
    if dtype.kind in "biuf":
        values = values.astype(float)  # labels may be integers or floats
    return f"{shape}{values.dtype}".encode() + values.tobytes()
