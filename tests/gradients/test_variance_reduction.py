"""What the estimators are for: less noise in the gradient, and the law that less noise leaves."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    ControlVariate,
    Minibatch,
    Polynomial,
    WithoutReplacement,
    gradient_noise,
    resample,
    weighted_summary,
    weights,
)
from numpyro_sgmcmc.diagnostics.weights import _summary
from numpyro_sgmcmc.gradients.full_pass import full_gradient

X = 3 + np.random.default_rng(0).normal(size=1000)


def gaussian(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])


@pytest.mark.parametrize("model", ["linear", "logistic"])
@pytest.mark.slow
def test_saga_reduces_the_noise_at_least_tenfold_within_a_pass_from_the_mode(model):
    """Of the size of the paper's data: 1000 standardised rows, batches of 10, h = 0.2 / largest curvature."""
    X = random.normal(random.key(3), (1000, 8)) @ (jnp.eye(8) + 0.4)
    X = (X - X.mean(0)) / X.std(0)
    signal = X @ jnp.linspace(-1, 1, 8)
    y = signal + random.normal(random.key(4), (1000,))
    labels = (random.uniform(random.key(5), (1000,)) < jax.nn.sigmoid(signal)).astype(float)

    def regression(X, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([8]).to_event(1))
        with numpyro.plate("N", len(X)) as rows:
            law = dist.Normal(X[rows] @ w, 1) if model == "linear" else dist.Bernoulli(logits=X[rows] @ w)
            numpyro.sample("y", law, obs=y[rows])

    args = (X, y if model == "linear" else labels)
    curvature = jnp.linalg.eigvalsh(X.T @ X)[-1] * (1 if model == "linear" else 0.25) + 1
    options = {"model": regression, "batch_size": 10, "step_size": float(0.2 / curvature)}
    mode = {"w": jnp.zeros(8)}
    potential = SGLD(**options).potential(args, {})
    for _ in range(20):
        gradient = full_gradient(potential, mode, random.key(0))["w"]
        p = jax.nn.sigmoid(X @ mode["w"])
        hessian = jnp.eye(8) + (X.T * (1 if model == "linear" else p * (1 - p))) @ X
        mode = {"w": mode["w"] - jnp.linalg.solve(hessian, gradient)}
    saga, plain = (SGLD(gradient=g, steps_per_sample=100, **options) for g in (SAGA(), Minibatch()))
    started = lambda kernel, z: kernel.init(random.key(0), 0, z, args, {})  # noqa: E731
    state = jax.jit(lambda s: saga.sample(s, args, {}))(started(saga, mode))
    noise = lambda kernel, state: gradient_noise(kernel, state, *args).variance["w"].sum()  # noqa: E731
    assert noise(saga, state) < 0.1 * noise(plain, started(plain, state.z))


