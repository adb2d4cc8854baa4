"""``summary``: its numbers against exact laws, planted faults, and what it takes."""

import functools
from types import SimpleNamespace
from typing import Any
import warnings
from xml.etree import ElementTree

import jax
from jax import random
import jax.numpy as jnp
from laws import with_noise
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
import pytest
from scipy.linalg import solve_discrete_lyapunov

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGMCMC,
    SGNHT,
    SVRG,
    ControlVariate,
    Minibatch,
    Piecewise,
    Recipe,
    Reshuffled,
    Tempered,
    WithoutReplacement,
    corrected,
    couple,
    kernel_stein_discrepancy,
    score_linearity,
    step_halving,
    summary,
    to_arviz,
    weights,
)
from numpyro_sgmcmc.data.arrays import fingerprint
from numpyro_sgmcmc.diagnostics import checks_with_data, predicted_inflation
from numpyro_sgmcmc.diagnostics.linear_law import linear_law
from numpyro_sgmcmc.diagnostics.pictures import plot_noise_spectrum
from numpyro_sgmcmc.diagnostics.predicted_inflation import Prediction, epoch_of, gradient_pairs
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import gradients, identities
from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.splitting import named
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.tuning.coordinates import LowRank
from numpyro_sgmcmc.types import Evaluation
from numpyro_sgmcmc.utils.monte_carlo import bound, effective, r_hat, standard_error, unequal_spread

CURVATURE, NOISE = np.array([0.5, 1.0, 4.0]), np.array([3.0, 10.0, 20.0])
rng = np.random.default_rng(3)
N = 2400
X = rng.normal(size=(N, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 2.0]])
Y = X @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=N)
X, Y = X.astype(np.float32), Y.astype(np.float32)


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([3]).to_event(1))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1.0), obs=y[rows])


def law(dynamics, word, h, **options):
    return linear_law(dynamics, named(word, dynamics), h, CURVATURE, NOISE, **options)


# -- the law of a step ----------------------------------------------------------------------------------------------


def test_laws_that_are_known():
    sgld = law(Overdamped(), "E", 0.1)
    np.testing.assert_allclose(sgld.step, 1 / (1 - 0.1 * CURVATURE / 2) - 1, rtol=1e-5)
    np.testing.assert_allclose(sgld.noise, 0.1 * NOISE / 2 / (1 - 0.1 * CURVATURE / 2), rtol=1e-5)
    aboba = law(Underdamped(2.0), "ABOBA", 0.1)
    np.testing.assert_allclose(aboba.step, 0, atol=1e-5)
    np.testing.assert_allclose(aboba.noise, 0.1 * NOISE / 4, rtol=0.01)  # h s^2 / (2 D), to first order
    nogin = law(Underdamped(2.0), "NOGIN", 0.1, known=NOISE)
    np.testing.assert_allclose(nogin.step + nogin.noise, 0, atol=1e-5)
    balanced = law(NoseHoover(2.0, elementwise=True), "ADOBODA", 0.02, thermostat=2 + 0.01 * NOISE)
    np.testing.assert_allclose(balanced.step + balanced.noise, 0, atol=1e-3)  # to first order in h
    assert (balanced.noise > 0.01).all()


@pytest.mark.slow
def test_where_a_step_is_no_longer_stable():
    for word, limit in (("ABOBA", 2 / np.sqrt(CURVATURE)), ("BAOAB", 2 / np.sqrt(CURVATURE))):
        inside, beyond = (
            np.array([law(Underdamped(1.0), word, c * h).radius[k] for k, h in enumerate(limit)]) for c in (0.98, 1.02)
        )
        assert (inside < 1).all() and (beyond > 1).all(), word
    assert np.isinf(law(Overdamped(), "E", 0.6).noise).tolist() == [False, False, True]


@pytest.mark.parametrize("epoch", [2, 5])
@pytest.mark.parametrize("dynamics, word, h", [(Overdamped(), "E", 0.2), (Underdamped(1.5), "BAOAB", 0.3)])
def test_reshuffled_noise_by_brute_force(dynamics, word, h, epoch):
    """The response to each of the last errors, and their covariance within an epoch, over all places of an epoch."""
    found = law(dynamics, word, h, epoch=epoch).noise
    maps = law_maps(dynamics, word, h)
    for k, (M, G) in enumerate(zip(*maps)):
        steps = 600
        response = np.array([(np.linalg.matrix_power(M, t) @ G)[0] for t in range(steps)])
        totals = []
        for place in range(epoch):
            number = (np.arange(steps) + place) // epoch
            same = number[:, None] == number[None, :]
            covariance = epoch / (epoch - 1) * (np.eye(steps) - same / epoch)
            totals.append(response @ covariance @ response)
        expected = CURVATURE[k] * NOISE[k] * np.mean(totals)
        assert abs(found[k] / expected - 1) < 0.01, (found[k], expected)


def law_maps(dynamics, word, h):
    from numpyro_sgmcmc.diagnostics import linear_law as module

    with jax.enable_x64(True):
        M, _, G = module._maps(dynamics, named(word, dynamics), h, CURVATURE, (), None)
    return np.asarray(M), np.asarray(G)


