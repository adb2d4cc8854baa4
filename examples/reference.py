"""Draws of NumPyro's own samplers, which others are compared with, as one program: MCMC compiles one for every run."""

from functools import partial

import jax
from jax import lax


@partial(jax.jit, static_argnums=(0, 1, 2))
def hmc_draws(kernel, num_warmup, num_samples, keys, start, *data):
    """
    Draws and acceptance probabilities of chains of HMC or NUTS, each of shape (chains, num_samples, ...).

    :param keys: one for each chain.
    :param start: of each chain.
    :param data: arguments of the model, the same for all chains.
    """

    def transition(state, _):
        state = kernel.sample(state, data, {})
        return state, (state.z, state.accept_prob)

    def chain(key, start):  # one loop for both, as each has its own copy of the transition to compile
        state = kernel.init(key, num_warmup, start, data, {})
        draws = lax.scan(transition, state, length=num_warmup + num_samples)[1]
        return jax.tree.map(lambda x: x[num_warmup:], draws)

    return jax.vmap(chain)(keys, start)
