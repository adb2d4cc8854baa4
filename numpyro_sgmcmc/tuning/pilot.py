r"""
Evaluates a round of the warm-up: whether the draws are from the posterior, and how to change coordinates and step size.

Let g be the mean of the gradients in x of two new minibatches at each draw x. It allows a check of the draws without a
reference: integrating by parts,

.. math:: E[\partial_j U] = 0, \qquad E[(x_j - m_j)\, \partial_j U] = 1.

Both are averaged in blocks of draws. The variance between blocks gives standard errors that include the
autocorrelation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.tuning.coordinates import axes_of, product
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.significance import largest_z_score

BLOCKS = 20  # blocks per round
FAR, APART = 100.0, 10.0  # a distance in x, and an R-hat, that draws of any posterior hardly have


class Moments(NamedTuple):
    """Sums over the draws of a round."""

    draws: jax.Array  # number of draws of each chain
    blocks: jax.Array  # sums of x, x^2, g and x g by block and chain, shape (BLOCKS, 4, chains, d)
    outer: jax.Array  # sum of x x^T over all chains, shape (d, d); empty if it is not needed
    places: jax.Array  # the last draws of x, shape (places, chains, d)

    @classmethod
    def zeros(cls, places: jax.Array, outer: bool = True) -> "Moments":
        """The sums before the first draw; ``places`` are used until there are as many draws."""
        _, chains, d = places.shape
        blocks = jnp.zeros((BLOCKS, 4, chains, d), places.dtype)
        return cls(jnp.zeros((), places.dtype), blocks, jnp.zeros((d, d) if outer else (0, 0), places.dtype), places)

    def restarted(self) -> "Moments":
        """The sums of a new round, which goes on from the draws of this one."""
        return jax.tree.map(jnp.zeros_like, self)._replace(places=self.places)

    def add(self, block: jax.Array, x: jax.Array, first: jax.Array, second: jax.Array) -> "Moments":
        """The sums with another draw of each chain, and with the gradients there from two minibatches."""
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
    """Statistics of the draws, computed from their moments; by coordinate of x, but for ``effective``, ``slowest``."""

    mean: jax.Array
    variance: jax.Array
    effective: jax.Array  # effective draws for the mean, the median over coordinates
    slowest: jax.Array  # effective draws of the slowest coordinate, as a share of all draws
    gradient: jax.Array  # z-scores of E[dU/dx_j]
    virial: jax.Array  # z-scores of E[(x - m)_j dU/dx_j] - 1
    r_hat: jax.Array  # R-hat of the chains' halves


def evidence(moments: Moments) -> Evidence:
    """The statistics of a round."""
    blocks, draws = moments.blocks, moments.draws
    chains = blocks.shape[2]
    x, square, g, xg = (blocks[:, k].sum((0, 1)) / (draws * chains) for k in range(4))
    variance = square - x**2
    length = draws / BLOCKS
    of_block = blocks / length
    by_block = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    virial = of_block[:, 3] - x * of_block[:, 2]

    def z_score(values, expected, variance):
        # products are skewed: their mean and the spread of the blocks are small together, so that among many
        # coordinates some have an error that is far too small. Independent draws of a normal have the least one
        values = by_block(values)
        error = values.std(0, ddof=1) / jnp.sqrt(len(values))
        return (values.mean(0) - expected) / jnp.maximum(error, jnp.sqrt(variance / (draws * chains)))

    # longer blocks can resolve slower coordinates, but fewer blocks are noisier
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
        z_score(of_block[:, 2], 0.0, 1.0),
        z_score(virial, 1.0, 2.0),
        r_hat,
    )


def together(statistics: Evidence, earlier: jax.Array) -> Evidence:
    """The evidence whose z-scores are those of two rounds; the ``earlier`` ones are 0 if there was none."""
    several = jnp.where((earlier != 0).any(), jnp.sqrt(2.0), 1.0)
    gradient, virial = (jnp.stack([statistics.gradient, statistics.virial]) + earlier) / several
    return statistics._replace(gradient=gradient, virial=virial)


def is_lost(statistics: Evidence) -> jax.Array:
    """Whether the draws say nothing: they are not finite, far from the normal approximation, or far from each other."""
    near = (jnp.maximum(statistics.mean**2, statistics.variance) <= FAR**2).all() & (statistics.r_hat <= APART).all()
    return ~(near & trees.all_finite(statistics))


def score_limit(coordinates: int, chains: int) -> float:
    """
    The bound of the z-scores of a round, for the worst of two scores per coordinate. Draws that depend on each other
    beyond a block exceed it more often than the stated chance, up to one run in twenty.
    """
    return float(largest_z_score(2 * coordinates, BLOCKS * chains - 1))


def stretch(moments: Moments, statistics: Evidence) -> tuple[jax.Array, jax.Array]:
    """
    The factors by which L is rescaled, and their axes. The axes are the eigenvectors of the draws' covariance. The
    factors are the roots of the eigenvalues, or 1 for eigenvalues in the range that the same number of draws of N(0, 1)
    would have (Marchenko & Pastur 1967).
    """
    chains = moments.blocks.shape[2]
    n = moments.draws * chains
    effective = jnp.maximum(statistics.effective, 2.0)
    d = statistics.mean.size
    covariance = moments.outer / n - jnp.outer(statistics.mean, statistics.mean)
    values, vectors = axes_of(covariance)
    return _outside(values, d / effective, jnp.sqrt(jnp.maximum(values, 1e-12))), vectors


def corrected(
    coordinates: Any, moments: Moments, statistics: Evidence, x: jax.Array, rescaled: bool
) -> tuple[Any, jax.Array, jax.Array]:
    """Coordinates around the mean of the draws, ``rescaled`` to their covariance, and there x and the last draws."""
    center, mean = coordinates.to_z(statistics.mean), statistics.mean
    if not rescaled:
        return coordinates._replace(center=center), x - mean, moments.places - mean
    factors, vectors = stretch(moments, statistics)
    into = lambda x: product(product(x - mean, vectors) / factors, vectors.T)  # noqa: E731
    scale = product(coordinates.scale, product(vectors * factors, vectors.T))
    return coordinates._replace(center=center, scale=scale), into(x), into(moments.places)


def _outside(values: jax.Array, share: jax.Array, factors: jax.Array) -> jax.Array:
    """
    ``factors`` where the values are outside the edges by more than a factor of 1.3, 1 elsewhere.

    Near the lower edge the smallest values depend strongly on the number of draws, which is an estimate, so two thirds
    of it are used. With fewer draws than coordinates some values are 0 for any distribution.
    """
    low = jnp.maximum(1 - jnp.sqrt(1.5 * share), 0) ** 2 / 1.3
    high = 1.3 * (1 + jnp.sqrt(share)) ** 2
    narrow = (low > 0) & (values < low)  # values of 0 are negative by rounding
    return jnp.where(narrow | (values > high), jnp.clip(factors, 0.1, 10.0), 1.0)
