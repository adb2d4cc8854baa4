"""
Hierarchies to judge a sampler that chooses the parametrisation
===============================================================

Groups with very few and with very many rows, crossed and nested effects, varying slopes, item response, series in
time. ``HIERARCHIES`` maps a name to a function that makes a ``Problem``, as in ``no_numbers_models.py``, which also
makes the references by NUTS. Of some there is a second form, ``..._by_hand``: the same posterior with the same data,
but the effects are written as ``mu + tau * z``.
"""

from functools import partial

import jax.numpy as jnp
from no_numbers_models import columns, problem, sigmoid, unequal_groups
import numpy as np
import numpyro
import numpyro.distributions as dist

HIERARCHIES = {}
hierarchy = partial(problem, problems=HIERARCHIES, start="uniform")
BOTH = ("", False), ("_by_hand", True)


def effects(name, groups, mu, tau, by_hand=False, law=dist.Normal):
    """Effects of the groups of a plate: as they are, or by hand from those with location 0 and scale 1."""
    with numpyro.plate(f"plate_{name}", groups):
        if by_hand:
            return numpyro.deterministic(name, mu + tau * numpyro.sample(f"z_{name}", law(0.0, 1.0)))
        return numpyro.sample(name, law(mu, tau))


# %%
# One level
# ---------


def normal_rows(groups, prior, group, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(prior))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    a = effects("a", groups, mu, tau, by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], sigma), obs=y[rows])


def normal_groups(rng, groups, each, tau):
    group = rng.permutation(np.repeat(np.arange(groups), each))
    return group, 1 + tau * rng.standard_normal(groups)[group] + rng.standard_normal(len(group))


@hierarchy(partial(normal_rows, 500, 1.0), "mu tau sigma a", 200, "500 groups of 4 rows", BOTH, decentre=("a",))
def few_rows(rng):
    return normal_groups(rng, 500, 4, 0.2)


@hierarchy(partial(normal_rows, 200, 1.0), "mu tau sigma a", 500, "200 groups of 20 rows", BOTH)
def some_rows(rng):
    return normal_groups(rng, 200, 20, 0.3)


@hierarchy(partial(normal_rows, 50, 2.0), "mu tau sigma a", 200, "50 groups of 1000 rows", BOTH)
def many_rows(rng):
    return normal_groups(rng, 50, 1000, 1.0)


@hierarchy(partial(normal_rows, 8, 2.0), "mu tau sigma a", 50, "8 groups of 2 to 2000 rows", BOTH)
def very_unequal(rng):
    group = rng.permutation(np.repeat(np.arange(8), np.geomspace(2, 2000, 8).astype(int)))
    return group, 1 + 0.5 * rng.standard_normal(8)[group] + rng.standard_normal(len(group))


@hierarchy(partial(normal_rows, 24, 2.0), "mu tau sigma a", 100, "24 groups of 2 to 500 rows", BOTH)
def sizes(rng):
    group = rng.permutation(np.repeat(np.arange(24), np.geomspace(2, 500, 24).astype(int)))
    return group, 1 + 0.5 * rng.standard_normal(24)[group] + 2 * rng.standard_normal(len(group))


@hierarchy(partial(normal_rows, 2000, 1.0), "mu tau sigma a", 1000, "2000 groups of 2 to 200 rows")
def unequal_2000(rng):
    group = unequal_groups(rng, 40_000, 2000)
    return group, 1 + 0.4 * rng.standard_normal(2000)[group] + rng.standard_normal(len(group))


def poisson_rows(groups, group, exposure, x, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    a = effects("a", groups, mu, tau, by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        rate = exposure[rows] * jnp.exp(a[group[rows]] + slope * x[rows])
        numpyro.sample("y", dist.Poisson(rate), obs=y[rows])


@hierarchy(partial(poisson_rows, 300), "mu tau slope a", 500, "300 unequal groups, exposure", BOTH)
def counts_exposure(rng):
    group, exposure, x = unequal_groups(rng, 20_000, 300), rng.gamma(2.0, 1.0, 20_000), rng.standard_normal(20_000)
    rate = exposure * np.exp(-0.5 + 0.5 * rng.standard_normal(300)[group] + 0.3 * x)
    return group, exposure, x, rng.poisson(rate)


def bernoulli_rows(groups, group, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 1.5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    a = effects("a", groups, mu, tau, by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=a[group[rows]]), obs=y[rows])


def binary(rng, groups, size):
    group = rng.integers(groups, size=size)
    return group, rng.random(size) < sigmoid(-0.5 + 0.5 * rng.standard_normal(groups)[group])


@hierarchy(partial(bernoulli_rows, 48), "mu tau a", None, "48 groups, 100 000 binary rows", BOTH)
def binary_48(rng):
    return binary(rng, 48, 100_000)


@hierarchy(partial(bernoulli_rows, 900), "mu tau a", None, "900 groups, 100 000 binary rows", BOTH, decentre=("a",))
def binary_900(rng):
    return binary(rng, 900, 100_000)


def robust_rows(group, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    a = effects("a", 300, mu, tau, by_hand, partial(dist.StudentT, 4.0))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], sigma), obs=y[rows])


