r"""
A constant skew-symmetric matrix Q, which makes a dynamics irreversible and does not change its stationary distribution
(Ma, Chen & Fox 2015).

- Overdamped, :math:`dz = -(M^{-1} + Q) \nabla U\, dt + \sqrt{2 M^{-1}}\, dW`: Q adds a flow along the level sets of the
  density. Convergence is not slower than without Q (Lelièvre, Nier & Pavliotis 2013).
- Underdamped, :math:`dp = \dots - Q M^{-1} p\, dt`: as in a magnetic field (Tripuraneni et al. 2017). Its flow rotates
  the momentum, :math:`p \leftarrow \exp(-h Q M^{-1})\, p`, and is exact for every h:

.. math:: Q = -i\, W \Theta W^H, \qquad \exp(-h m Q) = W e^{i h m \Theta} W^H

for :math:`M^{-1} = m`, where the columns of W are the eigenvectors of the Hermitian matrix i Q, which are computed
once.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.validation import checked_inverse_mass


class Skew:
    """
    The matrix Q over raveled z.

    :param matrix: shape ``(d, d)``.
    :raises ValueError: if it is not square, finite and skew-symmetric.
    """

    def __init__(self, matrix: Any):
        Q = np.asarray(matrix, float)
        if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
            raise ValueError(f"skew= has shape {Q.shape}; it must be a matrix of shape (d, d) over the raveled z.")
        if not np.isfinite(Q).all():
            raise ValueError("skew= must contain finite numbers.")
        apart = np.abs(Q + Q.T)
        i, j = np.unravel_index(apart.argmax(), Q.shape) if Q.size else (0, 0)
        if Q.size and apart[i, j] > 1e-6 * np.abs(Q).max():
            raise ValueError(
                f"skew= is not skew-symmetric: skew[{i}, {j}] = {Q[i, j]:g}, but skew[{j}, {i}] = {Q[j, i]:g}."
            )
        self.matrix = (Q - Q.T) / 2
        self._angles, self._vectors = np.linalg.eigh(1j * self.matrix)

    def times(self, gradient: Any) -> Any:
        """Q g, like ``gradient``."""
        flat, unravel = ravel_pytree(gradient)
        return unravel(jnp.asarray(self.matrix, flat.dtype) @ flat)

    def rotated(self, momentum: Any, angle: jax.Array) -> Any:
        """exp(-angle Q) p, like ``momentum``."""
        flat, unravel = ravel_pytree(momentum)
        vectors = jnp.asarray(self._vectors, jnp.result_type(flat.dtype, jnp.complex64))
        phases = jnp.exp(1j * jnp.asarray(self._angles, flat.dtype) * angle)
        return unravel((vectors @ (phases * (vectors.conj().T @ flat))).real)

    def check(self, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        """Raises a ValueError if the model has another number of coordinates."""
        d = trees.size(prototype)
        if len(self.matrix) != d:
            raise ValueError(
                f"skew= has shape {self.matrix.shape}, but must have ({d}, {d}): the model has {d} coordinates, those "
                f"of {sorted(prototype)} in this order."
            )


def checked_mass(inverse_mass_matrix: Any, skew: Any, step_size: Any) -> tuple[Any, Skew | None]:
    """These arguments of a kernel. Raises a ValueError if one is wrong, or the others do not allow a ``skew``."""
    inverse_mass = checked_inverse_mass(inverse_mass_matrix)
    if skew is None:
        return inverse_mass, None
    if step_size is None:
        raise ValueError(
            "skew= is a matrix over z, but without a step_size the warm-up chooses other coordinates. Give a "
            "step_size, or no skew."
        )
    if isinstance(inverse_mass, Mapping):
        raise ValueError(
            "skew= needs the same mass for all coordinates. Give inverse_mass_matrix as a number, or no skew."
        )
    return inverse_mass, Skew(skew)
