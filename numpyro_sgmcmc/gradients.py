"""Gradient estimators: rows -> unbiased gradient of U. Here the plain one, and the gradient over all rows."""

from collections.abc import Mapping
from dataclasses import dataclass
import itertools
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.base import Evaluation, GradientEstimator, Plate, Potential, Rows, Sites

CHUNK = 4096  # rows, or combinations of rows of several plates, that a full pass sees at once


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    r"""
    The plain estimator
    :math:`\nabla\tilde U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_{i \in S}\nabla\log p(x_i \mid z)`.

    Variance O(N^2 / n) per coordinate; no state. It is the default of the kernels.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Minibatch, SGLD
        >>> kernel = SGLD(lambda: None, step_size=1e-4, gradient=Minibatch())
    """

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[()]:
        del potential, z, rng_key
        return ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        del gradient_state
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        return Evaluation(energy, gradient, ())


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
