"""Means of dependent series in growing blocks: the sums are those of NumPy, and the scores have their level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, t

from numpyro_sgmcmc.utils.block_means import GROWTH, BlockMeans, Estimates, normal_limit


@jax.jit
def averaged(values):
    """The state after values of shape ``(times, chains, series)``."""
    start = BlockMeans.zeros(*values.shape[1:], values.dtype)
    return jax.lax.scan(lambda means, value: (means.add(value), None), start, values)[0]


def blocks_of(n):
    """The edges of the blocks, by the rule in words."""
    edges, length = [0], 0
    for count in range(1, n + 1):
        length += 1
        if GROWTH * length >= count:
            edges, length = [*edges, count], 0
    return edges if edges[-1] == n else [*edges, n]


@pytest.mark.parametrize("n", [1, 7, 23, 300])
def test_estimates_are_those_of_the_stored_values(n):
    values = np.random.default_rng(n).normal(size=(n, 3, 5)) + np.arange(5)
    found = jax.tree.map(np.asarray, averaged(jnp.asarray(values, jnp.float32)).estimates())
    mean = values.mean((0, 1))
    np.testing.assert_allclose(found.mean, mean, atol=1e-5)
    edges = blocks_of(n)
    lengths = np.diff(edges)
    squares = sum(((values[a:b].sum(0) - (b - a) * mean) ** 2).sum(0) for a, b in zip(edges, edges[1:]))
    blocks = (3 * n) ** 2 / (3 * (lengths**2).sum())
    if blocks < 1.2:
        return
    of_blocks, independent = squares / (3 * n) ** 2 / (1 - 1 / blocks), values.var((0, 1)) / (3 * n)
    variance = np.maximum(of_blocks, independent)
    variance *= 1 + np.maximum(variance / independent - 1, 0) * blocks / (3 * n)
    np.testing.assert_allclose(found.error, np.sqrt(variance), rtol=1e-3)


@pytest.mark.parametrize("chains, correlation", [(1, 0.0), (4, 0.5)])
def test_scores_of_right_series_have_their_level(chains, correlation):
    """100 000 series of 300 values: the limit of one in a hundred is exceeded about that often, or less."""
    rng = np.random.default_rng(chains)
    noise = rng.normal(size=(300, chains, 25_000)).astype(np.float32)
    values = np.empty_like(noise)
    values[0] = noise[0]
    for k in range(1, 300):
        values[k] = correlation * values[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
    share = float((averaged(jnp.asarray(values)).estimates().scores() > normal_limit(0.01)).mean())
    assert 0.001 < share < 0.015


def test_a_score_is_as_improbable_as_the_t_it_is_made_of():
    for freedom in (5.0, 20.0, 80.0):
        value = t.isf(0.5e-3, freedom)
        one = Estimates(jnp.ones(()), jnp.array(value), jnp.ones(()), jnp.array(freedom))
        np.testing.assert_allclose(one.scores(), norm.isf(0.5e-3), rtol=0.01)
        np.testing.assert_allclose(one.visible(one.scores()), value, rtol=1e-3)
    np.testing.assert_allclose(normal_limit(1e-3), norm.isf(0.5e-3))
