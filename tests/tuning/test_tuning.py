"""The numbers of a kernel, found in its warm-up."""

from dataclasses import replace
from functools import partial
import pickle
import re
import warnings

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer import MCMC, init_to_median
import pytest
from scipy.stats import norm

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    ControlVariate,
    Minibatch,
    Polynomial,
    WithoutReplacement,
    gradient_noise,
    settings,
    weights,
)
from numpyro_sgmcmc.tuning import newton
from numpyro_sgmcmc.tuning.coordinates import Coordinates, LowRank, gradient_in_x, unraveler
from numpyro_sgmcmc.tuning.low_rank import wide_law
from numpyro_sgmcmc.tuning.newton import normal_law
from numpyro_sgmcmc.tuning.noise_samples import OUTLYING, rotation
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Moments, evidence, score_limit, stretch, together
from numpyro_sgmcmc.tuning.search import search
from numpyro_sgmcmc.tuning.start import DESCENTS, best_of_several
from numpyro_sgmcmc.types import Evaluation

KERNELS = [SGHMC, SGLD, SGNHT, MSGNHT]
rng = np.random.default_rng(8)
N, D, NOISE = 2000, 4, 2.0
SCALES = np.array([1e-2, 1.0, 1.0, 1e2])
Z = rng.normal(size=(N, D)) @ np.linalg.cholesky(0.9 + 0.1 * np.eye(D)).T
X = (Z * SCALES).astype(np.float32)
Y = (X @ (1 / SCALES) + NOISE * rng.normal(size=N)).astype(np.float32)
PRIOR = 10 / SCALES


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0, jnp.asarray(PRIOR, jnp.float32)).to_event(1))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, NOISE), obs=y[rows])


def posterior():
    A = X.astype(float)
    precision = A.T @ A / NOISE**2 + np.diag(PRIOR**-2.0)
    return np.linalg.solve(precision, A.T @ Y / NOISE**2), np.linalg.inv(precision)


def tuned(kernel, *args, seed=0, num_warmup=400, num_samples=300, num_chains=32, **options):
    options = {"chain_method": "vectorized", "progress_bar": False} | options
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains, **options)
    mcmc.run(random.key(seed), *args)
    return mcmc


