"""Arrays that stay on disk: a model indexes them by rows, and only these rows are read."""

from functools import partial
import os
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.data.sources import opened
from numpyro_sgmcmc.utils import compat


class OnDisk(RowArray):
    """
    An array that stays on disk. A model indexes it by the rows of its plate, ``X[rows]``, like an array in memory, and
    only these rows are read. The draws are the same as with the array in memory.

    A model may use ``X[rows]``, ``X[rows, 1:]``, ``numpyro.subsample(X, event_dim=1)``, ``X.shape``, ``X.dtype``,
    ``X.ndim``, ``X.size`` and ``len(X)``. Kernels read the rows of several steps at once, and a thread reads those of
    the next steps while the device computes. Contiguous rows, ``rows=Reshuffled(contiguous=True)``, are read as a
    block, others one by one. A :class:`numpy.memmap` among the arguments of a model is treated as ``OnDisk(memmap)``.

    :param source: the name of a ``.npy`` file; anything with ``shape``, ``dtype`` and slices of rows, such as a
        ``numpy.memmap``, a Zarr array or an HDF5 data set of h5py; an Arrow table or column; or a sequence of blocks of
        rows, such as a Grain or array_record source, or a list. See :mod:`~numpyro_sgmcmc.data.sources`.
    :raises FileNotFoundError: if there is no such file.
    :raises ValueError: if the file contains no array of numbers, the source has no rows, or its columns or blocks do
        not fit together.
    :raises TypeError: if the source has neither slices nor blocks, or the model needs the whole array in memory, as for
        ``X @ w`` or ``jnp.mean(X)``.
    :raises OSError: if rows cannot be read. JAX passes it on as the text of a ``JaxRuntimeError``.

    **Example**

    .. doctest::

        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from numpyro_sgmcmc import OnDisk
        >>> path = pathlib.Path(tempfile.mkdtemp(), "x.npy")
        >>> np.save(path, np.arange(6.0).reshape(3, 2))
        >>> X = OnDisk(path)  # an argument of the model: mcmc.run(rng_key, X)
        >>> X[np.array([2, 0])].tolist(), len(X)
        ([[4.0, 5.0], [0.0, 1.0]], 3)
    """

    where = "on disk"

    def __init__(self, source: Any):
        self._source = source
        try:
            rows = opened(source)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self!r}: {error}") from error
        self._file = rows if isinstance(rows, np.memmap) else None
        # a slice of a memmap takes ten times as long to make as one of a plain array, and other threads wait meanwhile
        self._rows = rows if self._file is None else rows.view(np.ndarray)
        self.shape = tuple(int(n) for n in rows.shape)
        if not self.shape or np.dtype(rows.dtype).kind not in "biufc":
            raise ValueError(
                f"{self!r} must have rows of numbers, but its shape is {self.shape} and its dtype {rows.dtype}."
            )
        self.dtype = jax.dtypes.canonicalize_dtype(rows.dtype)

    def __repr__(self) -> str:
        source = self._source
        if isinstance(source, (str, os.PathLike)):
            what = repr(os.fspath(source))
        else:
            shape = getattr(source, "shape", None)
            what = type(source).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        return f"{self._argument}OnDisk({what})"

    def __reduce__(self) -> Any:
        return OnDisk, (self._source,)

    def _take(self, rows: Any, served: Any = None) -> jax.Array:
        """``served``: the rows themselves, if they have been read already."""
        if served is not None:
            return served
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        if not isinstance(rows, Tracer):
            rows = np.asarray(rows)
            if rows.dtype.kind not in "iu":
                raise TypeError(f"{self!r} must be indexed by integer row numbers, not by {rows.dtype}.")
            return jnp.asarray(self.read(np.where(rows < 0, rows + len(self), rows)))
        shape = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        return lax.platform_dependent(
            rows,
            cpu=compat.buffer_callback(self._fill, shape, vmap_method="broadcast_all"),
            default=partial(jax.pure_callback, self.read, shape, vmap_method="broadcast_all"),
        )

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, rows: Any) -> np.ndarray:
        """The rows with these numbers, an array of any shape, as an array in memory."""
        out = self.empty(np.shape(rows))
        self._fill(None, out, rows)
        return out

    def _fill(self, context: Any, out: Any, rows: Any) -> None:
        """The same, but written into XLA's own buffer ``out``."""
        rows = np.asarray(rows)
        self.read_into(np.asarray(out), rows, runs(rows))

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uninitialised memory for rows with numbers of this shape."""
        return np.empty((*shape, *self.shape[1:]), self.dtype)

    def read_into(self, out: np.ndarray, rows: np.ndarray, pieces: list[tuple[int, int, int]]) -> None:
        """
        :param out: array for the rows, with the shape and dtype of :meth:`empty`.
        :param pieces: ``runs(rows)``, the same for all arrays from which these rows are read.
        """
        out = out.reshape(rows.size, *self.shape[1:])
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"{_asked(rows)} are not in {self!r}, which has {len(self)} rows.")
        try:
            self._check_file()
            if isinstance(self._rows, np.ndarray) and len(pieces) > rows.size // 8:
                out[...] = self._rows[rows.ravel()]
            else:
                for place, first, number in pieces:
                    out[place : place + number] = self._rows[first : first + number]
        except Exception as error:
            raise OSError(f"{self!r}: {_asked(rows)} cannot be read: {type(error).__name__}: {error}") from error

    def _check_file(self) -> None:
        """Checks the length of a file: reading a memory map beyond its end would kill the process."""
        file = self._file
        if file is not None and file.filename is not None and file.offset is not None:
            length = os.stat(file.filename).st_size
            if length < file.offset + file.nbytes:
                raise EOFError(f"the file now has only {length} bytes.")


def _asked(rows: np.ndarray) -> str:
    return f"rows {rows.min()} to {rows.max()}"


def runs(rows: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal runs of consecutive numbers: (place in ``rows.ravel()``, first number, length)."""
    rows = rows.ravel()
    breaks = np.flatnonzero(rows[1:] - rows[:-1] != 1) + 1
    starts = np.concatenate([[0], breaks])[: rows.size]
    lengths = np.diff(starts, append=rows.size)
    return list(zip(starts.tolist(), rows[starts].tolist(), lengths.tolist()))
