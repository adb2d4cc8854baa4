"""
Models to judge a sampler that tunes itself
===========================================

Posteriors such as NumPyro's users write, each with simulated data: regressions of every kind on raw and on
standardised columns, hierarchies in both forms, mixtures, survival, counts with too many zeros, curves. They are
ordinary models whose data plate gives the rows. ``PROBLEMS`` maps a name to a function that makes a ``Problem``.

NUTS on all rows gives the means and standard deviations to compare with, a file for each problem::

    python examples/no_numbers_models.py --list
    python examples/no_numbers_models.py --reference FOLDER [names]
"""

import argparse
from collections.abc import Callable
from functools import partial
import os
from pathlib import Path
import time
from typing import NamedTuple
import zlib

os.environ.setdefault("JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS", "1")  # before JAX is imported: no copies of the data

import jax
from jax import lax, random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer import MCMC, NUTS, init_to_feasible, init_to_median, init_to_uniform
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model


class Problem(NamedTuple):
    name: str
    model: Callable
    args: tuple[np.ndarray, ...]
    sites: tuple[str, ...]  # constrained sites to compare; a coordinate that is constant by construction does not count
    batch_size: int
    note: str
    nuts: dict  # settings for the reference, see REFERENCE


PROBLEMS: dict[str, Callable[[], Problem]] = {}


def problem(model, sites, batch_size, note="", forms=(), problems=PROBLEMS, **nuts):
    """
    Register the problem named after the function that simulates its data from a generator of random numbers.

    :param model: the model.
    :param sites: names of sites, separated by blanks.
    :param batch_size: None for all rows.
    :param note: what is special about it.
    :param forms: suffixes of names and how the model is called there, for models with ``by_hand``.
    :param problems: where it is registered.
    :param nuts: what is different from REFERENCE.
    """

    def register(simulate):
        name = simulate.__name__

        def make(suffix, by_hand):
            args = tuple(map(single, simulate(np.random.default_rng(zlib.crc32(name.encode())))))
            written = partial(model, by_hand=by_hand) if forms else model
            return Problem(name + suffix, written, args, tuple(sites.split()), batch_size, note, nuts)

        for suffix, by_hand in forms or (("", False),):
            problems[name + suffix] = partial(make, suffix, by_hand)
        return simulate

    return register


def single(x):
    """In single precision, as JAX would have it."""
    x = np.asarray(x)
    return x.astype(np.float32 if x.dtype.kind == "f" else np.int32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def columns(rng, size, dim, correlation=0.3):
    """Standard normal columns, each correlated with the one before."""
    X = rng.standard_normal((size, dim))
    for j in range(1, dim):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    return X


def with_ones(X):
    return np.column_stack([np.ones(len(X)), X])


def unequal_groups(rng, size, groups):
    """The group of each row; some groups have many times the rows of others."""
    share = rng.dirichlet(np.full(groups, 2.0)) + 0.1 / groups
    return rng.choice(groups, size, p=share / share.sum())


def normal(name, dim, scale=1.0):
    """A site of ``dim`` independent normal coefficients."""
    return numpyro.sample(name, dist.Normal(0, scale).expand([dim]).to_event(1))


# %%
# Generalised linear models
# -------------------------


def logistic(X, y, prior_sd=3.0):
    w = normal("w", X.shape[1], prior_sd)
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def logistic_rows(rng, X, w):
    return X, (rng.random(len(X)) < sigmoid(X @ w)).astype(float)


@problem(partial(logistic, prior_sd=100.0), "w", 1000, "columns with scales from 0.01 to 100")
def logistic_scales(rng):
    scales = np.geomspace(1e-2, 1e2, 30)
    X = with_ones(columns(rng, 100_000, 30) * scales)
    return logistic_rows(rng, X, np.append(-0.5, rng.normal(0, 0.3, 30) / scales))


@problem(logistic, "w", 1000, "500 coefficients")
def logistic_500(rng):
    X = with_ones(columns(rng, 50_000, 499))
    return logistic_rows(rng, X, np.append(-0.2, rng.normal(0, 0.1, 499)))


@problem(logistic, "w", 50, "300 rows")
def bernoulli_300(rng):
    X = with_ones(columns(rng, 300, 4))
    return logistic_rows(rng, X, np.array([0.3, 1.0, -0.5, 0.0, 0.7]))


@problem(
    partial(logistic, prior_sd=1.0),
    "w",
    1000,
    "an intercept, 10 correlated columns and the 44 indicators of two factors",
)
def covtype_like(rng):
    size = 50_000
    X = columns(rng, size, 10, 0.8)
    area = np.eye(4)[rng.choice(4, size, p=[0.45, 0.05, 0.44, 0.06])]
    soil = np.eye(40)[rng.choice(40, size, p=rng.dirichlet(np.full(40, 0.5)))]
    X = with_ones(np.hstack([X, area, soil]))
    return logistic_rows(rng, X, rng.normal(0, 0.5, 55))


@problem(partial(logistic, prior_sd=2.0), "w", 1000, "one row in a hundred is a success")
def rare_events(rng):
    X = with_ones(columns(rng, 40_000, 7))
    return logistic_rows(rng, X, np.append(-5.0, rng.normal(0, 0.5, 7)))


@problem(
    partial(logistic, prior_sd=5.0),
    "w",
    200,
    "age in years, income in thousands, a few indicators, none of them centred",
)
def logistic_raw(rng):
    size = 10_000
    age, income = rng.uniform(18, 80, size), rng.lognormal(3.5, 0.6, size)
    X = with_ones(np.column_stack([age, income, rng.random((size, 3)) < [0.5, 0.2, 0.05]]))
    return logistic_rows(rng, X, np.array([-3.0, 0.04, 0.01, 0.5, -0.3, 0.8]))


def probit(X, y):
    w = normal("w", X.shape[1], 2.0)
    with numpyro.plate("rows", X.shape[0]) as rows:
        probability = jax.scipy.stats.norm.cdf(X[rows] @ w)
        numpyro.sample("y", dist.Bernoulli(probs=probability), obs=y[rows])


@problem(probit, "w", 500)
def probit_regression(rng):
    X = with_ones(columns(rng, 10_000, 9))
    return X, X @ rng.normal(0, 0.4, 10) + rng.standard_normal(len(X)) > 0


def softmax(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1], 4]).to_event(2))
    numpyro.deterministic("contrast", w - w[:, :1])  # which the data tell, as against the sum
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Categorical(logits=X[rows] @ w), obs=y[rows])


