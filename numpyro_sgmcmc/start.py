r"""
Where a thermostat's chain starts when nobody says: near a mode, its thermostats in balance with the gradient noise.

A chain that falls into the posterior from afar turns potential energy into momentum, and each thermostat integrates it,
dxi = (p^2 / M - 1) dt: on the way up without bound, on the way down by at most 1 per unit of time. Until it is down the
posterior comes out too narrow. On the other side, a thermostat that starts at D, below its balance D + h s^2 / 2, leaves
the posterior too wide for about as many units of time as the balance is large. Hence a short descent for z, then a look
at the variance of the gradient there. docs/design.md has the measurements.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from numpyro.optim import Adam

from numpyro_sgmcmc import trees
from numpyro_sgmcmc.base import RowsState, Sites

STEPS = 1000  # of the descent
FIRST, LAST = 0.1, 1e-4  # Adam's step, in units of the unconstrained coordinates
PROBES = 300  # minibatches looked at: the variance of the gradient to 8 %

GradientFn = Callable[[Sites, RowsState], tuple[Any, RowsState]]


def descend(z: Sites, gradient_fn: GradientFn, rows_state: RowsState) -> tuple[Sites, RowsState]:
    """
    ``STEPS`` minibatch steps of Adam, its step size falling geometrically from ``FIRST`` to ``LAST``.

    :param gradient_fn: (position, rows state) -> gradient, next rows state.
    :return: the last finite position, and the rows state after it.
    """
    optimizer = Adam(lambda i: FIRST * (LAST / FIRST) ** (i / STEPS))

    def body(_, carry):
        state, rows_state = carry
        gradient, rows_state = gradient_fn(optimizer.get_params(state), rows_state)
        moved = optimizer.update(gradient, state)
        return trees.where(trees.all_finite(moved), moved, state), rows_state

    state, rows_state = lax.fori_loop(0, STEPS, body, (optimizer.init(z), rows_state))
    return jax.tree.map(lambda new, old: new.astype(old.dtype), optimizer.get_params(state), z), rows_state


def gradient_variance(z: Sites, gradient_fn: GradientFn, rows_state: RowsState) -> tuple[Any, RowsState]:
    """
    Variance of the gradient at ``z`` over ``PROBES`` minibatches, like ``z``, and the rows state after them.
    """
    # deviations from one of the gradients: the mean may be large against the spread in float32
    origin, rows_state = gradient_fn(z, rows_state)
    zeros = jax.tree.map(lambda g: g * 0, origin)

    def body(_, carry):
        mean, square, rows_state = carry
        gradient, rows_state = gradient_fn(z, rows_state)
        mean = jax.tree.map(lambda m, g, o: m + (g - o) / PROBES, mean, gradient, origin)
        square = jax.tree.map(lambda s, g, o: s + (g - o) ** 2 / PROBES, square, gradient, origin)
        return mean, square, rows_state

    mean, square, rows_state = lax.fori_loop(0, PROBES, body, (zeros, zeros, rows_state))
    return jax.tree.map(lambda s, m: s - m * m, square, mean), rows_state
