r"""
The linear predictor :math:`\eta` of a model whose rows depend on the latents through it alone,

.. math:: u_i(z) = \phi_i(\eta_i(z)), \qquad \eta_i(z) = A_i z + b_i, \qquad \nabla u_i(z) = A_i^T s_i,
          \qquad s_i = \phi_i'(\eta_i),

in three ways: the value of a deterministic site, for which the model is run once more with a value of our own in its
place; a function of the user's, where the slope is a derivative along the columns of a right inverse of A,

.. math:: s_i = \partial_t \, u_i\bigl(z + A_i^T (A_i A_i^T)^+ t\bigr)\big|_{t = 0}

or, where neither is given, a value found in the trace of the model (:mod:`~numpyro_sgmcmc.model.linear`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import random
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.linear import linear_predictor
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils import noise

ROWS = 4  # that a predictor of the user's is checked at


class RowPredictor(NamedTuple):
    """
    The predictor of a single row; several rows are the same under ``vmap``.

    - **eta** - (z, row) -> the predictor, of any shape.
    - **energy_and_slope** - (z, row) -> the energy of the row, and its derivative in the predictor.
    """

    eta: Callable[[Sites, jax.Array], jax.Array]
    energy_and_slope: Callable[[Sites, jax.Array], tuple[jax.Array, jax.Array]]

    def gradient(self, z: Sites, rows: jax.Array, slopes: jax.Array) -> Sites:
        """The sum of the rows' gradients, from their slopes."""
        _, pull_back = jax.vjp(lambda z: jax.vmap(self.eta, (None, 0))(z, rows), z)
        return pull_back(slopes)[0]


def row_predictor(potential: Any, given: Any, label: str) -> RowPredictor:
    """
    :param given: name of a site, function of the latents and rows, or None for a search.
    :param label: who asks, for errors.
    """
    if given is None:
        return _found(*linear_predictor(potential, label))
    return _of_site(potential, given) if isinstance(given, str) else _of_function(potential, given)


def _found(predictor: Callable, energy: Callable) -> RowPredictor:
    def energy_and_slope(z, row):
        return jax.value_and_grad(energy)(predictor(z, row), row)

    return RowPredictor(predictor, energy_and_slope)


def _of_site(potential: Any, site: str) -> RowPredictor:
    (plate,) = potential.plates

    def eta(z, row):
        return potential.site_values(z, {plate: row[None]})[site]

    def energy_and_slope(z, row):
        energy = lambda eta: potential.with_values({site: eta}).per_row(z, {plate: row[None]})[0]  # noqa: E731
        return jax.value_and_grad(energy)(eta(z, row))

    return RowPredictor(eta, energy_and_slope)


def _of_function(potential: Any, predictor: Callable) -> RowPredictor:
    (plate,) = potential.plates

    def eta(z, row):
        rows = row[None]
        return predictor(potential.site_values(z, {plate: rows}), rows)

    def energy_and_slope(z, row):
        flat, unravel = ravel_pytree(z)
        A = jax.jacrev(lambda flat: eta(unravel(flat), row))(flat)
        shape, A = A.shape[:-1], A.reshape(-1, flat.size)
        gram = A @ A.T
        # of rank 1 or 0 where a row has one number: a division costs less than a decomposition
        inverse = jnp.linalg.pinv(gram, hermitian=True) if len(A) > 1 else jnp.where(gram > 0, 1 / gram, 0)

        def along(v):
            return jax.jvp(lambda flat: potential.per_row(unravel(flat), {plate: row[None]})[0], (flat,), (v,))

        energies, slope = jax.vmap(along)(inverse @ A)
        return energies[0], slope.reshape(shape)

    return RowPredictor(eta, energy_and_slope)


def check_predictor(potential: Any, given: Any, label: str) -> None:
    """
    Compare at a few rows and two places: the predictor must be affine, the gradients those that its slopes stand for.
    Data that are traced cannot be compared.

    :raises ValueError: they are not; or there is no such site.
    """
    ((plate, (size, _)),) = potential.plates.items()
    rows = jnp.asarray(np.unique(np.linspace(0, size - 1, ROWS).astype(np.int32)))
    if isinstance(given, str):
        values = jax.eval_shape(lambda z: potential.site_values(z, {plate: rows[:1]}), dict(potential.prototype))
        if given not in values or given in potential.structure.sites:
            raise ValueError(
                f"{label}: the model has no deterministic site {given!r} for predictor=. Put it into the plate, "
                f"eta = numpyro.deterministic({given!r}, X[rows] @ w), and go on with the value that it returns."
            )
    closed = jax.make_jaxpr(lambda: _discrepancies(potential, row_predictor(potential, given, label), rows))()
    # the data are arguments of what is compiled: a closure would make constants, copies, of them
    errors = jax.jit(lambda consts: jaxpr_as_fun(closed.replace(consts=consts))())(closed.consts)
    if any(isinstance(error, Tracer) for error in errors):
        return
    tolerance = float(jnp.finfo(jnp.result_type(*errors)).eps) ** 0.4
    not_affine, not_alone = (bool(error > tolerance) for error in errors)
    if not_affine:
        raise ValueError(
            f"{label}: predictor={given!r} is not affine in the unconstrained latents {_names(potential)}. Use a "
            "table of the form 'batch' or 'row'."
        )
    if not_alone:
        raise ValueError(
            f"{label}: the rows do not depend on the latents {_names(potential)} through predictor={given!r} alone, "
            "so that the gradients are not what its slopes say. A model must go on with the value that "
            "numpyro.deterministic returns, and have no other unknowns in its rows, as a scale. Otherwise use a table "
            "of the form 'batch' or 'row'."
        )


def _names(potential: Any) -> str:
    return ", ".join(map(repr, potential.prototype))


def _discrepancies(potential: Any, predictor: RowPredictor, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Relative differences, of the predictor's derivative at two places, and of the gradients."""
    (plate,) = potential.plates
    origin = {name: jnp.zeros(site.shape, site.dtype) for name, site in potential.prototype.items()}
    step = noise.normal_like(random.key(0), origin)
    along = lambda t: jax.tree.map(lambda x: t * x, step)  # noqa: E731

    def derivative(z):
        return jax.jvp(lambda z: jax.vmap(predictor.eta, (None, 0))(z, rows), (z,), (step,))[1]

    # not so far that an exponential overflows
    reach = 1 / jnp.maximum(1, jnp.max(jnp.abs(derivative(origin))))
    places = [along(t * reach) for t in (1.0, -0.5)]

    def gradients(z, row):
        exact = jax.grad(lambda z: potential.per_row(z, {plate: row[None]})[0])(z)
        _, slope = predictor.energy_and_slope(z, row)
        return ravel_pytree(exact)[0], ravel_pytree(predictor.gradient(z, row[None], slope[None]))[0]

    pairs = [jax.vmap(gradients, (None, 0))(z, rows) for z in places]
    differences = [_relative(*map(derivative, places)), *(_relative(*pair) for pair in pairs)]
    return differences[0], jnp.maximum(*differences[1:])


def _relative(a: jax.Array, b: jax.Array) -> jax.Array:
    """The largest difference between finite numbers, in units of the largest."""
    finite = jnp.isfinite(a) & jnp.isfinite(b)
    largest = lambda x: jnp.max(jnp.where(finite, jnp.abs(x), 0))  # noqa: E731
    return largest(a - b) / jnp.maximum(largest(a), jnp.finfo(a.dtype).tiny)
