"""Predictions as running averages: what they are, in whatever chunks, and of which draws."""

from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import norm

from numpyro_sgmcmc import SGHMC, SGLD, Cyclical, Polynomial, predict, weights
from numpyro_sgmcmc.diagnostics import predicted_sites

RNG = np.random.default_rng(3)
N, L, D = 23, 11, 3
X, Y = RNG.normal(size=(N, D)), RNG.normal(size=N)
DRAWS = {"w": RNG.normal(size=(L, D)), "scale": np.exp(RNG.normal(size=L))}


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    numpyro.deterministic("size", (w**2).sum())
    with numpyro.plate("N", len(x)) as rows:
        mean = numpyro.deterministic("mean", x[rows] @ w)
        numpyro.sample("y", dist.Normal(mean, scale), obs=None if y is None else y[rows])


MEANS = DRAWS["w"] @ X.T
DENSITY = logsumexp(norm.logpdf(Y, MEANS, DRAWS["scale"][:, None]), axis=0) - np.log(L)


@pytest.fixture(params=[None, 5])
def chunks(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(predicted_sites, "chunk_length", lambda *_: request.param)


@pytest.mark.usefixtures("chunks")
def test_means_and_densities_are_those_of_all_draws():
    found = predict(
        (line, DRAWS), X, Y, function=lambda draw: {"square": draw["w"] ** 2, "log": jnp.log(draw["scale"])}
    )
    np.testing.assert_allclose(found.mean["y"], MEANS.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.log_density["y"], DENSITY, rtol=1e-4)
    np.testing.assert_allclose(found.function["square"], (DRAWS["w"] ** 2).mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.function["log"], np.log(DRAWS["scale"]).mean(), rtol=1e-4)
    assert found.count == L
    assert set(found.mean) == set(found.log_density) == {"y"}


@pytest.mark.usefixtures("chunks")
def test_a_factor_in_the_plate_has_a_density():
    """And no mean; one outside, such as a penalty, is not a density of rows."""

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
        numpyro.factor("penalty", -(w**4).sum())
        with numpyro.plate("N", len(x)) as rows:
            numpyro.factor("tail", dist.Normal(x[rows] @ w, 2.0).log_prob(y[rows]))

    found = predict((model, DRAWS), X, Y)
    assert found.mean == {} and set(found.log_density) == {"tail"}
    density = logsumexp(norm.logpdf(Y, MEANS, 2.0), axis=0) - np.log(L)
    np.testing.assert_allclose(found.log_density["tail"], density, rtol=1e-4)


def test_without_observations_there_are_no_densities():
    found = predict((line, DRAWS | {"size": np.zeros(L), "mean": np.zeros((L, 99))}), X[:7])
    np.testing.assert_allclose(found.mean["y"], MEANS[:, :7].mean(0), rtol=1e-4, atol=1e-5)
    assert found.log_density == {}
    assert found.function == ()


@pytest.mark.usefixtures("chunks")
def test_of_categories_the_probabilities():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([D, 4]).to_event(2))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("y", dist.Categorical(logits=x[rows] @ w), obs=None if y is None else y[rows])

    w = RNG.normal(size=(L, D, 4))
    y = RNG.integers(4, size=N)
    found = predict((model, {"w": w}), X, y)
    probabilities = softmax(np.einsum("nd,ldk->lnk", X, w), -1).mean(0)
    np.testing.assert_allclose(found.mean["y"], probabilities, rtol=1e-4)
    np.testing.assert_allclose(found.log_density["y"], np.log(probabilities[np.arange(N), y]), rtol=1e-4)


