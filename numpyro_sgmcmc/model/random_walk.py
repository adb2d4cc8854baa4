r"""
Partial centring of a ``GaussianRandomWalk``, in O(n) for n steps.

A walk :math:`a_i = a_{i-1} + s e_i` is a chain of conditional distributions, as in
:mod:`~numpyro_sgmcmc.model.multivariate`: :math:`a_i` has the location :math:`a_{i-1}` and the scale s. So the variable
that is sampled is

.. math:: \tilde a_i = \lambda_i a_{i-1} + s^{\lambda_i} e_i, \qquad
    a_i = (1 - \lambda_i s^{1 - \lambda_i}) a_{i-1} + s^{1 - \lambda_i} \tilde a_i, \qquad
    \log |\partial a / \partial \tilde a| = \sum_i (1 - \lambda_i) \log s.

With :math:`\lambda = 1` it is a, and with 0 it is e.
"""

from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform


class RandomWalk(NamedTuple):
    """A walk with steps scale e; the methods are those of :class:`~numpyro_sgmcmc.model.centering.LocationScale`."""

    scale: jax.Array  # shape (..., 1) or (..., n)
    loc: Any = 0.0  # of the first element
    mask: Any = True  # which elements have a density

    def transform(self, share: jax.Array) -> Transform:
        return _FromCentred(self.scale, jnp.where(self.mask, share, 1))

    def scaled(self, factor: jax.Array) -> "RandomWalk":
        """The walk times a positive factor, if it is the same for all elements."""
        return self._replace(scale=factor * self.scale)

    def share_of(self, curvature: jax.Array) -> jax.Array:
        r"""
        1 minus the variance of each :math:`e_i` if the data have this curvature k along a:
        :math:`\lambda_i = s^2 / (s^2 + v_{i-1} + 1 / g_i)`. Here v is the variance of :math:`a_{i-1}` given the data
        up to it, and g the precision of :math:`a_i` given the data from it on, by

        .. math:: v_i^{-1} = k_i + (v_{i-1} + s^2)^{-1}, \qquad g_i = k_i + g_{i+1} / (1 + s^2 g_{i+1}).
        """
        squares = jnp.moveaxis(jnp.broadcast_to(self.scale**2, curvature.shape), -1, 0)
        k = jnp.moveaxis(curvature, -1, 0)

        def before(v, step):
            k, square = step
            return (v + square) / (1 + k * (v + square)), v

        def after(passed, step):
            k, square = step
            g = k + passed
            return g / (1 + square * g), g

        start = jnp.zeros_like(k[0])
        variances = lax.scan(before, start, (k, squares))[1]
        precisions = lax.scan(after, start, (k, squares), reverse=True)[1]
        return jnp.moveaxis(squares * precisions / (1 + (squares + variances) * precisions), 0, -1)


class _FromCentred(Transform):
    domain = constraints.real_vector  # pyright: ignore[reportAssignmentType]
    codomain = constraints.real_vector  # pyright: ignore[reportAssignmentType]

    def __init__(self, scale: jax.Array, share: jax.Array):
        self.scale, self.share = scale, share

    @property
    def _factor(self) -> jax.Array:
        return self.scale ** (1 - self.share)

    def __call__(self, x: jax.Array) -> jax.Array:
        factor = jnp.broadcast_to(self._factor, x.shape)
        along = (1 - self.share * factor).at[..., 0].set(0)
        ones, zeros = jnp.ones_like(x), jnp.zeros_like(x)
        return lax.linalg.tridiagonal_solve(-along, ones, zeros, (factor * x)[..., None])[..., 0]

    def _inverse(self, y: jax.Array) -> jax.Array:
        before = jnp.concatenate([jnp.zeros_like(y[..., :1]), y[..., :-1]], -1)
        return self.share * before + (y - before) / self._factor

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        return jnp.broadcast_to((1 - self.share) * jnp.log(self.scale), jnp.shape(x)).sum(-1)

    def tree_flatten(self):
        return (self.scale, self.share), (("scale", "share"), {})
