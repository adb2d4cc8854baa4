"""
A table of local values with an entry for each row of the data. A step reads the entries of its rows, draws new values
by a chain that starts there, and writes them back if it is accepted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Potential, Rows, Sites
from numpyro_sgmcmc.utils.memory import announce
from numpyro_sgmcmc.utils.workarounds.in_place import read_at, set_at

SHARE = 0.25  # share of the memory that the tables of all chains may take


class Visits(NamedTuple):
    values: Sites  # local site -> values, with rows of the data along axis 0
    seen: jax.Array  # 1 for each row that has values, otherwise 0


class VisitUpdate(NamedTuple):
    """The update by a step, if it is accepted: new values of some rows."""

    rows: jax.Array
    visits: Visits


def check_visits(potential: Potential, chains: int) -> None:
    """Logs the size of the table. Raises a ValueError if it is too large, or not possible for this model."""
    what = 'start="previous", which keeps the local values of each row,'
    if len(potential.plates) != 1:
        raise ValueError(
            f"{what} needs one minibatched plate, not {' and '.join(map(repr, potential.plates))}. Use start=None, or "
            "minibatch only one plate."
        )
    if potential.devices > 1:
        raise ValueError(
            f"{what} does not work with rows that are distributed over {potential.devices} devices, as its table is "
            "not. Use start=None, or a function."
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
    """The table before the first visit to a row."""
    (plate,) = potential.plates.values()
    values = {name: jnp.zeros((plate.size, *x.shape[1:]), x.dtype) for name, x in potential.local_values.items()}
    return Visits(values, jnp.zeros(plate.size, jnp.uint8))


def read(visits: Visits, rows: Rows) -> Visits:
    """The entries of these rows."""
    (of_plate,) = rows.values()
    return read_at(visits, of_plate)


def check_table(visits: object, potential: Potential) -> None:
    """Raises a ValueError if the state of a resumed run has no table, or one for another number of rows."""
    ((name, plate),) = potential.plates.items()
    if not isinstance(visits, Visits):
        raise ValueError(
            'start="previous" needs a table of local values, but the state that the run is resumed from has none: it '
            'comes from a kernel without start="previous". Resume with the kernel of that run, or start a new run.'
        )
    if len(visits.seen) != plate.size:
        raise ValueError(
            f"the state that the run is resumed from has local values for {len(visits.seen)} rows, but plate {name!r} "
            f"has {plate.size}. Resume with the data of that run, or start a new run. With start=None instead of "
            'start="previous" no values of rows are kept.'
        )


def write(visits: Visits, update: VisitUpdate, accepted: jax.Array) -> Visits:
    """The table after a step. If a row occurs twice, one of its two values is stored."""
    return jax.tree.map(lambda table, new: set_at(table, update.rows, new, accepted), visits, update.visits)