@pytest.mark.usefixtures("chunks")
def test_rows_in_the_middle_of_a_site_and_several_sites():
    def model(x, table=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("N", x.shape[0], dim=-2) as rows, numpyro.plate("columns", 3, dim=-1):
            obs = None if table is None else table[rows]
            numpyro.sample("one", dist.Normal(mu[0] * x[rows][:, None], 1), obs=obs)
            numpyro.sample("other", dist.MultivariateNormal(mu * x[rows][:, None, None], jnp.eye(2)))

    mu, table = RNG.normal(size=(L, 2)), RNG.normal(size=(N, 3))
    found = predict((model, {"mu": mu}), X[:, 0], table)
    assert found.mean["other"].shape == (N, 3, 2)
    np.testing.assert_allclose(found.mean["other"][:, 1], X[:, :1] * mu.mean(0), rtol=1e-4, atol=1e-6)
    each = norm.logpdf(table, mu[:, 0, None, None] * X[:, :1], 1)
    np.testing.assert_allclose(found.log_density["one"], logsumexp(each, 0) - np.log(L), rtol=1e-4)


def test_values_of_a_scan_in_reverse_are_those_of_the_draws():
    """``Predictive`` of NumPyro gives the first value to the step that is run first."""

    def model():
        step = lambda carry, t: (carry, numpyro.sample("x", dist.Normal(t, 1)))  # noqa: E731
        _, x = scan(step, None, jnp.arange(3.0), reverse=True)
        with numpyro.plate("N", 3) as rows:
            numpyro.sample("y", dist.Normal(x[rows], 1))

    x = jnp.array([[1.0, 5.0, 9.0], [3.0, 5.0, 7.0]])
    np.testing.assert_allclose(predict((model, {"x": x})).mean["y"], [2.0, 5.0, 8.0])


def test_turn_by_turn_is_all_at_once():
    def function(draw):
        return draw["scale"]

    first, rest = ({name: x[part] for name, x in DRAWS.items()} for part in (slice(0, 3), slice(3, L)))
    found = predict((line, rest), X, Y, function=function, so_far=predict((line, first), X, Y, function=function))
    whole = predict((line, DRAWS), X, Y, function=function)
    assert found.count == L
    for a, b in zip(found[:2], whole[:2]):
        np.testing.assert_allclose(a["y"], b["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.function, whole.function, rtol=1e-5)


@pytest.mark.parametrize("schedule", [Polynomial(1e-2, 1.0, 0.5), Cyclical(1e-2, 10, exploration=0.5)])
def test_draws_of_a_run_count_by_their_weight(schedule):
    kernel = SGLD(models.gaussian, step_size=schedule, batch_size=models.B)
    mcmc = MCMC(kernel, num_warmup=2, num_samples=40, progress_bar=False)
    mcmc.run(random.key(0), models.ROWS, extra_fields=("i",))
    mu = np.asarray(mcmc.get_samples()["mu"])
    average = (weights(mcmc) * mu).sum()
    assert abs(average - mu.mean()) > 1e-3
    found = predict(mcmc, models.ROWS, function=lambda draw: draw["mu"])
    np.testing.assert_allclose(found.function, average, rtol=1e-4)
    np.testing.assert_allclose(found.mean["obs"], np.full(models.N, average), rtol=1e-4)


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", [SGHMC(models.logistic, step_size=1e-2, batch_size=models.B), NUTS(models.logistic)])
def test_chains_of_a_run_of_any_kernel(kernel):
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=5, num_samples=20, **options)
    mcmc.run(random.key(0), jnp.asarray(models.X), jnp.asarray(models.COUNTS))
    p = 1 / (1 + np.exp(-np.asarray(mcmc.get_samples()["weights"], float) @ models.X.T))
    found = predict(mcmc, models.X, models.COUNTS)
    np.testing.assert_allclose(found.mean["obs"], p.mean(0), rtol=1e-4)
    density = np.where(models.COUNTS, p, 1 - p).mean(0)
    np.testing.assert_allclose(found.log_density["obs"], np.log(density), rtol=1e-3, atol=1e-5)


def test_what_it_refuses(monkeypatch):
    with pytest.raises(TypeError, match=r"predict\(dict, ...\) needs a numpyro.infer.MCMC that has run, or \(model"):
        predict(DRAWS, X)
    with pytest.raises(ValueError, match="equally long at all sites; it is .*11.*7"):
        predict((line, DRAWS | {"scale": np.ones(7)}), X)
    with pytest.raises(ValueError, match="call mcmc.run"):
        predict(MCMC(SGLD(models.gaussian, step_size=0.1), num_warmup=1, num_samples=1), models.ROWS)
    with pytest.raises(ValueError, match="so_far= has predictions for other data"):
        predict((line, DRAWS), X, Y, so_far=predict((line, DRAWS), X[:5], Y[:5]))

    def not_indexed(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", dist.Normal(mu * x, 1))

    with pytest.raises(ValueError, match=r"plate 'N' has 23 rows, but indexes argument 2 of shape \(7,\)"):
        predict((line, DRAWS), X, Y[:7])
    with pytest.raises(ValueError, match="argument 1 is a list, which cannot be indexed"):
        predict((line, DRAWS), X.tolist(), Y)
    monkeypatch.setattr(predicted_sites, "chunk_length", lambda *_: 1)
    with pytest.raises(ValueError, match="site 'y' has 23 rows instead of 1 of plate 'N'. Index the data"):
        predict((not_indexed, {"mu": np.zeros(2)}), X[:, 0])
