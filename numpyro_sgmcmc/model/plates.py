"""Determines the minibatched plates and their batch sizes, from the model's declarations and ``batch_size``."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.utils import trees

AUTOMATIC = "automatic"  # a batch_size: the declared sizes, or else those of :func:`automatic_sizes`


def batch_sizes(
    structure: Structure, batch_size: Any, gibbs_sites: frozenset[str], local: bool = False
) -> dict[str, int]:
    """
    Plate -> batch size, for the minibatched plates.

    :param batch_size: a number, a dict that goes before the declared sizes, or ``{}``: all rows of all plates.
    :param local: whether latent sites may be in a minibatched plate.
    """
    for name, (size, n) in structure.in_scan.items():
        if n is not None and n < size:
            raise ValueError(scan_message(name))
    declared = {name: n for name, (size, n) in structure.plates.items() if n is not None and n < size}
    if batch_size is None:
        return declared
    if isinstance(batch_size, Mapping):
        if not batch_size:
            return {}
        chosen = dict(batch_size)
    else:
        chosen = {_the_data_plate(structure, batch_size, gibbs_sites, local): batch_size}
    for name, n in chosen.items():
        if name in structure.in_scan:
            raise ValueError(scan_message(name))
        if name not in structure.plates:
            raise ValueError(f"batch_size names the plate {name!r}, but the model has {_known(structure)}.")
        size = structure.plates[name][0]
        if n >= size:
            raise ValueError(
                f"batch_size={n} for plate {name!r} of {size} rows: a minibatch must be smaller than the plate. "
                + _all_rows(name, chosen, size, local)
            )
    for name in declared | chosen:
        _check_one_size(structure, name)
    return declared | chosen


def automatic_sizes(structure: Structure, gibbs_sites: frozenset[str]) -> dict[str, int]:
    """
    Batch sizes of the data plates if none are given: 500 rows, or two per coordinate if that is more. Plates with less
    than twice as many rows are not minibatched.
    """
    observed, latent = _sides(structure, gibbs_sites)
    n = _automatic_size(structure)
    sizes = {name: structure.plates[name][0] for name in sorted((observed - latent) & set(structure.plates))}
    return {name: n for name, size in sizes.items() if size > 2 * n}


def why_all_rows(structure: Structure) -> str:
    """Why no minibatch can be taken of a site with many rows. Empty if there is no such site outside of a scan."""
    for name, site in structure.sites.items():
        rows = max(site.log_prob_shape, default=1)
        if not site.observed or site.factor or site.in_scan or rows <= 2 * _automatic_size(structure):
            continue
        for plate in site.plates:
            if plate in structure.unequal:
                return _two_sizes(structure, plate)
        if not site.plates:
            return (
                f"site {name!r} has {rows} rows outside of a plate. If they are independent given the latent sites, "
                f"observe them in one: `with numpyro.plate('N', {rows}) as rows: numpyro.sample({name!r}, ..., "
                "obs=x[rows])`."
            )
    return ""


def _automatic_size(structure: Structure) -> int:
    return max(500, 2 * trees.size(structure.prototype))


def _check_one_size(structure: Structure, plate: str) -> None:
    if plate in structure.unequal:
        raise ValueError(_two_sizes(structure, plate))


def _two_sizes(structure: Structure, plate: str) -> str:
    first, second = structure.unequal[plate]
    return (
        f"the model has two plates with the name {plate!r}, one of {first} and one of {second} rows. A minibatch has "
        f"the same rows of both. Give each its own name, for example f'{plate}_{{k}}' in a loop."
    )


def _sides(structure: Structure, gibbs_sites: frozenset[str]) -> tuple[set[str], set[str]]:
    """Plates with observed sites, and plates with latent sites."""
    observed: set[str] = set()
    latent: set[str] = set()
    for name, site in structure.sites.items():
        (observed if site.observed and name not in gibbs_sites else latent).update(site.plates)
    return observed, latent


def _the_data_plate(structure: Structure, batch_size: int, gibbs_sites: frozenset[str], local: bool) -> str:
    """The one plate with observed sites and, unless these may be local, without latent sites."""
    observed, latent = _sides(structure, gibbs_sites)
    candidates = sorted((observed if local else observed - latent) & set(structure.plates))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates and structure.in_scan:
        raise ValueError(scan_message(next(iter(structure.in_scan))))
    if not structure.plates:
        raise ValueError(
            f"batch_size={batch_size}, but the model has no plate to take a minibatch from. Observe its data in "
            "one, made in the model: `with numpyro.plate('N', len(x)) as rows: numpyro.sample('obs', ..., "
            "obs=x[rows])`."
        )
    if not candidates:
        for name, site in structure.latents.items():
            for plate in sorted(observed.intersection(site.plates)):
                _check_one_size(structure, plate)
                raise ValueError(local_message(name, plate))
        raise ValueError(
            f"batch_size={batch_size} needs a plate with observed sites, but none of {_known(structure)} has any. "
            "Observe the data inside their plate, so that they are scaled to all of its rows." + _without_obs(structure)
        )
    raise ValueError(
        f"batch_size={batch_size} is ambiguous: the plates {', '.join(map(repr, candidates))} all have observed sites. "
        f"Name one: batch_size={{{max(candidates, key=lambda name: structure.plates[name][0])!r}: {batch_size}}}."
    )


def _without_obs(structure: Structure) -> str:
    """A hint at data that were not passed to the model."""
    inside = [name for name, site in structure.latents.items() if site.plates]
    return f" {data_without_values(inside)}" if inside else ""


def data_without_values(names: Sequence[str]) -> str:
    """What to do if latent sites should be data."""
    return f"If {' and '.join(map(repr, names))} should be data: obs= is None; pass the data to mcmc.run."


def _all_rows(name: str, chosen: Mapping[str, int], size: int, local: bool) -> str:
    """What to do if all rows of a plate are wanted."""
    rest = {plate: n for plate, n in chosen.items() if plate != name}
    if local and not rest:
        return (
            f"Use at most {size - 1}. For all of the data leave local= and batch_size= out: the local sites are then "
            "sampled like the others."
        )
    return f"Leave {name!r} out for all of its rows: batch_size={rest}."


def check_declared_in_gibbs(structure: Structure, kwargs: Mapping[str, Any]) -> None:
    if GIBBS_SITES_KWARG not in kwargs:
        return
    for name, (size, n) in structure.plates.items():
        if n is not None and n < size:
            raise ValueError(
                f"plate {name!r} declares subsample_size={n}, but the other blocks of numpyro.infer.Gibbs use all "
                f"rows. Leave it out of the model and give the kernel batch_size={{{name!r}: {n}}}."
            )


def local_message(latent: str, plate: str) -> str:
    return (
        f"latent site {latent!r} is inside the minibatched plate {plate!r}, so each minibatch would sample other "
        "variables under the same name. Draw it for the rows of each minibatch: local=LocalGibbs() if it is discrete, "
        "local=LocalHMC(...) if it is continuous, or local= a function. Or mark a discrete site "
        f"infer={{'enumerate': 'parallel'}}, which sums it out. Or marginalise {latent!r}, move it out of {plate!r}, "
        f"or use all rows. {data_without_values([latent])}"
    )


def scan_message(plate: str) -> str:
    return (
        f"plate {plate!r} is inside `scan`, where a kernel cannot choose its rows. Put it outside: index the data by "
        "it first, then run over time inside it with a vectorised distribution and `.to_event(1)`."
    )


def _known(structure: Structure) -> str:
    if not structure.plates:
        return "no plate"
    return "the plates " + ", ".join(f"{name!r} ({size} rows)" for name, (size, _) in structure.plates.items())
