"""
Checks of the values of the data, before a chain starts: integers that JAX cannot hold, codes that index beyond an end
of an array, observed values outside of a support, and rows whose energy is not finite. A run would not name them. JAX
replaces such an index by the last one, and a step that uses a row without a finite energy is refused.

They cost one look at each array. Arrays on disk, or distributed over devices, are not read.
"""

from collections.abc import Callable, Iterator, Mapping
import math
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from numpyro_sgmcmc.data.arrays import named_leaves
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.types import Rows, Sites
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.compat import warn

CHUNK = 2**22  # numbers that are looked at together


def check_data(potential: ModelPotential, values: Mapping[str, Any]) -> None:
    """All checks of the :func:`known_values` of the data that need no start."""
    for check in (check_integers, check_codes, warn_of_values):
        check(potential, values)


def check_integers(potential: ModelPotential, values: Mapping[str, Any]) -> None:
    """Raises a ValueError for integers of 64 bits in use that JAX, without ``jax_enable_x64``, would change."""
    structure = potential.structure
    used = {lookup.argument for lookup in structure.lookups} | {site.argument for site in structure.sites.values()}
    for name, x in values.items():
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        if name not in used or x.dtype.kind not in "iu" or dtype == x.dtype:
            continue
        low, high, bounds = int(x.min()), int(x.max()), np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise ValueError(
                f"{name} has integers from {low} to {high}, which do not fit into the {dtype} that JAX uses for them, "
                "so it would compute with other numbers. Pass x.astype(float), perhaps in larger units, or set "
                "jax_enable_x64. Identifiers become codes by np.unique(x, return_inverse=True)[1]."
            )


def check_codes(potential: ModelPotential, values: Mapping[str, Any]) -> None:
    """
    Warns of negative codes among others, which JAX counts from the end. Raises a ValueError for codes that the indexed
    array does not have.
    """
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
        if low < 0 <= high:
            warn(
                f"{lookup.codes} has negative values, the smallest is {low}, and indexes an array with {size} elements "
                f"(dimension {lookup.dim} of the shape {lookup.shape}). JAX counts them from its end, so -1 is the "
                "last element. In codes of pandas -1 is a missing category: leave such rows out, or give them a "
                "category of their own. If the model masks these elements, write jnp.maximum(codes, 0)."
            )


def warn_of_values(potential: ModelPotential, values: Mapping[str, Any]) -> None:
    """
    Warns of observed values outside the support of their distribution: its density has no meaning there, but is often a
    number. NaN is left to :func:`check_finite`. Supports of vectors are not looked at, because a simplex has rounding
    errors.
    """
    for name, site in potential.structure.sites.items():
        x = values.get(site.argument)
        if x is None or site.support is None or site.support.event_dim or site.support is constraints.real:
            continue
        with jax.ensure_compile_time_eval():
            inside = np.concatenate([np.asarray(site.support(part) | jnp.isnan(part)) for part in _parts(x)])
        wrong = np.flatnonzero(~inside.reshape(len(x), -1).all(1))
        if len(wrong):
            labels = " Labels of K classes must be 0, ..., K - 1: np.unique(labels, return_inverse=True)[1]."
            warn(
                f"site {name!r} observes values of {site.argument} that are outside the support of its distribution, "
                f"{site.support!r}, in {len(wrong)} of {len(x)} rows; the first is row {wrong[0]}. Their density has "
                f"no meaning.{labels * site.support.is_discrete}"
            )


def check_finite(
    on_potential: Callable, potential: ModelPotential, z: Sites, rng_key: jax.Array, values: Mapping[str, Any]
) -> None:
    """
    Raises a ValueError for a row whose energy or gradient is not finite, at a ``z`` where other rows are. Values that
    are not finite are allowed otherwise, as a bound at infinity.
    """
    for argument, x in values.items():
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


def known_values(model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Name -> argument, for arrays of numbers whose values are known."""
    return {
        name: leaf
        for name, leaf in named_leaves(model_args, model_kwargs or {})
        if isinstance(leaf, (np.ndarray, jax.Array))
        and not isinstance(leaf, (Tracer, np.memmap))
        and leaf.ndim
        and leaf.size
        and leaf.dtype != object
        and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    }


def _rows_that_are_not_finite(x: Any) -> np.ndarray:
    if not isinstance(x, jax.Array) or next(iter(x.devices())).platform == "cpu":
        x = np.asarray(x)  # without a copy; XLA would make an array of flags for all numbers
    elif bool(jnp.isfinite(x).all()):
        return np.zeros(0, int)  # found on the device
    return np.flatnonzero(
        np.concatenate([~np.isfinite(part).reshape(len(part), -1).all(1) for part in map(np.asarray, _parts(x))])
    )


def _parts(x: Any) -> Iterator[Any]:
    """An array in parts along its first axis."""
    rows = max(1, CHUNK // max(1, math.prod(x.shape[1:])))
    return (x[first : first + rows] for first in range(0, len(x), rows))
