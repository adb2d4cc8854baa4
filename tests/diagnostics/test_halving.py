"""``step_halving``: chains whose bias is known."""

from dataclasses import replace
import warnings

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest
from scipy.special import polygamma

from numpyro_sgmcmc import (
    SAGA,
    SCIR,
    SGHMC,
    SGLD,
    SGRLD,
    ExpandedMean,
    Polynomial,
    WithoutReplacement,
    corrected,
    couple,
    score_linearity,
    step_halving,
    summary,
)
from numpyro_sgmcmc.diagnostics.continued_chains import with_changes
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.step_halving import order
from numpyro_sgmcmc.utils.monte_carlo import standard_error

X = models.ROWS.astype(np.float32)
MEAN, VARIANCE = models.gaussian_posterior(X)


def run(kernel, *args, seed=0, num_samples=500, num_chains=8, method="vectorized", num_warmup=100, start=MEAN):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=method,
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(seed), *args, init_params=None if start is None else {"mu": jnp.full(num_chains, start)})
    return mcmc


@pytest.mark.optimised
@pytest.mark.slow
def test_an_inflation_by_the_step_size_is_found_and_extrapolated():
    """SGLD at h U'' = 1 has twice the variance; in most cases the extrapolation is nearer to the truth."""
    nearer, changes = 0, []
    for seed in range(10):
        mcmc = run(SGLD(models.gaussian, step_size=1.0 * VARIANCE, steps_per_sample=4), X, seed=seed)
        found = step_halving(mcmc, random.key(100 + seed), X)["mu"]
        sd = float(np.asarray(mcmc.get_samples()["mu"]).std())
        nearer += abs(found["extrapolated_sd"] - VARIANCE**0.5) < abs(sd - VARIANCE**0.5)
        changes.append(float(found["sd_change"]))
        assert found["verdict"] == "wrong"
    assert nearer >= 8, nearer
    exact = 1 - (2 / (4 / 3)) ** 0.5  # variances at h and at h / 2, in units of the latter
    error = np.std(changes, ddof=1) / len(changes) ** 0.5
    assert abs(np.mean(changes) - exact) < 4 * error < 0.05, (np.mean(changes), exact, error)


def scaled(x):
    """A normal posterior with sds of .2 and 1."""
    numpyro.sample("mu", dist.Normal(0, jnp.array([0.2, 1.0])).to_event(1))


def gamma(x):
    """In unconstrained space log of a gamma variable, whose sd is the root of the trigamma function: not normal."""
    numpyro.sample("mu", dist.Gamma(4.0, 1.0))


LANGEVIN = {"friction": 5.0, "batch_size": 2}
INDEPENDENT = {"rows": WithoutReplacement()}
CASES = {  # model, kernel, options, what is varied, exact sds
    "SGLD, h U'' = 1": (models.gaussian, SGLD, {"step_size": VARIANCE}, "step_size", VARIANCE**0.5),
    "SGLD, h U'' = .4": (models.gaussian, SGLD, {"step_size": 0.4 * VARIANCE}, "step_size", VARIANCE**0.5),
    "SGLD of two widths": (scaled, SGLD, {"step_size": 0.04}, "step_size", [0.2, 1.0]),
    "SGLD, not normal": (gamma, SGLD, {"step_size": 0.2}, "step_size", float(polygamma(1, 4.0)) ** 0.5),
    "euler": (models.gaussian, SGHMC, {"step_size": 0.08, "friction": 5.0, "integrator": "euler"}, "step_size", None),
    "OBABO": (models.gaussian, SGHMC, {"step_size": 0.25, "friction": 5.0, "integrator": "OBABO"}, "step_size", None),
    "SGLD, batches": (
        models.gaussian,
        SGLD,
        {"step_size": 0.1 * VARIANCE, "batch_size": 2, **INDEPENDENT},
        "batch_size",
        None,
    ),
    "SGLD, batches, by the step": (
        models.gaussian,
        SGLD,
        {"step_size": 0.1 * VARIANCE, "batch_size": 2, **INDEPENDENT},
        "step_size",
        None,
    ),
    "SGHMC, batches": (models.gaussian, SGHMC, {"step_size": 0.02, **LANGEVIN, **INDEPENDENT}, "batch_size", None),
    "SGHMC, reshuffled": (models.gaussian, SGHMC, {"step_size": 0.08, **LANGEVIN}, "step_size", None),
}


