"""Step index -> step size."""

import math
import pickle

import jax
import jax.numpy as jnp
import optax
import pytest

from numpyro_sgmcmc import Constant, Cyclical, Piecewise, Polynomial
from numpyro_sgmcmc.schedules import as_schedule

SCHEDULES = [
    Constant(0.1),
    Polynomial(0.1, 2.0, 0.6),
    Piecewise((10, 20), (0.1, 0.05, 0.01)),
    Cyclical(0.1, 50),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_traced_equals_plain_and_survives_pickle(schedule):
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    for i in (0, 9, 10, 19, 20, 49, 50, 1000):
        plain = float(schedule(i))
        assert float(jax.jit(again)(jnp.asarray(i))) == pytest.approx(plain, rel=1e-5)
        assert plain > 0


def test_values():
    assert float(Polynomial(0.1, 1.0, 0.5)(99)) == pytest.approx(0.01)
    assert float(Polynomial(None, 2.0, 0.5)(198)) == pytest.approx(0.1)  # relative to the step size that is found
    steps = Piecewise((10, 20), (3.0, 2.0, 1.0))
    assert [float(steps(i)) for i in (0, 9, 10, 19, 20, 99)] == [3, 3, 2, 2, 1, 1]
    cycle = Cyclical(0.2, 100, minimum=1e-3)
    assert float(cycle(0)) == pytest.approx(0.2)
    assert float(cycle(50)) == pytest.approx(0.1)
    assert float(cycle(99)) == pytest.approx(1e-3)
    assert float(cycle(100)) == pytest.approx(0.2)


def test_a_float_becomes_constant_and_a_callable_stays():
    assert as_schedule(0.1) == Constant(0.1)
    schedule = optax.cosine_decay_schedule(0.1, 100)
    assert as_schedule(schedule) is schedule
    assert as_schedule(jnp.asarray(0.5)) == Constant(0.5)


@pytest.mark.parametrize("h", [0, -1.0, math.nan, math.inf])
def test_a_constant_must_be_positive_and_finite(h):
    with pytest.raises(ValueError, match="must be positive and finite"):
        as_schedule(h)


@pytest.mark.parametrize("h", ["fast", None, [0.1, 0.2]])
def test_neither_number_nor_function(h):
    with pytest.raises(TypeError, match="neither a number nor a function"):
        as_schedule(h)


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Polynomial(-1.0, 1.0, 0.5), "a must"),
        (lambda: Polynomial(1.0, 0.0, 0.5), "b must"),
        (lambda: Polynomial(1.0, 1.0, math.nan), "gamma must"),
        (lambda: Cyclical(0.1, 0), "cycle must"),
        (lambda: Piecewise((10,), (0.1, -0.1)), "values must"),
        (lambda: Piecewise((10,), (0.1,)), "need 2 values"),
        (lambda: Piecewise((20, 10), (0.1, 0.1, 0.1)), "must increase"),
        (lambda: Piecewise((10.5,), (0.1, 0.1)), "boundaries are steps"),
        (lambda: Piecewise((0,), (0.1, 0.1)), "boundaries are steps"),
        (lambda: Cyclical("x", 10), "a must"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_schedules_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()
