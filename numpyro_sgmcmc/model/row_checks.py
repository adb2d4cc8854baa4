"""
Checks of a model whose plates are cut to minibatches: the rows of a plate must be those of its data, and every site in
it must have one log density per row.
"""

from collections.abc import Mapping
from typing import Any

from numpyro_sgmcmc.data.argument_checks import SPARSE_ROWS, closed_over_sparse, sparse_arguments
from numpyro_sgmcmc.model.given_values import MISSING
from numpyro_sgmcmc.model.structure import Site, Structure, has_rows
from numpyro_sgmcmc.types import Plate

COLUMN = "Often the reason is a column of shape (N, 1) combined with a vector of shape (N,)"
INDEXED = "`with numpyro.plate(...) as rows: x[rows]`, or `numpyro.subsample(x, event_dim=x.ndim - 1)` inside it"


def check_rows(cut: Structure, plates: Mapping[str, Plate]) -> None:
    """
    :raises ValueError: for data that do not fit a plate, a site whose log density is not one number per row, or a site
        outside a plate on whose rows it depends.
    """
    check_lengths(cut, plates)
    for name, site in cut.sites.items():
        for plate in plates.keys() & site.plates.keys():
            _check_shape(name, site, plate, plates[plate].batch_size)
            _check_dependence(name, site, plate, plates[plate].batch_size, cut.randomised)
        for plate in site.uses - set(site.plates):
            raise ValueError(
                f"site {name!r} depends on the rows of the minibatched plate {plate!r} but is outside it, so it "
                f"would not be scaled to the whole plate. Move it into {plate!r}, with one log density per row."
            )


class SparseRows(ValueError):
    """A model looks for rows among all elements of a sparse matrix."""


def check_sparse(
    model: Any, cut: Structure, plates: Mapping[str, Plate], args: tuple, kwargs: Mapping[str, Any]
) -> None:
    """Raises an error for a sparse matrix of which each row of a minibatch is looked up among all its elements."""
    names = [
        name
        for name in sparse_arguments(args, kwargs)
        if any(use.argument.startswith(name) and use.depends & plates.keys() for use in cut.whole)
    ]
    names += [
        f"{name}, over which the model closes,"
        for name, matrix in closed_over_sparse(model)
        if any(cut.largest >= plate.batch_size * matrix.nse for plate in plates.values())
    ]
    if names:
        raise SparseRows(
            f"{names[0]} is a sparse matrix of JAX whose rows are not apart, so every row of a minibatch would be "
            f"looked for among all of its elements. {SPARSE_ROWS}"
        )


def check_observations(structure: Structure) -> None:
    """Raises a ValueError for an observed site whose values and distribution are combined each with each."""
    for name, site in structure.sites.items():
        if site.crossed:
            values, batch = site.crossed
            raise ValueError(
                f"site {name!r} has a log density of shape {site.log_prob_shape}, because each of its values, of shape "
                f"{values}, is combined with each element of its distribution, of shape {batch}. {COLUMN}. Give both "
                "the same shape: column[:, 0]."
            )


def check_missing(structure: Structure) -> None:
    """Raises a ValueError for a site that depends on the missing values of a site with ``obs_mask=``."""
    for name, site in structure.sites.items():
        for used in site.uses:
            if used.startswith(MISSING):
                raise ValueError(
                    f"site {name!r} depends on the {used}, which obs_mask= marks. A kernel leaves such values out, "
                    "because usually nothing depends on them. Draw them for the rows of each minibatch by "
                    "local=LocalHMC(...), or make them a site of their own: missing = numpyro.sample(...) for the rows "
                    "without a value, and x.at[where].set(missing)."
                )


def check_lengths(cut: Structure, plates: Mapping[str, Plate]) -> None:
    """
    Raises a ValueError for an array whose length is not that of the plate that indexes it: JAX clamps an index beyond
    the end. An array that the model computes may be longer than the plate, for example a forecast.
    """
    # for a series of T numbers: y[rows] and y[rows + 1] in a plate of T - 1
    by_rows = [lookup for lookup in cut.lookups if not lookup.codes]
    shifted = {(lookup.plate, lookup.shape[lookup.dim]) for lookup in by_rows if not lookup.exact}
    for plate, exact, shape, dim, argument, _ in by_rows:
        length, size = shape[dim], plates[plate].size
        wrong_length = length < size or (length > size and argument)
        if exact and wrong_length and (plate, length) not in shifted:
            what = f"{argument or 'an array'} of shape {shape}"
            wrong, first = "rows that the array does not have", ""
            if length > size:
                wrong = f"no row of the array from {size} on"
                first = f" To use the first {size} rows, write x[:{size}][rows]."
            raise ValueError(
                f"plate {plate!r} has {size} rows, but indexes {what} with {length} in dimension {dim}: it would use "
                f"{wrong}. Give the plate the length of its data, numpyro.plate({plate!r}, len(x)), and all arrays "
                f"that it indexes the same number of rows.{first}"
            )


def _check_shape(name: str, site: Site, plate: str, n: int) -> None:
    shape, dim = site.log_prob_shape, site.plates[plate]
    if not has_rows(shape, dim, n):
        raise ValueError(
            f"site {name!r} in plate {plate!r} has a log density of shape {shape}, but a minibatch of {n} "
            f"needs {n} in dimension {dim}: its data are not indexed by the plate. Use {INDEXED}."
        )
    for other in set(range(-len(shape), 0)).difference(site.plates.values()):
        if n > 1 and has_rows(shape, other, n):
            raise ValueError(
                f"site {name!r} in plate {plate!r} has a log density of shape {shape}: dimension {other} also has "
                f"{n} elements, but no plate. {COLUMN}: give both the same shape. An intended axis needs a plate or "
                "`.to_event`."
            )


def _check_dependence(name: str, site: Site, plate: str, n: int, randomised: bool) -> None:
    if plate in site.uses and plate in site.one_number_in:
        if site.factor:
            raise ValueError(
                f"factor {name!r} in plate {plate!r} is one number for the whole minibatch and would be "
                f"counted once for each row. Give it one number per row, shape ({n},)."
            )
        raise ValueError(
            f"site {name!r} in plate {plate!r} has one log density for the whole minibatch, which would be counted "
            f"once for each row: its event contains the rows. Leave their dimension to the plate; `.to_event` is for "
            "dimensions within a row."
        )
    if site.observed and plate not in site.uses and not randomised:
        raise ValueError(
            f"observed site {name!r} is in plate {plate!r} but is the same for every row of it: its data "
            f"are not indexed by the plate. Use {INDEXED}."
        )