@hierarchy(robust_rows, "mu tau sigma a", 500, "Student-t effects of 300 groups", BOTH)
def student_t_effects(rng):
    group = rng.integers(300, size=9000)
    return group, 1 + 0.5 * rng.standard_t(4, 300)[group] + rng.standard_normal(9000)


def schools_rows(sigma, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    a = effects("a", 8, mu, tau, by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[rows], sigma[rows]), obs=y[rows])


@hierarchy(schools_rows, "mu tau a", None, "all rows", BOTH, decentre=("a",), target_accept=0.99)
def eight_schools(rng):
    del rng
    return [15.0, 10, 16, 11, 9, 11, 10, 18], [28.0, 8, -3, 7, -1, 1, 18, 12]


@hierarchy(schools_rows, "mu tau a", 4, "half of the rows", BOTH, decentre=("a",), target_accept=0.99)
def eight_schools_4(rng):
    return eight_schools(rng)


# %%
# Several kinds of effects
# ------------------------


def crossed_rows(users, items, user, item, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    a = effects("a", users, 0.0, tau[0], by_hand)
    b = effects("b", items, 0.0, tau[1], by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu + a[user[rows]] + b[item[rows]], sigma), obs=y[rows])


def ratings(rng, users, items, size):
    user, item = rng.integers(users, size=size), rng.integers(items, size=size)
    noise = rng.standard_normal(size)
    return user, item, 3 + 0.5 * rng.standard_normal(users)[user] + 0.3 * rng.standard_normal(items)[item] + noise


@hierarchy(partial(crossed_rows, 100, 60), "mu tau sigma a b", 500, "100 users, 60 items", BOTH)
def crossed_small(rng):
    return ratings(rng, 100, 60, 10_000)


@hierarchy(partial(crossed_rows, 800, 300), "mu tau sigma a b", 1000, "800 users, 300 items", dense=0)
def crossed_large(rng):
    return ratings(rng, 800, 300, 40_000)


def nested_rows(district, school, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    d = effects("d", 20, mu, tau[0], by_hand)
    s = effects("s", 200, d[district], tau[1], by_hand)
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(s[school[rows]], sigma), obs=y[rows])


@hierarchy(nested_rows, "mu tau sigma d s", 500, "pupils in 200 schools in 20 districts", BOTH)
def nested_schools(rng):
    district, school = np.repeat(np.arange(20), 10), rng.integers(200, size=10_000)
    level = (0.5 * rng.standard_normal(20))[district] + 0.3 * rng.standard_normal(200)
    return district, school, level[school] + rng.standard_normal(10_000)


def slopes_rows(group, x, y, by_hand=False):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    root = tau[:, None] * numpyro.sample("root", dist.LKJCholesky(2, 2.0))
    numpyro.deterministic("correlation", root[1, 0] / jnp.linalg.norm(root[1]))
    with numpyro.plate("groups", 150):
        if by_hand:
            z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
            effect = numpyro.deterministic("effect", mu + z @ root.T)
        else:
            effect = numpyro.sample("effect", dist.MultivariateNormal(mu, scale_tril=root))
    with numpyro.plate("rows", len(y)) as rows:
        e = effect[group[rows]]
        numpyro.sample("y", dist.Normal(e[:, 0] + e[:, 1] * x[rows], sigma), obs=y[rows])


def slopes(rng, size, scales):
    group, x = rng.integers(150, size=size), rng.standard_normal(size)
    a, b = rng.standard_normal((2, 150))
    level, slope = 1 + scales[0] * a, -0.5 + scales[1] * (0.5 * a + 0.8 * b)
    return group, x, level[group] + slope[group] * x + rng.standard_normal(size)


@hierarchy(slopes_rows, "mu tau sigma correlation effect", 500, "slopes too, LKJ, 150 groups of 60 rows", BOTH)
def slopes_many(rng):
    return slopes(rng, 9000, (0.6, 0.4))


