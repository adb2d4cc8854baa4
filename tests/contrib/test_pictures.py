"""Pictures: what they show is what the diagnostics say, on the axes that they are given."""

import warnings

from jax import random
import matplotlib
import matplotlib.pyplot as plt
import models
import numpy as np
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import MSGNHT, compare, couple, step_halving, summary
from numpyro_sgmcmc.contrib.pictures import (
    plot_compare,
    plot_coupling,
    plot_noise_spectrum,
    plot_step_halving,
    plot_temperatures,
    plot_trace,
)

matplotlib.use("Agg")
X = models.ROWS.astype(np.float32)


@pytest.fixture(scope="module")
def mcmc():
    kernel = MSGNHT(models.gaussian, step_size=2e-2, diffusion=5.0, batch_size=models.B, steps_per_sample=5)
    mcmc = MCMC(kernel, num_warmup=20, num_samples=40, num_chains=2, chain_method="vectorized", progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(0), X, extra_fields=("thermostat",))
    return mcmc


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.slow
def test_on_the_axes_that_are_given(mcmc):
    halved, pair = step_halving(mcmc, random.key(1), X), couple(mcmc, random.key(1), X)
    draws = mcmc.get_samples(group_by_chain=True)
    for plot, found in (
        (plot_step_halving, halved),
        (plot_temperatures, summary(mcmc, X)),
        (plot_coupling, pair),
        (plot_compare, compare(mcmc, draws)),
    ):
        _, ax = plt.subplots()
        assert plot(found, ax) is ax
        assert ax.get_xlabel() and (ax.lines or ax.collections)
        assert plot(found).figure is not ax.figure
    _, ax = plt.subplots()
    assert plot_noise_spectrum(mcmc, X, ax=ax, pairs=50) is ax


@pytest.mark.slow
def test_what_is_drawn(mcmc):
    halved = step_halving(mcmc, random.key(1), X)
    ax = plot_step_halving(halved)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0, halved["mu"]["sd_change"]])
    found = summary(mcmc, X)
    shown = plot_temperatures(found).collections[0].get_offsets()[:, 0]
    kinetic, by_site = found["kinetic_temperature"]["value"], found["configurational_temperature"]["by_site"]
    np.testing.assert_allclose(sorted(shown), sorted([by_site["mu"], kinetic]))
    variance = 24**2 * X.var() * (1 / 6 - 1 / 24) * 24 / 23
    top = plot_noise_spectrum(mcmc).lines[0].get_ydata()
    assert abs(top[0] / (variance * np.asarray(mcmc.get_samples()["mu"]).var()) - 1) < 0.4
    axes = plot_trace(mcmc, "mu")
    assert len(axes) == 3 and axes[2].get_ylabel() == "thermostat"
    np.testing.assert_allclose(axes[0].lines[1].get_ydata(), mcmc.get_samples(group_by_chain=True)["mu"][1])


def test_errors(mcmc):
    with pytest.raises(ValueError, match="must be a latent site of the run: 'mu'"):
        plot_trace(mcmc, "sigma")
    with pytest.raises(ValueError, match="Give summary the data"):
        plot_temperatures(summary(mcmc))
    with pytest.raises(ValueError, match="of='median'"):
        plot_step_halving(compare(mcmc, mcmc), of="median")
    with pytest.raises(ValueError, match="site=.'mu'. must be a latent site"):
        plot_trace(mcmc, ["mu"])
    for plot in (plot_step_halving, plot_coupling):
        with pytest.raises(TypeError, match="found= must be the result of"):
            plot(compare(mcmc, mcmc))
    with pytest.raises(TypeError, match="found= must be the result of compare.*not another MCMC"):
        plot_compare(mcmc)
