"""``az.from_numpyro(mcmc)`` unchanged; ``Predictive`` and ``log_likelihood`` on ``kernel.model``: all rows, always."""

import functools

import arviz as az
from jax import random
import models
import numpy as np
from numpyro.infer import MCMC, Predictive, log_likelihood
import pytest

from numpyro_sgmcmc import SGHMC

CHAINS, DRAWS = 2, 5


def sample(model, batch_size, args, extra_fields=()):
    mcmc = MCMC(
        SGHMC(model, step_size=1e-2, batch_size=batch_size),
        num_warmup=2,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), *args, extra_fields=extra_fields)
    return mcmc


@functools.cache
def run(model, batch_size=models.B, extra_fields=()):
    return sample(model, batch_size, (models.ROWS,), extra_fields)


run_declared = functools.partial(run, models.declared, None)
run_chosen = functools.partial(run, models.gaussian)
either = pytest.mark.parametrize("run", [run_declared, run_chosen], ids=["declared", "chosen"])


def normal_log_density(mu, x):
    return -0.5 * np.log(2 * np.pi) - 0.5 * (x - mu) ** 2


@either
def test_groups(run):
    """The data in full, their own dimension by the name of the plate, and the draws in their places."""
    mcmc = run()
    data = az.from_numpyro(mcmc, log_likelihood=False)
    assert data.posterior["mu"].dims == ("chain", "draw")
    np.testing.assert_array_equal(data.posterior["mu"].values, mcmc.get_samples(group_by_chain=True)["mu"])
    assert set(data.posterior.data_vars) == {"mu"}
    assert data.observed_data["obs"].dims == ("N",)
    np.testing.assert_allclose(data.observed_data["obs"].values, models.ROWS, rtol=1e-6)
    assert not hasattr(data, "log_likelihood")


@either
def test_log_likelihood_is_that_of_all_the_data(run):
    mcmc = run()
    data = az.from_numpyro(mcmc, log_likelihood=True)
    got = data.log_likelihood["obs"]
    assert got.dims == ("chain", "draw", "N")
    mu = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"], float)[..., None]
    np.testing.assert_allclose(got.values, normal_log_density(mu, models.ROWS), rtol=1e-5, atol=1e-5)


def test_defaults():
    """With whatever the installed ArviZ does when nothing is asked for."""
    data = az.from_numpyro(run_declared())
    assert data.posterior["mu"].shape == (CHAINS, DRAWS)
    assert data.observed_data["obs"].shape == (models.N,)


def test_sample_stats():
    data = az.from_numpyro(run_declared(), log_likelihood=False)
    assert set(data.sample_stats.data_vars) == {"diverging", "step_size"}
    assert data.sample_stats["diverging"].dtype == bool
    assert data.sample_stats["diverging"].shape == (CHAINS, DRAWS)
    np.testing.assert_allclose(data.sample_stats["step_size"].values, 1e-2, rtol=1e-6)


def test_a_noisy_energy_is_not_passed_off_as_lp():
    mcmc = run_declared(extra_fields=("potential_estimate", "i", "refused", "thermostat", "momentum"))
    stats = az.from_numpyro(mcmc, log_likelihood=False).sample_stats
    assert set(stats.data_vars) == {"diverging", "step_size", "potential_estimate", "i", "refused"}
    estimate = mcmc.get_extra_fields(group_by_chain=True)["potential_estimate"]
    np.testing.assert_array_equal(stats["potential_estimate"].values, estimate)


@pytest.mark.filterwarnings("ignore:.*the kinetic temperature")  # of a chain that has hardly begun
@pytest.mark.slow
def test_deterministic_sites_and_several_dimensions():
    mcmc = run(models.deterministics)
    data = az.from_numpyro(mcmc, log_likelihood=False)
    assert set(data.posterior.data_vars) == {"mu", "twice"}
    mcmc = sample(models.crossed, {"rows": 2}, (models.TABLE,))
    data = az.from_numpyro(mcmc, log_likelihood=True)
    assert data.observed_data["obs"].dims == ("rows", "columns")
    assert data.log_likelihood["obs"].shape == (CHAINS, DRAWS, *models.TABLE.shape)


def test_summary():
    mcmc = run(models.gaussian)
    summary = az.summary(az.from_numpyro(mcmc, log_likelihood=False), kind="stats", round_to=6)
    np.testing.assert_allclose(summary.loc["mu", "mean"], mcmc.get_samples()["mu"].mean(), atol=1e-5)


@pytest.mark.parametrize("declared", [True, False])
def test_predictive_predicts_all_rows(declared):
    """As many rows as it is asked for; all draws the same ones, which numbers far from 0 tell apart."""
    model = functools.partial(models.logistic_subsample, subsample_size=models.B if declared else None)
    mcmc = sample(model, None if declared else models.B, (models.X, models.COUNTS))
    samples = mcmc.get_samples()
    x = np.full((10, models.DIM), 1000.0) * np.where(np.arange(10) % 2, 1, -1)[:, None]
    predictions = Predictive(mcmc.sampler.model, samples)(random.key(2), x)["obs"]
    assert predictions.shape == (CHAINS * DRAWS, 10)
    upward = np.asarray(samples["weights"]).sum(1) > 0
    np.testing.assert_array_equal(predictions, upward[:, None] == (np.arange(10) % 2 == 1))


@either
def test_log_likelihood_of_the_model(run):
    """NumPyro's own, on NumPy data of another length than a minibatch."""
    mcmc = run()
    samples = mcmc.get_samples()
    got = log_likelihood(mcmc.sampler.model, samples, models.ROWS)["obs"]
    expected = normal_log_density(np.asarray(samples["mu"], float)[:, None], models.ROWS)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
