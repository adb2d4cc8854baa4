"""The half-line and the simplex: SCIR and SGRLD on the expanded mean, against their exact laws."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from numpyro_sgmcmc import SCIR, SGRLD, ExpandedMean, Natural, WithoutReplacement
from numpyro_sgmcmc.contrib.scir import CoxIngersollRoss
from numpyro_sgmcmc.types import Phase

pytestmark = pytest.mark.optimised
ALPHA = 4.5  # standard errors
CHAINS = 20_000
DRAWS = 50_000  # of one step; the same number everywhere is compiled once
N, B = 20, 4
ROWS = np.random.default_rng(3).poisson(1.2, N).astype(float)


def gamma(shape, rows=()):
    """theta ~ Gamma(shape, 1), and rows whose likelihood is theta^x."""
    theta = numpyro.sample("theta", dist.Gamma(shape, 1.0))
    if len(rows):
        with numpyro.plate("N", len(rows)) as chosen:
            numpyro.factor("counts", rows[chosen] * jnp.log(theta))


def ends(kernel, args, steps, start, chains=CHAINS, site="theta"):
    """Draws of independent chains after some steps from one place, and whether a step was refused."""
    keys = random.split(random.key(5), chains)
    start = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (chains, *jnp.shape(x))), start)
    state = kernel.init(keys, 0, start, args, {})

    @jax.jit
    def run(state):
        def body(state, _):
            state = kernel.sample(state, args, {})
            return state, state.diverging.any()

        return jax.lax.scan(body, state, None, length=steps)

    state, diverging = run(state)
    values = jax.vmap(kernel.postprocess_fn(args, {}))(state.z)[site]
    return np.asarray(values, float), bool(diverging.any())


def assert_moments(theta, mean, variance):
    """Mean and variance of independent draws."""
    centred = (theta - mean) ** 2
    for draws, exact in ((theta, mean), (centred, variance)):
        z = (draws.mean(0) - exact) / (draws.std(0, ddof=1) / np.sqrt(len(draws)))
        assert np.abs(z).max() < ALPHA, (draws.mean(0), exact, z)


def variance_of_counts():
    return N**2 / B * (1 - B / N) * ROWS.var(ddof=1)


@pytest.mark.parametrize("theta, b, h, rate", [(2.0, 3.0, 0.5, 1.0), (0.01, 0.1, 0.5, 1.0), (40.0, 30.0, 1e-2, 2.5)])
@pytest.mark.every(3)
def test_the_transition_is_that_of_the_process(theta, b, h, rate):
    """Its law is scipy's noncentral chi-square."""
    dynamics = CoxIngersollRoss({"x": np.array(rate)})
    z = jnp.log(jnp.asarray(theta))
    gradient = {"x": jnp.full(DRAWS, rate * theta - b)}
    moved = dynamics.E(Phase({"x": jnp.full(DRAWS, z)}), jnp.asarray(h), gradient, random.key(1)).z["x"]
    c = -np.expm1(-rate * h) / rate
    exact = stats.ncx2(2 * b, 2 * theta * np.exp(-rate * h) / c, scale=c / 2)
    draws = np.exp(np.asarray(moved, float))
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-5
    assert_moments(draws, exact.mean(), exact.var())


def test_a_large_noncentrality():
    """Beyond the whole numbers of 32 bits."""
    moved = CoxIngersollRoss().E(
        Phase({"x": jnp.full(DRAWS, jnp.log(2e3))}), jnp.asarray(1e-7), {"x": jnp.zeros(DRAWS)}, random.key(1)
    )
    change = np.asarray(moved.z["x"], float) - np.log(2e3)
    assert np.abs(change).max() < 1e-3


@pytest.mark.parametrize("h", [0.2, 1.0])
@pytest.mark.slow
def test_scir_has_its_law_with_minibatches(h):
    kernel = SCIR(gamma, step_size=h, batch_size=B, rows=WithoutReplacement())
    mu = 0.5 + ROWS.sum()
    theta, diverging = ends(kernel, (0.5, ROWS), round(12 / h), {"theta": np.log(mu)})
    assert not diverging
    assert_moments(theta, mu, mu + np.tanh(h / 2) * variance_of_counts())


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.2, 0.5])
def test_sgrld_on_the_expanded_mean_has_its_law_with_minibatches(h):
    kernel = SGRLD(gamma, metric=ExpandedMean(), step_size=h, batch_size=B, rows=WithoutReplacement())
    mu = 20.5 + ROWS.sum()  # far from 0
    theta, _ = ends(kernel, (20.5, ROWS), round(12 / h), {"theta": mu})
    assert_moments(theta, mu, (2 * mu + h * variance_of_counts()) / (2 - h))