@problem(softmax, "w contrast", 500, "a column of coefficients for each class: the prior alone tells their sum")
def softmax_regression(rng):
    X = with_ones(columns(rng, 20_000, 7))
    utility = X @ rng.normal(0, 0.7, (8, 4)) + rng.gumbel(size=(len(X), 4))
    return X, utility.argmax(1)


def ordinal(X, y):
    w = normal("w", X.shape[1], 2.0)
    prior = dist.TransformedDistribution(dist.Normal(0, 2).expand([4]).to_event(1), OrderedTransform())
    cutpoints = numpyro.sample("cutpoints", prior)
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.OrderedLogistic(X[rows] @ w, cutpoints), obs=y[rows])


@problem(ordinal, "w cutpoints", 500, "four ordered cutpoints")
def ordinal_regression(rng):
    X = columns(rng, 20_000, 6)
    latent = X @ rng.normal(0, 0.7, 6) + rng.logistic(size=len(X))
    return X, np.searchsorted([-2.0, -0.5, 0.4, 2.5], latent)


def poisson_groups(X, exposure, group, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    w = normal("w", X.shape[1])
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", 50):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        eta = intercept + X[rows] @ w + tau * effect[group[rows]]
        numpyro.sample("y", dist.Poisson(exposure[rows] * jnp.exp(eta)), obs=y[rows])


@problem(
    poisson_groups,
    "intercept w tau effect",
    1000,
    "counts with an exposure and 50 groups, not centred",
    start="uniform",
)
def poisson_exposure(rng):
    size = 50_000
    X, group, exposure = columns(rng, size, 4), unequal_groups(rng, size, 50), rng.gamma(2.0, 1.0, size)
    eta = -1.5 + X @ rng.normal(0, 0.3, 4) + rng.normal(0, 0.4, 50)[group]
    return X, exposure, group, rng.poisson(exposure * np.exp(eta))


def zero_inflated(X, y):
    w = normal("w", X.shape[1])
    v = normal("v", X.shape[1])
    with numpyro.plate("rows", X.shape[0]) as rows:
        x = X[rows]
        gate = jax.nn.sigmoid(x @ v)
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=jnp.exp(x @ w)), obs=y[rows])


@problem(zero_inflated, "w v", 500, "both parts are regressions")
def zero_inflated_poisson(rng):
    X = with_ones(columns(rng, 30_000, 4))
    rate = np.exp(X @ np.array([0.3, 0.4, -0.2, 0.0, 0.1]))
    empty = rng.random(len(X)) < sigmoid(X @ np.array([-0.8, 0.0, 0.5, -0.5, 0.0]))
    return X, np.where(empty, 0, rng.poisson(rate))


def negative_binomial(X, y):
    w = normal("w", X.shape[1], 2.0)
    concentration = numpyro.sample("concentration", dist.Exponential(0.2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(X[rows] @ w), concentration), obs=y[rows])


@problem(negative_binomial, "w concentration", 500, "overdispersed counts")
def negative_binomial_regression(rng):
    X = with_ones(columns(rng, 15_000, 7))
    mean = np.exp(X @ np.append(1.5, rng.normal(0, 0.3, 7)))
    return X, rng.poisson(mean * rng.gamma(1.5, 1 / 1.5, len(X)))


def truncated_poisson(X, y):
    w = normal("w", X.shape[1], 2.0)
    with numpyro.plate("rows", X.shape[0]) as rows:
        rate = jnp.exp(X[rows] @ w)
        numpyro.sample("y", dist.Poisson(rate), obs=y[rows])
        numpyro.factor("not zero", -jnp.log(-jnp.expm1(-rate)))


@problem(truncated_poisson, "w", 200, "counts without zeros: a factor in the plate")
def zero_truncated(rng):
    X = with_ones(columns(rng, 8_000, 4))
    y = rng.poisson(np.exp(X @ np.array([0.2, 0.3, -0.4, 0.1, 0.0])))
    return X[y > 0], y[y > 0]


def hurdle(X, y):
    v = normal("v", X.shape[1], 2.0)
    w = normal("w", X.shape[1], 5.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        x, amount = X[rows], y[rows]
        positive = amount > 0
        numpyro.sample("any", dist.Bernoulli(logits=x @ v), obs=positive.astype(jnp.int32))
        with handlers.mask(mask=positive):
            numpyro.sample("y", dist.LogNormal(x @ w, sigma), obs=jnp.where(positive, amount, 1.0))


@problem(hurdle, "v w sigma", 500, "whether anything is paid, and how much: two sites in the plate, one of them masked")
def hurdle_claims(rng):
    X = with_ones(columns(rng, 10_000, 5))
    some = rng.random(len(X)) < sigmoid(X @ np.append(-1.0, rng.normal(0, 0.4, 5)))
    return X, some * np.exp(X @ np.append(6.0, rng.normal(0, 0.3, 5)) + rng.normal(0, 1.2, len(X)))


def gamma_regression(X, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 10))
    w = normal("w", X.shape[1], 1000.0)
    shape = numpyro.sample("shape", dist.HalfNormal(5))
    with numpyro.plate("rows", X.shape[0]) as rows:
        mean = jnp.exp(intercept + X[rows] @ w)
        numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y[rows])


@problem(
    gamma_regression,
    "intercept w shape",
    500,
    "columns with scales from 0.001 to 1000: the density overflows at almost all of NumPyro's usual starts",
)
def gamma_raw(rng):
    scales = np.geomspace(1e-3, 1e3, 7)
    X = columns(rng, 30_000, 7) * scales
    mean = np.exp(1.0 + X @ (rng.normal(0, 0.3, 7) / scales))
    return X, rng.gamma(2.0, mean / 2.0)


