"""The law each sampler leaves, against the law it should leave."""

import jax
from jax import random
import jax.numpy as jnp
from laws import (
    PRECISION,
    affine_step,
    gaussian,
    local_errors,
    order,
    stationary_covariance,
    z_scores,
)
import numpy as np
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, SGNHT
from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.underdamped import Underdamped

pytestmark = pytest.mark.usefixtures("x64")

ALPHA = 4.5  # standard errors, for the whole suite: 7e-6 for each comparison
TARGET = np.linalg.inv(PRECISION)
STEPS = (0.1, 0.05, 0.025)
FRICTION = 1.5


def bias(kernel_of_h, monkeypatch, block):
    """Largest error of the stationary covariance against the target for each of STEPS; block "z" or "all"."""
    errors = []
    state = kernel_of_h(STEPS[0]).init(jax.random.key(0), 0, None, (), {})
    for h in STEPS:
        covariance = stationary_covariance(*affine_step(kernel_of_h(h), monkeypatch, state))
        d = len(PRECISION)
        target = np.eye(len(covariance))
        target[:d, :d] = TARGET
        error = np.abs(covariance - target)
        errors.append((error[:d, :d] if block == "z" else error).max())
    return np.array(errors)


def sghmc(word, **kwargs):
    return lambda h: SGHMC(gaussian(), step_size=h, friction=FRICTION, integrator=word, **kwargs)


def test_sgld_euler_has_its_exact_discrete_law(monkeypatch):
    h = 0.1
    M, S = affine_step(SGLD(gaussian(), step_size=h), monkeypatch)
    exact = np.linalg.inv(PRECISION @ (np.eye(2) - h / 2 * PRECISION))
    np.testing.assert_allclose(stationary_covariance(M, S), exact, rtol=1e-12)


def test_sgld_euler_is_of_order_1(monkeypatch):
    errors = bias(lambda h: SGLD(gaussian(), step_size=h), monkeypatch, "z")
    assert order(errors, STEPS) == pytest.approx(1, abs=0.1)


def test_sghmc_euler_is_of_order_1_jointly_and_2_in_z(monkeypatch):
    assert order(bias(sghmc("euler"), monkeypatch, "all"), STEPS) == pytest.approx(1, abs=0.1)
    assert order(bias(sghmc("euler"), monkeypatch, "z"), STEPS) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("word", ["ssi", "AFBNFA", "OBABO", "OABAO", "NFBABFN", "BAFNFAB"])
@pytest.mark.every(2)
def test_symmetric_words_are_of_order_2(word, monkeypatch):
    assert order(bias(sghmc(word), monkeypatch, "all"), STEPS) == pytest.approx(2, abs=0.1)
    assert order(bias(sghmc(word), monkeypatch, "z"), STEPS) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("word", ["ABOBA", "BAOAB", "BAOA"])
@pytest.mark.parametrize("mass", [None, 0.5, {"z": np.array([0.5, 2.0])}])
@pytest.mark.every(2)
def test_words_that_are_exact_in_z(word, mass, monkeypatch):
    assert bias(sghmc(word, inverse_mass_matrix=mass), monkeypatch, "z").max() < 1e-10


def test_ssi_has_the_variance_the_notes_predict(monkeypatch):
    # (x / 2) / sinh(x / 2), x = D h, in the limit of small lambda h^2
    h, friction, precision = 0.5, 5.0, np.array([[1e-6]])
    kernel = SGHMC(gaussian(precision), step_size=h, friction=friction, integrator="ssi")
    variance = stationary_covariance(*affine_step(kernel, monkeypatch))[0, 0] * precision[0, 0]
    x = friction * h
    assert variance == pytest.approx((x / 2) / np.sinh(x / 2), rel=1e-5)


@pytest.mark.parametrize("mass", [0.5, {"z": np.array([0.5, 2.0])}])
def test_sgld_preconditioned_is_of_order_1(mass, monkeypatch):
    errors = bias(lambda h: SGLD(gaussian(), step_size=h, inverse_mass_matrix=mass), monkeypatch, "z")
    assert order(errors, STEPS) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("word", ["ABOBA", "BAOAB", "OBABO", "ssi", "euler"])
def test_momentum_has_the_variance_of_its_mass(word, monkeypatch):
    kernel = SGHMC(gaussian(), step_size=1e-3, integrator=word, inverse_mass_matrix={"z": np.array([0.5, 2.0])})
    covariance = stationary_covariance(*affine_step(kernel, monkeypatch))
    np.testing.assert_allclose(np.diag(covariance)[2:], [2.0, 0.5], rtol=2e-3)  # "euler" is of order 1 in it


# -- one step against the exact flow: what is not linear ---------------------------------------------------------

WORDS = [
    (SGLD, "euler", 1),
    (SGHMC, "euler", 1),
    (SGHMC, "ssi", 2),
    (SGHMC, "ABOBA", 2),
    (SGHMC, "BAOAB", 2),
    (SGHMC, "OBABO", 2),
    (SGHMC, "BAOA", 1),  # conjugate to BAOAB: of order 1 in a single step
    (SGNHT, "euler", 1),
    (SGNHT, "ssi", 2),
    (SGNHT, "ADBOBDA", 2),
    (SGNHT, "BADODAB", 2),
    (SGNHT, "BADFNFDAB", 2),
    (MSGNHT, "euler", 1),
    (MSGNHT, "ssi", 2),
    (MSGNHT, "ADBOBDA", 2),
]


