r"""
Searches for a normal approximation :math:`N(c, L L^T)` of the posterior in unconstrained space.

1. A mean-field normal (:mod:`~numpyro_sgmcmc.tuning.start`) gives a first c and a diagonal L.
2. Newton's method (:mod:`~numpyro_sgmcmc.tuning.newton`) finds from there the normal with the largest evidence lower
   bound.

The draws of the warm-up correct the approximation (:mod:`~numpyro_sgmcmc.tuning.pilot`).

If there are too many coordinates for a matrix, and no groups, the second step is replaced: the mean-field normal is
rescaled along a few directions (:mod:`~numpyro_sgmcmc.tuning.low_rank`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import Reshuffled, next_rows
from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.coordinates import Coordinates, LowRank, blocks_of, is_high_dimensional, raveled, unraveler
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.low_rank import ITERATIONS, VECTORS, wide_law
from numpyro_sgmcmc.tuning.newton import PAIRS, normal_law
from numpyro_sgmcmc.tuning.start import mean_field, passes_of, with_gradient
from numpyro_sgmcmc.types import Plate, Potential, RowsState, Sites
from numpyro_sgmcmc.utils import noise, trees
from numpyro_sgmcmc.utils.curvature import gradient_and_product

PART = 1000  # rows per part of the data, at least one per group
FIRST = 20  # rows per coordinate with which the search starts
HESSIAN = 5  # parts for the Hessian of many coordinates
MOST_ROWS = 2_000_000  # rows of a look at a hierarchy
PRODUCTS = 1024  # evaluations of a part for the Hessian as a matrix, for up to 2 PAIRS draws
FEWEST = 8  # draws for it at least, and as many as give each coordinate FIRST rows
STEPS = 4, 2  # steps with few rows and with all of them: the numbers that most searches need
POWERS = 20  # iterations of the power method


class Approximation(NamedTuple):
    coordinates: Coordinates | LowRank | Arrow  # c and L
    curvature: jax.Array  # the largest curvature in x; 1 if L is a full matrix
    passes: jax.Array  # rows used, in passes over the data


class Plan(NamedTuple):
    """How much of the data the search uses."""

    plates: dict[str, Plate]  # plates whose batches are parts of the data
    parts: int  # number of parts that are used in the end
    first: int  # number of parts with which it starts
    curved: int  # number of draws for a Hessian
    directions: int  # products with each of them
    share: float  # share of the data in a part

    @classmethod
    def for_model(cls, potential: Potential, layout: Layout | None) -> "Plan":
        """:param layout: the groups of a hierarchy, if L has their shape."""
        d = trees.size(potential.prototype)
        size = max((plate.size for plate in potential.plates.values()), default=1)
        rows = min(size, PART if layout is None else max(PART, d))
        parts = max(1, size // rows)
        plates = {name: p._replace(batch_size=max(1, p.size // parts)) for name, p in potential.plates.items()}
        share = 1 / parts
        enough = -(-FIRST * d // rows)
        if layout is not None:
            parts = min(parts, -(-MOST_ROWS * parts // size))
            curved, directions = max(parts, PAIRS), layout.size + sum(b for _, b in layout.families)
        elif is_high_dimensional(potential.prototype):
            parts = min(parts, HESSIAN)
            curved, directions = 0, 6 * VECTORS * ITERATIONS
        else:
            curved, directions = min(2 * PAIRS, max(PRODUCTS // d, FEWEST, enough)), d
        first = max(PAIRS, enough)
        return cls(plates, parts, first if parts >= 4 * first else parts, curved, directions, share)

    @property
    def passes(self) -> float:
        """Passes over the data that a search is likely to need; hard posteriors need several times as many."""
        if not self.curved:
            return self.share * self.parts * self.directions
        numbers = (parts * -(-PAIRS // parts) for parts in (self.first, self.parts))
        costs = (2 * number + self.directions * min(self.curved, number) for number in numbers)
        return self.share * sum(steps * cost for steps, cost in zip(STEPS, costs))


def search(
    potential: Potential,
    starts: Sites,
    rng_key: jax.Array,
    dense_mass: Any = True,
    contiguous: bool = False,
    layout: Layout | None = None,
) -> Approximation:
    """The normal approximation, found from the best of several positions with finite energies."""
    key_rows, key_model, key_descent, key_noise = random.split(rng_key, 4)
    unravel = unraveler(potential.prototype)
    d = trees.size(potential.prototype)
    plan, scheme = Plan.for_model(potential, layout), Reshuffled(contiguous=contiguous)

    of_parts = lambda k: next_rows(scheme, RowsState(key_rows, k), plan.plates)[0]  # noqa: E731
    # drawn once, because each program of a draw takes long to compile
    table = lax.map(of_parts, jnp.arange(plan.parts, dtype=jnp.uint32))

    def energy(k):
        rows, key = jax.tree.map(lambda rows: rows[k], table), random.fold_in(key_model, k)
        return lambda z: potential.estimate(unravel(z), rows, key)

    origins, of_first = jax.vmap(raveled)(starts), with_gradient(energy(0))
    energies = lax.map(of_first, origins)
    origin = origins[jnp.argmin(energies)]
    key_batches, key_draws = random.split(key_descent)
    mean, log_width = map(raveled, mean_field(potential, unravel(origin), key_batches, key_draws, contiguous))
    # if the first normal is too wide for the model, its mean is worse than the start, which may be the end of a descent
    # itself; and the descent does not move from where the gradient is not finite
    improves = of_first(mean) <= energies.min() + d
    mean, width = trees.where(improves, (mean, jnp.exp(log_width)), (origin, jnp.ones_like(origin)))
    descent = passes_of(potential)
    if not plan.curved:
        law, curvature = wide_law(energy, mean, width, plan.parts, key_noise, dense_mass is True)
        return Approximation(law, curvature, jnp.asarray(descent + plan.passes, mean.dtype))
    key_draws, key_directions, key_power = random.split(key_noise, 3)
    draws = noise.normal(key_draws, (PAIRS, d), mean.dtype)
    start, blocks = Coordinates(mean, jnp.diag(width)), None
    if layout is not None:
        start, whole = Arrow.diagonal(mean, width, layout), len(layout.families) == 1
    else:
        blocks = blocks_of(potential.prototype, dense_mass)
        whole = blocks is None
    law, evaluations = normal_law(energy, start, draws, plan.parts, plan.first, plan.curved, key_directions, blocks)
    curvature = jnp.ones((), mean.dtype) if whole else largest_curvature(energy, law, plan.parts, key_power)
    return Approximation(law, curvature, descent + plan.share * evaluations)


def unknown(potential: Potential, dense_mass: Any, layout: Layout | None) -> Coordinates | LowRank | Arrow:
    """Coordinates in the form of those that a search finds."""
    d, dtype = trees.size(potential.prototype), jnp.result_type(*(site.dtype for site in potential.prototype.values()))
    center = jnp.zeros(d, dtype)
    if layout is not None:
        return Arrow.diagonal(center, center, layout)
    if is_high_dimensional(potential.prototype):
        k = 2 * VECTORS if dense_mass is True else 0
        return LowRank(center, center + 1, jnp.zeros((d, k), dtype), jnp.ones(k, dtype))
    return Coordinates(center, jnp.eye(d, dtype=dtype))


def largest_curvature(
    energy: Callable[[Any], Callable[[jax.Array], jax.Array]], law: Coordinates | Arrow, parts: int, rng_key: jax.Array
) -> jax.Array:
    """A bound on the largest curvature in x at c, at least 1, by the power method."""

    def times(_, carry):
        v = carry[0]
        of_part = lambda k, total: total + gradient_and_product(jax.grad(energy(k)), law.center, law.times(v))[1]  # noqa: E731
        w = law.pull_back(lax.fori_loop(0, parts, of_part, jnp.zeros_like(v)) / parts)
        size = jnp.linalg.norm(w)
        return w / jnp.maximum(size, 1e-30), size

    v = noise.normal(rng_key, law.center.shape, law.center.dtype)
    _, size = lax.fori_loop(0, POWERS, times, (v / jnp.linalg.norm(v), jnp.ones((), v.dtype)))
    return jnp.maximum(1.1 * size, 1)


def expected_passes(potential: Potential, layout: Layout | None) -> float:
    """Rows that a search is likely to use, in passes over the data."""
    return passes_of(potential) + Plan.for_model(potential, layout).passes
