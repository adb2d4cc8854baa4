r"""
Means of dependent series and their standard errors, in memory that does not grow with the length of the run.

The values of a chain are summed in blocks. A block is closed when it has a tenth of all values so far, so the blocks
grow with the run, and a run of any length has about 20 that matter. With :math:`s_k` the sum and :math:`l_k` the length
of a block, and the mean b of all n values,

.. math:: \mathrm{Var}(b) \approx \frac{\sum_k (s_k - l_k b)^2}{n^2 (1 - 1/f)}, \qquad f = \frac{n^2}{\sum_k l_k^2},

which needs the sums of :math:`s_k`, :math:`s_k^2` and :math:`l_k s_k` only. Its degrees of freedom are f - 1, or half
of the effective number of values if that is less: the blocks of a slow chain depend on each other.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri  # a dependency of jax

GROWTH = 10  # a block is closed when it has this share of all values
FEWEST = 2.0  # the smallest degrees of freedom


class BlockMeans(NamedTuple):
    """Sums of several series, each with one value per chain and time."""

    count: jax.Array  # values of each chain so far
    length: jax.Array  # values in the open block
    lengths: jax.Array  # sum of the squared lengths of the closed blocks of a chain
    open: jax.Array  # sums of the open block, shape (chains, series)
    # of the closed blocks of all chains: s, s^2 and l s; and the squares of all values, shape (4, series)
    sums: jax.Array

    @classmethod
    def zeros(cls, chains: int, series: int, dtype: jnp.dtype) -> "BlockMeans":
        """The sums before the first value."""
        zero, open_block = jnp.zeros((), dtype), jnp.zeros((chains, series), dtype)
        return cls(zero, zero, zero, open_block, jnp.zeros((4, series), dtype))

    def add(self, values: jax.Array) -> "BlockMeans":
        """The sums with one more value of each series. ``values``: shape ``(chains, series)``."""
        count, length = self.count + 1, self.length + 1
        closed = (GROWTH * length >= count).astype(values.dtype)
        block = self.open + values
        of_block = jnp.stack([block.sum(0), jnp.square(block).sum(0), length * block.sum(0)])
        added = jnp.concatenate([closed * of_block, jnp.square(values).sum(0)[None]])
        lengths = self.lengths + closed * length**2
        return BlockMeans(count, length * (1 - closed), lengths, block * (1 - closed), self.sums + added)

    def estimates(self) -> "Estimates":
        """Means and standard errors so far."""
        chains, tiny = len(self.open), jnp.finfo(self.sums.dtype).tiny
        n = jnp.maximum(self.count * chains, 1)
        s, squares, ls, values = self.sums
        s = s + self.open.sum(0)
        squares = squares + jnp.square(self.open).sum(0)
        ls = ls + self.length * self.open.sum(0)
        long = chains * (self.lengths + self.length**2)
        blocks = n**2 / jnp.maximum(long, 1)
        mean = s / n
        of_blocks = (squares - 2 * mean * ls + mean**2 * long) / (n**2 * jnp.maximum(1 - 1 / blocks, 0.1))
        independent = jnp.maximum(values / n - mean**2, 0) / n  # the variance of the mean, were they independent
        variance = jnp.maximum(of_blocks, independent)
        # blocks of length l lose about t / l of the variance, where t is the autocorrelation time
        time = variance / jnp.maximum(independent, tiny)
        variance = variance * (1 + jnp.maximum(time - 1, 0) * blocks / n)
        effective = n * independent / jnp.maximum(variance, tiny)
        freedom = jnp.maximum(jnp.minimum(blocks, effective / 2) - 1, FEWEST)
        return Estimates(n, mean, jnp.sqrt(variance), freedom)


class Estimates(NamedTuple):
    count: jax.Array  # values of all chains
    mean: jax.Array  # their mean, by series
    error: jax.Array  # its standard error
    freedom: jax.Array  # degrees of freedom of the standard error

    def scores(self) -> jax.Array:
        """The distance of each mean from 0, as the size of a normal number that is as improbable."""
        t = jnp.abs(self.mean) / jnp.maximum(self.error, jnp.finfo(self.error.dtype).tiny)
        return _shape(self.freedom) * jnp.sqrt(self.freedom * jnp.log1p(t**2 / self.freedom))

    def visible(self, limits: jax.Array) -> jax.Array:
        """The smallest deviation of each mean whose score exceeds its limit."""
        squares = jnp.square(limits / _shape(self.freedom))
        return self.error * jnp.sqrt(self.freedom * jnp.expm1(squares / self.freedom))


def _shape(freedom: jax.Array) -> jax.Array:
    """The factor of Wallace (1959), by which a quantile of Student's t becomes one of a normal."""
    return (8 * freedom + 1) / (8 * freedom + 3)


def normal_limit(probability: float) -> float:
    """The size that a standard normal number exceeds with this probability."""
    return float(-ndtri(np.float64(probability) / 2))
