"""
Zarr arrays, version 3, that grow along their first axis, in the layout of ArviZ. Other programs can open the group
during a run.

    draws/zarr.json                    a group, with the groups posterior and sample_stats
    draws/posterior/mu/zarr.json       metadata of an array of shape (draws, chains, ...), rewritten as it grows
    draws/posterior/mu/c/k/0/0         its draws kL to (k + 1)L - 1, as consecutive plain numbers

All chunks have length L. The part of the last chunk beyond the end of the array is not used. Compression would save
nothing with random numbers, and without it appending is a write at the end of a file.
"""

from functools import cached_property
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_sgmcmc.runs.storage import sync_folder, write_json

CHUNK = 4 * 2**20  # bytes per chunk


def make_group(path: Path) -> None:
    """Makes an empty group."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}})


class GrowingArray:
    """
    An array of a group.

    :param Path path: folder of the array.
    :param tuple shape: shape of one draw of all chains, ``(chains, ...)``.
    :param dtype: dtype of its numbers.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any):
        self.path, self.shape, self.dtype, self.rows = path, shape, np.dtype(dtype), 0
        self._row = math.prod(shape) * self.dtype.itemsize
        self._length = max(1, CHUNK // max(1, self._row))
        self._file: Any = None
        self._chunk = -1

    def _path_of(self, chunk: int) -> Path:
        return self.path.joinpath("c", str(chunk), *"0" * len(self.shape))

    def check(self, rows: int) -> None:
        """Raises a ValueError if there are fewer rows on disk."""
        for first in range(0, rows if self._row else 0, self._length):
            path = self._path_of(first // self._length)
            if not path.exists() or path.stat().st_size < min(self._length, rows - first) * self._row:
                raise ValueError(f"{self.path.name} has fewer than its {rows} draws")

    def open(self, rows: int) -> None:
        """``rows``: number of rows of the array; further data on disk are ignored."""
        self.rows = rows
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_shape()

    def append(self, values: np.ndarray) -> None:
        """Appends rows. They become part of the array at the next :meth:`sync`."""
        values = np.ascontiguousarray(values, self.dtype)
        while len(values):
            chunk, place = divmod(self.rows, self._length)
            part, values = values[: self._length - place], values[self._length - place :]
            if self._row:
                self._at(chunk).seek(place * self._row)
                self._file.write(part.tobytes())
            self.rows += len(part)

    def _at(self, chunk: int) -> Any:
        """The file of a chunk, extended to its full length."""
        if chunk != self._chunk:
            self.close()
            path = self._path_of(chunk)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self._chunk = open(path, "r+b" if path.exists() else "x+b"), chunk
            self._file.truncate(self._length * self._row)
            for folder in path.parents[: len(path.parts) - len(self.path.parts)]:
                sync_folder(folder)
        return self._file

    def sync(self) -> None:
        """Writes the rows to the disk. It does not wait for the new shape, which only other programs need."""
        self._flush()
        self._write_shape()

    def close(self) -> None:
        if self._file is not None:
            self._flush()
            self._file.close()
        self._file, self._chunk = None, -1

    def read(self) -> np.ndarray:
        """All rows."""
        self._flush()
        values = np.empty((self.rows, *self.shape), self.dtype)
        for first in range(0, self.rows if self._row else 0, self._length):
            part = values[first : first + self._length]
            part[:] = np.fromfile(self._path_of(first // self._length), self.dtype, part.size).reshape(part.shape)
        return values

    def _flush(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _write_shape(self) -> None:
        # no need to wait: a continued run rewrites it
        write_json(self.path / "zarr.json", self._about | {"shape": [self.rows, *self.shape]}, at_once=False)

    @cached_property
    def _about(self) -> dict[str, Any]:
        name, rest = self.path.name, range(len(self.shape) - 1)
        chunk = [self._length, *(max(1, n) for n in self.shape)]
        endian = {"configuration": {"endian": "little"}} if self.dtype.itemsize > 1 else {}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": [0.0, 0.0] if self.dtype.kind == "c" else np.zeros((), self.dtype).item(),
            "codecs": [{"name": "bytes", **endian}],
            "dimension_names": ["draw", "chain", *(f"{name}_dim_{k}" for k in rest)],
            "attributes": {},
        }
