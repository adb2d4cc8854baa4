"""Optimised starts for ensembles: where they arrive, what they hand on, weights that are given, and what is refused."""

from flax import linen, nnx
import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
from numpyro.contrib.module import random_flax_module, random_nnx_module
import numpyro.distributions as dist
from numpyro.infer import MCMC
from numpyro.optim import Adam
import optax
import pytest

from numpyro_sgmcmc import SGHMC, Reshuffled, warm_start

KEY = random.key(0)
MEAN, VARIANCE = models.gaussian_posterior(models.ROWS)
QUIET = {"batch_size": models.B, "progress_bar": False}


@pytest.mark.parametrize("optimizer", [None, optax.sgd(optax.exponential_decay(1e-2, 300, 0.5)), Adam(3e-3)])
def test_members_arrive_and_differ(optimizer):
    z = warm_start(models.gaussian, KEY, models.ROWS, members=5, num_steps=3000, optimizer=optimizer, **QUIET)["mu"]
    assert z.shape == (5,)
    assert np.abs(z - MEAN).max() < np.sqrt(VARIANCE)
    assert len(set(z.tolist())) == 5, "each has minibatches of its own"


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.every(2)
def test_they_go_straight_into_as_many_chains(members):
    data = models.X, models.COUNTS
    starts = warm_start(models.logistic, KEY, *data, members=members, num_steps=20, **QUIET)
    kernel = SGHMC(models.logistic, step_size=1e-6, batch_size=models.B)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=1, num_chains=members, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(1), *data, init_params=starts)
    for name, value in starts.items():
        np.testing.assert_allclose(np.asarray(mcmc.last_state.z[name]), value, atol=1e-3)


def line(x, y):
    """As many coefficients as there are rows: trained to the end, it follows the noise."""
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(60, 50))
RESPONSE = FEATURES[:, 0] + 3 * RNG.normal(size=60)


@pytest.mark.slow
def test_early_stopping_keeps_the_best_on_rows_that_are_not_trained_on():
    options = {"members": 3, "batch_size": 10, "num_steps": 4000, "progress_bar": False, "optimizer": optax.adam(1e-2)}
    fresh = np.random.default_rng(1).normal(size=(5000, 50))
    error = lambda z: np.mean((fresh @ z["w"].T - fresh[:, :1]) ** 2, 0)  # noqa: E731
    start = {"w": np.zeros(50)}
    stopped = warm_start(line, KEY, FEATURES, RESPONSE, start=start, held_out=0.2, patience=5, **options)
    to_the_end = warm_start(line, KEY, FEATURES, RESPONSE, start=start, **options)
    assert (error(stopped) < 0.5 * error(to_the_end)).all()


def test_rows_that_are_held_out_are_not_seen():
    """Those that hold NaN in the training rows would stop every step; here they are the held-out ones."""
    options = {"members": 2, "held_out": 0.25, "num_steps": 500, "patience": 50, **QUIET}
    order = Reshuffled()(random.split(KEY, 4)[1], jnp.uint32(0), models.N, models.N)
    held = np.asarray(order)[: models.N // 4]
    rows = models.ROWS.copy()
    rows[held] += 100
    z = warm_start(models.gaussian, KEY, rows, start={"mu": 0.0}, optimizer=optax.adam(3e-2), **options)["mu"]
    trained = np.delete(models.ROWS, held)
    # the best for rows around 100 is as far up as training goes: to the mean of the others, and its noise
    assert np.abs(z - trained.mean()).max() < 1


def net_of(library):
    if library == "linen":
        module = linen.Sequential([linen.Dense(4), linen.tanh, linen.Dense(1)])
        random_module = lambda: random_flax_module("net", module, dist.Normal(0, 1), input_shape=(2,))  # noqa: E731
        weights = module.init(random.key(3), jnp.ones((1, 2)))["params"]
        apply = lambda x: module.apply({"params": weights}, x)  # noqa: E731
    else:
        module = nnx.Sequential(nnx.Linear(2, 4, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
        random_module = lambda: random_nnx_module("net", module, dist.Normal(0, 1))  # noqa: E731
        weights, apply = nnx.state(module, nnx.Param), module

    def model(x, y=None):
        net = random_module()
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("N", len(x)) as rows:
            mean = numpyro.deterministic("mean", net(x[rows])[:, 0])
            numpyro.sample("y", dist.Normal(mean, scale), obs=None if y is None else y[rows])

    return model, weights, apply


@pytest.mark.parametrize("library", ["linen", "nnx"])
@pytest.mark.every(2)
def test_weights_that_are_trained_already(library):
    model, weights, apply = net_of(library)
    x, y = models.X[:, :2].astype(np.float32), models.ROWS
    start = {"net": weights, "scale": 0.5}
    z = warm_start(model, KEY, x, y, members=2, num_steps=0, start=start, **QUIET)
    np.testing.assert_allclose(z["scale"], np.log([0.5, 0.5]), rtol=1e-6)
    values = {name: value[1] for name, value in z.items() if name != "scale"} | {"scale": 0.5}
    trace = numpyro.handlers.trace(numpyro.handlers.substitute(numpyro.handlers.seed(model, 0), values))
    np.testing.assert_allclose(trace.get_trace(x)["mean"]["value"], apply(x)[:, 0], rtol=1e-5)


def test_each_member_may_have_weights_of_its_own():
    model, weights, _ = net_of("linen")
    several = jax.tree.map(lambda w: jnp.stack([w, 2 * w, 3 * w]), weights)
    x, y = models.X[:, :2].astype(np.float32), models.ROWS
    z = warm_start(model, KEY, x, y, members=3, num_steps=0, start={"net": several}, **QUIET)
    kernel = z["net/layers_0.kernel"]
    np.testing.assert_allclose(kernel[2], 3 * weights["layers_0"]["kernel"], rtol=1e-6)
    assert len(set(z["scale"].tolist())) == 3, "other sites start each for itself"


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"members": 0}, ValueError, "members=0 must be at least 1"),
        ({"num_steps": -1}, ValueError, "num_steps=-1 must be at least 0"),
        ({"patience": 0}, ValueError, "patience=0 must be"),
        ({"optimizer": optax.adam}, TypeError, "optimizer=.* has no `init` and `update`"),
        ({"start": {"nu": 0.0}}, ValueError, r"start= names 'nu', but the latent sites of the model are 'mu'"),
        (
            {"start": {"mu": [0.0, 1.0]}},
            ValueError,
            r"start= has shape \(2,\) at 'mu'; it must be \(\), or \(3,\)",
        ),
        ({"start": {"mu": np.nan}}, ValueError, "start= has a value at 'mu' that is not finite"),
        ({"start": [0.0]}, ValueError, "start= must be a dict"),
        ({"held_out": 1.0}, ValueError, "held_out=1.0 must be a share"),
        ({"held_out": 0.9}, ValueError, "held_out=0.9 leaves fewer rows than the 6"),
        ({"held_out": 0.5, "batch_size": None}, ValueError, "held_out=0.5 needs exactly one minibatched plate, not 0"),
    ],
)
def test_arguments_that_cannot_work(options, error, message):
    with pytest.raises(error, match=message):
        warm_start(models.gaussian, KEY, models.ROWS, **{"members": 3, "num_steps": 10} | QUIET | options)


def test_the_key_comes_second():
    with pytest.raises(TypeError, match=r"the second argument is the random key: warm_start\(model"):
        warm_start(models.gaussian, models.ROWS)
