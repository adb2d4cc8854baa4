r"""
Sigmoid belief networks: the model, Gibbs sampling of the hidden units, the likelihood by annealed importance sampling.

An image :math:`x \in \{0, 1\}^K` has hidden units :math:`h \in \{0, 1\}^J` of its own,

.. math:: h_j \sim \mathrm{Bernoulli}(\sigma(b_j)), \qquad x_k \sim \mathrm{Bernoulli}(\sigma(c_k + h^\top W_k)).

Given the image the units depend on each other. With :math:`p_k` the probability of pixel k at present and
:math:`d_k = \pm W_{jk}` the change of its logit when unit j flips, the log likelihood changes by

.. math:: \sum_k x_k d_k - \sum_k \log(1 + p_k (e^{d_k} - 1)),

so a sweep that carries p computes no exponential, and one logarithm for the product of eight factors.

A sweep begins at draws from a recognition network, :math:`q(h_j = 1 \mid x) = \sigma(r_j + x^\top R_j / 10)`, whose
weights are sampled beside the others, from the posterior given the units that the sweeps return. With enough sweeps
these units depend on W, b and c alone: they are drawn from :math:`p(h \mid x, W)`, whatever the recognition network has
learnt. It learns from the units and they do not learn from it, which is a cut posterior (Plummer 2015).
"""

from typing import NamedTuple

import jax
from jax import lax, random
from jax.nn import softplus
import jax.numpy as jnp
from jax.scipy.special import expit, logsumexp
import numpyro
import numpyro.distributions as dist

FACTORS = 8  # of a product whose logarithm is taken; float32 holds it while their logits change by less than 11 each
SHARE = 0.1  # of R in the logits: a hundred pixels are on, so R alone would be unstable at the step sizes of W


class Network(NamedTuple):
    """
    - **W** - weights, ``(units, pixels)``. **b**, **c** - logits of the units, and of the pixels where all units are 0.
    - **R**, **r** - of the recognition network, ``(pixels, units)`` and ``(units,)``.
    """

    W: jax.Array
    b: jax.Array
    c: jax.Array
    R: jax.Array
    r: jax.Array

    @classmethod
    def of(cls, sites):
        return cls(*(sites[name] for name in cls._fields))

    def guess(self, x):
        """Logits of the units by the recognition network, ``(images, units)``."""
        return self.r + SHARE * (x @ self.R)

    def log_joint(self, h, x):
        """:math:`\\log p(x, h)` for each image."""
        return log_bernoulli(h, self.b) + log_bernoulli(x, self.c + h @ self.W)


def log_bernoulli(x, logits):
    return (x * logits - softplus(logits)).sum(-1)


def belief_network(units, pixels, scale=1.0):
    """The NumPyro model: ``model(x)`` with images of 0 and 1, ``x.shape=(images, pixels)``."""

    def model(x):
        shapes = {"W": (units, pixels), "b": (units,), "c": (pixels,), "R": (pixels, units), "r": (units,)}
        sites = {
            name: numpyro.sample(name, dist.Normal(0, scale).expand(shape).to_event(len(shape)))
            for name, shape in shapes.items()
        }
        network = Network.of(sites)
        with numpyro.plate("images", len(x)) as rows:
            h = numpyro.sample("h", dist.Bernoulli(logits=network.b).to_event(1))
            image, units_on = x[rows].astype(network.c.dtype), h.astype(network.c.dtype)
            numpyro.sample("x", dist.Bernoulli(logits=network.c + units_on @ network.W).to_event(1), obs=image)
            numpyro.factor("recognition", log_bernoulli(units_on, network.guess(image)))

    return model


def start(rng_key, x, units, scale=0.1):
    """Small weights, and pixels as often on as in the data."""
    keys = random.split(rng_key)
    often = jnp.clip(x.mean(0), 0.01, 0.99)
    pixels = x.shape[1]
    return {
        "W": scale * random.normal(keys[0], (units, pixels)),
        "b": jnp.zeros(units),
        "c": jnp.log(often) - jnp.log1p(-often),
        "R": scale * random.normal(keys[1], (pixels, units)),
        "r": jnp.zeros(units),
    }


# -- the units given the image --------------------------------------------------------------------------------------


