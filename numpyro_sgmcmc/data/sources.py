"""
The sources of :class:`~numpyro_sgmcmc.OnDisk`: readers that give every source a shape, a dtype and slices of rows.
Sources are recognised by their attributes, so none of their libraries is imported.

| source | is recognised by | rows |
|---|---|---|
| name of a ``.npy`` file | its type | the file, mapped into memory |
| Arrow: table, record batch | ``column_names``, ``slice`` | numeric columns side by side, or one column of lists |
| Arrow: column | ``type``, ``slice`` | numbers, or lists of a fixed size |
| memory map, Zarr, HDF5 | ``shape``, ``dtype`` | its own |
| Grain, array_record, a list of arrays | ``len`` and elements | its elements, which are consecutive blocks of rows |
"""

import io
import os
from typing import Any

import numpy as np


def opened(source: Any) -> Any:
    """A reader of the source: ``shape``, ``dtype`` and ``reader[first:stop]``. Raises an error for any other source."""
    if isinstance(source, (str, os.PathLike)):
        try:
            return np.load(source, mmap_mode="r")
        except ValueError as error:
            raise ValueError(f"the file is not a .npy file of numbers: {error}") from error
    if _offers(source, "column_names", "column", "slice"):
        return ArrowTable(source)
    if _offers(source, "type", "slice", "null_count"):
        return ArrowColumn(source)
    if _offers(source, "shape", "dtype"):
        return source
    if _offers(source, "__len__", "__getitem__"):
        return Blocks(source)
    raise TypeError("a source needs a shape, a dtype and slices of rows; or a length and elements that are blocks.")


def _offers(source: Any, *names: str) -> bool:
    return all(hasattr(source, name) for name in names)


class ArrowColumn:
    """Rows of a column: numbers, or lists of numbers that all have the same length."""

    def __init__(self, column: Any):
        width = getattr(column.type, "list_size", None)
        kind = column.type if width is None else column.type.value_type
        self.shape = (len(column),) if width is None else (len(column), width)
        try:
            self.dtype = np.dtype(kind.to_pandas_dtype())
        except NotImplementedError:
            self.dtype = np.dtype(object)
        self._column = column

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = self._column.slice(rows.start, rows.stop - rows.start)
        numbers = []
        for chunk in getattr(part, "chunks", [part]):
            flat = chunk if len(self.shape) == 1 else chunk.flatten()  # this drops missing lists
            if chunk.null_count or flat.null_count:
                raise ValueError("some values are missing (null).")
            numbers.append(flat.to_numpy(zero_copy_only=False))
        return np.concatenate(numbers).reshape(-1, *self.shape[1:])


class ArrowTable:
    """Rows of a table: one column of lists, or columns of numbers of one dtype."""

    def __init__(self, table: Any):
        self._columns = [ArrowColumn(table.column(k)) for k in range(len(table.column_names))]
        about = ", ".join(
            f"{name}: {column.dtype}{list(column.shape[1:]) or ''}"
            for name, column in zip(table.column_names, self._columns)
        )
        self._lists = any(len(column.shape) > 1 for column in self._columns)
        dtypes = {column.dtype for column in self._columns}
        if (self._lists and len(self._columns) > 1) or len(dtypes) != 1:
            raise ValueError(
                f"the columns ({about or 'none'}) do not form an array. Choose columns of one dtype, or one column of "
                "lists: table.select([...]), or table['y'] for one number per row."
            )
        (self.dtype,) = dtypes
        self.shape = self._columns[0].shape if self._lists else (table.num_rows, len(self._columns))

    def __getitem__(self, rows: slice) -> np.ndarray:
        columns = [column[rows] for column in self._columns]
        return columns[0] if self._lists else np.stack(columns, 1)


class Blocks:
    """
    Rows of a sequence of blocks of the same length; the last block may be shorter. Records of array_record must be
    blocks written by ``numpy.save``.
    """

    def __init__(self, blocks: Any):
        self._blocks, count = blocks, len(blocks)
        if not count:
            raise ValueError("the source has no blocks.")
        first = _block(blocks[0])
        self.dtype, self._length, self._row = first.dtype, len(first), first.shape[1:]
        last = len(_block(blocks[count - 1]))
        if not 0 < last <= self._length:
            raise ValueError(
                f"the first block has {self._length} rows and the last {last}. All blocks need the same number of "
                "rows; only the last may have fewer."
            )
        self._last, self._count = last, count
        self.shape = (self._length * (count - 1) + last, *self._row)

    def __getitem__(self, rows: slice) -> np.ndarray:
        numbers = range(rows.start // self._length, (rows.stop - 1) // self._length + 1)
        if hasattr(self._blocks, "__getitems__"):  # several in one call
            blocks = self._blocks.__getitems__(list(numbers))
        else:
            blocks = [self._blocks[k] for k in numbers]
        together = np.concatenate([self._checked(k, _block(block)) for k, block in zip(numbers, blocks, strict=True)])
        begin = numbers[0] * self._length
        return together[rows.start - begin : rows.stop - begin]

    def _checked(self, k: int, block: np.ndarray) -> np.ndarray:
        shape = (self._last if k == self._count - 1 else self._length, *self._row)
        if block.shape != shape or block.dtype != self.dtype:
            raise ValueError(f"block {k} is {block.dtype}{block.shape}, not {self.dtype}{shape}.")
        return block


def _block(element: Any) -> np.ndarray:
    if isinstance(element, bytes):
        if not element.startswith(b"\x93NUMPY"):
            raise TypeError(
                "the elements are bytes. Write the records with numpy.save, or decode them: "
                "grain.MapDataset.source(source).map(lambda record: np.frombuffer(record, dtype).reshape(shape))."
            )
        return np.load(io.BytesIO(element), allow_pickle=False)
    if not _offers(element, "shape", "dtype") or not element.shape:
        raise TypeError(
            f"the elements are of type {type(element).__name__}, not blocks of rows, which are arrays. If an element "
            "has several arrays, choose one: dataset.map(lambda element: element['x'])."
        )
    return np.asarray(element)
