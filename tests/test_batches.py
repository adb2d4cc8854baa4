"""Rows: permutations that are permutations, rows that are equally likely, work that does not grow with the data."""

import ast
import inspect
import pathlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_sgmcmc
from numpyro_sgmcmc import Reshuffled, WithoutReplacement, WithReplacement, shuffle_rows
from numpyro_sgmcmc.rows.permutation import BITS, permute, words
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import Plate, RowsState

SCHEMES = [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement(), WithReplacement()]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 12, 37, 100, 101, 255, 256, 257, 1000, 9973, 65536, 65537, 100_003])
def test_permute_is_a_permutation(size):
    images = jax.jit(permute, static_argnums=2)(
        random.bits(random.key(size), (BITS,), jnp.uint32), jnp.arange(size), size
    )
    assert sorted(np.asarray(images).tolist()) == list(range(size))


def test_permute_covers_int32():
    size = 2**31 - 1
    x = jnp.array([0, 1, size - 2, size - 1, 12345678], jnp.int32)
    images = np.asarray(permute(random.bits(random.key(0), (BITS,), jnp.uint32), x, size))
    assert len(set(images.tolist())) == 5 and images.min() >= 0 and images.max() < size
    with pytest.raises(ValueError, match="2147483648 rows is more than int32"):
        permute(jnp.zeros(BITS, jnp.uint32), x, 2**31)


