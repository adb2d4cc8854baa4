r"""
Deep Poisson factor analysis: the model, Gibbs sampling of what belongs to a document, the probability of unseen words.

Words of document n come from topic k at rate :math:`\theta_k h^1_k` (Gan et al. 2015),

.. math::
    x_v \sim \mathrm{Poisson}\Bigl(\sum_k \phi_{vk} \theta_k h^1_k\Bigr), \quad
    \theta_k \sim \mathrm{Gamma}\bigl(r_k, (1 - p) / p\bigr), \quad p \sim \mathrm{Uniform}(0, 1),

and a sigmoid belief network of several layers says which topics are on:
:math:`h^l_j \sim \mathrm{Bernoulli}(\sigma(b^l_j + (h^{l+1} W^l)_j))`, without W in the last layer.

:math:`\theta, h, p` are local. A sweep draws the topic of each word with :math:`\theta` and :math:`h^1` integrated out:
when n words of the document are of topic k, another one is with a probability proportional to :math:`\phi_{vk}` and

.. math:: r_k + n \quad (n > 0), \qquad r_k P(h^1_k = 1 \mid n = 0) \quad (n = 0).

Then :math:`h^1` and p follow, given the counts n, and the other layers unit by unit. A topic that is off has no words
whatever its :math:`\theta_k` is, so for these the shape 1 stands in for r.
"""

import belief_networks as bn
import jax
from jax import random
from jax.nn import sigmoid
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import topics

SMALLEST = 1e-30  # of a rate, whose logarithm is taken


def deep_poisson(sizes, vocabulary):
    """The NumPyro model of a :class:`topics.Corpus`: ``sizes[0]`` topics, and the units of the layers above."""

    def model(corpus):
        normal = lambda name, *shape: numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event())  # noqa: E731
        theta = numpyro.sample("phi", dist.Normal(0.1, 1).expand([vocabulary, sizes[0]]).to_event())
        r = numpyro.sample("r", dist.Gamma(1, 1).expand(sizes[:1]).to_event())
        W = [normal(f"W{layer}", above, units) for layer, (units, above) in enumerate(zip(sizes, sizes[1:]), 1)]
        b = [normal(f"b{layer}", units) for layer, units in enumerate(sizes, 1)]
        phi = jax.nn.softmax(theta, axis=0)
        with numpyro.plate("documents", len(corpus)) as rows:
            p = numpyro.sample("p", dist.Uniform(0, 1))
            h = None
            for layer in range(len(sizes), 0, -1):
                logits = b[layer - 1] if h is None else b[layer - 1] + h @ W[layer - 1]
                h = numpyro.sample(f"h{layer}", dist.Bernoulli(logits=logits).to_event(1)).astype(r.dtype)
            shape = jnp.where(h > 0, r, 1.0)
            rate = numpyro.sample("theta", dist.Gamma(shape, ((1 - p) / p)[:, None]).to_event(1)) * h
            words, there = corpus.of_rows(rows)
            each = jnp.einsum("dwk,dk->dw", phi[words], rate)
            numpyro.factor("words", jnp.where(there, jnp.log(jnp.where(there, each, 1)), 0).sum(-1) - rate.sum(-1))

    return model


def start(rng_key, sizes, vocabulary):
    """Topics from their prior, small weights, half of the units on."""
    key_phi, *keys = random.split(rng_key, len(sizes))
    layers = zip(keys, sizes, sizes[1:])
    return {
        "phi": 0.1 + random.normal(key_phi, (vocabulary, sizes[0])),
        "r": jnp.full(sizes[0], 0.1),
        **{f"W{layer}": 0.1 * random.normal(k, (up, units)) for layer, (k, units, up) in enumerate(layers, 1)},
        **{f"b{layer}": jnp.zeros(units) for layer, units in enumerate(sizes, 1)},
    }


# -- Gibbs sampling ---------------------------------------------------------------------------------------------------


def logits_of(layer, sites, units):
    """Of a layer given the one above: ``(units of the layer,)`` or ``(documents, units of the layer)``."""
    b = sites[f"b{layer}"]
    return b + units[layer] @ sites[f"W{layer}"] if layer < len(units) else b