@pytest.mark.parametrize("kernel_class, word, K", WORDS)
@pytest.mark.every(4)
def test_local_order_on_a_skewed_target(kernel_class, word, K, monkeypatch):
    kernel = kernel_class(gaussian(np.eye(1)), step_size=0.1, integrator=word)
    steps = (0.04, 0.02, 0.01)
    errors = local_errors(kernel, lambda z: z**4 / 4 + z, monkeypatch, steps, (0.3, -0.7, 0.9))
    # the remainder after h^2 is O(h^3) for a word of order 2 and keeps an h^2 term for one of order 1
    assert order(errors, steps) == pytest.approx(K + 1, abs=0.25)


@pytest.mark.parametrize("x", [-1.0, 0.0, 1e-4, 3.0])
def test_the_exact_flow_given_the_thermostat_also_near_and_below_zero(x):
    dynamics = NoseHoover(2.0, elementwise=True)
    h, p, n = 0.3, 0.7, 1.3
    from numpyro_sgmcmc.types import Phase

    phase = Phase({"z": jnp.zeros(())}, {"z": jnp.asarray(p)}, {"z": jnp.asarray(x)})
    moved = float(dynamics.O(phase, h, {"z": jnp.asarray(n)}).momentum["z"])
    variance = 2.0 * 2 * h if x == 0 else 2.0 * -np.expm1(-2 * x * h) / x
    assert moved == pytest.approx(p * np.exp(-x * h) + np.sqrt(variance) * n, rel=1e-7)


# -- many chains as replicates, started in the law ---------------------------------------------------------------


def chains(kernel, steps=2000, chains=256):
    """Time average of z z' for each chain, and the mean thermostat; started in the law."""
    keys = random.split(random.key(7), chains)
    start = jnp.linalg.cholesky(jnp.asarray(TARGET)) @ random.normal(random.key(8), (2, chains))
    state = kernel.init(keys, 0, {"z": start.T}, (), {})

    @jax.jit
    def run(state):
        def body(carry, _):
            state, square = carry
            state = kernel.sample(state, (), {})
            z = state.z["z"]
            return (state, square + z[:, :, None] * z[:, None, :] / steps), None

        return jax.lax.scan(body, (state, jnp.zeros((chains, 2, 2))), None, length=steps)[0]

    return run(state)[1]


THERMOSTATS = [(SGNHT, "ADBOBDA"), (SGNHT, "ssi"), (MSGNHT, "ADBOBDA"), (MSGNHT, "ssi"), (MSGNHT, "BADODAB")]


@pytest.mark.optimised
@pytest.mark.parametrize("kernel_class, word", THERMOSTATS)
@pytest.mark.every(4)
def test_thermostats_leave_the_posterior(kernel_class, word):
    # h = 0.05: the bias of a word of order 2 is below a tenth of the standard error
    kernel = kernel_class(gaussian(), step_size=0.05, diffusion=1.0, integrator=word, steps_per_sample=10)
    assert np.abs(z_scores(chains(kernel), TARGET)).max() < ALPHA


@pytest.mark.optimised
@pytest.mark.parametrize("kernel_class", [MSGNHT, SGNHT])
@pytest.mark.every(2)
def test_thermostats_leave_the_posterior_under_a_mass(kernel_class):
    """Momenta of unlike mass: a thermostat must watch p M^-1 p."""
    mass = {"z": np.array([0.5, 2.0])}
    kernel = kernel_class(gaussian(), step_size=0.05, steps_per_sample=10, inverse_mass_matrix=mass)
    assert np.abs(z_scores(chains(kernel), TARGET)).max() < ALPHA


# -- planted faults: a judge that cannot find 5 % is no judge ----------------------------------------------------


def test_five_percent_of_noise_is_caught_by_the_exact_law(monkeypatch):
    exact = Underdamped.O
    monkeypatch.setattr(
        Underdamped, "O", lambda self, phase, h, noise: exact(self, phase, h, jax.tree.map(lambda n: 1.05 * n, noise))
    )
    covariance = stationary_covariance(*affine_step_kept(SGHMC(gaussian(), step_size=0.1), monkeypatch))
    assert np.abs(covariance[:2, :2] - TARGET).max() > 0.05


def test_five_percent_of_friction_is_caught_by_the_exact_law(monkeypatch):
    exact = Underdamped.F
    monkeypatch.setattr(Underdamped, "F", lambda self, phase, h: exact(self, phase, 1.05 * h))
    kernel = SGHMC(gaussian(), step_size=0.01, integrator="ssi")
    covariance = stationary_covariance(*affine_step_kept(kernel, monkeypatch))
    assert np.abs(covariance[:2, :2] - TARGET).max() > 0.02


@pytest.mark.optimised
def test_five_percent_of_thermostat_is_caught_by_the_chains(monkeypatch):
    exact = NoseHoover.D

    def wrong(self, phase, h):
        moved = exact(self, phase, h)
        return moved._replace(thermostat=jax.tree.map(lambda xi: xi + 0.05 * h, moved.thermostat))

    monkeypatch.setattr(NoseHoover, "D", wrong)
    kernel = MSGNHT(gaussian(), step_size=0.05, diffusion=1.0, steps_per_sample=10)
    assert np.abs(z_scores(chains(kernel), TARGET)).max() > ALPHA


def affine_step_kept(kernel, monkeypatch):
    """:func:`affine_step` under a monkeypatch of the caller's that must outlive it."""
    with pytest.MonkeyPatch.context() as inner:
        return affine_step(kernel, inner)
