"""The search for a mode: that it arrives, knows whether it has, and uses each random key once."""

import contextlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.optim import SGD, Adam
import optax
import pytest

from numpyro_sgmcmc import find_mode
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning import mode as mode_module, start as start_module
from numpyro_sgmcmc.tuning.start import mean_field

X = 3 + np.random.default_rng(0).normal(size=1000)
FAR = 50 + np.random.default_rng(1).normal(size=10_000)


def gaussian(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])


def of_unknown_scale(x):
    mu = numpyro.sample("mu", dist.Normal(0, 100))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, sigma), obs=x[rows])


def quadratic(precision):
    """U = precision z'z / 2 in 25 coordinates."""

    def model():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (25,)))
        numpyro.factor("U", -0.5 * precision * z @ z)

    return model


def saddle():
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    numpyro.factor("U", 0.5 * z[0] ** 2 - 0.5 * z[1] ** 2)


HALVED = optax.exponential_decay(0.1, 100, 0.5)


@pytest.mark.parametrize("batch_size", [None, 100])
@pytest.mark.parametrize(
    "optimizer", [None, optax.adam(HALVED), Adam(lambda k: 0.1 * 0.5 ** (k / 100))], ids=["default", "optax", "numpyro"]
)
@pytest.mark.every(4)
def test_it_arrives_within_a_round(optimizer, batch_size, monkeypatch):
    monkeypatch.setattr(mode_module, "ROUNDS", 1)
    options = {"num_steps": 1500, "optimizer": optimizer, "progress_bar": False}
    mode = find_mode(gaussian, random.key(0), X, batch_size=batch_size, **options)
    assert abs(mode["mu"] - X.mean()) < 0.5 / np.sqrt(len(X))  # half a posterior sd


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_steps", [1000, 10_000])
@pytest.mark.every(4)
def test_it_arrives_where_the_data_are_not_standardised(num_steps, seed):
    """Unconstrained values within a posterior standard deviation: sd / sqrt(N) of the mean, 1 / sqrt(2 N) of log sd."""
    x = 3 * FAR
    options = {"batch_size": 100, "num_steps": num_steps, "progress_bar": False}
    mode = find_mode(of_unknown_scale, random.key(seed), x, **options)
    assert abs(mode["mu"] - x.mean()) < x.std() / np.sqrt(len(x))
    assert abs(mode["sigma"] - np.log(x.std())) < 1 / np.sqrt(2 * len(x))


def rounds_of(capsys):
    bars = [bar for bar in capsys.readouterr().err.replace("\r", "\n").split("\n") if "100%" in bar]
    return len({bar.split(":")[0] for bar in bars})


@pytest.mark.slow
def test_there_are_no_more_rounds_than_needed(capsys):
    find_mode(gaussian, random.key(0), X, batch_size=100, num_steps=1500)
    assert rounds_of(capsys) == 1
    find_mode(gaussian, random.key(0), FAR, batch_size=100, num_steps=1000)
    assert 1 < rounds_of(capsys) <= 3


def test_it_says_that_it_has_not_arrived(capsys):
    with pytest.warns(UserWarning, match="has not converged: the mode is about .* posterior standard deviations away"):
        find_mode(gaussian, random.key(0), X, batch_size=100, num_steps=20, optimizer=SGD(1e-9))
    assert rounds_of(capsys) == 1  # an optimizer of the user's runs once
    with pytest.warns(UserWarning, match="has not converged"):
        find_mode(gaussian, random.key(0), 1e9 * X, batch_size=100, num_steps=10)
    assert rounds_of(capsys) == mode_module.ROUNDS


@pytest.mark.parametrize("distance", [0.8, 2.0])
def test_arrival_is_judged_by_the_root_mean_square_over_coordinates(distance, recwarn):
    """25 coordinates that do not move from their start z: each is precision^(1/2) |z| deviations away."""
    still = {"optimizer": SGD(1e-12), "num_steps": 1, "progress_bar": False}
    z = find_mode(quadratic(1e-6), random.key(0), **still)["z"]
    precision = distance**2 / float((z**2).mean())
    recwarn.clear()
    find_mode(quadratic(precision), random.key(0), **still)
    messages = [str(warning.message) for warning in recwarn]
    assert [f"about {distance:.1f} posterior" in m for m in messages] == ([True] if distance > 1 else [])


def test_it_says_that_there_is_no_minimum():
    with pytest.warns(UserWarning, match="has not found a minimum"):
        find_mode(saddle, random.key(0), num_steps=10, progress_bar=False)


def test_it_refuses_what_the_kernels_refuse():
    with pytest.raises(ValueError, match="names the plate 'M'"):
        find_mode(gaussian, random.key(0), X, batch_size={"M": 10})
    with pytest.raises(TypeError, match="num_steps=1.5"):
        find_mode(gaussian, random.key(0), X, num_steps=1.5)
    with pytest.raises(ValueError, match="not finite at site 'x'"):
        find_mode(gaussian, random.key(0), X * np.nan, progress_bar=False)


