"""The plain gradient estimator."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.local_tables import Visits, VisitUpdate, check_table, check_visits, no_visits, read, write
from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, Sites


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    r"""
    The plain estimator
    :math:`\nabla\tilde U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_{i \in S}\nabla\log p(x_i \mid z)`.

    Its variance is O(N^2 / n) per coordinate. It is the default of the kernels. It has no state, except for the local
    values of the rows if ``local=`` starts at those of the previous visit.

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
        del z, rng_key
        return no_visits(potential) if potential.keeps_local_values else ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        if not potential.keeps_local_values:
            energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
            return Evaluation(energy, gradient, ())
        check_table(gradient_state, potential)
        before = read(gradient_state, rows)
        visited = jax.value_and_grad(potential.visit, has_aux=True)
        (energy, values), gradient = visited(z, rows, rng_key, before)
        (numbers,) = rows.values()
        return Evaluation(energy, gradient, VisitUpdate(numbers, Visits(values, jnp.ones_like(before.seen))))

    def commit(self, gradient_state: Any, update: Any, accepted: jax.Array) -> Any:
        return write(gradient_state, update, accepted) if isinstance(update, VisitUpdate) else gradient_state
