"""
The Gaussian model of Chen, Ding & Carin (2015), section 5, and the exact distribution of a chain on it.

The data are x_i ~ N(theta, 1), the prior is theta ~ N(0, 1). The gradient of a minibatch is the full gradient plus an
error that does not depend on theta, so that a step of any kernel is linear: with x = (theta - posterior mean, p)

    x' = M x + S n + G e,

where n is the injected standard normal noise and e is the error of the gradient, of variance s^2.
"""

from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_sgmcmc.types import Evaluation, Phase
from numpyro_sgmcmc.utils import noise

ROWS, BATCH = 1000, 10
TRUTH = 0.5  # the theta that the data are drawn from


def model(x):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.Normal(theta, 1.0), obs=x[rows])


class Posterior(NamedTuple):
    """
    - **mean**, **precision** - of theta given the data.
    - **noise** - s^2, variance of the gradient of ``BATCH`` distinct rows.
    """

    mean: float
    precision: float
    noise: float


def simulate_data(seed):
    """The data and their posterior."""
    x = TRUTH + np.random.default_rng(seed).standard_normal(ROWS)
    noise = ROWS**2 / BATCH * (1 - BATCH / ROWS) * x.var(ddof=1)
    return jnp.asarray(x), Posterior(x.sum() / (ROWS + 1), ROWS + 1.0, noise)


def dimension(kernel):
    """Of the state: theta alone, or theta and p."""
    return 1 if "A" not in kernel.dynamics.flows else 2


def step_matrices(kernel, precision, h):
    """
    M, S and G of one step of the kernel's integrator: the Jacobians of the package's own step, with the noise as input.

    :param kernel: a kernel for the model above whose word does not begin with a kick.
    :return: arrays of shape (d, d), (d, draws of noise in a step) and (d, 1), with d the dimension of the state.
    """
    d = dimension(kernel)
    assert not kernel.integrator.carries_gradient, "the state of this word has a gradient in it"
    draws = sum(kernel.dynamics.flows[letter].needs_noise for letter in kernel.integrator.word)

    def step(x, n, e):
        z, *momentum = ({"theta": part} for part in x)
        supply = iter(n)
        with mock.patch.object(noise, "normal_like", lambda key, tree: {"theta": next(supply)}):
            phase, *_ = kernel.integrator.step(
                kernel.dynamics,
                Phase(z, momentum[0] if momentum else (), ()),
                (),
                h,
                lambda z: Evaluation(jnp.zeros(()), {"theta": precision * z["theta"] + e[0]}, ()),
                jax.random.key(0),
            )
        return jnp.stack(jax.tree.leaves((phase.z, phase.momentum)))

    return jax.jacobian(step, argnums=(0, 1, 2))(jnp.zeros(d), jnp.zeros(draws), jnp.zeros(1))
