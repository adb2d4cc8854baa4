"""What the warm-up measures at a position, and the step size that it allows."""

from math import log2

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import ControlVariate, Minibatch, WithoutReplacement
from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.coordinates import Coordinates
from numpyro_sgmcmc.tuning.noise_samples import bend_of, growth, measured
from numpyro_sgmcmc.tuning.probes import probe
from numpyro_sgmcmc.tuning.step_rule import BENT, FORGOTTEN, GROWING, HEAT, UNKNOWN, Noise, StepRule

rng = np.random.default_rng(3)
QUIET = Noise(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3))


def rule(dynamics=None):
    return StepRule(dynamics or Underdamped(1.0), needs_variance=dynamics is None)


def within_a_quarter_octave(h, bound):
    """Step sizes decrease by a factor of 2^-1/4."""
    return -0.26 < log2(h / bound) < 0.01


@pytest.mark.parametrize("variance", [0.1, 5.0, 80.0])
def test_the_noise_bounds_the_step(variance):
    h = rule().step_size(Noise(jnp.array([0.0, variance]), jnp.zeros(2), jnp.zeros(2)), jnp.zeros(()), jnp.asarray(0.3))
    assert within_a_quarter_octave(h, min(0.3, 2 * np.sqrt(FORGOTTEN / variance), 2 * HEAT / variance))


def test_an_inaccurate_variance_bounds_the_step():
    """As it would be subtracted from the injected noise; an accurate one allows several times the step."""
    noise = Noise(jnp.array([1.0, 3.0]), jnp.array([0.05, 2.0]), jnp.zeros(2))
    h = rule().step_size(noise, jnp.zeros(()), jnp.asarray(0.3))
    assert within_a_quarter_octave(h, 2 * UNKNOWN / 6.0)
    assert rule().step_size(noise._replace(error=jnp.full(2, 0.05)), jnp.zeros(()), jnp.asarray(0.3)) > 5 * h


@pytest.mark.parametrize("dynamics, order", [(None, 2), (Overdamped(), 1)])
@pytest.mark.parametrize("bend", [0.1, 2.0, 50.0])
def test_a_posterior_that_is_not_normal_bounds_the_step(dynamics, order, bend):
    """|E[b]| is proportional to h^2, and to h without a momentum."""
    largest = jnp.asarray(0.04)
    h = rule(dynamics).step_size(QUIET, jnp.asarray(bend), largest)
    assert within_a_quarter_octave(h, 0.04 * min(1, BENT / bend) ** (1 / order))


@pytest.mark.parametrize("share", [1.0, 0.03])
def test_noise_that_grows_with_its_coordinate_bounds_the_step(share):
    """e = xi x, where xi differs from 0 in a share of the minibatches."""
    n = 200_000
    x, hit = rng.uniform(-3, 3, size=(n, 2)), rng.random((n, 1)) < share
    xi = 2 * hit * rng.choice([-1, 1], size=(n, 1)) / np.sqrt(share)
    of_itself = growth(jnp.asarray(xi * x), jnp.asarray(x))
    np.testing.assert_allclose(of_itself, 16 / share, rtol=0.1)
    of_others = growth(jnp.asarray(xi * x[:, ::-1]), jnp.asarray(x))  # E[x^4]^2 / E[x^8] of it
    np.testing.assert_allclose(of_others, 0.36 * 16 / share, rtol=0.2)
    noise = Noise(jnp.full(2, 1e-3), jnp.zeros(2), jnp.full(2, 16 / share))
    h = rule().step_size(noise, jnp.zeros(()), jnp.asarray(0.3))
    assert within_a_quarter_octave(h, min(0.3, (GROWING * share / 16) ** (1 / 3)))


def test_a_relative_error_of_a_variance():
    """Of normal noise (2 / n)^1/2; of a coordinate that one sample in twenty hits, (3 x 20 / n)^1/2."""
    n = 4000
    normal = rng.normal(size=(n, 2))
    normal[:, 1] *= rng.random(n) < 0.05
    noise = measured(jnp.asarray(normal, jnp.float32))
    np.testing.assert_allclose(noise.variance, [1, 0.05], rtol=0.5)
    np.testing.assert_allclose(noise.error, np.sqrt(np.array([2, 60]) / n), rtol=0.3)


@pytest.mark.parametrize("d", [1, 3000])
def test_the_noise_of_b_cancels(d):
    """The norm of the mean of 1000 samples alone would be (d / 1000)^1/2."""
    samples = rng.normal(size=(1000, d)).astype(np.float32)
    assert bend_of(jnp.asarray(samples)) < 4 * (2 * d) ** 0.25 / 1000**0.5
    beside = samples + np.eye(d)[0] * 0.8
    assert bend_of(jnp.asarray(beside)) == pytest.approx(0.8, abs=0.25)


def skewed(slopes, third):
    """U = |z|^2 / 2 + third z_1^3 / 6 + the slopes of the rows, which add up to 0."""
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    numpyro.factor("U", -0.5 * z @ z - third * z[0] ** 3 / 6)
    with numpyro.plate("N", len(slopes)) as rows:
        numpyro.factor("rows", -slopes[rows] @ z)


@pytest.mark.every(2)
@pytest.mark.parametrize("gradient", [Minibatch(), ControlVariate({"z": jnp.zeros(2)})])
@pytest.mark.parametrize("third", [0.0, 1.5])
def test_b_is_half_the_squared_reach_times_the_gradient_of_the_laplacian(gradient, third):
    """In x = z / (2, 3), whose third derivative is 2^3 times that of z_1; the noise of the minibatches cancels."""
    slopes = rng.normal(size=(50, 2)).astype(np.float32)
    slopes -= slopes.mean(0)
    potential = ModelPotential.from_model(skewed, (jnp.asarray(slopes), third), {}, {"N": 5})
    state = gradient.start(potential, {"z": jnp.zeros(2)}, random.key(0))
    coordinates = Coordinates(jnp.zeros(2), jnp.diag(jnp.array([2.0, 3.0])))
    x, reach, scheme = jnp.ones((4000, 2)), jnp.asarray(0.15), WithoutReplacement()
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(x), *leaf.shape)), state)
    seen = probe(
        potential, gradient, scheme, coordinates, x, state if gradient.shared else states, reach, random.key(1)
    )
    expected = np.array([8 * third * 0.15**2 / 2, 0])
    error = np.asarray(seen.bend).std(0) / np.sqrt(len(x))
    assert (np.abs(np.asarray(seen.bend).mean(0) - expected) < 4.5 * error + 1e-6).all()
    assert error[0] < 1.1 * np.sqrt(2 / len(x)) * expected[0] + 1e-6
    if isinstance(gradient, Minibatch):
        assert np.asarray(seen.first - seen.second).std() > 1