@pytest.mark.parametrize("size", [5, 12, 101])
def test_pairs_of_images_are_uniform(size):
    """Chi-square of the images of two neighbours over all ordered pairs, 40 000 keys."""
    count = 40_000
    bits = random.bits(random.key(1), (count, BITS), jnp.uint32)
    first, second = jax.vmap(lambda b: permute(b, jnp.array([1, 2]), size))(bits).T
    pairs = np.zeros((size, size))
    np.add.at(pairs, (np.asarray(first), np.asarray(second)), 1)
    expected = count / (size * (size - 1))
    off = pairs[~np.eye(size, dtype=bool)]
    cells = len(off)
    chi2 = ((off - expected) ** 2 / expected).sum()
    assert np.trace(pairs) == 0
    assert abs(chi2 - (cells - 1)) < 5 * np.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_words_are_fair_and_none_comes_twice(impl):
    """Bits, and words of one number and of the next, as if independent; few words of 32 bits are alike by chance."""
    count, number = 4000, BITS + 1
    found = np.asarray(jax.vmap(lambda t: words(random.key(5, impl=impl), t, number))(jnp.arange(count)))
    assert found.size - len(np.unique(found)) <= 2
    bits = (found[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    assert abs(bits.mean(0) - 0.5).max() < 5 / np.sqrt(4 * count)
    uniform = np.hstack([found[:-1], found[1:]]) / 2**32
    assert abs(np.corrcoef(uniform.T) - np.eye(2 * number)).max() < 5 / np.sqrt(count)


@pytest.mark.parametrize("data", ["trend", "alternating", "blocks"])
def test_the_mean_of_a_batch_has_the_variance_of_sampling_without_replacement(data):
    """Data with structure that a weak permutation would meet in step."""
    size, n, count = 1000, 50, 4000
    rows = jnp.arange(size)
    x = {"trend": rows / size, "alternating": rows % 2, "blocks": (rows // 100) % 2}[data].astype(jnp.float32)
    batches = jax.vmap(lambda t: WithoutReplacement()(random.key(2), t, size, n))(jnp.arange(count))
    means = np.asarray(x[batches].mean(1), float)
    exact = float(np.asarray(x, float).var()) / n * (size - n) / (size - 1)
    assert abs(means.var() / exact - 1) < 5 * np.sqrt(2 / count)
    assert abs(means.mean() - float(x.mean())) < 5 * np.sqrt(exact / count)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("size, n", [(12, 4), (100, 10), (1000, 8)])
def test_an_epoch_holds_every_row_once(contiguous, size, n):
    scheme, m = Reshuffled(contiguous), size // n
    orders = []
    for epoch in range(3):
        rows = jax.vmap(lambda t: scheme(random.key(3), t, size, n))(epoch * m + jnp.arange(m))
        assert sorted(np.asarray(rows).ravel().tolist()) == list(range(size))
        orders.append(tuple(np.asarray(rows).ravel().tolist()))
    assert len(set(orders)) == 3


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
@pytest.mark.parametrize("size, n", [(10, 3), (11, 4), (7, 6)])
def test_every_row_is_equally_likely_also_with_a_remainder(scheme, size, n):
    """Each row's share of batches, for a batch in the middle of an epoch, over 40 000 keys."""
    count = 40_000
    keys = random.split(random.key(4), count)
    rows = np.asarray(jax.vmap(lambda k: scheme(k, jnp.array(1), size, n))(keys))
    share = np.bincount(rows.ravel(), minlength=size) / count
    # rows in one batch are not positively correlated: the binomial error is an upper bound
    assert np.abs(share - n / size).max() < 5 * np.sqrt(n / size / count)


def test_with_a_remainder_an_epoch_leaves_out_just_the_remainder():
    size, n = 11, 4
    for contiguous in (False, True):
        rows = np.concatenate([Reshuffled(contiguous)(random.key(5), jnp.array(t), size, n) for t in range(2)])
        assert len(set(rows.tolist())) == 8


def test_contiguous_rows_are_neighbours():
    rows = np.asarray(Reshuffled(contiguous=True)(random.key(6), jnp.array(5), 1000, 10))
    assert set(np.diff(rows) % 1000) == {1}


def test_rows_of_a_batch_are_distinct_without_replacement():
    for scheme in (Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement()):
        rows = np.asarray(scheme(random.key(7), jnp.array(2), 20, 9))
        assert len(set(rows.tolist())) == 9
    assert any(
        len(set(np.asarray(WithReplacement()(random.key(7), jnp.array(t), 20, 9)).tolist())) < 9 for t in range(3)
    )


def test_crossed_plates_draw_independently():
    plates = {"a": Plate(100, 10), "b": Plate(100, 10)}
    rows, state = next_rows(Reshuffled(), RowsState(random.key(8), jnp.array(0)), plates)
    assert not np.array_equal(rows["a"], rows["b"])
    assert state.t == 1


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_cost_does_not_depend_on_the_size_of_the_data(scheme):
    def bytes_accessed(size):
        draw = jax.jit(lambda key, t: scheme(key, t, size, 64))
        return draw.lower(random.key(0), jnp.array(3)).compile().cost_analysis()["bytes accessed"]

    # one more iteration of a loop or a differently fused constant may move it; an array of N rows would be 1000 times
    assert bytes_accessed(10**8) < 2 * bytes_accessed(10**5)


def test_shuffle_rows_keeps_rows_together():
    X, y = np.arange(20).reshape(10, 2), jnp.arange(10)
    shuffled_X, shuffled_y = shuffle_rows(random.key(0), X, y)
    assert isinstance(shuffled_X, np.ndarray) and isinstance(shuffled_y, jax.Array)
    np.testing.assert_array_equal(shuffled_X[:, 0], 2 * np.asarray(shuffled_y))
    assert not np.array_equal(shuffled_y, y)
    assert shuffle_rows(random.key(0), y).shape == (10,)


@pytest.mark.parametrize("arrays", [(), (np.zeros(3), np.zeros(4)), (np.zeros(3), 1.0)])
def test_shuffle_rows_refuses_arrays_of_unlike_length(arrays):
    with pytest.raises(ValueError, match="one common number of rows"):
        shuffle_rows(random.key(0), *arrays)


def test_chance_enters_by_two_doors_only():
    """
    Calls that draw, in the code of the package (not its docstrings): rows in batches.py, noise in noise.py; and, of no
    concern to a chain, the resampling of draws that are kept.
    """
    draws = {"normal", "uniform", "randint", "choice", "permutation", "bits", "bernoulli", "gamma", "exponential"}
    doors = set()
    for path in pathlib.Path(inspect.getfile(numpyro_sgmcmc)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in draws and "random" in ast.unparse(node.value):
                doors.add(path.name)
    assert doors == {"noise.py", "batches.py", "weights.py"}
