"""The potential: its three questions against NumPyro's own full-data log density, for many forms of model."""

import itertools

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer.util import potential_energy
import pytest

from numpyro_sgmcmc import SGHMC, SGLD
from numpyro_sgmcmc.model.handlers import full_rows

N, GROUPS = 12, 3
X = np.asarray(random.normal(random.key(0), (N, 2)), float)
Y = np.asarray(random.normal(random.key(1), (N,)), float)
G = np.arange(N) % GROUPS


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def indexed(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", N):
        numpyro.sample("y", dist.Normal(mu, 1), obs=numpyro.subsample(y, event_dim=0))


def declared(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", N, subsample_size=4) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def regression(y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    x = jnp.asarray(X)
    with numpyro.plate("N", N) as rows:
        mean = numpyro.deterministic("mean", x[rows] @ w)
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y[rows])
    numpyro.deterministic("precision", sigma**-2)


def every_support(y):
    numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("corr", dist.LKJCholesky(3, 1.0))
    numpyro.sample("interval", dist.Uniform(-1, 2))
    numpyro.sample(
        "ordered",
        dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), dist.transforms.OrderedTransform()),
    )
    low = numpyro.sample("low", dist.Normal(0, 1))
    above = numpyro.sample("above", dist.TruncatedNormal(0, 1, low=low))  # a support that depends on a value
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(above, 1), obs=y[rows])


