r"""
Whether the density of a row depends on that row alone: with the factor N / n, the energy of a minibatch must be the
mean of those of its halves,

.. math:: U(a, b) = (U(a) + U(b)) / 2.

It is not if the rows depend on each other, or on their number. Every second row is in the same half, so that neighbours
are apart. Models that draw their own keys, or local sites, and data on disk or over devices are not checked.
"""

from collections.abc import Mapping
from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import independent_rows
from numpyro_sgmcmc.types import Sites

MINIBATCHES = 4  # one alone may show nothing by chance
NOT_A_SUM = 1e-4  # relative difference of sums of energies that is more than rounding


def energies_of_halves(potential: ModelPotential, z: Sites, rng_key: jax.Array) -> dict[str, list]:
    """
    Plate -> site -> its energies for some minibatches and for their halves, and the sums of the absolute terms. Call it
    in a program that already has the data: another program would copy them again.
    """
    if potential.randomised or potential.draws_local_sites or potential.sources or potential.sharded:
        return {}

    def energies(name, batch):
        terms = potential.energies(z, potential.some_rows() | {name: batch}, rng_key)
        return {site: (jnp.sum(energy), jnp.sum(jnp.abs(energy))) for site, plates, energy in terms if name in plates}

    def of_plate(name, plate):
        batch = lambda key: independent_rows(key, potential.plates)[name]  # noqa: E731
        batches = jax.vmap(batch)(random.split(rng_key, MINIBATCHES))[:, : plate.batch_size // 2 * 2]
        halves = batches.reshape(MINIBATCHES, -1, 2).swapaxes(1, 2).reshape(2 * MINIBATCHES, -1)
        return [jax.lax.map(partial(energies, name), rows) for rows in (batches, halves)]

    return {name: of_plate(name, plate) for name, plate in potential.plates.items() if plate.batch_size > 1}


def check_single_rows(energies: Mapping[str, list]) -> None:
    """Raises a ValueError for a site that breaks the equation, as with a sum over the rows of the minibatch."""
    for plate, (by_site, halves) in energies.items():
        for site in by_site:
            whole, sizes, of_halves = map(np.asarray, (*by_site[site], halves[site][0]))
            if not np.isfinite(sizes).all():
                continue
            if np.abs(whole - of_halves.reshape(-1, 2).mean(1)).max() > NOT_A_SUM * sizes.max():
                raise ValueError(
                    f"the log density of site {site!r} for a row of plate {plate!r} depends on the other rows of its "
                    "minibatch, as with a mean, a sum, a lag or an order computed from x[rows], or on their number, "
                    "len(rows). So it is not that of the row in the whole data. Compute what needs all rows before the "
                    "run and pass it as an argument with one element for each row; a series in which each row depends "
                    "on the one before can index both, y[rows] and y[rows + 1]. In place of len(rows) write the number "
                    "of rows of the data. Or use all rows: batch_size={}."
                )
