r"""
Averages of draws that are not kept (Welford 1962): after draw k

.. math:: \bar x_k = \bar x_{k-1} + \frac{x_k - \bar x_{k-1}}{k}, \qquad
    M_k = M_{k-1} + (x_k - \bar x_{k-1}) (x_k - \bar x_k), \qquad s^2_k = \frac{M_k}{k - 1}.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Averages(NamedTuple):
    """Of the values of a function, with chains along the first axis."""

    count: int  # number of draws of each chain
    mean: Any
    variance: Any

    @classmethod
    def from_moments(cls, moments: "Moments", chains: int) -> "Averages":
        """``moments``: moments, with chains along the first axis if there are several."""
        count = int(np.ravel(moments.count)[0])
        front = (lambda x: np.asarray(x)) if chains > 1 else (lambda x: np.asarray(x)[None])
        mean, squares = jax.tree.map(front, (moments.mean, moments.squares))
        return cls(count, mean, jax.tree.map(lambda m: m / max(count - 1, 1), squares))


class Moments(NamedTuple):
    count: jax.Array  # k
    mean: Any  # a tree of floats
    squares: Any  # M_k, a tree like this

    @classmethod
    def of_none(cls, like: Any) -> "Moments":
        """The moments before the first draw, for values of these shapes."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.result_type(x.dtype, jnp.float32)), like)
        return cls(jnp.int32(0), zeros, zeros)

    def after(self, values: Any, counts: jax.Array) -> "Moments":
        """The moments after another draw, if it ``counts``."""
        count = self.count + counts
        share = jnp.where(counts, 1 / jnp.maximum(count, 1), 0.0)
        away = jax.tree.map(lambda x, mean: x - mean, values, self.mean)
        mean = jax.tree.map(lambda mean, d: mean + share.astype(mean.dtype) * d, self.mean, away)
        left = jnp.where(counts, 1 - share, 0.0)  # x_k - mean_k is (1 - 1 / k) (x_k - mean_{k-1})
        squares = jax.tree.map(lambda m, d: m + left.astype(m.dtype) * d * d, self.squares, away)
        return Moments(count, mean, squares)