def law_in_x(dynamics, word, h, known, noise, monkeypatch):
    """Covariance of x for U = |x|^2 / 2 and gradient noise of this covariance, of which NOGIN knows ``known``."""
    d, integrator = len(known), named(word, dynamics)
    start = dynamics.init(jnp.zeros(d), jnp.zeros(d))._replace(noise_variance=jnp.asarray(known))
    number = sum(integrator.flows[letter].needs_noise for letter in integrator.word)

    def step(u, e, n):
        with_noise(monkeypatch, n)
        of = lambda x: Evaluation(jnp.zeros(()), x + e, ())  # noqa: E731
        phase = start._replace(z=u[0], momentum=u[1])
        new, _, _ = integrator.step(dynamics, phase, (), jnp.asarray(h), of, random.key(0))
        return jnp.concatenate([new.z, new.momentum])

    zeros = jnp.zeros((2, d)), jnp.zeros(d), jnp.zeros((number, d))
    M, G, B = (np.asarray(x, float).reshape(2 * d, -1) for x in jax.jacobian(step, (0, 1, 2))(*zeros))
    return solve_discrete_lyapunov(M, B @ B.T + G @ noise @ G.T)[:d, :d]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_inflation_in_low_rank_coordinates(share, monkeypatch):
    """Noise that is correlated in x and large in z, where L is narrow along it; of its diagonal NOGIN knows a share."""
    d, h, rng = 12, 0.2, np.random.default_rng(0)
    V, _ = np.linalg.qr(rng.normal(size=(d, 3)))
    low_rank = LowRank(np.zeros(d), np.exp(rng.normal(size=d)), V, np.array([0.05, 4.0, 0.3]))
    with jax.enable_x64(True):
        L = np.asarray(LowRank(*map(jnp.asarray, low_rank)).matrix())
        root = rng.normal(size=(d, d))
        noise = root @ root.T / 4
        known = share * np.diag(noise)
        exact = law_in_x(Underdamped(1.0), "NOGIN", h, known, noise, monkeypatch)
        monkeypatch.undo()
        total = np.diag(L @ exact @ L.T) / np.diag(L @ L.T) - 1
        kernel = SGHMC(regression, batch_size=100)
        axes = np.sqrt(d) * np.linalg.cholesky(L @ L.T).T
        z = np.concatenate([axes, -axes])  # their covariance is L L^T
        draws = Draws(z[None], tuple("abcdefghijkl"), tuple("abcdefghijkl"), 0)
        pairs = np.sqrt(d) * np.linalg.cholesky(np.linalg.inv(L).T @ noise @ np.linalg.inv(L)).T
        phase = kernel.dynamics.init(jnp.zeros(d), jnp.zeros(d))._replace(noise_variance=jnp.asarray(known))
        tuning = SimpleNamespace(coordinates=low_rank, step_size=jnp.asarray(h))
        state = SimpleNamespace(z={}, phase=phase, settings=tuning)
        run: Any = SimpleNamespace(kernel=kernel, states=[state], mean_step=h, samples_other_coordinates=False)
        monkeypatch.setattr(predicted_inflation, "DENSE", 0)
        monkeypatch.setattr(predicted_inflation, "MATRIX", 0)
        of = predicted_inflation.predicted(run, draws, z[None] @ np.linalg.inv(L @ L.T), pairs)
    assert of is not None and np.ptp(total) > 0.05
    np.testing.assert_allclose(of.noise + of.step, total, atol=0.01)


# -- errors ---------------------------------------------------------------------------------------------------------


def test_standard_errors_of_a_chain_with_memory():
    """An autoregression, whose mean has a known variance."""
    noise = np.random.default_rng(0).normal(size=(400, 4, 2000))
    x = np.zeros_like(noise)
    for t in range(1, 2000):
        x[..., t] = 0.9 * x[..., t - 1] + noise[..., t]
    exact = 1 / (1 - 0.9) / np.sqrt(4 * 2000)
    found = np.array([standard_error(one) for one in x[:60]])
    assert 0.95 < found.mean() / exact < 1.25
    z = np.abs(x[:, :, 100:].mean((1, 2)))[:60] / found
    assert z.max() < bound(1, 4)


def with_memory(kept, shape, rng):
    """Normal draws of shape ``(chains, draws, ...)``, whose correlation falls by this factor from draw to draw."""
    chains, draws, *rest = shape
    z = rng.normal(size=(draws, chains, *rest))
    for t in range(1, draws):
        z[t] = kept * z[t - 1] + np.sqrt(1 - kept**2) * z[t]
    return z.swapaxes(0, 1)


@pytest.mark.parametrize("chains, draws, kept", [(4, 1000, 0.9), (32, 100, 0.8), (2, 500, 0.5), (4, 400, 0.0)])
def test_chains_of_like_and_unlike_widths(chains, draws, kept):
    """
    Of right chains one set of coordinates in a thousand may be told, also if they are skew: of 40 here at most one.
    Chains whose sds are .43 to .25, with 200 effective draws together, are told in two of three runs.
    """
    z = with_memory(kept, (chains, draws, 1600), np.random.default_rng(0))
    for x in (z, np.exp(z)):
        assert sum(unequal_spread(part).any() for part in np.split(x, 40, -1)) <= 1
    if chains == 4:
        sds = np.array([0.43, 0.3, 0.28, 0.25])[:, None, None]
        found = np.array([unequal_spread(part)[0] for part in np.split(z * sds, 40, -1)])
        assert (found > 0.1).mean() > 0.4


