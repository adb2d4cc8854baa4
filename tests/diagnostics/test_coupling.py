"""``couple``: its bound against Wasserstein distances that are known."""

import warnings

from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, ControlVariate, Reshuffled, WithoutReplacement, couple
from numpyro_sgmcmc.diagnostics.coupling import distances
from numpyro_sgmcmc.diagnostics.linear_law import linear_law

X = models.ROWS.astype(np.float32)
MEAN, VARIANCE = models.gaussian_posterior(X)
S2 = 24**2 * X.var() * (1 / 2 - 1 / 24) * 24 / 23  # of batches of two rows, for a mean of unit variance


def run(kernel, *args, num_samples=500, num_chains=4, method="vectorized"):
    mcmc = MCMC(
        kernel,
        num_warmup=50,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=method,
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(0), *(args or (X,)))
    return mcmc


def kernel(h, rows, word="ABOBA", batch=2, D=5.0):
    steps = max(1, round(1.5 / h / D**0.5))
    if word == "E":
        return SGLD(models.gaussian, step_size=h, batch_size=batch, rows=rows, steps_per_sample=round(0.1 / h))
    return SGHMC(
        models.gaussian, step_size=h, friction=D, batch_size=batch, rows=rows, integrator=word, steps_per_sample=steps
    )


@pytest.mark.optimised
@pytest.mark.parametrize(
    "word, h, rows",
    [
        ("ABOBA", 0.01, WithoutReplacement()),
        ("BAOAB", 0.04, WithoutReplacement()),
        ("E", 0.01, WithoutReplacement()),
        ("ABOBA", 0.04, Reshuffled()),
    ],
)
@pytest.mark.slow
def test_between_the_distance_and_three_times_it(word, h, rows):
    """The chain is normal, its variance that of the linear law, the mean right."""
    one = kernel(h, rows, word)
    epoch = 12 if isinstance(rows, Reshuffled) else 1
    law = linear_law(one.dynamics, one.integrator, h, np.array([1 / VARIANCE]), np.array([S2]), epoch=epoch)
    true = np.sqrt(1 + law.step[0] + law.noise[0]) - np.sqrt(1 + law.step[0])
    found = couple(run(one), random.key(1), X)
    bound = found.bound["mu"] * np.sqrt(1 + law.step[0])
    assert true < 1.1 * bound and bound < 3 * true, (true, bound)
    assert found.lower["mu"] <= found.bound["mu"]
    assert found["mu"]["bound"] == found.bound["mu"]


