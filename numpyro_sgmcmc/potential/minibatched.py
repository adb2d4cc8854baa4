"""
Decides which plates are minibatched, and refuses models that cannot be sampled in this way. The errors name the site or
plate and a remedy.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax

from numpyro_sgmcmc.data.argument_checks import check_arrays
from numpyro_sgmcmc.data.row_array import RowArray, asks_for_all
from numpyro_sgmcmc.local.models import drawn_locally
from numpyro_sgmcmc.model import row_checks
from numpyro_sgmcmc.model.given_values import SiteError, check_not_collapsed, of_all_rows
from numpyro_sgmcmc.model.handlers import Transforms
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.model.plates import (
    AUTOMATIC,
    automatic_sizes,
    batch_sizes,
    check_declared_in_gibbs,
    data_without_values,
    local_message,
    why_all_rows,
)
from numpyro_sgmcmc.model.structure import Structure, failing_site, outline
from numpyro_sgmcmc.types import Plate

IN_THE_PLATE = "{} around the model has values of all rows: use it in the plate, on x[rows]."
Outline: TypeAlias = Callable[[Mapping[str, int]], Structure]
"""Plate -> number of rows to which it is cut -> the structure of the model."""


class NeedsValues(ValueError):
    """A model needs the value of a traced array."""


def checked_structure(
    model: Any,
    args: tuple,
    kwargs: Mapping[str, Any],
    batch_size: int | str | Mapping[str, int] | None,
    transforms: Transforms | None = None,
) -> tuple[dict[str, Plate], Structure]:
    """
    The minibatched plates, and the structure of the model with these plates cut to minibatches. Raises a ValueError for
    anything that would make the minibatch potential wrong, with the name of the site or plate.
    """
    check_not_collapsed(model)
    gibbs_sites = frozenset(kwargs.get(GIBBS_SITES_KWARG, ()))
    outline_of = partial(outline, model, args, kwargs, transforms=transforms)
    whole = _outline_of_all_rows(outline_of, model, args, kwargs)
    if isinstance(model, drawn_locally):
        return _with_local_sites(model, args, kwargs, batch_size, outline_of, whole)
    row_checks.check_missing(whole)
    _check_latents(whole)
    _check_handlers(model, whole)
    if batch_size == AUTOMATIC:
        batch_size = None
        declared = batch_sizes(whole, None, gibbs_sites)
        ours = automatic_sizes(whole, gibbs_sites)
        if ours and not declared:
            try:
                return checked_structure(model, args, kwargs, ours, transforms)
            except row_checks.SparseRows:
                raise  # all rows would take the square of their memory
            except ValueError as error:  # the user has not asked for minibatches
                whole = whole._replace(why_all_rows=str(error))
        elif not declared:
            whole = whole._replace(why_all_rows=why_all_rows(whole))
    sizes = batch_sizes(whole, batch_size, gibbs_sites)
    check_declared_in_gibbs(whole, kwargs)
    plates = {name: Plate(whole.plates[name][0], n) for name, n in sizes.items()}
    for name, site in whole.latents.items():
        for plate in site.plates:
            if plate in plates:
                raise ValueError(local_message(name, plate))
    structure = _cut(model, args, kwargs, plates, outline_of) if plates else whole
    row_checks.check_observations(whole)
    _check_other_plates(outline_of, whole, plates)
    return plates, structure


def _with_local_sites(
    model: Any, args: tuple, kwargs: Mapping[str, Any], batch_size: Any, outline_of: Outline, whole: Structure
) -> tuple[dict[str, Plate], Structure]:
    if GIBBS_SITES_KWARG in kwargs:
        raise ValueError(
            "local= does not work in a block of numpyro.infer.Gibbs, as its other blocks use all rows. Leave local= or "
            "Gibbs out."
        )
    size = None if batch_size == AUTOMATIC else batch_size
    plates = {name: Plate(whole.plates[name][0], n) for name, n in batch_sizes(whole, size, frozenset(), True).items()}
    if not plates:
        raise ValueError(
            "local= draws the latent sites of the rows of a minibatch, but no plate is minibatched. Give "
            "batch_size={plate: rows}. For all of the data leave local= out: all sites are then sampled alike."
        )
    cut = _cut(model, args, kwargs, plates, outline_of)
    _check_latents(cut)
    if not any(site.plates.keys() & plates.keys() for site in whole.latents.values()):
        raise ValueError(
            f"local= is given, but there is no latent site in {_list(plates)}: {', '.join(map(repr, whole.latents))} "
            "are outside. Move the latent sites of the rows into the plate, or leave local= out."
        )
    row_checks.check_observations(whole)
    _check_other_plates(outline_of, whole, plates)
    return plates, cut


def _cut(
    model: Any, args: tuple, kwargs: Mapping[str, Any], plates: Mapping[str, Plate], outline_of: Outline
) -> Structure:
    """The structure of the model with its plates cut to minibatches, after all checks."""
    try:
        cut = outline_of({name: plate.batch_size for name, plate in plates.items()})
    except SiteError as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        site = failing_site(error)
        handler = of_all_rows(model, [plate.size for plate in plates.values()])
        hint = f"{IN_THE_PLATE.format(handler)} " if handler else ""
        raise ValueError(
            f"the model fails{f' at site {site!r}' if site else ''} when {_list(plates)} is cut to {_sizes(plates)} "
            f"rows. Every array with a row for each element of the plate must be indexed by it: {row_checks.INDEXED}. "
            f"{hint}The failure was: {type(error).__name__}: {error}"
        ) from error
    row_checks.check_sparse(model, cut, plates, args, kwargs)
    row_checks.check_rows(cut, plates)
    return cut


def _check_other_plates(outline_of: Outline, whole: Structure, plates: Mapping[str, Plate]) -> None:
    """Raises a ValueError for data that do not fit a plate that is not minibatched."""
    others = {
        name: size for name, (size, _) in whole.plates.items() if name not in plates and name not in whole.unequal
    }
    if not others:
        return
    try:
        indexed = outline_of(others)
    except Exception:  # a model may need the numbers of such rows, for example to index a NumPy array
        return
    row_checks.check_lengths(indexed, {name: Plate(size, size) for name, size in others.items()})


def _outline_of_all_rows(outline_of: Outline, model: Any, args: tuple, kwargs: Mapping[str, Any]) -> Structure:
    try:
        return outline_of({})
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
        raise NeedsValues(
            "the model needs the value of a traced array as a plain Python number, as the size of a plate, `if` and "
            "functions of `math` do. Write jnp.where in place of `if`, and functions of jax.numpy. With "
            "jit_model_args=True all arguments are traced; bind sizes: functools.partial(model, size=...)."
        ) from error
    except jax.errors.NonConcreteBooleanIndexError as error:
        raise NeedsValues(
            "the model selects elements by a traced boolean array, so that their number is not known, for example "
            "x[rows][known[rows]] in a plate. Select them before the run, or keep all rows in the plate and leave some "
            "out with numpyro.handlers.mask(mask=known[rows]) around the site."
        ) from error
    except ValueError as error:
        by_row = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, RowArray)]
        if by_row and "__jax_array__" in str(error):  # under jit JAX refuses it before it calls __jax_array__
            raise asks_for_all(*by_row) from error
        if not isinstance(error, SiteError):
            check_arrays(args, kwargs, error)
        raise
    except (TypeError, AttributeError, IndexError, NotImplementedError) as error:
        check_arrays(args, kwargs, error)
        if not isinstance(error, jax.errors.TracerArrayConversionError):
            lengths = {leaf.shape[0] for leaf in jax.tree.leaves((args, kwargs)) if getattr(leaf, "shape", ())}
            if handler := of_all_rows(model, lengths):
                error.add_note(IN_THE_PLATE.format(handler))
            raise
        raise NeedsValues(
            "the model passes a traced value, such as the rows of a plate, to NumPy or pandas. Use functions of "
            "jax.numpy. Index with x[rows], where x is an argument or a jax array: arrays that the model closes over "
            "must be jax arrays (jnp.asarray); convert columns of a DataFrame with .to_numpy() before the run."
        ) from error


def _check_latents(structure: Structure) -> None:
    if not structure.latents:
        raise ValueError("the model has no latent sample site, so there is nothing to sample.")
    for name, site in structure.latents.items():
        if site.discrete:
            raise ValueError(
                f"latent site {name!r} is discrete and has no gradient. Sum it out (`MixtureSameFamily` for mixtures, "
                "or infer={'enumerate': 'parallel'} on a site in the plate of the data), or sample it in a block of "
                f"its own with `numpyro.infer.Gibbs`. {data_without_values([name])}"
            )
        if site.delta:
            raise ValueError(f"latent site {name!r} has a Delta distribution. Use `numpyro.deterministic` instead.")
    if structure.mutable:
        raise ValueError(
            f"mutable site {structure.mutable[0]!r} (running statistics such as BatchNorm's) would never be updated, "
            "as a potential has no state. Use a layer without running statistics, for example LayerNorm."
        )


def _check_handlers(model: Any, structure: Structure) -> None:
    """Raises a ValueError for a handler with values of all rows that reaches latents outside of their plate."""
    for name, site in structure.latents.items():
        sizes = {size for plate, (size, _) in structure.plates.items() if plate not in site.plates}
        sizes &= set(site.log_prob_shape)
        if sizes and (handler := of_all_rows(model, sizes)):
            raise ValueError(
                f"latent site {name!r} is outside of the plate, so its density would be counted once for each row. "
                f"{IN_THE_PLATE.format(handler)}"
            )


def _list(plates: Mapping[str, Plate]) -> str:
    return " and ".join(f"plate {name!r}" for name in plates)


def _sizes(plates: Mapping[str, Plate]) -> str:
    return " and ".join(str(plate.batch_size) for plate in plates.values())
