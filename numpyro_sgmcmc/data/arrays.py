"""NumPy arrays and memory maps as arguments of a model that indexes them by traced row numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.argument_checks import check_no_iterators
from numpyro_sgmcmc.data.on_disk import OnDisk
from numpyro_sgmcmc.data.row_array import RowArray

MOST_NAMES = 8  # arguments that an error lists


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