def test_distances_of_normal_draws():
    """Draws that share nothing, of laws whose distance is known in each coordinate, and in all together."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 1000, 2)) * [1.0, 1.5], rng.normal(size=(2, 1000, 2)) + [0.3, 0.0]
    bound, lower, joint = distances(x, y)
    np.testing.assert_allclose(bound, [0.3, 0.5], atol=0.1)
    np.testing.assert_allclose(lower, [0.3, 0.5], atol=0.1)
    assert (lower <= bound + 1e-12).all()
    assert np.hypot(0.3, 0.5) < joint < 3 * np.hypot(0.3, 0.5)


SCALES = np.array([0.3, 0.6, 1.0, 2.0, 4.0])  # of the rows of `five`
VECTORS = (SCALES * np.random.default_rng(5).normal(size=(40, 5))).astype(np.float32)


def five(x):
    """A normal posterior whose widths differ by a factor of 13."""
    mu = numpyro.sample("mu", dist.Normal(0, 10).expand([5]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, jnp.asarray(SCALES)).to_event(1), obs=x[rows])


@pytest.mark.optimised
@pytest.mark.parametrize("gradient", ["full", "control"])
@pytest.mark.parametrize(
    "word, h, batch, rows",
    [
        ("ABOBA", 0.1, 4, WithoutReplacement()),
        ("BAOAB", 0.02, 4, WithoutReplacement()),
        ("ABOBA", 0.2, 4, Reshuffled()),
    ],
)
@pytest.mark.every(6)
@pytest.mark.slow
def test_five_coordinates_of_different_widths(word, h, batch, rows, gradient):
    """Each by its own law. The laws of X and Y are normal with the same axes, so W_2^2 of all together is a sum."""
    curvature = 40 / SCALES**2 + 1 / 100
    noise = 40**2 * VECTORS.astype(float).var(0) / SCALES**4 * (1 / batch - 1 / 40) * 40 / 39
    one = SGHMC(
        five,
        step_size=h,
        friction=1.0,
        inverse_mass_matrix={"mu": jnp.asarray(1 / curvature, jnp.float32)},
        batch_size=batch,
        rows=rows,
        integrator=word,
        steps_per_sample=round(3 / h),
    )
    epoch = 10 if isinstance(rows, Reshuffled) else 1
    law = linear_law(one.dynamics, one.integrator, h, np.ones(5), noise / curvature, epoch=epoch)
    true = np.sqrt(1 + law.step + law.noise) - np.sqrt(1 + law.step)
    found = couple(run(one, VECTORS, num_samples=4000), random.key(1), VECTORS, gradient=gradient)
    bound = found.bound["mu"] * np.sqrt(1 + law.step)
    assert (true < 1.15 * bound).all() and (bound < 3 * true).all(), (true, bound)
    assert np.sqrt((true**2 / curvature).sum()) < 1.15 * found.joint


def two(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(w[0] + x[rows] * w[1], 1), obs=x[rows])


@pytest.mark.slow
def test_a_partner_by_control_variates_is_that_of_all_rows():
    """The gradient of a linear model's noise does not depend on z but for the slope."""
    mcmc = run(kernel(0.02, WithoutReplacement()), num_samples=100)
    full, control = (couple(mcmc, random.key(1), X, gradient=g) for g in ("full", "control"))
    np.testing.assert_allclose(full.bound["mu"], control.bound["mu"], rtol=1e-3)
    several = run(SGHMC(two, step_size=1e-2, friction=5.0, batch_size=6, steps_per_sample=5), num_samples=50)
    found = couple(several, random.key(1), X)
    assert found.bound["w"].shape == (2,) and 0 < found.joint < 10


@pytest.mark.slow
def test_tuned_chains():
    """Those of NOGIN with a control variate: the partner takes no noise out, and has all rows."""
    mcmc = run(SGHMC(models.gaussian, batch_size=models.B), num_samples=40, num_chains=2)
    found = couple(mcmc, random.key(1), X)
    assert found.bound["mu"] < 0.3


def test_exact_gradients_are_at_no_distance():
    centre = ControlVariate({"mu": jnp.asarray(0.5)})
    mcmc = run(SGHMC(models.gaussian, step_size=0.02, friction=5.0, batch_size=6, gradient=centre), num_samples=100)
    assert couple(mcmc, random.key(1), X).bound["mu"] < 1e-3  # rows enter the gradient of a normal mean by a constant


def test_what_is_refused():
    mcmc = run(SGLD(models.gaussian, step_size=1e-3), num_samples=20)
    with pytest.raises(ValueError, match="exact already"):
        couple(mcmc, random.key(0))
    mcmc = run(SGLD(models.gaussian, step_size=1e-3, batch_size=6), num_samples=20)
    with pytest.raises(ValueError, match="gradient='exact' must be one of"):
        couple(mcmc, random.key(0), gradient="exact")
    with pytest.raises(TypeError, match="the second argument is the random key: couple"):
        couple(mcmc, 3, X)
    with pytest.raises(ValueError, match="num_warmup=-3 must be at least 0"):
        couple(mcmc, random.key(0), X, num_warmup=-3)
    with pytest.raises(ValueError, match="at least 8 draws of each pair, but 4"):
        couple(mcmc, random.key(0), X, num_samples=4)
