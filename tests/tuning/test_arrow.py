"""Coordinates shaped like the plates of a hierarchy: their algebra, the groups that are seen, and the normal."""

from functools import partial
import re

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, init_to_median
import pytest

from numpyro_sgmcmc import SGHMC, settings
from numpyro_sgmcmc.tuning import coordinates, groups
from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.groups import COUPLED, Layout, Part, coupling, layout_of
from numpyro_sgmcmc.tuning.newton import normal_law
from numpyro_sgmcmc.tuning.search import largest_curvature, search

# a plate of 4 groups in the second axis of a site, with an event of 2, and the same plate alone; another plate of 3
LAYOUT = Layout(
    (Part((2, 4), (1,), 0), Part((2,), (), -1), Part((3,), (0,), 1), Part((4,), (0,), 0), Part((), (), -1)),
    ((4, 3), (3, 1)),
    3,
)
D = 8 + 2 + 3 + 4 + 1


def random_arrow(seed: int = 0) -> Arrow:
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=D), np.eye(3) + 0.3 * rng.normal(size=(3, 3))
    own = [np.eye(b) + 0.3 * rng.normal(size=(J, b, b)) for J, b in LAYOUT.families]
    border = [rng.normal(size=(J, b, 3)) for J, b in LAYOUT.families]
    return jax.tree.map(jnp.asarray, Arrow(*arrays, own, border, LAYOUT))


def test_the_layout_is_a_permutation():
    x = jnp.arange(float(D))
    common, members = LAYOUT.split(x)
    np.testing.assert_array_equal(LAYOUT.merge(common, members), x)
    np.testing.assert_array_equal(common, x[LAYOUT.globals])
    # the first axis of a family is the group: columns 0 to 3 of the first site, and the fourth site
    np.testing.assert_array_equal(members[0], [[k, 4 + k, 13 + k] for k in range(4)])


@pytest.mark.parametrize("method", ["matrix", "to_x", "pull_back", "variances", "after", "turned", "log_det"])
def test_the_algebra_is_that_of_its_matrix(method):
    with jax.enable_x64(True):
        arrow, other, x = random_arrow(), random_arrow(1), jnp.asarray(np.random.default_rng(2).normal(size=D))
        L = np.asarray(arrow.matrix())
        rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
        turn = np.eye(D)
        turn[np.ix_(LAYOUT.globals, LAYOUT.globals)] = rotation
        got, expected = {
            "matrix": lambda: (arrow.to_z(x), arrow.center + L @ x),
            "to_x": lambda: (arrow.to_x(arrow.to_z(x)), x),
            "pull_back": lambda: (arrow.pull_back(x), L.T @ x),
            "variances": lambda: (arrow.variances(x**2), L**2 @ x**2),
            "after": lambda: (arrow.after(other).matrix(), L @ np.asarray(other.matrix())),
            "turned": lambda: (arrow.turned(jnp.asarray(rotation)).matrix(), L @ turn),
            "log_det": lambda: (arrow.log_det(), np.linalg.slogdet(L)[1]),
        }[method]()
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_it_whitens_an_arrow_exactly():
    with jax.enable_x64(True):
        arrow = random_arrow()
        L = np.asarray(arrow.matrix())
        H = np.linalg.inv(L @ L.T)  # its precision has the shape of an arrow
        identity = jnp.eye(D)
        columns = [LAYOUT.split(row) for row in jnp.asarray(H)]
        of_globals = [columns[k] for k in LAYOUT.globals]
        common = jnp.stack([row[0] for row in of_globals])
        border = [jnp.stack([row[1][k] for row in of_globals], -1) for k in range(2)]
        numbers = LAYOUT.split(jnp.arange(D))[1]
        own = [jnp.stack([H[np.ix_(group, group)] for group in np.asarray(of)]) for of in numbers]
        white, extremes = arrow.whitening((common, own, border), jnp.asarray(1.0), 1e9)
        white = np.asarray(white.matrix())
        np.testing.assert_allclose(white.T @ H @ white, identity, atol=1e-8)
        assert extremes.shape == (6,) and (extremes > 0).all()


def crossed(J, K, index, other, y):
    mu, tau, sigma = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in ("mu", "tau", "sigma"))
    with numpyro.plate("users", J):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    b = numpyro.sample("b", dist.Normal(0, sigma).expand([K]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[index[rows]] + b[other[rows]], 1), obs=y[rows])


def process(J, index, y):
    ell = numpyro.sample("ell", dist.LogNormal(0, 1))
    with numpyro.plate("places", J):
        z = numpyro.sample("z", dist.Normal(0, 1))
    distance = (jnp.arange(J)[:, None] - jnp.arange(J)) / (10 * ell)
    f = jnp.exp(-jnp.abs(distance)) @ z
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(f[index[rows]], 1), obs=y[rows])


def walk(J, index, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    level = numpyro.sample("level", dist.GaussianRandomWalk(scale, J))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(level[index[rows]], 0.1), obs=y[rows])


def seen_layout(kernel, *args):
    def coupled(layout):
        return bool(kernel.compiled(partial(coupling, layout=layout), args, {})(random.key(0)) > COUPLED)

    return layout_of(kernel.potential(args, {}), coupled)


ROWS = np.sort(np.random.default_rng(0).integers(0, 120, 2000))
OTHER = np.random.default_rng(1).integers(0, 30, 2000)


def test_small_plates_are_global_and_the_largest_one_has_groups():
    layout = seen_layout(SGHMC(crossed, batch_size=100), 120, 30, ROWS, OTHER, np.zeros(2000, np.float32))
    assert layout is not None and layout.families == ((120, 1),) and layout.size == 33


