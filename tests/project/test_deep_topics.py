"""Deep Poisson factor analysis of the gallery: the model and its Gibbs sampling, against sums over all states."""

import itertools
from pathlib import Path

import jax
from jax import random
import jax.numpy as jnp
from jax.scipy.special import betaln, gammaln, logsumexp
import numpy as np
import pytest

from numpyro_sgmcmc import SGLD

ROOT = Path(__file__).resolve().parents[2]
SIZES, VOCABULARY = (3, 2, 1), 4
DOCUMENTS = [np.array([0, 0, 1]), np.array([3, 2]), np.array([1, 3, 3])]


@pytest.fixture(scope="module")
def deep():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        import deep_topics

        yield deep_topics


@pytest.fixture(scope="module")
def sites():
    keys = iter(random.split(random.key(0), 6))
    shapes = {"W1": (2, 3), "W2": (1, 2), "b1": (3,), "b2": (2,), "b3": (1,)}
    weights = {name: 1.5 * random.normal(next(keys), shape) for name, shape in shapes.items()}
    return {"phi": random.normal(next(keys), (VOCABULARY, 3)), "r": jnp.array([0.5, 1.0, 2.0]), **weights}


def log_probability(sites, words):
    r"""
    :math:`\log p(x)` of a document: theta and p are integrated out, the topics of the words and all units summed over.
    :math:`\int p^N (1 - p)^{r_{on}} dp` is a beta function.
    """
    states = lambda n: jnp.array(list(itertools.product((0, 1), repeat=n)))  # noqa: E731
    h1, h2, h3 = (x.reshape(-1, n) for x, n in zip(jnp.split(states(sum(SIZES)), np.cumsum(SIZES)[:-1], axis=1), SIZES))
    bernoulli = lambda h, logits: (h * logits - jax.nn.softplus(logits)).sum(-1)  # noqa: E731
    prior = bernoulli(h3, sites["b3"]) + bernoulli(h2, sites["b2"] + h3 @ sites["W2"])
    prior += bernoulli(h1, sites["b1"] + h2 @ sites["W1"])
    topic = jnp.array(list(itertools.product(range(3), repeat=len(words))))
    n = jax.nn.one_hot(topic, 3).sum(1)
    phi = jax.nn.log_softmax(sites["phi"], axis=0)
    of_words = phi[words[None], topic].sum(1) + (gammaln(sites["r"] + n) - gammaln(sites["r"])).sum(1)
    possible = ((n[:, None] == 0) | (h1[None] > 0)).all(-1)
    joint = of_words[:, None] + (prior + betaln(1.0 + len(words), 1 + h1 @ sites["r"]))[None]
    return logsumexp(jnp.where(possible, joint, -jnp.inf))


def gradients(deep, sites, sweeps, count):
    """Of the energy of all documents, at independent draws of the local sites."""
    corpus = deep.topics.Corpus.of([*DOCUMENTS, DOCUMENTS[0]])  # a minibatch is less than all
    kernel = SGLD(deep.deep_poisson(SIZES, VOCABULARY), step_size=0.1, batch_size=3, local=deep.of_documents(sweeps))
    potential = kernel.potential((corpus,), {})
    z = {**sites, "r": jnp.log(sites["r"])}
    rows = {"documents": jnp.arange(3)}
    gradient = jax.grad(lambda z, key: 0.75 * (potential.estimate(z, rows, key) - potential.prior(z)))
    run = jax.jit(lambda keys: jax.lax.map(lambda key: gradient(z, key), keys, batch_size=500))
    return jax.tree.map(np.asarray, run(random.split(random.key(1), count)))


def furthest(deep, sites, sweeps, count=1000):
    """Largest distance, in standard errors, of the mean gradient from that of the sum over all states."""

    def energy(z):
        return -sum(log_probability({**z, "r": jnp.exp(z["r"])}, jnp.asarray(words)) for words in DOCUMENTS)

    exact = jax.jit(jax.grad(energy))({**sites, "r": jnp.log(sites["r"])})
    found = gradients(deep, sites, sweeps, count)
    distances = {
        name: np.abs(x.mean(0) - exact[name]) / (x.std(0) / np.sqrt(len(x)) + 1e-4) for name, x in found.items()
    }
    return {name: float(d.max()) for name, d in distances.items()}


@pytest.mark.slow
def test_gradients_at_the_draws_are_those_of_the_sum(deep, sites):
    """Fisher's identity, for every global site."""
    found = furthest(deep, sites, 15)
    assert max(found.values()) < 4.8, found


@pytest.mark.slow
def test_a_wrong_weight_is_seen(deep, sites, monkeypatch):
    """The planted fault: topics that are off take words as if they were on."""
    monkeypatch.setattr(deep, "of_another_word", lambda counts, r, logits, p: r + counts)
    found = furthest(deep, sites, 15, 500)
    assert max(found.values()) > 10, found
