"""Arguments of a model that are no arrays of numbers, and what to pass instead."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
import inspect
from typing import Any

import jax
from jax.experimental.sparse import BCOO, BCSR
import numpy as np

_WHOLE_DATA = (
    ", which cannot be indexed by the rows of a minibatch. A kernel takes its minibatches itself, so pass the whole "
    "data, as arrays: np.concatenate(list(x)) for batches of them. What does not fit in memory stays on disk: "
    "OnDisk(x), for a file or a list of blocks of rows."
)
NUMBERS = int, float, str, np.generic
TABLES = "pandas", "polars"
SPARSE_ROWS = (
    "Pass BCOO.fromdense(X, n_batch=1), which holds the elements of each row apart, or two arrays with the values and "
    "the columns of the elements of each row, filled up with zeros, for (values[rows] * w[columns[rows]]).sum(1); "
    "docs/howto.md makes both."
)


def sparse_arguments(args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the arguments that are sparse matrices of JAX, without a batch axis of rows."""
    return [name for name, arg in _named(args, kwargs) if _is_sparse(arg)]


def closed_over_sparse(model: Any) -> list[tuple[str, Any]]:
    """Names and values of such matrices that a model closes over."""
    outside: dict[str, Any] = {}
    while isinstance(model := _without_handlers(model), partial):
        outside |= dict(_named(model.args, model.keywords))
        model = model.func
    if inspect.isfunction(model):
        with suppress(ValueError):  # a variable that has no value yet
            found = inspect.getclosurevars(model)
            outside |= {**found.globals, **found.nonlocals}
    return [(name, x) for name, x in outside.items() if _is_sparse(x)]


def _without_handlers(model: Any) -> Any:
    while hasattr(model, "fn") and not inspect.isfunction(model):
        model = model.fn
    return model


def _is_sparse(x: Any) -> bool:
    return isinstance(x, BCSR) or (isinstance(x, BCOO) and not x.n_batch)


def without_value(model: Any, args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """The arguments of a model that are None, as those that a user has left out."""
    try:
        given = inspect.signature(_without_handlers(model)).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a model without a signature
        return []
    given.apply_defaults()
    return [name for name, value in given.arguments.items() if value is None]


def check_no_iterators(args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raises a ValueError for a generator or another iterator, which JAX does not accept among arguments."""
    for name, arg in _named(args, kwargs):
        if hasattr(arg, "__next__"):
            raise ValueError(f"{name} is a {type(arg).__name__}{_WHOLE_DATA}")


def check_arrays(args: tuple, kwargs: Mapping[str, Any], error: Exception) -> None:
    """Raises a ValueError if an argument of a wrong type is the likely cause of an error."""
    if batches := _batches(args, kwargs, str(error)):
        cause = f"{batches}{_WHOLE_DATA}"
    elif sparse := [name for name, arg in _named(args, kwargs) if isinstance(arg, BCSR)]:
        cause = f"{sparse[0]} is a sparse BCSR matrix, which JAX cannot index by rows. {SPARSE_ROWS}"
    elif odd := not_an_array(args, kwargs):
        cause = f"{odd[0]}, which cannot be indexed by the rows of a minibatch. Pass {_remedy(odd[1])}."
    elif "Indexer must have integer" in str(error) and (floats := _of_floats(args, kwargs)):
        cause = (
            f"the model indexes an array by numbers of type float, perhaps {' or '.join(floats)}. Pass x.astype(int)."
        )
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
        plain = isinstance(arg, (list, tuple)) and any(isinstance(x, NUMBERS) for x in jax.tree.leaves(arg))
        if plain or _home(arg) in (*TABLES, "scipy"):
            return f"{name} is a {type(arg).__name__}", arg
    return None


def _of_floats(args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the vectors of numbers of type float."""
    vectors = ((name, arg) for name, arg in _named(args, kwargs) if np.ndim(arg) == 1 and hasattr(arg, "dtype"))
    return [name for name, arg in vectors if np.issubdtype(arg.dtype, np.floating)]


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
    """The first argument that is a list of batches, or a loader, and the likely cause of a failure."""
    for name, arg in _named(args, kwargs):
        leaves = jax.tree.leaves(arg) if isinstance(arg, list) else []
        if leaves and all(hasattr(x, "shape") and np.ndim(x) for x in leaves):
            # the failures of x[rows] for a list, and of `X, y = data` for one of pairs
            if "scalar index" in failure or "unpack" in failure or "list" in failure:
                return f"{name} is a list of {len(arg)} batches"
        usual = hasattr(arg, "shape") or _home(arg) in ("builtins", *TABLES)
        if not usual and (hasattr(arg, "__iter__") or hasattr(arg, "__getitem__")):
            return f"{name} is a {type(arg).__name__}"
    return ""


def _named(args: tuple, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments, and the elements of those that are mappings or tuples, with their names."""
    for k, arg in enumerate(args, 1):
        yield from _elements(f"argument {k}", arg)
    for name, arg in kwargs.items():
        yield from _elements(f"{name}=", arg)


def _elements(name: str, arg: Any) -> Iterator[tuple[str, Any]]:
    of_numbers = isinstance(arg, tuple) and any(isinstance(x, NUMBERS) for x in arg)
    if isinstance(arg, (Mapping, tuple)) and not of_numbers:
        for key, element in arg.items() if isinstance(arg, Mapping) else enumerate(arg):
            yield from _elements(f"{name}[{key!r}]", element)
    else:
        yield name, arg
