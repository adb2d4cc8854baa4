"""Sites that a model has non-centred by hand are found, and their partial centring keeps the law."""

import math
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, settings, summary
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.scores import gradients, identities
from numpyro_sgmcmc.potential.centred import centred_potential, hierarchical_sites, is_as_written, sites_to_centre
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.data_share import shares_of_data
from numpyro_sgmcmc.utils.monte_carlo import bound

GROUP = jnp.repeat(jnp.arange(5), jnp.array([1, 2, 3, 6, 8]), total_repeat_length=20)
Y = jnp.sin(jnp.arange(20.0))
LEVEL = jnp.linspace(-1, 1, 5)

# the value of each row -> location and scale by group
FORMS = {
    "before the index": (lambda m, s, z, g: (m + s * z)[g], lambda m, s: (m, s)),
    "after the index": (lambda m, s, z, g: m + s * z[g], lambda m, s: (m, s)),
    "scale only": (lambda m, s, z, g: (s * z)[g] + jnp.cos(g), lambda m, s: (0 * m, s)),
    "a level for each group": (lambda m, s, z, g: (m * LEVEL - z * s)[g] ** 2, lambda m, s: (m * LEVEL, -s)),
    "divided": (lambda m, s, z, g: jnp.exp((z / s + m)[g]), lambda m, s: (m, 1 / s)),
    "a site of its own": (
        lambda m, s, z, g: numpyro.deterministic("a", m + z * s)[g],
        lambda m, s: (m, s),
    ),
}


def model_of(value, shape=(5,)):
    def model(group, y):
        s = numpyro.sample("s", dist.LogNormal(0, 0.5))
        with numpyro.plate("groups", shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1).expand(shape[1:]).to_event(len(shape) - 1))
        m = numpyro.sample("m", dist.Normal(0, 2))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(value(m, s, z, group[rows]), 1.0), obs=y[rows])

    return model


def potential_of(model, batch_size=10):
    return ModelPotential.from_model(model, (GROUP, Y), {}, batch_size)


@pytest.mark.every(2)
@pytest.mark.parametrize("form", FORMS)
def test_the_law_is_that_of_the_model(form):
    value, parameters = FORMS[form]
    usual = potential_of(model_of(value))
    assert list(hierarchical_sites(usual)) == ["z"]
    share = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
    centred = centred_potential(usual, {"z": share})
    y = {"m": jnp.array(0.4), "s": jnp.array(-0.7), "z": jnp.linspace(-0.5, 0.8, 5)}
    z = centred.in_variables_of(usual, y)
    m, s = parameters(jnp.array(0.4), jnp.exp(-0.7))
    np.testing.assert_allclose(y["z"], share * m + jnp.sign(s) * jnp.abs(s) ** share * z["z"], rtol=1e-5, atol=1e-6)
    jacobian = jax.jacfwd(lambda a: centred.in_variables_of(usual, {**y, "z": a})["z"])(y["z"])
    rows = {"N": jnp.arange(3, 13)}
    expected = usual.estimate(z, rows) - jnp.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(centred.estimate(y, rows), expected, rtol=1e-5)
    parts = centred.prior(y) + 2 * centred.per_row(y, rows).sum()
    np.testing.assert_allclose(parts, expected, rtol=1e-5)
    back = usual.in_variables_of(centred, z)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), back, y)


def root(s, n=5):
    """The Cholesky factor of a Gaussian process."""
    x = jnp.arange(float(n))
    return jnp.linalg.cholesky(s * jnp.exp(-((x[:, None] - x) ** 2) / 4) + 0.5 * jnp.eye(n))


def varied(s):
    """A factor for each group."""
    return jax.vmap(root, (0, None))(s + jnp.arange(5.0), 2)


def turned(s):
    return jnp.array([[1.0], [-2.0]]) * root(s, 2)


