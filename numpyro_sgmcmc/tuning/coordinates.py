r"""
Coordinates x in which a posterior has about unit covariance. The unconstrained latents z, raveled to one vector of d
numbers, are an affine function of x,

.. math:: z = c + L x, \qquad \nabla_x U = L^T \nabla_z U, \qquad L L^T \approx \mathrm{Cov}(z).

A dynamics with unit mass in x is one with mass :math:`(L L^T)^{-1}` in z. Estimators use z, so their tables and centres
do not depend on L. A step costs two additional products with L for each gradient.
"""

from collections.abc import Callable, Mapping, Sequence
import itertools
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Evaluation, Sites
from numpyro_sgmcmc.utils import trees

DENSE = 1000  # maximal number of coordinates for a full matrix L: the Hessian of more would take minutes


class Identity(NamedTuple):
    """The coordinates of a run whose step size is given: x is z, and nothing is computed. Methods as in Coordinates."""

    def times(self, x: jax.Array) -> jax.Array:
        return x

    pull_back = variances = times


class Coordinates(NamedTuple):
    """Coordinates with a full matrix L."""

    center: jax.Array  # c, shape (d,)
    scale: jax.Array  # L, shape (d, d)

    turns = slice(None)  # the coordinates of x whose axes may be turned; None: none
    is_rescaled = True  # whether the draws of the warm-up rescale L
    layout = None  # the groups of a hierarchy

    def times(self, x: jax.Array) -> jax.Array:
        """L x."""
        return product(self.scale, x)

    def to_z(self, x: jax.Array) -> jax.Array:
        """c + L x, raveled."""
        return self.center + self.times(x)

    def to_x(self, z: jax.Array) -> jax.Array:
        """The inverse of :meth:`to_z`."""
        return jnp.linalg.solve(self.scale, z - self.center)

    def pull_back(self, gradient: jax.Array) -> jax.Array:
        """L^T g, the gradient in x."""
        return product(self.scale.T, gradient)

    def variances(self, x: jax.Array) -> jax.Array:
        """The variances of the coordinates of z, from those of x, which are independent."""
        return product(self.scale**2, x)

    def matrix(self) -> jax.Array:
        """L."""
        return self.scale

    def turned(self, axes: jax.Array) -> "Coordinates":
        """The coordinates whose x is turned to other axes."""
        return self._replace(scale=product(self.scale, axes))

    def log_det(self) -> jax.Array:
        """log |det L|."""
        return jnp.linalg.slogdet(self.scale)[1]

    def after(self, other: "Coordinates") -> "Coordinates":
        """The coordinates whose L is the product of this one and another one."""
        return self.turned(other.scale)

    def narrowed(self, factor: float) -> "Coordinates":
        """The coordinates with a smaller L."""
        return self._replace(scale=factor * self.scale)

    def directions(self, rng_key: jax.Array) -> jax.Array:
        """The x whose products with a Hessian determine :meth:`whitening`: all columns."""
        del rng_key
        return jnp.eye(len(self.center), dtype=self.center.dtype)

    def hessian(self, products: jax.Array, directions: jax.Array) -> jax.Array:
        """The Hessian in x, from its products with the :meth:`directions`."""
        del directions
        return products

    def whitening(
        self, hessian: jax.Array, length: jax.Array, most: float, blocks: np.ndarray | None
    ) -> tuple["Coordinates", jax.Array]:
        r"""
        The A with :math:`A^T ((1 - \rho) I + \rho H) A = I`, and the eigenvalues of H.

        :param hessian: H, see :meth:`hessian`.
        :param length: :math:`\rho`.
        :param most: bound of the eigenvalues that are used, and of their inverse.
        :param blocks: blocks of L, see :func:`blocks_of`.
        """
        values, vectors = axes_of(hessian, blocks)
        sizes = 1 - length + length * jnp.clip(values, 1 / most, most)
        return self._replace(scale=product(vectors / jnp.sqrt(sizes), vectors.T)), values


