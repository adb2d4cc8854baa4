"""Partial centring keeps the law, is found by site, and is invisible to the user."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.distributions import transforms
from numpyro.infer import MCMC
from numpyro.infer.reparam import LocScaleReparam
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, ControlVariate, Tempered, settings
from numpyro_sgmcmc.potential.centred import centred_potential, hierarchical_sites, sites_to_centre
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.data_share import shares_of_data

ROOT = jnp.array([[1.0, 0, 0], [0.5, 0.8, 0], [-0.3, 0.2, 0.6]])
SITES = {
    "Normal": lambda m, s: dist.Normal(m, s),
    "StudentT": lambda m, s: dist.StudentT(4.0, m, s),
    "Cauchy": lambda m, s: dist.Cauchy(m, s),
    "Laplace": lambda m, s: dist.Laplace(m, s),
    "Logistic": lambda m, s: dist.Logistic(m, s),
    "Gumbel": lambda m, s: dist.Gumbel(m, s),
    "LogNormal": lambda m, s: dist.LogNormal(m, s),
    "expanded": lambda m, s: dist.Normal(m, s).expand([3]),
    "event": lambda m, s: dist.Normal(m, s).expand([3, 2]).to_event(2),
    "mixed": lambda m, s: dist.Normal(jnp.stack([m, 2 * m]), s).expand([3, 2]).to_event(1),
    "masked": lambda m, s: dist.Normal(m, s).expand([3]).mask(jnp.array([True, False, True])),
    "affine": lambda m, s: dist.TransformedDistribution(dist.Normal(0, 1), transforms.AffineTransform(m, -s)),
    "mirrored": lambda m, s: dist.TransformedDistribution(dist.Gumbel(0.5, 2), transforms.AffineTransform(m, -s)),
    "multivariate": lambda m, s: dist.MultivariateNormal(m * jnp.arange(3.0), scale_tril=s * ROOT),
    "covariances": lambda m, s: dist.MultivariateNormal(m, s * ROOT @ ROOT.T).expand([2, 2]).to_event(2),
    "multivariate t": lambda m, s: dist.MultivariateStudentT(5.0, m * jnp.ones(3), s * ROOT).expand([4]),
    "masked vectors": lambda m, s: (
        dist.MultivariateNormal(m * jnp.ones(3), scale_tril=s * ROOT).expand([2]).mask(jnp.array([True, False]))
    ),
    "long vectors": lambda m, s: dist.MultivariateNormal(
        m * jnp.ones(10), s * jnp.exp(-abs(jnp.arange(10) - jnp.arange(10.0)[:, None]))
    ),
    "zero-sum": lambda m, s: dist.ZeroSumNormal(s, (4,)).expand([2]),
    "zero-sum in two axes": lambda m, s: dist.ZeroSumNormal(s, (4, 3)),
    "ordered": lambda m, s: dist.TransformedDistribution(
        dist.Normal(m, s).expand([3]).to_event(1), transforms.OrderedTransform()
    ),
    "walk": lambda m, s: dist.GaussianRandomWalk(s, 5),
    "walks": lambda m, s: dist.GaussianRandomWalk(jnp.stack([s, 2 * s]), 4).to_event(1),
    "share": lambda m, s: dist.TransformedDistribution(
        dist.Gumbel(0.5, 2).expand([3]),
        [transforms.AffineTransform(m, s), transforms.SigmoidTransform(), transforms.AffineTransform(1.0, 3.0)],
    ),
}


SCANS = {
    "autoregression": (lambda a, m, s: dist.Normal(m + 0.8 * (a - m), s), ()),
    "a scale for each element": (lambda a, m, s: dist.StudentT(4.0, jnp.tanh(a) + m, s * (1 + a**2)), (3,)),
    "without a memory": (lambda a, m, s: dist.LogNormal(m, s).expand([2]), (2,)),
    "vectors": (lambda a, m, s: dist.MultivariateNormal(m + a[::-1], scale_tril=s * ROOT), (3,)),
}


def model_of(site):
    return model_with(lambda m, s: numpyro.sample("a", site(m, s)))


def scan_of(name, reverse=False):
    step, shape = SCANS[name]

    def sites(m, s):
        def transition(a, _):
            a = numpyro.sample("a", step(a, m, s).to_event(len(shape) - step(a, m, s).event_dim))
            return a, a

        return scan(transition, m + jnp.zeros(shape), None, length=4, reverse=reverse)[1]

    return model_with(sites)


def model_with(sites):
    def model():
        m = numpyro.sample("m", dist.Normal(0, 2))
        s = numpyro.sample("s", dist.LogNormal(0, 1))
        a = sites(m, s)
        numpyro.factor("y", -jnp.sum((jnp.arange(jnp.size(a)).reshape(jnp.shape(a)) - a) ** 2))

    return model


MODELS = {name: model_of(site) for name, site in SITES.items()} | {f"scan, {name}": scan_of(name) for name in SCANS}
MODELS["scan, in reverse"] = scan_of("autoregression", reverse=True)


def potential_of(model, *args, **kwargs):
    return ModelPotential.from_model(model, args, kwargs, None)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", MODELS)
def test_the_law_is_that_of_the_model(name):
    usual = potential_of(MODELS[name])
    site = usual.prototype["a"]
    assert list(hierarchical_sites(usual)) == ["a"]
    assert sites_to_centre(usual) == ({} if name == "scan, a scale for each element" else {"a": site})
    share = jnp.linspace(0.1, 0.7, max(site.size, 1)).reshape(site.shape)
    centred = centred_potential(usual, {"a": share})
    keys = random.split(random.key(0), 3)
    z = {name: 0.7 * random.normal(key, s.shape) for key, (name, s) in zip(keys, usual.prototype.items())}

    def to_model(z):
        return centred.in_variables_of(usual, z)

    jacobian = jax.jacfwd(lambda a: to_model({**z, "a": a})["a"].ravel())(z["a"]).reshape(site.size, site.size)
    np.testing.assert_allclose(
        centred.estimate(z, {}), usual.estimate(to_model(z), {}) - jnp.linalg.slogdet(jacobian)[1], rtol=2e-5, atol=2e-5
    )
    back = usual.in_variables_of(centred, to_model(z))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), back, z)


def test_a_share_of_0_is_non_centred_and_of_1_as_written():
    usual = potential_of(model_of(lambda m, s: dist.Normal(m, s)))
    z = {"m": jnp.array(0.5), "s": jnp.array(-1.0), "a": jnp.array(0.3)}
    for share, a in (0.0, 0.5 + np.exp(-1) * 0.3), (1.0, 0.3):
        centred = centred_potential(usual, {"a": jnp.array(share)})
        np.testing.assert_allclose(centred.in_variables_of(usual, z)["a"], a, rtol=1e-6)
    half = centred_potential(usual, {"a": jnp.array(0.25)})
    # a~ ~ N(m / 4, s^(1/4))
    of_prior = jax.grad(jax.grad(lambda a: half.by_site({**z, "a": a}, {})["a"]))(z["a"])
    np.testing.assert_allclose(of_prior, np.exp(-1) ** (2 * 0.75 - 2), rtol=1e-5)


def test_the_gradient_has_correct_digits_where_the_scale_is_small():
    """The density of the site is a function of a - m, which has no correct digits in float32 there."""

    def gradient():
        centred = centred_potential(potential_of(model_of(lambda m, s: dist.Normal(m, s))), {"a": jnp.array(0.05)})
        z = {"m": jnp.array(16.4), "s": jnp.array(-9.4), "a": jnp.array(1.3)}
        return jax.grad(centred.estimate)(z, {})

    got = gradient()
    with jax.enable_x64(True):
        expected = gradient()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), got, expected)


def test_multivariate_sites_are_as_written_at_1_and_whitened_at_0():
    usual = potential_of(model_of(SITES["multivariate"]))
    a = jnp.array([0.3, -0.2, 0.7])
    z = {"m": jnp.array(0.5), "s": jnp.array(-1.0), "a": a}
    np.testing.assert_array_equal(centred_potential(usual, {"a": jnp.ones(3)}).in_variables_of(usual, z)["a"], a)
    whitened = centred_potential(usual, {"a": jnp.zeros(3)})
    at_0 = whitened.in_variables_of(usual, z)["a"]
    np.testing.assert_allclose(at_0, 0.5 * jnp.arange(3.0) + np.exp(-1) * ROOT @ a, rtol=1e-5)
    of_prior = jax.hessian(lambda a: whitened.by_site({**z, "a": a}, {})["a"])(a)
    np.testing.assert_allclose(of_prior, jnp.eye(3), atol=1e-5)


def slopes(group, x, y):
    m = numpyro.sample("m", dist.Normal(0, 2).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
    with numpyro.plate("groups", 5):
        a = numpyro.sample("a", dist.MultivariateNormal(m, scale_tril=s[:, None] * ROOT[:2, :2]))
    with numpyro.plate("N", len(y)) as rows:
        e = a[group[rows]]
        numpyro.sample("y", dist.Normal(jnp.where(x[rows], e[:, 1], e[:, 0]), 1.0), obs=y[rows])


def test_the_share_of_the_data_in_vectors():
    """1 minus the variances of e: those of (1 + R^T K R)^-1 for a = m + R e and the curvature K of the rows."""
    x = jnp.arange(20) % 2  # a row depends on one element only, so the curvature K of the rows is diagonal
    potential = potential_of(slopes, GROUP, x, Y)
    z = {"m": jnp.zeros(2), "s": jnp.array([-1.0, 0.3]), "a": jnp.zeros((5, 2))}
    rows = jnp.stack([jax.ops.segment_sum(1.0 * (x == k), GROUP, 5) for k in (0, 1)], 1)
    R = jnp.exp(z["s"])[:, None] * ROOT[:2, :2]
    expected = jnp.stack([share_in_vectors(R, k) for k in rows])
    np.testing.assert_allclose(shares_of_data(potential, z, random.key(0))["a"], expected, rtol=1e-3)


def share_in_vectors(R, k):
    return 1 - jnp.diagonal(jnp.linalg.inv(jnp.eye(len(R)) + R.T @ (k[:, None] * R)))


def walk(scale, phi):
    """A walk as a distribution, or step by step, where each element is pulled to 0."""
    if phi == 1:
        return numpyro.sample("a", dist.GaussianRandomWalk(scale, 5))

    def transition(a, _):
        a = numpyro.sample("a", dist.Normal(phi * a, scale))
        return a, a

    return scan(transition, 0.0, None, length=5)[1]


@pytest.mark.parametrize("phi", [1.0, 0.7])
def test_the_share_of_the_data_in_series(phi):
    """As for vectors, with the matrix R of the series."""

    def model(week, y):
        a = walk(numpyro.sample("s", dist.LogNormal(-1, 0.5)), phi)
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(a[week[rows]], 1.0), obs=y[rows])

    z = {"s": jnp.array(-0.3), "a": jnp.zeros(5)}
    lags = jnp.arange(5)[:, None] - jnp.arange(5)
    R = jnp.exp(-0.3) * jnp.where(lags >= 0, phi**lags, 0)
    expected = share_in_vectors(R, jnp.bincount(GROUP, length=5))
    found = shares_of_data(potential_of(model, GROUP, Y), z, random.key(0))["a"]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def others():
    m = numpyro.sample("m", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("fixed", dist.Normal(0, 1))
    numpyro.sample("scale_only", dist.HalfCauchy(s))
    with handlers.scale(scale=2.0):
        numpyro.sample("scaled", dist.Normal(m, s))
    with handlers.reparam(config={"replaced": LocScaleReparam(0.5)}):
        numpyro.sample("replaced", dist.Normal(m, s))
    scan(lambda x, _: (numpyro.sample("walk", dist.Normal(x, 0.5)), None), 0.0, None, length=4)
    with numpyro.plate("groups", 3):
        numpyro.sample("effect", dist.Normal(m, s))


def test_other_sites_stay_as_they_are():
    assert list(hierarchical_sites(potential_of(others))) == ["effect"]


def hierarchy(group, y, groups=5):
    m = numpyro.sample("m", dist.Normal(0, 2))
    s = numpyro.sample("s", dist.LogNormal(0, 0.5))
    with numpyro.plate("groups", groups):
        a = numpyro.sample("a", dist.Normal(m, s))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], 1.0), obs=y[rows])


GROUP = jnp.repeat(jnp.arange(5), jnp.array([1, 2, 3, 6, 8]), total_repeat_length=20)
Y = jnp.sin(jnp.arange(20.0))


@pytest.mark.parametrize(
    ("centering", "words"),
    [
        (0.5, "dict by site"),
        (True, "dict by site"),
        ({"a": 1.5}, "between 0"),
        ({"a": np.nan}, "between 0"),
        ({"b": 0.5}, "no latent site"),
        ({"m": 0.5}, "Leave it out; there are \\['a'\\]"),
        ({"a": np.ones(4)}, "has shape \\(4,\\)"),
    ],
)
def test_a_centring_that_is_refused(centering, words):
    with pytest.raises(ValueError, match=words):
        kernel = SGLD(hierarchy, step_size=0.01, batch_size=10, centering=centering)
        kernel.init(random.key(0), 1, None, (GROUP, Y), {})


def test_a_centring_beside_parts_that_do_not_know_it_is_refused():
    center = {"m": 0.0, "s": 0.0, "a": np.zeros(5)}
    with pytest.raises(ValueError, match="center of the gradient"):
        SGLD(hierarchy, step_size=0.01, gradient=ControlVariate(center), centering={"a": 0.5})
    with pytest.raises(ValueError, match="Tempered"):
        Tempered(SGLD(hierarchy, step_size=0.01, centering={"a": 0.5}), [1.0, 2.0])


@pytest.mark.every(2)
@pytest.mark.parametrize("chains", [1, 2])
def test_a_step_is_one_of_the_centred_potential(chains):
    """SGLD without noise would be: gradient descent in the partially centred variable."""
    share = jnp.array([0.1, 0.3, 0.5, 0.7, 1.0])
    kernel = SGLD(hierarchy, step_size=1e-3, batch_size={}, centering={"a": share})
    keys = random.key(1) if chains == 1 else random.split(random.key(1), chains)
    z = {"m": jnp.array(0.5), "s": jnp.array(-0.3), "a": jnp.arange(5.0) / 5}
    params = z if chains == 1 else jax.tree.map(lambda x: jnp.stack([x] * chains), z)
    state = kernel.init(keys, 1, params, (GROUP, Y), {})
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), state.z, params)
    after = kernel.sample(state, (GROUP, Y), {})
    written = SGLD(hierarchy, step_size=1e-3, batch_size={})
    usual = potential_of(hierarchy, GROUP, Y)
    centred = centred_potential(usual, {"a": share})
    alone = written.sample(written.init(keys, 1, params, (GROUP, Y), {}), (GROUP, Y), {})
    start = usual.in_variables_of(centred, z)
    drift = lambda potential, z: jax.grad(lambda z: potential.estimate(z, {"N": jnp.arange(20)}))(z)  # noqa: E731
    first = lambda tree: tree if chains == 1 else jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    noise = jax.tree.map(lambda new, old, g: new - old + 1e-3 * g, first(alone.z), z, drift(usual, z))
    moved = jax.tree.map(lambda x, g, n: x - 1e-3 * g + n, start, drift(centred, start), noise)
    expected = centred.in_variables_of(usual, moved)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), first(after.z), expected)


def test_the_share_of_the_data():
    precision = np.bincount(GROUP)
    z = {"m": jnp.array(0.5), "s": jnp.array(-0.3), "a": jnp.zeros(5)}
    found = shares_of_data(potential_of(hierarchy, GROUP, Y), z, random.key(0))
    np.testing.assert_allclose(found["a"], precision / (precision + np.exp(0.6)), rtol=1e-4)


def test_a_site_whose_widths_do_not_change_stays_as_written():
    groups, y = jnp.repeat(jnp.arange(5), 2000), jnp.zeros(10_000)
    z = {"m": jnp.array(0.5), "s": jnp.array(0.0), "a": jnp.zeros(5)}
    found = shares_of_data(potential_of(hierarchy, groups, y), z, random.key(0))
    np.testing.assert_array_equal(found["a"], 1)


def test_elements_of_another_scale_do_not_count():
    """
    Twenty known elements with the scale 1 would hide that the widths of four others, with a scale of their own, change.
    """

    def model(y):
        t = numpyro.sample("t", dist.HalfNormal(1).expand([2]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0, jnp.repeat(t, jnp.array([20, 4]), total_repeat_length=24)).to_event(1))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(w[rows % 24], 1), obs=y[rows])

    z = {"t": jnp.log(jnp.array([1.0, 0.1])), "w": jnp.zeros(24)}
    found = shares_of_data(potential_of(model, jnp.zeros(24 * 100)), z, random.key(0))["w"]
    np.testing.assert_array_equal(found[:20], 1)
    np.testing.assert_allclose(found[20:], 100 / (100 + 0.1**-2), rtol=1e-4)


@pytest.mark.slow
def test_a_run_chooses_it_and_hands_it_on():
    mcmc = MCMC(SGHMC(hierarchy, batch_size=10), num_warmup=200, num_samples=500, progress_bar=False)
    mcmc.run(random.key(0), GROUP, Y)
    found = settings(mcmc)
    assert found["centering"]["a"].shape == (5,)
    assert ((found["centering"]["a"] > 0) & (found["centering"]["a"] < 1)).all()
    assert mcmc.get_samples().keys() == {"m", "s", "a"}
    again = MCMC(SGHMC(hierarchy, settings=found), num_warmup=100, num_samples=500, progress_bar=False)
    again.run(random.key(1), GROUP, Y)
    np.testing.assert_array_equal(settings(again)["centering"]["a"], found["centering"]["a"])
    written = MCMC(SGHMC(hierarchy, centering=False), num_warmup=200, num_samples=500, progress_bar=False)
    written.run(random.key(2), GROUP, Y)
    assert settings(written)["centering"] == {}
    for name, x in mcmc.get_samples().items():
        sd = written.get_samples()[name].std(0)
        np.testing.assert_allclose(x.mean(0) / sd, written.get_samples()[name].mean(0) / sd, atol=0.4)
        np.testing.assert_allclose(x.std(0) / sd, 1, atol=0.3)
