"""Latent Dirichlet allocation: corpora, the model, Gibbs sampling of the topics of documents, perplexity."""

import sys
from typing import NamedTuple

import datasets
import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

ALPHA = 0.1  # prior of the topics of a document
FEWEST = 50  # documents of a corpus: parts of them are for training, validation and tests
SMALLEST = 1e-6  # share of a topic: 0 is not inside the simplex


class Corpus(NamedTuple):
    """
    Documents one after the other, so that long ones cost no memory for short ones.

    - **words** - the number of each word, with ``width`` words at the end that no document has.
    - **starts**, **lengths** - of each document.
    - **width** - of the widest document, as an array of that length.
    """

    words: jax.Array
    starts: jax.Array
    lengths: jax.Array
    width: jax.Array

    @classmethod
    def of(cls, documents):
        """:param documents: an array of word numbers for each."""
        lengths = np.array([len(words) for words in documents])
        ends = np.cumsum(lengths)
        words = np.concatenate([*documents, np.zeros(lengths.max(), int)])
        return cls(*(jnp.asarray(x, jnp.int32) for x in (words, ends - lengths, lengths, np.arange(lengths.max()))))

    def __len__(self):
        return len(self.starts)

    def of_rows(self, rows):
        """``(words, there)`` of some documents, padded: ``(documents, width)`` both."""
        return self.words[self.starts[rows][:, None] + self.width], self.width < self.lengths[rows][:, None]


def read_corpus(name, folder=None, longest=None, words=None):
    """
    ``(documents, size of the vocabulary)``. Documents with more than ``longest`` words lose some at random.

    :param words: size of the vocabulary: words that are in more than a tenth of the documents are left out, and of the
        others those that are in the fewest.
    """
    indptr, indices, counts = datasets.documents(name, folder)
    if words and len(indices):
        found_in = np.bincount(indices)
        common = np.argsort(-np.where(10 * found_in > len(indptr) - 1, 0, found_in), kind="stable")[:words]
        number = np.full(len(found_in), -1)
        number[common] = np.arange(len(common))
        indices, counts = number[indices], np.where(number[indices] < 0, 0, counts)
    rng = np.random.default_rng(0)
    documents = [
        rng.permutation(np.repeat(indices[a:b], counts[a:b]))[:longest] for a, b in zip(indptr[:-1], indptr[1:])
    ]
    documents = [words for words in documents if len(words) > 1]
    if len(documents) < FEWEST:
        sys.exit(f"{name}.npz has {len(documents)} documents of two words or more; this program needs {FEWEST}.")
    return documents, int(indices.max()) + 1


