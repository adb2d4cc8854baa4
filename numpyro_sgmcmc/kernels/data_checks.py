"""
Checks of the values of the data, before a chain starts: codes that index beyond the end of an array, and rows whose
energy is not finite. A run would show neither. JAX replaces such an index by the last one, and a step that uses such a
row is refused.

They cost one look at each array. Arrays on disk, or distributed over devices, are not read.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.arrays import named_leaves
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.types import Rows, Sites
from numpyro_sgmcmc.utils import trees

CHUNK = 2**22  # numbers that are looked at together


def check_codes(potential: ModelPotential, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> None:
    """
    :raises ValueError: if values of an argument are used as an index that the indexed array does not have.
    """
    values = _values(model_args, model_kwargs)
    for lookup in dict.fromkeys(potential.structure.lookups):
        codes = values.get(lookup.codes)
        if codes is None or not np.issubdtype(codes.dtype, np.integer) or not codes.size:
            continue
        low, high, size = int(codes.min()), int(codes.max()), lookup.shape[lookup.dim]
        if high >= size or low < -size:
            raise ValueError(
                f"{lookup.codes} has values from {low} to {high}, and indexes an array with {size} elements (dimension "
                f"{lookup.dim} of the shape {lookup.shape}). JAX would use the nearest element for an index that the "
                f"array does not have, without an error. Use codes from 0 to {size - 1}: np.unique(codes, "
                f"return_inverse=True)[1]. If the model masks these elements, write jnp.clip(codes, 0, {size - 1})."
            )


def check_finite(
    on_potential: Callable,
    potential: ModelPotential,
    z: Sites,
    rng_key: jax.Array,
    model_args: tuple,
    model_kwargs: Mapping[str, Any] | None,
) -> None:
    """
    Rows with data that are not finite are allowed if energy and gradient are finite there, as with a bound at infinity.

    :param on_potential: a function of a potential -> that function, compiled on the model and its arguments.
    :param z: a position where the energy of other rows is finite.
    :raises ValueError: for a row where they are not.
    """
    for argument, x in _values(model_args, model_kwargs).items():
        plate = next((name for name, plate in potential.plates.items() if x.shape[:1] == (plate.size,)), None)
        if plate is None or not jnp.issubdtype(x.dtype, jnp.floating):
            continue
        wrong = _rows_that_are_not_finite(x)
        if not len(wrong):
            continue
        rows = potential.some_rows()  # the first ones
        last = rows[plate][-1]
        with_it: Rows = {**rows, plate: jnp.where(rows[plate] == last, jnp.maximum(last, wrong[0]), rows[plate])}
        energies, gradient = on_potential(_energies_and_gradient)(z, with_it, rng_key)
        sites = [repr(name) for name, energy in energies.items() if not np.isfinite(energy)]
        if sites or not gradient:
            what = f"the energy of site {', '.join(sites)}" if sites else "the gradient"
            raise ValueError(
                f"{argument} is not finite in {len(wrong)} of its {len(x)} rows, the first is row {wrong[0]}. There "
                f"{what} is not finite either, so every step that uses this row would be refused. Leave such rows out, "
                "or replace missing values by finite numbers, and leave them out with numpyro.handlers.mask."
            )


def _energies_and_gradient(potential, z, rows, rng_key):
    gradient = jax.grad(potential.estimate)(z, rows, rng_key)
    return potential.by_site(z, rows, rng_key), trees.all_finite(gradient)


def _values(model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Name -> argument, for arrays of numbers whose values are known."""
    return {
        name: leaf
        for name, leaf in named_leaves(model_args, model_kwargs or {})
        if isinstance(leaf, (np.ndarray, jax.Array))
        and not isinstance(leaf, (Tracer, np.memmap))
        and leaf.ndim
        and leaf.dtype != object
        and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    }


def _rows_that_are_not_finite(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and bool(jnp.isfinite(x).all()):
        return np.zeros(0, int)
    rows = max(1, CHUNK // max(1, x[0].size))
    found = []
    for first in range(0, len(x), rows):
        part = np.asarray(x[first : first + rows])
        if not np.isfinite(part).all():
            found.append(first + np.flatnonzero(~np.isfinite(part).reshape(len(part), -1).all(1)))
    return np.concatenate(found) if found else np.zeros(0, int)
