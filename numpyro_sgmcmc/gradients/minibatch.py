"""
The plain gradient estimator, and the table of local values that it may keep, with an entry for each row of the data. A
step reads the entries of its rows, draws new values by a chain that starts there, and writes them back if it is
accepted.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, Sites
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


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    r"""
    The plain estimator
    :math:`\nabla\tilde U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_{i \in S}\nabla\log p(x_i \mid z)`.

    Its variance is O(N^2 / n) per coordinate. It is the default of kernels with a given step size. It has no
    state, except for the local values of the rows if ``local=`` starts at those of the previous visit.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Minibatch, SGLD
        >>> kernel = SGLD(lambda: None, step_size=1e-4, gradient=Minibatch())
    """

    keeps_local_values: ClassVar[bool] = True

    def check(self, potential: Potential, chains: int) -> None:
        if potential.keeps_local_values:
            check_visits(potential, chains)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[()] | Visits:
        return no_visits(potential) if potential.keeps_local_values else ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        if not potential.keeps_local_values:
            energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
            return Evaluation(energy, gradient, ())
        check_table(gradient_state, potential)
        (numbers,) = rows.values()
        before = read_at(gradient_state, numbers)
        visited = jax.value_and_grad(potential.visit, has_aux=True)
        (energy, values), gradient = visited(z, rows, rng_key, before)
        return Evaluation(energy, gradient, VisitUpdate(numbers, Visits(values, jnp.ones_like(before.seen))))

    def commit(self, gradient_state: Any, update: Any, accepted: jax.Array) -> Any:
        if not isinstance(update, VisitUpdate):
            return gradient_state
        # if a row occurs twice, one of its two values is stored
        return set_at(gradient_state, update.rows, update.visits, accepted)


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
    table = jax.eval_shape(lambda: no_visits(potential))
    announce("local values", table, chains, SHARE, "Use start=None, a function for start=, or fewer chains.")


def no_visits(potential: Potential) -> Visits:
    """The table before the first visit to a row."""
    (plate,) = potential.plates.values()
    values = {name: jnp.zeros((plate.size, *x.shape[1:]), x.dtype) for name, x in potential.local_values.items()}
    return Visits(values, jnp.zeros(plate.size, jnp.uint8))


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
