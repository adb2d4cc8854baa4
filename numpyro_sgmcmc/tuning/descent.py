"""Stochastic gradient descent on minibatches."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax, random
from numpyro.optim import Adam

from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import Plate, Rows, RowScheme, RowsState
from numpyro_sgmcmc.utils import trees


def falling_adam(first: Any, last: float, steps: int) -> Adam:
    """Adam with a step size that decreases geometrically from ``first`` to ``last`` in ``steps`` steps."""
    return Adam(lambda k: first * (last / first) ** (k / steps))


def minimise(
    loss: Callable[[Any, Rows, jax.Array], jax.Array],
    optimizer: Any,
    state: Any,
    steps: tuple[Any, Any],
    rows: RowScheme,
    plates: Mapping[str, Plate],
    key_rows: jax.Array,
    key_loss: jax.Array,
) -> Any:
    """
    Makes steps of an optimizer on ``loss(params, rows, rng_key)``. Steps that end in non-finite values are skipped.

    :param state: state of the optimizer.
    :param steps: number of the first step, and number of the last step plus 1. Step k uses batch k.
    :return: the state after the last step.
    """

    def body(k, state):
        batch, _ = next_rows(rows, RowsState(key_rows, k), plates)
        loss_at = lambda params: loss(params, batch, random.fold_in(key_loss, k))  # noqa: E731
        value, gradient = jax.value_and_grad(loss_at)(optimizer.get_params(state))
        moved = optimizer.update(gradient, state, value)
        return trees.where(trees.all_finite((value, moved)), moved, state)

    return lax.fori_loop(*steps, body, state)