def funnel(y):
    """Centred, its groups hardly observed."""
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    group = numpyro.sample("group", dist.Normal(0, scale).expand([10]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(group[rows % 10], 5.0), obs=y[rows])


@pytest.mark.optimised
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.every(4)
def test_columns_of_unlike_scale_and_correlated(kernel):
    """A regression with its exact posterior: along its axes, where each standard deviation is 1, and its means."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mcmc = tuned(kernel(regression, batch_size=100), X, Y)
    mean, covariance = posterior()
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"], float)
    white = (draws - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    of_chains = white.mean(1)
    assert (np.abs(of_chains.mean(0)) < 5 * of_chains.std(0, ddof=1) / np.sqrt(len(draws)) + 0.01).all()
    second = (white**2).mean(1)
    error = second.std(0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(second.mean(0) - 1) < 5 * error + 0.05).all()
    assert (5 * error < 0.3).all()
    found = settings(mcmc)
    assert found["steps_per_sample"] == np.ceil(1 / np.float32(found["step_size"]))
    assert found["predicted_inflation"] <= 0.0201
    L = np.asarray(found["coordinates"].scale, float)
    np.testing.assert_allclose(np.sqrt(np.diag(L @ L.T) / np.diag(covariance)), 1, atol=0.25)


@pytest.mark.parametrize("chain_method", ["sequential", "parallel"])
@pytest.mark.every(2)
@pytest.mark.slow
def test_chains_that_tune_themselves_one_by_one(chain_method):
    kernel = SGHMC(regression, batch_size=100)
    mcmc = tuned(kernel, X, Y, num_warmup=64, num_samples=8, num_chains=2, chain_method=chain_method)
    found = settings(mcmc)
    assert found["step_size"].shape == (2,) and (found["step_size"] > 0.05).all()
    assert found["coordinates"].scale.shape == (2, D, D)


def test_a_resume_of_single_chains_as_vectorized_ones():
    kernel = SGHMC(models.gaussian, batch_size=models.B)
    one = kernel.init(random.key(0), 1, None, (models.ROWS,), {})
    both = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    with pytest.raises(
        ValueError, match="has settings or checks of its own, .* Resume with the chain_method of the run"
    ):
        kernel.sample(both, (models.ROWS,), {})


@pytest.mark.parametrize("num_chains", [1, 3])
@pytest.mark.parametrize(
    "gradient",
    [
        pytest.param(ControlVariate({"w": jnp.zeros(D)}), marks=pytest.mark.slow),
        pytest.param(SVRG(), marks=pytest.mark.slow),
        SAGA(),
    ],
    ids=repr,
)
def test_estimators_with_a_state_for_each_chain(gradient, num_chains):
    """The noise that the warm-up measures is that of each chain's own state."""
    kernel = SGHMC(regression, batch_size=100, gradient=gradient)
    mcmc = tuned(kernel, X, Y, num_warmup=160, num_samples=100, num_chains=num_chains)
    mean, covariance = posterior()
    z = (mcmc.get_samples()["w"].mean(0) - mean) / np.sqrt(np.diag(covariance))
    assert np.abs(z).max() < 1
    of_one = N if isinstance(gradient, SAGA) else D
    assert jax.tree.leaves(mcmc.last_state.gradient_state)[0].shape[0] == (num_chains if num_chains > 1 else of_one)


@pytest.mark.every(2)
@pytest.mark.parametrize("num_chains", [1, 2])
def test_gradient_noise_after_a_warm_up(num_chains):
    """In the coordinates and with the step size that were found, for the coordinates of z."""
    kernel = SGLD(regression, batch_size=100, gradient=Minibatch())
    mcmc = tuned(kernel, X, Y, num_warmup=64, num_samples=4, num_chains=num_chains)
    noise = gradient_noise(kernel, mcmc.last_state, X, Y)
    shape = (num_chains, D) if num_chains > 1 else (D,)
    assert noise.variance["w"].shape == noise.inflation["w"].shape == shape
    chosen = mcmc.last_state.settings
    added = 0.5 * chosen.step_size * chosen.noise_variance
    expected = chosen.coordinates.variances(added) / chosen.coordinates.variances(jnp.ones(D))
    np.testing.assert_allclose(noise.inflation["w"], np.broadcast_to(expected, shape), rtol=0.4)
    mean, _ = posterior()
    rows = (Y - X @ mean)[:, None] * X / NOISE**2
    np.testing.assert_allclose(
        noise.variance["w"], np.broadcast_to(N**2 / 100 * (1 - 100 / N) * rows.var(0), shape), rtol=0.4
    )


def test_steps_per_draw_that_were_given_are_kept():
    """A schedule counts them."""
    kernel = SGLD(models.gaussian, batch_size=models.B, step_size=Polynomial(None, 50.0, 0.5), steps_per_sample=7)
    mcmc = tuned(kernel, models.ROWS, num_warmup=8, num_samples=9, num_chains=2)
    assert settings(mcmc)["steps_per_sample"] == 7
    found = mcmc.get_extra_fields(group_by_chain=True)["step_size"]
    np.testing.assert_allclose(found[0] / found[0, 0], (1 + 7 * np.arange(9) / 50) ** -0.5, rtol=1e-5)


def test_weights_of_chains_with_different_step_sizes():
    """A chain that has chosen a smaller one counts as much as the others."""
    kernel = SGHMC(models.gaussian, batch_size=models.B)
    options = {"num_warmup": 8, "num_samples": 4, "num_chains": 2}
    mcmc = tuned(kernel, models.ROWS, **options, chain_method="sequential")
    half = jnp.array([1.0, 0.5])
    state = mcmc.last_state
    mcmc.post_warmup_state = state._replace(settings=replace(state.settings, step_size=state.settings.step_size * half))
    mcmc.run(state.rng_key, models.ROWS)
    h = mcmc.get_extra_fields(group_by_chain=True)["step_size"]
    assert (h[1] < 0.6 * h[0]).all()
    np.testing.assert_allclose(weights(mcmc, group_by_chain=True), 1 / 8, rtol=1e-6)


@pytest.mark.slow
def test_a_resume_goes_on_with_what_was_found():
    mcmc = tuned(SGHMC(regression, batch_size=100), X, Y, num_warmup=64, num_samples=8, num_chains=2)
    before = settings(mcmc)
    mcmc.post_warmup_state = pickle.loads(pickle.dumps(mcmc.last_state))
    mcmc.run(mcmc.post_warmup_state.rng_key, X, Y)
    after = settings(mcmc)
    assert all(before[name] == after[name] for name in ("step_size", "steps_per_sample", "passes", "scores"))
    assert (before["coordinates"].scale == after["coordinates"].scale).all()


def test_after_the_warm_up_its_moments_cost_nothing():
    """Only loops take them, which change them in place: a conditional would copy them in each transition."""
    kernel = SGHMC(regression, batch_size=100)
    state = kernel.init(random.key(0), 80, None, (X, Y), {})
    transition = jax.make_jaxpr(lambda state: kernel.sample(state, (X, Y), {}))(state)
    shapes = {x.shape for x in jax.tree.leaves(state.warm_up.moments) if x.size > D**2}
    takes = [eqn for eqn in transition.eqns if any(getattr(var.aval, "shape", ()) in shapes for var in eqn.invars)]
    assert len(shapes) > 1 and {eqn.primitive.name for eqn in takes} == {"while"}


@pytest.mark.slow
def test_the_law_is_frozen_after_half_of_the_warm_up():
    kernel = SGHMC(regression, batch_size=100)
    state = kernel.init(random.split(random.key(0), 4), 80, None, (X, Y), {})
    traces = []  # what jit still holds in its cache depends on the tests before

    @jax.jit
    def sample(state):
        traces.append(state)
        return kernel.sample(state, (X, Y), {})

    names = "coordinates", "step_size", "noise_variance"
    numbers = lambda s: ([getattr(s.settings, name) for name in names], s.gradient_state)  # noqa: E731
    changes = []
    for t in range(90):
        new = sample(state)
        if jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), numbers(state), numbers(new))).count(True):
            changes.append(t)
        state = new
    assert changes == [0, 10, 20, 40]
    assert len(traces) == 1


