"""Networks that classify: data, model, chains seen epoch by epoch, and the quality of their predictions."""

from collections.abc import Callable, Mapping
from functools import partial
import sys
from typing import NamedTuple

import datasets
from devices import place, spread
import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_sgmcmc import MSGNHT

BINS = 15  # of the calibration error
TRAIN_ROWS = 10_000  # training rows on which the training NLL is computed
CHUNK = 2000  # rows predicted at once


# -- data -------------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """``y`` are class numbers 0, 1, ...; ``X`` may be images, shape=(rows, height, width)."""

    name: str
    classes: int
    X: jax.Array
    y: jax.Array
    X_test: jax.Array
    y_test: np.ndarray

    def validation(self, rows, seed):
        """Some of the training rows, a fifth at most, in place of the test part, which stays unseen."""
        rows = min(rows, len(self.X) // 5)
        order = np.random.default_rng(seed).permutation(len(self.X))
        held, kept = order[:rows], order[rows:]
        return self._replace(X=self.X[kept], y=self.y[kept], X_test=self.X[held], y_test=np.asarray(self.y[held]))


def load(name, folder=None, rows=None, test_rows=None, seed=0):
    """
    A classification set, bytes as numbers in (0, 1), other columns standardised by the training part.

    :param name: of an .npz, or None for simulated images.
    :param rows: how many training rows to keep, drawn at random, None for all; ``test_rows``: the first of the others.
    """
    if name is None:
        name, (X, y, X_test, y_test) = "simulated", simulate(rows or 20_000, seed)
    else:
        X, y, X_test, y_test = datasets.parts(name, folder)
    labels = np.unique(y)
    if len(labels) > 100:
        sys.exit(f"the y of {name}.npz are not class numbers: they take {len(labels)} values.")
    order = np.random.default_rng(seed).permutation(len(X))
    if X_test is None:
        test, order = np.split(order, [len(X) // 5])
        X_test, y_test = X[test], y[test]
    X, y, X_test, y_test = X[order[:rows]], y[order[:rows]], X_test[:test_rows], y_test[:test_rows]
    scale = (lambda X: X.astype(np.float32) / 255) if X.dtype == np.uint8 and X.max() > 1 else datasets.standardiser(X)
    number = partial(np.searchsorted, labels)
    X, y, X_test = jnp.asarray(scale(X)), jnp.asarray(number(y), jnp.int32), jnp.asarray(scale(X_test))
    return Data(name, len(labels), X, y, X_test, number(y_test))


def simulate(rows, seed, test_rows=2000, side=14, size=10):
    """Ten fixed patterns of random strokes, each image one of them at a random place and under noise, as bytes."""
    rng = np.random.default_rng(seed)
    patterns = rng.standard_normal((10, size + 2, size + 2))
    patterns = sum(patterns[:, i : i + size, j : j + size] for i in range(3) for j in range(3)) > 1.5
    y = rng.integers(10, size=rows + test_rows)
    place = rng.integers(side - size + 1, size=(len(y), 2))
    X = np.zeros((len(y), side, side))
    for image, label, (i, j) in zip(X, y, place):
        image[i : i + size, j : j + size] = patterns[label]
    X = np.clip(255 * (0.7 * X + 0.15 + 0.2 * rng.standard_normal(X.shape)), 0, 255).astype(np.uint8)
    return X[:rows], y[:rows], X[rows:], y[rows:]


# -- model ------------------------------------------------------------------------------------------------------------


class Network(NamedTuple):
    """Shapes of the weights, and the function of weights and rows that gives the logits."""

    shapes: Mapping[str, tuple[int, ...]]
    logits: Callable


def classifier(network, spread=None):
    """
    The NumPyro model: classes by softmax.

    :param spread: weights are N(0, spread / fan-in) and biases N(0, 1); None: all are N(0, 1).
    """

    def prior(shape):
        sd = 1.0 if spread is None or len(shape) == 1 else np.sqrt(spread / np.prod(shape[:-1]))
        return dist.Normal(0, sd).expand(shape).to_event(len(shape))

    def model(X, y=None):
        weights = {name: numpyro.sample(name, prior(shape)) for name, shape in network.shapes.items()}
        with numpyro.plate("rows", len(X)) as rows:
            logits = network.logits(weights, X[rows])
            numpyro.sample("y", dist.Categorical(logits=logits), obs=None if y is None else y[rows])

    return model


def he(rng_key, shapes):
    """Weights N(0, 2 / fan-in), biases 0 (He et al. 2015)."""
    keys = random.split(rng_key, len(shapes))
    return {
        name: random.normal(key, shape) * np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else jnp.zeros(shape)
        for key, (name, shape) in zip(keys, shapes.items())
    }


# -- chains -----------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Of a chain. The seed is that of its start, its minibatches and its noise, whatever the others are."""

    seed: int
    integrator: str
    diffusion: float
    h: float


class Chains:
    """MSGNHT on a network, several chains at once."""

    def __init__(self, network, data, batch_size):
        self.data = data
        size = {"batch_size": batch_size, "steps_per_sample": max(1, len(data.y) // batch_size)}
        model = classifier(network)

        def kernel(integrator, diffusion, h):
            return MSGNHT(model, step_size=lambda i: h, integrator=integrator, diffusion=diffusion, **size)

        @partial(jax.jit, static_argnums=1)
        def start(seed, diffusion, X, y):
            key_start, key_chain = random.split(random.key(seed))
            return kernel("ssi", diffusion, 1.0).init(key_chain, 0, he(key_start, network.shapes), (X, y), {})

        def epoch(state, kind, h, X, y, kinds):
            advance = [partial(kernel(*each, h).sample, model_args=(X, y), model_kwargs={}) for each in kinds]
            return lax.switch(kind, advance, state)

        def predict(z, X):
            chunks = [network.logits(z, X[i : i + CHUNK]) for i in range(0, len(X), CHUNK)]
            return jax.nn.log_softmax(jnp.concatenate(chunks))

        @partial(jax.jit, static_argnums=7)
        def epochs(states, kind, h, X, y, X_train, X_test, kinds):
            def each(states, kind, h, X, y, *looks):
                states = lax.map(lambda chain: epoch(*chain, X, y, kinds), (states, kind, h))
                return states, lax.map(lambda z: [predict(z, X) for X in looks], states.z)

            return spread(each, (states, kind, h), (X, y, X_train, X_test))

        self.start, self.epochs = start, epochs

    def run(self, settings, epochs, bar, halve=True):
        """
        A draw of each chain at the end of each epoch.

        :param settings: one for each chain.
        :param bar: progress, moved on by one an epoch of a chain.
        :param halve: whether h is halved after half of the epochs.
        :return: for each chain, test accuracy and training NLL of each draw; scores of the predictions averaged over
            the draws of the second half, and the mean of the scores of these draws; how many steps in a row were
            refused at the end; the mean square of the weights of the last draw, 1 under the prior.
        """
        data, y_train = self.data, np.asarray(self.data.y[:TRAIN_ROWS])
        kinds = tuple(dict.fromkeys((s.integrator, s.diffusion) for s in settings))
        kind = jnp.array([kinds.index((s.integrator, s.diffusion)) for s in settings])
        h = jnp.array([s.h for s in settings])
        starts = [self.start(s.seed, s.diffusion, data.X, data.y) for s in settings]
        states = place(jax.tree.map(lambda *chains: jnp.stack(chains), *starts))
        accuracies, losses, draws = [], [], []
        for epoch in range(epochs):
            second = epoch >= epochs // 2
            step_size = h / 2 if halve and second else h
            rows = data.X, data.y, data.X[:TRAIN_ROWS], data.X_test
            states, looks = self.epochs(states, kind, step_size, *rows, kinds)
            train, test = (np.asarray(log_p, float) for log_p in looks)
            accuracies.append([accuracy(log_p, data.y_test) for log_p in test])
            losses.append([nll(log_p, y_train) for log_p in train])
            draws += [test] if second else []
            bar.update(len(settings))
        weights = np.concatenate([np.reshape(w, (len(settings), -1)) for w in states.z.values()], 1)
        return [
            {
                "accuracy": list(accuracies),
                "train_nll": list(losses),
                **averaged(draws, data.y_test),
                "refused": int(refused),
                "mean_square": float(np.mean(weights**2)),
            }
            for accuracies, losses, draws, refused, weights in zip(
                np.transpose(accuracies), np.transpose(losses), np.swapaxes(draws, 0, 1), states.refused, weights
            )
        ]


# -- quality ----------------------------------------------------------------------------------------------------------


def accuracy(log_p, y):
    """In per cent. A prediction that is not a number is wrong."""
    return 100 * np.mean((log_p.argmax(1) == y) & np.isfinite(log_p).any(1))


def nll(log_p, y):
    return -np.mean(log_p[np.arange(len(y)), y])


def ece(log_p, y):
    """Expected calibration error in per cent: accuracy against confidence in bins of equal width (Guo et al. 2017)."""
    confidence, right = np.exp(log_p.max(1)), log_p.argmax(1) == y
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return 100 * sum(abs((right[bins == b] - confidence[bins == b]).sum()) for b in range(BINS)) / len(y)


SCORES = {"accuracy": accuracy, "nll": nll, "ece": ece}


def score(log_p, y):
    finite = np.isfinite(log_p).all()
    return {name: measure(log_p, y) if finite or name == "accuracy" else np.nan for name, measure in SCORES.items()}


def averaged(draws, y):
    """Mean of the scores of the draws, scores of the predictions averaged over them."""
    with np.errstate(invalid="ignore"):  # of a chain that has diverged
        mean = np.logaddexp.reduce(draws) - np.log(len(draws))
    scores = [score(draw, y) for draw in draws]
    return {"single": {name: np.mean([s[name] for s in scores]) for name in SCORES}, "averaged": score(mean, y)}


def mean_error(values):
    """Mean, and its standard error (nan for one value)."""
    values = np.asarray(values)
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan


def summary(runs):
    """ "single" or "averaged" -> score -> mean over the runs and standard error."""
    return {
        kind: {name: mean_error([run[kind][name] for run in runs]) for name in SCORES}
        for kind in ("single", "averaged")
    }
