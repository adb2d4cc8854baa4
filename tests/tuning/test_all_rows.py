"""The choice between minibatches and all rows, if no batch size is given: its rule, its gradient, and a run."""

from dataclasses import replace
from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, Minibatch, settings, step_halving, summary
from numpyro_sgmcmc.gradients.control_variate import Anchor, ControlVariate
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.all_rows import are_cheaper, decides, rows_of_the_rest
from numpyro_sgmcmc.utils.memory import PRODUCTS, operations

N, D = 3000, 60
COLUMNS = np.random.default_rng(1).choice(D, N, p=np.r_[0.9, np.full(D - 1, 0.1 / (D - 1))])  # most have a few rows
X = jnp.asarray(np.eye(D, dtype=np.float32)[COLUMNS])
Y = jnp.asarray((np.random.default_rng(2).uniform(size=N) < 0.3).astype(np.float32))


def rare(x, y, size=None):
    w = numpyro.sample("w", dist.Normal(0, 4).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x), subsample_size=size) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])


def test_all_rows_are_used_if_a_draw_is_cheaper():
    potential = ModelPotential.from_model(rare, (X, Y), {}, 500)
    c = rows_of_the_rest(potential)
    even = (500 + c) / (N + c)  # the ratio of the step sizes at which both cost the same
    assert not are_cheaper(potential, jnp.asarray(even * 1.01), jnp.asarray(1.0))
    assert are_cheaper(potential, jnp.asarray(even * 0.99), jnp.asarray(1.0))


def test_a_row_with_more_operations_weighs_more():
    wide = jnp.tile(X, (1, 10))
    narrow, dear = (ModelPotential.from_model(rare, (x, Y), {}, 500) for x in (X, wide))
    assert 3 < rows_of_the_rest(narrow) / rows_of_the_rest(dear) < 12


def test_the_operations_of_a_program():
    def loop(x, matrix):
        step = lambda x, _: (jnp.sin(matrix @ x), None)  # noqa: E731
        return jax.lax.scan(step, x, length=7)[0]

    counted = operations(jax.make_jaxpr(loop)(jnp.zeros(8), jnp.zeros((8, 8))).jaxpr)
    assert counted == 7 * (8 * (1 + 8 / PRODUCTS) + 8)


def test_the_gradient_of_all_rows_is_exact():
    potential, estimator = ModelPotential.from_model(rare, (X, Y), {}, 500), ControlVariate()
    z = {"w": 0.1 * random.normal(random.key(0), (D,))}
    rows = {"rows": jnp.arange(500, dtype=jnp.int32)}
    anchor = Anchor({"w": jnp.zeros(D)}, {"w": jnp.zeros(D)})
    exact = jax.value_and_grad(ModelPotential.from_model(rare, (X, Y), {}, {}).estimate)(z, {}, None)

    def evaluated(all_rows):
        state = anchor._replace(all_rows=jnp.asarray(all_rows))
        return jax.jit(estimator.evaluate, static_argnums=0)(potential, z, rows, state, random.key(1))

    energy, gradient, _ = evaluated(True)
    np.testing.assert_allclose(energy, exact[0], rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], exact[1]["w"], rtol=1e-4, atol=1e-3)
    usual = estimator.evaluate(potential, z, rows, anchor, random.key(1))
    np.testing.assert_allclose(evaluated(False).gradient["w"], usual.gradient["w"], rtol=1e-5)
    assert np.abs(usual.gradient["w"] - gradient["w"]).max() > 1


def drawn(batch_size=None, num_warmup=800, **options):
    options = {"chain_method": "vectorized", "num_chains": 4, "progress_bar": False} | options
    mcmc = MCMC(SGHMC(rare, batch_size=batch_size), num_warmup=num_warmup, num_samples=800, **options)
    mcmc.run(random.key(0), X, Y, extra_fields=("accept_prob",))
    return mcmc


@pytest.fixture(scope="module")
def run():
    return drawn()


def test_a_run_whose_noise_would_keep_the_steps_small_uses_all_rows(run):
    mcmc, exact = run, drawn(batch_size={})
    found = settings(mcmc)
    assert found["batch_size"] == {} and found["gradient_noise"] == 0 and found["verdict"] == "right"
    w, true = (run.get_samples()["w"] for run in (mcmc, exact))
    assert np.abs((w.mean(0) - true.mean(0)) / true.std(0)).max() < 0.35
    assert np.abs(np.log(w.std(0) / true.std(0))).max() < 0.35
    accepted = mcmc.get_extra_fields()["accept_prob"]
    assert 0.85 < accepted.mean() < 0.9999 and accepted.max() <= 1.0001


def test_its_steps_pass_a_test(run):
    state = run.last_state
    longer = replace(state.settings, step_size=jnp.asarray(0.8), steps_per_sample=jnp.asarray(1, jnp.int32))

    def step(state, _):
        new = run.sampler.sample(state, (X, Y), {})
        return new, ((new.x == state.x).all(-1), new.accept_prob)

    stays, accepted = jax.jit(partial(jax.lax.scan, step, length=100))(state._replace(settings=longer))[1]
    assert 0.1 < accepted.mean() < 0.9
    error = np.sqrt((accepted * (1 - accepted)).mean() / accepted.size)
    assert abs(1 - stays.mean() - accepted.mean()) < 4 * error


def test_diagnostics_know_that_it_uses_all_rows(run):
    found = summary(run, X, Y)
    assert found["gradient_evaluations"]["value"] == found["passes"]["value"]
    with pytest.raises(ValueError, match="no plate is minibatched"):
        step_halving(run, random.key(0), vary="batch_size")


@pytest.mark.every(2)
@pytest.mark.parametrize("chain_method", ["sequential", "parallel"])
def test_chains_that_run_one_by_one_choose_for_themselves(chain_method):
    found = settings(drawn(chain_method=chain_method, num_chains=2, num_warmup=200))
    assert found["batch_size"] == {} and found["step_size"].shape == (2,)


@pytest.mark.parametrize(
    "args, options, chooses",
    [
        ((X, Y), {}, True),
        ((X, Y), {"batch_size": 500}, False),
        ((X, Y, 400), {}, False),  # declared in the model
        ((X, Y), {"gradient": Minibatch()}, False),
        ((X, Y), {"integrator": "euler"}, False),  # its steps pass no test
        ((X[:, :20], Y), {}, False),  # many rows for each coordinate
    ],
)
def test_the_warm_up_chooses_if_nothing_is_given(args, options, chooses):
    state = SGHMC(rare, **options).init(random.key(0), 100, None, args, {})
    assert decides(state.gradient_state) == chooses
    assert isinstance(state.accept_prob, tuple) != chooses