@pytest.mark.slow
def test_near_zero():
    """Gamma(0.1, 1): SCIR is exact, SGRLD on the expanded mean three times too far from 0."""
    theta, diverging = ends(SCIR(gamma, step_size=0.5), (0.1,), 30, {"theta": np.log(0.1)})
    assert not diverging
    assert_moments(theta, 0.1, 0.1)
    theta, _ = ends(SGRLD(gamma, metric=ExpandedMean(), step_size=0.1), (0.1,), 150, {"theta": 0.1})
    assert theta.mean() == pytest.approx(0.37, abs=0.02)


@pytest.mark.slow
def test_below_the_smallest_number():
    """Gamma(0.01, 1) is below 1e-38 with probability 0.42; its logarithm is kept."""
    kernel = SCIR(gamma, step_size=1.0)
    state = kernel.init(random.split(random.key(5), 4000), 0, None, (0.01,), {})
    step = jax.jit(lambda state: kernel.sample(state, (0.01,), {}))
    for _ in range(12):
        state = step(state)
        assert not state.diverging.any()
    share = float((state.z["theta"] < np.log(1e-38)).mean())
    exact = stats.gamma(0.01).cdf(1e-38)
    assert abs(share - exact) < ALPHA * np.sqrt(exact * (1 - exact) / 4000)


# -- the simplex ---------------------------------------------------------------------------------------------------

CONCENTRATION = np.array([0.2, 1.0, 0.5])
X = np.repeat(np.arange(3), [14, 6, 0])


def categories(x):
    p = numpyro.sample("p", dist.Dirichlet(CONCENTRATION))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Categorical(p), obs=x[rows])


def dirichlet_moments():
    law = dist.Dirichlet(CONCENTRATION + np.bincount(X, minlength=3))
    return np.asarray(law.mean), np.asarray(law.variance)


@pytest.mark.slow
def test_scir_on_the_simplex_is_exact():
    p, diverging = ends(SCIR(categories, step_size=0.7), (X,), 20, {"p": np.log([14.0, 6, 0.5])}, site="p")
    assert not diverging
    assert_moments(p, *dirichlet_moments())


@pytest.mark.slow
def test_scir_needs_no_small_step_on_a_sparse_prior():
    def prior():
        numpyro.sample("p", dist.Dirichlet(jnp.full((2, 4), 0.05)).to_event(1))

    kernel = SCIR(prior, step_size=1.5)
    p, diverging = ends(kernel, (), 20, {"p": np.full((2, 4), -3.0)}, chains=5000, site="p")
    assert not diverging
    assert_moments(p.reshape(len(p), -1), 0.25, 0.25 * 0.75 / 1.2)


@pytest.mark.slow
def test_sgrld_on_the_simplex_approaches_the_law():
    """Its error is of order h where no component is near 0."""

    def prior():
        numpyro.sample("p", dist.Dirichlet(jnp.array([4.0, 6.0, 10.0])))

    kernel = SGRLD(prior, metric=ExpandedMean(), step_size=0.02)
    p, _ = ends(kernel, (), 300, {"p": np.array([4.0, 6, 10])}, site="p")
    exact = dist.Dirichlet(jnp.array([4.0, 6.0, 10.0]))
    np.testing.assert_allclose(p.mean(0), exact.mean, rtol=0.02)
    np.testing.assert_allclose(p.var(0), exact.variance, rtol=0.06)


def test_the_natural_coordinates():
    kernel = SGRLD(gamma, metric=Natural(), step_size=0.02)
    theta, _ = ends(kernel, (20.0,), 300, {"theta": np.log(20.0)})
    np.testing.assert_allclose([theta.mean(), theta.var()], 20.0, rtol=0.04)


@pytest.mark.slow
def test_the_prior_of_another_rate():
    def model():
        numpyro.sample("theta", dist.Gamma(jnp.array([0.5, 3.0]), jnp.array([4.0, 0.5])).to_event(1))

    theta, _ = ends(SCIR(model, step_size=0.5), (), 30, {"theta": np.zeros(2)})
    assert_moments(theta, np.array([0.125, 6.0]), np.array([0.5 / 16, 12.0]))


def poisson(x):
    theta = numpyro.sample("theta", dist.Gamma(2.0, 1.0))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Poisson(0.5 * theta), obs=x[rows])


@pytest.mark.slow
def test_a_conditional_of_another_rate():
    kernel = SCIR(poisson, step_size=0.3, rate={"theta": 1 + 0.5 * N})
    theta, diverging = ends(kernel, (ROWS,), 30, {"theta": 0.0})
    assert not diverging
    b, r = 2 + ROWS.sum(), 1 + 0.5 * N
    assert_moments(theta, b / r, b / r**2)


