"""The stochastic Barker proposal: its exact law in one dimension, what noise does to it, and what it withstands."""

import jax
from jax import random
import jax.numpy as jnp
from laws import gaussian, order, z_scores
import numpy as np
import numpyro
from numpyro.infer import MCMC
import pytest
from scipy.special import expit
from test_nogin import X, mean, noisy, slopes

from numpyro_sgmcmc import SGLD, Reshuffled, SGBarker, WithoutReplacement, gradient_noise
from numpyro_sgmcmc.contrib.barker import Barker, upwards
from numpyro_sgmcmc.types import Phase
from numpyro_sgmcmc.utils import noise

ALPHA = 4.5
GRID = np.linspace(-6, 6, 601)
NODES, MASS = (part[5:-5] for part in np.polynomial.hermite_e.hermegauss(31))  # of the spread of a jump
MASS = MASS / MASS.sum()


# -- the step as shipped, on a grid ----------------------------------------------------------------------------------


def places(h, n, u, monkeypatch, mass=1.0):
    """Where the step goes from each point of the grid with this noise, and 0 as the gradient."""
    z = {"z": jnp.asarray(GRID)}
    monkeypatch.setattr(noise, "normal_like", lambda key, tree: {"z": jnp.full_like(tree["z"], n)})
    monkeypatch.setattr(noise, "uniform_like", lambda key, tree: {"z": jnp.full_like(tree["z"], u)})
    phase = Phase(z, noise_variance={"z": jnp.zeros_like(z["z"])})
    moved = Barker(mass).E(phase, jnp.asarray(h), {"z": jnp.zeros_like(z["z"])}, random.key(0))
    monkeypatch.undo()
    return np.asarray(moved.z["z"])


def transition(gradient, h, monkeypatch, told=0.0, heard=0.0):
    """
    The matrix of the step between points of the grid, from the step as shipped; a place between two of them is shared.

    :param told: tau, what it is told of the noise.
    :param heard: standard deviation of the normal noise of the gradient.
    """
    P = np.zeros((len(GRID), len(GRID)))
    eta, of_eta = np.polynomial.hermite_e.hermegauss(60) if heard else (np.zeros(1), np.ones(1))
    of_eta = of_eta / of_eta.sum()
    g = gradient(GRID)[:, None] + heard * eta
    for n, mass in zip(NODES, MASS):
        up, down = (places(h, n, u, monkeypatch) for u in (0.0, 1.0))
        w = jnp.full(g.shape, up[0] - GRID[0])
        p = np.asarray(upwards(jnp.asarray(g), w, jnp.full(g.shape, told**2))) @ of_eta
        for to, share in ((up, p), (down, 1 - p)):
            at = np.clip((to - GRID[0]) / (GRID[1] - GRID[0]), 0, len(GRID) - 1 - 1e-9)
            k = at.astype(int)
            np.add.at(P, (np.arange(len(GRID)), k), mass * share * (1 - (at - k)))
            np.add.at(P, (np.arange(len(GRID)), k + 1), mass * share * (at - k))
    return P


def stationary(P):
    """The law that a matrix leaves."""
    system = np.vstack([P.T - np.eye(len(P)), np.ones(len(P))])
    return np.linalg.lstsq(system, np.append(np.zeros(len(P)), 1.0), rcond=None)[0]


def exact(energy):
    law = np.exp(-energy(GRID))
    return law / law.sum()


@pytest.mark.usefixtures("x64")
def test_a_jump_is_as_the_equation_says(monkeypatch):
    h, n = 0.3, 1.7
    w = np.sqrt(2 * h * 0.5 / 1.01) * (1 + 0.1 * n)
    np.testing.assert_allclose(places(h, n, 0.499, monkeypatch, mass=0.5), GRID + w)
    np.testing.assert_allclose(places(h, n, 0.501, monkeypatch, mass=0.5), GRID - w)


