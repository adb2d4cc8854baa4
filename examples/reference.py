"""Draws of NumPyro's own samplers, which others are compared with, as one program: MCMC compiles one for every run."""

from functools import partial

import jax
from jax import lax


@partial(jax.jit, static_argnums=(0, 1, 2))
def hmc_draws(kernel, num_warmup, num_samples, key, start, *data):
    """
    Draws of a chain of HMC or NUTS and what is told of them, each of shape (num_samples, ...).

    Chains are a ``jax.vmap`` of it; one chain is not, for a vmap of NUTS takes longer to trace than to compile.

    :param start: unconstrained; where None the kernel chooses.
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
