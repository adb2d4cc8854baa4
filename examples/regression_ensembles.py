"""
Ensembles of networks for regression: a deep ensemble, and short chains that start at trained members.

All methods see the same number of minibatches, and members are trained by Adam with cosine decay. :func:`choose`
searches the settings of a method on validation rows.
"""

from functools import partial
from typing import Any, NamedTuple

import datasets
import jax
from jax import random
import jax.numpy as jnp
from network_kernels import six_kernels
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import optax

from numpyro_sgmcmc import predict, warm_start

HIDDEN, BATCH = 50, 50
RATE, MOVE = 3e-2, 0.15  # Adam's first step; h sqrt(N) of the chains
DEEP = "deep ensemble"
TUNED = ("MSGNHT ssi", "SGHMC")  # with step sizes h = move / sqrt(N)


class Setting(NamedTuple):
    """
    - **prior** - standard deviation of the weights.
    - **rate** - Adam's first step, of an ensemble or of the starts of chains.
    - **move** - :math:`h \\sqrt{N}` of the chains: a step moves a weight by about its square times the gradient of the
      mean energy of a row.
    """

    prior: float = 1.0
    rate: float = RATE
    move: float = MOVE


PRIORS = (1.0, 2.0, 4.0)
SEARCHED = {DEEP: {"prior": PRIORS, "rate": (3e-2, 1e-2)}}  # the prior is searched with the first of these
SEARCHED |= {name: {"prior": PRIORS, "move": (0.1, 0.03, 0.2)} for name in TUNED}


