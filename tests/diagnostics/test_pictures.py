"""Pictures: what they show is what the diagnostics say, on the axes that they are given."""

import sys
import warnings

from jax import random
import matplotlib
import matplotlib.pyplot as plt
import models
import numpy as np
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import MSGNHT, compare, couple, kernel_stein_discrepancy, step_halving, summary
from numpyro_sgmcmc.diagnostics.pictures import plot_noise_spectrum, plot_trace

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
    draws = mcmc.get_samples(group_by_chain=True)
    for found in (step_halving(mcmc, random.key(1), X), couple(mcmc, random.key(1), X), compare(mcmc, draws)):
        _, ax = plt.subplots()
        assert found.plot(ax) is ax
        assert ax.get_xlabel() and (ax.lines or ax.collections)
        assert found.plot().figure is not ax.figure
    _, ax = plt.subplots()
    assert plot_noise_spectrum(mcmc, X, ax=ax, pairs=50) is ax


@pytest.mark.slow
def test_what_is_drawn(mcmc):
    halved = step_halving(mcmc, random.key(1), X)
    ax = halved.plot()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0, halved["mu"]["sd_change"]])
    variance = 24**2 * X.var() * (1 / 6 - 1 / 24) * 24 / 23
    top = plot_noise_spectrum(mcmc).lines[0].get_ydata()
    assert abs(top[0] / (variance * np.asarray(mcmc.get_samples()["mu"]).var()) - 1) < 0.4
    axes = plot_trace(mcmc, "mu")
    assert len(axes) == 3 and axes[2].get_ylabel() == "thermostat"
    np.testing.assert_allclose(axes[0].lines[1].get_ydata(), mcmc.get_samples(group_by_chain=True)["mu"][1])


def test_the_picture_of_a_summary_has_the_intervals_of_its_checks(mcmc):
    found = summary(mcmc, X)
    _, axes = plt.subplots(1, 2)
    assert found.plot(axes) is axes
    for ax, key in zip(axes, ("score", "virial")):
        of, bars = found[key]["by_site"]["mu"], ax.containers[0]
        (ends,) = (line.get_segments() for line in bars.lines[2])
        low, high = ends[0][:, 0]
        assert (low + high) / 2 == pytest.approx(of["effect"])
        assert (high - low) / 2 == pytest.approx(of["bound_z"] * of["effect_error"])
        assert ax.patches[0].get_width() == pytest.approx(2 * 0.1)  # what matters: 0.1 sd, 10 %
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["mu"]


def test_errors(mcmc, monkeypatch):
    with pytest.raises(ValueError, match="must be a latent site of the run: 'mu'"):
        plot_trace(mcmc, "sigma")
    with pytest.raises(ValueError, match="site=.'mu'. must be a latent site"):
        plot_trace(mcmc, ["mu"])
    with pytest.raises(ValueError, match="Give summary the data"):
        summary(mcmc).plot()
    with pytest.raises(ValueError, match="there is no picture of 'Distance of the draws.*Those of summary"):
        kernel_stein_discrepancy(mcmc, X).plot()
    found = compare(mcmc, mcmc)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"plots need matplotlib: pip install .numpyro_sgmcmc\[examples\]"):
        found.plot()


@pytest.mark.slow
def test_what_of_a_step_halving(mcmc):
    with pytest.raises(ValueError, match="of='median'"):
        step_halving(mcmc, random.key(1), X).plot(of="median")
