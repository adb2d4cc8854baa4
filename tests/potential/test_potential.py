"""The potential: its three questions against NumPyro's own full-data log density, for many forms of model."""

import itertools

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.distributions.transforms import ParameterFreeTransform
from numpyro.infer import MCMC, Predictive, init_to_value
from numpyro.infer.util import log_density, potential_energy
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, WithReplacement
from numpyro_sgmcmc.model.handlers import full_rows
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import Plate, RowsState

pytestmark = pytest.mark.usefixtures("x64")

N, GROUPS = 12, 3
X = np.asarray(random.normal(random.key(0), (N, 2)), float)
Y = np.asarray(random.normal(random.key(1), (N,)), float)
G = np.arange(N) % GROUPS


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
    potential = kernel.potential((data,), {})
    prototype = potential.structure.prototype
    keys = dict(zip(prototype, random.split(random.key(3), len(prototype))))
    return potential, {name: 0.5 * random.normal(keys[name], s.shape, s.dtype) for name, s in prototype.items()}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
@pytest.mark.every(3)
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
@pytest.mark.every(3)
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
    potential, z = kernel.potential((Y,), {}), {"mu": jnp.asarray(0.3)}
    pairs = itertools.product(jnp.arange(4).reshape(2, 2), jnp.arange(3).reshape(3, 1))
    values = [potential.estimate(z, {"a": a, "b": b}) for a, b in pairs]
    assert float(np.mean(values)) == pytest.approx(float(potential_energy(crossed, (Y,), {}, z)), rel=1e-10)
    with pytest.raises(ValueError, match="exactly one minibatched plate, not 2: 'a', 'b'"):
        potential.per_row(z, {"a": jnp.arange(2), "b": jnp.arange(1)})


def three_plates(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    cube = jnp.asarray(y).reshape(2, 3, 2)
    with numpyro.plate("a", 2, dim=-3) as a, numpyro.plate("b", 3, dim=-2) as b, numpyro.plate("c", 2, dim=-1) as c:
        numpyro.sample("y", dist.Normal(mu, 1), obs=cube[a[:, None, None], b[:, None], c])
        numpyro.factor("fit", -(jnp.abs(cube[a][:, b][:, :, c] - mu) ** 3))
    with numpyro.plate("b", 3, dim=-2):
        numpyro.sample("x", dist.Normal(mu, 2), obs=numpyro.subsample(cube[0, :, :1], event_dim=0))


@pytest.mark.slow
def test_three_crossed_plates_are_unbiased_over_all_triples_of_batches():
    """Rows drawn with replacement: every combination of single rows and of pairs, each once."""
    kernel = SGLD(three_plates, step_size=0.1, batch_size={"a": 1, "b": 2, "c": 1})
    potential, z = kernel.potential((Y,), {}), {"mu": jnp.asarray(0.3)}
    pairs = jnp.asarray(list(itertools.product(range(3), repeat=2)))
    combinations = list(itertools.product(jnp.arange(2)[:, None], pairs, jnp.arange(2)[:, None]))
    a, b, c = (jnp.stack(rows) for rows in zip(*combinations))
    values, gradients = jax.vmap(lambda *rows: jax.value_and_grad(potential.estimate)(z, dict(zip("abc", rows))))(
        a, b, c
    )
    full, gradient = jax.value_and_grad(lambda z: potential_energy(three_plates, (Y,), {}, z))(z)
    assert len(values) == 36 and float(values.std()) > 1
    assert float(values.mean()) == pytest.approx(float(full), rel=1e-10)
    assert float(gradients["mu"].mean()) == pytest.approx(float(gradient["mu"]), rel=1e-10)


def test_three_plates_of_a_size_draw_their_rows_independently():
    """Single rows out of two: each of the eight triples comes equally often, whatever the numbers of the batches."""
    plates = {name: Plate(2, 1) for name in "abc"}
    batches = 8000

    def draw(t):
        rows, _ = next_rows(WithReplacement(), RowsState(random.key(5), t), plates)
        return rows["a"][0] * 4 + rows["b"][0] * 2 + rows["c"][0]

    counts = np.bincount(jax.vmap(draw)(jnp.arange(batches, dtype=jnp.int32)), minlength=8)
    expected = batches / 8
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 24.3  # 7 degrees of freedom, the quantile of 0.999; the key is fixed


def test_constrain_gives_values_and_deterministics_outside_the_plate():
    potential, z = potential_of(regression)
    values = potential.constrain(z)
    assert set(values) == {"w", "sigma", "precision"}  # "mean" would be N numbers a draw
    assert float(values["sigma"]) == pytest.approx(float(jnp.exp(z["sigma"])))
    assert float(values["precision"]) == pytest.approx(float(jnp.exp(-2 * z["sigma"])))
    again = potential.unconstrain({name: values[name] for name in z})
    for name in z:
        np.testing.assert_allclose(again[name], z[name], atol=1e-12)


def probabilities(y):
    with numpyro.plate("states", 2):
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(4, 0.3)))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(p[0, 0], 1), obs=y[rows])


