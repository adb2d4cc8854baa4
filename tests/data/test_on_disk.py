"""Arrays on disk: the draws of arrays in memory, rows that are read once, and errors that say what is wrong."""

from functools import partial
import io
import os
import pickle
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, Predictive
import pytest
import zarr

from numpyro_sgmcmc import (
    SAGA,
    SGHMC,
    SGLD,
    SVRG,
    Checkpointed,
    ControlVariate,
    OnDisk,
    Reshuffled,
    WithReplacement,
    find_mode,
    gradient_noise,
    summary,
    to_arviz,
)
from numpyro_sgmcmc.engine import read_ahead

N, B, DIM = 600, 20, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, DIM)).astype(np.float32)
Y = (X @ [1, -1, 0.5] + RNG.normal(size=N)).astype(np.float32)
CENTER = {"w": jnp.zeros(DIM)}
CONTIGUOUS = Reshuffled(contiguous=True)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=None if y is None else y[rows])


def subsampled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", len(x)):
        batch = numpyro.subsample(x, event_dim=1)
        numpyro.sample("y", dist.Normal(batch @ w, 1), obs=numpyro.subsample(y, event_dim=0))


def columns(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows, 1:] @ w + x[rows, 0] + x[rows][..., 1], 1), obs=y[rows])


@pytest.fixture
def on_disk(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return OnDisk(tmp_path / "x.npy"), OnDisk(str(tmp_path / "y.npy"))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of three steps, so that a transition has several, the last of them not full."""
    monkeypatch.setattr(read_ahead, "BLOCK", 3 * B * (DIM + 1) * 4)


def run(
    data,
    kernel=SGLD,
    model=model,
    num_chains=1,
    chain_method="vectorized",
    progress_bar=False,
    num_samples=5,
    **options,
):
    if kernel is SGHMC and "step_size" in options:
        options["friction"] = 10.0
    kernel = kernel(model, batch_size=B, **{"rows": CONTIGUOUS} | options)
    mcmc = MCMC(
        kernel,
        num_warmup=3 if "step_size" in options else 40,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=chain_method,
        progress_bar=progress_bar,
    )
    mcmc.run(random.key(1), *data, extra_fields=("potential_estimate",))
    return mcmc


def draws(mcmc):
    return mcmc.get_samples()["w"], mcmc.get_extra_fields()["potential_estimate"]


given = partial(dict, step_size=1e-3, steps_per_sample=8)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(given(), id="contiguous"),
        pytest.param(given(kernel=SGHMC, rows=Reshuffled()), id="reshuffled"),
        pytest.param(given(rows=WithReplacement()), id="with replacement"),
        pytest.param(given(kernel=SGHMC, progress_bar=True), id="bar"),
        pytest.param(given(steps_per_sample=1), id="one step"),
        pytest.param(given(num_chains=3), id="vectorized"),
        pytest.param(given(num_chains=2, chain_method="sequential"), id="sequential"),
        pytest.param(given(num_chains=2, chain_method="parallel"), id="parallel"),
        pytest.param(given(model=subsampled), id="subsample"),
        pytest.param(given(model=columns), id="columns"),
        pytest.param(given(gradient=ControlVariate(CENTER)), id="control variate"),
        pytest.param(given(gradient=SAGA("batch")), id="SAGA batch"),
        pytest.param(given(gradient=SAGA("row")), id="SAGA row"),
        pytest.param(given(gradient=SAGA("linear")), id="SAGA linear"),
        pytest.param(given(gradient=SVRG()), id="SVRG"),
        pytest.param({"kernel": SGHMC, "num_chains": 2}, id="found"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*reads its rows one by one")
@pytest.mark.filterwarnings("ignore:the draws are")
@pytest.mark.optimised  # what users run
@pytest.mark.every(4)
def test_draws_are_those_of_arrays_in_memory(on_disk, small_blocks, options, request):
    on_file, in_memory = draws(run(on_disk, **options)), draws(run((X, Y), **options))
    if not any(name in request.node.callspec.id for name in ("linear", "row", "SVRG", "found")):
        np.testing.assert_array_equal(on_file[0], in_memory[0])
    # some sums are taken in another order
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), on_file, in_memory)
    assert np.ptp(on_file[0], axis=0).min() > 0


class Source:
    """Rows of an array, with a list of what is read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.read = []

    def __getitem__(self, index):
        assert isinstance(index, slice)
        self.read.append((index.start, index.stop))
        return self.array[index]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="memory is used again on a CPU alone")