def columns(J, index, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]).to_event(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([2, J]).to_event(2))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(scale @ z[:, index[rows]], 1), obs=y[rows])


def test_without_a_plate_the_longest_axis_has_groups():
    layout = seen_layout(SGHMC(columns, batch_size=100), 120, ROWS, np.zeros(2000, np.float32))
    assert layout is not None and layout.families == ((120, 2),) and layout.size == 2


def test_two_large_plates_are_families_of_their_own(monkeypatch):
    """Only if there are too many coordinates for a matrix, because the rows couple the families."""
    monkeypatch.setattr(groups, "GLOBALS", 10)
    args = 120, 30, ROWS, OTHER, np.zeros(2000, np.float32)
    assert seen_layout(SGHMC(crossed, batch_size=100), *args) is None
    monkeypatch.setattr(coordinates, "DENSE", 100)
    layout = seen_layout(SGHMC(crossed, batch_size=100), *args)
    assert layout is not None and layout.families == ((120, 1), (30, 1)) and layout.size == 3


def test_groups_that_the_rows_couple_are_none():
    assert seen_layout(SGHMC(process, batch_size=100), 120, ROWS, np.zeros(2000, np.float32)) is None


@pytest.mark.parametrize("batch_size", [100, {}])
def test_groups_that_the_prior_couples_are_none(batch_size):
    """Where it is looked at, the scale is about 1, and the data have 1500 times the curvature of the prior."""
    assert seen_layout(SGHMC(walk, batch_size=batch_size), 120, ROWS, np.zeros(2000, np.float32)) is None


def test_few_coordinates_have_a_matrix():
    layout = seen_layout(SGHMC(crossed, batch_size=100), 60, 20, ROWS % 60, OTHER % 20, np.zeros(2000, np.float32))
    assert layout is None


def test_the_normal_is_that_of_an_arrow():
    """A normal posterior whose precision is an arrow: the search ends at its mean and covariance."""
    with jax.enable_x64(True):
        arrow = random_arrow()
        L = np.asarray(arrow.matrix())
        H, c = jnp.asarray(np.linalg.inv(L @ L.T)), arrow.center
        energy = lambda part: lambda z: (z - c) @ H @ (z - c) / 2 * (0.5 + part)  # noqa: E731
        start = Arrow.diagonal(jnp.zeros(D), jnp.full(D, 0.3), LAYOUT)
        draws = jnp.asarray(np.random.default_rng(5).normal(size=(16, D)))
        law, _ = normal_law(energy, start, draws, 2, 2, 16, random.key(0))
        curvature = largest_curvature(energy, law, 2, random.key(1))
        found = np.asarray(law.matrix())
        np.testing.assert_allclose(found @ found.T, L @ L.T, rtol=0.5, atol=0.05 * (L @ L.T).max())
        assert jnp.abs(law.to_x(c)).max() < 0.3 and 0.8 < curvature < 1.8


def hierarchy(J, index, y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    with numpyro.plate("groups", J):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[index[rows]], 1), obs=y[rows])


def test_the_search_is_announced_as_long_as_it_is(caplog):
    """In the shape of the groups it needs three products for a Hessian, as a matrix it would need 402."""
    index = np.repeat(np.arange(400), 20)
    args = 400, index, np.random.default_rng(0).normal(index % 5, 1).astype(np.float32)
    kernel = SGHMC(hierarchy, batch_size=500, centering=False, init_strategy=init_to_median)
    with caplog.at_level("INFO", logger="numpyro_sgmcmc"):
        state = kernel.init(random.key(0), 4, None, args, {})
    (announced,) = re.findall(r"about (\d+) passes", caplog.text)
    z, layout = jax.tree.map(lambda x: x[None], state.z), state.settings.coordinates.layout
    find = kernel.compiled(lambda potential, key: search(potential, z, key, layout=layout).passes, args, {})
    assert 1 / 3 < int(announced) / find(random.key(0)) < 3


def test_a_hierarchy_of_many_groups_and_its_settings():
    """400 groups of 10 rows: the law of tau, given all groups summed out, by quadrature."""
    J, n = 400, 10
    rng = np.random.default_rng(0)
    index = np.repeat(np.arange(J), n)
    y = (1 + 0.5 * rng.normal(size=J)[index] + rng.normal(size=J * n)).astype(np.float32)
    means = np.bincount(index, y) / n
    tau = np.linspace(0.2, 0.9, 2001)
    variance = tau**2 + 1 / n  # of the mean of a group; mu is integrated, with a flat prior
    log_p = -J / 2 * np.log(variance) - J * means.var() / 2 / variance + np.log(variance) / 2 - tau**2 / 8
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = (p * tau).sum()
    sd = np.sqrt((p * tau**2).sum() - mean**2)
    known = {}
    for _ in range(2):
        kernel = SGHMC(hierarchy, batch_size=500, **known)
        size = {"num_warmup": 400, "num_samples": 400, "num_chains": 4}
        mcmc = MCMC(kernel, **size, chain_method="vectorized", progress_bar=False)
        mcmc.run(random.key(0), J, index, y)
        found = settings(mcmc)
        z, known = mcmc.get_samples(), {"settings": found}
        assert isinstance(found["coordinates"], Arrow) and found["steps_per_sample"] <= 20
        assert abs(z["tau"].mean() - mean) < 0.4 * sd and 0.75 * sd < z["tau"].std() < 1.3 * sd
        assert abs(z["mu"].mean() - means.mean()) < 0.4 * np.sqrt((mean**2 + 1 / n) / J)
