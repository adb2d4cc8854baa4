r"""
Whether the density of a row depends on that row alone: the energy of a minibatch must be the sum of the energies of its
rows. Then halves a, b, c, d of minibatches satisfy

.. math:: U(a, b) + U(c, d) = U(a, d) + U(c, b).

Models that draw their own keys, or local sites, and data on disk or over devices are not checked.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import independent_rows
from numpyro_sgmcmc.types import Plate, Sites

EXCHANGES = 4  # of halves of minibatches; one alone may show nothing by chance
NOT_A_SUM = 1e-4  # relative difference of sums of energies that is more than rounding


def exchanged_energies(potential: ModelPotential, z: Sites, rng_key: jax.Array) -> dict[str, dict[str, Any]]:
    """
    Plate -> site -> its energies for some minibatches, whose halves are exchanged, and the sums of the absolute terms.
    Call it in a program that already has the data: another program would copy them again.
    """
    if potential.randomised or potential.draws_local_sites or potential.sources or potential.sharded:
        return {}

    def energies(name, batch):
        terms = potential.energies(z, potential.some_rows() | {name: batch}, rng_key)
        return {site: (jnp.sum(energy), jnp.sum(jnp.abs(energy))) for site, plates, energy in terms if name in plates}

    return {
        name: jax.lax.map(partial(energies, name), _exchanged_halves(name, potential.plates, rng_key))
        for name, plate in potential.plates.items()
        if plate.batch_size > 1
    }


def check_single_rows(energies: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises a ValueError for a site that breaks the equation, as with a sum over the rows of the minibatch."""
    for plate, by_site in energies.items():
        for site, (sums, sizes) in by_site.items():
            differences, sizes = np.asarray(sums).reshape(-1, 4) @ np.array([1, 1, -1, -1]), np.asarray(sizes)
            if np.isfinite(sizes).all() and np.abs(differences).max() > NOT_A_SUM * 4 * sizes.max():
                raise ValueError(
                    f"the log density of site {site!r} for a row of plate {plate!r} depends on the other rows of its "
                    "minibatch, as with a mean, a sum, a lag or an order computed from x[rows]. So it is not that of "
                    "the row in the whole data. Compute what needs all rows before the run and pass it as an argument "
                    "with one element for each row; a series in which each row depends on the one before can index "
                    "both, y[rows] and y[rows + 1]. Or use all rows: batch_size={}."
                )


def _exchanged_halves(name: str, plates: Mapping[str, Plate], rng_key: jax.Array) -> jax.Array:
    """Minibatches of a plate from halves a and b, c and d, a and d, c and b, several times; the halves alternate."""

    def several(rng_key):
        return jax.vmap(lambda key: independent_rows(key, plates)[name])(random.split(rng_key, EXCHANGES))

    ab, cd = map(several, random.split(rng_key))
    first = jnp.arange(ab.shape[1]) % 2 == 0
    batches = ab, cd, jnp.where(first, ab, cd), jnp.where(first, cd, ab)
    return jnp.stack(batches, 1).reshape(-1, ab.shape[1])
