r"""
Searches for a normal approximation :math:`N(c, L L^T)` of the posterior in unconstrained space.

1. A mean-field normal (:mod:`~numpyro_sgmcmc.tuning.start`) gives a first c and a diagonal L.
2. Newton's method (:mod:`~numpyro_sgmcmc.tuning.newton`) finds a mode from there, and then the normal with the largest
   evidence lower bound, from the better of the mean-field normal and the mode.

Both are needed: the mode of a hierarchical model is where its scale is zero, and a mean-field normal makes little
progress along narrow valleys. The draws of the warm-up correct the approximation
(:mod:`~numpyro_sgmcmc.tuning.pilot`).

If there are too many coordinates for a matrix, the second step is replaced: the mean-field normal is rescaled along a
few directions (:mod:`~numpyro_sgmcmc.tuning.low_rank`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import Reshuffled, next_rows
from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.arrow_law import arrow_law
from numpyro_sgmcmc.tuning.coordinates import Coordinates, LowRank, blocks_of, is_wide, raveled, unraveler
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.low_rank import ITERATIONS, VECTORS, wide_law
from numpyro_sgmcmc.tuning.newton import PAIRS, normal_law
from numpyro_sgmcmc.tuning.start import DESCENT_ROWS, mean_field, passes_of, with_gradient
from numpyro_sgmcmc.types import Plate, Potential, RowsState, Sites
from numpyro_sgmcmc.utils import noise, trees

PART = 1000  # rows per part of the data; the search starts with at least 20 rows per coordinate
HESSIAN = 5000  # rows for the Hessian, at least 50 per coordinate
MOST_ROWS = 2_000_000  # rows of a look at a hierarchy
DRAWS = 32  # draws of a normal for its bound, in antithetic pairs that use one part each
LOOKS = 8, 6, 2  # at the mode, at the bound over few draws and over all: the numbers that most searches need


class Found(NamedTuple):
    """
    - **coordinates** - c and L.
    - **curvature** - the largest curvature in x; 1 if L is a full matrix.
    - **passes** - rows used, in passes over the data.
    """

    coordinates: Coordinates | LowRank | Arrow
    curvature: jax.Array
    passes: jax.Array


def search(
    potential: Potential,
    starts: Sites,
    rng_key: jax.Array,
    dense_mass: Any = True,
    contiguous: bool = False,
    layout: Layout | None = None,
) -> Found:
    """
    The normal approximation.

    :param starts: positions with finite energies, along the first axis. The best of them is used.
    :param dense_mass: the blocks of L.
    :param contiguous: whether the minibatches, and the parts in which passes are made, are blocks of neighbouring rows.
    :param layout: the groups of a hierarchy, if L has their shape.
    """
    key_rows, key_model, key_descent, key_noise = random.split(rng_key, 4)
    unravel = unraveler(potential.prototype)
    d = sum(site.size for site in potential.prototype.values())
    plates, parts = partition(potential.plates, PART if layout is None else max(PART, d))
    scheme = Reshuffled(contiguous=contiguous)

    def energy(k):
        rows, _ = next_rows(scheme, RowsState(key_rows, jnp.asarray(k, jnp.uint32)), plates)
        key = random.fold_in(key_model, k)
        return lambda z: potential.estimate(unravel(z), rows, key)

    origins = jax.vmap(raveled)(starts)
    energies = lax.map(with_gradient(energy(0)), origins)
    origin = origins[jnp.argmin(energies)]
    key_batches, key_draws = random.split(key_descent)
    mean, log_width = map(raveled, mean_field(potential, unravel(origin), key_batches, key_draws, contiguous))
    # if the first normal is too wide for the model, its mean is worse than the start, which may be the end of a descent
    # itself; and the descent does not move from where the gradient is not finite
    found = with_gradient(energy(0))(mean) <= energies.min() + d
    mean, width = trees.where(found, (mean, jnp.exp(log_width)), (origin, jnp.ones_like(origin)))
    size = max((plate.size for plate in potential.plates.values()), default=1)
    descent = passes_of(potential, 1, DESCENT_ROWS)
    if layout is not None:
        used = min(parts, -(-MOST_ROWS * parts // size))
        law, curvature, seen = arrow_law(energy, Arrow.diagonal(mean, width, layout), used, key_noise)
        return Found(law, curvature, descent + seen / parts)
    few, more = -(-20 * d // PART), max(HESSIAN // PART, -(-50 * d // PART))
    if is_wide(potential.prototype):
        seen = min(parts, HESSIAN // PART)
        law, curvature = wide_law(energy, mean, width, seen, key_noise, dense_mass is True)
        products = 2 * 3 * VECTORS * ITERATIONS
        return Found(law, curvature, jnp.asarray(descent + products * seen * min(PART, size) / size, mean.dtype))
    half = noise.normal(key_noise, (DRAWS // 2, d), mean.dtype)
    draws = jnp.stack([half, -half], 1).reshape(-1, d)
    blocks = blocks_of(potential.prototype, dense_mass)
    law, curvature, seen = normal_law(energy, Coordinates(mean, jnp.diag(width)), draws, parts, few, more, blocks)
    curvature = jnp.ones_like(curvature) if blocks is None else jnp.maximum(curvature, 1)
    return Found(law, curvature, descent + min(PART, size) * seen / size)


def expected_passes(potential: Potential) -> float:
    """Rows that a search is likely to use, in passes over the data; hard posteriors need several times as many."""
    d = sum(site.size for site in potential.prototype.values())
    size = max((plate.size for plate in potential.plates.values()), default=1)
    _, parts = partition(potential.plates)
    descent = passes_of(potential, 1, DESCENT_ROWS)
    if is_wide(potential.prototype):
        return descent + 6 * VECTORS * ITERATIONS * min(parts, HESSIAN // PART) * min(PART, size) / size
    curved = d * min(parts, max(HESSIAN // PART, -(-50 * d // PART)))
    costs = parts + curved, *(parts + (2 + d) * draws for draws in (2 * PAIRS, DRAWS))
    return descent + sum(looks * cost for looks, cost in zip(LOOKS, costs)) * min(PART, size) / size


def partition(plates: Mapping[str, Plate], rows: int = PART) -> tuple[dict[str, Plate], int]:
    """Plates whose batches are parts of the data, with about so many rows each, and the number of parts."""
    if not plates:
        return {}, 1
    parts = max(1, *(plate.size // rows for plate in plates.values()))
    return {name: plate._replace(batch_size=max(1, plate.size // parts)) for name, plate in plates.items()}, parts
