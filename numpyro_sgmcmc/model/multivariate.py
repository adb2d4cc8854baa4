r"""
Partial centring of multivariate sites, as of the effects of groups with a level and a slope.

A site a = m + R e with a lower triangular R is a chain of conditional distributions: given the elements before it,
:math:`a_i` has the location :math:`m_i + \sum_{j < i} R_{ij} e_j` and the scale :math:`R_{ii}`. Each is
centred in part, as in :mod:`~numpyro_sgmcmc.model.centering`, by its own :math:`\lambda_i`. So the variable that is
sampled is

.. math:: \tilde a = \lambda m + T e, \qquad T_{ij} = \lambda_i R_{ij} \; (j < i), \qquad T_{ii} = R_{ii}^{\lambda_i},

.. math:: a = \tilde a + (1 - \lambda) m + (R - T) e, \qquad e = T^{-1} (\tilde a - \lambda m), \qquad
    \log |\partial a / \partial \tilde a| = \sum_i (1 - \lambda_i) \log R_{ii}.

With :math:`\lambda = 1` it is a, to the last bit, and with 0 it is e.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

WRITTEN_OUT = 8  # coordinates of a system that is solved without LAPACK, which is called once for each group


class Multivariate(NamedTuple):
    """A site a = loc + scale e; the methods are those of :class:`~numpyro_sgmcmc.model.centering.LocationScale`."""

    loc: Any  # shape (..., n)
    scale: Any  # R, lower triangular, shape (..., n, n)
    mask: Any = True  # which of the elements have a density
    axis: int = -1  # of the site along which the vectors are

    def transform(self, share: jax.Array) -> Transform:
        return _FromCentred(self.loc, self.scale, jnp.where(self.mask, share, 1))

    def scaled(self, factor: jax.Array) -> "Multivariate":
        return self._replace(scale=jnp.asarray(factor)[..., None] * self.scale)

    def share_of(self, curvature: jax.Array) -> jax.Array:
        r"""
        1 minus the variance of each :math:`e_i` if the data have this curvature k along a: the diagonal of
        :math:`(1 + R^T K R)^{-1}` with the diagonal matrix K of k.
        """
        roots = jnp.sqrt(jnp.moveaxis(curvature, self.axis, -1))[..., None] * self.scale
        precision = jnp.eye(roots.shape[-1]) + jnp.einsum("...ji,...jk->...ik", roots, roots)
        variances = jnp.diagonal(jnp.linalg.inv(precision), axis1=-2, axis2=-1)
        return jnp.moveaxis(1 - jnp.clip(variances, 0, 1), -1, self.axis)

    @property
    def is_triangular(self) -> jax.Array:
        """Whether R is lower triangular with a positive diagonal, as a matrix that a model computes may not be."""
        upper = jnp.abs(jnp.triu(self.scale, 1)).max((-2, -1))
        diagonal = jnp.diagonal(self.scale, axis1=-2, axis2=-1)
        return jnp.all((upper <= 1e-5 * jnp.abs(self.scale).max((-2, -1))) & (diagonal > 0).all(-1))


class _FromCentred(Transform):
    domain = constraints.real_vector  # pyright: ignore[reportAssignmentType]
    codomain = constraints.real_vector  # pyright: ignore[reportAssignmentType]

    def __init__(self, loc: jax.Array, scale: jax.Array, share: jax.Array):
        self.loc, self.scale, self.share = loc, scale, share

    @property
    def _diagonal(self) -> jax.Array:
        return jnp.diagonal(self.scale, axis1=-2, axis2=-1)

    @property
    def _mixed(self) -> jax.Array:
        return partly_whitened(self.scale, self._diagonal**self.share, self.share)

    def _difference(self, mixed: jax.Array, e: jax.Array) -> jax.Array:
        """a minus the variable that is sampled."""
        return (1 - self.share) * self.loc + jnp.einsum("...ij,...j->...i", self.scale - mixed, e)

    def __call__(self, x: jax.Array) -> jax.Array:
        mixed = self._mixed
        return x + self._difference(mixed, solved(mixed, x - self.share * self.loc))

    def _inverse(self, y: jax.Array) -> jax.Array:
        return y - self._difference(self._mixed, solved(self.scale, y - self.loc))

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        log_det = jnp.sum((1 - self.share) * jnp.log(self._diagonal), -1)
        return jnp.broadcast_to(log_det, jnp.shape(x)[:-1])

    def tree_flatten(self):
        return (self.loc, self.scale, self.share), (("loc", "scale", "share"), {})


def partly_whitened(scale: jax.Array, diagonal: jax.Array, share: jax.Array) -> jax.Array:
    """T with this diagonal."""
    return share[..., None] * jnp.tril(scale, -1) + diagonal[..., None] * jnp.eye(scale.shape[-1])


def solved(matrix: jax.Array, y: jax.Array) -> jax.Array:
    """The solution of a lower triangular system, for matrices and vectors with any number of axes in front."""
    n = y.shape[-1]
    if n > WRITTEN_OUT:
        matrix = jnp.broadcast_to(matrix, (*y.shape, n))
        return solve_triangular(matrix, y[..., None], lower=True)[..., 0]
    e: list[jax.Array] = []
    for i in range(n):
        rest = sum((matrix[..., i, j] * e[j] for j in range(i)), start=jnp.zeros(()))
        e.append((y[..., i] - rest) / matrix[..., i, i])
    return jnp.stack(e, -1)
