r"""
Metrics that are functions of the position: preconditioners of SGLD and masses of SGHMC that depend on z.

They are given as :math:`G(z)^{-1}`, the inverse of the Riemannian metric: a chain makes large moves where it is large.
A metric of the model is a function of its energy or of its rows' gradients. It is computed on rows that are chosen
once, so that it is a function of z alone. If it were computed on the rows of a step, it would depend on the gradient
noise, and the recipe would not leave the posterior invariant.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
import numbers
from typing import Any

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics.matrices import Layout, Matrix
from numpyro_sgmcmc.rows.schemes import WithoutReplacement
from numpyro_sgmcmc.types import Phase, Potential, Rows
from numpyro_sgmcmc.utils.validation import check_positive, checked_count


def fixed_rows(potential: Potential, count: int) -> Rows:
    """``count`` distinct rows of each plate, the same in every call."""
    rows = {}
    for p, (name, plate) in enumerate(potential.plates.items()):
        key = random.fold_in(random.key(0), p)
        rows[name] = WithoutReplacement()(key, jnp.uint32(0), plate.size, min(count, plate.size))
    return rows


@dataclass(frozen=True)
class Fisher:
    r"""
    The diagonal of the Fisher information, estimated from the gradients of rows, plus the curvature of a prior,

    .. math:: G_{jj}(z) = \lambda + \frac{N}{m} \sum_{i \in S} \left(\frac{\partial U_i}{\partial z_j}(z)\right)^2,

    where U_i is the energy of row i and S is a fixed set of m rows. A step costs about five additional gradients of m
    rows. It needs exactly one minibatched plate.

    :param int rows: m.
    :param float prior: :math:`\lambda > 0`, the curvature of the prior; it is also a lower bound of G.

    **References:** *Riemann Manifold Langevin and Hamiltonian Monte Carlo Methods*, M. Girolami, B. Calderhead (2011),
    section 4.2
    """

    rows: int = 50
    prior: float = 1.0

    def __post_init__(self):
        checked_count("Fisher(rows)", self.rows)
        check_positive(self, prior=self.prior)

    def bind(self, potential: Potential) -> Callable[[Any], Any]:
        """
        z -> the diagonal of G^-1, a dict like z.

        :raises ValueError: if there is not exactly one minibatched plate.
        """
        if len(potential.plates) != 1:
            raise ValueError(
                f"metric=Fisher() needs exactly one minibatched plate, for the gradients of its rows, not "
                f"{len(potential.plates)}. Give a batch_size for one plate, or your own metric."
            )
        rows = fixed_rows(potential, self.rows)
        ((name, plate),) = potential.plates.items()
        scale = plate.size / rows[name].shape[0]

        def metric(z):
            energy = lambda z, row: potential.per_row(z, {name: row[None]})[0]  # noqa: E731
            gradients = jax.vmap(jax.grad(energy), (None, 0))(z, rows[name])
            return jax.tree.map(lambda g: 1 / (self.prior + scale * (g * g).sum(0)), gradients)

        return metric


@dataclass(frozen=True)
class Energy:
    r"""
    A metric that moves faster where the density is small, :math:`G(z)^{-1} = a \sqrt{|U(z) + c|}` times the identity.

    With a minibatched plate U is estimated from a fixed set of rows. Choose c so that U + c is positive: where it
    is 0, the metric has a kink and the chain no noise.

    :param float scale: a > 0.
    :param float offset: c.
    :param int rows: number of rows in this set.

    **References:** *A Complete Recipe for Stochastic Gradient MCMC*, Y.-A. Ma, T. Chen, E. B. Fox (2015), section 4.1,
    where a = 1.5 and c = 0.5
    """

    scale: float = 1.5
    offset: float = 0.5
    rows: int = 50

    def __post_init__(self):
        check_positive(self, scale=self.scale)
        checked_count("Energy(rows)", self.rows)
        if not (isinstance(self.offset, numbers.Real) and math.isfinite(self.offset)):
            raise ValueError(f"Energy(offset={self.offset!r}): offset must be a finite number.")

    def bind(self, potential: Potential) -> Callable[[Any], Any]:
        """z -> G^-1, a scalar."""
        rows = fixed_rows(potential, self.rows)
        return lambda z: self.scale * jnp.sqrt(jnp.abs(potential.estimate(z, rows) + self.offset))


@dataclass(frozen=True, eq=False)
class OfPosition:
    """
    The part of a recipe that is defined by a metric, a function of the phase.

    :param metric: z -> G^-1 as a scalar, a diagonal or a matrix over the raveled z, or a dict of these by site; or an
        object whose ``bind(potential)`` is such a function.
    :param str part: ``"position"``, G^-1 in the rows of z; ``"friction"``, a multiple of it in the rows of the
        momentum; ``"coupling"``, its root R with R R' = G^-1, between both.
    :param float factor: factor of the friction.
    """

    metric: Any
    part: str = "position"
    factor: float = 1.0

    def bind(self, potential: Potential) -> "OfPosition":
        """The part for a potential."""
        if hasattr(self.metric, "bind"):
            return OfPosition(self.metric.bind(potential), self.part, self.factor)
        return self

    def __call__(self, phase: Phase) -> Any:
        value = plain(self.metric(phase.z), phase)
        if self.part == "position":
            return value
        if self.part == "friction":
            return {"momentum": self.factor * value}
        root = jnp.sqrt(value) if value.ndim < 2 else jnp.linalg.cholesky(value, symmetrize_input=False)
        return {("momentum", "z"): root.T}


def plain(value: Any, phase: Phase) -> jax.Array:
    """A metric as a scalar, a diagonal or a matrix over the raveled z. Raises a ValueError if it is none of these."""
    layout = Layout(Phase(phase.z))
    matrix = Matrix("metric", value, layout)
    if matrix.map is not None:
        raise ValueError("metric returns a LinearMap. Return a diagonal or a matrix, or use Recipe(D=...) as dynamics.")
    if not isinstance(value, Mapping):
        return matrix.blocks[0].value
    return matrix.as_diagonal() if matrix.diagonal else matrix.dense()