CENTERS = jnp.array([-1.0, 1.0])


def summed(x):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.5, 1.0])))
    with numpyro.plate("N", len(x)) as rows:
        mixed = dist.MixtureSameFamily(dist.Categorical(p), dist.Normal(CENTERS, 1.0))
        numpyro.sample("x", mixed, obs=x[rows])


def of_a_row(x):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.5, 1.0])))
    with numpyro.plate("N", len(x)) as rows:
        k = numpyro.sample("k", dist.Categorical(p))
        numpyro.sample("x", dist.Normal(CENTERS[k], 1.0), obs=x[rows])


def component(rng_key, local_sites, global_sites, rows, x):
    log_p = jnp.log(global_sites["p"]) + dist.Normal(CENTERS, 1).log_prob(x[rows][:, None])
    return {"k": random.categorical(rng_key, log_p)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, options",
    [(summed, {"counts": {"p": 12}}), (of_a_row, {"local": component, "batch_size": 11})],
    ids=["summed", "drawn"],
)
def test_weights_of_a_mixture_have_expected_counts(model, options):
    """Not conjugate, so of order 1: the mean against that of a grid."""
    x = np.random.default_rng(0).normal(0.4, 1, 12)
    kernel = SCIR(model, step_size=0.05, **options)
    p, _ = ends(kernel, (x,), 200, {"p": np.log([5.0, 5])}, site="p")
    grid = np.linspace(5e-4, 1 - 5e-4, 1000)
    like = stats.norm.pdf(x[:, None], -1) * grid + stats.norm.pdf(x[:, None], 1) * (1 - grid)
    weight = grid**0.5 * like.prod(0)
    exact = (grid * weight).sum() / weight.sum()
    assert abs(p[:, 0].mean() - exact) < 0.01


# -- what is refused -----------------------------------------------------------------------------------------------


def refused(model, message, args=(), **options):
    with pytest.raises(ValueError, match=message):
        SCIR(model, step_size=0.1, **options).init(random.key(0), 0, None, args, {})


def test_a_real_site_is_refused():
    def model():
        numpyro.sample("theta", dist.Gamma(1.0, 1.0))
        numpyro.sample("x", dist.Normal(0, 1))

    refused(model, "site 'x' is neither")


def test_counts_that_are_not_positive_are_refused():
    kernel = SCIR(poisson, step_size=0.1)
    with pytest.raises(ValueError, match="counts of site 'theta' are -8"):
        kernel.init(random.key(0), 0, {"theta": 0.0}, (0 * ROWS,), {})


def test_a_likelihood_that_is_not_homogeneous_is_refused():
    def model(x):
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(3, 20.0)))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("x", dist.Normal(p[0], 1), obs=x[rows])

    refused(model, "not homogeneous in site 'p'", (ROWS,))


def normal_share(x):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])))
    share = p[0] / p.sum()
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(share, 0.2), obs=x[rows])


@pytest.mark.slow
def test_any_likelihood_of_the_shares_has_its_law():
    """Not homogeneous in p, but in p over its sum: of order 1, so the mean against that of the marginal on a grid."""
    x = np.array([0.5, 0.35])
    kernel = SCIR(normal_share, step_size=0.02, counts={"p": 30.0})
    p, _ = ends(kernel, (x,), 500, {"p": np.log([10.0, 10, 10])}, site="p")
    grid = np.linspace(5e-4, 1 - 5e-4, 1000)
    weight = stats.beta(2, 7).pdf(grid) * stats.norm.pdf(x[:, None], grid, 0.2).prod(0)
    exact = (grid * weight).sum() / weight.sum()
    assert abs(p[:, 0].mean() - exact) < 0.01


def test_the_arguments():
    with pytest.raises(ValueError, match="step_size= is missing"):
        SCIR(gamma)
    with pytest.raises(ValueError, match="rate must be a dict|rate=2.0 must be a dict"):
        SCIR(gamma, step_size=0.1, rate=2.0)
    refused(gamma, "rate names 'nu'", (1.0,), rate={"nu": 1.0})


def test_a_number_that_is_exactly_zero():
    """A step may end there, where the share is less than any number: the energy is finite, and the chain goes on."""
    K = 50
    model = lambda: numpyro.sample("pi", dist.Dirichlet(jnp.full(K, 0.1)))  # noqa: E731
    kernel = SGRLD(model, metric=ExpandedMean({"pi": 1e5}), step_size=0.01)
    start = jnp.full(K, 1e4).at[3].set(0.0)
    state = jax.jit(lambda state: kernel.sample(state, (), {}))(kernel.init(random.key(0), 0, {"pi": start}, (), {}))
    assert not state.diverging and jnp.isfinite(state.potential_estimate) and state.z["pi"][3] > 0
