"""Control variates of second order: unbiased for every position, small near the centre, and used where they help."""

from dataclasses import replace
from itertools import combinations

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, ControlVariate, settings, summary
from numpyro_sgmcmc.gradients.control_variate import Anchor
from numpyro_sgmcmc.gradients.second_order import REACH, Hessian, passes_of_hessian
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.coordinates import Coordinates
from numpyro_sgmcmc.tuning.groups import Layout, Part

N, BATCH, GROUPS = 8, 3, 4
GROUP = np.arange(N) % GROUPS
Y = np.random.default_rng(0).poisson(3.0, N)
CENTER = {"a": np.array([0.4, 1.1, 0.9, 0.2]), "log_tau": np.array(-0.3), "mu": np.array(0.8)}
LAYOUT = Layout((Part((GROUPS,), (0,), 0), Part((), (), -1), Part((), (), -1)), ((GROUPS, 1),), 2)
D, WIDTH = GROUPS + 2, 0.2


def matrix():
    return Coordinates(ravel_pytree(center())[0], WIDTH * jnp.eye(D))


def arrow():
    return Arrow.diagonal(matrix().center, jnp.full(D, WIDTH), LAYOUT)


FORMS = pytest.mark.parametrize("form", [matrix, arrow])


def center():
    return jax.tree.map(jnp.asarray, CENTER)


