r"""
The normal approximation :math:`N(c, L L^T)` for many coordinates, without a matrix of d x d numbers.

The mean-field normal (:mod:`~numpyro_sgmcmc.tuning.start`) gives c and the widths w. With :math:`W = \mathrm{diag}(w)`
and the Hessian H at c, the matrix :math:`A = W H W` has a diagonal near 1. Its extreme eigenvalues are the remaining
differences of scale, which the widths cannot describe:

.. math:: A v_i = \lambda_i v_i, \qquad
    L = W \bigl(I + V\, \mathrm{diag}(\lambda_i^{-1/2} - 1)\, V^T\bigr).

The largest and the smallest eigenvalues are found by LOBPCG (Knyazev 2001) from products of H with vectors.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.sparse.linalg import lobpcg_standard
import jax.numpy as jnp

from numpyro_sgmcmc.tuning.coordinates import LowRank
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.curvature import gradient_and_product

VECTORS = 8  # eigenvectors at each end of the spectrum
ITERATIONS = 20
ROUND = 1.6  # eigenvalues within this factor of 1 are not corrected
FARTHEST = 100.0  # small eigenvalues are clipped at 1 / FARTHEST


def wide_law(
    energy: Callable[[Any], Callable[[jax.Array], jax.Array]],
    center: jax.Array,
    width: jax.Array,
    parts: int,
    rng_key: jax.Array,
    low_rank: bool = True,
) -> tuple[LowRank, jax.Array]:
    """
    :param energy: number of a part of the rows -> (raveled z -> estimate of U from that part).
    :param center, width: c and w.
    :param int parts: number of parts of the rows from which H is estimated.
    :param low_rank: whether to rescale along eigenvectors; False: L is diagonal.
    :return: coordinates, and a bound on the largest curvature in x.
    """
    d = center.size

    def curvature(vectors):
        """A times some columns."""

        def of_part(k, total):
            gradient = jax.grad(energy(k))
            times = jax.vmap(lambda v: gradient_and_product(gradient, center, v)[1], 1, 1)
            return total + times(width[:, None] * vectors)

        return width[:, None] * lax.fori_loop(0, parts, of_part, jnp.zeros_like(vectors)) / parts

    first, second = noise.normal(rng_key, (2, d, VECTORS), center.dtype)
    largest, stiff, _ = lobpcg_standard(curvature, first, ITERATIONS)
    taken = (largest > ROUND) & low_rank
    remaining = jnp.maximum(jnp.where(taken, largest.min(), largest).max(), 1)
    law = LowRank(center, width, stiff, _factors(largest, taken))
    if not low_rank:
        return LowRank(center, width, stiff[:, :0], largest[:0]), remaining

    def softness(vectors):
        """A bound minus the rest of A, times some columns: so the smallest eigenvalues of A become the largest."""
        around = lambda a: law.stretched(a, law.factors)  # noqa: E731
        return 1.1 * remaining * vectors - around(curvature(around(vectors)))

    shifted, soft, _ = lobpcg_standard(softness, second, ITERATIONS)
    smallest = 1.1 * remaining - shifted
    factors = jnp.concatenate([law.factors, _factors(smallest, smallest < 1 / ROUND)])
    vectors, _ = jnp.linalg.qr(jnp.concatenate([stiff, soft], 1))
    return LowRank(center, width, vectors, factors), remaining


def _factors(values: jax.Array, taken: jax.Array) -> jax.Array:
    return jnp.where(taken, jnp.clip(values, 1 / FARTHEST, None) ** -0.5, 1)