# shape of z, axis of its vectors, value of each row -> location, R
VECTORS = {
    "process": ((5,), 0, lambda m, s, z, g: (m + root(s) @ z)[g], lambda m, s: (m, root(s))),
    "walk": (
        (5,),
        0,
        lambda m, s, z, g: m + jnp.cumsum(s * z)[g],
        lambda m, s: (0 * m, s * jnp.tril(jnp.ones((5, 5)))),
    ),
    "vectors": ((5, 2), 1, lambda m, s, z, g: (m + z @ root(s, 2).T)[g].sum(1), lambda m, s: (m, root(s, 2))),
    "columns": ((2, 5), 0, lambda m, s, z, g: (m + (turned(s) @ z).T)[g].sum(1), lambda m, s: (m, turned(s))),
    "a matrix for each": (
        (5, 2),
        1,
        lambda m, s, z, g: jnp.einsum("gij,gj->gi", varied(s), z)[g].sum(1) + m,
        lambda m, s: (0 * m, varied(s)),
    ),
}


@pytest.mark.parametrize("form", VECTORS)
def test_the_law_of_vectors_is_that_of_the_model(form):
    shape, axis, value, parameters = VECTORS[form]
    usual = potential_of(model_of(value, shape))
    assert list(hierarchical_sites(usual)) == ["z"]
    share = jnp.linspace(0, 1, math.prod(shape)).reshape(shape)
    centred = centred_potential(usual, {"z": share})
    of_z = jnp.sin(1 + jnp.arange(math.prod(shape))).reshape(shape)
    y = {"m": jnp.array(0.4), "s": jnp.array(-0.7), "z": of_z}
    z = centred.in_variables_of(usual, y)
    (location, R), last = parameters(jnp.array(0.4), jnp.exp(-0.7)), lambda x: jnp.moveaxis(x, axis, -1)
    diagonal = jnp.diagonal(R, axis1=-2, axis2=-1)
    diagonal = jnp.sign(diagonal) * jnp.abs(diagonal) ** last(share)
    T = last(share)[..., None] * jnp.tril(R, -1) + diagonal[..., None] * jnp.eye(shape[axis])
    expected = last(share) * location + jnp.einsum("...ij,...j->...i", T, last(z["z"]))
    np.testing.assert_allclose(last(of_z), expected, rtol=1e-4, atol=1e-5)
    moved = lambda x: centred.in_variables_of(usual, {**y, "z": x.reshape(shape)})["z"].ravel()  # noqa: E731
    rows = {"N": jnp.arange(3, 13)}
    expected = usual.estimate(z, rows) - jnp.linalg.slogdet(jax.jacfwd(moved)(of_z.ravel()))[1]
    np.testing.assert_allclose(centred.estimate(y, rows), expected, rtol=1e-5)
    back = usual.in_variables_of(centred, z)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), back, y)


OTHERS = {
    "also as it is": lambda m, s, z, g: (m + s * z)[g] + z[g],
    "by a matrix that may have any form": lambda m, s, z, g: (m + jnp.exp(-s * jnp.ones((5, 5))) @ z)[g],
    "mixed from the last to the first": lambda m, s, z, g: m + s * lax.cumsum(z, reverse=True)[g],
    "bent": lambda m, s, z, g: m + s * z[g] ** 3,
    "no latents": lambda m, s, z, g: m + s + 2 * z[g],
    "by row": lambda m, s, z, g: m + s * jnp.cos(g) * z[g],
    "by all rows": lambda m, s, z, g: (m + s * jnp.cos(g).mean() * z)[g],
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_uses_are_left_alone(form):
    assert hierarchical_sites(potential_of(model_of(OTHERS[form]))) == {}


def horseshoe(X, y, by_hand):
    tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
    with numpyro.plate("columns", 3):
        local = numpyro.sample("local", dist.HalfCauchy(1))
        w = tau * local * numpyro.sample("z", dist.Normal(0, 1)) if by_hand else None
        w = numpyro.sample("w", dist.Normal(0, tau * local)) if w is None else w
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1.0), obs=y[rows])


@pytest.mark.parametrize("by_hand", [True, False])
def test_nothing_is_chosen_for_elements_with_scales_of_their_own(by_hand):
    potential = ModelPotential.from_model(horseshoe, (jnp.ones((20, 3)), Y, by_hand), {}, 10)
    assert hierarchical_sites(potential) == {"z" if by_hand else "w": {"local", "tau"}}
    assert sites_to_centre(potential) == {}


