"""Cycles with phases of exploration: steps without noise, draws that are told apart, and what cannot go without."""

import jax
from jax import random
import jax.numpy as jnp
from laws import PRECISION, gaussian
import models
import numpy as np
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    SGHMC,
    SGLD,
    AdaptiveSGHMC,
    Cyclical,
    SGBarker,
    Tempered,
    corrected,
    summary,
    to_arviz,
    weighted_summary,
    weights,
)
from numpyro_sgmcmc.diagnostics.run import Run

SCHEDULE = Cyclical(0.1, cycle=10, exploration=0.4)


def path(kernel, steps, key):
    state = kernel.init(random.key(0), 2, {"z": jnp.array([1.0, -2.0])}, (), {})._replace(rng_key=random.key_data(key))
    sample = jax.jit(lambda state: kernel.sample(state, (), {}))
    z = [state.z["z"]]
    for _ in range(steps):
        state = sample(state)
        z.append(state.z["z"])
    return np.asarray(z)


def test_steps_that_explore_are_those_of_gradient_descent():
    kernel = SGLD(gaussian(), step_size=SCHEDULE)
    one, other = (path(kernel, 14, random.key(k)) for k in (1, 2))
    expected = one[0]
    for i in range(4):
        expected = expected - float(SCHEDULE(i)) * PRECISION @ expected
        np.testing.assert_allclose(one[i + 1], expected, rtol=1e-5)
    np.testing.assert_array_equal(one[:5], other[:5])
    assert (one[5:] != other[5:]).all()
    for chain in (one, other):  # the second cycle explores again
        np.testing.assert_allclose(chain[11] - chain[10], -0.1 * PRECISION @ chain[10], rtol=1e-4)


@pytest.mark.parametrize("word", ["ABOBA", "ssi", "BAOAB", "euler", "NOGIN"])
@pytest.mark.parametrize("make", [SGHMC, AdaptiveSGHMC])
@pytest.mark.every(4)
def test_any_word_can_be_quiet(make, word):
    kernel = make(gaussian(), step_size=SCHEDULE, integrator=word)
    one, other = (path(kernel, 6, random.key(k)) for k in (1, 2))
    np.testing.assert_array_equal(one[:5], other[:5])
    assert (one[6] != other[6]).all()


def test_draws_are_told_apart():
    kernel = SGHMC(models.gaussian, step_size=Cyclical(1e-2, 20, exploration=0.5), batch_size=6, steps_per_sample=2)
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=5, num_samples=30, **options)
    mcmc.run(random.key(0), models.ROWS, extra_fields=("i", "temperature"))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    tags = kernel.schedule.cycle_of(fields["i"])
    # after 12, 14, ... 70 steps: the sixth draw is the first after the first exploration
    expected = [*5 * [0], *5 * [-1], *5 * [1], *5 * [-1], *5 * [2], *5 * [-1]]
    np.testing.assert_array_equal(tags, 2 * [expected])
    np.testing.assert_array_equal(np.isnan(fields["temperature"]), tags < 0)
    w = weights(mcmc, group_by_chain=True)
    np.testing.assert_array_equal(w == 0, tags < 0)
    assert w.sum() == pytest.approx(1)
    kept = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    mean = weighted_summary(mcmc)["mu"]["mean"]
    assert mean == pytest.approx((w * kept).sum())


def test_without_the_number_of_the_step_there_are_no_weights():
    kernel = SGLD(models.gaussian, step_size=Cyclical(1e-3, 20, exploration=0.5), batch_size=6)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=30, progress_bar=False)
    mcmc.run(random.key(0), models.ROWS)
    for function in (weights, summary):
        with pytest.raises(ValueError, match=r"extra_fields=\('i',\)"):
            function(mcmc)


@pytest.mark.every(4)
@pytest.mark.parametrize("field", ["i", "cold.i"])
def test_diagnostics_leave_the_exploration_out(field):
    kernel = SGHMC(models.gaussian, step_size=Cyclical(1e-2, 20, exploration=0.5), batch_size=6, steps_per_sample=2)
    kernel = kernel if field == "i" else Tempered(kernel, [1.0, 2.0])
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=5, num_samples=30, **options)
    mcmc.run(random.key(0), models.ROWS, extra_fields=(field,))
    w = weights(mcmc, group_by_chain=True)
    assert (w == 0).sum() == 30
    draws = Run(mcmc, (models.ROWS,), {}, "test").draws(1000)
    kept = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    np.testing.assert_allclose(draws.z[..., 0], kept[w > 0].reshape(2, 15), rtol=1e-6)
    assert summary(mcmc, models.ROWS)["looked_at"]["value"] == 30
    with pytest.raises(ValueError, match="exploration, are not corrected"):
        to_arviz(mcmc, correction=corrected(mcmc, models.ROWS, covariance="sandwich"))


def test_a_run_that_only_explores_has_no_weights():
    kernel = SGLD(models.gaussian, step_size=Cyclical(1e-3, 100, exploration=0.5), batch_size=6)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=30, progress_bar=False)
    mcmc.run(random.key(0), models.ROWS, extra_fields=("i",))
    with pytest.raises(ValueError, match="all draws are from the exploration of a cycle"):
        weights(mcmc)


@pytest.mark.parametrize("make", [MSGNHT, SGBarker])
def test_other_noise_cannot_be_left_out(make):
    with pytest.raises(ValueError, match=r"Cyclical\(exploration=...\) leaves out the normal noise of SGLD and SGHMC"):
        make(gaussian(), step_size=SCHEDULE)
    make(gaussian(), step_size=Cyclical(0.1, 10))


@pytest.mark.parametrize("share", [-0.1, 1.0, "half", True])
def test_a_share_is_from_0_to_below_1(share):
    with pytest.raises(ValueError, match=r"Cyclical\(exploration="):
        Cyclical(0.1, 10, exploration=share)
