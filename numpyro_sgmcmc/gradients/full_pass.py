"""The gradient over all rows, in chunks."""

from collections.abc import Mapping
import itertools
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.types import Plate, Potential, Sites

CHUNK = 4096  # rows, or combinations of rows of several plates, that a full pass sees at once


def full_gradient(potential: Potential, z: Sites, rng_key: jax.Array) -> Sites:
    """
    The gradient of U over all rows, in chunks: O(chunk) memory. A model with keys of its own gets one for each chunk.
    """
    return over_all_rows(potential.plates, jax.grad(potential.estimate), z, rng_key)


def over_all_rows(plates: Mapping[str, Plate], fn: Any, z: Sites, rng_key: jax.Array) -> Sites:
    """
    The mean of an unbiased estimate ``fn(z, rows, rng_key)`` over all chunks of all plates, weighted by their sizes:
    exact, since each site is scaled by N/n for each plate it stands in.
    """
    length = max(1, int(CHUNK ** (1 / max(1, len(plates)))))
    parts = [
        [(name, plate.size, first, n, count) for first, n, count in _parts(plate.size, length)]
        for name, plate in plates.items()
    ]
    total = jax.tree.map(jnp.zeros_like, z)
    for p, product in enumerate(itertools.product(*parts)):
        key = random.fold_in(rng_key, p)

        def add(k, total, product=product, key=key):
            rows, weight, digit = {}, 1.0, k
            for name, size, first, n, count in product:
                rows[name] = first + (digit % count) * n + jnp.arange(n, dtype=jnp.int32)
                weight, digit = weight * n / size, digit // count
            return jax.tree.map(lambda t, x: t + weight * x, total, fn(z, rows, random.fold_in(key, k)))

        times = 1
        for *_, count in product:
            times *= count
        total = add(0, total) if times == 1 else lax.fori_loop(0, times, add, total)
    return total


def _parts(size: int, length: int) -> list[tuple[int, int, int]]:
    """First row, length and number of the equal chunks of a plate, then of the rest."""
    count, rest = divmod(size, length)
    parts = [(0, length, count), (count * length, rest, 1)]
    return [part for part in parts if part[1] and part[2]]