def test_pieces_are_read_as_a_whole_and_each_block_once(monkeypatch):
    monkeypatch.setattr(read_ahead, "BLOCK", 5 * B * (DIM + 1) * 4)
    x, blocks, memory, take = Source(X), [], [], read_ahead.ReadAhead._take

    def recorded(self, *rows):
        blocks.append([np.array(r) for r in rows])
        memory.append(take(self, *rows))
        return memory[-1]

    monkeypatch.setattr(read_ahead.ReadAhead, "_take", recorded)
    run((OnDisk(x), OnDisk(Y)), step_size=1e-3, steps_per_sample=20)
    transitions, a_transition = 8, 4  # of blocks of five steps
    assert len(blocks) == transitions * a_transition
    for (_, after), (now, _) in zip(blocks, blocks[1:]):
        np.testing.assert_array_equal(after, now)  # what was read ahead is what is asked for
    assert len({id(values) for block in memory for values in block}) == 2 * 2  # two blocks of two sources take turns
    rows = np.concatenate([np.asarray(now).reshape(-1, B) for now, _ in blocks])
    a_batch, an_epoch = 1, N // B  # the start has used the first batch
    epochs = rows[an_epoch - a_batch :][: 4 * an_epoch].reshape(-1, N)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(N), (len(epochs), 1)))
    # one slice a step, two where a batch goes on at row 0; besides them a block too many, and the start
    spare = 5 + 40
    assert 160 <= len(x.read) <= 160 + 160 // (N // B) + spare
    assert all(stop - start <= 5 * B for start, stop in x.read if stop - start > 1)


def test_a_self_tuning_run_reads_blocks():
    """Neither the search for a normal approximation nor a step reads scattered rows."""
    x = Source(X)
    run((OnDisk(x), Y), kernel=SGHMC, num_samples=1)
    lengths = np.array([stop - start for start, stop in x.read])
    assert len(lengths) > 500
    # a block that goes on at row 0 is two pieces, of which one is a single row at two of the N places of a block
    assert (lengths == 1).mean() < 1.3 * 2 / N, (lengths == 1).mean()
    assert lengths.mean() > B / 2


def test_a_block_is_found_by_all_of_its_rows():
    reader, block, other = read_ahead.ReadAhead([OnDisk(X)]), np.array([[4, 5], [8, 9]]), np.array([[4, 6], [8, 7]])
    reader(other, block)
    np.testing.assert_array_equal(reader(other, block)[0], X[other])  # its first rows are those of the block ahead


def test_a_resumed_run_has_the_draws_of_one_in_memory(on_disk, small_blocks):
    ends = []
    for data in (on_disk, (X, Y)):
        mcmc = run(data, step_size=1e-3, steps_per_sample=8)
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.last_state.rng_key, *data)
        ends.append(mcmc.get_samples()["w"])
    np.testing.assert_array_equal(*ends)


@pytest.mark.slow
def test_checkpoints_know_what_is_on_disk(on_disk, tmp_path):
    kernel = SGLD(model, step_size=1e-3, batch_size=B, rows=CONTIGUOUS)
    make = lambda: MCMC(kernel, num_warmup=3, num_samples=6, progress_bar=False)  # noqa: E731
    Checkpointed(make(), tmp_path / "run", every=4).run(random.key(0), *on_disk)
    again = make()
    Checkpointed(again, tmp_path / "run", every=4).run(random.key(0), *on_disk)
    whole = make()
    whole.run(random.key(0), *on_disk)
    np.testing.assert_array_equal(again.get_samples()["w"], whole.get_samples()["w"])
    with pytest.raises(ValueError, match="data: is not that of the run"):
        Checkpointed(make(), tmp_path / "run", every=4).run(random.key(0), OnDisk(X + 1), on_disk[1])


@pytest.mark.slow
def test_what_looks_at_a_model_reads_rows(on_disk):
    at = {"batch_size": B}
    np.testing.assert_allclose(
        find_mode(model, random.key(0), *on_disk, **at, progress_bar=False)["w"],
        find_mode(model, random.key(0), X, Y, **at, progress_bar=False)["w"],
        atol=1e-4,
    )
    mcmc = run(on_disk, step_size=1e-5, steps_per_sample=8, num_chains=2, num_samples=10)
    noise = [gradient_noise(mcmc.sampler, mcmc.last_state, *data, num_batches=50) for data in (on_disk, (X, Y))]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3), *noise)
    tables = [dict(summary(mcmc, *data)) for data in (on_disk, (X, Y))]
    assert tables[0] == tables[1]
    idata = to_arviz(mcmc, *on_disk, log_likelihood=True)
    assert idata["log_likelihood"]["y"].shape == (2, 10, N)
    predicted = Predictive(mcmc.sampler.model, mcmc.get_samples())(random.key(0), on_disk[0])
    assert predicted["y"].shape == (20, N)


