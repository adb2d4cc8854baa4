"""Arrays that stay on disk: stand-ins that a model indexes by rows, and that read these rows alone."""

import os
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.row_array import RowArray


class OnDisk(RowArray):
    """
    An array that stays on disk. A model indexes it by the rows of its plate, ``X[rows]``, as an array in memory, and
    only these rows are read. The draws are those of the same array in memory.

    A model may use ``X[rows]``, ``X[rows, 1:]``, ``numpyro.subsample(X, event_dim=1)``, ``X.shape``, ``X.dtype``,
    ``X.ndim``, ``X.size`` and ``len(X)``. Kernels read the rows of several steps at once, and a thread reads those of
    the next steps while the device computes. Contiguous rows, ``rows=Reshuffled(contiguous=True)``, are read as a
    block, others one by one. A :class:`numpy.memmap` among the arguments of a model is treated as ``OnDisk(memmap)``.

    :param source: the name of a ``.npy`` file, or anything with ``shape``, ``dtype`` and slices of rows: a
        ``numpy.memmap``, a Zarr array, an HDF5 data set of h5py.
    :raises FileNotFoundError: there is no such file.
    :raises ValueError: the file holds no array of numbers, or the source has no rows.
    :raises TypeError: the source lacks a shape or a dtype; or the model asks for something else, ``X @ w`` or
        ``jnp.mean(X)``, for which all of the array would have to be in memory.
    :raises OSError: rows cannot be read. JAX passes it on as the text of a ``JaxRuntimeError``.

    **Example**

    .. doctest::

        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, OnDisk, Reshuffled
        >>> path = pathlib.Path(tempfile.mkdtemp(), "x.npy")
        >>> np.save(path, np.random.default_rng(0).normal(3, 1, 10_000).astype(np.float32))
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> contiguous = Reshuffled(contiguous=True)
        >>> kernel = SGLD(model, step_size=5e-6, batch_size=100, steps_per_sample=20, rows=contiguous)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
        >>> mcmc.run(random.key(0), OnDisk(path))
        >>> round(float(mcmc.get_samples()["mu"].mean()), 1)
        3.0
    """

    where = "on disk"

    def __init__(self, source: Any):
        self._source = source
        rows = self._rows = self._opened()
        if not hasattr(rows, "shape") or not hasattr(rows, "dtype"):
            raise TypeError(f"{self!r}: a source needs a shape, a dtype and slices of rows.")
        self.shape = tuple(int(n) for n in rows.shape)
        if not self.shape or np.dtype(rows.dtype).kind not in "biufc":
            raise ValueError(f"{self!r}: shape {self.shape} and dtype {rows.dtype} are not those of rows of numbers.")
        self.dtype = jax.dtypes.canonicalize_dtype(rows.dtype)

    def __repr__(self) -> str:
        source = self._source
        if isinstance(source, (str, os.PathLike)):
            what = repr(os.fspath(source))
        else:
            what = f"{type(source).__name__} of shape {tuple(getattr(source, 'shape', ()))}"
        return f"{self._argument}OnDisk({what})"

    def __reduce__(self) -> Any:
        return OnDisk, (self._source,)

    def _take(self, rows: Any, served: Any = None) -> jax.Array:
        """
        :param served: the rows themselves, if they have been read already.
        """
        if served is not None:
            return served
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        if not isinstance(rows, Tracer):
            rows = np.asarray(rows)
            if rows.dtype.kind not in "iu":
                raise TypeError(f"{self!r} is indexed by row numbers, not by {rows.dtype}.")
            return jnp.asarray(self.read(np.where(rows < 0, rows + len(self), rows)))
        shape = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        return jax.pure_callback(self.read, shape, rows, vmap_method="broadcast_all")

    # -- reading ------------------------------------------------------------------------------------------------------

    def _opened(self) -> Any:
        if not isinstance(self._source, (str, os.PathLike)):
            return self._source
        try:
            return np.load(self._source, mmap_mode="r")
        except ValueError as error:
            raise ValueError(f"{self!r}: the file is no .npy file of numbers: {error}") from error

    def read(self, rows: Any, out: np.ndarray | None = None) -> np.ndarray:
        """
        The rows of these numbers, of any shape, as an array in memory.

        :param out: where they are written, if an array of their shape and dtype is at hand.
        """
        rows = np.asarray(rows)
        if out is None:
            out = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        if rows.size:
            self._read_into(out.reshape(rows.size, *self.shape[1:]), rows.ravel())
        return out

    def _read_into(self, out: np.ndarray, flat: np.ndarray) -> None:
        asked = f"rows {flat.min()} to {flat.max()}"
        if flat.min() < 0 or flat.max() >= len(self):
            raise IndexError(f"{asked} were asked of {self!r}, which has {len(self)}.")
        try:
            self._check_file()
            runs = _runs(flat)
            if isinstance(self._rows, np.ndarray) and len(runs) > flat.size // 8:
                out[...] = self._rows[flat]
            else:
                for at, first, number in runs:
                    out[at : at + number] = self._rows[first : first + number]
        except Exception as error:
            raise OSError(f"{self!r}: {asked} cannot be read: {type(error).__name__}: {error}") from error

    def _check_file(self) -> None:
        """To read a map beyond the end of its file would end the process."""
        rows = self._rows
        if isinstance(rows, np.memmap) and rows.filename is not None and rows.offset is not None:
            length = os.stat(rows.filename).st_size
            if length < rows.offset + rows.nbytes:
                raise EOFError(f"the file has only {length} bytes left.")


def _runs(rows: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal runs of consecutive numbers: (place in ``rows``, first number, length)."""
    starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1)
    lengths = np.diff(starts, append=len(rows))
    return list(zip(starts.tolist(), rows[starts].tolist(), lengths.tolist()))