def beta_regression_model(X, y):
    w = normal("w", X.shape[1], 2.0)
    precision = numpyro.sample("precision", dist.Gamma(2, 0.1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        mean = jax.nn.sigmoid(X[rows] @ w)
        numpyro.sample("y", dist.Beta(mean * precision, (1 - mean) * precision), obs=y[rows])


@problem(beta_regression_model, "w precision", 200, "shares between 0 and 1")
def beta_regression(rng):
    X = with_ones(columns(rng, 5_000, 5))
    mean = sigmoid(X @ np.append(-0.5, rng.normal(0, 0.4, 5)))
    return X, rng.beta(mean * 12, (1 - mean) * 12).clip(1e-4, 1 - 1e-4)


# %%
# Linear regressions
# ------------------


def linear(X, y, prior_sd=10.0, noise=5.0):
    w = normal("w", X.shape[1], prior_sd)
    sigma = numpyro.sample("sigma", dist.HalfNormal(noise))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=y[rows])


@problem(partial(linear, prior_sd=100.0), "w sigma", 200, "a column of mean 50, so intercept and slope go together")
def linear_mean_50(rng):
    x = rng.normal(50, 5, 5_000)
    return with_ones(x[:, None]), 3 + 0.7 * x + rng.normal(0, 2.0, len(x))


@problem(
    partial(linear, prior_sd=1000.0, noise=100.0),
    "w sigma",
    500,
    "an experiment: the effect of a treatment, given the spending before it, in currency",
)
def cuped(rng):
    before = rng.gamma(4.0, 50.0, 20_000)
    treated = rng.random(len(before)) < 0.5
    y = 20 + 3 * treated + 0.8 * before + rng.normal(0, 60, len(before))
    return with_ones(np.column_stack([treated, before])), y


@problem(partial(linear, prior_sd=10.0), "w sigma", 100, "a cubic in years from 0 to 10, in raw powers")
def polynomial(rng):
    x = rng.uniform(0, 10, 2_000)
    X = x[:, None] ** np.arange(4)
    return X, X @ np.array([1.0, 2.0, -0.5, 0.04]) + rng.normal(0, 1.0, len(x))


@problem(linear, "w sigma", 100, "each row holds the two values before it and a trend")
def autoregression(rng):
    y = np.zeros(3_002)
    for t in range(2, len(y)):
        y[t] = 0.5 + 1.2 * y[t - 1] - 0.35 * y[t - 2] + 0.0002 * t + rng.normal(0, 0.5)
    trend = np.arange(3_000) / 1000
    return np.column_stack([np.ones(3_000), y[1:-1], y[:-2], trend]), y[2:]


@problem(linear, "w sigma", 500, "misspecified: the noise has a Student-t law with 2.5 degrees of freedom")
def misspecified(rng):
    X = with_ones(columns(rng, 10_000, 5))
    return X, X @ rng.normal(0, 1, 6) + rng.standard_t(2.5, len(X))


@problem(linear, "w sigma", 100, "two columns that are almost the same")
def collinear(rng):
    X = columns(rng, 2_000, 4)
    X[:, 3] = X[:, 2] + 0.02 * X[:, 3]
    return with_ones(X), X @ np.array([1.0, -0.5, 0.3, 0.3]) + rng.normal(0, 0.7, len(X))


def location_scale(y):
    mu = numpyro.sample("mu", dist.Normal(0, 100))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(10))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y[rows])


@problem(location_scale, "mu sigma", 20, "a mean and a standard deviation from 200 rows")
def two_parameters(rng):
    return (rng.normal(170, 8, 200),)


def student_t_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.StudentT(nu, X[rows] @ w, sigma), obs=y[rows])


@problem(student_t_model, "w sigma nu", 500, "unknown degrees of freedom")
def student_t(rng):
    X = with_ones(columns(rng, 20_000, 10))
    return X, X @ rng.normal(0, 1, 11) + 0.8 * rng.standard_t(4, len(X))