def of_another_word(counts, r, logits, p):
    """What the probabilities of the topic of another word are proportional to, but for the topics themselves."""
    is_on = sigmoid(logits + r * jnp.log1p(-p)[:, None])  # with no words
    return jnp.where(counts > 0, r + counts, r * is_on)


def sweep(rng_key, state, sites, likelihood, there):
    """
    :param state: topic of each word, units of all layers, p.
    :param likelihood: of each word by each topic, ``(documents, width, topics)``.
    """
    topic, units, p = state
    r = sites["r"]
    keys = random.split(rng_key, 3 + len(units))
    logits = logits_of(1, sites, units)
    topic, counts = topics.sweep_of_topics(
        keys[0], topic, likelihood, there, lambda counts: of_another_word(counts, r, logits, p)
    )
    empty = random.logistic(keys[1], counts.shape) < logits + r * jnp.log1p(-p)[:, None]
    units = [jnp.where(counts > 0, True, empty).astype(r.dtype), *units[1:]]
    p = jnp.clip(random.beta(keys[2], 1 + counts.sum(1), 1 + units[0] @ r), 1e-4, 1 - 1e-4)
    for layer in range(2, len(units) + 1):
        below, h = units[layer - 2], units[layer - 1]
        network = sites[f"W{layer - 1}"], logits_of(layer, sites, units), sites[f"b{layer - 1}"]
        units[layer - 1] = bn.sweep(keys[1 + layer], h, below, network)
    return (topic, units, p), counts


def chain(rng_key, sites, words, there, sweeps):
    """
    Sweeps from documents without words, which the first sweep puts in one by one.

    :return: states, counts of topics, and shares of topics of another word, after each sweep.
    """
    likelihood = jax.nn.softmax(sites["phi"], axis=0)[words]
    key_units, key_sweeps = random.split(rng_key)
    b = [sites[name] for name in sorted(sites) if name.startswith("b")]
    noise = [random.logistic(key, (len(words), len(x))) for key, x in zip(random.split(key_units, len(b)), b)]
    units = [(n < x).astype(x.dtype) for n, x in zip(noise, b)]

    def move(state, key):
        state, counts = sweep(key, state, sites, likelihood, there)
        _, units, p = state
        weight = of_another_word(counts, sites["r"], logits_of(1, sites, units), p)
        return state, (state, counts, weight / weight.sum(1, keepdims=True))

    state = jnp.full(words.shape, -1), units, jnp.full(len(words), 0.5)
    return jax.lax.scan(move, state, random.split(key_sweeps, sweeps))[1]


def of_documents(sweeps):
    """The function ``local=`` of a kernel."""

    def draw(rng_key, local_sites, global_sites, rows, corpus):
        key_chain, key_theta = random.split(rng_key)
        words, there = corpus.of_rows(rows)
        (_, units, p), counts, _ = jax.tree.map(lambda x: x[-1], chain(key_chain, global_sites, words, there, sweeps))
        is_on = units[0] > 0
        shape = jnp.where(is_on, global_sites["r"] + counts, 1.0)
        per = jnp.where(is_on, p[:, None], (p / (1 - p))[:, None])
        theta = jnp.maximum(random.gamma(key_theta, shape) * per, SMALLEST)
        layers = {f"h{layer}": h.astype(local_sites[f"h{layer}"].dtype) for layer, h in enumerate(units, 1)}
        return {"p": p, "theta": theta, **layers}

    return draw


@jax.jit
def unseen_words(rng_key, sites, seen, unseen):
    """Probability of each word of the second halves, given the first ones and the global sites."""
    shares = chain(rng_key, sites, *seen.of_rows(jnp.arange(len(seen))), sweeps=15)[2][-10:].mean(0)
    words, there = unseen.of_rows(jnp.arange(len(unseen)))
    phi = jax.nn.softmax(sites["phi"], axis=0)
    return jnp.where(there, jnp.einsum("dwk,dk->dw", phi[words], shares), 1.0)
