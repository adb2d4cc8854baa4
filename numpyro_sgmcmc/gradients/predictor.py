r"""
The linear predictor :math:`\eta` of a model whose rows depend on the latents only through it,

.. math:: u_i(z) = \phi_i(\eta_i(z)), \qquad \eta_i(z) = A_i z + b_i, \qquad \nabla u_i(z) = A_i^T s_i,
          \qquad s_i = \phi_i'(\eta_i),

can be given in three ways: as the value of a deterministic site, which is replaced by another value when the model runs
again; as a function, in which case the slope is a derivative along the columns of a right inverse of A,

.. math:: s_i = \partial_t \, u_i\bigl(z + A_i^T (A_i A_i^T)^+ t\bigr)\big|_{t = 0}

or, by default, as a value found in the trace of the energy of a single row. A value qualifies if it is affine by
construction, and the energy no longer depends on the latents if the value is fixed.
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

from numpyro_sgmcmc.types import Potential, Sites
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.program import Program

ROWS = 4  # number of rows for the check of a given predictor


class RowPredictor(NamedTuple):
    """The predictor of a single row; use ``vmap`` for several rows."""

    eta: Callable[[Sites, jax.Array], jax.Array]  # (z, row) -> the predictor, of any shape
    # (z, row) -> the energy of the row, and its derivative in the predictor
    energy_and_slope: Callable[[Sites, jax.Array], tuple[jax.Array, jax.Array]]

    def gradient(self, z: Sites, rows: jax.Array, slopes: jax.Array) -> Sites:
        """The sum of the rows' gradients, from their slopes."""
        _, pull_back = jax.vjp(lambda z: jax.vmap(self.eta, (None, 0))(z, rows), z)
        return pull_back(slopes)[0]


def row_predictor(potential: Any, given: Any, label: str) -> RowPredictor:
    """The predictor by the name of a site, as a function of the latents and rows, or by a search."""
    if given is None:
        return _found(potential, label)
    return _of_site(potential, given) if isinstance(given, str) else _of_function(potential, given)


def _found(potential: Potential, label: str) -> RowPredictor:
    """Raises a ValueError if no predictor has fewer numbers per row than there are coordinates."""
    (plate,) = potential.plates
    prototypes, treedef = jax.tree.flatten(dict(potential.prototype))

    def energy(leaves, row):
        return potential.per_row(treedef.unflatten(leaves), {plate: row[None]})[0]

    program = Program(jax.make_jaxpr(energy)(prototypes, jax.ShapeDtypeStruct((), jnp.int32)))
    *latents, of_row = program.inputs
    on_latents, on_row = program.dependents(latents), program.dependents([of_row])
    d = sum(leaf.size for leaf in prototypes)
    candidates = [
        number
        for number in sorted(program.affine(latents, on_latents) & on_row - set(latents))
        if program.shapes[number].size < max(2, d)
    ]
    cuts = [k for k in candidates if not program.dependents(latents, without=k).intersection(program.outputs)]
    if not cuts:
        raise ValueError(
            f"{label} needs a model whose rows depend on the latents only through a linear predictor, with fewer "
            "numbers per row than there are coordinates. No such value was found for the latents "
            f"{_names(potential)}; an unknown scale or a product of latents prevents it. "
            "If the model has one, name it with predictor=; otherwise use a table of the form 'batch' or 'row'."
        )
    cut = min(cuts, key=lambda number: program.shapes[number].size)

    def eta(z, row):
        return program.run({of_row: row} | dict(zip(latents, jax.tree.leaves(z))), [cut])[0]

    def energy_and_slope(z, row):
        return jax.value_and_grad(lambda eta: program.run({of_row: row, cut: eta}, program.outputs)[0])(eta(z, row))

    return RowPredictor(eta, energy_and_slope)


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
        # if a row has one number, the rank is 1 or 0, and a division is cheaper than a decomposition
        inverse = jnp.linalg.pinv(gram, hermitian=True) if len(A) > 1 else jnp.where(gram > 0, 1 / gram, 0)

        def along(v):
            return jax.jvp(lambda flat: potential.per_row(unravel(flat), {plate: row[None]})[0], (flat,), (v,))

        energies, slope = jax.vmap(along)(inverse @ A)
        return energies[0], slope.reshape(shape)

    return RowPredictor(eta, energy_and_slope)


def check_predictor(potential: Any, given: Any, label: str) -> None:
    """
    Checks at a few rows and two positions that the predictor is affine and that the gradients follow from its slopes,
    unless the data are traced. Raises a ValueError if not, or if there is no such site.
    """
    ((plate, (size, _)),) = potential.plates.items()
    rows = jnp.asarray(np.unique(np.linspace(0, size - 1, ROWS).astype(np.int32)))
    if isinstance(given, str):
        values = jax.eval_shape(lambda z: potential.site_values(z, {plate: rows[:1]}), dict(potential.prototype))
        if given not in values or given in potential.structure.sites:
            raise ValueError(
                f"{label}: the model has no deterministic site {given!r} for predictor=. Put it into the plate, "
                f"eta = numpyro.deterministic({given!r}, X[rows] @ w), and use the value that it returns."
            )
    closed = jax.make_jaxpr(lambda: _discrepancies(potential, row_predictor(potential, given, label), rows))()
    # the data are arguments of the compiled function: a closure would copy them as constants
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
            "so its slopes do not determine the gradients. The model must use the value that numpyro.deterministic "
            "returns, and have no other unknowns in its rows, such as a scale. Otherwise use a table of the form "
            "'batch' or 'row'."
        )


def _names(potential: Any) -> str:
    return ", ".join(map(repr, potential.prototype))


def _discrepancies(potential: Any, predictor: RowPredictor, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Relative differences of the predictor's derivatives at two positions, and of the gradients."""
    (plate,) = potential.plates
    origin = jax.tree.map(jnp.zeros_like, dict(potential.prototype))
    step = noise.normal_like(random.key(0), origin)

    def derivative(z):
        return jax.jvp(lambda z: jax.vmap(predictor.eta, (None, 0))(z, rows), (z,), (step,))[1]

    # close enough to the origin that an exponential does not overflow
    reach = 1 / jnp.maximum(1, jnp.max(jnp.abs(derivative(origin))))
    places = [jax.tree.map(lambda x, t=t: t * reach * x, step) for t in (1.0, -0.5)]

    def gradients(z, row):
        exact = jax.grad(lambda z: potential.per_row(z, {plate: row[None]})[0])(z)
        _, slope = predictor.energy_and_slope(z, row)
        return ravel_pytree(exact)[0], ravel_pytree(predictor.gradient(z, row[None], slope[None]))[0]

    of_gradients = [_relative(*jax.vmap(gradients, (None, 0))(z, rows)) for z in places]
    return _relative(*map(derivative, places)), jnp.maximum(*of_gradients)


def _relative(a: jax.Array, b: jax.Array) -> jax.Array:
    """The largest difference between finite numbers, relative to the largest number."""
    finite = jnp.isfinite(a) & jnp.isfinite(b)
    largest = lambda x: jnp.max(jnp.where(finite, jnp.abs(x), 0))  # noqa: E731
    return largest(a - b) / jnp.maximum(largest(a), jnp.finfo(a.dtype).tiny)