@pytest.mark.optimised
@pytest.mark.slow
def test_the_extrapolation_is_nearer_to_the_truth_in_eight_of_ten_cases():
    """By the worst coordinate; the step size or the minibatches widen each of the runs."""
    nearer = {}
    for name, (model, kernel_class, options, vary, exact) in CASES.items():
        exact = VARIANCE**0.5 if exact is None else np.asarray(exact)
        steps = round(1 / options["step_size"] ** (1 if kernel_class is SGLD else 0.5))
        kernel = kernel_class(model, **options, steps_per_sample=min(steps, 60))
        mcmc = run(kernel, X, start=None)
        found = step_halving(mcmc, random.key(1), X, vary=vary)["mu"]
        before, after = (np.abs(found[key] / exact - 1).max() for key in ("sd", "extrapolated_sd"))
        nearer[name] = before, after
    print({k: f"{a:.3f} -> {b:.3f}" for k, (a, b) in nearer.items()})
    count = sum(after < before for before, after in nearer.values())
    assert count >= 8, {name: f"{before:.3f} -> {after:.3f}" for name, (before, after) in nearer.items()}


@pytest.mark.optimised
@pytest.mark.slow
def test_minibatch_noise_is_found_by_twice_the_batch():
    h, D = 0.02, 1.0
    kernel = SGHMC(
        models.gaussian, step_size=h, friction=D, batch_size=2, rows=WithoutReplacement(), steps_per_sample=50
    )
    mcmc = run(kernel, X, num_samples=400)
    found = step_halving(mcmc, random.key(1), X, vary="batch_size")
    before = np.asarray(mcmc.get_samples()["mu"]).std() / VARIANCE**0.5 - 1
    after = found["mu"]["extrapolated_sd"] / VARIANCE**0.5 - 1
    assert before > 0.3 and abs(after) < 0.5 * before
    assert found.verdict == "wrong"


@pytest.mark.optimised
@pytest.mark.slow
def test_a_right_run_does_not_change():
    kernel = SGHMC(models.gaussian, step_size=0.1, friction=5.0, steps_per_sample=20)
    found = step_halving(run(kernel, X, num_samples=1000), random.key(1), X)
    assert found.verdict == "right", str(found)
    assert abs(found["mu"]["mean_change"]) < 5 * found["mu"]["mean_error"] < 0.2


@pytest.mark.parametrize("method", ["vectorized", "sequential"])
@pytest.mark.slow
def test_tuned_chains_go_on_with_half_their_step(method):
    mcmc = run(SGHMC(models.gaussian, batch_size=models.B), X, num_chains=2, num_samples=20, method=method)
    before = jax.tree.map(np.asarray, mcmc.last_state)
    found = step_halving(mcmc, random.key(1), X, num_samples=40)
    assert np.isfinite(found["mu"]["extrapolated_sd"]) and found["mu"]["extrapolated_sd"].shape == ()
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, mcmc.last_state))
    finished = Run(mcmc, (X,), {}, "test")
    states = finished.states
    _, (half, _) = with_changes(finished, step=0.5, longer=2)
    assert half.settings.step_size == states[0].settings.step_size / 2
    assert half.settings.steps_per_sample == 2 * states[0].settings.steps_per_sample
    twice, (noise, _) = with_changes(finished, batch=2)
    assert twice.batch_size == {"N": 12}
    np.testing.assert_allclose(
        noise.noise_variance, states[0].noise_variance * (1 / 12 - 1 / 24) / (1 / 6 - 1 / 24), rtol=1e-6
    )