def simulated_corpus(documents=300, length=40, topics=5, vocabulary=100, seed=0):
    rng = np.random.default_rng(seed)
    beta = rng.dirichlet(np.full(vocabulary, 0.1), topics)
    shares = rng.dirichlet(np.full(topics, ALPHA), documents)
    return [rng.choice(vocabulary, rng.integers(length // 2, length), p=share @ beta) for share in shares], vocabulary


def split(documents, seed, share=0.2):
    """``(train, seen, unseen)``: documents, and the two halves of the words of the others, a ``share`` of all."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(documents))
    cut = int((1 - share) * len(documents))
    rest = [rng.permutation(documents[i]) for i in order[cut:]]
    halves = [words[: len(words) // 2] for words in rest], [words[len(words) // 2 :] for words in rest]
    return [documents[i] for i in order[:cut]], *map(Corpus.of, halves)


# -- the model --------------------------------------------------------------------------------------------------------


def words_of(corpus, beta):
    """The documents, given the topics, ``beta.shape=(vocabulary, topics)``."""
    with numpyro.plate("documents", len(corpus)) as rows:
        share = numpyro.sample("share", dist.Dirichlet(jnp.full(beta.shape[1], ALPHA)))
        words, there = corpus.of_rows(rows)
        p = jnp.einsum("dwk,dk->dw", beta[words], share)
        numpyro.factor("words", jnp.where(there, jnp.log(p), 0).sum(-1))


def by_softmax(topics, vocabulary):
    """Topics as the softmax of normal numbers (Ding et al. 2014)."""

    def model(corpus):
        theta = numpyro.sample("theta", dist.Normal(0.1, 1).expand([vocabulary, topics]).to_event(2))
        words_of(corpus, jax.nn.softmax(theta, axis=0))

    return model


def by_dirichlet(topics, vocabulary, prior=0.1):
    """Topics with a Dirichlet prior, for the samplers of the simplex."""

    def model(corpus):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(vocabulary, prior)).expand([topics]).to_event(1))
        words_of(corpus, (beta / beta.sum(1, keepdims=True)).T)  # for SCIR, see there

    return model


def by_expanded_natural(topics, vocabulary, prior=0.1):
    """
    Topics with a Dirichlet prior, as the softmax of the logarithms of gamma numbers. The logarithms themselves are the
    latent site: those of rare words are so small that the gamma numbers would be 0.
    """

    def model(corpus):
        theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), (vocabulary, topics)))
        numpyro.factor("prior", (prior * theta - jnp.exp(theta)).sum())
        words_of(corpus, jax.nn.softmax(theta, axis=0))

    return model


def topics_of(sites):
    """beta of draws of any model: ``(..., vocabulary, topics)``."""
    return jax.nn.softmax(sites["theta"], axis=-2) if "theta" in sites else jnp.swapaxes(sites["beta"], -1, -2)


# -- the topics of the words of a document, given beta -------------------------------------------------------------


def sweep_of_topics(rng_key, topic, p, there, weight):
    """
    A sweep of collapsed Gibbs sampling over the words, all documents at once: a word leaves its topic and takes another
    with probability proportional to ``weight(n) p``, where n counts the topics of the other words.

    :param topic: of each word, ``(documents, width)``; -1 of words that have none so far.
    :param p: probability of each word under each topic, of shape ``(documents, width, topics)``.
    :param there: which words there are.
    :return: the topics, and the counts of each document, ``(documents, topics)``.
    """
    width, topics = p.shape[1:]
    uniform = random.uniform(rng_key, (width, len(p)))
    counts = jnp.where(there[..., None], jax.nn.one_hot(topic, topics), 0).sum(1)

    def move(w, state):
        topic, counts = state
        is_word = there[:, w, None]
        counts = counts - is_word * jax.nn.one_hot(topic[:, w], topics)
        bounds = jnp.cumsum(weight(counts) * p[:, w], 1)
        new = (bounds < uniform[w][:, None] * bounds[:, -1:]).sum(1).clip(max=topics - 1)
        return topic.at[:, w].set(new), counts + is_word * jax.nn.one_hot(new, topics)

    return lax.fori_loop(0, there.sum(1).max(), move, (topic, counts))


def counts_of_topics(rng_key, p, there, sweeps, one_by_one=False):
    """
    Collapsed Gibbs sampling of the topic of each word, with the weights ``ALPHA + n``.

    :param one_by_one: whether the first sweep puts the words into empty documents, which takes less time where there
        are many topics; else they begin at topics drawn by p alone.
    :return: the counts of topics of each document after each sweep, ``(sweeps, documents, topics)``.
    """
    key_start, key_sweeps = random.split(rng_key)

    def sweep(topic, key):
        return sweep_of_topics(key, topic, p, there, lambda counts: ALPHA + counts)

    topic = jnp.full(there.shape, -1) if one_by_one else random.categorical(key_start, jnp.log(p))
    return lax.scan(sweep, topic, random.split(key_sweeps, sweeps))[1]


def share_given_words(sweeps, one_by_one=False):
    """A ``local=`` for both models: the topics of the words by Gibbs sampling, the shares given these exactly."""

    def draw(rng_key, local_sites, global_sites, rows, corpus):
        key_topics, key_share = random.split(rng_key)
        words, there = corpus.of_rows(rows)
        counts = counts_of_topics(key_topics, topics_of(global_sites)[words], there, sweeps, one_by_one)[-1]
        share = jnp.maximum(random.dirichlet(key_share, ALPHA + counts), SMALLEST)
        return {"share": share / share.sum(-1, keepdims=True)}

    return draw


# -- what is seen of a document, and what is not ---------------------------------------------------------------------


@jax.jit
def unseen_words(rng_key, beta, seen, unseen):
    """Probability of each word of the second halves, given the first ones and beta."""
    words, there = seen.of_rows(jnp.arange(len(seen)))
    counts = counts_of_topics(rng_key, beta[words], there, sweeps=15)[-10:].mean(0)
    share = (ALPHA + counts) / (ALPHA + counts).sum(1, keepdims=True)
    words, there = unseen.of_rows(jnp.arange(len(unseen)))
    return jnp.where(there, jnp.einsum("dwk,dk->dw", beta[words], share), 1.0)


def probabilities(rng_key, draws, seen, unseen, unseen_words=unseen_words):
    """Of the words of the second halves by each draw, ``(draws, documents, width)``."""
    keys = random.split(rng_key, len(draws))
    return np.stack([unseen_words(key, draw, seen, unseen) for key, draw in zip(keys, draws)])


def perplexity(p, unseen):
    """:math:`\\exp(-\\sum \\log p / n)` for p of shape ``(..., documents, width)``."""
    return np.exp(-np.log(np.asarray(p, float)).sum((-2, -1)) / float(unseen.lengths.sum()))


def perplexities(rng_key, betas, seen, unseen):
    """With p averaged over the first 1, 2, ... draws of beta."""
    each = probabilities(rng_key, betas, seen, unseen)
    averaged = np.cumsum(each, 0, dtype=float) / np.arange(1, len(each) + 1)[:, None, None]
    return perplexity(averaged, unseen)


# -- the reference ----------------------------------------------------------------------------------------------------


def collapsed_gibbs(rng_key, corpus, topics, vocabulary, prior, burn_in, draws, every=5):
    """beta after ``burn_in`` sweeps over all words, and after each ``every`` more: Griffiths & Steyvers (2004)."""
    lengths = np.asarray(corpus.lengths)
    words = corpus.words[: lengths.sum()]
    document = jnp.asarray(np.repeat(np.arange(len(lengths)), lengths))
    key_start, key_sweeps = random.split(rng_key)
    topic = random.randint(key_start, words.shape, 0, topics)
    of_documents = jnp.zeros((len(lengths), topics)).at[document, topic].add(1)
    of_words = jnp.zeros((vocabulary, topics)).at[words, topic].add(1)

    @jax.jit
    def sweep(key, state):
        uniform = random.uniform(key, words.shape)

        def move(i, state):
            topic, of_documents, of_words, total = state
            d, w, old = document[i], words[i], topic[i]
            leave = jax.nn.one_hot(old, topics)
            n_d, n_w, n = of_documents[d] - leave, of_words[w] - leave, total - leave
            bounds = jnp.cumsum((ALPHA + n_d) * (prior + n_w) / (vocabulary * prior + n))
            new = (bounds < uniform[i] * bounds[-1]).sum().clip(max=topics - 1)
            enter = jax.nn.one_hot(new, topics)
            return topic.at[i].set(new), of_documents.at[d].set(n_d + enter), of_words.at[w].set(n_w + enter), n + enter

        return lax.fori_loop(0, len(words), move, state)

    state, betas = (topic, of_documents, of_words, of_words.sum(0)), []
    for i, key in enumerate(random.split(key_sweeps, burn_in + every * draws)):
        state = sweep(key, state)
        if i >= burn_in and (i - burn_in) % every == every - 1:
            betas.append((prior + state[2]) / (vocabulary * prior + state[3]))
    return jnp.stack(betas)