def sweep(rng_key, h, x, network, heat=1.0, base=0.0):
    """
    Each unit in turn is drawn given the others, for all images at once, from the law that is proportional to
    :math:`q(h)^{1 - heat} p(x, h)^{heat}` with ``base`` the logits of q.

    :param h, x: of shapes ``(images, units)`` and ``(images, pixels)``, both real.
    """
    W, b, c = network[:3]
    part = -(-W.shape[1] // FACTORS)
    noise = random.logistic(rng_key, h.T.shape)
    logits = heat * (x @ W.T + b) + (1 - heat) * base
    up, down = jnp.expm1(W), jnp.expm1(-W)

    def move(j, state):
        h, p = state
        on = h[:, j] > 0
        change = jnp.where(on[:, None], down[j], up[j])
        factor = 1 + p * change
        product = factor[:, :part]
        for i in range(part, factor.shape[1], part):
            few = factor[:, i : i + part]
            product = product.at[:, : few.shape[1]].multiply(few) if few.shape[1] < part else product * few
        drop = heat * jnp.log(product).sum(1)
        new = noise[j] < logits[:, j] + jnp.where(on, drop, -drop)
        p = jnp.where((new != on)[:, None], p * (1 + change) / factor, p)
        return h.at[:, j].set(new.astype(h.dtype)), p

    return lax.fori_loop(0, h.shape[1], move, (h, expit(c + h @ W)))[0]


def units_given_images(sweeps=1):
    """The function ``local=`` of a kernel: Gibbs sweeps from the guess of the recognition network."""

    def draw(rng_key, local_sites, global_sites, rows, x):
        network, image = Network.of(global_sites), x[rows].astype(global_sites["c"].dtype)
        keys = random.split(rng_key, sweeps + 1)
        h = (random.logistic(keys[0], local_sites["h"].shape) < network.guess(image)).astype(image.dtype)
        h = lax.fori_loop(0, sweeps, lambda i, h: sweep(keys[i + 1], h, image, network), h)
        return {"h": h.astype(local_sites["h"].dtype)}

    return draw


# -- the likelihood -------------------------------------------------------------------------------------------------


def annealed_log_likelihood(rng_key, x, network, temperatures=200, by_recognition=True):
    r"""
    :math:`\log \hat p(x)` of each image by annealed importance sampling (Neal 2001): with :math:`\beta_t = t / T`,
    :math:`f_t = q^{1 - \beta_t} p(x, \cdot)^{\beta_t}` and :math:`h_0 \sim q`,

    .. math:: \log \hat p(x) = \sum_{t = 1}^T \log \frac{f_t(h_{t - 1})}{f_{t - 1}(h_{t - 1})},

    where a sweep for :math:`f_t` leads from :math:`h_{t - 1}` to :math:`h_t`. :math:`\hat p` is unbiased, its logarithm
    is too small on average.

    :param bool by_recognition: q is the recognition network, or else the prior with :math:`\beta_t = (t / T)^2`.
    """
    base = network.guess(x) if by_recognition else jnp.broadcast_to(network.b, (len(x), len(network.b)))
    key_start, key_sweeps = random.split(rng_key)
    h = (random.logistic(key_start, base.shape) < base).astype(x.dtype)
    heats = jnp.linspace(0, 1, temperatures + 1) ** (1 if by_recognition else 2)

    def cool(carry, inputs):
        h, total = carry
        key, heat, rise = inputs
        total = total + rise * (network.log_joint(h, x) - log_bernoulli(h, base))
        return (sweep(key, h, x, network, heat, base), total), None

    steps = random.split(key_sweeps, temperatures), heats[1:], jnp.diff(heats)
    (_, total), _ = lax.scan(cool, (h, jnp.zeros(len(x))), steps)
    return total


def exact_log_likelihood(x, network):
    """:math:`\\log p(x)` of each image by the sum over all states of a few units."""
    units = len(network.b)
    states = ((jnp.arange(2**units)[:, None] >> jnp.arange(units)) & 1).astype(x.dtype)
    logits = network.c + states @ network.W
    joint = x @ logits.T - softplus(logits).sum(1) + log_bernoulli(states, network.b)
    return logsumexp(joint, 1)


# -- images ---------------------------------------------------------------------------------------------------------


def binarised(images, seed, threshold=None):
    """
    Bytes to 0 and 1: 1 with probability ``byte / 255``, or where the byte is above a threshold.
    """
    if threshold is not None:
        return jnp.asarray(images > threshold, jnp.uint8)
    return random.bernoulli(random.key(seed), jnp.asarray(images) / 255.0).astype(jnp.uint8)