def model(X, y=None, prior=1.0):
    d = X.shape[1]
    inner = numpyro.sample("inner", dist.Normal(0, prior).expand([d, HIDDEN]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, prior).expand([HIDDEN]).to_event(1))
    outer = numpyro.sample("outer", dist.Normal(0, prior).expand([HIDDEN]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(-1, 1))
    with numpyro.plate("rows", len(X)) as rows:
        mean = jax.nn.relu(X[rows] @ inner / np.sqrt(d) + bias) @ outer / np.sqrt(HIDDEN)
        numpyro.sample("y", dist.Normal(mean, sd), obs=None if y is None else y[rows])


def simulated(seed, rows=1500):
    """Two waves and a product in five columns, under noise of sd 0.3; the last third tests."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, size=(rows, 5)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(3 * X[:, 3]) + 0.3 * rng.normal(size=rows)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    cut = 2 * rows // 3
    return X[:cut], y[:cut], X[cut:], y[cut:]


def simulated_split(seed):
    """The same rows, every second one of the last third for validation."""
    X, y, X_test, y_test = simulated(seed)
    return datasets.Split(X, y, X_test[::2], y_test[::2], X_test[1::2], y_test[1::2])


def samplers(move, rows, steps, draws):
    """
    Names and kernels; ``steps`` of a draw, as many ``draws`` as there will be.

    Of SGHMC, .96 of the momentum is left after a step. The numbers of adaptive SGHMC, and the usual ``move``, were
    chosen on the validation rows of one split of airfoil, from starts by a slower optimizer than that of now.
    """
    h = move / np.sqrt(rows)
    return six_kernels(model, h, 2e-2, 1e-2 / rows, draws // 2, batch_size=BATCH, steps_per_sample=steps)


class Ensembles:
    """All methods on the training rows of one split, from the same starts."""

    def __init__(self, X: Any, y: Any, args: Any, seed: int, setting: Setting):
        self.prior = jnp.float32(setting.prior)  # an argument, so that all priors have the same program
        self.rows, self.args, self.setting = (jnp.asarray(X), jnp.asarray(y), self.prior), args, setting
        self.key_start, self.key_chains = random.split(random.key(seed))

    def trained(self, num_steps: int) -> dict:
        """Members, unconstrained."""
        optimizer = optax.adam(optax.cosine_decay_schedule(self.setting.rate, num_steps))
        options = {"members": self.args.members, "batch_size": BATCH, "progress_bar": False}
        return warm_start(model, self.key_start, *self.rows, num_steps=num_steps, optimizer=optimizer, **options)

    def starts(self) -> dict:
        return self.trained(self.args.steps)

    def deep(self) -> dict:
        """Members that have seen as many minibatches as a start and the chain behind it."""
        return self.trained(3 * self.args.steps)

    def chains(self, name: str, starts: dict) -> MCMC:
        """Half of a chain is its warm-up."""
        args = self.args
        draws = args.steps // args.steps_per_draw
        kernel = samplers(self.setting.move, len(self.rows[0]), args.steps_per_draw, draws)[name]
        chains = {"num_chains": args.members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=draws, num_samples=draws, **chains)
        mcmc.run(self.key_chains, *self.rows, init_params=starts, extra_fields=("i",))
        return mcmc

    def scores(self, draws: Any, X: Any, y: Any) -> dict[str, float]:
        """Of the averaged predictions of an MCMC, or of members."""
        if not isinstance(draws, MCMC):
            draws = model, {name: jnp.exp(x) if name == "sd" else x for name, x in draws.items()}
        found = predict(draws, jnp.asarray(X), jnp.asarray(y), self.prior)
        error = np.sqrt(np.mean((found.mean["y"] - np.asarray(y)) ** 2))
        return {"log density": float(found.log_density["y"].mean()), "error": float(error)}

    def of(self, method: str, X: Any, y: Any) -> dict[str, float]:
        """Scores of one method, from the first minibatch to the last; of chains also their kinetic temperature."""
        if method == DEEP:
            return self.scores(self.deep(), X, y)
        mcmc = self.chains(method, self.starts())
        temperature = float(np.mean(mcmc.get_extra_fields()["monitor"].temperature))
        return self.scores(mcmc, X, y) | {"temperature": temperature}


def compare(X, y, X_test, y_test, args, seed):
    """Scores of each method on one split, with the usual settings."""
    ensembles = Ensembles(X, y, args, seed, Setting())
    of = lambda draws: ensembles.scores(draws, X_test, y_test)  # noqa: E731
    starts, deep = ensembles.starts(), ensembles.deep()
    found = {"one member": of(jax.tree.map(lambda x: x[:1], deep)), "starts": of(starts), DEEP: of(deep)}
    kernels = args.kernels or samplers(MOVE, len(X), 1, 2)
    return found | {name: of(ensembles.chains(name, starts)) for name in kernels}


def choose(method, split, args):
    """The prior, and then the rate or the step size, of the largest log density of validation rows; and all scores."""
    found = {}
    best = Setting(**{name: values[0] for name, values in SEARCHED[method].items()})
    for name, values in ({"prior": PRIORS[:2]} if args.fast else SEARCHED[method]).items():
        for setting in [best._replace(**{name: value}) for value in values]:
            if setting not in found:
                ensembles = Ensembles(split.X, split.y, args, args.seed, setting)
                found[setting] = ensembles.of(method, split.X_valid, split.y_valid)
                print(method, setting, found[setting], flush=True)
        best = max(found, key=lambda setting: np.nan_to_num(found[setting]["log density"], nan=-np.inf))
    searched = [{"setting": setting._asdict(), **scores} for setting, scores in found.items()]
    return {"chosen": best._asdict(), "searched": searched}


def choose_and_test(splits, args, keep):
    """
    What each split has found, by method, with the settings chosen on the first split; and the choices by method. No
    choice has seen a test row of the first split, but its validation rows are test rows of some others.

    :param keep: ``keep(what, number, run)`` is what ``run()`` returns, perhaps from an earlier time.
    """
    methods = (DEEP, *args.tuned)
    choices = {method: keep("choice", method, partial(choose, method, splits[0], args)) for method in methods}

    def score(method, number):
        split, setting = splits[number], Setting(**choices[method]["chosen"])
        ensembles = Ensembles(split.X, split.y, args, number, setting)
        return keep(method, number, partial(ensembles.of, method, split.X_test, split.y_test))

    return [{method: score(method, number) for method in methods} for number in range(len(splits))], choices


def paired(parts, method, sizes):
    """
    Log density less that of the deep ensemble: of each split, mean, and two standard errors; the second is for splits
    that overlap.

    :param sizes: numbers of training and of test rows.
    """
    each = np.array([part[method]["log density"] - part[DEEP]["log density"] for part in parts])
    plain = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    overlap = datasets.error_over_splits(each, *sizes)
    return {"each": each.tolist(), "mean": each.mean(), "error": plain, "error over splits": float(overlap)}