@pytest.mark.usefixtures("x64")
def test_the_direction_is_that_of_barker():
    g, w = jnp.linspace(-40, 40, 2001), jnp.full(2001, 0.4)
    p = upwards(g, w, jnp.zeros(2001))
    assert np.abs(p - expit(-np.asarray(g * w))).max() < 6e-5
    slope = jax.grad(lambda g: upwards(g, jnp.asarray(0.4), jnp.asarray(0.0)))(0.0)
    assert float(slope) == pytest.approx(-0.4 / 4, rel=1e-5)
    assert np.isnan(upwards(jnp.array([np.inf, np.nan]), w[:2], w[:2])).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("energy", [lambda z: z**2 / 2, lambda z: z**4 / 4 + z], ids=["normal", "skewed"])
@pytest.mark.every(2)
def test_the_law_is_of_order_1(energy, monkeypatch):
    steps = (0.08, 0.04)
    gradient = jax.vmap(jax.grad(energy))
    laws = [stationary(transition(lambda z: np.asarray(gradient(jnp.asarray(z))), h, monkeypatch)) for h in steps]
    errors = [np.abs(law - exact(energy)).sum() for law in laws]
    assert errors[-1] < 0.05
    assert order(errors, steps) == pytest.approx(1, abs=0.2)


@pytest.mark.usefixtures("x64")
def test_on_a_gaussian_the_variance_is_that_of_the_docstring(monkeypatch):
    h = 0.05
    law = stationary(transition(lambda z: z, h, monkeypatch))
    assert law @ GRID**2 - 1 == pytest.approx(h / 2, rel=0.1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("tau", [0.5, 1.5])
@pytest.mark.every(2)
def test_with_normal_noise_the_step_is_the_same_in_law(tau, monkeypatch):
    h = 0.1  # tau |w| is at most .95 here, within 1.0775
    without = transition(lambda z: z, h, monkeypatch)
    corrected = transition(lambda z: z, h, monkeypatch, told=tau, heard=tau)
    np.testing.assert_allclose(corrected, without, atol=1e-4)
    np.testing.assert_allclose(stationary(corrected) @ GRID**2, stationary(without) @ GRID**2, rtol=1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("told", [0.0, 1.0])
def test_inflation_is_what_a_wrong_variance_leaves(told, monkeypatch):
    h, tau = 0.02, 2.0
    without = transition(lambda z: z, h, monkeypatch)
    wrong = transition(lambda z: z, h, monkeypatch, told=told, heard=tau)
    left = stationary(wrong) @ GRID**2 / (stationary(without) @ GRID**2) - 1
    phase = Phase({}, noise_variance={"z": jnp.array(told**2)})
    predicted = Barker().inflation(phase, jnp.asarray(h), {"z": jnp.array(tau**2)})["z"]
    assert float(predicted) == pytest.approx(left, rel=0.12)


def test_beyond_what_can_be_corrected_it_follows_the_sign():
    p = upwards(jnp.array([-2.0, 0.0, 3.0]), jnp.full(3, 0.5), jnp.full(3, 36.0))
    np.testing.assert_allclose(p, [1, 0.5, 0], atol=1e-6)


# -- chains ----------------------------------------------------------------------------------------------------------


def variances(kernel, args=(), chains=256, steps=2000, **parts):
    """Mean square of the draws of each chain, started in the normal law."""
    start = {"z": random.normal(random.key(8), (chains, 1))}
    state = kernel.init(random.split(random.key(7), chains), 0, start, args, {})._replace(**parts)

    def body(carry, _):
        state = kernel.sample(carry[0], args, {})
        return (state, carry[1] + state.z["z"][:, 0] ** 2 / steps), None

    return jax.jit(lambda s: jax.lax.scan(body, (s, jnp.zeros(chains)), None, length=steps)[0])(state)[1]


@pytest.mark.optimised
def test_chains_have_the_law_of_the_matrix(monkeypatch):
    """The step whole: its keys and uniform numbers with it."""
    h = 0.1
    kernel = SGBarker(gaussian(np.eye(1)), step_size=h, steps_per_sample=5)
    with jax.enable_x64(True):
        truth = stationary(transition(lambda z: z, h, monkeypatch)) @ GRID**2
    assert abs(z_scores(variances(kernel), truth)) < ALPHA


def heavy(precision=1.0):
    """A normal law whose gradient has Cauchy noise."""
    z = numpyro.sample("z", numpyro.distributions.ImproperUniform(numpyro.distributions.constraints.real, (), (1,)))
    numpyro.factor("U", -0.5 * precision * (z**2).sum())
    numpyro.factor("noise", (random.cauchy(numpyro.prng_key(), (1,)) * z).sum())


@pytest.mark.optimised
@pytest.mark.slow
def test_it_withstands_gradients_of_a_student_law():
    """Of one degree of freedom: without a mean. SGLD follows them wherever they lead."""
    none = {"auxiliary": {"z": jnp.zeros((256, 1))}}
    ours = variances(SGBarker(heavy, step_size=0.02), **none)
    assert np.median(ours) < 1.3
    assert ours.max() < 3
    theirs = variances(SGLD(heavy, step_size=0.02, rows=WithoutReplacement()))
    assert np.median(theirs) > 10


@pytest.mark.optimised
@pytest.mark.slow
def test_the_posterior_is_right_where_minibatches_would_widen_it_by_a_fifth():
    N, chains = len(X), 128
    h = 0.4 / (N * (N / 100 - 1))  # h s^2 / 2 is 0.2
    ratios = {}
    for make in (SGBarker, SGLD):
        kernel = make(mean, step_size=h, batch_size=100, steps_per_sample=25, rows=WithoutReplacement())
        mcmc = MCMC(
            kernel, num_warmup=20, num_samples=100, num_chains=chains, chain_method="vectorized", progress_bar=False
        )
        mode = np.asarray(X.sum(0) / (N + 0.01))
        mcmc.run(random.key(1), X, init_params={"mu": jnp.tile(mode, (chains, 1))})
        error = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"], float) - mode
        ratios[make] = (error**2).mean((1, 2)) * (N + 0.01)
        if make is SGBarker:
            assert np.abs(gradient_noise(kernel, mcmc.last_state, X).inflation["mu"].mean(0)).max() < 0.02
    step = 1 + h * N / 2
    # the measured variance of a chain is off by some 8 %, and so is what is taken out
    assert abs(ratios[SGBarker].mean() - step) < 0.01 + ALPHA * ratios[SGBarker].std() / np.sqrt(chains)
    assert ratios[SGLD].mean() > step + 0.15


# -- what it asks for ------------------------------------------------------------------------------------------------


def test_each_chain_measures_the_noise_where_it_starts():
    kernel = SGBarker(noisy(np.eye(2)), step_size=0.1, batch_size=1)
    state = kernel.init(random.key(0), 0, {"z": jnp.ones(2)}, (slopes(np.array([2.0, 9.0])),), {})
    np.testing.assert_allclose(state.noise_variance["z"], [4, 81], rtol=0.5)


def test_what_it_refuses():
    assert SGBarker(gaussian(), step_size=0.1).rows == WithoutReplacement()
    with pytest.raises(ValueError, match=r"rows=Reshuffled\(.*use rows=WithoutReplacement\(\)"):
        SGBarker(gaussian(), step_size=0.1, rows=Reshuffled())
    with pytest.raises(ValueError, match="step_size= is missing. Give half the square of a jump"):
        SGBarker(gaussian())
    with pytest.raises(ValueError, match=r"inverse_mass_matrix\['z'\] must contain positive"):
        SGBarker(gaussian(), step_size=0.1, inverse_mass_matrix={"z": [1.0, -1.0]})