class LowRank(NamedTuple):
    r"""
    Coordinates for large d: :math:`L = \mathrm{diag}(w) (I + V \mathrm{diag}(f - 1) V^T)`, with k orthonormal columns V
    along which x is scaled by f. All methods but :meth:`matrix` cost O(d k).
    """

    center: jax.Array  # c, shape (d,)
    width: jax.Array  # w, shape (d,)
    vectors: jax.Array  # V, shape (d, k)
    factors: jax.Array  # f, shape (k,)

    turns = layout = None
    is_rescaled = False

    def stretched(self, x: jax.Array, factors: jax.Array) -> jax.Array:
        """(I + V diag(factors - 1) V^T) x, for each column if x is a matrix."""
        along = product(self.vectors.T, x)
        return x + product(self.vectors, (along.T * (factors - 1)).T)

    def times(self, x: jax.Array) -> jax.Array:
        return self.width * self.stretched(x, self.factors)

    def to_z(self, x: jax.Array) -> jax.Array:
        return self.center + self.times(x)

    def to_x(self, z: jax.Array) -> jax.Array:
        return self.stretched((z - self.center) / self.width, 1 / self.factors)

    def pull_back(self, gradient: jax.Array) -> jax.Array:
        return self.stretched(self.width * gradient, self.factors)

    def variances(self, x: jax.Array) -> jax.Array:
        beyond = self.vectors * (self.factors - 1)  # L is w (I + beyond V^T)
        common = product(self.vectors.T * x, self.vectors)
        own = x * (1 + 2 * (beyond * self.vectors).sum(1))
        return self.width**2 * (own + (product(beyond, common) * beyond).sum(1))

    def matrix(self) -> jax.Array:
        return self.width[:, None] * self.stretched(jnp.eye(len(self.width), dtype=self.width.dtype), self.factors)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of matrices in full precision, because L has large and small entries."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def is_high_dimensional(prototype: Mapping[str, jax.ShapeDtypeStruct]) -> bool:
    """Whether there are too many coordinates for a full matrix."""
    return trees.size(prototype) > DENSE


def blocks_of(prototype: Mapping[str, jax.ShapeDtypeStruct], dense_mass: Any) -> np.ndarray | None:
    """
    The number of the block of each coordinate of raveled z, or None if there is one block.

    :param dense_mass: as for :class:`~numpyro.infer.NUTS`: True, False, or a list of tuples of sites. Each coordinate
        of other sites is its own block.
    :raises ValueError: for names that are not latent sites or are in two tuples, or tuples with too many coordinates
        for a full matrix.
    """
    if dense_mass is True or (is_high_dimensional(prototype) and not dense_mass):
        return None
    if is_high_dimensional(prototype):
        raise ValueError(
            f"dense_mass={dense_mass!r} needs a matrix over all coordinates, but the model has more than {DENSE}. Use "
            "dense_mass=True, a diagonal plus a few directions, or dense_mass=False, a diagonal."
        )
    tuples: Sequence[Sequence[str]] = dense_mass or ()
    names = [name for block in tuples for name in block]
    wrong = [name for name in names if name not in prototype or names.count(name) > 1]
    if wrong:
        raise ValueError(
            f"dense_mass names {wrong[0]!r}, which is {'twice in it' if wrong[0] in prototype else 'no latent site'}; "
            f"each of {sorted(prototype)} may be in one tuple."
        )
    of_site = {name: number for number, block in enumerate(tuples) for name in block}
    singles = itertools.count(len(of_site))
    return np.array(
        [
            of_site[name] if name in of_site else next(singles)
            for name in sorted(prototype)  # the order of ravel_pytree
            for _ in range(prototype[name].size)
        ]
    )


def axes_of(matrix: jax.Array, blocks: np.ndarray | None = None) -> tuple[jax.Array, jax.Array]:
    """
    Eigenvalues and eigenvectors of the symmetric part; those of the identity if it is not finite.

    :param blocks: see :func:`blocks_of`. Entries that couple two blocks are set to 0, and each eigenvector has the
        position of a coordinate of its block.
    """
    matrix = (matrix + matrix.T) / 2
    same = True if blocks is None else blocks[:, None] == blocks
    matrix = jnp.where(same, matrix, 0)
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(matrix).all(), matrix, identity))
    if blocks is None:
        return values, vectors
    belongs_to = jnp.asarray(blocks)[jnp.argmax(jnp.abs(vectors), 0)]
    order = jnp.zeros(len(blocks), jnp.int32).at[np.argsort(blocks, kind="stable")].set(jnp.argsort(belongs_to))
    return values[order], jnp.where(same, vectors[:, order], 0)


def unraveler(prototype: Mapping[str, jax.ShapeDtypeStruct]) -> Callable[[jax.Array], Sites]:
    """One vector -> values by site, in the order of ``ravel_pytree``."""
    return ravel_pytree({name: jnp.zeros(s.shape, s.dtype) for name, s in prototype.items()})[1]


def raveled(tree: Any) -> jax.Array:
    """Values by site -> one vector."""
    return ravel_pytree(tree)[0]


def sites_at(coordinates: Any, x: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> Sites:
    """z at a position x."""
    return x if isinstance(coordinates, Identity) else unraveler(prototype)(coordinates.to_z(x))


def gradient_in_x(
    evaluate: Callable[[Sites], Evaluation], coordinates: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]
) -> Callable[[Any], Evaluation]:
    """An estimate as a function of x, with its gradient in x."""
    if isinstance(coordinates, Identity):
        return evaluate

    def evaluate_in_x(x):
        evaluation = evaluate(sites_at(coordinates, x, prototype))
        return evaluation._replace(gradient=coordinates.pull_back(raveled(evaluation.gradient)))

    return evaluate_in_x
