r"""
The identities of the score at the draws of a run. For draws of a posterior, and any fixed matrix S,

.. math:: E[(S \nabla U)_j] = 0, \qquad E[(z - c)_j\, (S \nabla U)_j] = S_{jj}.

With S the covariance of the posterior, the first is the error of the mean of :math:`z_j` and the second, relative to
:math:`S_{jj}`, that of its variance, to first order. S is the covariance :math:`L L^T` of the coordinates that the
warm-up has found, or the identity if the step size is given, so that correlations are then not accounted for. c is the
mean of the earlier draws.

Both are averaged over gradients at draws of the run, by coordinate, and the second also over the coordinates of each
site of several. Draws of the posterior exceed one of the limits in one run of a thousand: this chance is divided
equally among the sites, and that of a site among its averages.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils.block_means import BlockMeans, normal_limit
from numpyro_sgmcmc.utils.significance import FALSE_ALARMS

DENSE = 100  # with more coordinates S is not computed from the warm-up
FEW = 20  # gradients of a run that are needed for a standard error


class RunNumbers(NamedTuple):
    """What the identities say about a run so far."""

    gradients: Any  # number of draws whose gradients were used
    series: Any  # number of the average that is worst, in the order of ScoreAverages
    size: Any  # its deviation, in sds or relative to the variance
    error: Any  # its standard error
    score: Any  # the size of its z-score, relative to the limit; of all averages the largest one
    # the smallest errors that would have been seen in the worst global coordinate: of a mean, in sds, and of a variance
    least_shift: Any
    least_inflation: Any


class ScoreAverages(NamedTuple):
    """The averages of a model: d means, d variances, and the mean variance of each site of several coordinates."""

    sites: tuple[tuple[str, int], ...]  # names and sizes, in the order of ravel_pytree
    in_plates: frozenset[str] = frozenset()  # names of the sites in plates, whose elements are not global

    @classmethod
    def for_model(cls, prototype: Mapping[str, jax.ShapeDtypeStruct], in_plates: Any = ()) -> "ScoreAverages":
        """The averages of a model whose latents have these shapes."""
        return cls(tuple((name, prototype[name].size) for name in sorted(prototype)), frozenset(in_plates))

    @property
    def coordinates(self) -> int:
        """d."""
        return sum(size for _, size in self.sites)

    @property
    def several(self) -> list[str]:
        """The sites of several coordinates."""
        return [name for name, size in self.sites if size > 1]

    def limits(self) -> np.ndarray:
        """The limit of each score."""
        sizes = np.array([size for _, size in self.sites])
        of_site = np.array([normal_limit(FALSE_ALARMS / (len(sizes) * (2 * size + (size > 1)))) for size in sizes])
        each = np.repeat(of_site, sizes)
        return np.concatenate([each, each, of_site[sizes > 1]])

    def is_global(self) -> np.ndarray:
        """Whether each coordinate is global; all are, if no site is outside of the plates."""
        inside = np.array([name in self.in_plates for name, _ in self.sites])
        return np.repeat(~inside | inside.all(), [size for _, size in self.sites])

    def over_sites(self, values: jax.Array) -> jax.Array:
        """The mean over each site of several coordinates, along the last axis."""
        parts = jnp.split(values, np.cumsum([size for _, size in self.sites])[:-1], -1)
        means = [part.mean(-1) for part in parts if part.shape[-1] > 1]
        return jnp.stack(means, -1) if means else values[..., :0]

    def name(self, series: int) -> tuple[str, str]:
        """Which average this is, ``"mean"``, ``"variance"`` or ``"variances"``, and of which coordinate or site."""
        d = self.coordinates
        if series >= 2 * d:
            return "variances", self.several[series - 2 * d]
        k = series % d
        for name, size in self.sites:
            if k < size:
                return ("mean", "variance")[series // d], name if size == 1 else f"element {k} of {name}"
            k -= size
        raise IndexError(series)


class RunScores(NamedTuple):
    """The state of the averages, shared by the chains of a state."""

    draws: jax.Array  # draws of each chain so far
    places: jax.Array  # positions of each chain in center
    center: jax.Array  # c, the mean of these positions, shape (d,)
    spread: jax.Array  # the sum of their squared distances from c
    # that of the products of two coordinates in the warm-up, from which S is computed, shape (d, d); empty if S is
    # known or the identity
    scatter: jax.Array
    means: BlockMeans  # the averages
    numbers: jax.Array  # RunNumbers, as one array

    @classmethod
    def zeros(cls, averages: ScoreAverages, chains: int, dtype: Any, learns: bool) -> "RunScores":
        """Before the first draw. ``learns``: whether S is computed from the warm-up."""
        d = averages.coordinates
        zeros, zero = jnp.zeros(d, dtype), jnp.zeros((), dtype)
        k = d if learns and d <= DENSE else 0
        means = BlockMeans.zeros(chains, 2 * d + len(averages.several), dtype)
        numbers = jnp.zeros(len(RunNumbers._fields), dtype)
        return cls(jnp.zeros((), jnp.int32), zero, zeros, zeros, jnp.zeros((k, k), dtype), means, numbers)

    def learn(self, z: jax.Array) -> "RunScores":
        """With a position of each chain in the warm-up. ``z``: shape ``(chains, d)``."""
        before, places, center, spread = self._moved(z)
        scatter = self.scatter
        if scatter.size:
            scatter = jnp.where(self.places == 0, 0, scatter) + before.T @ (z - center)
        return self._replace(places=places, center=center, spread=spread, scatter=scatter)

    def times(self, g: jax.Array, ones: jax.Array) -> tuple[jax.Array, jax.Array]:
        """S g for a gradient of each chain, and the diagonal of S, up to a common factor; as given if S is known."""
        if not self.scatter.size:
            return g, ones
        eye = jnp.eye(len(ones), dtype=g.dtype)
        diagonal = (eye * self.scatter).sum(0)
        known = (diagonal > 0).all() & jnp.isfinite(diagonal).all()
        return g @ jnp.where(known, self.scatter, eye), jnp.where(known, diagonal, ones)

    def add(self, averages: ScoreAverages, z: jax.Array, v: jax.Array, diagonal: jax.Array) -> "RunScores":
        """With another draw of each chain, S times the gradients there, and the diagonal of S."""
        # the positions of the warm-up count as one, because they may be far away
        begins = (self.draws == 0) & (self.places > 0)
        restarted = self._replace(places=jnp.where(begins, 1, self.places), spread=jnp.where(begins, 0, self.spread))
        away, places, center, spread = restarted._moved(z)
        scale = jnp.sqrt(diagonal)
        product = away * v / diagonal - 1
        means = self.means.add(jnp.concatenate([v / scale, product, averages.over_sites(product)], -1))
        first = self.places == 0  # there is no c yet
        means = jax.tree.map(lambda old, new: jnp.where(first, old, new), self.means, means)
        sd = jnp.sqrt(spread / (len(z) * places)) / scale
        numbers = _numbers(averages, means, sd)
        return self._replace(places=places, center=center, spread=spread, means=means, numbers=numbers)

    def _moved(self, z: jax.Array) -> tuple[jax.Array, ...]:
        """The distances of positions from c, and the next places, center and spread."""
        places, first = self.places + 1, self.places == 0
        away = z - self.center
        center = self.center + away.mean(0) / places
        spread = jnp.where(first, 0, self.spread) + (jnp.where(first, z - center, away) * (z - center)).sum(0)
        return away, places, center, spread


def _numbers(averages: ScoreAverages, means: BlockMeans, sd: jax.Array) -> jax.Array:
    """:class:`RunNumbers` of the averages, as one array."""
    estimates, d = means.estimates(), averages.coordinates
    limits = jnp.asarray(averages.limits(), sd.dtype)
    # the error of a mean is that of u, in units of the draws' sd
    units = jnp.concatenate([sd, jnp.ones(len(limits) - d, sd.dtype)])
    size, error = estimates.mean * units, estimates.error * units
    score = jnp.where(estimates.count > FEW, estimates.scores() / limits, 0)
    score = jnp.where(jnp.isnan(estimates.mean), jnp.inf, score)
    # of those that are certain the largest, otherwise that with the largest score
    rank = jnp.where(score > 1, 1 + jnp.nan_to_num(jnp.abs(size), nan=jnp.inf), jnp.minimum(score, 1))
    worst = jnp.argmax(rank)
    least = jnp.where(averages.is_global(), (estimates.visible(limits) * units)[: 2 * d].reshape(2, d), 0).max(1)
    numbers = RunNumbers(estimates.count, worst, size[worst], error[worst], score.max(), *least)
    return jnp.stack([number.astype(sd.dtype) for number in numbers])
