"""
Large arrays that a program closes over, such as the data of a model under ``MCMC``. XLA copies a constant into each
loop that reads it: 200 MB of data take 350 MB more and a second of compilation for each loop, and the warm-up has many.
"""

import jax
from jax import lax

LEAST = 2**20  # bytes; copies of less cost nothing


def not_copied(x: jax.Array) -> jax.Array:
    """The same array, in a trace. Behind a barrier it is no constant to XLA, and reaches the loops without a copy."""
    return lax.optimization_barrier(x) if len(x.sharding.device_set) == 1 else x
