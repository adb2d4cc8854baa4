"""
Values of the local sites from visit to visit: a table with a place for each row of the data. A step reads the places of
its rows, draws new values beginning there, and writes them back where it is accepted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Potential, Rows, Sites
from numpyro_sgmcmc.utils.in_place import read_at, set_at
from numpyro_sgmcmc.utils.memory import announce

SHARE = 0.25  # of the memory, which the tables of all chains may take


class Visits(NamedTuple):
    """
    - **values** - by local site, a row of the data along axis 0.
    - **seen** - 1 where there are any.
    """

    values: Sites
    seen: jax.Array


class VisitUpdate(NamedTuple):
    """What a step would write: the values of some rows."""

    rows: jax.Array
    visits: Visits


def check_visits(potential: Potential, chains: int) -> None:
    """
    Announce the table.

    :raises ValueError: several plates are minibatched; rows are spread over devices; it is too large.
    """
    what = 'start="previous", which keeps the local values of each row,'
    if len(potential.plates) != 1:
        raise ValueError(
            f"{what} needs one minibatched plate, not {' and '.join(map(repr, potential.plates))}. Use start=None, or "
            "leave all but one whole."
        )
    if potential.devices > 1:
        raise ValueError(
            f"{what} is not for rows that are spread over {potential.devices} devices, as its table would not be. Use "
            "start=None, or a function."
        )
    size = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(lambda: no_visits(potential)))
    )
    announce(
        f"the table of local values for {chains} chain{'s' * (chains > 1)}",
        chains * size,
        SHARE,
        "Use start=None, a function for start=, or fewer chains.",
    )


def no_visits(potential: Potential) -> Visits:
    """The table before any row is seen."""
    (plate,) = potential.plates.values()
    values = {name: jnp.zeros((plate.size, *x.shape[1:]), x.dtype) for name, x in potential.local_values.items()}
    return Visits(values, jnp.zeros(plate.size, jnp.uint8))


def read(visits: Visits, rows: Rows) -> Visits:
    """The places of these rows."""
    (of_plate,) = rows.values()
    return read_at(visits, of_plate)


def write(visits: Visits, update: VisitUpdate, accepted: jax.Array) -> Visits:
    """The table after a step; of a row that comes twice, one of the two."""
    return jax.tree.map(lambda table, new: set_at(table, update.rows, new, accepted), visits, update.visits)
