r"""
Coordinates in which a posterior is round: affine in the unconstrained latents, raveled to one vector of d numbers,

.. math:: z = c + L x, \qquad \nabla_x U = L^T \nabla_z U, \qquad L L^T \approx \mathrm{Cov}(z).

A dynamics of unit mass in x is one of mass :math:`(L L^T)^{-1}` in z. Estimators stay in z: their tables and centres
are the same whatever L is. A step costs two products with L more for each gradient.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp

from numpyro_sgmcmc.types import Evaluation, Sites


class Coordinates(NamedTuple):
    """
    - **center** - c, shape ``(d,)``.
    - **scale** - L: a matrix, shape ``(d, d)``, or its diagonal, shape ``(d,)``.
    """

    center: jax.Array
    scale: jax.Array

    @property
    def dense(self) -> bool:
        """Whether L is a matrix."""
        return self.scale.ndim == 2

    def times(self, x: jax.Array) -> jax.Array:
        """L x."""
        return product(self.scale, x) if self.dense else self.scale * x

    def to_z(self, x: jax.Array) -> jax.Array:
        """c + L x, raveled."""
        return self.center + self.times(x)

    def to_x(self, z: jax.Array) -> jax.Array:
        """The inverse of :meth:`to_z`."""
        away = z - self.center
        return jnp.linalg.solve(self.scale, away) if self.dense else away / self.scale

    def pull_back(self, gradient: jax.Array) -> jax.Array:
        """L^T g, the gradient in x."""
        return product(self.scale.T, gradient) if self.dense else self.scale * gradient


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of matrices, in full precision: L has large and small numbers."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def axes_of(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues and eigenvectors of the symmetric part; those of the identity where it is not finite."""
    matrix = (matrix + matrix.T) / 2
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(matrix).all(), matrix, identity))
    return values, vectors


def unraveler(prototype: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[jax.Array], Sites]:
    """One vector -> values by site, in the order of ``ravel_pytree``."""
    return ravel_pytree({name: jnp.zeros(s.shape, s.dtype) for name, s in prototype.items()})[1]


def raveled(tree: Any) -> jax.Array:
    """Values by site -> one vector."""
    return ravel_pytree(tree)[0]


def in_x(
    evaluate: Callable[[Sites], Evaluation], coordinates: Coordinates, unravel: Callable[[jax.Array], Sites]
) -> Callable[[jax.Array], Evaluation]:
    """A gradient estimate as a function of x, its gradient that in x."""

    def at(x):
        evaluation = evaluate(unravel(coordinates.to_z(x)))
        return evaluation._replace(gradient=coordinates.pull_back(raveled(evaluation.gradient)))

    return at