@hierarchy(slopes_rows, "mu tau sigma correlation effect", 200, "slopes too, LKJ, 150 groups of 6 rows", BOTH)
def slopes_few(rng):
    return slopes(rng, 900, (0.4, 0.2))


def response_rows(people, items, person, item, y):
    spread = numpyro.sample("spread", dist.HalfNormal(2))
    level = numpyro.sample("level", dist.Normal(0, 2))
    with numpyro.plate("people", people):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("items", items):
        difficulty = numpyro.sample("difficulty", dist.Normal(level, spread))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=ability[person[rows]] - difficulty[item[rows]]), obs=y[rows])


@hierarchy(partial(response_rows, 2000, 30), "spread level ability difficulty", 1000, "2000 people, 30 items")
def responses_2000(rng):
    person, item = rng.integers(2000, size=60_000), rng.integers(30, size=60_000)
    return person, item, rng.random(60_000) < sigmoid(rng.standard_normal(2000)[person] - rng.standard_normal(30)[item])


def horseshoe_rows(X, y):
    tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("columns", X.shape[1]):
        local = numpyro.sample("local", dist.HalfCauchy(1))
        w = numpyro.sample("w", dist.Normal(0, tau * local))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=y[rows])


@hierarchy(horseshoe_rows, "tau sigma w", 200, "30 coefficients, 3 of them large", decentre=("w",), target_accept=0.95)
def horseshoe_centred(rng):
    X = columns(rng, 2000, 30)
    return X, X[:, :3] @ [1.0, -0.7, 0.5] + rng.standard_normal(2000)


# %%
# Series
# ------


def walk_rows(weeks, week, y):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    level = numpyro.sample("level", dist.GaussianRandomWalk(tau, weeks))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(level[week[rows]], sigma), obs=y[rows])


@hierarchy(partial(walk_rows, 100), "tau sigma level", 200, "a random walk of 100 weeks, 30 rows a week")
def walk_100(rng):
    week = rng.integers(100, size=3000)
    return week, np.cumsum(0.2 * rng.standard_normal(100))[week] + rng.standard_normal(3000)


@hierarchy(partial(walk_rows, 60), "tau sigma level", None, "a random walk of 60 weeks, one row a week")
def walk_60(rng):
    return np.arange(60), np.cumsum(0.3 * rng.standard_normal(60)) + 0.5 * rng.standard_normal(60)


def smooth_rows(basis, scales, y):
    """A Gaussian process by its Hilbert-space approximation: weights with scales from the spectral density."""
    length = numpyro.sample("length", dist.LogNormal(-1, 0.5))
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    spread = amplitude * jnp.sqrt(length) / (1 + (length * scales) ** 2)  # of a Matérn kernel
    with numpyro.plate("basis", len(scales)):
        w = numpyro.sample("w", dist.Normal(0, spread))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(basis[rows] @ w, sigma), obs=y[rows])


@hierarchy(smooth_rows, "length amplitude sigma w", 200, "a curve from 20 basis functions", decentre=("w",))
def hilbert_space(rng):
    x = rng.uniform(-1, 1, 3000)
    frequencies = np.pi * np.arange(1, 21) / 3
    basis = np.sin(frequencies * (x[:, None] + 1.5)) / np.sqrt(1.5)
    return basis, frequencies, np.sin(3 * x) + 0.3 * x + 0.3 * rng.standard_normal(3000)


def events_model(x, k):
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    distance = (x[:, None] - x) / rho
    root = jnp.linalg.cholesky(alpha**2 * jnp.exp(-0.5 * distance**2) + 1e-5 * jnp.eye(len(x)))
    f = root @ numpyro.sample("z", dist.Normal(0, 1).expand([len(x)]).to_event(1))
    with numpyro.plate("rows", len(k)) as rows:
        numpyro.sample("k", dist.Poisson(jnp.exp(f[rows])), obs=k[rows])


@hierarchy(events_model, "rho alpha", None, "a Poisson process over 11 points, all rows", target_accept=0.95)
def events(rng):
    rng = np.random.default_rng(11)  # the same counts for both
    x = np.linspace(-10, 10, 11)
    return x, rng.poisson(np.exp(2 * np.sin(x / 4) + 1))


@hierarchy(events_model, "rho alpha", 5, "a Poisson process over 11 points", target_accept=0.95)
def events_5(rng):
    return events(rng)
