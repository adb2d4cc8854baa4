"""
The sources of ``OnDisk``, made by the libraries themselves: ``make test-sources``, which installs pyarrow, grain,
array_record and h5py. The tests in test_on_disk.py imitate what these libraries offer.
"""

import io

from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
import grain
import h5py
import numpy as np
import pyarrow as pa
import pytest
from test_on_disk import BLOCKS, DIM, B, N, X, Y, draws, given, run, small_blocks  # noqa: F401
import zarr

from numpyro_sgmcmc import SGHMC, OnDisk


def npy(path):
    with open(path, "wb") as file:
        np.save(file, X)
    return str(path)


def memory_map(path):
    X.tofile(path)
    return np.memmap(path, dtype=X.dtype, mode="r", shape=X.shape)


def zarr_array(path):
    array = zarr.create_array(path, shape=X.shape, dtype=X.dtype, chunks=(70, 2))
    array[:] = X
    return zarr.open_array(path, mode="r")


def hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, chunks=(70, 2))
    return h5py.File(path)["x"]


def lists(values):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def mapped(path, *batches):
    """The Arrow file of these batches, opened as a memory map."""
    with pa.OSFile(str(path), "w") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return pa.ipc.open_file(pa.memory_map(str(path)))


def side_by_side(values):
    return pa.record_batch({f"x{k}": pa.array(values[:, k]) for k in range(DIM)})


def of_lists(values):
    return pa.record_batch({"x": lists(values)})


def array_record(path):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for block in BLOCKS:
        file = io.BytesIO()
        np.save(file, block)
        writer.write(file.getvalue())
    writer.close()
    return ArrayRecordDataSource(str(path))


def raw_records(path):
    """Records of bytes without a header, which Grain decodes."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for block in BLOCKS:
        writer.write(block.tobytes())
    writer.close()
    records = grain.MapDataset.source(ArrayRecordDataSource(str(path)))
    return records.map(lambda record: np.frombuffer(record, X.dtype).reshape(-1, DIM))


SOURCES = {
    "npy": npy,
    "memory map": memory_map,
    "zarr": zarr_array,
    "hdf5": hdf5,
    "arrow table": lambda path: mapped(path, *map(side_by_side, BLOCKS)).read_all(),
    "arrow table of lists": lambda path: mapped(path, *map(of_lists, BLOCKS)).read_all(),
    "arrow record batch": lambda path: mapped(path, side_by_side(X)).get_batch(0),
    "arrow record batch of lists": lambda path: mapped(path, of_lists(X)).get_batch(0),
    "arrow column in chunks": lambda path: mapped(path, *map(of_lists, BLOCKS)).read_all()["x"],
    "arrow column": lambda path: mapped(path, of_lists(X)).get_batch(0)["x"],
    "grain": lambda path: grain.MapDataset.source(BLOCKS),
    "grain, chosen": lambda path: grain.MapDataset.source([{"x": x} for x in BLOCKS]).map(lambda block: block["x"]),
    "grain, batched": lambda path: grain.MapDataset.source(X).batch(70),
    "array_record": array_record,
    "array_record by grain": raw_records,
    "blocks": lambda path: BLOCKS,
}


@pytest.fixture(scope="module")
def in_memory():
    """Draws with the data in memory, by the options of the run."""
    kept = {}

    def of(**options):
        name = str(options)
        if name not in kept:
            kept[name] = draws(run((X, Y), **options))
        return kept[name]

    return of


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_rows_are_those_of_the_array(make, tmp_path):
    x = OnDisk(make(tmp_path / "x"))
    assert x.shape == X.shape and x.dtype == X.dtype
    for first, stop in ((0, 1), (69, 71), (0, 70), (135, 290), (590, N), (0, N)):
        np.testing.assert_array_equal(x[first:stop], X[first:stop])
    rows = np.random.default_rng(0).permutation(N).reshape(4, -1)
    np.testing.assert_array_equal(x[rows], X[rows])


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("arrow")])
def test_mapped_arrow_files_stay_on_disk(name, tmp_path):
    allocated = pa.total_allocated_bytes()
    x = OnDisk(SOURCES[name](tmp_path / "x"))
    for first in range(0, N, B):
        x[first : first + B]
    assert pa.total_allocated_bytes() - allocated < X.nbytes / 4


# the last one is self-tuning, whose passes read the rows in order
CASES = [
    *(pytest.param(make, given(kernel=SGHMC), id=name) for name, make in SOURCES.items()),
    pytest.param(SOURCES["arrow table"], {"kernel": SGHMC}, id="arrow table, found"),
]


@pytest.mark.parametrize("make, options", CASES)
@pytest.mark.filterwarnings("ignore:the draws are")
@pytest.mark.optimised
def test_draws_are_bit_for_bit_those_in_memory(make, options, tmp_path, in_memory, small_blocks):  # noqa: F811
    on_disk = draws(run((OnDisk(make(tmp_path / "x")), Y), **options))
    for values, expected in zip(on_disk, in_memory(**options)):
        np.testing.assert_array_equal(values, expected)
