"""
NOGIN, the word ABGBA: z is exact however noisy the gradient, what the word is told of that noise, and what it refuses.
BAGAB: the same but for a small known error, and exact means where the posterior is skewed.
"""

import itertools

import jax
from jax import random
import jax.numpy as jnp
from laws import PRECISION, Listed, affine_step, gaussian, law_of_independent_batches, minibatch_maps, z_scores
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest
from scipy.special import digamma

from numpyro_sgmcmc import SAGA, SGHMC, Reshuffled, Splitting, WithoutReplacement, WithReplacement, gradient_noise
from numpyro_sgmcmc.diagnostics.linear_law import linear_law
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.engine import chain
from numpyro_sgmcmc.types import Phase

CELLS = [  # lambda, h, D, s, and the variance by ABOBA, where 1 is right
    (1.0, 0.1, 1.0, 3.16, 1.50),
    (1.0, 0.3, 1.0, 3.16, 2.51),
    (4.0, 0.2, 2.0, 7.0, 3.48),
    (1.0, 0.3, 1.0, 10.0, 16.1),
    (25.0, 0.1, 5.0, 10.0, 2.02),
]
MASSES = [None, 0.5, {"z": np.array([0.5, 2.0])}]
UNLIKE = np.array([2.0, 9.0])  # s of two coordinates


def noisy(precision):
    """U = z'Pz/2, and rows whose energies c'z add up to 0."""

    def model(slopes):
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (len(precision),)))
        numpyro.factor("U", -0.5 * z @ jnp.asarray(precision, z.dtype) @ z)
        with numpyro.plate("N", len(slopes)) as rows:
            numpyro.factor("rows", -slopes[rows] @ z)

    return model


def slopes(s):
    """Of rows that, one at a time, give the gradient a white noise of +s or -s in each coordinate by itself."""
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=len(s))))
    return signs * s / len(signs)


def law(precision, s, h, friction, monkeypatch, word="NOGIN", mass=None, told=None):
    """Covariance of (z, p) under independent batches, from the step as shipped; ``told`` in place of s for the word."""
    rows = Listed(tuple((i,) for i in range(2 ** len(s))))
    parts = {"integrator": word, "rows": rows, "batch_size": 1, "inverse_mass_matrix": mass}
    kernel = SGHMC(noisy(precision), step_size=h, friction=friction, **parts)
    with jax.enable_x64(True):
        variance = jnp.asarray(s if told is None else told) ** 2
        known = {"noise_variance": {"z": variance}} if word == "NOGIN" else {}
        M, c, S, start = minibatch_maps(kernel, (slopes(s),), monkeypatch, **known)
    return law_of_independent_batches(M, c, S @ S.transpose(0, 2, 1), start)[1]


@pytest.mark.parametrize("curvature, h, friction, s, by_aboba", CELLS)
@pytest.mark.every(3)
def test_z_is_exact_whatever_the_noise_of_the_gradient(curvature, h, friction, s, by_aboba, monkeypatch):
    cell = np.array([[curvature]]), np.array([s]), h, friction, monkeypatch
    covariance = law(*cell)
    assert covariance[0, 0] * curvature == pytest.approx(1, abs=1e-9)
    # the temperature at the end of a step: that of ABOBA with full gradients, whose friction does not matter
    np.testing.assert_allclose(covariance[1], [0, 1 / (1 - curvature * h**2 / 4)], atol=1e-9)
    assert law(*cell, word="ABOBA")[0, 0] * curvature == pytest.approx(by_aboba, rel=0.005)


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.every(2)
def test_z_is_exact_where_coordinates_differ_in_noise_and_mass(mass, monkeypatch):
    covariance = law(PRECISION, UNLIKE, 0.2, 1.5, monkeypatch, mass=mass)
    np.testing.assert_allclose(covariance[:2, :2], np.linalg.inv(PRECISION), atol=1e-9)
    with_aboba = law(PRECISION, UNLIKE, 0.2, 1.5, monkeypatch, word="ABOBA", mass=mass)
    assert np.abs(with_aboba[:2, :2] - np.linalg.inv(PRECISION)).max() > 1


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.every(2)
def test_without_noise_of_the_gradient_it_is_aboba(mass, monkeypatch):
    options = {"step_size": 0.3, "friction": 1.5, "inverse_mass_matrix": mass}
    with jax.enable_x64(True):
        ours = affine_step(SGHMC(gaussian(), integrator="NOGIN", **options), monkeypatch)
        theirs = affine_step(SGHMC(gaussian(), integrator="ABOBA", **options), monkeypatch)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("told", [0.0, 2.0, 5.0])