def test_a_memory_map_is_on_disk_and_warns_of_scattered_rows(tmp_path):
    X.tofile(tmp_path / "x")
    x = np.memmap(tmp_path / "x", dtype=np.float32, mode="r", shape=X.shape)
    with pytest.warns(UserWarning, match=r"argument 1, OnDisk\(memmap of shape \(600, 3\)\) is on disk.*one by one"):
        mcmc = run((x, Y), step_size=1e-3, steps_per_sample=8, rows=Reshuffled())
    in_memory = run((X, Y), step_size=1e-3, steps_per_sample=8, rows=Reshuffled())
    np.testing.assert_array_equal(mcmc.get_samples()["w"], in_memory.get_samples()["w"])


@pytest.mark.parametrize(
    "index", [5, slice(100, 400), slice(3, 9, 2), np.array([[4, -1], [0, 4]]), (np.array([2, 7]), slice(1, None))]
)
def test_rows_are_those_of_the_array(on_disk, index):
    np.testing.assert_array_equal(on_disk[0][index], X[index])
    assert on_disk[0].shape == X.shape and on_disk[0].ndim == 2 and on_disk[0].size == X.size
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(on_disk[0]))[index], X[index])


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x @ jnp.ones(DIM),
        lambda x: jnp.ones((N, DIM)) * x,
        lambda x: np.ones((N, DIM)) * x,
        lambda x: x == 1,
        lambda x: jnp.mean(x),
        lambda x: np.unique(x),
        lambda x: jnp.asarray(x),
        lambda x: list(x),
        lambda x: x[x.shape[0] > 3],
        lambda x: x[..., 0],
        lambda x: x[np.ones(N, bool)],
    ],
)
def test_what_needs_the_whole_array_is_refused(on_disk, ask):
    def asking(x, y):
        ask(x)
        model(x, y)

    with pytest.raises(TypeError, match=r"argument 1, OnDisk\(.*x.npy'\)"):
        run(on_disk, model=asking, step_size=1e-3)


def test_methods_of_arrays_are_refused(on_disk):
    with pytest.raises(AttributeError, match="no 'mean': the model asks for all of OnDisk"):
        on_disk[0].mean()


def test_bad_sources_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.npy"):
        OnDisk(tmp_path / "nowhere.npy")
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(ValueError, match="text.npy.*not a .npy file"):
        OnDisk(tmp_path / "text.npy")
    np.save(tmp_path / "names.npy", np.array(["a", "b"]))
    with pytest.raises(ValueError, match="must have rows of numbers"):
        OnDisk(tmp_path / "names.npy")
    with pytest.raises(ValueError, match="must have rows of numbers"):
        OnDisk(np.float32(3))
    with pytest.raises(TypeError, match="OnDisk.*needs a shape, a dtype"):
        OnDisk(5)


# -- sources of other libraries, by what they offer -------------------------------------------------------------------


class Records:
    """As an ``ArrayRecordDataSource``: bytes, several in a call."""

    def __init__(self, blocks):
        self.records = []
        for block in blocks:
            file = io.BytesIO()
            np.save(file, block)
            self.records.append(file.getvalue())

    def __len__(self):
        return len(self.records)

    def __getitem__(self, k):
        return self.records[k]

    def __getitems__(self, numbers):
        return [self.records[k] for k in numbers]


class Type(NamedTuple):
    value_type: Any
    list_size: int

    def to_pandas_dtype(self):
        raise NotImplementedError


class Plain(NamedTuple):
    dtype: Any

    def to_pandas_dtype(self):
        return self.dtype


class Column:
    """As an Arrow column in chunks of 70 rows; NaN is missing: a row, or a number of the list of a row."""

    def __init__(self, values, begin=0):
        self.values, self.begin = values, begin
        plain = Plain(values.dtype.type)
        self.type = plain if values.ndim == 1 else Type(plain, values.shape[1])
        self.null_count = np.isnan(values).sum() if values.ndim == 1 else 0
        cuts = range(70 - begin % 70, len(values), 70)
        self.chunks = [Chunk(part) for part in np.split(values, cuts)]

    def __len__(self):
        return len(self.values)

    def slice(self, first, number):
        return Column(self.values[first : first + number], self.begin + first)


class Chunk:
    def __init__(self, values):
        self.values, self.null_count = values, np.isnan(values).sum() if values.ndim == 1 else 0

    def flatten(self):
        return Chunk(self.values.ravel())

    def to_numpy(self, zero_copy_only):
        assert not zero_copy_only
        return self.values


