"""
The tables of :class:`~numpyro_sgmcmc.SAGA`. For each unit of the data they store the gradient of a row, the gradient of
a batch, or the slope of a row's energy in its linear predictor.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.full_pass import chunk_length, in_chunks
from numpyro_sgmcmc.gradients.predictor import RowPredictor, check_predictor, row_predictor
from numpyro_sgmcmc.types import Plate, Potential, Rows, RowScheme, Sites
from numpyro_sgmcmc.utils.validation import checked_count


class Units(NamedTuple):
    """Some units, evaluated at one position."""

    units: jax.Array  # their numbers, shape (m,)
    energy: jax.Array  # sum of their energies
    values: Any  # the values that a table stores for them, m along axis 0


@dataclass(frozen=True)
class Table:
    """A form of table."""

    label: str  # the name of the estimator, for errors
    predictor: Any = None  # see :func:`~numpyro_sgmcmc.gradients.predictor.row_predictor`
    chunk_size: int | None = None  # see :func:`~numpyro_sgmcmc.gradients.full_pass.chunk_length`

    def check(self, potential: Potential) -> None:
        """Raises an error if this form does not work with this potential."""

    def units(self, plate: Plate) -> int:
        """The number K of units."""
        return plate.size

    def units_a_step(self, plate: Plate) -> int:
        """The number m of units in a minibatch."""
        return plate.batch_size

    def rows(self, units: jax.Array, plate: Plate) -> jax.Array:
        """The rows of these units."""
        return units

    def chunk(self, potential: Potential, z: Sites) -> int:
        """The number of units that a pass over the data evaluates together."""
        return chunk_length(lambda rows: self.evaluate(potential, z, rows), potential.plates, self.chunk_size)

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units: ...

    def to_gradient(self, potential: Potential, z: Sites, units: jax.Array, values: Any) -> Sites:
        """The sum of the gradients of these units, a linear function of their values; it does not depend on ``z``."""
        return jax.tree.map(lambda v: v.sum(0), values)

    def fill(self, potential: Potential, z: Sites, table: Any) -> Any:
        """The table, filled by a pass over the data at ``z``."""
        ((name, plate),) = potential.plates.items()

        def write(first, n, table):
            rows = self.rows(first + jnp.arange(n, dtype=jnp.int32), plate)
            values = self.evaluate(potential, z, {name: rows}).values
            return jax.tree.map(lambda t, v: lax.dynamic_update_slice_in_dim(t, v, first, 0), table, values)

        return in_chunks(write, self.units(plate), self.chunk(potential, z), table)

    def total(self, potential: Potential, z: Sites, table: Any, length: int) -> Sites:
        """The sum of all gradients of the table, computed by ``length`` units; it does not depend on ``z``."""

        def add(first, n, total):
            units = first + jnp.arange(n, dtype=jnp.int32)
            values = jax.tree.map(lambda t: lax.dynamic_slice_in_dim(t, first, n), table)
            return jax.tree.map(jnp.add, total, self.to_gradient(potential, z, units, values))

        (plate,) = potential.plates.values()
        return in_chunks(add, self.units(plate), length, jax.tree.map(jnp.zeros_like, z))


class PerRow(Table):
    """The gradient of each row."""

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((name, units),) = rows.items()

        def energy(z, row):
            return potential.per_row(z, {name: row[None]})[0]

        energies, gradients = jax.vmap(jax.value_and_grad(energy), (None, 0))(z, units)
        return Units(units, energies.sum(), gradients)


class PerBatch(Table):
    """The summed gradient of each batch of a :class:`Partition`."""

    def units(self, plate: Plate) -> int:
        return -(-plate.size // plate.batch_size)

    def units_a_step(self, plate: Plate) -> int:
        return 1

    def chunk(self, potential: Potential, z: Sites) -> int:
        return 1

    def rows(self, units: jax.Array, plate: Plate) -> jax.Array:
        return rows_of_batch(units[0], *plate)

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((name, numbers),) = rows.items()
        size, batch_size = potential.plates[name]
        unit = numbers[0] // batch_size
        # False for the repetitions of the last row, which are not part of the last batch
        there = unit * batch_size + jnp.arange(batch_size) < size

        def energy(z):
            return jnp.where(there, potential.per_row(z, rows), 0.0).sum()

        total, gradient = jax.value_and_grad(energy)(z)
        return Units(unit[None], total, jax.tree.map(lambda g: g[None], gradient))


class Linear(Table):
    """The slope of each row's energy in its linear predictor: its gradient is the slope times a constant vector."""

    def check(self, potential: Potential) -> None:
        if self.predictor is not None:
            check_predictor(potential, self.predictor, self.label)

    def evaluate(self, potential: Potential, z: Sites, rows: Rows) -> Units:
        ((_, units),) = rows.items()
        energies, slopes = jax.vmap(self._row(potential).energy_and_slope, (None, 0))(z, units)
        # the table needs no axes of length 1
        ones = tuple(axis for axis in range(1, slopes.ndim) if slopes.shape[axis] == 1)
        return Units(units, energies.sum(), slopes.squeeze(ones))

    def to_gradient(self, potential: Potential, z: Sites, units: jax.Array, values: Any) -> Sites:
        predictor = self._row(potential)
        shape = jax.eval_shape(predictor.eta, z, units[0]).shape
        return predictor.gradient(z, units, values.reshape(-1, *shape))

    def _row(self, potential: Potential) -> RowPredictor:
        return row_predictor(potential, self.predictor, self.label)


TABLES: dict[str, type[Table]] = {"row": PerRow, "batch": PerBatch, "linear": Linear}


@dataclass(frozen=True)
class Partition:
    """A scheme applied to the batches of a fixed partition of the rows, see :func:`rows_of_batch`."""

    scheme: RowScheme
    distinct = False
    contiguous: ClassVar[bool] = True

    @property
    def independent(self) -> bool:
        return getattr(self.scheme, "independent", False)

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        return rows_of_batch(self.scheme(rng_key, t, -(-size // batch_size), 1)[0], size, batch_size)


def rows_of_batch(j: jax.Array, size: int, batch_size: int) -> jax.Array:
    """Rows jB to (j + 1) B - 1. If B does not divide N, the last batch is filled with copies of the last row."""
    rows = j.astype(jnp.uint32) * batch_size + jnp.arange(batch_size, dtype=jnp.uint32)
    return jnp.minimum(rows, size - 1).astype(jnp.int32)


def check_options(name: str, argument: str, form: str | None, predictor: Any, chunk_size: Any, memory: Any) -> None:
    """Checks the options of estimators with tables. Raises a ValueError for an option that does not fit."""
    if not (isinstance(memory, (int, float)) and 0 < memory <= 1):
        raise ValueError(f"{name}(memory)={memory!r} must be a share, above 0 and at most 1.")
    if chunk_size is not None:
        checked_count(f"{name}(chunk_size)", chunk_size)
    if predictor is not None and form != "linear":
        raise ValueError(
            f"{name}(predictor) is used only with {argument}='linear', not with {argument}={form!r}. Leave it out."
        )
    if not (predictor is None or isinstance(predictor, str) or callable(predictor)):
        raise TypeError(f"{name}(predictor)={predictor!r} must be the name of a site, or a function.")


def first_occurrences(units: jax.Array) -> jax.Array:
    """1 for the first occurrence of each number, 0 for its repetitions."""
    order = jnp.argsort(units, stable=True)
    ordered = units[order]
    new = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros(units.shape, jnp.uint8).at[order].set(new.astype(jnp.uint8))
