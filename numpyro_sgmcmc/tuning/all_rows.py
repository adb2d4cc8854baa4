r"""
Whether the steps of a chain use all N rows instead of a minibatch of n, if ``batch_size`` is left out.

Let h be the largest step size with the noise of minibatches, and H the largest one without noise. A draw takes
:math:`l / h` steps or :math:`l / H`. A step takes the time of its rows, and of c more rows for all else. So all rows
are used if

.. math:: \frac{N + c}{H} \le \frac{n + c}{h}.

Then the gradient is exact, and the steps pass a Metropolis test (:mod:`~numpyro_sgmcmc.engine.metropolis`). The warm-up
compares the two whenever it measures the noise, and does not return to minibatches. So the program of a step contains
both gradients.

The number c follows from the operations in the trace of the model: those that do not grow with the rows, and
``OF_A_STEP``, over those of a row.
"""

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.types import Potential
from numpyro_sgmcmc.utils.memory import operations

MOST = 100  # minibatches in the data: with more of them, all rows are not cheaper
OF_A_STEP = 5e5  # operations that take as long as a step without a model: loops, copies, random numbers


def can_use_all_rows(gradient: Any, potential: Potential) -> bool:
    """Whether this is a control variate that the warm-up places, and one plate has all the data, which are not many."""
    exact = not (potential.randomised or potential.draws_local_sites or potential.devices > 1)
    if not (exact and len(potential.plates) == 1 and isinstance(gradient, ControlVariate) and gradient.shared):
        return False
    (plate,) = potential.plates.values()
    return plate.size <= MOST * plate.batch_size


def decides(gradient_state: Any) -> bool:
    """Whether this is the state of an estimator that may use all rows."""
    return not isinstance(getattr(gradient_state, "all_rows", ()), tuple)


def uses_all_rows(gradient_state: Any) -> jax.Array:
    """Whether the gradients are exact, in a state with an acceptance probability."""
    return gradient_state.all_rows if decides(gradient_state) else jnp.ones((), bool)


def rows_of_the_rest(potential: Potential) -> float:
    """c: the rows whose gradients take as long as the rest of a step."""
    ((name, plate),) = potential.plates.items()

    def of_rows(n):
        rows = {name: jax.ShapeDtypeStruct((n,), jnp.int32)}
        return operations(jax.make_jaxpr(jax.grad(potential.estimate))(potential.prototype, rows).jaxpr)

    few, many = of_rows(1), of_rows(plate.batch_size)
    each = max(1.0, (many - few) / (plate.batch_size - 1))
    return (max(few - each, 0) + OF_A_STEP) / each


def are_cheaper(potential: Potential, h: jax.Array, noiseless: jax.Array) -> Any:
    """Whether a draw with all rows is cheaper; ``noiseless``: H."""
    (plate,) = potential.plates.values()
    rest = rows_of_the_rest(potential)
    return (plate.size + rest) * h <= (plate.batch_size + rest) * noiseless
