"""Rows: permutations that are permutations, rows that are equally likely, work that does not grow with the data."""

import ast
import inspect
import itertools
import pathlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_sgmcmc
from numpyro_sgmcmc import Reshuffled, WithoutReplacement, WithReplacement, shuffle_rows
from numpyro_sgmcmc.gradients.tables import Partition
from numpyro_sgmcmc.rows.permutation import SMALL, permute, words, words_needed
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import Plate, RowsState

SCHEMES = [
    Reshuffled(),
    Reshuffled(contiguous=True),
    WithoutReplacement(),
    WithoutReplacement(contiguous=True),
    WithReplacement(),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 37, SMALL, SMALL + 1, 100, 101, 256, 257, 1000, 9973, 65537, 100_003])
def test_permute_is_a_permutation(size):
    named = words(random.key(size), 0, words_needed(size))
    images = jax.jit(permute, static_argnums=2)(named, jnp.arange(size), size)
    assert sorted(np.asarray(images).tolist()) == list(range(size))


def test_permute_covers_int32():
    size = 2**31 - 1
    x = jnp.array([0, 1, size - 2, size - 1, 12345678], jnp.int32)
    images = np.asarray(permute(words(random.key(0), 0, words_needed(size)), x, size))
    assert len(set(images.tolist())) == 5 and images.min() >= 0 and images.max() < size
    with pytest.raises(ValueError, match="2147483648 rows is too large for int32"):
        permute(jnp.zeros(words_needed(2**31), jnp.uint32), x, 2**31)


@pytest.mark.parametrize("size", [2, 5, SMALL])
def test_images_of_a_small_permutation_are_ranks(size):
    """Also of equal words: the permutation stays one."""
    named = np.array(words(random.key(1), 2, size))
    for name in (named, named % 2, 0 * named):
        ranks = np.argsort(np.argsort(name, kind="stable"))
        np.testing.assert_array_equal(permute(jnp.asarray(name), jnp.arange(size), size), ranks)


def extreme_variances(subsets, size):
    """
    The least and the largest variance of a linear statistic of random subsets of ``range(size)``, relative to uniform
    subsets: the pairs they hold are uniform where every linear statistic has relative variance 1. One half of the
    subsets chooses the two statistics, the other half gives their variances, so that these are unbiased.

    :param subsets: shape ``(count, n)``.
    :return: both variances and their standard errors.
    """
    count, n = subsets.shape
    inside = np.full((count, size), -n / size)
    np.put_along_axis(inside, np.asarray(subsets), 1 - n / size, axis=1)
    inside *= np.sqrt(size * (size - 1) / (n * (size - n)))
    chosen, judged = np.split(inside, 2)
    _, statistics = np.linalg.eigh(chosen.T @ chosen)
    squares = (judged @ statistics[:, [1, -1]]) ** 2  # the first is the sum, which is constant
    return squares.mean(0), squares.std(0) / np.sqrt(len(squares))


def check_pairs_are_uniform(subsets, size):
    # 5 standard errors of 1.4 %: all sizes together fail for one key in 10 000. The network itself is off by 1 %
    variances, errors = extreme_variances(subsets, size)
    assert (np.abs(variances - 1) < 0.01 + 5 * errors).all(), (size, variances, errors)


LONG = (65, 75, 85, 95, 138, 147)  # in grids three to four times as long as wide
COUNT = 20_000


