"""
A network so small that NUTS samples it: how near are the predictions of others to those of its posterior?

The two measures are those of Izmailov et al. (2021), arXiv 2104.14421: the share of test points that get the same
class (*agreement*), and the total variation distance of the predictive distributions, averaged over the test points.
"""

import jax
from jax import random
import jax.numpy as jnp
from network_kernels import six_kernels
from networks import Network, classifier
import numpy as np
from numpyro.infer import MCMC, NUTS
import optax

from numpyro_sgmcmc import predict, warm_start

UNITS, CLASSES, BATCH = 8, 3, 50
STEPS_PER_DRAW = 100


def logits(w, X):
    return jnp.tanh(X @ w["inner"] + w["bias"]) @ w["outer"] + w["shift"]


NETWORK = Network({"inner": (2, UNITS), "bias": (UNITS,), "outer": (UNITS, CLASSES), "shift": (CLASSES,)}, logits)
MODEL = classifier(NETWORK)


def spirals(seed, rows=150, test_rows=1000):
    """Three arms in the plane, under noise: few rows, so that much is left open; and test points."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=rows + test_rows)
    along = rng.uniform(0.2, 1, size=len(y))
    angle = 2 * np.pi * y / CLASSES + 3 * along
    X = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.2 * rng.normal(size=(len(y), 2))
    X, y = jnp.asarray(2 * X, jnp.float32), jnp.asarray(y, jnp.int32)
    return X[:rows], y[:rows], X[rows:]


def kernels(rows, draws):
    """Name -> kernel; small steps, since there is time for many."""
    h = 0.1 / np.sqrt(rows)
    return six_kernels(MODEL, h, 1e-2, 0.5 / rows, draws // 4, batch_size=BATCH, steps_per_sample=STEPS_PER_DRAW)


def by_nuts(X, y, X_test, draws, seed):
    """Predictions of the posterior, by many chains."""
    chains = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(NUTS(MODEL), num_warmup=draws, num_samples=draws, **chains)
    mcmc.run(random.fold_in(random.key(seed), 9), X, y)
    return predict((MODEL, mcmc.get_samples()), X_test).mean["y"]


def distances(p, q):
    """Agreement and total variation of two tables of class probabilities, a row a test point."""
    agreement = float(np.mean(p.argmax(1) == q.argmax(1)))
    return {"agreement": agreement, "total variation": float(0.5 * np.abs(p - q).sum(1).mean())}


def compare_with_nuts(members, steps, draws, names, seed):
    """
    Method -> distances from NUTS. NUTS itself is a second run of it.

    :param members: of the ensemble, and chains.
    :param steps: minibatches of a start; ensembles see three times, chains twice as many more.
    :param draws: of each chain of NUTS.
    :param names: which of the kernels; none: all.
    """
    X, y, X_test = spirals(seed)
    truth = by_nuts(X, y, X_test, draws, seed)
    key_start, key_chains = random.split(random.key(seed))

    def trained(num_steps):
        optimizer = optax.adam(optax.cosine_decay_schedule(3e-2, num_steps))
        options = {"members": members, "batch_size": BATCH, "progress_bar": False}
        return warm_start(MODEL, key_start, X, y, num_steps=num_steps, optimizer=optimizer, **options)

    def of(draws):
        return distances(predict(draws, X_test).mean["y"], truth)

    starts, ensemble = trained(steps), trained(3 * steps)
    one = jax.tree.map(lambda x: x[:1], ensemble)
    found = {"NUTS": distances(by_nuts(X, y, X_test, draws, seed + 1), truth)}
    found |= {"one member": of((MODEL, one)), "deep ensemble": of((MODEL, ensemble))}
    number = steps // STEPS_PER_DRAW
    every = kernels(len(X), number)
    for name in names or every:
        chains = {"num_chains": members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(every[name], num_warmup=number, num_samples=number, **chains)
        mcmc.run(key_chains, X, y, init_params=starts, extra_fields=("i",))
        found[name] = of(mcmc)
    return found