def laplace_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    scale = numpyro.sample("scale", dist.HalfNormal(2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Laplace(X[rows] @ w, scale), obs=y[rows])


@problem(laplace_model, "w scale", 200, "robust: absolute deviations, whose gradients jump", start="uniform")
def laplace_regression(rng):
    X = with_ones(columns(rng, 5_000, 6))
    return X, X @ rng.normal(0, 1, 7) + rng.laplace(0, 0.6, len(X))


def quantile_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    scale = numpyro.sample("scale", dist.HalfNormal(2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.AsymmetricLaplaceQuantile(X[rows] @ w, scale, 0.9), obs=y[rows])


@problem(quantile_model, "w scale", 500, "the 90 % quantile, by an asymmetric Laplace law", start="uniform")
def quantile_regression(rng):
    X = with_ones(columns(rng, 10_000, 5))
    return X, X @ rng.normal(0, 1, 6) + rng.gumbel(0, 0.8, len(X))


def heteroscedastic_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    v = normal("v", X.shape[1])
    with numpyro.plate("rows", X.shape[0]) as rows:
        x = X[rows]
        numpyro.sample("y", dist.Normal(x @ w, jnp.exp(x @ v)), obs=y[rows])


@problem(heteroscedastic_model, "w v", 500, "the logarithm of the noise is a regression too")
def heteroscedastic(rng):
    X = with_ones(columns(rng, 10_000, 5))
    return X, X @ rng.normal(0, 1, 6) + np.exp(X @ np.append(-0.5, rng.normal(0, 0.3, 5))) * rng.standard_normal(len(X))


def lognormal_model(X, group, y):
    w = normal("w", X.shape[1])
    base = numpyro.sample("base", dist.Normal(7, 2))
    with numpyro.plate("lines", 8):
        line = numpyro.sample("line", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        g = group[rows]
        numpyro.sample("y", dist.LogNormal(base + line[g] + X[rows] @ w, sigma[g]), obs=y[rows])


@problem(lognormal_model, "w base line sigma", 500, "claims in eight lines of business, each with its own spread")
def lognormal_claims(rng):
    X, group = columns(rng, 12_000, 5), unequal_groups(rng, 12_000, 8)
    mean = 7.5 + rng.normal(0, 0.7, 8)[group] + X @ rng.normal(0, 0.2, 5)
    return X, group, np.exp(mean + rng.uniform(0.6, 1.8, 8)[group] * rng.standard_normal(len(X)))


def tobit_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(3))
    with numpyro.plate("rows", X.shape[0]) as rows:
        mean, value = X[rows] @ w, y[rows]
        log_density = dist.Normal(mean, sigma).log_prob(value)
        numpyro.factor("y", jnp.where(value > 0, log_density, jax.scipy.stats.norm.logcdf(-mean / sigma)))


@problem(tobit_model, "w sigma", 200, "censored at 0")
def tobit(rng):
    X = with_ones(columns(rng, 5_000, 5))
    return X, np.maximum(X @ np.append(0.5, rng.normal(0, 1, 5)) + rng.normal(0, 1.5, len(X)), 0)


# %%
# Sparse regressions
# ------------------


def horseshoe_model(X, y):
    d = X.shape[1]
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    tau = numpyro.sample("tau", dist.HalfCauchy(0.05))
    slab = numpyro.sample("slab", dist.InverseGamma(2, 8))
    width = numpyro.sample("width", dist.HalfCauchy(1).expand([d]).to_event(1))
    z = normal("z", d)
    width = jnp.sqrt(slab) * width / jnp.sqrt(slab + (tau * width) ** 2)
    w = numpyro.deterministic("w", z * tau * width)
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=y[rows])


@problem(
    horseshoe_model,
    "w sigma tau",
    100,
    "regularised horseshoe, 40 coefficients of which 6 are large; funnels, on which NUTS diverges too",
    target_accept=0.95,
    max_tree_depth=9,
    start="uniform",
)
def horseshoe(rng):
    X = columns(rng, 2_000, 40)
    w = np.zeros(40)
    w[::7] = rng.normal(0, 1, 6)
    return X, X @ w + rng.normal(0, 1, len(X))


def lasso_model(X, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    w = numpyro.sample("w", dist.Laplace(0, 0.1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(intercept + X[rows] @ w, sigma), obs=y[rows])


@problem(lasso_model, "intercept w sigma", 50, "98 coefficients with a Laplace prior, 1000 rows", start="uniform")
def lasso(rng):
    X = columns(rng, 1_000, 98)
    return X, 1 + X @ np.where(rng.random(98) < 0.1, rng.normal(0, 1, 98), 0) + rng.normal(0, 1, len(X))


# %%
# Hierarchies
# -----------


def centred_model(X, group, y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    w = normal("w", 2, 2.0)
    with numpyro.plate("groups", 200):
        intercept = numpyro.sample("intercept", dist.Normal(mu, tau))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(intercept[group[rows]] + X[rows] @ w, sigma), obs=y[rows])


@problem(centred_model, "mu tau sigma w intercept", 500, "200 groups of 100 rows, centred", start="uniform")
def centred_hierarchy(rng):
    X, group = columns(rng, 20_000, 2), unequal_groups(rng, 20_000, 200)
    return X, group, rng.normal(1.0, 0.6, 200)[group] + X @ [0.5, -0.3] + rng.normal(0, 1.0, len(X))


def radon_model(floor, uranium, county, y):
    gamma = normal("gamma", 3, 2.0)  # intercept, uranium, floor
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("counties", uranium.shape[0]):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
    intercept, slope = gamma[0] + gamma[1] * uranium + tau[0] * a, gamma[2] + tau[1] * b
    with numpyro.plate("rows", len(y)) as rows:
        c = county[rows]
        numpyro.sample("y", dist.Normal(intercept[c] + slope[c] * floor[rows], sigma), obs=y[rows])


@problem(
    radon_model,
    "gamma tau sigma a b",
    50,
    "919 rows in 85 counties, a predictor of each level, not centred",
    start="uniform",
)
def radon_like(rng):
    county, floor, uranium = unequal_groups(rng, 919, 85), rng.random(919) < 0.17, rng.normal(0, 0.4, 85)
    intercept, slope = 1.4 + 0.7 * uranium + rng.normal(0, 0.15, 85), -0.6 + rng.normal(0, 0.25, 85)
    return floor.astype(float), uranium, county, intercept[county] + slope[county] * floor + rng.normal(0, 0.75, 919)


def partially_pooled(player, hit):
    loc = numpyro.sample("loc", dist.Normal(-1, 1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    with numpyro.plate("players", 18):
        logit = numpyro.sample("logit", dist.Normal(loc, scale))
    with numpyro.plate("rows", len(hit)) as rows:
        numpyro.sample("hit", dist.Bernoulli(logits=logit[player[rows]]), obs=hit[rows])


def fully_pooled(player, hit):
    chance = numpyro.sample("chance", dist.Uniform(0, 1))
    with numpyro.plate("rows", len(hit)) as rows:
        numpyro.sample("hit", dist.Bernoulli(chance), obs=hit[rows])


def not_pooled(player, hit):
    with numpyro.plate("players", 18):
        chance = numpyro.sample("chance", dist.Uniform(0, 1))
    with numpyro.plate("rows", len(hit)) as rows:
        numpyro.sample("hit", dist.Bernoulli(chance[player[rows]]), obs=hit[rows])


def at_bats(rng):
    """18 players, 45 times at bat each, with the hits of Efron and Morris (1975)."""
    hits = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
    player = np.repeat(np.arange(18), 45)
    order = rng.permutation(len(player))
    return player[order], (np.tile(np.arange(45), 18) < hits[player])[order]


@problem(
    partially_pooled,
    "loc scale logit",
    50,
    "810 rows, centred: a scale that may be 0, so a funnel, on which NUTS diverges; the reference is that of "
    "the non-centred form",
    decentre=("logit",),
    target_accept=0.95,
    start="uniform",
)
def baseball_partial(rng):
    return at_bats(rng)


@problem(fully_pooled, "chance", 50, "810 rows, one parameter")
def baseball_pooled(rng):
    return at_bats(rng)


@problem(not_pooled, "chance", 50, "810 rows, a chance for each player")
def baseball_not_pooled(rng):
    return at_bats(rng)


def admissions_model(dept, male, admit):
    v_mu = normal("v_mu", 2, 2.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1).expand([2]).to_event(1))
    rho = numpyro.sample("rho", dist.LKJCholesky(2, 2.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([6, 2]).to_event(2))
    v = numpyro.deterministic("v", v_mu + z @ (sigma[:, None] * rho).T)
    with numpyro.plate("rows", len(admit)) as rows:
        d = dept[rows]
        numpyro.sample("admit", dist.Bernoulli(logits=v[d, 0] + v[d, 1] * male[rows]), obs=admit[rows])


@problem(
    admissions_model,
    "v_mu sigma rho v",
    100,
    "4526 applicants of 6 departments, correlated effects, not centred; NUTS diverges a little",
    target_accept=0.95,
    start="uniform",
)
def ucbadmit(rng):
    """The admissions of Berkeley (Bickel and others, 1975), an applicant a row."""
    table = [  # department, male, applications, admitted
        (0, 1, 825, 512), (0, 0, 108, 89), (1, 1, 560, 353), (1, 0, 25, 17), (2, 1, 325, 120), (2, 0, 593, 202),
        (3, 1, 417, 138), (3, 0, 375, 131), (4, 1, 191, 53), (4, 0, 393, 94), (5, 1, 373, 22), (5, 0, 341, 24),
    ]  # fmt: skip
    rows = np.concatenate([[(dept, male, k < yes) for k in range(n)] for dept, male, n, yes in table])
    return tuple(rng.permutation(rows).T)


def random_slopes_model(x, group, y):
    mu = normal("mu", 2, 2.0)
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("groups", 40):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
    effect = mu + tau * z
    with numpyro.plate("rows", len(y)) as rows:
        e = effect[group[rows]]
        numpyro.sample("y", dist.Bernoulli(logits=e[:, 0] + e[:, 1] * x[rows]), obs=y[rows])


@problem(random_slopes_model, "mu tau z", 500, "logistic, 40 groups, not centred", start="uniform")
def random_slopes(rng):
    x, group = rng.standard_normal(20_000), unequal_groups(rng, 20_000, 40)
    eta = rng.normal(-0.5, 0.7, 40)[group] + rng.normal(0.8, 0.4, 40)[group] * x
    return x, group, rng.random(len(x)) < sigmoid(eta)


def crossed_model(subject, item, y):
    mu = numpyro.sample("mu", dist.Normal(6, 2))
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("subjects", 60):
        a = numpyro.sample("a", dist.Normal(0, scales[0]))
    with numpyro.plate("items", 30):
        b = numpyro.sample("b", dist.Normal(0, scales[1]))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu + a[subject[rows]] + b[item[rows]], sigma), obs=y[rows])


@problem(
    crossed_model,
    "mu scales sigma a b",
    500,
    "60 subjects, 30 items: their mean hardly told apart from mu",
    start="uniform",
)
def crossed_factors(rng):
    subject, item = rng.integers(60, size=10_000), rng.integers(30, size=10_000)
    return (
        subject,
        item,
        6 + rng.normal(0, 0.3, 60)[subject] + rng.normal(0, 0.15, 30)[item] + rng.normal(0, 0.4, 10_000),
    )


def item_response_model(person, item, y):
    with numpyro.plate("people", 280):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("items", 40):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=ability[person[rows]] - difficulty[item[rows]]), obs=y[rows])


@problem(item_response_model, "ability difficulty", 500, "280 people and 40 items")
def item_response(rng):
    person, item = rng.integers(280, size=12_000), rng.integers(40, size=12_000)
    eta = rng.normal(0, 1, 280)[person] - rng.normal(0, 1, 40)[item]
    return person, item, rng.random(12_000) < sigmoid(eta)


def two_parameter_model(person, item, y):
    with numpyro.plate("people", 100):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("items", 20):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
        slope = numpyro.sample("slope", dist.LogNormal(0, 0.5))
    with numpyro.plate("rows", len(y)) as rows:
        i = item[rows]
        numpyro.sample("y", dist.Bernoulli(logits=slope[i] * (ability[person[rows]] - difficulty[i])), obs=y[rows])


@problem(
    two_parameter_model,
    "ability difficulty slope",
    100,
    "two parameters an item: a product of latents",
    start="uniform",
)
def item_response_2pl(rng):
    person, item = (x.ravel() for x in np.meshgrid(np.arange(100), np.arange(20)))
    eta = rng.lognormal(0, 0.4, 20)[item] * (rng.normal(0, 1, 100)[person] - rng.normal(0, 1, 20)[item])
    order = rng.permutation(2_000)
    return person[order], item[order], (rng.random(2_000) < sigmoid(eta))[order]


def ratings_model(X, Y):
    mu = numpyro.sample("mu", dist.Normal(3, 1))
    w = normal("w", X.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("features", 3, dim=-2), numpyro.plate("items", Y.shape[1], dim=-1):
        loading = numpyro.sample("loading", dist.Normal(0, tau))
    with numpyro.plate("items", Y.shape[1], dim=-1):
        item = numpyro.sample("item", dist.Normal(0, 1))
    with numpyro.plate("rows", Y.shape[0], dim=-2) as rows, numpyro.plate("items", Y.shape[1], dim=-1):
        x = X[rows]
        numpyro.sample("Y", dist.Normal(mu + (x @ w)[:, None] + item + x @ loading, sigma), obs=Y[rows])


@problem(
    ratings_model,
    "mu w sigma tau item loading",
    50,
    "a matrix of 1500 users and 20 items: two crossed plates",
    start="uniform",
)
def ratings_matrix(rng):
    X = columns(rng, 1_500, 3)
    mean = 3 + (X @ [0.3, -0.2, 0.1])[:, None] + rng.normal(0, 0.5, 20) + X @ rng.normal(0, 0.2, (3, 20))
    return X, mean + rng.normal(0, 0.8, mean.shape)


def league_model(home, away, goals):
    base = numpyro.sample("base", dist.Normal(0, 1).expand([2]).to_event(1))  # home, away
    scales = numpyro.sample("scales", dist.HalfNormal(0.5).expand([2]).to_event(1))
    attack = numpyro.sample("attack", dist.ZeroSumNormal(1.0, event_shape=(20,)))
    defence = numpyro.sample("defence", dist.ZeroSumNormal(1.0, event_shape=(20,)))
    with numpyro.plate("rows", len(home)) as rows:
        h, a = home[rows], away[rows]
        strength = [scales[0] * attack[h] - scales[1] * defence[a], scales[0] * attack[a] - scales[1] * defence[h]]
        rates = jnp.exp(base + jnp.stack(strength, -1))
        numpyro.sample("goals", dist.Poisson(rates).to_event(1), obs=goals[rows])


@problem(
    league_model,
    "base scales attack defence",
    50,
    "five seasons of twenty teams: effects that sum to zero",
    start="uniform",
)
def football_league(rng):
    pairs = np.array([(h, a) for h in range(20) for a in range(20) if h != a])
    home, away = np.tile(pairs, (5, 1))[rng.permutation(5 * len(pairs))].T
    attack, defence = rng.normal(0, 0.25, (2, 20))
    rates = np.stack([0.4 + attack[home] - defence[away], 0.1 + attack[away] - defence[home]], 1)
    return home, away, rng.poisson(np.exp(rates))


# %%
# Mixtures, simplices, covariance matrices
# ----------------------------------------


def mixture_model(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    prior = dist.TransformedDistribution(dist.Normal(0, 5).expand([3]).to_event(1), OrderedTransform())
    means = numpyro.sample("means", prior)
    scales = numpyro.sample("scales", dist.LogNormal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        components = dist.Normal(means, scales)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=weights), components), obs=y[rows])


@problem(
    mixture_model,
    "weights means scales",
    500,
    "three normals with ordered means; a chain may begin with two of them in one place",
    start="median",
)
def mixture(rng):
    k = rng.choice(3, 20_000, p=[0.3, 0.5, 0.2])
    return (rng.normal(np.array([-3.0, 0.0, 4.0])[k], np.array([0.7, 1.0, 1.5])[k]),)


def contaminated_model(X, y):
    w = normal("w", X.shape[1], 5.0)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    share = numpyro.sample("share", dist.Beta(1, 10))
    with numpyro.plate("rows", X.shape[0]) as rows:
        mean = X[rows] @ w
        both = dist.Normal(mean[:, None], jnp.stack([sigma, 10 * sigma]))
        mixing = dist.Categorical(probs=jnp.stack([1 - share, share]))
        numpyro.sample("y", dist.MixtureSameFamily(mixing, both), obs=y[rows])


@problem(contaminated_model, "w sigma share", 200, "one row in twenty is an outlier: a mixture of two widths")
def outliers(rng):
    X = with_ones(columns(rng, 5_000, 4))
    noise = np.where(rng.random(len(X)) < 0.05, 8.0, 0.8) * rng.standard_normal(len(X))
    return X, X @ rng.normal(0, 1, 5) + noise


def mvn_model(Y):
    mu = normal("mu", 5, 5.0)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2).expand([5]).to_event(1))
    L = numpyro.sample("L", dist.LKJCholesky(5, 2.0))
    with numpyro.plate("rows", Y.shape[0]) as rows:
        numpyro.sample("Y", dist.MultivariateNormal(mu, scale_tril=sigma[:, None] * L), obs=Y[rows])


