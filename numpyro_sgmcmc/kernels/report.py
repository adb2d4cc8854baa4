"""Tells the user, once, that a chain stands still because its steps leave the finite numbers."""

import warnings

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils import trees

STUCK = 100  # steps refused in a row after which a chain is reported


def _warn(stuck: np.ndarray, refused: np.ndarray, step_size: np.ndarray) -> None:
    for chain in np.flatnonzero(stuck):
        warnings.warn(
            f"a chain has refused {np.ravel(refused)[chain]} steps in a row, as they left the finite numbers; its step "
            f"size is {np.ravel(step_size)[chain]:.3g}. It stays at its last finite state. Use a smaller step_size, or "
            "look for data that are not finite.",
            stacklevel=1,
        )


@jax.custom_batching.custom_vmap
def report_stuck(before: jax.Array, after: jax.Array, step_size: jax.Array) -> jax.Array:
    """
    Warn if a chain's count of steps refused in a row has reached ``STUCK`` in this transition.

    The host is called only then: the predicate is one number for all chains, also under a vmap of the host's.
    """
    stuck = (after >= STUCK) & ((before < STUCK) | (after < before))
    lax.cond(
        jnp.any(stuck),
        lambda: jax.debug.callback(_warn, stuck, after, step_size),
        lambda: None,
    )
    return stuck


@report_stuck.def_vmap
def _(axis_size, in_batched, before, after, step_size):
    return report_stuck(*trees.mapped(axis_size, tuple(in_batched), (before, after, step_size))), True
