"""
The arrays among the arguments of a model: NumPy arrays and memory maps, which it indexes by traced row numbers, and a
checksum, by which a chain that is resumed with other data is detected.
"""

from collections.abc import Callable, Mapping
from typing import Any
import zlib

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.argument_checks import check_no_iterators
from numpyro_sgmcmc.data.on_disk import OnDisk
from numpyro_sgmcmc.data.row_array import RowArray

MOST_NAMES = 8  # arguments that an error lists
ROWS = 16  # number of evenly spaced rows of each array in a checksum


class Indexable(np.ndarray):
    """
    A NumPy array that can be indexed by traced row numbers. It is not converted to a JAX array, because models call
    NumPy functions of their arguments: ``len(np.unique(group))``, ``int(y.max()) + 1``.
    """

    # so that the result of np.column_stack and similar functions can be indexed too
    __array_priority__ = 1.0  # pyright: ignore[reportAssignmentType]
    _on_device: jax.Array | None = None

    def __getitem__(self, index: Any) -> Any:
        parts = [part for part in jax.tree.leaves(index) if isinstance(part, jax.Array)]
        if not parts:
            return super().__getitem__(index)
        if not any(isinstance(part, Tracer) for part in parts):  # copy only the rows to the device, not the whole array
            index = jax.tree.map(lambda part: np.asarray(part) if isinstance(part, jax.Array) else part, index)
            return jnp.asarray(np.asarray(self)[index])
        return self.on_device()[index]

    def on_device(self) -> jax.Array:
        """The array on the device: one copy, however often it is indexed."""
        if self._on_device is None:
            with jax.ensure_compile_time_eval():
                self._on_device = jnp.asarray(np.asarray(self))
        return self._on_device

    def standing_for(self, traced: jax.Array) -> "Indexable":
        """This array with a traced array instead of its copy on the device."""
        view = self.view(Indexable)
        view._on_device = traced
        return view


def indexable(arguments: tuple[tuple, Mapping[str, Any]]) -> Any:
    """
    The arguments of a model, whose NumPy arrays can be indexed by traced row numbers. Memory maps stay on disk. Raises
    a ValueError for a masked array, and for an iterator.
    """
    check_no_iterators(*arguments)

    def convert(path: Any, x: Any) -> Any:
        if isinstance(x, np.ma.MaskedArray):
            raise ValueError(
                f"{_name(path)} is a masked array of NumPy, whose masked values would be used as data. Leave these "
                "rows out, or pass x.filled(value) and the mask as two arrays, and write "
                "numpyro.handlers.mask(mask=~mask[rows]) in the plate."
            )
        if _is_numeric(x) and isinstance(x, np.memmap) and x.ndim:
            x = OnDisk(x)
        if isinstance(x, RowArray):
            return x.named(_name(path))
        return x.view(Indexable) if _is_numeric(x) and not isinstance(x, Indexable) else x

    return jax.tree_util.tree_map_with_path(convert, arguments)


def _is_numeric(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "biufc"


def named_leaves(args: tuple, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The leaves of the arguments with their names, ``argument 1`` or ``y=``, in the order of ``jax.tree.leaves``."""
    return [(_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path((args, dict(kwargs)))]


def _name(path: Any) -> str:
    _, first, *rest = path
    top = f"{first.key}=" if isinstance(first, jax.tree_util.DictKey) else f"argument {first.idx + 1}"
    return top + jax.tree_util.keystr(tuple(rest))


def described(args: tuple, kwargs: Mapping[str, Any]) -> str:
    """The arrays among the arguments with their dtypes and shapes, at most ``MOST_NAMES`` of them."""
    arrays = [
        f"{name}: {leaf.dtype} {tuple(leaf.shape)}"
        for name, leaf in named_leaves(args, kwargs)
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    ]
    return ", ".join(arrays[:MOST_NAMES]) + (", ..." if len(arrays) > MOST_NAMES else "")


def without_data(args: tuple, kwargs: Mapping[str, Any]) -> tuple[dict[str, jax.ShapeDtypeStruct], Callable]:
    """
    The arguments of a model for an abstract trace, which copies no NumPy array to the device.

    :return: the shapes of :class:`Indexable` arrays and of instances of ``RowArray``, by name, and a function that
        replaces them by traced arrays.
    """
    named = named_leaves(args, kwargs)
    treedef = jax.tree.structure((args, dict(kwargs)))
    shapes = {
        name: jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
        for name, leaf in named
        if isinstance(leaf, (Indexable, RowArray))
    }

    def with_traced(traced: Mapping[str, jax.Array]) -> Any:
        return treedef.unflatten([leaf.standing_for(traced[name]) if name in traced else leaf for name, leaf in named])

    return shapes, with_traced


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