def nested(district, school, y):
    """Two levels by hand: the location of the second depends on the sites of the first."""
    s = numpyro.sample("s", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
    m = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("districts", 2):
        d = m + s[0] * numpyro.sample("d", dist.Normal(0, 1))
    with numpyro.plate("schools", 5):
        a = d[district] + s[1] * numpyro.sample("a", dist.StudentT(4.0, 0, 1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[school[rows]], 1.0), obs=y[rows])


def test_one_level_in_another():
    arguments = jnp.array([0, 0, 1, 1, 1]), GROUP, Y
    usual = ModelPotential.from_model(nested, arguments, {}, None)
    assert set(hierarchical_sites(usual)) == {"a", "d"}
    centred = centred_potential(usual, {"a": jnp.full(5, 0.4), "d": jnp.full(2, 0.7)})
    y = {"s": jnp.array([0.3, -0.2]), "m": jnp.array(1.0), "d": jnp.array([0.5, -1.0]), "a": jnp.arange(5.0)}
    flat, unravel = jax.flatten_util.ravel_pytree(y)
    written = lambda v: jax.flatten_util.ravel_pytree(centred.in_variables_of(usual, unravel(v)))[0]  # noqa: E731
    log_det = jnp.linalg.slogdet(jax.jacfwd(written)(flat))[1]
    expected = usual.estimate(centred.in_variables_of(usual, y), {}) - log_det
    np.testing.assert_allclose(centred.estimate(y, {}), expected, rtol=1e-5)


def centred_model(group, y):
    s = numpyro.sample("s", dist.LogNormal(0, 0.5))
    m = numpyro.sample("m", dist.Normal(0, 2))
    with numpyro.plate("groups", 5):
        a = numpyro.sample("z", dist.Normal(m, s))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], 1.0), obs=y[rows])


def test_both_forms_have_the_same_shares_and_the_same_density():
    by_hand, centred = potential_of(model_of(FORMS["after the index"][0])), potential_of(centred_model)
    a = {"m": jnp.array(0.5), "s": jnp.array(-0.3), "z": jnp.linspace(0, 1, 5)}
    z = {**a, "z": (a["z"] - 0.5) / jnp.exp(-0.3)}
    of_hand, of_centred = shares_of_data(by_hand, z, random.key(0)), shares_of_data(centred, a, random.key(0))
    np.testing.assert_allclose(of_hand["z"], of_centred["z"], rtol=1e-5)
    rows = {"N": jnp.arange(10)}
    share = {"z": jnp.full(5, 0.3)}
    sampled = centred.in_variables_of(centred_potential(centred, share), a)
    np.testing.assert_allclose(
        centred_potential(by_hand, share).estimate(sampled, rows),
        centred_potential(centred, share).estimate(sampled, rows),
        rtol=1e-5,
    )


def test_elements_that_the_data_couple_are_centred():
    """Estimates of the diagonal of their Hessian are mostly noise."""

    def walk(y):
        s = numpyro.sample("s", dist.LogNormal(0, 0.5))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([30]).to_event(1))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(lax.cumsum(s * z, reverse=True)[rows % 30], 1.0), obs=y[rows])

    potential = ModelPotential.from_model(walk, (jnp.sin(jnp.arange(6000.0)),), {}, 10)
    z = {"s": jnp.array(-0.3), "z": jnp.zeros(30)}
    shares = jax.vmap(lambda key: shares_of_data(potential, z, key)["z"])(random.split(random.key(0), 20))
    assert (shares > 0.9).all()


def test_different_scales_stay_non_centred():
    spectrum = lambda m, s, z, g: (m + jnp.exp(-s * jnp.arange(5.0)) * z)[g]  # noqa: E731
    potential = potential_of(model_of(spectrum))
    assert list(sites_to_centre(potential)) == ["z"]
    z = {"m": jnp.array(0.5), "s": jnp.array(-0.3), "z": jnp.linspace(0, 1, 5)}
    np.testing.assert_array_equal(shares_of_data(potential, z, random.key(0))["z"], 0)


@pytest.mark.parametrize(
    "share, by_hand, expected", [(0, True, True), (1, True, False), (1, False, True), (0, False, False)]
)
def test_what_is_as_written(share, by_hand, expected):
    potential = potential_of(model_of(FORMS["after the index"][0]) if by_hand else centred_model)
    assert is_as_written(potential, {"z": np.full(5, share)}) == expected
    assert is_as_written(potential, {})


