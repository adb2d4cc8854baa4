"""Arguments of a model that are no arrays of numbers, and what to pass instead."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental.sparse import BCOO, BCSR
import numpy as np

_WHOLE_DATA = (
    ", which cannot be indexed by the rows of a minibatch. A kernel takes its minibatches itself, so pass the whole "
    "data, as arrays: np.concatenate(list(x)) for batches of them. What does not fit in memory stays on disk: "
    "OnDisk(x), for a file or a list of blocks of rows."
)
SPARSE_ROWS = (
    "Pass BCOO.fromdense(X, n_batch=1), which holds the elements of each row apart, or two arrays with the values and "
    "the columns of the elements of each row, filled up with zeros, for (values[rows] * w[columns[rows]]).sum(1); "
    "docs/howto.md makes both."
)


def sparse_arguments(args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the arguments that are sparse matrices of JAX, without a batch axis of rows."""
    return [
        name
        for name, arg in _named(args, kwargs)
        if isinstance(arg, BCSR) or (isinstance(arg, BCOO) and not arg.n_batch)
    ]


def check_no_iterators(args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raises a ValueError for a generator or another iterator, which JAX does not accept among arguments."""
    for name, arg in _named(args, kwargs):
        if hasattr(arg, "__next__"):
            raise ValueError(f"{name} is a {type(arg).__name__}{_WHOLE_DATA}")


def check_arrays(args: tuple, kwargs: Mapping[str, Any], error: Exception) -> None:
    """Raises a ValueError if an argument that is no array of numbers is the likely cause of an error."""
    if batches := _batches(args, kwargs, str(error)):
        cause = f"{batches}{_WHOLE_DATA}"
    elif sparse := [name for name, arg in _named(args, kwargs) if isinstance(arg, BCSR)]:
        cause = f"{sparse[0]} is a sparse BCSR matrix, which JAX cannot index by rows. {SPARSE_ROWS}"
    elif odd := not_an_array(args, kwargs):
        cause = f"{odd[0]}, which cannot be indexed by the rows of a minibatch. Pass {_remedy(odd[1])}."
    else:
        return
    first_line = str(error).partition("\n")[0]
    raise ValueError(f"{cause} The failure was: {type(error).__name__}: {first_line}") from error


def not_an_array(args: tuple, kwargs: Mapping[str, Any]) -> tuple[str, Any] | None:
    """
    The first argument that is a list of numbers, of a data frame, a sparse matrix or a non-numeric array: what is said
    of it, and the argument.
    """
    for name, arg in _named(args, kwargs):
        if isinstance(arg, np.ndarray) and arg.dtype.kind not in "biufc":
            return f"{name} is an array of dtype {arg.dtype}", arg
        numbers = int, float, str, np.generic
        plain = isinstance(arg, (list, tuple)) and any(isinstance(x, numbers) for x in jax.tree.leaves(arg))
        if plain or _home(arg) in ("pandas", "polars", "scipy"):
            return f"{name} is a {type(arg).__name__}", arg
    return None


def _remedy(arg: Any) -> str:
    """What to pass in place of an argument that is no array of numbers."""
    if _home(arg) == "scipy":
        return f"x.toarray() if it fits in memory. {SPARSE_ROWS[:-1]}"
    kind = np.asarray(arg).dtype.kind
    if kind in "mM":
        return "numbers in place of dates: (x - x.min()) // np.timedelta64(7, 'D') for weeks"
    if kind in "biufc":
        return "np.asarray(x)"
    if np.ndim(arg) > 1:
        return "its columns of numbers as an array, x[[...]].to_numpy(float), and labels apart, as codes"
    return "codes from 0 for labels, np.unique(x, return_inverse=True)[1], or np.asarray(x, float) for numbers"


def _home(arg: Any) -> str:
    return type(arg).__module__.partition(".")[0]


def _batches(args: tuple, kwargs: Mapping[str, Any], failure: str) -> str:
    """The first argument of which a failure speaks by its type, and which is a list of arrays, or a loader."""
    for name, arg in _named(args, kwargs):
        kind = type(arg).__name__
        of_a_list = isinstance(arg, list) and "scalar index" in failure  # the failure of x[rows] for a list
        if kind not in failure and not of_a_list:
            continue
        if isinstance(arg, list) and arg and all(hasattr(x, "shape") and np.ndim(x) for x in jax.tree.leaves(arg)):
            return f"{name} is a list of {len(arg)} batches"
        if hasattr(arg, "__iter__") and not isinstance(arg, (list, tuple, Mapping, str)) and not hasattr(arg, "shape"):
            return f"{name} is a {kind}"
    return ""


def _named(args: tuple, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"argument {k}", arg) for k, arg in enumerate(args, 1))
    yield from ((f"{name}=", arg) for name, arg in kwargs.items())
