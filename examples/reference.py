"""Draws of NumPyro's own samplers, for comparison, in one compiled program; MCMC would compile one for every run."""

from functools import partial

import jax
from jax import lax


@partial(jax.jit, static_argnums=(0, 1, 2))
def hmc_draws(kernel, num_warmup, num_samples, key, start, *data):
    """
    Draws of a chain of HMC or NUTS and their statistics, each of shape (num_samples, ...).

    For several chains use a ``jax.vmap`` of it, but not for one: a vmap of NUTS takes longer to trace than to compile.

    :param start: unconstrained; None lets the kernel choose.
    :param data: arguments of the model.
    :return: site -> constrained draws, and field of the state -> its values (accept_prob, num_steps, diverging).
    """

    def transition(state, _):
        state = kernel.sample(state, data, {})
        told = {"accept_prob": state.accept_prob, "num_steps": state.num_steps, "diverging": state.diverging}
        return state, (kernel.postprocess_fn(data, {})(state.z), told)

    # one loop for both, as each has its own copy of the transition to compile
    state = kernel.init(key, num_warmup, start, data, {})
    draws = lax.scan(transition, state, length=num_warmup + num_samples)[1]
    return jax.tree.map(lambda x: x[num_warmup:], draws)