def test_small_probabilities_keep_their_digits():
    """In float32, where 1 minus the larger ones is 0 or a few times its rounding error."""
    with jax.enable_x64(False):
        potential, _ = potential_of(probabilities, data=Y.astype(np.float32))
        z = {"p": jnp.array([[12.0, 9.0, -8.0], [-8.0, 12.0, 12.0]], jnp.float32)}
        again = potential.unconstrain(potential.constrain(z))
        np.testing.assert_allclose(again["p"], z["p"], rtol=1e-2)


def with_statistics_of_rows(y):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("groups", GROUPS):
        numpyro.deterministic("of_groups", mu * jnp.arange(GROUPS))
    with numpyro.plate("N", N) as rows:
        batch = y[rows]
        numpyro.deterministic("residual", batch - mu)
        numpyro.sample("y", dist.Normal(mu, 1), obs=batch)
    numpyro.deterministic("mean", batch.mean() + mu)
    numpyro.deterministic("nested", {"sum": jax.jit(jnp.sum)(batch), "mu": mu})
    numpyro.deterministic("size", jax.jit(lambda mu, batch: (2 * mu, batch))(mu, batch)[0])


def test_deterministic_sites_that_depend_on_rows_are_left_out_by_name():
    potential, z = potential_of(with_statistics_of_rows)
    assert potential.structure.left_out == ("mean", "nested")
    assert set(potential.constrain(z)) == {"mu", "of_groups", "size"}
    kernel = SGLD(with_statistics_of_rows, step_size=0.01, batch_size=4)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=3, progress_bar=False)
    with pytest.warns(UserWarning, match="'mean', 'nested' depends on the rows.*Predictive") as caught:
        mcmc.run(random.key(0), Y)
    assert len([w for w in caught if "depends on the rows" in str(w.message)]) == 1
    samples = mcmc.get_samples()
    assert set(samples) == {"mu", "of_groups", "size"}
    # the way out that the warning tells
    found = Predictive(kernel.model, samples)(random.key(1), Y)
    np.testing.assert_allclose(found["mean"], samples["mu"] + Y.mean(), rtol=1e-6)
    assert found["residual"].shape == (3, N)


def test_on_all_rows_no_deterministic_site_is_left_out(recwarn):
    potential, z = potential_of(with_statistics_of_rows, batch_size=None)
    values = potential.constrain(z)
    assert float(values["mean"]) == pytest.approx(float(Y.mean() + z["mu"])) and values["residual"].shape == (N,)


class Softplus(ParameterFreeTransform):
    """Real numbers -> positive ones, coordinate by coordinate, in place of ``exp``."""

    domain, codomain = dist.constraints.real, dist.constraints.positive

    def __call__(self, x):
        return jax.nn.softplus(x)

    def _inverse(self, y):
        return y + jnp.log(-jnp.expm1(-y))

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return -jax.nn.softplus(-x)


def on_the_half_line(y):
    scale = numpyro.sample("scale", dist.Gamma(3, 2))
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([2]).to_event(1))
    numpyro.sample("other", dist.HalfNormal(scale))
    with numpyro.plate("groups", GROUPS):
        numpyro.sample("of_groups", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(scale, scales[0] + scales[1]), obs=y[rows])


def test_the_density_under_another_transform():
    """log p(z) = log p(x(z)) + log |dx/dz|, where x = log(1 + exp z) has the slope 1 / (1 + exp -z)."""
    # a vector is one event, whether its transform is of vectors or of their coordinates
    of_vectors = dist.transforms.IndependentTransform(Softplus(), 1)
    transforms = {"scale": Softplus(), "scales": of_vectors, "of_groups": Softplus()}
    potential = ModelPotential.from_model(on_the_half_line, (Y,), {}, 4, transforms)
    z = {"scale": jnp.asarray(0.4), "scales": jnp.asarray([-0.3, 0.8]), "other": jnp.asarray(-0.2)}
    z["of_groups"] = random.normal(random.key(6), (GROUPS, 2))
    x = {name: jnp.exp(value) if name == "other" else jnp.log1p(jnp.exp(value)) for name, value in z.items()}
    log_slope = z["other"] - sum(jnp.log1p(jnp.exp(-z[name])).sum() for name in transforms)
    expected = -log_density(on_the_half_line, (Y,), {}, x)[0] - log_slope
    batches = jnp.arange(N).reshape(3, 4)
    estimates = jax.vmap(lambda rows: potential.estimate(z, {"N": rows}))(batches)
    assert float(estimates.mean()) == pytest.approx(float(expected), rel=1e-10)
    constrained = potential.constrain(z)
    for name in z:
        np.testing.assert_allclose(constrained[name], x[name], rtol=1e-12)
        np.testing.assert_allclose(potential.unconstrain(constrained)[name], z[name], rtol=1e-10)


