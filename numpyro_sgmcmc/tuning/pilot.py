r"""
What a round of the warm-up shows: whether the draws are those of the posterior, and how to change coordinates and step.

At each draw x the mean g of the gradients in x of two fresh minibatches tells whether the draws are right, without a
reference: integrating by parts,

.. math:: E[\partial_j U] = 0, \qquad E[(x_j - m_j)\, \partial_j U] = 1.

Both are averaged in blocks of draws, whose spread gives the standard errors with the autocorrelation counted.

At the end of a round the differences :math:`e = (g_1 - g_2) / \sqrt{2}` at some of its draws show the noise of the
gradient where the chain is, of covariance :math:`S = E[e e^T]`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.coordinates import axes_of, product

BLOCKS = 20  # of a round
OUTLYING = 20.0  # squared length of a sample of the noise over their median, at most


class Moments(NamedTuple):
    """
    Sums over the draws of a round.

    - **draws** - how many, of each chain.
    - **blocks** - of x, x^2, g and x g by block and chain, shape ``(BLOCKS, 4, chains, d)``.
    - **outer** - of x x^T over all chains, shape ``(d, d)``; empty where nobody asks for it.
    - **places** - the last draws of x themselves, shape ``(places, chains, d)``.
    """

    draws: jax.Array
    blocks: jax.Array
    outer: jax.Array
    places: jax.Array

    @classmethod
    def zeros(cls, places: jax.Array, outer: bool = True) -> "Moments":
        """
        Before any draw.

        :param places: what stands for draws until there are as many.
        :param outer: whether the sum of x x^T is asked for.
        """
        _, chains, d = places.shape
        blocks = jnp.zeros((BLOCKS, 4, chains, d), places.dtype)
        return cls(jnp.zeros((), places.dtype), blocks, jnp.zeros((d, d) if outer else (0, 0), places.dtype), places)

    def add(self, block: jax.Array, x: jax.Array, first: jax.Array, second: jax.Array) -> "Moments":
        """
        With another draw of each chain.

        :param block: its number.
        :param x: shape ``(chains, d)``.
        :param first: a gradient there, likewise.
        :param second: that of another minibatch.
        """
        g = (first + second) / 2
        sums = jnp.stack([x, x * x, g, x * g])
        place = self.draws.astype(jnp.int32) % len(self.places)
        return Moments(
            self.draws + 1,
            self.blocks.at[block].add(sums),
            self.outer + product(x.T, x) if self.outer.size else self.outer,
            self.places.at[place].set(x),
        )


class Evidence(NamedTuple):
    """
    What the moments say of the draws.

    - **mean**, **variance** - of x by coordinate.
    - **effective** - effective draws of the mean, in the median over coordinates.
    - **slowest** - effective draws of the slowest coordinate, as a share of all draws.
    - **gradient** - E[dU/dx_j] as z-scores.
    - **virial** - E[(x - m)_j dU/dx_j] - 1, likewise.
    - **r_hat** - by coordinate, of the chains' halves.
    """

    mean: jax.Array
    variance: jax.Array
    effective: jax.Array
    slowest: jax.Array
    gradient: jax.Array
    virial: jax.Array
    r_hat: jax.Array


def evidence(moments: Moments) -> Evidence:
    """What the draws of a round say."""
    blocks, draws = moments.blocks, moments.draws
    chains = blocks.shape[2]
    x, square, g, xg = (blocks[:, k].sum((0, 1)) / (draws * chains) for k in range(4))
    variance = square - x**2
    length = draws / BLOCKS
    of_block = blocks / length
    by_block = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    virial = of_block[:, 3] - x * of_block[:, 2]

    def z_score(values, expected):
        values = by_block(values)
        error = values.std(0, ddof=1) / jnp.sqrt(len(values))
        return (values.mean(0) - expected) / jnp.maximum(error, 1e-30)

    # the longer the blocks, the slower the coordinates that they can tell; the fewer, the noisier
    longer = of_block[:, 0].reshape(BLOCKS // 2, 2, chains, -1).mean(1)
    spread = by_block(longer).var(0, ddof=1) / (BLOCKS // 2 * chains)
    effective = jnp.minimum(variance / jnp.maximum(spread, 1e-30), draws * chains)
    halves = of_block.reshape(2, BLOCKS // 2, 4, chains, -1).mean(1)
    means = by_block(halves[:, 0])
    within = by_block(halves[:, 1] - halves[:, 0] ** 2).mean(0)
    r_hat = jnp.sqrt(1 + means.var(0, ddof=1) / jnp.maximum(within, 1e-30))
    return Evidence(
        x,
        variance,
        jnp.median(effective),
        effective.min() / (draws * chains),
        z_score(of_block[:, 2], 0.0),
        z_score(virial, 1.0),
        r_hat,
    )


def stretch(moments: Moments, found: Evidence) -> tuple[jax.Array, jax.Array]:
    """
    The axes along which L is to be stretched, and by what: the eigenvectors of the draws' covariance, and the roots of
    those eigenvalues that such a number of draws of N(0, 1) would not have (Marchenko & Pastur 1967), 1 for the others.
    """
    chains = moments.blocks.shape[2]
    n = moments.draws * chains
    effective = jnp.maximum(found.effective, 2.0)
    d = found.mean.size
    covariance = moments.outer / n - jnp.outer(found.mean, found.mean)
    values, vectors = axes_of(covariance)
    return _outside(values, d / effective, jnp.sqrt(jnp.maximum(values, 1e-12))), vectors


def _outside(values: jax.Array, share: jax.Array, factors: jax.Array) -> jax.Array:
    """
    ``factors`` where the values are outside of 1.3 times the edges, 1 elsewhere. Near the lower edge the smallest values
    depend strongly on the number of draws, which is an estimate: it is taken for smaller. Of fewer draws than
    coordinates some values are 0, whatever the law.
    """
    low = jnp.maximum(1 - jnp.sqrt(1.5 * share), 0) ** 2 / 1.3
    high = 1.3 * (1 + jnp.sqrt(share)) ** 2
    narrow = (low > 0) & (values < low)  # values of 0 are negative by rounding
    return jnp.where(narrow | (values > high), jnp.clip(factors, 0.1, 10.0), 1.0)


def rotation(noise: jax.Array, blocks: np.ndarray | None = None) -> tuple[jax.Array, jax.Array]:
    """
    The variance of the gradient's noise along some axes, and these: along the eigenvectors of S a variance for each
    coordinate says all.

    One half of the samples gives the axes and the other the variances: the largest eigenvalue of 1000 samples in 30
    dimensions is a third too large. Samples longer than any of a normal law are :func:`shortened`.

    :param noise: samples of e, shape ``(samples, d)``.
    :param blocks: of L, see :func:`~numpyro_sgmcmc.model.coordinates.blocks_of`.
    """
    noise = shortened(noise)
    first, second = jnp.split(noise, [len(noise) // 2])
    _, axes = axes_of(product(first.T, first), blocks)
    return jnp.mean(product(second, axes) ** 2, 0), axes


def shortened(noise: jax.Array) -> jax.Array:
    """Samples of the noise, none much longer than those of a normal law would be."""
    squares = jnp.sum(noise**2, 1)
    longest = OUTLYING * jnp.median(squares)
    return noise * jnp.sqrt(jnp.minimum(1, longest / jnp.maximum(squares, 1e-30)))[:, None]
