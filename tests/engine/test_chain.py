"""The book-keeping of a step: what is carried, what a refused step leaves alone, what always goes on."""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, SGNHT, Minibatch
from numpyro_sgmcmc.utils import noise

N = 4
Y = np.array([0.5, -1.0, 2.0, 0.3])
SPOILT = np.array([0.5, np.nan, 2.0, 0.3])


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def exact_gradient(mu):
    return mu / 4 + (mu - Y).sum()


CARRYING = [(SGHMC, "BAOAB"), (SGHMC, "OBABO"), (MSGNHT, "BADODAB")]


@pytest.mark.parametrize("kernel_class, word", CARRYING)
def test_the_carried_gradient_is_that_at_the_position(kernel_class, word):
    kernel = kernel_class(model, step_size=0.1, integrator=word, steps_per_sample=3)
    state = kernel.init(random.key(0), 0, {"mu": 1.5}, (Y,), {})
    for _ in range(3):
        assert float(state.gradient["mu"]) == pytest.approx(exact_gradient(float(state.z["mu"])), rel=1e-5)
        state = kernel.sample(state, (Y,), {})


def steps(kernel, y, count, init_params=None):
    """States of single steps of one chain, one row a step."""
    state = kernel.init(random.key(1), 0, {"mu": 0.1}, (Y,), {})  # the good data: the first row may be the spoilt one
    step = jax.jit(partial(kernel.chain.step, kernel.potential((y,), {})))
    states = [state]
    for _ in range(count):
        states.append(step(states[-1]))
    return states


EVERY = [(SGLD, "E"), (SGHMC, "ABOBA"), (SGHMC, "BAOAB"), (SGHMC, "EA"), (SGNHT, "ADBOBDA"), (MSGNHT, "BADODAB")]


@pytest.mark.parametrize("kernel_class, word", EVERY)
@pytest.mark.every(2)
def test_a_refused_step_reverses_the_momentum_and_all_else_goes_on(kernel_class, word):
    """Back to the last position of finite energy; a second refusal in a row halves the momentum too."""
    kernel = kernel_class(model, step_size=0.05, integrator=word, batch_size=1)
    states = steps(kernel, SPOILT, 12)
    refused = [int(kernel.rows(before.rows_state.rng_key, before.rows_state.t, N, 1)[0]) == 1 for before in states[:-1]]
    assert 1 <= sum(refused) <= 11
    run = 0
    for before, after, bad in zip(states[:-1], states[1:], refused):
        if bad:
            back = before.last_finite if word in ("E", "EA") else before.z
            momentum = jax.tree.map(lambda p, run=run: -p * (0.5 if run else 1.0), before.momentum)
            expected = back, momentum, before.thermostat, before.gradient
            jax.tree.map(
                np.testing.assert_array_equal, (after.z, after.momentum, after.thermostat, after.gradient), expected
            )
        else:
            assert after.z["mu"] != before.z["mu"]
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after.phase, after.gradient)))
        # a step from where a chain went back to tells nothing new of a word that evaluates its start
        known = word in ("E", "EA") and run and np.array_equal(before.z["mu"], before.last_finite["mu"])
        run = run + 1 if bad else run if known else 0
        assert int(after.refused) == run
        assert bool(after.diverging) == (bool(before.diverging) or bad)
        assert int(after.i) == int(before.i) + 1 and int(after.rows_state.t) == int(before.rows_state.t) + 1


def test_a_transition_diverges_if_any_of_its_steps_does():
    """The look at its last position is at the prior alone, and finds nothing new."""
    kernel = SGHMC(model, step_size=0.05, batch_size=1, steps_per_sample=3)
    state = kernel.init(random.key(1), 0, {"mu": 0.1}, (Y,), {})
    sample = jax.jit(lambda state: kernel.sample(state, (SPOILT,), {}))
    seen = set()
    for _ in range(24):
        rows = [int(kernel.rows(state.rows_state.rng_key, state.rows_state.t + k, N, 1)[0]) for k in range(3)]
        state = sample(state)
        assert bool(state.diverging) == (1 in rows)
        assert np.isfinite(state.z["mu"])
        seen.add((bool(state.diverging), rows[-1] == 1))
    assert seen >= {(True, False), (True, True), (False, False)}  # the spoilt row in the middle, last, and not at all


def test_the_key_goes_on_and_one_key_serves_many_steps():
    kernel = SGLD(model, step_size=0.05)
    state = kernel.init(random.key(2), 0, {"mu": 0.1}, (Y,), {})
    moved = kernel.sample(state, (Y,), {})
    assert not np.array_equal(moved.rng_key, state.rng_key)
    again = kernel.sample(state._replace(i=state.i + 1), (Y,), {})  # the same key at another step: other noise
    assert moved.z["mu"] != again.z["mu"]


def noisy(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    numpyro.factor("noise", random.normal(numpyro.prng_key(), ()) + 0 * mu)


def test_a_randomised_model_sees_another_key_at_each_step_of_a_transition():
    kernel = SGLD(noisy, step_size=1e-12)  # the position stands still; the energy moves by the model's noise alone
    state = kernel.init(random.key(3), 0, {"mu": 0.1}, (Y,), {})
    step = jax.jit(partial(kernel.chain.step, kernel.potential((Y,), {})))
    first = step(state)
    assert abs(float(first.potential_estimate - step(first).potential_estimate)) > 1e-3


def with_a_random_param():
    start = numpyro.param("start", lambda key: random.normal(key, ()))
    numpyro.sample("mu", dist.Normal(start, 1))


def test_a_frozen_param_is_the_same_for_all_chains():
    kernel = SGLD(with_a_random_param, step_size=0.1)
    with pytest.warns(UserWarning, match="frozen"):
        state = kernel.init(random.split(random.key(4), 3), 0, {"mu": jnp.zeros(3)}, (), {})
    assert len(set(state.potential_estimate.tolist())) == 1


def hard_support(y):
    low = numpyro.sample("low", dist.Normal(0, 1))
    numpyro.factor("support", jnp.where(low < 0, -jnp.inf, 0.0))


def test_a_step_out_of_a_hard_support_is_refused():
    """Its energy is infinite, its gradient is not."""
    kernel = SGLD(hard_support, step_size=0.5)
    state = kernel.init(random.key(5), 0, {"low": 0.1}, (Y,), {})
    step = jax.jit(partial(kernel.chain.step, kernel.potential((Y,), {})))
    outside = state._replace(z={"low": jnp.asarray(-0.1)})
    refused = step(outside)
    assert refused.diverging and float(refused.z["low"]) == pytest.approx(0.1)  # where it was last inside
    assert np.isfinite(refused.potential_estimate)


def test_model_and_noise_have_keys_of_their_own(monkeypatch):
    seen = []
    exact = noise.normal_like
    monkeypatch.setattr(noise, "normal_like", lambda key, tree: seen.append(key) or exact(key, tree))

    class Spy(Minibatch):
        def evaluate(self, potential, z, rows, gradient_state, rng_key):
            seen.append(rng_key)
            return super().evaluate(potential, z, rows, gradient_state, rng_key)

    kernel = SGLD(model, step_size=0.05, gradient=Spy())
    state = kernel.init(random.key(6), 0, {"mu": 0.1}, (Y,), {})
    seen.clear()
    kernel.chain.step(kernel.potential((Y,), {}), state)
    assert len(seen) == 2 and not np.array_equal(*seen)