@problem(mvn_model, "mu sigma L", 500, "five dimensions, a Cholesky factor of the correlations")
def mvn_lkj(rng):
    return (1 + columns(rng, 10_000, 5, 0.7) * np.geomspace(0.3, 5, 5),)


def dirichlet_counts(Y):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(6)))
    kappa = numpyro.sample("kappa", dist.LogNormal(3, 1))
    with numpyro.plate("rows", Y.shape[0]) as rows:
        numpyro.sample("Y", dist.DirichletMultinomial(kappa * share, total_count=30), obs=Y[rows])


@problem(dirichlet_counts, "share kappa", 100, "overdispersed counts of six kinds, on a simplex")
def dirichlet_multinomial(rng):
    share = rng.dirichlet(20 * np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03]), 5_000)
    return (np.array([rng.multinomial(30, p) for p in share]),)


def conversion_model(arm, y):
    with numpyro.plate("arms", 2):
        rate = numpyro.sample("rate", dist.Beta(1, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Bernoulli(rate[arm[rows]]), obs=y[rows])


@problem(conversion_model, "rate", 1000, "an A/B test: two rates near 0.02")
def conversion(rng):
    arm = rng.integers(2, size=100_000)
    return arm, rng.random(len(arm)) < np.array([0.02, 0.022])[arm]


# %%
# Durations and extremes
# ----------------------


def weibull_model(X, time_, observed):
    w = normal("w", X.shape[1], 2.0)
    shape = numpyro.sample("shape", dist.Gamma(2, 1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        t, seen = time_[rows], observed[rows]
        scaled = jnp.log(t) - X[rows] @ w
        log_hazard = jnp.log(shape) + (shape * scaled) - jnp.log(t)
        numpyro.factor("time", seen * log_hazard - jnp.exp(shape * scaled))


@problem(weibull_model, "w shape", 200, "Weibull durations, a third of them censored")
def weibull_survival(rng):
    X = with_ones(columns(rng, 8_000, 5))
    duration = np.exp(X @ np.append(2.0, rng.normal(0, 0.4, 5))) * rng.weibull(1.4, len(X))
    limit = rng.uniform(2, 25, len(X))
    return X, np.minimum(duration, limit), (duration <= limit).astype(float)


def waiting_model(group, y):
    centre = numpyro.sample("centre", dist.TruncatedNormal(1.0, 1.0, low=0))
    with numpyro.plate("groups", 12):
        rate = numpyro.sample("rate", dist.TruncatedNormal(centre, 0.5, low=0.05, high=4.0))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Exponential(rate[group[rows]]), obs=y[rows])


@problem(
    waiting_model, "centre rate", 200, "exponential waiting times, rates with truncated normal priors, one at its bound"
)
def truncated_rates(rng):
    group = unequal_groups(rng, 6_000, 12)
    return group, rng.exponential(1 / np.append(0.05, rng.uniform(0.3, 2.0, 11))[group])


def gumbel_model(year, y):
    a = numpyro.sample("a", dist.Normal(30, 20))
    b = numpyro.sample("b", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(20))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Gumbel(a + b * (year[rows] - 1900), scale), obs=y[rows])


@problem(gumbel_model, "a b scale", 40, "yearly maxima at several stations with a trend in calendar years")
def yearly_maxima(rng):
    year = rng.integers(1930, 2025, 600).astype(float)
    return year, rng.gumbel(40 + 0.15 * (year - 1900), 9.0)


# %%
# Curves
# ------


def basis_model(x, y):
    """A Gaussian process on (-1.5, 1.5) by 30 functions of a Hilbert space, with the spectrum of the squared kernel."""
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    length = numpyro.sample("length", dist.InverseGamma(4, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    beta = normal("beta", 30)
    frequency = jnp.arange(1, 31) * jnp.pi / 3
    density = alpha**2 * jnp.sqrt(2 * jnp.pi) * length * jnp.exp(-0.5 * (length * frequency) ** 2)

    def curve(x):
        return jnp.sqrt(2 / 3) * jnp.sin(frequency * (x[:, None] + 1.5)) @ (jnp.sqrt(density) * beta)

    numpyro.deterministic("curve", curve(jnp.linspace(-1, 1, 15)))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(curve(x[rows]), sigma), obs=y[rows])


@problem(
    basis_model,
    "alpha length sigma curve",
    100,
    "a Gaussian process by 30 basis functions, its length and height unknown, not centred; NUTS diverges a little",
    target_accept=0.98,
    start="uniform",
)
def gaussian_process(rng):
    x = rng.uniform(-1, 1, 2_000)
    return x, np.sin(5 * x) + 0.5 * np.cos(11 * x) + rng.normal(0, 0.3, len(x))


def dose_model(dose, y):
    bottom = numpyro.sample("bottom", dist.Normal(0, 20))
    top = numpyro.sample("top", dist.Normal(100, 20))
    log_ec50 = numpyro.sample("log_ec50", dist.Normal(0, 3))
    hill = numpyro.sample("hill", dist.LogNormal(0, 0.7))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("rows", len(y)) as rows:
        mean = bottom + (top - bottom) * jax.nn.sigmoid(hill * (jnp.log(dose[rows]) - log_ec50))
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y[rows])


@problem(dose_model, "bottom top log_ec50 hill sigma", 50, "a dose-response curve with four parameters, not linear")
def dose_response(rng):
    dose = rng.choice(np.geomspace(0.01, 100, 12), 600)
    return dose, 5 + 85 * sigmoid(1.3 * (np.log(dose) - 0.8)) + rng.normal(0, 6, len(dose))


def growth_model(age, y):
    limit = numpyro.sample("limit", dist.Normal(100, 50))
    rate = numpyro.sample("rate", dist.HalfNormal(1))
    birth = numpyro.sample("birth", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("rows", len(y)) as rows:
        mean = limit * -jnp.expm1(-rate * (age[rows] - birth))
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y[rows])


@problem(growth_model, "limit rate birth sigma", 100, "growth towards a limit that few rows have reached")
def growth_curve(rng):
    age = rng.gamma(3.0, 1.5, 3_000) + 0.5
    return age, 120 * (1 - np.exp(-0.15 * (age + 0.8))) + rng.normal(0, 5, len(age))


def seasonal_model(t, waves, y):
    level = numpyro.sample("level", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    change = numpyro.sample("change", dist.Laplace(0, 0.5).expand([15]).to_event(1))
    season = normal("season", waves.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    knots = jnp.linspace(0, 0.8, 17)[1:-1]
    with numpyro.plate("rows", len(y)) as rows:
        x = t[rows]
        trend = level + slope * x + jnp.maximum(x[:, None] - knots, 0) @ change
        numpyro.sample("y", dist.Normal(trend + waves[rows] @ season, sigma), obs=y[rows])


@problem(
    seasonal_model, "level slope change season sigma", 100, "trend with changes of slope, and seasons: 38 coordinates"
)
def seasons(rng):
    day = np.arange(2_000)
    phases = [2 * np.pi * k * day / period for period, top in ((365.25, 7), (7.0, 3)) for k in range(1, top + 1)]
    waves, t = np.column_stack([f(phase) for phase in phases for f in (np.sin, np.cos)]), day / 2_000
    trend = 2 + 3 * t - 4 * np.maximum(t - 0.4, 0)
    y = trend + waves @ rng.normal(0, 0.3, 20) + rng.normal(0, 0.4, len(t))
    order = rng.permutation(len(t))
    return t[order], waves[order], y[order]


# %%
# The reference
# -------------
# NUTS on all rows. It goes on until the slowest coordinate has an effective sample size of a thousand, or its time is
# up. Where the posterior is nearly normal, the chains start around the mode with the inverse of the Hessian there as
# their metric: from a usual start on raw columns the warm-up alone takes most of an hour, and as NumPyro shrinks the
# metric towards 0.001, it never finds one for coordinates with a standard deviation of a millionth. Elsewhere the
# metric is adapted, dense up to a hundred coordinates.

REFERENCE = {
    "start": "laplace",  # or one of STARTS
    "warmup": 500,  # a fifth of it for a start at the mode
    "samples": 500,  # of each chain, until they are asked for again
    "chains": 4,
    "chain_method": "vectorized",
    "target_accept": 0.8,
    "max_tree_depth": 10,
    "decentre": (),  # sites that the reference samples in their non-centred form
    "dense": 100,  # up to so many coordinates
    "ess": 1000,
    "seconds": 400,
}
STARTS = {"uniform": init_to_uniform, "median": init_to_median, "feasible": init_to_feasible}


class Reference(NamedTuple):
    """Moments of the posterior, an entry for each coordinate that varies."""

    names: np.ndarray  # w[0], w[1], ...
    mean: np.ndarray
    sd: np.ndarray
    mean_se: np.ndarray  # Monte Carlo errors
    sd_se: np.ndarray
    ess: np.ndarray
    r_hat: np.ndarray
    divergences: int
    draws: int
    gradients: float  # passes through the data of one chain for one draw
    seconds: float


def flat(draws, sites):
    """Names of the coordinates, and an array of shape (chains, draws, coordinates)."""
    names, arrays = [], []
    for site in sites:
        x = np.asarray(draws[site], float)
        shape = x.shape[2:]
        names += [site + (str(list(index)).replace(" ", "") if index else "") for index in np.ndindex(shape)]
        arrays.append(x.reshape(*x.shape[:2], -1))
    return np.array(names), np.concatenate(arrays, 2)


def moments(x):
    """Mean, sd, their standard errors, effective sample sizes and split R-hat of shape=(chains, draws, coordinates)."""
    mean, sd = x.mean((0, 1)), x.std((0, 1))
    z = (x - mean) / sd
    ess = effective_sample_size(z)
    sd_se = sd * (z**2).std((0, 1)) / np.sqrt(effective_sample_size(z**2)) / 2
    return mean, sd, sd / np.sqrt(ess), sd_se, ess, split_gelman_rubin(z)


def reference(problem, seed=0, **changes):
    """The posterior of a problem by NUTS on all rows."""
    settings = REFERENCE | problem.nuts | changes
    begin = time.perf_counter()
    data = [jnp.asarray(x) for x in problem.args]
    model = handlers.reparam(problem.model, config={site: LocScaleReparam(0) for site in settings["decentre"]})
    near_mode = laplace(problem, data, settings["chains"], seed) if settings["start"] == "laplace" else None
    starts, covariance = near_mode or (None, None)
    kernel = NUTS(
        model,
        init_strategy=STARTS.get(settings["start"], init_to_feasible),
        target_accept_prob=settings["target_accept"],
        max_tree_depth=settings["max_tree_depth"],
        dense_mass=near_mode is not None or dimension(problem) <= settings["dense"],
        inverse_mass_matrix=covariance,
        adapt_mass_matrix=near_mode is None,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=settings["warmup"] if near_mode is None else settings["warmup"] // 5,
        num_samples=settings["samples"],
        num_chains=settings["chains"],
        chain_method=settings["chain_method"],
        progress_bar=False,
    )
    key, parts, divergences, leapfrogs = random.key(seed), [], 0, []
    while True:
        mcmc.run(key, *data, extra_fields=("diverging", "num_steps"), init_params=starts)
        names, x = flat(mcmc.get_samples(group_by_chain=True), problem.sites)
        parts.append(x)
        told = mcmc.get_extra_fields()
        divergences += int(told["diverging"].sum())
        leapfrogs.append(float(told["num_steps"].mean()))
        x = np.concatenate(parts, 1)
        varies = np.ptp(x, (0, 1)) > 1e-6 * np.abs(x).max((0, 1))
        found = moments(x[:, :, varies])
        seconds = time.perf_counter() - begin
        # another part takes no longer than the mean of those before
        if found[4].min() >= settings["ess"] or seconds * (1 + 1 / len(parts)) > settings["seconds"]:
            break
        mcmc.post_warmup_state = mcmc.last_state
        key = mcmc.last_state.rng_key
    return Reference(names[varies], *found, divergences, x.shape[0] * x.shape[1], np.mean(leapfrogs), seconds)


def laplace(problem, data, chains, seed, iterations=50):
    """
    Starts and the covariance of the normal law at the mode, by Newton's method on all rows from the prior's middle;
    None if it finds no mode.
    """
    info = initialize_model(random.key(seed), problem.model, model_args=data, init_strategy=init_to_feasible())
    flat, unravel = ravel_pytree(info.param_info.z)
    energy = jax.jit(lambda v: info.potential_fn(unravel(v)))
    gradient = jax.jit(jax.grad(energy))
    # a product with the Hessian after another: all at once would be d copies of what a pass computes
    hessian = jax.jit(lambda v: lax.map(lambda e: jax.jvp(jax.grad(energy), (v,), (e,))[1], jnp.eye(len(flat))))
    z, best = np.asarray(flat, float), float(energy(flat))
    for _ in range(iterations):
        g, H = np.asarray(gradient(z), float), np.asarray(hessian(z), float)
        scale = np.sqrt(np.abs(np.diag(H)) + 1e-30)
        curvature, axes = np.linalg.eigh((H + H.T) / 2 / np.outer(scale, scale))
        definite = curvature.min() > 1e-7
        curvature = np.maximum(np.abs(curvature), 1e-7)
        step = -axes @ (axes.T @ (g / scale) / curvature) / scale
        left = -g @ step  # squared distance from the mode, in posterior standard deviations
        if left < 0.1 * len(z) and definite:
            root = axes / np.sqrt(curvature) / scale[:, None]
            around = z + np.random.default_rng(seed).standard_normal((chains, len(z))) @ root.T
            return jax.vmap(unravel)(jnp.asarray(around, flat.dtype)), jnp.asarray(root @ root.T, flat.dtype)
        for shorter in 0.5 ** np.arange(20):
            new = float(energy(z + shorter * step))
            if new < best:
                break
        else:
            return None
        z, best = z + shorter * step, new
    return None


def dimension(problem):
    """Number of unconstrained coordinates."""
    data = [jnp.asarray(x) for x in problem.args]
    model = handlers.substitute(handlers.seed(problem.model, 0), substitute_fn=init_to_feasible())
    sites = handlers.trace(model).get_trace(*data).values()
    latents = (site for site in sites if site["type"] == "sample" and not site["is_observed"])
    return sum(int(np.prod(dist.biject_to(s["fn"].support).inverse_shape(jnp.shape(s["value"])))) for s in latents)


def rows(problem):
    """Rows of the data plate."""
    model = handlers.substitute(handlers.seed(problem.model, 0), substitute_fn=init_to_feasible())
    return handlers.trace(model).get_trace(*map(jnp.asarray, problem.args))["rows"]["args"][0]


def size(name):
    """A cheap measure of what a pass through the data costs."""
    return sum(x.size for x in PROBLEMS[name]().args)


def read(path):
    with np.load(path) as archive:
        return Reference(**{field: archive[field][()] for field in Reference._fields})


def write(path, reference):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **reference._asdict())


def describe(name, problem, reference):
    hard = f"{reference.divergences} divergences, " if reference.divergences else ""
    return (
        f"{name:29}{len(reference.names):5d} coordinates {rows(problem):7d} rows  ESS {reference.ess.min():6.0f} of "
        f"{reference.draws:6d}, R-hat {reference.r_hat.max():.3f}, {hard}{reference.gradients:.0f} gradients a draw, "
        f"{reference.seconds:.0f} s"
    )


def main(args):
    names = args.names or sorted(PROBLEMS, key=size)
    for name in names:
        problem = PROBLEMS[name]()
        if args.list:
            print(f"{name:29}{dimension(problem):5d} coordinates {rows(problem):7d} rows  {problem.note}")
        elif not (path := args.reference / f"{name}.npz").exists():
            write(path, reference(problem, args.seed))
            print(describe(name, problem, read(path)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="".join(__doc__.split("\n\n")[1:2]), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="problems (default: all, the cheapest first)")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--list", action="store_true", help="the problems")
    task.add_argument(
        "--reference", type=Path, metavar="FOLDER", help="make NAME.npz by NUTS, for those that are not there"
    )
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