def test_few_effective_draws_show_little():
    """Right draws, 2 chains of 100 with a memory of 20: none is certainly wrong."""
    rng, certain = np.random.default_rng(7), 0
    for _ in range(60):
        z = np.empty((2, 100, 2))
        z[:, 0] = rng.normal(size=(2, 2))
        for t in range(1, 100):
            z[:, t] = 0.9 * z[:, t - 1] + np.sqrt(1 - 0.81) * rng.normal(size=(2, 2))
        of, limit = identities(z, z), bound(4, 2, effective(z))
        certain += bool((np.abs(of.virial - 1) > limit * of.virial_error).any())
        certain += bool((np.abs(of.gradient) > limit * of.gradient_error).any())
    assert certain <= 1, certain
    assert bound(4, 2, 10) > 1.5 * bound(4, 2) and bound(4, 2, 1e4) == bound(4, 2) > 3.5


def test_identities_of_few_effective_draws_are_unbiased():
    """
    The mean of the draws takes 1 / ESS, about .12, of their variance away. Right draws, 2 chains of 100 with a memory
    of 20.
    """
    rng = np.random.default_rng(11)
    z = np.empty((400, 2, 100, 2))
    z[:, :, 0] = rng.normal(size=(400, 2, 2))
    for t in range(1, 100):
        z[:, :, t] = 0.9 * z[:, :, t - 1] + np.sqrt(1 - 0.81) * rng.normal(size=(400, 2, 2))
    virial = np.concatenate([identities(x, x).virial for x in z])
    assert virial.std() / np.sqrt(len(virial)) < 0.015
    assert abs(virial.mean() - 1) < 0.06, virial.mean()


def test_r_hat_of_chains_that_stand_still():
    still = np.broadcast_to(np.array([0.0, 1.0])[:, None, None], (2, 20, 1))
    assert np.isinf(r_hat(still)).all() and (r_hat(np.zeros((2, 20, 1))) == 1).all()


# -- the identities -------------------------------------------------------------------------------------------------

PRECISION = np.array([[2.0, -1.2, 0.0], [-1.2, 1.0, 0.3], [0.0, 0.3, 0.5]])


def normal_draws(shift=0.0, stretch=1.0, draws=2000):
    """Of a normal law in which coordinate 1 is off by so many sds, and all are stretched."""
    z = np.random.default_rng(1).normal(size=(4, draws, 3)) @ np.linalg.cholesky(np.linalg.inv(PRECISION)).T * stretch
    sd = np.sqrt(np.linalg.inv(PRECISION)[1, 1])
    return z + np.array([0.0, shift * sd, 0.0])


def test_identities_of_right_draws_in_many_coordinates():
    """Normal draws with memory and an effective size of less than three times their coordinates."""
    rng = np.random.default_rng(0)
    chains, n, d, kept = 4, 500, 300, 0.36
    z = rng.standard_normal((n, chains, d))
    for t in range(1, n):
        z[t] = kept * z[t - 1] + np.sqrt(1 - kept**2) * z[t]
    z = z.swapaxes(0, 1)
    of, limit = identities(z, z), bound(2 * d, chains, effective(z))
    assert (np.abs(of.shift) < limit * of.shift_error).all()
    assert (np.abs(of.inflation) < limit * of.inflation_error).all()
    assert abs(of.inflation.mean()) < 0.02


@pytest.mark.parametrize("start_known", [10.0, 0.1])
def test_identities_of_right_draws_of_a_random_walk(start_known):
    """60 weeks whose correlation is up to .99: of 20 right runs with memory none has a significant deviation."""
    rng, d = np.random.default_rng(0), 60
    difference = np.eye(d) - np.eye(d, k=-1)
    precision = difference.T @ np.diag(np.r_[start_known, np.full(d - 1, 30.0)]) @ difference + np.eye(d) / 2
    root = np.linalg.cholesky(np.linalg.inv(precision))
    for x in np.moveaxis(with_memory(0.4, (4, 500, 20, d), rng), 2, 0):
        z = x @ root.T
        of, limit = identities(z, z @ precision + rng.normal(size=z.shape)), bound(2 * d, 4, effective(z))
        assert (np.abs(of.gradient) < limit * of.gradient_error).all()
        assert (np.abs(of.virial - 1) < limit * of.virial_error).all()
        assert (np.abs(of.shift) < limit * of.shift_error).all()
        assert (np.abs(of.inflation) < limit * of.inflation_error).all()


def test_identities_of_right_draws():
    z = normal_draws()
    of = identities(z, z @ PRECISION + np.random.default_rng(2).normal(size=z.shape))
    for deviation, error in (
        (of.gradient, of.gradient_error),
        (of.virial - 1, of.virial_error),
        (of.shift, of.shift_error),
        (of.inflation, of.inflation_error),
    ):
        assert (np.abs(deviation) < bound(6, 4) * error).all()
        assert (error < 0.1).all()
    np.testing.assert_allclose(of.scale, np.sqrt(np.diag(PRECISION)), rtol=0.05)


