"""
Which plates are cut to minibatches of which size: what the model declares and what ``batch_size`` says.
"""

from collections.abc import Mapping
from typing import Any

from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.utils.compat import GIBBS_SITES_KWARG

AUTOMATIC = "automatic"  # as a batch_size: what the model declares, or else a size of our own


def batch_sizes(structure: Structure, batch_size: Any, siblings: frozenset[str], local: bool = False) -> dict[str, int]:
    """
    :param local: latent sites may stand in a minibatched plate.
    """
    for name, (size, n) in structure.in_scan.items():
        if n is not None and n < size:
            raise ValueError(scan_message(name))
    declared = {name: n for name, (size, n) in structure.plates.items() if n is not None and n < size}
    if batch_size is None:
        return declared
    if isinstance(batch_size, Mapping):
        chosen = dict(batch_size)
    else:
        chosen = {_the_data_plate(structure, batch_size, siblings, local): batch_size}
    for name, n in chosen.items():
        if name in structure.in_scan:
            raise ValueError(scan_message(name))
        if name not in structure.plates:
            raise ValueError(f"batch_size names the plate {name!r}, but the model has {_known(structure)}.")
        size = structure.plates[name][0]
        if n >= size:
            raise ValueError(
                f"batch_size={n} for plate {name!r} of {size} rows: a minibatch must be smaller than the plate. "
                "batch_size=None uses all of the data."
            )
    return declared | chosen


def automatic_sizes(structure: Structure, siblings: frozenset[str]) -> dict[str, int]:
    """
    Minibatches of the data plates where nobody asks for any: 500 rows, or two for each coordinate if that is more. A
    plate of less than twice as many rows stays whole.
    """
    observed, latent = _sides(structure, siblings)
    n = max(500, 2 * sum(site.size for site in structure.prototype.values()))
    sizes = {name: structure.plates[name][0] for name in sorted((observed - latent) & set(structure.plates))}
    return {name: n for name, size in sizes.items() if size > 2 * n}


def _sides(structure: Structure, siblings: frozenset[str]) -> tuple[set[str], set[str]]:
    """Plates that hold observed sites, and those that hold latents."""
    observed: set[str] = set()
    latent: set[str] = set()
    for name, site in structure.sites.items():
        (observed if site.observed and name not in siblings else latent).update(site.plates)
    return observed, latent


def _the_data_plate(structure: Structure, batch_size: int, siblings: frozenset[str], local: bool) -> str:
    """The one plate that holds observed sites and, unless they may be local, no latent."""
    observed, latent = _sides(structure, siblings)
    candidates = sorted((observed if local else observed - latent) & set(structure.plates))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates and structure.in_scan:
        raise ValueError(scan_message(next(iter(structure.in_scan))))
    if not structure.plates:
        raise ValueError(
            f"batch_size={batch_size}, but the model has no plate to take a minibatch from. Put its data into one: "
            "`with numpyro.plate('N', len(x)) as rows: numpyro.sample('obs', ..., obs=x[rows])`."
        )
    if not candidates:
        for name, site in structure.latents.items():
            for plate in sorted(observed.intersection(site.plates)):
                raise ValueError(local_message(name, plate))
        raise ValueError(
            f"batch_size={batch_size} means the one plate that holds observed sites, but of {_known(structure)} none "
            "does. Observe the data inside their plate, so that they are scaled to all of its rows."
        )
    raise ValueError(
        f"batch_size={batch_size} could mean any of the plates {', '.join(map(repr, candidates))}. Say which one is "
        f"meant: batch_size={{{candidates[0]!r}: {batch_size}}}."
    )


def check_declared_in_gibbs(structure: Structure, batch_size: Any, kwargs: Mapping[str, Any]) -> None:
    if GIBBS_SITES_KWARG not in kwargs:
        return
    for name, (size, n) in structure.plates.items():
        if n is not None and n < size:
            raise ValueError(
                f"plate {name!r} declares subsample_size={n}, which numpyro.infer.Gibbs refuses, since its other "
                f"blocks see all rows. Leave it out of the model and give the kernel batch_size={{{name!r}: {n}}}."
            )


def local_message(latent: str, plate: str) -> str:
    return (
        f"latent site {latent!r} stands inside the minibatched plate {plate!r}, so each minibatch would sample other "
        "variables under the same name. Tell the kernel how to draw it for the rows of a minibatch: local=LocalGibbs() "
        "if it is discrete, local=LocalHMC(...) if it is continuous, or local= a function. Or mark a discrete site "
        f"infer={{'enumerate': 'parallel'}}, which sums it out. Or marginalise {latent!r}, move it out of {plate!r}, "
        "or use all of its rows. (If it is data: it was given obs=None.)"
    )


def scan_message(plate: str) -> str:
    return (
        f"plate {plate!r} stands inside `scan`, where a kernel cannot choose its rows. Put it outside: index the data "
        "by it first, then run over time inside it with a vectorised distribution and `.to_event(1)`."
    )


def _known(structure: Structure) -> str:
    if not structure.plates:
        return "no plate"
    return "the plates " + ", ".join(f"{name!r} ({size} rows)" for name, (size, _) in structure.plates.items())
