"""``kernel_stein_discrepancy``: against automatic differentiation, and laws that are known."""

import warnings

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, kernel_stein_discrepancy
from numpyro_sgmcmc.diagnostics.stein import CERTAIN, discrepancy


def test_the_kernel_is_the_one_of_its_definition():
    """Five draws: the sum over pairs of Langevin's Stein operator applied to the kernel twice."""
    rng = np.random.default_rng(0)
    z, s = rng.normal(size=(1, 5, 3)), rng.normal(size=(1, 5, 3))
    k = lambda a, b: (1 + ((a - b) ** 2).sum() / 3) ** -0.5  # noqa: E731

    def stein(a, b, s_a, s_b):
        mixed = jnp.trace(jax.jacfwd(jax.grad(k, 1), 0)(a, b))
        return s_a @ s_b * k(a, b) + s_a @ jax.grad(k, 1)(a, b) + s_b @ jax.grad(k)(a, b) + mixed

    a, b = z[0], s[0]
    values = [float(stein(*map(jnp.asarray, (a[i], a[j], b[i], b[j])))) for i in range(5) for j in range(5) if i != j]
    found, _, _ = discrepancy(np.concatenate([z, z], 1)[:, :5], s)
    np.testing.assert_allclose(found, np.mean(values) / 3, rtol=1e-4, atol=1e-5)


def normal(seed, shift=0.0, scale=1.0, noise=0.0):
    rng = np.random.default_rng(seed)
    z = shift + scale * rng.normal(size=(4, 300, 2))
    return z, -z + noise * rng.normal(size=z.shape)


def test_right_draws_are_at_no_distance_with_noisy_gradients_too():
    for noise in (0.0, 3.0):
        found = [discrepancy(*normal(seed, noise=noise)) for seed in range(20)]
        z = np.array([value / (CERTAIN * error + rest) for value, error, rest in found])
        assert np.abs(z).max() < 1, (noise, z)
        mean = np.mean([value for value, *_ in found])
        assert abs(mean) < 4 * np.std([value for value, *_ in found]) / 20**0.5, (noise, mean)


@pytest.mark.parametrize("shift, scale", [(0.5, 1.0), (0.0, 1.5), (0.0, 0.6)])
def test_wrong_draws_are_far(shift, scale):
    value, error, rest = discrepancy(*normal(0, shift, scale))
    assert value > CERTAIN * error + rest and value > 0.05, (value, error, rest)


@pytest.mark.optimised
@pytest.mark.slow
def test_runs():
    x = models.ROWS.astype(np.float32)
    _, variance = models.gaussian_posterior(x)

    def run(kernel):
        mcmc = MCMC(kernel, num_warmup=50, num_samples=400, num_chains=4, chain_method="vectorized", progress_bar=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mcmc.run(random.key(0), x)
        return kernel_stein_discrepancy(mcmc, x)

    assert run(SGHMC(models.gaussian, step_size=0.1, friction=3.0, steps_per_sample=20)).verdict == "right"
    found = run(SGLD(models.gaussian, step_size=1.4 * variance, steps_per_sample=10))
    assert found.verdict == "wrong" and found["ksd"]["value"] > 0.4, str(found)