@pytest.mark.parametrize("shift, stretch", [(0.3, 1.0), (0.0, 1.15), (0.0, 0.87), (-0.3, 1.0)])
def test_identities_show_what_is_wrong_in_correlated_coordinates(shift, stretch):
    """And by how much: in the coordinates themselves the numbers would be those of the narrow directions."""
    z = normal_draws(shift, stretch)
    of = identities(z, z @ PRECISION)
    np.testing.assert_allclose(of.shift, [0, shift, 0], atol=4 * of.shift_error.max() + 0.02)
    np.testing.assert_allclose(of.inflation, stretch**2 - 1, atol=4 * of.inflation_error.max() + 0.02)
    worst = max((np.abs(of.shift) / of.shift_error).max(), (np.abs(of.inflation) / of.inflation_error).max())
    assert worst > bound(6, 4)


def short(kernel, *args, num_warmup=50, num_samples=60, num_chains=2, seed=0, **options):
    options = {"chain_method": "vectorized", "progress_bar": False} | options
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(seed), *args)
    return mcmc


@pytest.mark.slow
def test_the_control_variate_of_a_linear_gradient_leaves_no_noise():
    """Rows enter the gradient of a normal mean by a constant alone, so that g is the gradient over all rows."""
    x = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    mcmc = short(SGLD(models.gaussian, step_size=1e-4, batch_size=30), x)
    draws = Run(mcmc, (x,), {}, "test").draws(1000)
    found = gradients(Run(mcmc, (x,), {}, "test"), draws, random.key(1))
    exact = draws.z * (3000 + models.PRIOR_SD**-2) - x.astype(float).sum()
    assert not found.whole and found.rows == 30
    np.testing.assert_allclose(found.values, exact, atol=0.02 * 3000**0.5)


@pytest.mark.slow
def test_draws_are_taken_back_to_unconstrained_space():
    x = models.VECTORS.astype(np.float32)
    mcmc = short(SGHMC(models.constrained, step_size=1e-2, friction=5.0, batch_size=models.B), x)
    draws = Run(mcmc, (x,), {}, "test").draws(1000)
    last = mcmc.last_state.z
    assert draws.names[0].startswith("corr[") and draws.names[-1] == "weights[1]" and "scale" in draws.names
    flat = np.concatenate([np.asarray(last[name]).reshape(2, -1) for name in sorted(last)], 1)
    np.testing.assert_allclose(draws.z[:, -1], flat, atol=1e-4)


# -- runs -----------------------------------------------------------------------------------------------------------

RIGHT = {"step_size": 1e-3, "friction": 30.0, "batch_size": 600, "steps_per_sample": 60}  # frequencies of 22 to 98


@functools.cache
def run(seed=0, start=0.0, warmup=50, kernel=SGHMC, draws=500, **options):
    start = {"w": jnp.array([1.0, -1.0, 0.5]) + start * jnp.ones((4, 3)) * 0.02}
    mcmc = MCMC(
        kernel(regression, **(RIGHT if kernel is SGHMC else {}) | options),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(seed), X, Y, init_params=start)
    return mcmc


@pytest.mark.optimised
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_right_runs_are_right(seed):
    found = summary(run(seed), X, Y)
    assert found.verdict == "right", str(found)
    assert abs(found["inflation_by_step"]["value"]) < 1e-3
    assert summary(run(seed)).verdict == "right"


class TwiceTheRows(Minibatch):
    """As where N / n is wrong by 2."""

    def evaluate(self, potential, z, rows, gradient_state, rng_key):
        found = super().evaluate(potential, z, rows, gradient_state, rng_key)
        return found._replace(gradient=jax.tree.map(lambda g: 2 * g, found.gradient))


FAULTS = {
    "friction too small": ({"friction": 3.0, "rows": WithoutReplacement()}, "virial"),
    "batches too small": ({"batch_size": 60, "rows": WithoutReplacement()}, "inflation_by_noise"),
    "N / n wrong": ({"gradient": TwiceTheRows()}, "virial"),
    "never arrived": ({"start": 50.0, "warmup": 0, "step_size": 2e-5, "draws": 100}, "kinetic_temperature"),
    "unstable": ({"step_size": 3e-2}, "kinetic_temperature"),
}


@pytest.mark.optimised
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.every(5)
@pytest.mark.slow
def test_planted_faults(fault):
    options, line = FAULTS[fault]
    found = summary(run(**options), X, Y)
    assert found.verdict == "wrong", str(found)
    assert found[line]["verdict"] == "wrong", str(found)


@pytest.mark.optimised
@pytest.mark.slow
def test_predicted_inflation_is_what_comes_out():
    """Of independent small batches: predicted, seen by the identities, and true of the draws."""
    mcmc = run(batch_size=100, rows=WithoutReplacement(), draws=2000)
    found = summary(mcmc, X, Y)
    A = X.astype(float)
    exact = np.linalg.inv(A.T @ A + np.eye(3) / 100)
    true = np.asarray(mcmc.get_samples()["w"]).var(0) / np.diag(exact) - 1
    predicted = np.array(list(found["inflation_by_noise"]["by_coordinate"].values()))
    assert 0.3 < true.min()
    np.testing.assert_allclose(predicted, true, rtol=0.2, atol=0.1)