def counts(group, y, coupled=False):
    """Poisson counts in groups; if they are ``coupled``, the rows of a group depend on the effect of the next one."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    log_tau = numpyro.sample("log_tau", dist.Normal(0, 1))
    a = numpyro.sample("a", dist.Normal(mu, jnp.exp(log_tau)).expand([GROUPS]).to_event(1))
    with numpyro.plate("N", len(y)) as rows:
        rate = jnp.exp(a[group[rows]] + coupled * 0.3 * a[(group[rows] + 1) % GROUPS])
        numpyro.sample("y", dist.Poisson(rate), obs=y[rows])


def potential_of(**options):
    return ModelPotential.from_model(counts, (GROUP, Y), options, BATCH)


def state_of(potential, form):
    state = ControlVariate().anchor(potential, center(), random.key(0))
    return state._replace(hessian=Hessian.at(potential, center(), form(), random.key(1)))


def first_order(state):
    return state._replace(hessian=replace(state.hessian, used=jnp.array(False)))


def away(length):
    flat, unravel = ravel_pytree(center())
    return unravel(flat + length * WIDTH * random.normal(random.key(2), flat.shape))


def estimates(potential, state, z):
    """The gradients of all batches at ``z``, one a row."""
    batches = jnp.array(list(combinations(range(N), BATCH)))
    evaluate = lambda rows: ControlVariate().evaluate(potential, z, {"N": rows}, state, random.key(0))  # noqa: E731
    return jax.vmap(lambda rows: ravel_pytree(evaluate(rows).gradient)[0])(batches)


@FORMS
@pytest.mark.parametrize("length", [0.5, 3 * REACH], ids=["near", "beyond the reach"])
def test_the_mean_over_all_batches_is_the_gradient(form, length):
    with jax.enable_x64(True):
        potential = potential_of()
        state, z = state_of(potential, form), away(length)
        assert state.hessian.used
        true = ravel_pytree(jax.grad(potential.estimate)(z, {"N": jnp.arange(N)}))[0]
        np.testing.assert_allclose(estimates(potential, state, z).mean(0), true, rtol=1e-9)


@FORMS
def test_the_noise_is_of_second_order(form):
    """At half the distance its variance is a sixteenth; without the term a quarter."""
    potential = potential_of()
    state = state_of(potential, form)
    first = first_order(state)
    for of_order, power in ((first, 2), (state, 4)):
        near, far = (estimates(potential, of_order, away(length)).var(0).sum() for length in (0.4, 0.8))
        assert far / near == pytest.approx(2**power, rel=0.25)


@FORMS
def test_far_away_it_adds_at_most_the_noise_at_the_reach(form):
    """The difference from first order is bounded, so a chain in a tail is not driven further by the term itself."""
    with jax.enable_x64(True):
        potential = potential_of()
        state = state_of(potential, form)
        both = state, first_order(state)
        near, far = ([estimates(potential, of_order, away(length)) for of_order in both] for length in (30.0, 60.0))
    np.testing.assert_allclose(near[0] - near[1], far[0] - far[1], rtol=1e-6)


def test_groups_that_the_data_couple_are_no_arrow():
    """An arrow without what couples them would make the gradient biased, so the term is left out."""
    assert not state_of(potential_of(coupled=True), arrow).hessian.used
    assert state_of(potential_of(coupled=True), matrix).hessian.used


def test_the_hessian_is_that_of_all_rows():
    potential = potential_of()
    flat, unravel = ravel_pytree(center())
    true = jax.hessian(lambda v: potential.estimate(unravel(v), {"N": jnp.arange(N)}))(flat)
    for form in (matrix, arrow):
        hessian = state_of(potential, form).hessian
        np.testing.assert_allclose(jax.vmap(hessian.times)(jnp.eye(D)), true, rtol=1e-3, atol=1e-3)
    assert passes_of_hessian(matrix()) == 2 * D
    assert passes_of_hessian(arrow()) == 2 * (2 + 1)


# -- the choice of the warm-up --------------------------------------------------------------------------------------


def effects(group, y, groups):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 3)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", groups):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Poisson(jnp.exp(a[group[rows]])), obs=y[rows])


def run(order, num_samples=50):
    """150 groups of 20 counts, of which 100 are in a minibatch."""
    groups, rng = 150, np.random.default_rng(3)
    group = np.repeat(np.arange(groups), 20)
    y = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=groups))[group])
    kernel = SGHMC(effects, batch_size=100, gradient=ControlVariate(order=order))
    options = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=400, num_samples=num_samples, **options)
    mcmc.run(random.key(0), group, y, groups)
    return mcmc


@pytest.mark.filterwarnings("ignore:.*the draws are")
def test_the_warm_up_takes_second_order_where_noise_limits_the_step():
    runs = run(1), run(None)
    first, chosen = map(settings, runs)
    assert chosen["gradient"].order == 2
    assert first["steps_per_sample"] >= 2 * chosen["steps_per_sample"]
    assert chosen["batch_size"] == {"N": 100}
    for mcmc, gradients_of_a_row in zip(runs, (2, 4)):
        found = summary(mcmc)
        passes = found["gradient_evaluations"]["value"] * gradients_of_a_row * 100 / 3000
        assert found["passes"]["value"] == pytest.approx(passes)


@pytest.mark.filterwarnings("ignore:.*the draws are")
def test_blocks_and_scattered_rows_are_compared_at_the_order_of_the_chain():
    """The rows are sorted by group, so blocks are louder at the same order."""
    assert not settings(run(2))["rows"].contiguous


@pytest.mark.parametrize("order", [0, 3, "second"])
def test_an_order_is_1_or_2(order):
    with pytest.raises(ValueError, match="ControlVariate.order"):
        ControlVariate(order=order)


def test_second_order_needs_a_centre_of_the_warm_up():
    with pytest.raises(ValueError, match="leave center= and stored= out"):
        ControlVariate(CENTER, order=2)


def test_second_order_needs_a_hessian():
    def model(X):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([1001]).to_event(1))
        with numpyro.plate("N", len(X)) as rows:
            numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=X[rows, 0])

    kernel = SGHMC(model, batch_size=5, gradient=ControlVariate(order=2))
    with pytest.raises(ValueError, match="at most 1000 coordinates"):
        MCMC(kernel, num_warmup=10, num_samples=10, progress_bar=False).run(random.key(0), np.ones((20, 1001)))


def test_a_state_without_a_hessian_is_of_first_order():
    potential = potential_of()
    plain = ControlVariate().anchor(potential, center(), random.key(0))
    assert isinstance(plain, Anchor) and plain.hessian == ()
    unused = first_order(state_of(potential, matrix))
    expected, got = (estimates(potential, of_order, away(1.0)) for of_order in (plain, unused))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