@pytest.mark.parametrize("sizes", [range(2, 40), range(40, SMALL + 1), (*LONG, SMALL + 3, 150)], ids=str)
@pytest.mark.slow
def test_pairs_of_rows_are_uniform(sizes):
    """In batches of half of the rows, at every size of a plate up to ``SMALL``."""
    for size in sizes:
        draw = jax.vmap(lambda t, size=size: WithoutReplacement()(random.key(1), t, size, size // 2))
        check_pairs_are_uniform(jax.jit(draw)(jnp.arange(COUNT)), size)


@pytest.mark.parametrize("batches", [5, 14, 15, 27, 33, 44, 52, *LONG[:4]])
@pytest.mark.every(3)
def test_pairs_of_contiguous_batches_are_uniform(batches):
    """In the first half of an epoch. The blocks are counted from that of the first batch, as their boundaries shift."""
    size, n = 3 * batches, (batches - 1) // 2

    def blocks(epoch):
        t = epoch * batches + jnp.arange(1 + n)
        first = jax.vmap(lambda t: Reshuffled(contiguous=True)(random.key(2), t, size, 3)[0])(t)
        return (first[1:] - first[0]) % size // 3 - 1

    check_pairs_are_uniform(jax.jit(jax.vmap(blocks))(jnp.arange(COUNT)), batches - 1)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_words_are_fair_and_none_comes_twice(impl):
    """Bits, and words of one number and of the next, as if independent; few words of 32 bits are alike by chance."""
    count, number = 4000, 9
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
    for scheme in SCHEMES[:-1]:
        rows = np.asarray(scheme(random.key(7), jnp.array(2), 20, 9))
        assert len(set(rows.tolist())) == 9
    assert any(
        len(set(np.asarray(WithReplacement()(random.key(7), jnp.array(t), 20, 9)).tolist())) < 9 for t in range(3)
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_rows_of_several_plates_are_independent(scheme):
    """Over 4000 batches, the first rows of any two of three plates; and one batch more is counted."""
    size, count = 100, 4000
    plates = {name: Plate(size, 10) for name in "abc"}
    draw = lambda t: next_rows(scheme, RowsState(random.key(8), t), plates)  # noqa: E731
    rows, state = jax.jit(jax.vmap(draw))(10 * jnp.arange(count))  # a batch of each epoch
    first = np.stack([rows[name][:, 0] for name in plates])
    for p, q in itertools.combinations(first, 2):
        # equal rows in 1 % of batches, and uncorrelated: 5 standard errors of either
        assert abs((p == q).mean() - 1 / size) < 5 * np.sqrt(1 / size / count)
        assert abs(np.corrcoef(p, q)[0, 1]) < 5 / np.sqrt(count)
    np.testing.assert_array_equal(state.t, 10 * np.arange(count) + 1)


@pytest.mark.parametrize("scheme", [*SCHEMES, Partition(Reshuffled())], ids=repr)
@pytest.mark.parametrize("size, n", [(50, 3), (1000, 8)])
@pytest.mark.every(2)
def test_the_batch_number_may_be_any_uint32(scheme, size, n):
    """Rows at the largest numbers are rows, differ from those at others, and do not depend on how t is written."""
    draw = jax.jit(lambda t: scheme(random.key(9), t, size, n))
    last = 2**32 - 1
    for t in (0, 5, 2**31 - 1):
        rows = np.asarray(draw(jnp.uint32(t)))
        np.testing.assert_array_equal(rows, draw(jnp.int32(t)))
        np.testing.assert_array_equal(rows, scheme(random.key(9), t, size, n))
    traced, written = draw(jnp.uint32(last)), scheme(random.key(9), last, size, n)
    np.testing.assert_array_equal(traced, written)
    assert traced.dtype == jnp.int32 and 0 <= traced.min() and traced.max() < size
    batches = [tuple(draw(jnp.uint32(t)).tolist()) for t in (0, 2**30, 2**31, 3 * 2**30, last)]
    assert len(set(batches)) > 2  # a plate of few batches may come to one of them twice


def test_the_sequence_starts_again_after_the_last_batch_number():
    plates = {"N": Plate(1000, 8)}
    _, state = next_rows(Reshuffled(), RowsState(random.key(10), jnp.uint32(2**32 - 1)), plates)
    assert state.t == 0 and state.t.dtype == jnp.uint32


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
    with pytest.raises(ValueError, match="the same number of rows"):
        shuffle_rows(random.key(0), *arrays)


def test_random_numbers_of_a_chain_are_drawn_in_three_files():
    """
    Calls that draw, in the code of the package (not its docstrings): rows, noise, local sites, and what diagnostics
    choose of the draws and the rows of a run that has ended.
    """
    draws = {"normal", "uniform", "randint", "choice", "permutation", "bits", "bernoulli", "gamma", "exponential"}
    package = pathlib.Path(inspect.getfile(numpyro_sgmcmc)).parent
    files = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in draws and "random" in ast.unparse(node.value):
                files.add(path.relative_to(package).as_posix())
    assert {file for file in files if not file.startswith(("diagnostics/", "contrib/correction"))} == {
        "rows/schemes.py",
        "utils/noise.py",
        "local/moves.py",
    }
