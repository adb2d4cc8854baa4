"""``to_arviz``: the same draws, and what ArviZ cannot know of them."""

import functools
from importlib.util import find_spec
import json
import subprocess
import sys
import warnings

import arviz as az
from jax import random
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGNHT, Polynomial, corrected, to_arviz, weights

X = models.ROWS.astype(np.float32)


@functools.cache
def run(kernel=SGHMC, model=models.gaussian, extra_fields=(), **options):
    data = (models.TABLE.astype(np.float32),) if model is models.crossed else (X,)
    mcmc = MCMC(
        kernel(model, **{"step_size": 1e-2, "batch_size": models.B} | options),
        num_warmup=20,
        num_samples=30,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(0), *data, extra_fields=extra_fields)
    return mcmc


@pytest.mark.slow
def test_what_every_draw_says_of_itself():
    mcmc = run(step_size=Polynomial(1e-2, 1.0, 0.33))
    idata = to_arviz(mcmc)
    plain = az.from_numpyro(mcmc, log_likelihood=False)
    np.testing.assert_array_equal(idata.posterior["mu"].values, plain.posterior["mu"].values)
    assert set(idata.sample_stats.data_vars) == {"diverging", "step_size", "weight", "refused", "temperature"}
    np.testing.assert_allclose(idata.sample_stats["weight"].values, weights(mcmc, group_by_chain=True))
    assert idata.sample_stats["temperature"].dims == ("chain", "draw")
    for kernel, names in ((SGNHT, ["thermostat"]), (MSGNHT, ["thermostat_mu"])):
        stats = to_arviz(run(kernel, extra_fields=("thermostat",))).sample_stats
        assert [name for name in stats.data_vars if name.startswith("thermostat")] == names


@pytest.mark.slow
def test_a_file_says_how_it_was_made(tmp_path):
    mcmc = run(step_size=None)
    idata = to_arviz(mcmc, X)
    if find_spec("h5netcdf") or find_spec("netCDF4"):  # ArviZ 0.23 brings one along
        idata.to_netcdf(str(tmp_path / "run.nc"))
        idata = az.from_netcdf(str(tmp_path / "run.nc"))
    attributes = idata.posterior.attrs
    settings = json.loads(attributes["settings"])
    assert settings["kernel"] == "SGHMC" and settings["integrator"] == "BAGAB" and settings["num_warmup"] == 20
    assert settings["steps_per_sample"] == 4 and settings["dynamics"]["noise"] == 1.0
    assert settings["gradient"]["name"] == "ControlVariate"
    assert {"numpyro_sgmcmc", "numpyro", "jax", "arviz"} == set(json.loads(attributes["versions"]))
    assert attributes["verdict"] in ("right", "doubtful", "wrong")
    assert set(json.loads(attributes["verdicts"]).values()) <= {"ok", "doubtful", "wrong"}


def exact(mcmc):
    mu = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"], float)[..., None]
    return -0.5 * np.log(2 * np.pi) - 0.5 * (X - mu) ** 2


@pytest.mark.parametrize("chunk", [None, 7])
def test_log_likelihood_of_all_rows_in_chunks(chunk, monkeypatch):
    mcmc = run()
    if chunk is not None:
        monkeypatch.setattr("numpyro_sgmcmc.diagnostics.log_likelihood.chunk_length", lambda *args: chunk)
    found = to_arviz(mcmc, log_likelihood=True).log_likelihood["obs"]
    assert found.dims == ("chain", "draw", "N")
    np.testing.assert_allclose(found.values, exact(mcmc), rtol=1e-4, atol=1e-4)


def test_a_run_of_few_draws_is_saved_too():
    """They are too few for a summary of the gradients."""
    mcmc = MCMC(SGHMC(models.gaussian, step_size=1e-2, batch_size=models.B), num_warmup=2, num_samples=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(0), X)
    idata = to_arviz(mcmc, X)
    assert idata.posterior["mu"].shape == (1, 3)
    assert {"refused", "ess"} <= set(json.loads(idata.posterior.attrs["verdicts"]))
    assert json.loads(idata.posterior.attrs["lines"])["draws"] == "1 x 3"


def test_log_likelihood_of_some_rows():
    mcmc = run()
    idata = to_arviz(mcmc, log_likelihood=10)
    found = idata.log_likelihood["obs"]
    rows = found["N"].values
    assert len(set(rows)) == 10
    np.testing.assert_allclose(found.values, exact(mcmc)[..., rows], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="has 24 rows"):
        to_arviz(mcmc, log_likelihood=25)


def test_the_jacobian_of_a_constrained_site_is_no_likelihood():
    assert set(to_arviz(run(model=models.precision), log_likelihood=True).log_likelihood.data_vars) == {"obs"}


@pytest.mark.filterwarnings("ignore")
def test_leave_one_out_works_on_it():
    idata = to_arviz(run(), log_likelihood=True)
    assert np.isfinite(az.loo(idata).elpd_loo if hasattr(az.loo(idata), "elpd_loo") else az.loo(idata).elpd)
    if hasattr(az, "loo_subsample"):
        assert np.isfinite(az.loo_subsample(idata, 12).elpd)


def prior_alone():
    numpyro.sample("z", dist.Normal(0, 1))


def test_a_model_without_data_has_no_log_likelihood():
    mcmc = MCMC(SGHMC(prior_alone, step_size=0.1), num_warmup=5, num_samples=10, progress_bar=False)
    mcmc.run(random.key(0))
    with pytest.raises(ValueError, match="needs an observed site"):
        to_arviz(mcmc, log_likelihood=True)


@pytest.mark.slow
def test_two_plates_and_none():
    for batch in ({"columns": 6, "rows": 2}, None):
        mcmc = run.__wrapped__(model=models.crossed, batch_size=batch)
        found = to_arviz(mcmc, log_likelihood=True).log_likelihood["obs"]
        plain = az.from_numpyro(mcmc, log_likelihood=True).log_likelihood["obs"]
        assert found.dims == plain.dims
        np.testing.assert_allclose(found.values, plain.values, rtol=1e-3, atol=1e-3)


def test_corrected_draws_say_so():
    mcmc = run()
    fixed = corrected(mcmc, X)
    idata = to_arviz(mcmc, correction=fixed)
    np.testing.assert_array_equal(idata.posterior["mu"].values, fixed["mu"])
    assert idata.posterior.attrs["correction"] == fixed.done
    assert "correction" not in to_arviz(mcmc).posterior.attrs
    with pytest.raises(TypeError, match="must be the result of corrected"):
        to_arviz(mcmc, correction={"mu": 0})


def test_slow_imports_wait_until_they_are_used():
    """ArviZ takes longer to import than NumPyro and JAX together."""
    program = "import sys, numpyro_sgmcmc; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpyro_sgmcmc", "numpyro", "jax"} <= set(loaded)
    assert not {"arviz", "xarray", "pandas", "matplotlib", "optax", "zarr"} & set(loaded)