@pytest.mark.parametrize(
    "inflation, error, verdict",
    [
        (0.02, 0.01, "ok"),
        (0.2, 0.01, "doubtful"),
        (0.5, 0.01, "wrong"),
        (60.0, 24.0, "doubtful"),
        (0.02, 0.2, "doubtful"),
    ],
)
def test_an_inflation_with_a_large_error_is_doubtful(inflation, error, verdict, monkeypatch):
    prediction = Prediction(*map(np.array, ([0.0, inflation], [0.0, error], [0.0, 0.0], [1.0, 1.0])), 2, np.eye(2))
    monkeypatch.setattr(checks_with_data, "predicted", lambda *_: prediction)
    nothing = made(np.zeros((4, 100, 2)), np.full((4, 100, 2), np.nan))  # no identities
    line = checks_with_data.CHECKS_WITH_DATA["inflation_by_noise"].line(nothing)
    assert line is not None and line.verdict == verdict
    assert ("standard error" in line.advice) == (error > 0.15)


def made(z, values=None, plates=()) -> checks_with_data.WithData:
    """A run with these draws of the sites a and b, and their gradients; b may be in plates."""
    latents = {"a": SimpleNamespace(plates=()), "b": SimpleNamespace(plates=plates)}
    potential = SimpleNamespace(plates={}, structure=SimpleNamespace(latents=latents))
    kernel = SGHMC(regression, rows=WithoutReplacement(), **RIGHT)
    run: Any = SimpleNamespace(kernel=kernel, potential=potential)
    draws = Draws(z, ("a", "b"), ("a", "b"))
    found: Any = SimpleNamespace(values=z if values is None else values, widened=())
    return checks_with_data.WithData(run, draws, found, Remedies(False), np.zeros((2, 2)))


