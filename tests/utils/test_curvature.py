"""Products of a Hessian with a vector, of functions with and without a forward mode."""

import jax
from jax import random
from jax.experimental.ode import odeint
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC
from numpyro_sgmcmc.utils.curvature import gradient_and_product


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (cube(x), x), lambda x, g: (3 * x**2 * g,))  # as in odeint, the rule calls the function


@pytest.mark.parametrize("f", [cube, lambda x: x**3], ids=["reverse mode", "both"])
def test_the_product_is_that_of_the_hessian(f):
    energy = lambda z: jnp.sum(f(z["a"])) * z["b"]  # noqa: E731
    z, v = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}, {"a": jnp.array([1.0, -1.0]), "b": jnp.array(2.0)}
    gradient, product = gradient_and_product(jax.grad(energy), z, v)
    np.testing.assert_allclose(gradient["a"], [9, 36])
    np.testing.assert_allclose(product["a"], [18 + 6, -36 + 24])  # 6 a b v_a + 3 a^2 v_b
    np.testing.assert_allclose(product["b"], 3 - 12)


def test_other_errors_are_not_hidden():
    def wrong(z):
        raise TypeError("no number")

    with pytest.raises(TypeError, match="no number"):
        gradient_and_product(wrong, 1.0, 1.0)


def test_a_differential_equation_is_sampled_without_settings():
    times = jnp.linspace(0, 3, 13)
    y = np.tile(np.exp(-0.7 * np.asarray(times)), 20) + 0.1 * np.random.default_rng(0).normal(size=260)

    def model(k, y):
        rate = numpyro.sample("rate", dist.LogNormal(0, 1))
        u = odeint(lambda u, t, rate: -rate * u, jnp.array(1.0), times, rate)
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(u[k[rows]], 0.1), obs=y[rows])

    mcmc = MCMC(
        SGHMC(model, batch_size=50),
        num_warmup=200,
        num_samples=300,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), np.tile(np.arange(13), 20), y)
    draws = mcmc.get_samples()["rate"]
    # Laplace: the slope of exp(-rate t) is -t exp(-rate t)
    sd = 0.1 / np.sqrt(20 * float(jnp.sum((times * jnp.exp(-0.7 * times)) ** 2)))
    assert abs(draws.mean() - 0.7) < 4 * sd and 0.8 < draws.std() / sd < 1.25
