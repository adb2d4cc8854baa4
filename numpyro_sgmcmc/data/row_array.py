"""Arrays of which a model may use only rows."""

from collections.abc import Iterable
from typing import Any, NoReturn, Self

import jax
import numpy as np


class RowArray(np.lib.mixins.NDArrayOperatorsMixin):
    """
    An array that a model indexes by the rows of its plate, ``X[rows]``. Any other use, except of its shape and dtype,
    raises an error with the reason.
    """

    shape: tuple[int, ...] = ()  # of the whole array
    dtype: Any  # of the JAX array
    where: str  # location of the array, for errors
    _argument = ""
    _traced: jax.Array | None = None
    _served: tuple[tuple[Any, Any], ...] = ()

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape)))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> jax.Array:
        rows, *rest = index if isinstance(index, tuple) else (index,)
        if rows is None or rows is Ellipsis or not all(isinstance(part, (int, slice, type(None))) for part in rest):
            raise TypeError(
                f"{self!r} must be indexed by rows first, X[rows]; further indices may be numbers and slices, "
                "X[rows, 1:]."
            )
        if self._traced is not None:
            taken = self._traced[rows]
        else:
            values = [values for known, values in self._served if known is rows]
            taken = self._take(rows, *values[-1:])
        within = (slice(None),) * (taken.ndim - self.ndim + 1)  # the dimensions of the rows
        return taken[(*within, *rest)] if rest else taken

    def _take(self, rows: Any, served: Any = None) -> jax.Array:
        """``served``: the argument ``what`` of :meth:`using_rows` for these rows."""
        raise NotImplementedError

    def __array_function__(self, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        if func in (np.shape, np.ndim, np.size) and args == (self,) and not kwargs:
            return {np.shape: self.shape, np.ndim: self.ndim, np.size: self.size}[func]
        self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise asks_for_all(self)

    __array__ = __jax_array__ = __array_ufunc__ = __iter__ = __contains__ = _refuse

    def __hash__(self) -> int:  # NumPyro uses its arguments as keys
        return id(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # names of protocols that other libraries look up
            raise AttributeError(name)
        raise AttributeError(f"no {name!r}: {asks_for_all(self)}")

    # -- for the potential --------------------------------------------------------------------------------------------

    def named(self, name: str) -> Self:
        """This array with the name of its argument of the model, for errors."""
        return self._with(_argument=f"{name}, ")

    def standing_for(self, traced: jax.Array) -> Self:
        """This array with a traced array as its data, for an abstract trace."""
        return self._with(_traced=traced)

    def using_rows(self, rows: Iterable[Any], what: Any) -> Self:
        """This array, where a lookup of any of these rows, the same object, passes ``what`` to :meth:`_take`."""
        return self._with(_served=(*self._served, *((of_plate, what) for of_plate in rows)))

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self) | {"_served": ()} | changes)
        return other


def asks_for_all(*arrays: RowArray) -> TypeError:
    """The error for a model that does not index such an array by rows."""
    where = arrays[0].where
    return TypeError(
        f"the model asks for all of {' or '.join(map(repr, arrays))}, which is {where}. It may use only rows, X[rows], "
        "the shape and the dtype. Compute anything else before the run and pass it as an argument, or pass the array "
        "itself, np.asarray(...), if it fits into memory."
    )
