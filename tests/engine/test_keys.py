"""No key is used twice, and no counter comes back to where it was."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    SGHMC,
    SGLD,
    SVRG,
    Cyclical,
    Minibatch,
    Piecewise,
    Polynomial,
    Reshuffled,
    WithoutReplacement,
    WithReplacement,
    gradient_noise,
)
from numpyro_sgmcmc.engine import chain
from numpyro_sgmcmc.tuning import start
from numpyro_sgmcmc.utils import noise

ARGS = (models.ROWS,)


@pytest.fixture
def used(monkeypatch):
    """Every key that reaches a generator or an estimator, in order, as (use, key, number)."""
    seen = []

    def spy(module, name, use):
        real = getattr(module, name)

        def spied(first, second, *rest):
            seen.append(use(first, second))
            return real(first, second, *rest)

        monkeypatch.setattr(module, name, spied)

    data = lambda key: tuple(np.asarray(key).tolist())  # noqa: E731
    spy(noise, "normal_like", lambda key, tree: ("noise", data(key), 0))
    for module in (chain, start):
        spy(module, "next_rows", lambda scheme, state: ("rows", data(state.rng_key), int(state.t)))
    for name in ("DESCENT_STEPS", "PROBES"):
        monkeypatch.setattr(start, name, 2)
    monkeypatch.setattr(start.gradient_variance, "__defaults__", (2,))
    return seen


class Spy(Minibatch):
    seen: list = []

    def evaluate(self, potential, z, rows, gradient_state, rng_key):
        self.seen.append(("model", tuple(np.asarray(rng_key).tolist()), 0))
        return super().evaluate(potential, z, rows, gradient_state, rng_key)


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel_class", [SGLD, SGHMC, MSGNHT])
def test_no_key_is_used_twice(kernel_class, used):
    """From the start, with the descent and the probes of a thermostat, through two transitions of two steps."""
    Spy.seen = used
    kernel = kernel_class(models.gaussian, step_size=1e-3, batch_size=models.B, steps_per_sample=2, gradient=Spy())
    with jax.disable_jit():
        state = kernel.init(random.key(0), 0, None, ARGS, {})
        kept = [state.rng_key]
        for _ in range(2):
            state = kernel.sample(state, ARGS, {})
            kept.append(state.rng_key)
    kept = {tuple(np.asarray(key).tolist()) for key in kept}
    rows = [(key, number) for use, key, number in used if use == "rows"]
    assert len(rows) - len(set(rows)) == (kernel_class is MSGNHT)  # the first probe, as below
    drawn = [key for use, key, _ in used if use != "rows"]
    # the first probe of the noise is also what the others are compared with
    assert len(drawn) - len(set(drawn)) == (kernel_class is MSGNHT)
    streams = {key for key, _ in rows}
    assert len(streams) == (3 if kernel_class is MSGNHT else 1)  # of the chain, the descent, the probes
    assert not kept & set(drawn) and not kept & streams and not streams & set(drawn)
    assert len(kept) == 3


def test_the_key_of_the_next_transition_is_no_key_of_a_step():
    key = random.PRNGKey(5)
    kernel = SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B)
    state = kernel.init(random.key(0), 0, None, ARGS, {})._replace(rng_key=key)
    following = kernel.sample(state, ARGS, {}).rng_key
    steps = chain.derive_key(key, chain.Stream.STEPS)
    used = np.asarray([random.fold_in(steps, k) for k in range(100)] + [random.fold_in(key, k) for k in range(1, 100)])
    assert not (used == np.asarray(following)).all(1).any()


def test_the_probes_of_a_state_are_not_the_keys_of_its_steps(used):
    Spy.seen = used
    kernel = SGHMC(noisy, step_size=1e-3, steps_per_sample=5, gradient=Spy())
    with jax.disable_jit():
        state = kernel.init(random.key(0), 0, {"mu": 0.0}, (), {})
        used.clear()
        kernel.sample(state, (), {})
        of_steps = {key for _, key, _ in used}
        used.clear()
        gradient_noise(kernel, state, num_batches=5)
    probes = {key for use, key, _ in used if use == "model"}
    assert len(probes) == 5 and not probes & of_steps


def noisy():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("noise", mu * random.normal(numpyro.prng_key(), ()))


# -- counters ------------------------------------------------------------------------------------------------------

PLACES = [2**31 - 3, 2**32 - 3]
SCHEDULES = {
    "polynomial": Polynomial(1e-2, 1.0, 0.33),
    "piecewise": Piecewise((100, 2**31 - 1000), (1e-2, 1e-3, 1e-4)),
    "cyclical": Cyclical(1e-2, 1000),
    "cyclical of 7": Cyclical(1e-2, 7),
    "function": lambda i: 1e-3 * (1 + (i >= 10)),
}


def exact(schedule, i):
    if isinstance(schedule, Cyclical):
        return float(schedule(i % schedule.cycle))
    return float(schedule(jnp.int32(min(i, 2**31 - 1))))


@pytest.mark.parametrize("name, gradient", [*((name, Minibatch()) for name in SCHEDULES), ("polynomial", SVRG())])
@pytest.mark.every(2)
def test_step_sizes_beyond_the_range_of_the_counter(name, gradient):
    schedule = SCHEDULES[name]
    kernel = SGLD(models.gaussian, step_size=schedule, batch_size=models.B, gradient=gradient)
    start = kernel.init(random.key(0), 0, None, ARGS, {})
    sample = jax.jit(lambda state: kernel.sample(state, ARGS, {}))
    for place in PLACES:
        state = start._replace(i=jnp.uint32(place), rows_state=start.rows_state._replace(t=jnp.uint32(place)))
        for k in range(6):
            state = sample(state)
            assert float(state.step_size) == pytest.approx(exact(schedule, place + k), rel=1e-3)
            assert not state.diverging and np.isfinite(state.z["mu"])
        assert int(state.i) == (place + 6) % 2**32


def test_a_counter_of_an_older_state_goes_on():
    """An int32 that has been put into the state by hand."""
    kernel = SGLD(models.gaussian, step_size=Polynomial(1e-2, 1.0, 0.33), batch_size=models.B, steps_per_sample=5)
    state = kernel.init(random.key(0), 0, None, ARGS, {})._replace(i=jnp.int32(2**31 - 3))
    state = kernel.sample(state, ARGS, {})
    assert int(state.i) == 2**31 + 2 and not state.diverging


@pytest.mark.parametrize("scheme", [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement(), WithReplacement()])
@pytest.mark.parametrize("place", [2**31 - 1, 2**31, 2**32 - 1])
def test_rows_beyond_the_range_of_the_counter(scheme, place):
    for size in (24, 1000):
        rows = np.asarray(scheme(random.key(0), jnp.uint32(place), size, 6))
        assert ((rows >= 0) & (rows < size)).all()
        assert not scheme.distinct or len(set(rows.tolist())) == 6
