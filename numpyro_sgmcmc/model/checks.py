"""
Decides which plates are cut to minibatches, and refuses by name what cannot be sampled so, with the way out.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpyro.infer.gibbs import GIBBS_SITES_KWARG

from numpyro_sgmcmc.model.structure import Structure, outline
from numpyro_sgmcmc.types import Plate

SUBSAMPLE = "numpyro.subsample(x, event_dim=x.ndim - 1)"


class NeedsValues(ValueError):
    """A model asks for the value of something that is traced."""


def checked_structure(
    model: Any, args: tuple, kwargs: Mapping[str, Any], batch_size: int | Mapping[str, int] | None
) -> tuple[dict[str, Plate], Structure]:
    """
    The minibatched plates and the outline of the model cut to them.

    :raises ValueError: by name, whatever would make the minibatch potential wrong.
    """
    siblings = frozenset(kwargs.get(GIBBS_SITES_KWARG, ()))
    whole = _outline_of_all_rows(model, args, kwargs)
    _refuse_latents(whole)
    sizes = _batch_sizes(whole, batch_size, siblings)
    _refuse_declared_in_gibbs(whole, batch_size, kwargs)
    plates = {name: Plate(whole.plates[name][0], n) for name, n in sizes.items()}
    for name, site in whole.latents.items():
        for plate in site.plates:
            if plate in plates:
                raise ValueError(_local_message(name, plate))
    if not plates:
        return plates, whole
    try:
        cut = outline(model, args, kwargs, sizes)
    except Exception as error:
        raise ValueError(
            f"the model fails when {_list(plates)} is cut to {_sizes(plates)} rows. Every array with a row for each "
            "element of the plate must be indexed by it: `with numpyro.plate(...) as rows: x[rows]`, or "
            f"`{SUBSAMPLE}` inside it. The failure was: {type(error).__name__}: {error}"
        ) from error
    _refuse_unindexed(cut, plates)
    return plates, cut


def _outline_of_all_rows(model: Any, args: tuple, kwargs: Mapping[str, Any]) -> Structure:
    try:
        return outline(model, args, kwargs, {})
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError) as error:
        raise NeedsValues(
            "the model needs a traced value as a plain Python number, for the size of a plate perhaps. With "
            "jit_model_args=True all arguments are traced; bind such numbers: functools.partial(model, size=...)."
        ) from error
    except TypeError as error:
        odd = _no_array_of_numbers(args, kwargs)
        if odd:
            raise ValueError(
                f"{odd}, of which the model cannot take traced rows. Hand in an array of numbers: np.asarray(x), "
                f"x.to_numpy(float). The failure was: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(error, jax.errors.TracerArrayConversionError):
            raise
        raise NeedsValues(
            "the model hands a traced value, such as the rows of a plate, to NumPy or pandas. Index with x[rows], "
            "where x is an argument or a jax array: arrays that the model closes over must be jax arrays "
            "(jnp.asarray), columns of a DataFrame be taken out by .to_numpy() before the run."
        ) from error


def _no_array_of_numbers(args: tuple, kwargs: Mapping[str, Any]) -> str:
    """The first of the arguments that is a list of numbers, a column of a data frame or an array of something else."""
    named = [(f"argument {k}", arg) for k, arg in enumerate(args, 1)] + [(f"{k}=", arg) for k, arg in kwargs.items()]
    for name, arg in named:
        if isinstance(arg, np.ndarray) and arg.dtype.kind not in "biufc":
            return f"{name} is an array of dtype {arg.dtype}"
        plain = isinstance(arg, (list, tuple)) and any(isinstance(x, (int, float, str)) for x in jax.tree.leaves(arg))
        if plain or type(arg).__module__.partition(".")[0] in ("pandas", "polars"):
            return f"{name} is a {type(arg).__name__}"
    return ""


def _refuse_latents(structure: Structure) -> None:
    if not structure.latents:
        raise ValueError("the model has no latent sample site, so there is nothing to sample.")
    for name, site in structure.latents.items():
        if site.discrete:
            raise ValueError(
                f"latent site {name!r} is discrete and has no gradient. Sum it out (`MixtureSameFamily` for mixtures), "
                "or sample it in a block of its own with `numpyro.infer.Gibbs`. (If it is data: it was given obs=None.)"
            )
        if site.delta:
            raise ValueError(f"latent site {name!r} has a Delta distribution; use `numpyro.deterministic` instead.")
    if structure.mutable:
        raise ValueError(
            f"mutable site {structure.mutable[0]!r} (running statistics such as BatchNorm's) would never be updated, "
            "as a potential has no memory. Use a layer without running statistics, LayerNorm for one."
        )


def _batch_sizes(
    structure: Structure, batch_size: int | Mapping[str, int] | None, siblings: frozenset[str]
) -> dict[str, int]:
    for name, (size, n) in structure.in_scan.items():
        if n is not None and n < size:
            raise ValueError(_scan_message(name))
    declared = {name: n for name, (size, n) in structure.plates.items() if n is not None and n < size}
    if batch_size is None:
        return declared
    if isinstance(batch_size, Mapping):
        chosen = dict(batch_size)
    else:
        chosen = {_the_data_plate(structure, batch_size, siblings): batch_size}
    for name, n in chosen.items():
        if name in structure.in_scan:
            raise ValueError(_scan_message(name))
        if name not in structure.plates:
            raise ValueError(f"batch_size names the plate {name!r}, but the model has {_known(structure)}.")
        size = structure.plates[name][0]
        if n >= size:
            raise ValueError(
                f"batch_size={n} for plate {name!r} of {size} rows: a minibatch must be smaller than the plate. "
                "batch_size=None uses all of the data."
            )
    return declared | chosen


def _the_data_plate(structure: Structure, batch_size: int, siblings: frozenset[str]) -> str:
    """The one plate that holds observed sites and no latent."""
    observed: set[str] = set()
    latent: set[str] = set()
    for name, site in structure.sites.items():
        (observed if site.observed and name not in siblings else latent).update(site.plates)
    candidates = sorted((observed - latent) & set(structure.plates))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates and structure.in_scan:
        raise ValueError(_scan_message(next(iter(structure.in_scan))))
    if not structure.plates:
        raise ValueError(
            f"batch_size={batch_size}, but the model has no plate to take a minibatch from. Put its data into one: "
            "`with numpyro.plate('N', len(x)) as rows: numpyro.sample('obs', ..., obs=x[rows])`."
        )
    if not candidates:
        for name, site in structure.latents.items():
            for plate in sorted(observed.intersection(site.plates)):
                raise ValueError(_local_message(name, plate))
        raise ValueError(
            f"batch_size={batch_size} means the one plate that holds observed sites, but of {_known(structure)} none "
            "does. Observe the data inside their plate, so that they are scaled to all of its rows."
        )
    raise ValueError(
        f"batch_size={batch_size} could mean any of the plates {', '.join(map(repr, candidates))}. Say which one is "
        f"meant: batch_size={{{candidates[0]!r}: {batch_size}}}."
    )


def _refuse_declared_in_gibbs(structure: Structure, batch_size: Any, kwargs: Mapping[str, Any]) -> None:
    if GIBBS_SITES_KWARG not in kwargs:
        return
    for name, (size, n) in structure.plates.items():
        if n is not None and n < size:
            raise ValueError(
                f"plate {name!r} declares subsample_size={n}, which numpyro.infer.Gibbs refuses, since its other "
                f"blocks see all rows. Leave it out of the model and give the kernel batch_size={{{name!r}: {n}}}."
            )


def _refuse_unindexed(cut: Structure, plates: Mapping[str, Plate]) -> None:
    for name, site in cut.sites.items():
        for plate, dim in site.plates.items():
            if plate not in plates:
                continue
            n = plates[plate].batch_size
            shape = site.log_prob_shape
            if len(shape) < -dim or shape[dim] != n:
                raise ValueError(
                    f"site {name!r} in plate {plate!r} has a log density of shape {shape} where a minibatch of {n} "
                    f"needs {n} in dimension {dim}: its data are not indexed by the plate. Use `with numpyro.plate("
                    f"...) as rows: x[rows]`, or `{SUBSAMPLE}` inside it."
                )
            for other in set(range(-len(shape), 0)).difference(site.plates.values()):
                if shape[other] == n > 1:
                    raise ValueError(
                        f"site {name!r} in plate {plate!r} has a log density of shape {shape}: dimension {other} has "
                        f"{n} elements too, but no plate. A column of shape (N, 1) beside a vector of shape (N,) is "
                        "often the reason; give both the same shape. An axis of its own wants a plate or `.to_event`."
                    )
            if plate in site.uses and plate in site.one_number_in:
                raise ValueError(
                    f"factor {name!r} in plate {plate!r} is one number made from the whole minibatch and would be "
                    f"counted once for each row. Give it one number a row, shape ({n},)."
                )
            if site.observed and plate not in site.uses and not cut.randomised:
                raise ValueError(
                    f"observed site {name!r} stands in plate {plate!r} but is the same for every row of it: its data "
                    "are not indexed by the plate. Use `with numpyro.plate(...) as rows: x[rows]`, or "
                    f"`{SUBSAMPLE}` inside it."
                )
        for plate in site.uses - set(site.plates):
            raise ValueError(
                f"site {name!r} depends on the rows of the minibatched plate {plate!r} but stands outside it, so it "
                f"would not be scaled to the whole plate. Move it into {plate!r}, with one log density a row."
            )


def _local_message(latent: str, plate: str) -> str:
    return (
        f"latent site {latent!r} stands inside the minibatched plate {plate!r}, so each minibatch would sample other "
        f"variables under the same name. Marginalise {latent!r}, move it out of {plate!r}, or use all of its rows. "
        "(If it is data: it was given obs=None.)"
    )


def _scan_message(plate: str) -> str:
    return (
        f"plate {plate!r} stands inside `scan`, where a kernel cannot choose its rows. Put it outside: index the data "
        "by it first, then run over time inside it with a vectorised distribution and `.to_event(1)`."
    )


def _known(structure: Structure) -> str:
    if not structure.plates:
        return "no plate"
    return "the plates " + ", ".join(f"{name!r} ({size} rows)" for name, (size, _) in structure.plates.items())


def _list(plates: Mapping[str, Plate]) -> str:
    return " and ".join(f"plate {name!r}" for name in plates)


def _sizes(plates: Mapping[str, Plate]) -> str:
    return " and ".join(str(plate.batch_size) for plate in plates.values())
