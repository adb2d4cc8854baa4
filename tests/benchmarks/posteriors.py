"""The posteriors that ``answer.py`` asks for, and their energies written by hand."""

from pathlib import Path
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import datasets  # noqa: E402


class Posterior(NamedTuple):
    """Logistic regression with prior N(0, prior_sd^2)."""

    X: jax.Array
    y: jax.Array
    prior_sd: float


def a9a():
    """32 561 rows, 123 binary columns and an intercept."""
    X, y, *_ = datasets.parts("a9a")
    X, y = datasets.with_intercept(X.astype(np.float32)), datasets.is_class_one("a9a", y)
    order = np.random.default_rng(0).permutation(len(X))
    return Posterior(jnp.asarray(X[order]), jnp.asarray(y[order]), 10**0.5)


def simulated():
    """A million rows, 20 columns, correlated and of unlike scale."""
    from logistic_regression import simulate

    data = simulate(1_000_000, 20, seed=0)
    return Posterior(jnp.asarray(data.X), jnp.asarray(data.y), 3.0)


POSTERIORS = {"a9a": a9a, "simulated": simulated}


def model(X, y, prior_sd, subsample_size=None, axes=None):
    """
    :param axes: orthonormal columns, along which the components "v" of w are sampled in place of w itself.
    """
    prior = dist.Normal(0, prior_sd).expand([X.shape[1]]).to_event(1)
    w = numpyro.sample("w", prior) if axes is None else axes @ numpyro.sample("v", prior)
    with numpyro.plate("N", X.shape[0], subsample_size=subsample_size) as rows:
        # all rows are not indexed, as NUTS would copy them at every gradient
        batch = (X, y) if len(rows) == len(X) else (X[rows], y[rows])
        numpyro.sample("y", dist.Bernoulli(logits=batch[0] @ w), obs=batch[1])


def potential(w, posterior):
    logits = posterior.X @ w
    return 0.5 * jnp.sum((w / posterior.prior_sd) ** 2) + jnp.sum(jax.nn.softplus(logits) - posterior.y * logits)


@jax.jit
def curvature(w, posterior):
    p = jax.nn.sigmoid(posterior.X @ w)
    return jnp.eye(len(w)) / posterior.prior_sd**2 + (posterior.X.T * (p * (1 - p))) @ posterior.X
