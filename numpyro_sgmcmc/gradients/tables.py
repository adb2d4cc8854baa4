"""
What :class:`~numpyro_sgmcmc.SAGA` remembers of a unit of the data: the gradient of a row, of a batch, or the slope of a
row's energy in its linear predictor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.full_pass import CHUNK
from numpyro_sgmcmc.model.linear import linear_predictor
from numpyro_sgmcmc.types import Plate, Potential, Rows, Sites


class Units(NamedTuple):
    """
    Some units at one place.

    - **units** - their numbers, shape ``(m,)``.
    - **energy** - sum of their energies.
    - **values** - what a table holds of them, m along axis 0.
    - **to_gradient** - values -> the sum of the gradients they stand for, a dict like ``z``; linear.
    """

    units: jax.Array
    energy: jax.Array
    values: Any
    to_gradient: Callable[[Any], Sites]


class Table(Protocol):
    """A form of table."""

    def units(self, plate: Plate) -> int:
        """K, their number."""
        ...

    def chunk(self, plate: Plate) -> int:
        """How many units a full pass looks at together."""
        ...

    def rows(self, units: jax.Array, plate: Plate) -> jax.Array:
        """The rows to look at for these units."""
        ...

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units: ...


class PerRow:
    """The gradient of each row."""

    def units(self, plate: Plate) -> int:
        return plate.size

    def chunk(self, plate: Plate) -> int:
        # never all rows at once: NumPyro would not index by them any more
        return min(CHUNK, -(-plate.size // 2))

    def rows(self, units: jax.Array, plate: Plate) -> jax.Array:
        del plate
        return units

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((name, units),) = rows.items()

        def energy(z, row):
            return potential.per_row(z, {name: row[None]})[0]

        energies, gradients = jax.vmap(jax.value_and_grad(energy), (None, 0))(z, units)
        return Units(units, energies.sum(), gradients, lambda values: jax.tree.map(lambda v: v.sum(0), values))


class PerBatch:
    """The summed gradient of each batch of a :class:`~numpyro_sgmcmc.rows.schemes.Partition`."""

    def units(self, plate: Plate) -> int:
        return -(-plate.size // plate.batch_size)

    def chunk(self, plate: Plate) -> int:
        del plate
        return 1

    def rows(self, units: jax.Array, plate: Plate) -> jax.Array:
        rows = units[0] * plate.batch_size + jnp.arange(plate.batch_size, dtype=jnp.int32)
        return jnp.minimum(rows, plate.size - 1)

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((name, numbers),) = rows.items()
        plate = potential.plates[name]
        unit = numbers[0] // plate.batch_size
        # rows of the last batch beyond the data
        there = unit * plate.batch_size + jnp.arange(plate.batch_size) < plate.size

        def energy(z):
            return jnp.where(there, potential.per_row(z, rows), 0.0).sum()

        total, gradient = jax.value_and_grad(energy)(z)
        return Units(
            unit[None], total, jax.tree.map(lambda g: g[None], gradient), lambda v: jax.tree.map(lambda x: x[0], v)
        )


class Linear(PerRow):
    """The slope of each row's energy in its linear predictor: its gradient is the slope times what is fixed."""

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((_, units),) = rows.items()
        predictor, energies, axis = linear_predictor(potential, z, rows)
        eta, pull_back = jax.vjp(predictor, z)
        energy, slopes = jax.value_and_grad(lambda eta: energies(eta).sum())(eta)
        return Units(units, energy, jnp.moveaxis(slopes, axis, 0), lambda v: pull_back(jnp.moveaxis(v, 0, axis))[0])


TABLES: dict[str, Table] = {"row": PerRow(), "batch": PerBatch(), "linear": Linear()}
