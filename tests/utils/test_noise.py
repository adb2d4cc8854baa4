"""Standard normal numbers: JAX's cipher, the right law, and JAX's own numbers for other dtypes and keys."""

import jax
from jax import random
from jax.extend.random import threefry_2x32
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.workarounds import box_muller

pytestmark = pytest.mark.optimised

MANY = 2_000_000
WORDS = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], np.uint32)


@pytest.fixture(scope="module")
def numbers():
    return np.asarray(noise.normal(random.key(0), (MANY,), jnp.float32), float)


def test_the_cipher_is_that_of_jax():
    key = random.key_data(random.key(7))
    x, y = random.bits(random.key(1), (2, 1000))
    assert (jnp.concatenate(box_muller.threefry(key, x, y)) == threefry_2x32(key, jnp.concatenate([x, y]))).all()


@pytest.mark.parametrize("power", [1, 2, 3, 4, 6, 8])
def test_moments(numbers, power):
    moment = {p: stats.norm.moment(p) for p in (power, 2 * power)}
    error = np.sqrt((moment[2 * power] - moment[power] ** 2) / MANY)
    assert abs((numbers**power).mean() - moment[power]) < 4 * error


def test_distribution_and_tails(numbers):
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    for edge in (1e-3, 3.0, 4.0, 4.5):
        inside = stats.norm.cdf(edge) - stats.norm.cdf(-edge)
        assert abs((abs(numbers) < edge).mean() - inside) < 4 * np.sqrt(inside * (1 - inside) / MANY)


@pytest.mark.parametrize("lag", [1, 2, 64, 1000])
def test_neighbours_are_independent(numbers, lag):
    early, late = numbers[:-lag], numbers[lag:]
    for f in (np.asarray, np.square):  # of cosines of one radius the squares would depend on each other
        assert abs(np.corrcoef(f(early), f(late))[0, 1]) < 4 / np.sqrt(MANY)


def test_keys_in_a_row_give_independent_numbers():
    keys = jax.vmap(random.fold_in, (None, 0))(random.key(3), jnp.arange(2000))
    blocks = np.asarray(jax.vmap(lambda key: noise.normal(key, (1000,), jnp.float32))(keys), float)
    assert abs((blocks[1:] * blocks[:-1]).mean()) < 4 / np.sqrt(blocks[1:].size)
    assert abs((blocks.mean(0) ** 2 * len(keys)).mean() - 1) < 4 * np.sqrt(2 / 1000)


def test_extreme_words_give_finite_numbers(monkeypatch):
    a, b = (jnp.asarray(words.ravel()) for words in np.meshgrid(WORDS, WORDS))
    monkeypatch.setattr(box_muller, "threefry", lambda key, x, y: (a, b))
    z = np.asarray(noise.normal(random.key(0), a.shape, jnp.float32), float)
    u, t = (np.asarray(a, float) + 0.5) / 2**32, np.asarray(b, float) / 2**32
    exact = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * t)
    np.testing.assert_allclose(z, exact, rtol=1e-6, atol=2e-5)  # the largest u is rounded to 1
    assert 6.7 < abs(z).max() < 6.8


def test_every_kind_of_key_and_shape():
    flat = noise.normal(random.key(4), (60,), jnp.float32)
    assert (noise.normal(random.PRNGKey(4), (3, 4, 5), jnp.float32) == flat.reshape(3, 4, 5)).all()
    assert noise.normal(random.key(4), (), jnp.float32).shape == ()
    assert noise.normal(random.key(4), (0, 3), jnp.float32).shape == (0, 3)
    keys = random.split(random.key(5), 3)
    mapped = jax.vmap(lambda key: noise.normal(key, (60,), jnp.float32))(keys)
    np.testing.assert_allclose(mapped, [noise.normal(key, (60,), jnp.float32) for key in keys], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype, impl", [("bfloat16", None), ("float16", None), ("float32", "rbg"), ("float64", None)])
def test_what_is_left_to_jax(dtype, impl):
    key = random.key(6, impl=impl)
    with jax.enable_x64(dtype == "float64"):
        assert (noise.normal(key, (50,), jnp.dtype(dtype)) == random.normal(key, (50,), jnp.dtype(dtype))).all()


def test_no_loop_over_rounds():
    text = jax.jit(lambda key: noise.normal(key, (1000,), jnp.float32)).lower(random.key(0)).compile().as_text()
    assert " while(" not in text