def test_a_run_moves_in_the_centred_variable():
    group = jnp.repeat(jnp.arange(5), 200)
    y = jnp.arange(5.0)[group] + random.normal(random.key(0), (1000,))
    kernel = SGHMC(model_of(FORMS["before the index"][0]), batch_size=100)
    mcmc = MCMC(kernel, num_warmup=200, num_samples=300, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(1), group, y)
    assert (settings(mcmc)["centering"]["z"] > 0.9).all()
    assert settings(mcmc)["steps_per_sample"] < 40
    assert "inflation_by_noise" not in summary(mcmc, group, y)  # whose formula is that of the model's own variables
    draws = mcmc.get_samples()
    a = draws["m"][:, None] + draws["s"][:, None] * draws["z"]
    mean = np.array([y[group == k].mean() for k in range(5)])
    np.testing.assert_allclose(a.mean(0), mean, atol=0.1)  # 1.4 standard deviations
    np.testing.assert_allclose(a.std(0), 1 / np.sqrt(200), rtol=0.35)


def levels(group, y):
    """Non-centred by hand, with a normal law given the scale."""
    m = numpyro.sample("m", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.LogNormal(0, 0.5))
    with numpyro.plate("groups", 20):
        z = numpyro.sample("z", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(m + s * z[group[rows]], 1.0), obs=y[rows])


def exact_levels(y, rng, draws):
    """Independent draws of the posterior of 20 groups of equally many rows: the scale on a grid, the rest given it."""
    n, J, mean = len(y) // 20, 20, y.reshape(20, -1).mean(1)
    log_s = np.linspace(-2, 2, 20001)
    v = np.exp(2 * log_s) + 1 / n
    precision = 1 + J / v
    log_p = -2 * log_s**2 - J / 2 * np.log(v) - (mean**2).sum() / v / 2
    log_p += (mean.sum() / v) ** 2 / precision / 2 - np.log(precision) / 2
    p = np.exp(log_p - log_p.max())
    k = rng.choice(len(p), draws, p=p / p.sum())
    s, v, precision = np.exp(log_s[k]), v[k], precision[k]
    m = mean.sum() / v / precision + rng.normal(size=draws) / np.sqrt(precision)
    of_a = n + s**-2
    a = (n * mean + (m / s**2)[:, None]) / of_a[:, None] + rng.normal(size=(draws, J)) / np.sqrt(of_a)[:, None]
    return {"m": m, "s": s, "z": (a - m[:, None]) / s[:, None]}


def test_identities_hold_in_the_sampled_variables_and_are_known_better_there():
    """Exact draws in place of those of a run, 20 groups of 200 rows: both are the posterior, with its Jacobian."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 200)
    y = (0.5 + rng.normal(size=20)[group] + rng.normal(size=4000)).astype(np.float32)
    kernel = SGHMC(levels, step_size=1e-3, friction=30.0, batch_size=400, centering={"z": 0.95})
    mcmc = MCMC(kernel, num_warmup=2, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the draws of this run are not used
        mcmc.run(random.key(0), group, y)
    exact = exact_levels(y, rng, 2000)
    mcmc._states["z"] = {name: jnp.asarray(x.reshape(4, 500, *x.shape[1:]), y.dtype) for name, x in exact.items()}
    run = Run(mcmc, (group, y), {}, "test")
    written = run.draws(2000)
    sampled, found = run.as_sampled(written), {}
    a = exact["m"][:, None] * 0.95 + exact["s"][:, None] ** 0.95 * exact["z"]
    np.testing.assert_allclose(sampled.flat, np.c_[exact["m"], np.log(exact["s"]), a], atol=1e-4)
    limit = bound(2 * 22, 4, 2000)
    for draws in (written, sampled):
        of = identities(draws.z, gradients(run, draws, random.key(1)).values)
        assert (np.abs(of.gradient) < limit * of.gradient_error).all()
        assert (np.abs(of.virial - 1) < limit * of.virial_error).all()
        assert (np.abs(of.shift) < limit * of.shift_error).all()
        assert (np.abs(of.inflation) < limit * of.inflation_error).all()
        found[draws is sampled] = np.stack([of.shift_error, of.inflation_error])
    assert (found[False] > 3 * found[True]).all()
    power = summary(mcmc, group, y)["power"]
    assert 0 < power["value"] < limit * found[False][0, :2].max() / 3