@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore:.*the kinetic temperature is 2")  # of plain minibatches, as it should be
@pytest.mark.parametrize("gradient", [SAGA(), SAGA("batch"), SVRG(), "center", None], ids=str)
@pytest.mark.slow
def test_the_stationary_variance_is_that_of_the_full_gradient(gradient):
    """
    The conjugate Gaussian with N = 1e4 rows, batches of 100, at the step where independent minibatches double the
    variance, h s^2 / (2 D) = 1. 8 coordinates of 16 chains as replicates, started in the law; within 1 % and 4.5
    standard errors, of which one is 0.8 %.
    """
    size, batch_size, dim, chains, friction = 10_000, 100, 8, 16, 200.0
    x = random.normal(random.key(0), (size, dim), jnp.float32)

    def model(x):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real_vector, (), (dim,)))
        with numpyro.plate("N", size) as rows:
            numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])

    mean = {"mu": x.mean(0)}
    s2 = size**2 / batch_size * (1 - batch_size / size) * x.var(0).mean()
    kernel = SGHMC(
        model,
        step_size=float(2 * friction / s2),
        friction=friction,
        batch_size=batch_size,
        rows=WithoutReplacement(),
        gradient=ControlVariate(mean) if gradient == "center" else gradient or Minibatch(),
        steps_per_sample=100,
    )
    start = mean["mu"] + random.normal(random.key(1), (chains, dim)) / np.sqrt(size)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=250, num_chains=chains, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(2), x, init_params={"mu": start})
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    ratio = ((draws - np.asarray(mean["mu"])) ** 2).mean(1).ravel() * size  # ABOBA is exact in z, full gradients given
    error = ratio.std(ddof=1) / np.sqrt(ratio.size)
    if gradient is None:
        assert ratio.mean() > 1.9
    else:
        assert error < 0.01
        assert abs(ratio.mean() - 1) < 0.01 + 4.5 * error


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (lambda **o: SGLD(gaussian, **o), lambda h, s2: h * s2 / 2),
        (lambda **o: SGLD(gaussian, inverse_mass_matrix=0.5, **o), lambda h, s2: 0.5 * h * s2 / 2),
        (lambda **o: SGHMC(gaussian, friction=20.0, **o), lambda h, s2: h * s2 / 40),
        (lambda **o: SGNHT(gaussian, diffusion=20.0, **o), lambda h, s2: 0.0),
        (lambda **o: MSGNHT(gaussian, diffusion=20.0, **o), lambda h, s2: 0.0),
    ],
    ids=["SGLD", "preconditioned", "SGHMC", "SGNHT", "MSGNHT"],
)
@pytest.mark.every(6)
def test_gradient_noise_and_what_it_predicts(kernel, expected):
    """The variance of the mean of 100 of 1000 rows, times N^2, from 2000 minibatches: 5 % is 1.6 standard errors."""
    kernel = kernel(step_size=1e-3, batch_size=100, rows=WithoutReplacement())
    mcmc = MCMC(kernel, num_warmup=0, num_samples=3, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(0), X, init_params={"mu": jnp.zeros(2)})
    noise = gradient_noise(kernel, mcmc.last_state, X, num_batches=2000)
    exact = len(X) ** 2 / 100 * (1 - 100 / len(X)) * X.var(ddof=1)
    assert noise.variance["mu"].shape == (2,)
    np.testing.assert_allclose(noise.variance["mu"], exact, rtol=0.15)
    np.testing.assert_allclose(noise.inflation["mu"], expected(1e-3, noise.variance["mu"]), rtol=1e-5, atol=1e-7)


# -- weights -------------------------------------------------------------------------------------------------------


def run(step_size, num_chains=2, **options):
    kernel = SGLD(gaussian, step_size=step_size, batch_size=100, **options)
    mcmc = MCMC(
        kernel, num_warmup=5, num_samples=200, num_chains=num_chains, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(random.key(3), X)
    return mcmc


def test_the_weight_of_a_draw_is_the_step_size_of_its_last_step():
    schedule = Polynomial(1e-3, 1.0, 0.4)
    mcmc = run(schedule, steps_per_sample=3, num_chains=2)
    last = 3 * (5 + 1 + np.arange(200)) - 1  # of each kept draw
    h = np.asarray(schedule(last))
    w = weights(mcmc, group_by_chain=True)
    np.testing.assert_allclose(w, np.tile(h / h.sum() / 2, (2, 1)), rtol=1e-5)
    np.testing.assert_array_equal(weights(mcmc), w.reshape(-1))


def test_the_weighted_summary_is_that_of_the_weighted_draws():
    """5 % more weight on the early draws would be seen here."""
    mcmc = run(Polynomial(1e-3, 1.0, 0.4))
    w, x = weights(mcmc), np.asarray(mcmc.get_samples()["mu"], float)
    found = weighted_summary(mcmc)["mu"]
    mean = np.sum(w * x)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["sd"] ** 2, np.sum(w * (x - mean) ** 2) / (1 - np.sum(w**2)), rtol=1e-12)
    order = np.argsort(x)
    share = np.cumsum(w[order])[np.searchsorted(x[order], found["5%"])]
    assert abs(share - 0.05) < 2 * w.max()
    assert found["ess"] < len(w)
    draws = resample(mcmc, random.key(0), num_samples=5000)["mu"]
    assert draws.shape == (2, 5000)
    np.testing.assert_allclose(draws.mean(), mean, atol=1e-3 * x.std())


