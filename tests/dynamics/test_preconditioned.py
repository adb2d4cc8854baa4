"""Preconditioners that the warm-up estimates: the law once they are frozen, that they stay so, and what is refused."""

import jax
from jax import random
import jax.numpy as jnp
from laws import PRECISION, affine_step, gaussian, stationary_covariance, z_scores
import models
import numpy as np
from numpyro.infer import MCMC
import pytest
from test_nogin import UNLIKE, noisy, slopes

from numpyro_sgmcmc import PSGLD, SGHMC, SGLD, AdaptiveSGHMC, Polynomial, WithReplacement, gradient_noise, summary

ALPHA = 4.5
WARMUP = 200
WORDS = ["ABOBA", "BAOAB", "ssi", "euler", "NOGIN"]


def warmed_up(kernel, args=(), warmup=WARMUP, start=None):
    """The state of a chain after its warm-up."""
    state = kernel.init(random.key(0), warmup, start, args, {})
    return jax.jit(lambda s: jax.lax.fori_loop(0, warmup, lambda _, s: kernel.sample(s, args, {}), s))(state)


# -- the law once it is frozen ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.every(2)
def test_a_frozen_step_is_that_of_sghmc_with_this_mass(word, monkeypatch):
    kernel = AdaptiveSGHMC(gaussian(), step_size=0.1, friction=1.5, integrator=word)
    state = warmed_up(kernel)
    mass = {"z": np.asarray(state.auxiliary.inverse_mass["z"])}
    assert abs(np.log(mass["z"][1] / mass["z"][0])) > 0.1, "coordinates of unlike curvature"
    ours = affine_step(kernel, monkeypatch, state)
    constant = SGHMC(gaussian(), step_size=0.1, friction=1.5, integrator=word, inverse_mass_matrix=mass)
    for a, b in zip(ours, affine_step(constant, monkeypatch)):
        np.testing.assert_allclose(a, b, atol=1e-13)
    if word in ("ABOBA", "BAOAB", "NOGIN"):
        np.testing.assert_allclose(stationary_covariance(*ours)[:2, :2], np.linalg.inv(PRECISION), atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_a_frozen_step_is_that_of_sgld_with_this_mass(monkeypatch):
    kernel = PSGLD(gaussian(), step_size=0.1)
    state = warmed_up(kernel)
    mass = {"z": np.asarray(state.auxiliary.inverse_mass["z"])}
    ours = affine_step(kernel, monkeypatch, state)
    for a, b in zip(ours, affine_step(SGLD(gaussian(), step_size=0.1, inverse_mass_matrix=mass), monkeypatch)):
        np.testing.assert_allclose(a, b, atol=1e-13)


def run(warmup, chains=256, steps=2000):
    """The variance of each chain of a standard normal law, with M^-1 = 1 / (1 + |g|) of the last gradient, or one."""
    kernel = PSGLD(gaussian(np.eye(1)), step_size=0.04, memory=0.0, damping=1.0, steps_per_sample=10)
    start = {"z": random.normal(random.key(8), (chains, 1))}
    state = kernel.init(random.split(random.key(7), chains), warmup, start, (), {})

    def body(carry, _):
        state = kernel.sample(carry[0], (), {})
        return (state, carry[1] + state.z["z"][:, 0] ** 2 / steps), None

    return jax.jit(lambda s: jax.lax.scan(body, (s, jnp.zeros(chains)), None, length=steps)[0])(state)[1]


@pytest.mark.optimised
def test_moving_for_ever_it_would_leave_another_law():
    """
    Without its Gamma, M^-1(z) leaves exp(-U) M(z): (1 + |z|) exp(-z^2 / 2), of variance 1.444, for exp(-z^2 / 2).
    """
    absolute = np.sqrt(2 / np.pi)
    moving, frozen = run(10**6), run(1)
    assert np.mean(moving) == pytest.approx((1 + 2 * absolute) / (1 + absolute), abs=0.03)
    # the bias of the step, h M^-1 / 2, is at most .02 where the mass is 1 or more
    assert abs(np.mean(frozen) - 1) < 0.02 + ALPHA * np.std(frozen) / 16
    assert abs(z_scores(moving, 1)) > 10


# -- what it is, and that it stays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [PSGLD, AdaptiveSGHMC])
def test_it_moves_in_the_first_half_of_the_warm_up_and_never_again(make):
    kernel = make(models.gaussian, step_size=1e-3, batch_size=models.B, steps_per_sample=3)
    state = kernel.init(random.split(random.key(0), 2), 10, None, (models.ROWS,), {})
    step = jax.jit(lambda s: kernel.sample(s, (models.ROWS,), {}))
    masses = [np.asarray(state.auxiliary.inverse_mass["mu"])]
    for _ in range(25):
        state = step(state)
        masses.append(np.asarray(state.auxiliary.inverse_mass["mu"]))
    moved = np.array([(a != b).all() for a, b in zip(masses, masses[1:])])
    assert moved.tolist() == 5 * [True] + 20 * [False]
    assert (state.auxiliary.share == 0).all()
    # a counter that starts again after 2**32 steps does not thaw it
    again = step(state._replace(i=jnp.zeros_like(state.i)))
    np.testing.assert_array_equal(again.auxiliary.inverse_mass["mu"], masses[-1])


def test_refused_steps_do_not_delay_the_end():
    kernel = PSGLD(models.gaussian, step_size=1e-3, batch_size=models.B)
    sample = jax.jit(lambda state, rows: kernel.sample(state, (rows,), {}))
    state = kernel.init(random.key(0), 10, None, (models.ROWS,), {})
    for k in range(10):
        state = sample(state, models.ROWS if k < 3 else np.full_like(models.ROWS, np.nan))
    before = state.auxiliary.inverse_mass["mu"]
    for _ in range(3):
        state = sample(state, models.ROWS)
    np.testing.assert_array_equal(state.auxiliary.inverse_mass["mu"], before)


@pytest.mark.usefixtures("x64")
def test_it_is_the_root_of_the_mean_square_of_the_gradient():
    options = {"step_size": 1e-6, "batch_size": 1, "rows": WithReplacement(), "memory": 0.999, "damping": 0.5}
    kernel = PSGLD(noisy(PRECISION), **options)
    state = warmed_up(kernel, (slopes(UNLIKE),), warmup=8000, start={"z": jnp.zeros(2)})
    # the noise is +-s, and z stays where it is
    np.testing.assert_allclose(state.auxiliary.square["z"], UNLIKE**2, rtol=0.03)
    np.testing.assert_allclose(1 / state.auxiliary.inverse_mass["z"], 0.5 + UNLIKE, rtol=0.03)


@pytest.mark.usefixtures("x64")
def test_the_momentum_keeps_its_distribution_where_the_mass_changes():
    dynamics = AdaptiveSGHMC(gaussian(), step_size=0.1).dynamics
    z, n = {"z": jnp.array([1.0, -2.0])}, {"z": jnp.array([0.3, 2.0])}
    phase = dynamics.init(z, n)
    np.testing.assert_allclose(dynamics.temperature(phase), (0.09 + 4) / 2)
    for i in range(5):
        phase = dynamics.averaged(phase, {"z": jnp.array([1.0 + i, 30.0])})
        np.testing.assert_allclose(phase.momentum["z"] * np.sqrt(phase.auxiliary.inverse_mass["z"]), n["z"])
    mean_square = np.mean([0.5 * (1 + 900), 4, 9, 16, 25])  # at first that over the coordinates
    np.testing.assert_allclose(1 / phase.auxiliary.inverse_mass["z"][0], dynamics.damping + np.sqrt(mean_square))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("small", [0, 10, 1000])
def test_the_first_large_gradient_does_not_throw_the_chain_far_away(small):
    """A gradient belongs to V before it is used, so g / sqrt(V) is at most the root of 1 / its share in V."""
    h, memory = 0.01, 0.99
    dynamics = PSGLD(gaussian(), step_size=h, memory=memory).dynamics
    phase = dynamics.init({"z": jnp.zeros(3)}, {"z": jnp.zeros(3)})
    step = jax.jit(lambda phase, g: dynamics.E(phase, h, {"z": g}, {"z": jnp.zeros(3)}))
    for _ in range(small):
        phase = step(phase, jnp.array([1e-3, 1e-3, 1e-3]))
    moves = np.abs(step(phase, jnp.array([1e6, -1e3, 1e-3])).z["z"] - phase.z["z"])
    share = max(1 - memory, 1 / (small + 1))
    assert moves[0] == pytest.approx(h / np.sqrt(share), rel=1e-3)
    assert max(moves) < 1.001 * h / np.sqrt(share)


# -- what else looks at it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["ABOBA", "NOGIN"])
@pytest.mark.slow
def test_a_summary_knows_the_mass(word):
    kernel = AdaptiveSGHMC(
        models.logistic, step_size=0.05, friction=2.0, batch_size=models.B, integrator=word, steps_per_sample=5
    )
    mcmc = MCMC(kernel, num_warmup=100, num_samples=300, progress_bar=False)
    data = models.X, models.COUNTS
    mcmc.run(random.key(0), *data)
    mass = mcmc.last_state.auxiliary.inverse_mass["weights"]
    noise = gradient_noise(kernel, mcmc.last_state, *data)
    if word == "ABOBA":
        heat = 0.05 * mass * noise.variance["weights"] / (2 * 2.0)
        np.testing.assert_allclose(noise.inflation["weights"], heat, rtol=1e-5)
    else:
        assert np.abs(noise.inflation["weights"]).max() < 0.1
    assert "weights" in summary(mcmc, *data).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"step_size": None}, "step_size= is missing: the warm-up estimates the preconditioner, not the step"),
        ({"step_size": Polynomial(None, 1.0, 0.5)}, "step_size= is missing"),
        ({"memory": 1.0}, "memory=1.0 must be a number in .0, 1."),
        ({"damping": 0.0}, "damping=0.0 must be a positive"),
    ],
)
@pytest.mark.parametrize("make", [PSGLD, AdaptiveSGHMC])
def test_arguments_that_cannot_work(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(gaussian(), **{"step_size": 0.1} | options)


def test_without_a_warm_up_there_is_no_preconditioner():
    with pytest.raises(ValueError, match=r"num_warmup=0: PSGLD estimates its preconditioner"):
        PSGLD(gaussian(), step_size=0.1).init(random.key(0), 0, None, (), {})