def test_the_power_is_that_of_global_coordinates():
    """Errors that are a little larger are found, and are not those of a group with noisy gradients."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 500, 2))
    noisy = z + 5 * rng.normal(size=z.shape) * [0, 1]
    power = checks_with_data.power(made(z, noisy, plates=("groups",)))
    inflation, limit = power.inflation, bound(4, 4, 2000)
    assert abs(power.shift / (limit / 2000**0.5) - 1) < 0.4 and abs(inflation / (limit / 1000**0.5) - 1) < 0.4
    assert checks_with_data.power(made(z, noisy)).shift > 3 * power.shift
    wider, shifted = z * [(1 + 1.5 * inflation) ** 0.5, 1], z + [1.5 * power.shift, 0]
    for name, draws in (("virial", wider), ("score", shifted), ("", z)):
        found = {key: checks_with_data.CHECKS_WITH_DATA[key].line(made(draws)) for key in ("score", "virial")}
        assert [key for key, line in found.items() if line and line.failed] == [name] * bool(name)


@pytest.mark.parametrize("max_draws, verdict", [(2000, "right"), (200, "unchecked")])
def test_with_the_data_a_right_verdict_is_one_that_the_draws_allow(max_draws, verdict):
    found = summary(run(0), X, Y, max_draws=max_draws)
    assert found.verdict == verdict and ("would have been found" in found.lines["power"].shown) == (verdict == "right")


@pytest.mark.parametrize("width, verdict", [(1.0, "ok"), (2.5, "wrong")])
def test_a_prediction_that_the_draws_refute_is_not_the_verdict(width, verdict, monkeypatch):
    """Draws of N(0, 1), or of one that is as wide as predicted: 2.5^2 = 1 + 5.25."""
    z = width * np.random.default_rng(0).normal(size=(4, 500, 2))
    prediction = Prediction(*map(np.array, ([5.25, 0.0], [0.05, 0.0], [0.0, 0.0], [1.0, 1.0])), 2, np.eye(2))
    monkeypatch.setattr(checks_with_data, "predicted", lambda *_: prediction)
    line = checks_with_data.CHECKS_WITH_DATA["inflation_by_noise"].line(made(z))
    assert line is not None and line.verdict == verdict and ("refute" in line.shown) == (verdict == "ok")


@pytest.mark.slow
def test_one_chain_that_stands_still():
    mcmc = short(SGHMC(regression, **RIGHT), X, Y, num_samples=100)
    stuck = mcmc.get_samples(group_by_chain=True)["w"].at[1].set(0.0)
    mcmc._states["z"]["w"] = stuck
    found = summary(mcmc, X, Y)
    assert found.verdict == "wrong" and found["refused"]["standing_still"] == 1


@pytest.mark.slow
def test_rows_that_are_not_finite():
    y = Y.copy()
    y[7] = np.nan
    found = summary(run(), X, y)
    assert found["score"]["verdict"] == "wrong" and "not finite" in found["score"]["advice"]


# -- what it takes --------------------------------------------------------------------------------------------------

ROWS = models.ROWS.astype(np.float32)
SMALL = {"step_size": 2e-2, "batch_size": models.B, "steps_per_sample": 5}
KERNELS = {
    "sgld": lambda: SGLD(models.gaussian, **SMALL | {"step_size": 1e-3}),
    "bares all": lambda: SGHMC(models.gaussian, step_size=0.1, friction=3.0),
    "sgnht": lambda: SGNHT(models.gaussian, diffusion=5.0, **SMALL),
    "msgnht": lambda: MSGNHT(models.gaussian, diffusion=5.0, **SMALL),
    "nogin": lambda: SGHMC(models.gaussian, friction=5.0, integrator="NOGIN", **SMALL),
    "baoab": lambda: SGHMC(models.gaussian, friction=5.0, integrator="BAOAB", **SMALL),
    "saga": lambda: SGHMC(models.gaussian, friction=5.0, gradient=SAGA(), **SMALL),
    "svrg": lambda: SGHMC(models.gaussian, friction=5.0, gradient=SVRG(10), **SMALL),
    "centre": lambda: SGHMC(models.gaussian, friction=5.0, gradient=ControlVariate({"mu": jnp.asarray(0.7)}), **SMALL),
    "tuned": lambda: SGHMC(models.gaussian, batch_size=models.B),
    "tuned sgnht": lambda: SGNHT(models.gaussian, batch_size=models.B),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.slow
def test_every_kernel(name):
    found = summary(short(KERNELS[name](), ROWS), ROWS)
    assert {"score", "virial", "inflation_by_noise", "stability", "r_hat"} <= found.keys()
    numbers = [line["value"] for line in found.values()]
    assert np.isfinite(numbers).all()
    assert ("kinetic_temperature" in found) == (name != "sgld")
    assert ("thermostat" in found) == ("sgnht" in name)
    assert abs(found["inflation_by_step"]["value"]) < 0.05


def groups(y):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    group = numpyro.sample("group", dist.Normal(0, 1).expand([8]).to_event(1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(tau * group[rows % 8], 3.0), obs=y[rows])


@pytest.mark.optimised
@pytest.mark.slow
def test_the_warm_up_knows_the_noise_at_its_draws():
    """The noise of a control variate grows in the tails, which are longer than those of a normal law."""
    rng = np.random.default_rng(0)
    y = (0.3 * rng.normal(size=8)[np.arange(N) % 8] + 3 * rng.normal(size=N)).astype(np.float32)
    mcmc = short(SGHMC(groups, batch_size=N // 4, centering=False), y, num_warmup=500, num_samples=500, num_chains=4)
    draws = Run(mcmc, (y,), {}, "test").draws(2000)
    pairs = gradient_pairs(Run(mcmc, (y,), {}, "test"), draws, random.key(1))
    chosen = mcmc.last_state.settings
    seen = ((pairs @ np.asarray(chosen.coordinates.scale, float)) ** 2).mean(0).sum()
    assert 0.6 < chosen.noise_variance.sum() / seen < 1.7


@pytest.mark.slow
def test_a_tempered_run_is_judged_by_its_draws_at_temperature_one():
    kernel = Tempered(SGHMC(regression, **RIGHT), [1.0, 2.0, 4.0])
    mcmc = MCMC(kernel, num_warmup=50, num_samples=300, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(0), X, Y, init_params={"w": jnp.broadcast_to(jnp.array([1.0, -1.0, 0.5]), (2, 3))})
    found = summary(mcmc, X, Y)
    assert found.verdict == "right", str(found)
    assert found["gradient_evaluations"]["value"] == 2 * 350 * 60 * 3
    with pytest.raises(TypeError, match="those of Tempered exchange"):
        couple(mcmc, random.key(0), X, Y)


@pytest.mark.parametrize("method", ["sequential", "parallel", "vectorized"])
@pytest.mark.slow
def test_every_chain_method(method):
    mcmc = short(SGHMC(models.gaussian, batch_size=models.B), ROWS, chain_method=method)
    assert np.isfinite(summary(mcmc, ROWS)["virial"]["value"])


@pytest.mark.slow
def test_one_chain_and_two_plates():
    table = models.TABLE.astype(np.float32)
    kernel = SGHMC(models.crossed, friction=5.0, **SMALL | {"batch_size": {"columns": 6, "rows": 2}})
    mcmc = short(kernel, table, num_chains=1)
    found = summary(mcmc, table)
    assert set(found["score"]["by_site"]) == {"mu", "scale"}
    assert found["passes"]["value"] == pytest.approx(110 * 5 * 12 / 96)  # two rows and six columns of a table of 4 x 24
    assert epoch_of(Run(mcmc, (table,), {}, "test")) == 4  # the longer epoch, as its noise is cancelled last


def separate(x, y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("A", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
    with numpyro.plate("B", len(y)) as rows:
        numpyro.sample("y", dist.Normal(-mu, 1), obs=y[rows])


def test_rows_of_separate_plates_add_up():
    kernel = SGLD(separate, **SMALL | {"step_size": 1e-3, "batch_size": {"A": 6, "B": 2}})
    mcmc = short(kernel, ROWS, ROWS[:10])
    assert summary(mcmc)["passes"]["value"] == pytest.approx(2 * 110 * 5 * 8 / 34)
    assert summary(mcmc, ROWS, ROWS[:10])["looked_at"]["passes"] == 120  # all rows of both, for each draw


@pytest.mark.parametrize("dynamics", [models.THERMOSTAT, Recipe(D=models.metric)])
def test_a_recipe_has_no_prediction(dynamics):
    kernel = SGMCMC(models.gaussian, dynamics, "euler", **SMALL | {"step_size": 1e-3})
    mcmc = short(kernel, ROWS)
    found = summary(mcmc, ROWS)
    assert "score" in found and "inflation_by_noise" not in found
    with pytest.raises(ValueError, match="the inflation is not known"):
        corrected(mcmc, ROWS)


def test_a_table_for_people_and_a_dict_for_programs():
    mcmc = run()
    found = summary(mcmc, X, Y, seconds=2.0)
    assert dict(found)["score"]["where"].startswith("w[")
    short, lines = str(found).splitlines(), found.all().splitlines()
    assert short[0] == lines[0] == "Verdict: right" and len(short) <= 10 and max(map(len, short)) <= 100
    for words in ("power   errors above 0.", "R-hat 1.0", "4 x 500", "in 2 s", ".all()"):
        assert any(words in line for line in short)
    assert any(line.startswith("E[dU/dz] = 0") for line in lines)
    assert max(map(len, lines)) < 160
    power = found["power"]  # limits of errors that are known from as many gradients of right draws
    assert 0.02 < power["value"] < 0.3 and 0.02 < power["inflation"] < 0.5
    assert found.by_site.keys() == {"w"} and found.by_site["w"]["verdict"] == "ok"
    assert found.by_site["w"]["virial"] == found["virial"]["by_site"]["w"]["z"]
    assert any(line.startswith("w ") for line in lines)
    cells = [cell.text for cell in ElementTree.fromstring(f"<p>{found._repr_html_()}</p>").iter("td")]
    assert {"w", "power", found["r_hat"]["bound"]} <= {*cells}
    evaluations = found["gradient_evaluations"]
    assert evaluations["value"] == 4 * 550 * 60 and evaluations["per_second"] == evaluations["value"] / 2
    assert found["passes"]["value"] == pytest.approx(4 * 550 * 60 * 600 / N)
    assert summary(mcmc, X, Y, max_draws=100)["looked_at"]["value"] == 100


OTHER = {
    "some rows": ((X[:100], Y[:100]), {}, r"argument 1 has shape \(100, 3\), in the run \(2400, 3\)"),
    "exchanged": ((Y, X), {}, r"argument 1 has shape \(2400,\)"),
    "another scale": ((X / X.std(0), Y), {}, "not those of the run: argument 1 has other values"),
    "another order": ((X[::-1], Y[::-1]), {}, "argument 1 has other values; argument 2 has other values"),
    "no labels": ((X,), {}, "not those of the run: without argument 2. Pass the arguments"),
    "by name": ((), {"X": X, "y": -Y}, "not those of the run. Pass the arguments"),
    "lists": ((X.tolist(), Y), {}, "not those of the run: argument 1 is a list"),
}


@pytest.mark.parametrize("other", OTHER)
def test_other_data_than_those_of_the_run(other):
    args, kwargs, words = OTHER[other]
    with pytest.raises(ValueError, match=words):
        summary(run(), *args, **kwargs)


def test_every_function_refuses_other_data():
    with_key = [functools.partial(of, run(), random.key(0)) for of in (step_halving, couple)]
    without = (kernel_stein_discrepancy, score_linearity, corrected, to_arviz, plot_noise_spectrum)
    for function in with_key + [functools.partial(of, run()) for of in without]:
        with pytest.raises(ValueError, match="the data are not those of the run"):
            function(X, Y + 1)


def test_the_same_data_in_another_form():
    for args, kwargs in (
        ((X.astype(float), jnp.asarray(Y)), {}),
        ((X,), {"y": Y}),
        ((), {"X": X, "y": Y}),
    ):
        finished = Run(run(), args, kwargs, "test")
        assert (finished.args, finished.kwargs) == (args, kwargs)
    labels = (models.COUNTS, models.COUNTS.astype(float), jnp.asarray(models.COUNTS > 0))
    assert len({fingerprint((y,), {}) for y in labels}) == 1
    numbers = (1, 1.0, np.float64(1), np.int8(1), True)
    assert len({fingerprint((number,), {}) for number in numbers}) == 1
    assert len({fingerprint((number,), {}) for number in (0, 0.1, "0", None, 10**30, 10**30 + 1)}) == 6


def test_a_warm_up_alone_has_no_draws():
    mcmc = MCMC(KERNELS["sgld"](), num_warmup=2, num_samples=10, progress_bar=False)
    mcmc.warmup(random.key(0), ROWS)
    with pytest.raises(ValueError, match="no draws yet"):
        summary(mcmc, ROWS)


def test_few_draws_do_not_make_a_run_wrong():
    """Chains of one draw do not stand still, and R-hat of a few draws is large by chance."""
    one, five = (short(KERNELS["bares all"](), ROWS, num_samples=n) for n in (1, 5))
    assert summary(one)["refused"]["standing_still"] == 0
    five._states["z"]["mu"] = jnp.array([[0.0, 0.1, 0.2, 0.3, 0.4], [1.0, 1.1, 1.2, 1.3, 1.4]])
    assert summary(five)["r_hat"]["value"] > 1.5
    assert summary(five)["r_hat"]["verdict"] == "doubtful"


def test_a_pickled_run_may_have_lost_its_arguments():
    mcmc = short(KERNELS["sgld"](), ROWS)
    mcmc._args = mcmc._kwargs = None
    assert "score" not in summary(mcmc) and "score" in summary(mcmc, ROWS)
    with pytest.raises(ValueError, match="not known any more, as after unpickling. Pass those of mcmc.run"):
        kernel_stein_discrepancy(mcmc)
    assert to_arviz(mcmc, ROWS).posterior.attrs["verdict"] == summary(mcmc, ROWS).verdict


def test_coordinates_have_names_without_the_data():
    found = summary(run())
    assert found["ess"]["where"].startswith("w[")


def ends(i):
    """A schedule of 0 after 100 steps."""
    return jnp.where(i < 100, 1e-3, 0.0)


@pytest.mark.parametrize("num_samples, verdict", [(55, "doubtful"), (200, "wrong")])
def test_a_schedule_that_ends_at_0(num_samples, verdict):
    mcmc = short(SGLD(models.gaussian, step_size=ends), ROWS, num_samples=num_samples)
    found = summary(mcmc, ROWS)
    assert found["step_size"]["verdict"] == verdict and "in " in found.all() and "stays positive" in str(found)
    numbers = [line["value"] for line in found.values()]
    assert np.isfinite(numbers).all()
    for function in (step_halving, couple):
        options = {} if function is step_halving else {"num_samples": 20}
        kernel = SGLD(models.gaussian, step_size=ends, batch_size=models.B)
        with pytest.raises(ValueError, match="the last step size of the run is 0"):
            function(short(kernel, ROWS, num_samples=num_samples), random.key(0), ROWS, **options)


def test_draws_of_a_schedule_that_has_ended_are_draws():
    mcmc = short(SGLD(models.gaussian, step_size=ends), ROWS, num_warmup=100)
    assert summary(mcmc, ROWS)["step_size"]["verdict"] == "wrong"
    with pytest.raises(ValueError, match="all draws are from steps of size 0"):
        weights(mcmc)


def test_inflations_are_those_of_the_mean_step():
    """SGLD on a normal posterior of precision lambda: 1 / (1 - h lambda / 2) - 1."""
    precision = 1 / models.gaussian_posterior(ROWS)[1]
    large, small = 0.6 / precision, 0.2 / precision
    schedule = Piecewise((150 * 10,), (large, small))
    kernel = SGLD(models.gaussian, step_size=schedule, steps_per_sample=10)
    mcmc = short(kernel, ROWS, num_warmup=50, num_samples=200, num_chains=4)
    found = summary(mcmc, ROWS)
    assert found["inflation_by_step"]["value"] == pytest.approx(1 / (1 - 0.4 / 2) - 1, rel=0.1)
    assert "at the mean step size" in found.all()


@pytest.mark.optimised
def test_noise_of_sorted_rows_in_blocks():
    """The gradient of a normal mean has the noise N / n times the sum of a block, one of N blocks of neighbours."""
    x = np.sort(ROWS)
    kernel = SGLD(models.gaussian, step_size=1e-3, batch_size=models.B, rows=Reshuffled(contiguous=True))
    mcmc = short(kernel, x)
    draws = Run(mcmc, (x,), {}, "test").draws(1000)
    pairs = gradient_pairs(Run(mcmc, (x,), {}, "test"), draws, random.key(1), 4000)
    sums = np.array([np.take(x, k + np.arange(models.B), mode="wrap").sum() for k in range(models.N)], float)
    exact = (models.N / models.B) ** 2 * sums.var()
    error = (pairs**2).std() / len(pairs) ** 0.5
    assert abs((pairs**2).mean() - exact) < 4.5 * error < 0.2 * exact


def squares(x, y):
    """Of int8 numbers: from 12 on their squares wrap."""
    w = numpyro.sample("w", dist.Normal(0, 10))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(w * x[rows] ** 2 / 100, 1.0), obs=y[rows])


@pytest.mark.parametrize("largest, verdict", [(11, "right"), (30, "wrong")])
def test_narrow_data_that_overflow(largest, verdict):
    x = np.random.default_rng(0).integers(0, largest + 1, 200).astype(np.int8)
    y = (x.astype(np.float32) ** 2 / 100).astype(np.float32)
    kernel = SGHMC(squares, step_size=0.02, friction=5.0, steps_per_sample=20)
    found = summary(short(kernel, x, y, num_samples=500), x, y)
    assert found["score"]["verdict"] == {"right": "ok"}.get(verdict, verdict), str(found)
    assert "argument 1 widened to 32 bits" in found.all()
    if largest == 30:
        assert ", perhaps because the model overflows in the dtype of argument 1" in found["score"]["advice"]


def bits(x):
    """A model that needs the dtype of its data."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=jnp.unpackbits(x[rows][:, None], axis=-1)[:, 0])


def test_a_model_that_needs_narrow_data_keeps_them():
    x = np.arange(models.N).astype(np.uint8)
    found = summary(short(SGLD(bits, step_size=1e-2), x), x)
    assert np.isfinite(found["score"]["value"]) and "32 bits" not in found.all()


def test_errors():
    with pytest.raises(TypeError, match="needs a numpyro.infer.MCMC"):
        summary(3)
    with pytest.raises(TypeError, match="not NUTS"):
        summary(MCMC(NUTS(models.gaussian), num_warmup=1, num_samples=1))
    with pytest.raises(ValueError, match="no draws yet"):
        summary(MCMC(KERNELS["sgld"](), num_warmup=1, num_samples=1))
    mcmc = short(KERNELS["sgld"](), ROWS, num_samples=5)
    with pytest.raises(ValueError, match="at least 8 draws"):
        summary(mcmc, ROWS)