def test_what_is_a_key():
    options = {"num_steps": 1500, "progress_bar": False}
    for key in (random.key(0), random.PRNGKey(0), random.key(0, impl="rbg")):
        assert abs(find_mode(gaussian, key, X, **options)["mu"] - X.mean()) < 0.1
    for wrong in (0, X, random.split(random.key(0)), jnp.zeros(2), None):
        with pytest.raises(TypeError, match="the second argument is the random key"):
            find_mode(gaussian, wrong, X)


@pytest.mark.slow
def test_a_model_with_arguments_of_the_same_names():
    def model(x, batch_size, num_steps=0.0):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("x", dist.Normal(mu + batch_size + num_steps, 1), obs=x[rows])

    options = {"batch_size": 100, "num_steps": 1000, "progress_bar": False}
    own = {"batch_size": 1.0, "num_steps": 2.0}
    for mode in (
        find_mode(model, random.key(0), X, model_kwargs=own, **options),
        find_mode(model, random.key(0), model_args=(X,), model_kwargs=own, **options),
        find_mode(model, random.key(0), x=X, model_kwargs=own, **options),
    ):
        assert abs(mode["mu"] - (X.mean() - 3)) < 0.03
    with pytest.raises(TypeError, match="one by one or as model_args"):
        find_mode(model, random.key(0), X, model_args=(X,), **options)
    with pytest.raises(TypeError, match="'x' given both as a keyword and in model_kwargs"):
        find_mode(model, random.key(0), x=X, model_kwargs={"x": X}, **options)


@pytest.mark.filterwarnings("ignore:find_mode has not converged")
def test_the_progress_bar_waits_for_the_work(monkeypatch):
    """The state of the optimizer is there, not only promised, whenever the bar moves. A segment takes milliseconds."""
    promised, there = [], []
    compiled = mode_module.compiled

    def watched(*args):
        program = compiled(*args)

        def run(*rest):
            promised[:] = jax.tree.leaves(result := program(*rest))
            return result

        return run

    class Bar(contextlib.nullcontext):
        def update(self, n):
            there.append((n, all(x.is_ready() for x in promised)))

    monkeypatch.setattr(mode_module, "compiled", watched)
    monkeypatch.setattr(mode_module, "trange", lambda *_, **__: Bar(Bar()))
    find_mode(gaussian, random.key(0), np.tile(X, 1000), num_steps=100, optimizer=SGD(1e-12))
    assert sum(n for n, _ in there) == 100
    assert all(ready for _, ready in there)


# -- keys ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Keys as they come to be used, in a compiled program too."""

    def __init__(self):
        self.keys = []

    def __call__(self, rng_key):
        jax.debug.callback(lambda data: self.keys.append(tuple(np.asarray(data).tolist())), random.key_data(rng_key))


def descendants(key):
    """The keys that a use of this key may make of it."""
    typed = random.wrap_key_data(jnp.asarray(key, jnp.uint32))
    children = [random.fold_in(typed, i) for i in range(4)] + [*random.split(typed, 2), *random.split(typed, 4)]
    return {tuple(np.asarray(random.key_data(child)).tolist()) for child in children}


def check_no_key_is_used_twice(keys, count):
    assert len(set(keys)) == count
    for key in set(keys):
        assert not descendants(key) & set(keys)


@pytest.fixture
def model_keys(monkeypatch):
    """Keys that the model is evaluated under."""
    record = Recorder()
    for name in ("estimate", "by_site"):
        question = getattr(ModelPotential, name)

        def recorded(self, z, rows, rng_key=None, question=question):
            record(rng_key)
            return question(self, z, rows, rng_key)

        monkeypatch.setattr(ModelPotential, name, recorded)
    return record.keys


@pytest.mark.filterwarnings("ignore:find_mode has not converged")
def test_a_search_uses_each_key_once(model_keys):
    """The gradient and the Hessian at its end are of one function, so they share theirs."""
    find_mode(gaussian, random.key(0), X, batch_size=100, num_steps=5, optimizer=SGD(1e-9), progress_bar=False)
    jax.effects_barrier()
    check_no_key_is_used_twice(model_keys, count=1 + 5 + 1)


def test_the_descent_of_a_thermostat_uses_each_key_once(model_keys, monkeypatch):
    record = Recorder()
    normal = start_module.noise.normal

    def recorded(rng_key, *rest):
        record(rng_key)
        return normal(rng_key, *rest)

    monkeypatch.setattr(start_module.noise, "normal", recorded)
    monkeypatch.setattr(start_module, "DESCENT_STEPS", 5)
    potential = ModelPotential.from_model(gaussian, (jnp.asarray(X),), {}, 100)
    mean_field(potential, {"mu": jnp.zeros(())}, random.key(1), random.key(2))
    jax.effects_barrier()
    check_no_key_is_used_twice(model_keys + record.keys, count=10)