class Table:
    def __init__(self, **columns):
        self.columns, self.column_names = [Column(values) for values in columns.values()], list(columns)
        self.num_rows = len(self.columns[0]) if columns else 0
        self.column = self.columns.__getitem__

    slice = None  # a table has it; columns are what is read


BLOCKS = [X[first : first + 70] for first in range(0, N, 70)]  # the last one is shorter
SOURCES = {
    "blocks": lambda: BLOCKS,
    "records": lambda: Records(BLOCKS),
    "lists": lambda: Column(X),
    "table of lists": lambda: Table(x=X),
    "columns": lambda: Table(a=X[:, 0], b=X[:, 1], c=X[:, 2]),
    "zarr": lambda: zarr.array(X, chunks=(70, 2)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_sources_give_the_rows_of_the_array(source):
    x = OnDisk(source())
    assert x.shape == X.shape and x.dtype == X.dtype
    for first, stop in ((0, 1), (69, 71), (0, 70), (135, 290), (590, N)):
        np.testing.assert_array_equal(x[first:stop], X[first:stop])
    np.testing.assert_array_equal(OnDisk(Column(Y))[65:75], Y[65:75])


def test_draws_from_blocks_and_a_column(small_blocks):
    options = given()
    on_disk, in_memory = run((OnDisk(Records(BLOCKS)), OnDisk(Column(Y))), **options), run((X, Y), **options)
    np.testing.assert_array_equal(draws(on_disk)[0], draws(in_memory)[0])


@pytest.mark.parametrize(
    "source, error, message",
    [
        ([1, 2], TypeError, r"OnDisk\(list\): the elements are of type int, not blocks"),
        ([{"x": X}], TypeError, "type dict, not blocks of rows.*choose one: dataset.map"),
        ([b"1234"], TypeError, r"elements are bytes.*numpy.save.*grain.MapDataset"),
        ([], ValueError, "has no blocks"),
        ([X[:2], X[:3]], ValueError, "the first block has 2 rows and the last 3"),
        (Table(a=Y, b=X), ValueError, r"columns \(a: float32, b: float32\[3\]\) do not form an array. .*select"),
        (Table(a=Y, b=Y.astype(float)), ValueError, r"columns \(a: float32, b: float64\) do not form an array"),
        (Table(), ValueError, r"columns \(none\)"),
    ],
    ids=["numbers", "dicts", "bytes", "nothing", "lengths", "shapes", "dtypes", "no columns"],
)
def test_sources_that_do_not_fit_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        OnDisk(source)


@pytest.mark.parametrize(
    "source, message",
    [
        ([X[:50], X[:40], X[:50]], r"rows 40 to 60 .*ValueError: block 1 is float32\(40, 3\), not float32\(50, 3\)"),
        ([X[:50], X[:50].astype(float), X[:50]], "rows 40 to 60 .*block 1 is float64"),
        (Column(np.where(np.arange(150) == 45, np.nan, 1.0)), "rows 40 to 60 .*missing"),
        (Column(np.where(np.arange(300).reshape(150, 2) == 90, np.nan, 1.0)), "rows 40 to 60 .*missing"),
    ],
    ids=["short block", "other dtype", "null", "null in a list"],
)
def test_a_source_that_does_not_keep_its_word(source, message):
    with pytest.raises(OSError, match=message):
        OnDisk(source)[40:61]


def test_a_length_that_does_not_fit_the_plate_is_refused(on_disk, tmp_path):
    np.save(tmp_path / "short.npy", Y[:-1])
    with pytest.raises(ValueError, match="plate 'N' has 600 rows, but indexes argument 2 of shape"):
        run((on_disk[0], OnDisk(tmp_path / "short.npy")), step_size=1e-3)


class Failing(Source):
    def __getitem__(self, index):
        if index.start <= 333 < index.stop and index.stop - index.start > 1:
            raise RuntimeError("the disk is full of holes")
        return self.array[index]


@pytest.mark.parametrize("progress_bar", [False, True])
def test_rows_that_cannot_be_read_end_the_run(progress_bar):
    data = OnDisk(Failing(X)), OnDisk(Source(Y))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"rows \d+ to \d+ cannot be read: RuntimeError: the disk is full"
    ):
        run(data, step_size=1e-3, steps_per_sample=40, progress_bar=progress_bar)


def test_a_file_that_has_become_shorter_is_an_error(on_disk, tmp_path):
    os.truncate(tmp_path / "x.npy", 1000)
    with pytest.raises(OSError, match="rows 3 to 3 cannot be read: EOFError: the file now has only 1000 bytes"):
        on_disk[0][3]