def test_inflation_is_what_a_wrong_variance_leaves(told, monkeypatch):
    """To first order in h; with the right one nothing is left."""
    h, friction, s = 0.01, 1.5, np.array([3.0])
    left = law(np.eye(1), s, h, friction, monkeypatch, told=np.array([told]))[0, 0] - 1
    dynamics, phase = Underdamped(friction), Phase({}, noise_variance={"z": jnp.array([told**2])})
    assert float(dynamics.inflation(phase, jnp.asarray(h), {"z": s**2})["z"][0]) == pytest.approx(left, rel=1e-3)
    informed = phase._replace(noise_variance={"z": s**2})
    assert float(dynamics.inflation(informed, jnp.asarray(h), {"z": s**2})["z"][0]) == 0


# -- BAGAB -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature, h, friction, s, by_aboba", CELLS)
def test_bagab_is_exact_but_for_the_curvature_that_it_leaves_out(curvature, h, friction, s, by_aboba):
    """It is exact if s^2 is divided by 1 - h^2 lambda / 4; G cannot, as it does not know lambda."""

    def inflation(known):
        cell = h, np.array([curvature]), np.array([s**2])
        law = linear_law(Underdamped(friction), Splitting("BAGAB"), *cell, known=np.array([known]))
        return float(law.step[0] + law.noise[0])

    assert inflation(s**2 / (1 - h**2 * curvature / 4)) == pytest.approx(0, abs=1e-9)
    k, c1 = h**2 * s**2 / 4, np.tanh(friction * h / 2)
    left = k * h**2 * curvature / 4 / c1
    assert 0 < inflation(s**2) < 1.2 * left
    assert left < 0.2 * (by_aboba - 1)


@pytest.mark.filterwarnings("ignore:.*the energy was still falling")  # in one of thousands of chains, by chance
@pytest.mark.parametrize("word, order", [("BAGAB", 0.0), ("ABGBA", -1 / 8)])
def test_the_mean_where_the_posterior_is_skewed(word, order):
    """
    The log of a gamma variable, U = a (exp(z) - z), whose mean is known. ABGBA is off by h^2 / 8 times the mean of the
    third derivative, over the curvature; both are a.
    """
    a, h, chains = 4.0, 0.3, 4096

    def model():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("U", -a * (jnp.exp(z) - z))

    kernel = SGHMC(model, step_size=h, integrator=word, steps_per_sample=4)
    sizes = {"num_warmup": 20, "num_samples": 200, "num_chains": chains, "chain_method": "vectorized"}
    mcmc = MCMC(kernel, **sizes, progress_bar=False)
    mcmc.run(random.key(0), init_params={"z": jnp.log(random.gamma(random.key(1), a, (chains,)) / a)})
    means = np.asarray(mcmc.get_samples(group_by_chain=True)["z"], float).mean(1) - (digamma(a) - np.log(a))
    # the fourth order adds less than a sixth of the second
    assert abs(z_scores(means, order * h**2)) < 4.5 + h**2 / 8 / 6 / (means.std() / np.sqrt(chains))
    assert abs(z_scores(means, -(h**2) / 8 - order * h**2)) > 10