@pytest.mark.slow
def test_chains_of_a_decreasing_step_go_on_with_half_their_last_one():
    kernel = SGHMC(models.gaussian, step_size=Polynomial(None, 5.0, 0.5), batch_size=models.B)
    mcmc = run(kernel, X, num_chains=2, num_samples=20)
    finished = Run(mcmc, (X,), {}, "test")
    states = finished.states
    last = float(states[0].step_size)
    assert last < 0.9 * float(states[0].settings.step_size)
    for step, longer in ((1.0, 1), (0.5, 2)):
        changed, begun = with_changes(finished, step=step, longer=longer)
        move = lambda p, s: replace(changed.chains_for(p), searching=False).transition(s, fingerprint=0)  # noqa: B023, E731
        state = changed.compiled(move, (X,), {})(begun[0])
        assert float(state.step_size) == pytest.approx(step * last)
    found = step_halving(mcmc, random.key(1), X, num_samples=20)
    assert f"this is the bias at its last value, {last:.3g}" in str(found).replace("\n  ", " ")


@pytest.mark.parametrize("make", [pytest.param(SCIR, marks=pytest.mark.slow), SGRLD])
def test_kernels_with_coordinates_of_their_own(make):
    """Three numbers for a simplex of three parts, of which NumPyro has two; diagnostics use those of NumPyro."""
    x = models.CATEGORIES
    options = {"step_size": 0.1} if make is SCIR else {"step_size": 1e-3, "metric": ExpandedMean()}
    kernel = make(models.shares, batch_size=models.B, steps_per_sample=20, **options)
    mcmc = run(kernel, x, num_chains=2, num_samples=400, start=None)
    draws = Run(mcmc, (x,), {}, "test").draws(2000)
    assert mcmc.last_state.z["p"].shape == (2, 3) and draws.names == ("p[0]", "p[1]")
    assert np.isfinite(summary(mcmc, x)["score"]["value"])
    assert score_linearity(mcmc, x)["p"]["r2"].shape == (2,)
    found = step_halving(mcmc, random.key(1), x, num_samples=400)["p"]
    error = np.hypot(found["mean_error"] * draws.flat.std(0), standard_error(draws.z))
    assert (np.abs(found["mean"] - draws.flat.mean(0)) < 5 * error).all()
    assert (error < 0.5 * draws.flat.std(0)).all()
    assert couple(mcmc, random.key(1), x, num_samples=50).bound["p"].shape == (2,)
    with pytest.raises(ValueError, match='gradient="control" is not available'):
        couple(mcmc, random.key(1), x, gradient="control")
    with pytest.raises(ValueError, match="the kernel samples coordinates of its own"):
        corrected(mcmc, x)


def test_a_table_of_batches_belongs_to_their_size():
    kernel = SGHMC(models.gaussian, step_size=1e-2, batch_size=models.B, gradient=SAGA("batch"))
    with pytest.raises(ValueError, match="belongs to batches of this size"):
        step_halving(run(kernel, X, num_chains=2, num_samples=20), random.key(0), X, vary="batch_size")


def test_orders():
    kernel = lambda word, **options: SGHMC(models.gaussian, step_size=0.1, integrator=word, **options)  # noqa: E731
    assert order(kernel("ABOBA"), False) == order(kernel("ABOBA"), True) == 2
    assert order(kernel("ABOBA", rows=WithoutReplacement()), True) == 1
    assert order(kernel("NOGIN"), True) == 2
    assert order(kernel("BAOA"), False) == order(kernel("BAOAB"), False) == order(kernel("BAGAB"), True) == 2
    assert order(kernel("euler"), False) == order(kernel("ABO"), False) == 1


def test_errors():
    mcmc = run(SGLD(models.gaussian, step_size=1e-3), X, num_samples=20, num_chains=2)
    with pytest.raises(ValueError, match="no plate is minibatched"):
        step_halving(mcmc, random.key(0), X, vary="batch_size")
    with pytest.raises(ValueError, match="vary='h' must be one of"):
        step_halving(mcmc, random.key(0), X, vary="h")
    mcmc = run(SGLD(models.gaussian, step_size=1e-3, batch_size=12), X, num_samples=20, num_chains=2)
    with pytest.raises(ValueError, match="twice the batch_size 12"):
        step_halving(mcmc, random.key(0), X, vary="batch_size")
    with pytest.raises(TypeError, match="the second argument is the random key: step_halving"):
        step_halving(mcmc, X)
    with pytest.raises(ValueError, match="num_warmup=-3 must be at least 0"):
        step_halving(mcmc, random.key(0), X, num_warmup=-3)
