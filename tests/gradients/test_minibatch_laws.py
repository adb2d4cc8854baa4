"""
The exact law under minibatches, from the step as it is shipped: a regression of six rows, whose batches can all be
listed, and everything that an estimator remembers part of the state.
"""

import itertools

from laws import Listed, epoch_maps, law_of_independent_batches, minibatch_maps, order
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import SAGA, SGHMC, SGLD, ControlVariate, Minibatch

pytestmark = pytest.mark.usefixtures("x64")

N, B, FRICTION = 6, 2, 2.0
X = np.array([0.5, -1.0, 1.5, 0.3, -0.7, 1.1])
Y = np.array([1.6, 0.8, 0.2, 2.3, 1.4, -1.9])
PRECISION = 1 + X @ X
MODE = X @ Y / PRECISION
PAIRS = tuple(itertools.combinations(range(N), B))
DISJOINT = [
    order_
    for order_ in itertools.permutations(range(len(PAIRS)), N // B)
    if len(set().union(*(PAIRS[batch] for batch in order_))) == N
]  # the 90 orders of three batches that make up an epoch


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(w * x[rows], 1), obs=y[rows])


def sghmc(h, word="ABOBA", gradient=Minibatch(), rows=Listed(PAIRS), batch_size=B):  # noqa: B008
    parts = {"integrator": word, "gradient": gradient, "rows": rows, "batch_size": batch_size}
    return SGHMC(model, step_size=h, friction=FRICTION, **parts)


def sgld(h, word="euler", gradient=Minibatch(), rows=Listed(PAIRS), batch_size=B):  # noqa: B008
    return SGLD(model, step_size=h, integrator=word, gradient=gradient, rows=rows, batch_size=batch_size)


def maps(kernel, monkeypatch):
    M, c, S, start = minibatch_maps(kernel, (X, Y), monkeypatch)
    return M, c, S @ S.transpose(0, 2, 1), start


def variance(kernel, monkeypatch):
    """Of w, over that of the posterior."""
    return law_of_independent_batches(*maps(kernel, monkeypatch))[1][0, 0] * PRECISION


def noise_at_the_mode():
    """s^2 of a batch of two distinct rows, and what the spread of w adds to it."""
    rows = X * (X * MODE - Y)
    gradients = np.array([MODE + N / B * sum(rows[i] for i in pair) for pair in PAIRS])
    slopes = np.array([1 + N / B * sum(X[i] ** 2 for i in pair) for pair in PAIRS])
    return gradients.var() + slopes.var() / PRECISION


@pytest.mark.parametrize(
    "make, word, divisor",
    [(sgld, "euler", 2), (sghmc, "euler", 2 * FRICTION), (sghmc, "ssi", 2 * FRICTION), (sghmc, "ABOBA", 2 * FRICTION)],
)
@pytest.mark.slow
def test_independent_minibatches_are_of_order_1_whatever_the_word(make, word, divisor, monkeypatch):
    """And the first-order term is h s^2 / 2 or h s^2 / (2 D): 5 % more noise, or another N/n, would be seen."""
    steps = (0.02, 0.01, 0.005)
    errors = np.array([variance(make(h, word), monkeypatch) - 1 for h in steps])
    assert abs(order(errors, steps) - 1) < 0.1
    slope = 2 * errors[-1] / steps[-1] - errors[-2] / steps[-2]  # extrapolated to h = 0
    expected = noise_at_the_mode() / divisor + (PRECISION / 2 if make is sgld else 0)
    np.testing.assert_allclose(slope, expected, rtol=0.02)


def test_reshuffled_minibatches_are_of_order_2(monkeypatch):
    """At the end of an epoch, averaged over all orders of its batches; independent batches are of order 1."""
    steps = (0.01, 0.005, 0.0025)
    errors = []
    for h in steps:
        M, c, Q, start = maps(sghmc(h), monkeypatch)
        _, covariance = law_of_independent_batches(*epoch_maps(M, c, Q, DISJOINT), start)
        errors.append(abs(covariance[0, 0] * PRECISION - 1))
    assert order(errors, steps) > 1.75, errors
    assert errors[0] < 0.1 * abs(variance(sghmc(steps[0]), monkeypatch) - 1)


@pytest.mark.parametrize("make, word", [(sgld, "euler"), (sghmc, "euler"), (sghmc, "ssi"), (sghmc, "ABOBA")])
@pytest.mark.slow
def test_variance_reduction_takes_back_the_inflation(make, word, monkeypatch):
    """Against the full gradient's law by the same word: at most 15 % of what plain minibatches add is left."""
    h = 0.02
    full = variance(make(h, word, rows=Listed((range(N),)), batch_size=None), monkeypatch)
    plain = variance(make(h, word), monkeypatch) - full
    assert plain > 0.05
    for gradient, batches in (
        (SAGA(), PAIRS),
        (SAGA("batch", "zeros"), ((0,), (1,), (2,))),
        (ControlVariate({"w": MODE}), PAIRS),
    ):
        reduced = variance(make(h, word, gradient, Listed(batches)), monkeypatch) - full
        assert abs(reduced) < 0.15 * plain, gradient