# -- where the variance comes from ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, WithReplacement()])
def test_each_chain_measures_the_variance_where_it_starts(rows):
    """300 signs: their variance is that of +-s but for the square of their mean, about 1 / 300 of it."""
    options = {"rows": rows, "batch_size": 1, "inverse_mass_matrix": {"z": np.array([0.5, 2.0])}}
    kernel = SGHMC(noisy(PRECISION), step_size=0.1, integrator="NOGIN", **options)
    measured = kernel.init(
        random.split(random.key(0), 8), 0, {"z": jnp.ones((8, 2))}, (slopes(UNLIKE),), {}
    ).noise_variance
    np.testing.assert_allclose(measured["z"], np.tile(UNLIKE**2, (8, 1)), rtol=0.1)
    assert len(set(measured["z"][:, 0].tolist())) > 1


def test_the_noise_of_a_randomised_model_is_measured():
    def model():
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.factor("noise", 3 * random.normal(numpyro.prng_key()) * z)

    measured = SGHMC(model, step_size=0.1, integrator="NOGIN").init(random.key(0), 0, None, (), {}).noise_variance
    assert float(measured["z"]) == pytest.approx(9, rel=5 * np.sqrt(2 / 300))


def test_without_minibatches_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(chain, "gradient_variance", None)
    state = SGHMC(gaussian(), step_size=0.1, integrator="NOGIN").init(random.key(0), 0, None, (), {})
    np.testing.assert_array_equal(state.noise_variance["z"], [0, 0])
    assert SGHMC(gaussian(), step_size=0.1).init(random.key(0), 0, None, (), {}).noise_variance == ()


def test_it_wants_independent_batches():
    assert SGHMC(gaussian(), step_size=0.1).rows == Reshuffled()
    assert SGHMC(gaussian(), step_size=0.1, integrator="NOGIN").rows == WithoutReplacement()
    for gradient in ({}, {"gradient": SAGA("batch")}):
        with pytest.raises(ValueError, match=r"rows=Reshuffled\(.*use rows=WithoutReplacement\(\)"):
            SGHMC(gaussian(), step_size=0.1, integrator="NOGIN", rows=Reshuffled(), **gradient)


# -- all of it -----------------------------------------------------------------------------------------------------

N, CHAINS, H, FRICTION = 1000, 256, 3.5e-3, 31.6
X = 3 + random.normal(random.key(0), (N, 2))


def mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])


def run(word):
    """The variance of each chain over that of the posterior, and the inflation by ``gradient_noise``, in the mean."""
    kernel = SGHMC(
        mean,
        step_size=H,
        friction=FRICTION,
        batch_size=100,
        steps_per_sample=10,
        integrator=word,
        rows=WithoutReplacement(),
    )
    mcmc = MCMC(
        kernel, num_warmup=20, num_samples=100, num_chains=CHAINS, chain_method="vectorized", progress_bar=False
    )
    mode = np.asarray(X.sum(0) / (N + 0.01))
    mcmc.run(random.key(1), X, init_params={"mu": jnp.tile(mode, (CHAINS, 1))})
    error = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"], float) - mode
    inflation = np.asarray(gradient_noise(kernel, mcmc.last_state, X).inflation["mu"])
    return (error**2).mean((1, 2)) * (N + 0.01), inflation.mean(0)


@pytest.mark.filterwarnings("ignore:.*the kinetic temperature is 1")  # by ABOBA
@pytest.mark.slow
def test_the_posterior_is_right_where_minibatches_would_widen_it_by_half():
    ratios, inflation = run("NOGIN")
    assert ratios.std(ddof=1) / np.sqrt(CHAINS) < 0.01
    assert abs(z_scores(ratios, 1)) < 4.5
    assert np.abs(inflation).max() < 0.02

    ratios, inflation = run("ABOBA")
    assert ratios.mean() > 1.4
    np.testing.assert_allclose(ratios.mean() - 1, inflation.mean(), rtol=0.1)