class Simplex(ParameterFreeTransform):
    """Logarithms of ratios to the last entry; as many coordinates as the usual transform, in another order."""

    domain, codomain = dist.constraints.real_vector, dist.constraints.simplex

    def __call__(self, x):
        return jax.nn.softmax(jnp.append(x, 0.0))

    def _inverse(self, y):
        return jnp.log(y[:-1] / y[-1])

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.log(y).sum()

    def forward_shape(self, shape):
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape):
        return (*shape[:-1], shape[-1] - 1)


def weights(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(w[0], 1), obs=y[rows])


@pytest.mark.parametrize("init_strategy", [None, init_to_value(values={"w": jnp.array([0.2, 0.3, 0.5])})])
def test_a_start_under_another_transform_is_that_of_the_usual_one(init_strategy):
    starts = []
    for transforms in (None, {"w": Simplex()}):
        potential = ModelPotential.from_model(weights, (Y,), {}, 4, transforms)
        z = jax.jit(lambda key: potential.initial(key, potential.some_rows(), init_strategy))(random.key(7))  # noqa: B023
        assert {name: (x.shape, x.dtype) for name, x in z.items()} == {
            name: (x.shape, x.dtype) for name, x in potential.prototype.items()
        }
        starts.append(potential.latents(z)["w"])
    np.testing.assert_allclose(*starts, rtol=1e-10)


def test_the_cost_of_an_evaluation_does_not_depend_on_the_size_of_the_data():
    def flops(size):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0, 2))
            with numpyro.plate("N", len(y)) as rows:
                numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])
            numpyro.deterministic("double", 2 * mu)

        def everything(y, mu, rows):
            potential = SGLD(model, step_size=0.1, batch_size=10).potential((y,), {})
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
    potential, z = kernel.potential((Y,), {}), {"mu": jnp.asarray(1.0)}
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
    potential, z = kernel.potential((Y,), {}), {"mu": jnp.asarray(0.5)}
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


@pytest.mark.parametrize("with_prior, frozen", [(("net/w", "net/b"), False), (("net/w", "network"), True)])
def test_params_beside_priors_for_all_or_some_of_them(with_prior, frozen, recwarn):
    """As equinox modules: their params keep their values where a prior takes their place."""

    def model(y):
        numpyro.param("net$params", {"w": jnp.ones(2), "b": jnp.ones(1)})
        a, b = (numpyro.sample(name, dist.Normal(0, 1)) for name in with_prior)
        with numpyro.plate("N", N) as rows:
            numpyro.sample("y", dist.Normal(a + b, 1), obs=y[rows])

    SGLD(model, step_size=0.1, batch_size=4).init(random.key(0), 0, None, (Y,), {})
    assert any("'net$params' is frozen" in str(w.message) for w in recwarn) == frozen


def asks_numpy(y, group):
    """As many models do; group counts are static only while the data are NumPy's."""
    with numpyro.plate("groups", len(np.unique(group))):
        effect = numpyro.sample("effect", dist.Normal(jnp.zeros(int(group.max()) + 1), 1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(effect[group[rows]], 1), obs=y[rows])


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_a_model_may_select_rows_by_a_boolean_argument(array):
    def model(y, known):
        y = y[known]
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])

    kernel, arguments = SGLD(model, step_size=0.01, batch_size=4), (array(Y), array(Y > -0.5))
    state = kernel.init(random.key(0), 0, None, arguments, {})
    assert np.isfinite(kernel.sample(state, arguments, {}).z["mu"])
    assert kernel.potential(arguments, {}).plates["N"].size == (Y > -0.5).sum() < N


@pytest.mark.parametrize("keys", [random.key(0), random.split(random.key(0), 2)], ids=["one chain", "two chains"])
@pytest.mark.slow
def test_a_model_may_ask_numpy_about_its_arguments(keys):
    kernel = SGHMC(asks_numpy, step_size=0.01, batch_size=4)
    state = kernel.sample(kernel.init(keys, 0, None, (Y, G), {}), (Y, G), {})
    assert state.z["effect"].shape == (*keys.shape, GROUPS)
    potential, z = kernel.potential((Y, G), {}), {"effect": jnp.zeros(GROUPS)}
    full = potential_energy(asks_numpy, (jnp.asarray(Y), G), {}, z)  # NumPyro itself needs jax arrays for traced rows
    energies = [potential.estimate(z, {"N": rows}) for rows in jnp.arange(N).reshape(3, 4)]
    assert float(np.mean(energies)) == pytest.approx(float(full), rel=1e-10)
