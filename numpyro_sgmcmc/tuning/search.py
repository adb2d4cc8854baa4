r"""
Where the posterior is, and how wide: a normal law :math:`N(c, L L^T)` in unconstrained space.

Two candidates are compared by the evidence lower bound of their law, on the same rows and the same draws:

1. the mean of a mean-field law (:mod:`~numpyro_sgmcmc.tuning.start`), whitened by the curvature there;
2. the mode that Newton's method finds from it (:mod:`~numpyro_sgmcmc.tuning.newton`), whitened by the curvature there.

Both are needed: the mode of a hierarchy is the pit where its scale is zero; a mean-field law does not get along narrow
valleys. What neither has right, the draws of the warm-up show (:mod:`~numpyro_sgmcmc.tuning.pilot`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.model.coordinates import Coordinates, raveled, unraveler
from numpyro_sgmcmc.rows.schemes import Reshuffled, next_rows
from numpyro_sgmcmc.tuning.newton import whitened_newton
from numpyro_sgmcmc.tuning.start import DESCENT_ROWS, STEPS, descend
from numpyro_sgmcmc.types import Plate, Potential, RowsState, Sites
from numpyro_sgmcmc.utils import noise

PART = 1000  # rows of a part of the data, at least 20 for each coordinate at first
HESSIAN = 5000  # rows that the curvature is that of, at least 50 for each coordinate
DRAWS = 32  # of each law, for its bound
BOUND_ROWS = 20_000  # that the bound is taken from, at most


class Found(NamedTuple):
    """
    - **coordinates** - c and L.
    - **passes** - rows looked at, in units of the data.
    """

    coordinates: Coordinates
    passes: jax.Array


def search(potential: Potential, start: Sites, rng_key: jax.Array) -> Found:
    """The better of the two candidates, from a start of finite energy."""
    key_rows, key_model, key_descent, key_noise = random.split(rng_key, 4)
    unravel = unraveler(potential.prototype)
    d = sum(site.size for site in potential.prototype.values())
    plates, parts = partition(potential.plates)

    def energy(z, k):
        rows, _ = next_rows(Reshuffled(), RowsState(key_rows, jnp.asarray(k, jnp.uint32)), plates)
        return potential.estimate(unravel(z), rows, random.fold_in(key_model, k))

    origin, mean = raveled(start), raveled(descend(potential, start, *random.split(key_descent)))
    # a law that is wider than the model bears does not get away from where it starts
    descended = energy(mean, 0) <= energy(origin, 0)
    mean = jnp.where(descended, mean, origin)
    first, last, seen = whitened_newton(
        energy, mean, parts, -(-20 * d // PART), max(HESSIAN // PART, -(-50 * d // PART))
    )
    candidates = jax.tree.map(lambda *pair: jnp.stack(pair), first, last)
    draws = noise.normal(key_noise, (DRAWS, d), mean.dtype)
    few = min(parts, BOUND_ROWS // PART)
    bounds = lax.map(lambda law: bound(energy, law, draws, jnp.arange(few)), candidates)
    best = jnp.argmax(jnp.where(jnp.isfinite(bounds), bounds, -jnp.inf))
    best = jnp.where(jnp.isfinite(bounds).any(), best, 1)
    chosen = jax.tree.map(lambda x: x[best], candidates)
    size = max((plate.size for plate in potential.plates.values()), default=1)
    rows = min(PART, size)
    return Found(chosen, (STEPS * min(DESCENT_ROWS, size) + rows * (seen + 2 * DRAWS * few)) / size)


def partition(plates: Mapping[str, Plate]) -> tuple[dict[str, Plate], int]:
    """Plates whose batches are parts of the data, and how many make a whole."""
    if not plates:
        return {}, 1
    parts = max(1, *(plate.size // PART for plate in plates.values()))
    return {name: plate._replace(batch_size=max(1, plate.size // parts)) for name, plate in plates.items()}, parts


def bound(energy, law: Coordinates, draws: jax.Array, parts: jax.Array) -> jax.Array:
    """The evidence lower bound of a normal law, but for what all have in common."""

    def of_draw(x):
        z = law.to_z(x)
        return lax.map(lambda k: energy(z, k), parts).mean()

    log_det = jnp.linalg.slogdet(law.scale)[1] if law.dense else jnp.log(jnp.abs(law.scale)).sum()
    return log_det - lax.map(of_draw, draws).mean()
