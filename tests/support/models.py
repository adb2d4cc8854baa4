"""
Small NumPyro models and their data, shared by the tests. Functions of the module, so that kernels pickle.

Every model takes ``N`` rows, and ``B`` divides ``N`` into disjoint minibatches.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
import numpyro.distributions as dist

from numpyro_sgmcmc import Recipe

N, B, DIM = 24, 6, 3
PRIOR_SD = 2.0  # of the mean in `gaussian`

_rng = np.random.default_rng(20)
X = _rng.normal(size=(N, DIM))
COUNTS = (_rng.random(N) < 0.5).astype(int)
ROWS = 0.7 + _rng.normal(size=N)  # for `gaussian` and its relatives
TABLE = _rng.normal(size=(4, N))  # for `crossed`
CATEGORIES = np.arange(N) % 3  # for `shares`
VECTORS = 1.5 * _rng.normal(size=(N, DIM))  # for `constrained`


def gaussian(x):
    """Conjugate: see :func:`gaussian_posterior`."""
    mu = numpyro.sample("mu", dist.Normal(0, PRIOR_SD))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def gaussian_posterior(x):
    """Mean and variance of ``mu`` in :func:`gaussian`."""
    precision = PRIOR_SD**-2 + len(x)
    return float(np.sum(x)) / precision, 1 / precision


def declared(x):
    """:func:`gaussian` with a ``subsample_size`` in the model."""
    mu = numpyro.sample("mu", dist.Normal(0, PRIOR_SD))
    with numpyro.plate("N", len(x), subsample_size=B) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def logistic(x, y=None):
    """Data indexed by the plate."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Bernoulli(logits=x[rows] @ weights), obs=None if y is None else y[rows])


def logistic_subsample(x, y=None, subsample_size=None):
    """:func:`logistic` with data cut by ``numpyro.subsample``, the size of a minibatch declared or not."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=subsample_size):
        batch = numpyro.subsample(x, event_dim=1)
        labels = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("obs", dist.Bernoulli(logits=batch @ weights), obs=labels)


def crossed(table):
    """Two crossed plates without latents in them."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", table.shape[0], dim=-2) as i, numpyro.plate("columns", table.shape[1], dim=-1) as j:
        numpyro.sample("obs", dist.Normal(mu, scale), obs=table[i][:, j])


def constrained(x):
    """Latents on a simplex, on the half line and in the correlation matrices."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(DIM)))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    corr = numpyro.sample("corr", dist.LKJCholesky(DIM, 2.0))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.MultivariateNormal(weights, scale_tril=scale * corr), obs=x[rows])


def deterministics(x):
    """A deterministic site inside the plate, one outside."""
    mu = numpyro.sample("mu", dist.Normal(0, PRIOR_SD))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.plate("N", len(x)) as rows:
        numpyro.deterministic("residual", x[rows] - mu)
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def weighted(x):
    """A factor, a mask and a scale, by row where they stand in the plate."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("prior", -0.5 * (mu - 1) ** 2)
    with numpyro.plate("N", len(x)) as rows:
        batch = x[rows]
        numpyro.factor("extra", -0.1 * (batch - mu) ** 2)
        with handlers.mask(mask=batch > 0), handlers.scale(scale=0.5):
            numpyro.sample("obs", dist.Normal(mu, 1), obs=batch)


def precision(x):
    """Conjugate in the blocks of a Gibbs sampler, see :func:`precision_posterior`."""
    tau = numpyro.sample("tau", dist.Gamma(3, 3))
    mu = numpyro.sample("mu", dist.Normal(0, 1 / jnp.sqrt(tau)))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=x[rows])


def precision_posterior(x):
    """
    Normal-gamma: shape and rate of ``tau``; given ``tau``, ``mu`` is normal with this mean and precision ``k tau``.

    :return: shape, rate, mean, k.
    """
    k = len(x) + 1
    mean = np.sum(x) / k
    return 3 + len(x) / 2, 3 + 0.5 * (np.sum(np.square(x)) - k * mean**2), mean, k


def shares(x):
    """Conjugate."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(3, 0.5)))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Categorical(p), obs=x[rows])


def metric(phase):
    """Of :func:`gaussian`, for recipes."""
    return 1 / (1 + phase.z["mu"] ** 2)


def energy_of_thermostat(phase):
    """Of momentum and thermostat."""
    return 0.5 * phase.momentum["mu"] ** 2 + 0.5 * (phase.auxiliary["xi"] - 1.0) ** 2


def coupling_of_thermostat(phase):
    """The skew matrix of Nosé and Hoover in one dimension."""
    return {("momentum", "mu"): 1.0, ("momentum", "xi"): phase.momentum["mu"].reshape(1, 1)}


THERMOSTAT = Recipe(
    D={"momentum": 1.0}, Q=coupling_of_thermostat, kinetic=energy_of_thermostat, auxiliary={"xi": np.array(1.0)}
)