def with_a_factor(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", N) as rows:
        numpyro.factor("fit", -jnp.abs(y[rows] - mu))
    numpyro.factor("penalty", -(mu**4))


def with_scale_and_mask(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    seen = jnp.asarray(Y) > -0.5
    with numpyro.plate("N", N) as rows, handlers.scale(scale=0.5), handlers.mask(mask=seen[rows]):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def grouped(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("groups", GROUPS):
        effect = numpyro.sample("effect", dist.Normal(mu, 1))
    g = jnp.asarray(G)
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(effect[g[rows]], 1), obs=y[rows])


def vectors(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    x = jnp.asarray(X)
    with numpyro.plate("N", N) as rows:
        numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])
        numpyro.sample("y", dist.Normal(mu[0], 1), obs=y[rows])


def nested(y):
    """Rows in the outer plate, repeats in the inner; the outer one is minibatched."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    table = jnp.stack([y, y + 1, y - 1])
    with numpyro.plate("repeats", 3, dim=-2), numpyro.plate("N", N, dim=-1) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=table[:, rows])


MODELS = [
    indexed, subsampled, declared, regression, every_support,
    with_a_factor, with_scale_and_mask, grouped, vectors, nested,
]  # fmt: skip


def potential_of(model, batch_size=4, data=Y):
    kernel = SGLD(model, step_size=0.1, batch_size={"N": batch_size} if batch_size else None)
    potential = kernel._potential((data,), {})
    prototype = potential.structure.prototype
    keys = dict(zip(prototype, random.split(random.key(3), len(prototype))))
    return potential, {name: 0.5 * random.normal(keys[name], s.shape, s.dtype) for name, s in prototype.items()}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_the_estimate_is_unbiased_over_disjoint_batches(model):
    potential, z = potential_of(model)
    full = potential_energy(full_rows(model), (Y,), {}, z)
    batches = np.asarray(random.permutation(random.key(4), N)).reshape(3, 4)
    estimate = jax.vmap(lambda rows: jax.value_and_grad(potential.estimate)(z, {"N": rows}))
    value, gradient = jax.jit(estimate)(jnp.asarray(batches))
    assert float(value.mean()) == pytest.approx(float(full), rel=1e-10)
    exact = jax.jit(jax.grad(lambda z: potential_energy(full_rows(model), (Y,), {}, z)))(z)
    for name in z:
        np.testing.assert_allclose(gradient[name].mean(0), exact[name], atol=1e-9)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_prior_and_rows_make_up_the_whole(model):
    potential, z = potential_of(model)
    full = potential_energy(full_rows(model), (Y,), {}, z)
    rows = jnp.arange(N).reshape(3, 4)
    energies = jax.vmap(lambda r: potential.per_row(z, {"N": r}))(rows)
    assert energies.shape == (3, 4)
    assert float(potential.prior(z) + energies.sum()) == pytest.approx(float(full), rel=1e-10)
    # a single row, and a row on its own in a batch, have the same energy
    alone = potential.per_row(z, {"N": jnp.array([5])})
    assert float(alone[0]) == pytest.approx(float(energies.reshape(-1)[5]), rel=1e-10)


@pytest.mark.parametrize("model", [indexed, regression, every_support, grouped], ids=lambda m: m.__name__)
def test_without_a_minibatch_it_is_numpyros_potential(model):
    potential, z = potential_of(model, batch_size=None)
    assert float(potential.estimate(z, {})) == pytest.approx(float(potential_energy(model, (Y,), {}, z)), rel=1e-12)


def crossed(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    table = y.reshape(4, 3)
    with numpyro.plate("a", 4, dim=-2) as a, numpyro.plate("b", 3, dim=-1) as b:
        numpyro.sample("y", dist.Normal(mu, 1), obs=table[a][:, b])


def test_crossed_plates_are_unbiased_over_all_pairs_of_batches():
    kernel = SGLD(crossed, step_size=0.1, batch_size={"a": 2, "b": 1})
    potential, z = kernel._potential((Y,), {}), {"mu": jnp.asarray(0.3)}
    pairs = itertools.product(jnp.arange(4).reshape(2, 2), jnp.arange(3).reshape(3, 1))
    values = [potential.estimate(z, {"a": a, "b": b}) for a, b in pairs]
    assert float(np.mean(values)) == pytest.approx(float(potential_energy(crossed, (Y,), {}, z)), rel=1e-10)
    with pytest.raises(ValueError, match="exactly one minibatched plate, not 2: 'a', 'b'"):
        potential.per_row(z, {"a": jnp.arange(2), "b": jnp.arange(1)})


def test_constrain_gives_values_and_deterministics_outside_the_plate():
    potential, z = potential_of(regression)
    values = potential.constrain(z)
    assert set(values) == {"w", "sigma", "precision"}  # "mean" would be N numbers a draw
    assert float(values["sigma"]) == pytest.approx(float(jnp.exp(z["sigma"])))
    assert float(values["precision"]) == pytest.approx(float(jnp.exp(-2 * z["sigma"])))
    again = potential.unconstrain({name: values[name] for name in z})
    for name in z:
        np.testing.assert_allclose(again[name], z[name], atol=1e-12)


def test_the_cost_of_an_evaluation_does_not_depend_on_the_size_of_the_data():
    def flops(size):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0, 2))
            with numpyro.plate("N", len(y)) as rows:
                numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])
            numpyro.deterministic("double", 2 * mu)

        def everything(y, mu, rows):
            potential = SGLD(model, step_size=0.1, batch_size=10)._potential((y,), {})
            z = {"mu": mu}
            return jax.grad(potential.estimate)(z, {"N": rows}), potential.prior(z), potential.constrain(z)

        lowered = jax.jit(everything).lower(jnp.zeros(size), jnp.zeros(()), jnp.arange(10))
        return lowered.compile().cost_analysis()["flops"]

    assert flops(100_000) == flops(1000)


# -- randomised likelihoods, frozen parameters, networks -----------------------------------------------------------


def randomised(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    noise = random.normal(numpyro.prng_key(), ())
    numpyro.factor("noisy", -0.5 * mu**2 + noise * mu)


def test_a_randomised_model_gets_a_fresh_key_every_step():
    kernel = SGHMC(randomised, step_size=0.1)
    potential, z = kernel._potential((Y,), {}), {"mu": jnp.asarray(1.0)}
    assert potential.structure.randomised
    first, second, again = (potential.estimate(z, {}, random.key(k)) for k in (0, 1, 0))
    assert first != second and first == again
    # D = 0 and no injected noise: whatever spreads the chains is the model's own noise, new at every step
    state = kernel.init(random.key(0), 0, {"mu": 0.0}, (Y,), {})
    energies = []
    for _ in range(3):
        state = kernel.sample(state, (Y,), {})
        energies.append(float(state.potential_estimate))
    frozen = [float(potential.estimate({"mu": state.z["mu"]}, {}, random.key(0)))] * 3
    assert len(set(energies)) == 3 and energies != frozen


def with_a_param(y):
    sigma = numpyro.param("sigma", 2.0, constraint=dist.constraints.positive)
    start = numpyro.param("start", lambda key: random.normal(key, ()))
    mu = numpyro.sample("mu", dist.Normal(start, 1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y[rows])


def test_param_sites_are_frozen_and_said_to_be():
    kernel = SGLD(with_a_param, step_size=0.1, batch_size=4)
    with pytest.warns(UserWarning, match="param site 'sigma' is frozen"):
        kernel.init(random.key(0), 0, None, (Y,), {})
    potential, z = kernel._potential((Y,), {}), {"mu": jnp.asarray(0.5)}
    values = {potential.estimate(z, {"N": jnp.arange(4)}, random.key(k)).item() for k in range(3)}
    assert len(values) == 1


@pytest.mark.parametrize("library", ["nnx", "flax"])
def test_networks_with_random_weights(library, recwarn):
    if library == "nnx":
        from flax import nnx
        from numpyro.contrib.module import random_nnx_module

        def network():
            return random_nnx_module("net", nnx.Linear(2, 1, rngs=nnx.Rngs(0)), dist.Normal(0, 1))
    else:
        from flax import linen
        from numpyro.contrib.module import random_flax_module

        def network():
            return random_flax_module("net", linen.Dense(1), dist.Normal(0, 1), input_shape=(2,))

    def model(y):
        net, x = network(), jnp.asarray(X, jnp.float32)
        with numpyro.plate("N", N) as rows:
            numpyro.sample("y", dist.Normal(net(x[rows])[..., 0], 1), obs=y[rows])

    kernel = SGHMC(model, step_size=0.01, batch_size=4, steps_per_sample=2)
    state = kernel.init(random.key(0), 0, None, (Y,), {})
    assert {name: value.shape for name, value in state.z.items()} in (
        {"net/kernel": (2, 1), "net/bias": (1,)},
        {"net/bias": (1,), "net/kernel": (2, 1)},
    )
    moved = kernel.sample(state, (Y,), {})
    assert not moved.diverging and moved.z["net/kernel"].shape == (2, 1)
    assert not any("frozen" in str(w.message) for w in recwarn)  # every weight has a prior


def asks_numpy(y, group):
    """As many models do; group counts are static only while the data are NumPy's."""
    with numpyro.plate("groups", len(np.unique(group))):
        effect = numpyro.sample("effect", dist.Normal(jnp.zeros(int(group.max()) + 1), 1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(effect[group[rows]], 1), obs=y[rows])


@pytest.mark.parametrize("keys", [random.key(0), random.split(random.key(0), 2)], ids=["one chain", "two chains"])
def test_a_model_may_ask_numpy_about_its_arguments(keys):
    kernel = SGHMC(asks_numpy, step_size=0.01, batch_size=4)
    state = kernel.sample(kernel.init(keys, 0, None, (Y, G), {}), (Y, G), {})
    assert state.z["effect"].shape == (*keys.shape, GROUPS)
    potential, z = kernel._potential((Y, G), {}), {"effect": jnp.zeros(GROUPS)}
    full = potential_energy(asks_numpy, (jnp.asarray(Y), G), {}, z)  # NumPyro itself needs jax arrays for traced rows
    energies = [potential.estimate(z, {"N": rows}) for rows in jnp.arange(N).reshape(3, 4)]
    assert float(np.mean(energies)) == pytest.approx(float(full), rel=1e-10)