@pytest.mark.parametrize("draws, repeated", [(20, 1), (30, 1), (40, 1), (60, 2), (100, 2)])
def test_draws_of_the_right_law_stretch_nothing(draws, repeated):
    """Also where they are fewer than the coordinates, or some are the same: some directions then look narrow."""
    d, chains = 100, 4
    x = np.repeat(rng.normal(size=(draws // repeated, chains, d)), repeated, 0)
    moments = Moments.zeros(jnp.zeros((2, chains, d)))
    for k, at in enumerate(jnp.asarray(x, jnp.float32)):
        moments = moments.add(k * BLOCKS // draws, at, at, at)
    factors, _ = stretch(moments, evidence(moments))
    assert (factors == 1).all(), np.sort(factors)


@pytest.mark.every(2)
@pytest.mark.parametrize("data", range(2))
def test_a_funnel_is_not_called_right(data):
    """
    As the model is written; the centring that the warm-up would choose is right in four steps a draw. The scores of the
    warm-up and of the draws are near their limits: of seven runs, all without the verdict right, five ended with a
    warning.
    """
    y = np.random.default_rng(data).normal(size=50).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc = tuned(SGHMC(funnel, batch_size=10, centering=False), y, num_warmup=1600)
    assert settings(mcmc)["verdict"] in ("doubtful", "wrong")


def test_the_search_is_not_drawn_into_the_pit_of_a_hierarchy():
    """The density of a centred hierarchy has no bound where its scale is 0; its mass lies elsewhere."""
    y = np.random.default_rng(0).normal(size=50).astype(np.float32)
    potential = SGHMC(funnel, batch_size=10).potential((y,), {})
    start = {name: jnp.zeros((1, *site.shape), site.dtype) for name, site in potential.prototype.items()}
    find = jax.jit(lambda starts, key: search(potential, starts, key).coordinates.center)
    assert abs(unraveler(potential.prototype)(find(start, random.key(0)))["scale"]) < 2
    for key in random.split(random.key(1), 4):  # from the ends of descents, which another descent cannot improve
        ends = SGHMC(funnel, batch_size=10).init(random.split(key, 8), 100, None, (y,), {}).z
        assert abs(unraveler(potential.prototype)(find(ends, key))["scale"]) < 2


@pytest.mark.parametrize("mean, expected", [(1.0, 1.0), (2.0, 0.0)])
def test_the_mean_of_a_normal_may_be_worse_than_an_end(mean, expected, monkeypatch):
    """Of a descent, by as much as the energy of draws exceeds that of the mode; then the normal is not too wide."""
    monkeypatch.setattr(
        "numpyro_sgmcmc.tuning.search.mean_field", lambda potential, z, *_: ({"z": 0 * z["z"] + mean}, z)
    )
    monkeypatch.setattr("numpyro_sgmcmc.tuning.search.normal_law", lambda energy, law, *rest: (law, 0))
    potential = SGHMC(lambda: numpyro.sample("z", dist.Normal(0, 1))).potential((), {})
    assert search(potential, {"z": jnp.zeros(1)}, random.key(0)).coordinates.center == expected


def half_without_gradient():
    z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.factor("root", -jnp.sqrt(jnp.maximum(-z, 0)))  # its derivative is 0 / 0 where z > 0


@pytest.mark.parametrize("starts, expected", [([1.0, -1.5, 2.0], -1.5), ([1.0], 1.0)])
def test_the_search_begins_where_the_gradient_is_finite(starts, expected, monkeypatch):
    """The energies are smaller where it is not, and no step leads out of there."""
    monkeypatch.setattr("numpyro_sgmcmc.tuning.search.mean_field", lambda potential, z, *keys: (z, z))
    monkeypatch.setattr("numpyro_sgmcmc.tuning.search.normal_law", lambda energy, law, *rest: (law, 0))
    potential = SGHMC(half_without_gradient).potential((), {})
    assert search(potential, {"z": jnp.asarray(starts)}, random.key(0)).coordinates.center == expected


def three_components(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    ordered = dist.TransformedDistribution(dist.Normal(0, 5).expand([3]).to_event(1), OrderedTransform())
    means, sds = numpyro.sample("means", ordered), numpyro.sample("sds", dist.HalfNormal(2).expand([3]).to_event(1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, sds)), obs=y[rows])


def test_the_start_is_in_the_mode_with_the_mass():
    """One descent ends in another mode for some keys, 100 nats higher or more, where all chains would agree."""
    rng = np.random.default_rng(0)
    which = rng.choice(3, 2000, p=[0.5, 0.3, 0.2])
    y = np.array([-4.0, 0.0, 5.0])[which] + np.array([0.5, 1.0, 1.5])[which] * rng.normal(size=2000)
    truth = {
        "weights": jnp.array([0.5, 0.3, 0.2]), "means": jnp.array([-4.0, 0.0, 5.0]), "sds": jnp.array([0.5, 1.0, 1.5])
    }  # fmt: skip
    potential = SGHMC(three_components).potential((y.astype(np.float32),), {})

    def energy(z):
        return potential.estimate(z, {"N": jnp.arange(len(y))}, random.key(0))

    def above_the_truth(key, descents):
        z = best_of_several(potential, key, potential.some_rows(), descents)
        return energy(z) - energy(potential.unconstrain(truth))

    keys = random.split(random.key(0), 8)
    one, several = (jax.jit(jax.vmap(partial(above_the_truth, descents=k)))(keys) for k in (1, DESCENTS))
    assert (one > 100).sum() >= 3 and (several < 30).all()


def test_the_number_of_descents():
    """
    16 for all chains together, on few rows also if the chains use all of them; fewer if no minibatch can be taken, and
    none if the position is given. A chain with a given step size has no descents.
    """

    def counted(kernel, chains, *args):
        potential = kernel.potential(args, {})
        of_few_rows, number = kernel.chain_for(potential).descents(potential, chains)
        return number, of_few_rows.plates

    def without_a_plate(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=y)

    y = np.zeros(6000, np.float32)
    assert [counted(SGHMC(three_components), chains, y)[0] for chains in (1, 4, 100)] == [16, 4, 1]
    assert counted(SGHMC(three_components, batch_size={}), 1, y) == (16, {"N": (6000, 500)})
    assert counted(SGHMC(three_components, init_strategy=init_to_median), 1, y)[0] == 0
    assert counted(SGHMC(three_components, batch_size={}), 1, y[:100]) == (16, {})
    assert [counted(SGHMC(without_a_plate), 1, x) for x in (y[:2000], y)] == [(16, {}), (8, {})]


def test_a_start_for_all_rows_is_that_of_the_best_of_several_descents_on_few_rows():
    y = np.zeros(2000, np.float32)
    state = SGHMC(three_components, batch_size={}).init(random.key(0), 100, None, (y,), {})
    assert state.settings.passes == 16 * 1000 * 100 / len(y)


def test_a_given_start_is_not_replaced():
    kernel, y = SGHMC(three_components), np.zeros(2000, np.float32)
    given = {name: 0.5 + jnp.zeros(site.shape) for name, site in kernel.potential((y,), {}).prototype.items()}
    state = kernel.init(random.key(0), 100, given, (y,), {})
    assert all((state.z[name] == 0.5).all() for name in given) and state.settings.passes == 0
    assert kernel.init(random.key(0), 100, None, (y,), {}).settings.passes == 16 * 1000 * 100 / len(y)


def test_a_start_without_a_finite_gradient_is_the_origin():
    def nowhere():
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.factor("root", jnp.sqrt(0 * z))

    potential = SGHMC(nowhere).potential((), {})
    assert best_of_several(potential, random.key(0), {})["z"] == 0


def test_the_limit_of_the_scores_is_that_of_chance():
    """Of the worst of all scores of blocks of normal draws, for few and for many of them."""
    for chains, d in [(1, 4), (1, 100), (4, 100)]:
        blocks = np.random.default_rng(1).normal(size=(1000, BLOCKS * chains, 2 * d))
        z = np.abs(blocks.mean(1) / (blocks.std(1, ddof=1) / np.sqrt(blocks.shape[1]))).max(1)
        beyond = (z > score_limit(d, chains)).mean()
        assert beyond < 0.006, (chains, d)
        assert (z > 0.8 * score_limit(d, chains)).mean() > 0.004, (chains, d)


@pytest.mark.slow
def test_a_warm_up_too_short_for_rounds_still_finds_coordinates():
    mcmc = tuned(SGHMC(regression, batch_size=100), X, Y, num_warmup=0, num_samples=4, num_chains=2)
    assert settings(mcmc)["step_size"] > 0.05
    assert settings(mcmc)["scores"]["gradient"] == 0


def test_without_a_batch_size():
    kernel = SGHMC(regression)
    assert kernel.potential((X, Y), {}).plates["rows"].batch_size == 500
    assert kernel.potential((X[:900], Y[:900]), {}).plates == {}
    assert SGHMC(regression, step_size=1e-3).potential((X, Y), {}).plates == {}


@pytest.mark.parametrize("dense_mass", [False, [("a", "c")]])
@pytest.mark.slow
def test_coordinates_in_blocks(dense_mass):
    def model(x):
        a = numpyro.sample("a", dist.Normal(0, 3))
        b = numpyro.sample("b", dist.Normal(0, 3).expand([2]).to_event(1))
        c = numpyro.sample("c", dist.Normal(0, 3))
        with numpyro.plate("rows", len(x)) as rows:
            numpyro.sample("x", dist.Normal(a + b.sum() + 10 * c, 1), obs=x[rows])

    kernel = SGHMC(model, batch_size=100, dense_mass=dense_mass)
    scale = settings(tuned(kernel, X[:, 1], num_warmup=80, num_samples=1))["coordinates"].scale
    coupled = np.abs(np.asarray(scale)) > 0
    together = np.zeros((4, 4), bool) if dense_mass is False else np.array([[1, 0, 0, 1]]).T @ [[1, 0, 0, 1]] > 0
    np.testing.assert_array_equal(coupled, together | np.eye(4, dtype=bool))


def test_settings_are_a_dict_that_cannot_be_changed():
    """Of the names that the documentation has. A kernel takes them, from a pickle and as a dict as well."""
    kernel = SGHMC(models.gaussian, batch_size=models.B)
    found = settings(tuned(kernel, models.ROWS, num_warmup=8, num_samples=1, num_chains=1))
    names = re.findall(r"^ *- \*\*(.*)\*\* - ", settings.__doc__, re.M)
    names = [name for group in names for name in group.split("** or **")]
    assert sorted([*found, "diffusion"]) == sorted(names) and len(found) == len(names) - 1
    assert "friction" in found and "diffusion" not in found and "noise_variance" not in found
    assert type(found["step_size"]) is float
    assert [line.split()[0] for line in repr(found).splitlines()] == list(found)
    with pytest.raises(KeyError, match="diffusion"):
        found["diffusion"]
    with pytest.raises(TypeError, match="cannot be changed"):
        found["step_size"] = 1.0
    for given in (found, pickle.loads(pickle.dumps(found)), dict(found)):
        known = SGLD(models.gaussian, batch_size=models.B, settings=given).chain.known
        np.testing.assert_array_equal(known["coordinates"].scale, found["coordinates"].scale)


@pytest.mark.slow
def test_a_run_can_start_with_the_settings_of_another():
    found = settings(tuned(SGHMC(regression, batch_size=100), X, Y, num_warmup=80, num_samples=1))
    kernel = SGLD(regression, batch_size=200, settings=found)
    again = tuned(kernel, X, Y, num_warmup=0, num_samples=1)
    assert settings(again)["passes"] == 1  # that of the control variate: there is no search
    np.testing.assert_array_equal(settings(again)["coordinates"].center, found["coordinates"].center)
    covariances = (s @ s.T for s in (np.asarray(f["coordinates"].scale, float) for f in (found, settings(again))))
    np.testing.assert_allclose(*covariances, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="4 unconstrained coordinates; this one has 11"):
        tuned(SGHMC(funnel, batch_size=10, settings=found), Y[:50], num_chains=1)


@pytest.mark.parametrize("threads", ["1", "2", None])
def test_slow_threads_are_told(threads, monkeypatch, caplog):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    with caplog.at_level("INFO", logger="numpyro_sgmcmc"):
        SGHMC(regression, batch_size=100).init(random.key(0), 4, None, (X, Y), {})
    told = [record.message for record in caplog.records if "OPENBLAS_NUM_THREADS=1" in record.message]
    assert len(told) == (jax.default_backend() == "cpu" and threads != "1")


@pytest.mark.slow
def test_stages_and_what_was_found_are_logged_once(caplog):
    with caplog.at_level("INFO", logger="numpyro_sgmcmc"):
        mcmc = tuned(SGHMC(regression, batch_size=100), X, Y, num_warmup=400, num_samples=4, num_chains=4)
    start, search, record = caplog.records
    (passes,) = re.findall(r"in 4 coordinates: about (\d+) passes", start.message)
    assert 0.3 < int(passes) / settings(mcmc)["passes"] < 3
    assert "compiling the search" in search.message
    assert f"step_size {settings(mcmc)['step_size']:.3g}" in record.message and "right" in record.message
    assert settings(mcmc)["verdict"] == "unchecked"  # four draws are too few


@pytest.mark.slow
def test_steps_decrease_from_the_one_that_was_found():
    kernel = SGLD(regression, batch_size=100, step_size=Polynomial(None, 50.0, 0.5))
    mcmc = tuned(kernel, X, Y, num_warmup=80, num_samples=9, num_chains=2)
    h, steps = settings(mcmc)["step_size"], settings(mcmc)["steps_per_sample"]
    found = mcmc.get_extra_fields(group_by_chain=True)["step_size"]
    np.testing.assert_allclose(found, np.tile(h * (1 + np.arange(9) * steps / 50) ** -0.5, (2, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"step_size": 0.1, "dense_mass": False}, ValueError, "used only if the warm-up chooses the step size"),
        ({"step_size": 0.1, "settings": {}}, ValueError, "used only if the warm-up chooses the step size"),
        ({"dense_mass": "w"}, ValueError, "list of tuples"),
        ({"dense_mass": ["w"]}, ValueError, "list of tuples"),
        ({"settings": {"step_size": 0.1}}, TypeError, "the result of numpyro_sgmcmc.settings"),
    ],
)
def test_found_numbers_that_do_not_go_together(options, error, match):
    with pytest.raises(error, match=match):
        SGHMC(regression, batch_size=100, **options)


@pytest.mark.parametrize(("dense_mass", "match"), [([("v",)], "no latent site"), ([("w",), ("w",)], "twice")])
def test_blocks_of_sites_that_are_not_there(dense_mass, match):
    with pytest.raises(ValueError, match=match):
        SGHMC(regression, batch_size=100, dense_mass=dense_mass).init(random.key(0), 0, None, (X, Y), {})


def test_chains_mapped_by_vmap_are_refused():
    with pytest.raises(ValueError, match="vectorized"):
        tuned(SGHMC(regression, batch_size=100), X, Y, num_warmup=2, num_chains=2, chain_method=jax.vmap)


def test_too_many_coordinates():
    def model(d):
        numpyro.sample("w", dist.Normal(0, 1).expand([d]).to_event(1))

    with pytest.raises(ValueError, match="100001 unconstrained coordinates.*step_size"):
        SGHMC(model).init(random.key(0), 0, None, (100_001,), {})
    with pytest.raises(ValueError, match="dense_mass.*more than 1000"):
        SGHMC(model, dense_mass=[("w",)]).init(random.key(0), 0, None, (1001,), {})


def test_numbers_that_do_not_go_together():
    with pytest.raises(ValueError, match="center"):
        SGHMC(regression, step_size=1e-3, gradient=ControlVariate(), batch_size=100)
    with pytest.raises(ValueError, match="inverse_mass_matrix"):
        SGHMC(regression, inverse_mass_matrix={"w": np.ones(D)}, batch_size=100)
    with pytest.raises(ValueError, match="a kernel whose warm-up chose the step size"):
        mcmc = MCMC(SGHMC(models.gaussian, step_size=1e-3), num_warmup=1, num_samples=1, progress_bar=False)
        mcmc.run(random.key(0), models.ROWS)
        settings(mcmc)


def test_a_start_that_is_not_finite_is_an_error():
    with pytest.raises(ValueError, match="'y'"):
        tuned(SGHMC(regression, batch_size=100), X, np.full_like(Y, np.nan), num_chains=1)


CENTER = jnp.asarray([1.0, -2.0, 0.5])
WIDTH = jnp.asarray([1.0, 1.5, 2.0])
ALONG = jnp.asarray([[0.6], [0.0], [0.8]])


@pytest.mark.parametrize(
    "coordinates",
    [
        Coordinates(CENTER, jnp.asarray(rng.normal(size=(3, 3)), jnp.float32)),
        LowRank(CENTER, WIDTH, ALONG, jnp.asarray([3.0])),
        LowRank(CENTER, WIDTH, ALONG[:, :0], jnp.zeros(0)),
    ],
    ids=["matrix", "low rank", "diagonal"],
)
def test_gradients_in_x_are_those_of_the_potential_in_x(coordinates):
    prototype = {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}
    unravel = unraveler(prototype)
    energy = lambda z: jnp.sum(jnp.sin(z["a"]) * z["b"]) + z["b"] ** 2  # noqa: E731
    x = jnp.asarray([0.3, -0.7, 1.1])
    estimate = gradient_in_x(lambda z: Evaluation(energy(z), jax.grad(energy)(z), ()), coordinates, prototype)(x)
    exact = jax.grad(lambda x: energy(unravel(coordinates.to_z(x))))(x)
    np.testing.assert_allclose(estimate.gradient, exact, rtol=2e-5)
    np.testing.assert_allclose(coordinates.to_x(coordinates.to_z(x)), x, rtol=1e-4)
    np.testing.assert_allclose(coordinates.to_z(x) - coordinates.center, coordinates.matrix() @ x, rtol=1e-4)
    variances = jnp.asarray([0.5, 2.0, 0.1])
    np.testing.assert_allclose(coordinates.variances(variances), coordinates.matrix() ** 2 @ variances, rtol=1e-4)


def quantiles(size):
    """Half of a grid in two dimensions of quantiles of N(0, 1), one of each antithetic pair: draws without luck."""
    q = norm.ppf((np.arange(size) + 0.5) / size)
    q = (q / q.std()).astype(np.float32)
    return jnp.asarray(np.stack(np.meshgrid(q[size // 2 :], q), -1).reshape(-1, 2))


def test_newton_whitens_what_float32_cannot_see_in_z():
    """Standard deviations from 1e-3 to 1e3 along axes that are turned."""
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    root = (turn * np.array([1e3, 30.0, 1.0, 0.03, 1e-3])).astype(np.float32)
    inverse = np.linalg.inv(root.astype(float)).astype(np.float32)
    mode = jnp.asarray([1.0, 2.0, -1.0, 0.0, 3.0])
    energy = lambda k: lambda z: 0.5 * jnp.sum((inverse @ (z - mode)) ** 2)  # noqa: E731, ARG005
    draws = jnp.asarray(rng.normal(size=(16, 5)), jnp.float32)
    found, _ = normal_law(energy, Coordinates(jnp.zeros(5), jnp.eye(5)), draws, 1, 1, 8, random.key(0))
    white = inverse.astype(float) @ np.asarray(found.scale, float)
    np.testing.assert_allclose(np.linalg.svd(white, compute_uv=False), 1, atol=0.05)
    np.testing.assert_allclose(inverse.astype(float) @ np.asarray(found.center - mode, float), 0, atol=0.2)


def test_the_search_begins_in_coordinates_that_are_far_too_wide():
    """The energy of a draw is up to exp(70): no step of c would be right before L is narrow."""
    a = jnp.asarray([30.0, 1.0])
    energy = lambda k: lambda z: jnp.sum(jnp.exp(a * z) - 3 * a * z)  # noqa: E731, ARG005
    draws = jnp.asarray(rng.normal(size=(16, 2)), jnp.float32)
    found, _ = normal_law(energy, Coordinates(jnp.full(2, 0.1), jnp.eye(2)), draws, 1, 1, 32, random.key(0))
    np.testing.assert_allclose(found.center * a, np.log(3) - 1 / 6, atol=0.3)
    np.testing.assert_allclose(np.diag(found.scale) * a, 3**-0.5, rtol=0.2)


@pytest.mark.parametrize("parts", [1, 40])
def test_the_normal_law_of_the_largest_bound_is_found(parts, monkeypatch):
    """
    The logarithm of a Gamma(a, 1): E[dU] = 0 and E[d^2U] = 1 / v give v = 1 / a and m = log a - v / 2, half a variance
    below the mode. A part of the data alone would be as far off as their slopes say, which are 0 in the mean.
    """
    monkeypatch.setattr(newton, "ROUND", 1.01)
    monkeypatch.setattr(newton, "CENTRED", 1e-4)
    a = jnp.asarray([3.0, 12.0])
    slopes = jnp.asarray(rng.normal(size=(parts, 2)) * 5, jnp.float32)
    slopes = slopes - slopes.mean(0)
    energy = lambda k: lambda z: jnp.sum(jnp.exp(z) - a * z + slopes[k] * z)  # noqa: E731
    draws = quantiles(40)
    found, _ = normal_law(energy, Coordinates(jnp.zeros(2), jnp.eye(2)), draws, parts, 1, 2 * len(draws), random.key(0))
    v = 1 / np.asarray(a)
    np.testing.assert_allclose(found.center, np.log(a) - v / 2, atol=0.08 * np.sqrt(v).min())
    np.testing.assert_allclose(found.scale @ found.scale.T, np.diag(v), rtol=0.06, atol=0.01)


@pytest.mark.parametrize("low_rank", [True, False])
def test_directions_that_a_diagonal_does_not_see_are_stretched(low_rank):
    """A precision with five eigenvalues that are not 1, in coordinates of unlike width."""
    d, odd = 60, np.array([400.0, 50.0, 9.0, 0.2, 0.02])
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    A = (axes * np.r_[odd, np.ones(d - len(odd))]) @ axes.T
    width = np.geomspace(1e-2, 1e2, d)
    H = jnp.asarray(A / width / width[:, None], jnp.float32)
    energy = lambda k: lambda z: 0.5 * z @ H @ z  # noqa: E731, ARG005
    law, curvature = wide_law(energy, jnp.zeros(d), jnp.asarray(width, jnp.float32), 1, random.key(0), low_rank)
    L = np.asarray(law.matrix(), float)
    values = np.linalg.eigvalsh(L.T @ np.asarray(H, float) @ L)
    if low_rank:
        np.testing.assert_allclose(values, 1, atol=0.05)
        np.testing.assert_allclose(law.vectors.T @ law.vectors, np.eye(16), atol=1e-4)
    else:
        np.testing.assert_allclose(L, np.diag(width), rtol=1e-6)
    assert values.max() < 1.05 * curvature < 1.1 * values.max()


@pytest.mark.slow
def test_coordinates_without_a_matrix(monkeypatch):
    """60 groups and what they have in common, whose sum is known much better than each of them."""
    monkeypatch.setattr("numpyro_sgmcmc.tuning.coordinates.DENSE", 40)
    groups, size = 60, 20
    group = np.arange(groups * size) % groups
    y = (2 + rng.normal(size=groups)[group] + rng.normal(size=groups * size)).astype(np.float32)

    def model(group, y):
        common = numpyro.sample("common", dist.Normal(0, 3))
        own = numpyro.sample("own", dist.Normal(0, 1).expand([groups]).to_event(1))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(common + own[group[rows]], 1), obs=y[rows])

    mcmc = tuned(SGHMC(model, batch_size=200), group, y, num_chains=16)
    design = np.c_[np.ones(len(y)), np.eye(groups)[group]]
    covariance = np.linalg.inv(design.T @ design + np.diag(np.r_[1 / 9, np.ones(groups)]))
    mean, sd = covariance @ design.T @ y, np.sqrt(np.diag(covariance))
    samples = mcmc.get_samples()
    draws = np.c_[samples["common"], samples["own"]]
    np.testing.assert_allclose((draws.mean(0) - mean) / sd, 0, atol=0.15)
    np.testing.assert_allclose(draws.std(0) / sd, 1, atol=0.1)
    found = settings(mcmc)
    assert isinstance(found["coordinates"], LowRank) and found["coordinates"].factors.size == 16
    assert found["verdict"] == "right"
    for kernel in (
        SGHMC(model, batch_size=200, settings=found),
        SGHMC(model, batch_size=200, dense_mass=False),
    ):
        again = settings(tuned(kernel, group, y, num_warmup=1, num_samples=1, num_chains=2))
        diagonal = again["coordinates"].factors.size == 0
        assert diagonal == (kernel.chain.dense_mass is False) == (again["curvature"] > 2)


@pytest.mark.optimised
@pytest.mark.slow
def test_the_noise_is_that_of_the_gradient_in_the_coordinates_that_were_found():
    """Plain minibatches of a regression: the covariance of the rows' gradients, which a stretched L must carry over."""
    # of the few blocks that 2000 rows have, the covariance is another
    kernel = SGHMC(regression, batch_size=100, gradient=Minibatch(), rows=WithoutReplacement())
    chosen = tuned(kernel, X, Y, num_warmup=80, num_samples=1).last_state.settings
    mean, _ = posterior()
    rows = -(Y - X @ mean)[:, None] * X / NOISE**2
    S = N**2 / 100 * (1 - 100 / N) * np.cov(rows.T)
    L = np.asarray(chosen.coordinates.scale, float)
    S = L.T @ S @ L
    np.testing.assert_allclose(chosen.noise_variance, np.diag(S), rtol=0.2)
    np.testing.assert_allclose(S, np.diag(np.diag(S)), atol=0.1 * S.max())


def moments_of(x, first, second):
    """Of arrays with axes draws, chains, d."""
    moments = Moments.zeros(jnp.zeros((7, *x.shape[1:])))
    add = jax.jit(Moments.add)
    for t in range(len(x)):
        moments = add(moments, t * BLOCKS // len(x), x[t], first[t], second[t])
    return moments


@pytest.mark.parametrize(("stretched", "shifted"), [(1.0, 0.0), (1.3, 0.0), (1.0, 0.6)])
def test_the_check_sees_draws_that_are_too_wide_or_beside(stretched, shifted):
    """U = |x|^2 / 2 with noisy gradients; draws of variance ``stretched``, of mean ``shifted`` in one coordinate."""
    x = rng.normal(size=(400, 4, 3)).astype(np.float32)
    x[..., 1] = x[..., 1] * np.sqrt(stretched) + shifted
    noise = 0.5 * rng.normal(size=(2, *x.shape)).astype(np.float32)
    found = evidence(moments_of(x, x + noise[0], x + noise[1]))
    good = [0, 2] if stretched != 1 or shifted else [0, 1, 2]
    assert (np.abs(found.gradient)[jnp.array(good)] < 4).all()
    assert (np.abs(found.virial)[jnp.array(good)] < 4).all()
    assert bool(found.virial[1] > 4.5) == (stretched > 1)
    assert bool(found.gradient[1] > 4.5) == (shifted > 0)
    assert (found.r_hat < 1.05).all()


@pytest.mark.parametrize("persistence", [0.0, 0.9, 0.98])
def test_effective_draws_of_the_slowest_coordinate(persistence):
    """Of two coordinates, one a first-order autoregression: (1 - a) / (1 + a) effective draws of each draw."""
    draws, chains = 4000, 8
    x = np.zeros((draws, chains, 2))
    noise = rng.normal(size=x.shape)
    x[0] = noise[0]
    a = np.array([0.0, persistence])
    for t in range(1, draws):
        x[t] = a * x[t - 1] + np.sqrt(1 - a**2) * noise[t]
    moments = Moments.zeros(jnp.zeros((1, chains, 2)))
    blocks = jnp.asarray(x, jnp.float32).reshape(BLOCKS, -1, chains, 2)
    sums = jnp.stack([blocks, blocks**2, blocks, blocks**2], 2).sum(1)
    moments = moments._replace(draws=jnp.asarray(float(draws)), blocks=sums)
    expected = (1 - persistence) / (1 + persistence)
    found = float(evidence(moments).slowest)
    # 80 means of blocks: a standard error of a sixth, and the smaller of two where both coordinates are alike
    assert 0.6 * expected < found < 1.4 * expected + 0.01


@pytest.mark.slow
def test_new_coordinates_leave_everything_where_it_is():
    """Positions, and the places at which the noise is measured, are the same z after L is stretched and c has moved."""
    kernel = SGHMC(regression, batch_size=100)
    state = kernel.init(random.split(random.key(0), 4), 80, None, (X, Y), {})
    chains = kernel.chains_for(kernel.potential((X, Y), {}))
    root = np.linalg.cholesky(np.cov(rng.normal(size=(D, 2 * D)))).astype(np.float32)
    draws = jnp.asarray(rng.normal(size=(200, 4, D)) @ (5 * root).T + 1, jnp.float32)
    moments = moments_of(draws, draws, draws)._replace(places=draws[:50])
    warm_up = state.warm_up._replace(moments=moments, transition=jnp.asarray(20))
    old, operands = state.settings, (warm_up, draws[-1], state.gradient_state)
    change = partial(chains.chain.tuner._change, chains.potential, state.z, random.key(1), evidence(moments), jnp.inf)
    new, warm_up, x, _ = change(old, *operands)
    assert np.abs(new.coordinates.scale - old.coordinates.scale).max() > 1
    into_z = lambda chosen, x: np.asarray(jax.vmap(chosen.coordinates.to_z)(x.reshape(-1, D)))  # noqa: E731
    np.testing.assert_allclose(into_z(new, x), into_z(old, draws[-1]), atol=1e-3)
    np.testing.assert_allclose(into_z(new, warm_up.moments.places), into_z(old, draws[:50]), atol=1e-3)


@pytest.mark.slow
def test_the_noise_is_measured_at_the_draws_of_the_round_alone():
    """With a control variate it grows with the distance from c. Places beyond the draws of the round change nothing."""
    kernel = SGHMC(regression, batch_size=100)
    state = kernel.init(random.split(random.key(0), 4), 80, None, (X, Y), {})
    chains = kernel.chains_for(kernel.potential((X, Y), {}))
    draws = jnp.asarray(rng.normal(size=(20, 4, D)), jnp.float32)
    places = len(state.warm_up.moments.places)

    @jax.jit
    def variance(beyond):
        rest = jnp.full((places - len(draws), 4, D), beyond)
        moments = moments_of(draws, draws, draws)._replace(places=jnp.concatenate([draws, rest]))
        warm_up = state.warm_up._replace(moments=moments, transition=jnp.asarray(20))
        of_chains = state.z, state.phase, state.gradient_state
        new, *_ = chains.chain.tuner.before(chains.potential, state.settings, warm_up, *of_chains, random.key(1))
        return new.noise_variance

    np.testing.assert_allclose(variance(0.0), variance(30.0), rtol=1e-3)


@pytest.mark.parametrize("transition", [300, 400])
@pytest.mark.parametrize("beside", [0.0, 3.0, np.nan])
def test_a_step_whose_draws_fail_the_last_check_is_halved(beside, transition):
    """
    Nothing changes after 3/4 and at the end of the warm-up unless the gradients at the draws are beside 0, or no
    numbers. The scores of 3/4 count at the end unless there was a correction.
    """
    kernel = SGHMC(regression, batch_size=100)
    state = kernel.init(random.split(random.key(0), 4), 400, None, (X, Y), {})
    chains = kernel.chains_for(kernel.potential((X, Y), {}))
    draws = jnp.asarray(rng.normal(size=(200, 4, D)), jnp.float32)
    old = replace(state.settings, step_size=jnp.asarray(0.3))
    warm_up = state.warm_up._replace(
        moments=moments_of(draws, draws + beside, draws + beside),
        transition=jnp.asarray(transition),
        largest=jnp.asarray(0.3),
    )
    of_chains = state.z, state.phase
    before = jax.jit(lambda *of: chains.chain.tuner.before(chains.potential, *of)[:2])
    new, warm_up = before(old, warm_up, *of_chains, state.gradient_state, random.key(1))
    scores = new.scores.gradient if transition == 400 else jnp.abs(warm_up.earlier[0]).max()
    if transition == 400:
        assert (scores <= warm_up.score_limit) == (beside == 0)
    else:
        assert (scores > 0) == (beside == 0)
    assert warm_up.largest == pytest.approx(0.15 if beside else 0.3)
    assert new.step_size <= 0.15 if beside else new.step_size == old.step_size
    assert (new.coordinates.center == old.coordinates.center).all() == (beside != 3)
    assert warm_up.begun == (transition if beside or transition == 300 else 0)


def test_the_scores_of_two_rounds():
    """Of z-scores that are standard normal each, as z-scores; without an earlier round, that of the later one."""
    x = rng.normal(size=(400, 4, 3)).astype(np.float32)
    found = evidence(moments_of(x, x + 0.3, x + 0.3))
    both = together(found, jnp.stack([found.gradient, found.virial]))
    np.testing.assert_allclose(both.gradient, found.gradient * np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(both.virial, found.virial * np.sqrt(2), rtol=1e-5)
    alone = together(found, jnp.zeros((2, 3)))
    np.testing.assert_array_equal(alone.gradient, found.gradient)


def test_noise_that_is_not_finite_does_not_count():
    noise = rng.normal(size=(40_000, 3)).astype(np.float32)
    some = np.where(np.arange(40_000)[:, None] % 4 == 0, np.nan, noise)
    (variance, error, _), axes = rotation(jnp.asarray(some))
    assert np.isfinite(axes).all() and np.isfinite(error).all()
    np.testing.assert_allclose(variance, np.ones(3), rtol=5 * np.sqrt(2 / 15_000))


@pytest.mark.slow
def test_draws_become_longer_where_they_depend_on_each_other():
    """Two coordinates that go together, in coordinates that are not to be turned."""

    def model():
        L = jnp.linalg.cholesky(jnp.asarray([[1.0, 0.9], [0.9, 1.0]]))
        numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(2), scale_tril=L))

    size = {"num_warmup": 1000, "num_samples": 1, "num_chains": 16}
    found = [settings(tuned(SGHMC(model, dense_mass=dense), **size)) for dense in (True, False)]
    steps = [run["steps_per_sample"] * run["step_size"] for run in found]
    assert 1 <= steps[0] < 1.3 and 3 < steps[1] < 4.3


def test_rounds_stretch_what_draws_show():
    covariance = np.diag([1.0, 1.0, 9.0])
    x = (rng.normal(size=(400, 4, 3)) @ np.sqrt(covariance)).astype(np.float32)
    moments = moments_of(x, x, x)
    factors, vectors = stretch(moments, evidence(moments))
    np.testing.assert_allclose((vectors * factors) @ vectors.T, np.diag([1, 1, 3.0]), atol=0.15)
    np.testing.assert_array_equal(np.sort(moments.places, 0), np.sort(x[-7:], 0))


@pytest.mark.parametrize("samples, far", [(200, [0]), (4000, [0, -1])])
def test_axes_turn_to_the_noise(samples, far):
    """
    A few samples far out, as those of places that no chain goes to, count for little. The first half gives the axes and
    the second the variances: a sample far out in it adds 20 chi^2 / half to them at most, 30 being far in its tail.
    """
    S = np.array([[2.0, 1.5, 0], [1.5, 2.0, 0], [0, 0, 0.1]])
    S = np.kron(np.eye(10), S)
    noise = (rng.normal(size=(samples, 30)) @ np.linalg.cholesky(S).T).astype(np.float32)
    noise[far] *= 1e3
    (variance, *_), axes = rotation(jnp.asarray(noise))
    turned = axes.T @ S @ axes
    assert variance.sum() == pytest.approx(np.trace(S), rel=0.15)
    half = samples // 2
    rtol = 5 * np.sqrt(2 / half) + (30 * OUTLYING / half if -1 in far else 0)
    np.testing.assert_allclose(variance, np.diag(turned), rtol=rtol)


@pytest.mark.slow
def test_without_minibatches_there_is_no_control_variate():
    """24 rows are too few for minibatches of our own, and the first of them is all of them."""
    mcmc = tuned(SGHMC(models.gaussian), models.ROWS, num_warmup=40, num_samples=10, num_chains=2)
    assert settings(mcmc)["gradient"] == Minibatch() and mcmc.last_state.gradient_state == ()
    assert np.isfinite(mcmc.get_samples()["mu"]).all()