def test_the_effective_sample_size_of_independent_draws_is_that_of_their_weights():
    """Kish's: 1 / sum w^2, by the mean over 200 coordinates."""
    x = np.random.default_rng(6).normal(size=(4, 500, 200))
    w = np.tile(np.arange(1, 501) ** -0.4, (4, 1))
    w /= w.sum()
    found = _summary(x, w)["ess"] * np.sum(w**2)
    # 3 %: bias of the estimate of an autocorrelation time. An inverted ratio would give 1.9
    assert abs(found.mean() - 1) < 0.03 + 5 * found.std(ddof=1) / np.sqrt(200)


@pytest.mark.filterwarnings("ignore:.*the energy was still falling")  # there is no warm-up
def test_with_a_constant_step_the_weighted_are_the_unweighted():
    mcmc = run(1e-4)
    grouped = mcmc.get_samples(group_by_chain=True)
    x = np.asarray(grouped["mu"], float)
    found = weighted_summary(mcmc)["mu"]
    np.testing.assert_allclose(weights(mcmc), 1 / x.size, rtol=1e-6)
    np.testing.assert_allclose(found["mean"], x.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["sd"], x.std(ddof=1), rtol=1e-5)
    np.testing.assert_allclose([found[q] for q in ("5%", "50%", "95%")], np.quantile(x, [0.05, 0.5, 0.95]), rtol=1e-5)
    np.testing.assert_allclose(found["ess"], effective_sample_size(x), rtol=1e-3)
    np.testing.assert_array_equal(resample(mcmc, random.key(0))["mu"], grouped["mu"])


def test_weights_are_for_our_kernels():
    mcmc = MCMC(NUTS(gaussian), num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(random.key(0), jnp.asarray(X))
    with pytest.raises(ValueError, match="no field 'step_size'"):
        weights(mcmc)


def test_resampled_draws_go_to_arviz():
    import arviz as az

    draws = {name: np.asarray(x) for name, x in resample(run(Polynomial(1e-3, 1.0, 0.4)), random.key(0)).items()}
    data = az.from_dict(posterior=draws) if az.__version__.startswith("0") else az.from_dict({"posterior": draws})
    assert data["posterior"]["mu"].shape == (2, 200)


@pytest.mark.parametrize(
    "order, for_, gamma", [(1, "bias", 1 / 2), (2, "bias", 1 / 3), (1, "mse", 1 / 3), (2, "mse", 1 / 5)]
)
def test_optimal_exponents(order, for_, gamma):
    """Chen, Ding & Carin 2015, remarks 7, 9 and 10."""
    assert Polynomial.optimal(order, for_=for_, a=0.1) == Polynomial(0.1, 1.0, gamma)


@pytest.mark.parametrize(
    "order, for_, message", [(0, "bias", "order=0"), (1.5, "mse", "order=1.5"), (2, "both", "'bias', 'mse'")]
)
def test_optimal_exponents_of_nothing(order, for_, message):
    with pytest.raises(ValueError, match=message):
        Polynomial.optimal(order, for_=for_, a=0.1)


def test_a_planted_error_of_5_percent_in_the_weights_is_caught(monkeypatch):
    """The comparison with the exact weights fails where the step sizes kept are h^1.05 in place of h."""
    schedule = Polynomial(1e-3, 1.0, 0.4)
    mcmc = run(schedule)
    h = np.asarray(schedule(5 + np.arange(200)), float)
    exact = np.tile(h / h.sum() / 2, (2, 1))
    np.testing.assert_allclose(weights(mcmc, group_by_chain=True), exact, rtol=1e-5)
    faulty = {"step_size": np.tile(h**1.05, (2, 1))}
    monkeypatch.setattr(mcmc, "get_extra_fields", lambda group_by_chain: faulty)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(weights(mcmc, group_by_chain=True), exact, rtol=1e-5)
