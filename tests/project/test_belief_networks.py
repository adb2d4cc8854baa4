"""Sigmoid belief networks of the gallery: the sweep, and the likelihood, against sums over all states."""

from pathlib import Path

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS, PIXELS, IMAGES = 10, 30, 20


@pytest.fixture(scope="module")
def bn():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        import belief_networks

        yield belief_networks


@pytest.fixture(scope="module")
def network(bn):
    keys = random.split(random.key(0), 5)
    shapes = {"W": (UNITS, PIXELS), "b": (UNITS,), "c": (PIXELS,), "R": (PIXELS, UNITS), "r": (UNITS,)}
    scales = {"W": 1.0, "b": 1.0, "c": 1.0, "R": 0.1, "r": 0.5}
    return bn.Network(
        **{name: scales[name] * random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items())}
    )


@pytest.fixture(scope="module")
def images(network):
    key_units, key_pixels = random.split(random.key(1))
    h = random.bernoulli(key_units, 0.3, (IMAGES, UNITS))
    p = jax.nn.sigmoid(network.c + h @ network.W)
    return random.bernoulli(key_pixels, p).astype(float)


def states(units):
    return ((np.arange(2**units)[:, None] >> np.arange(units)) & 1).astype(float)


def log_joint_of_states(network, x):
    """log p(x, h) for all h, ``(images, states)``."""
    h = jnp.asarray(states(UNITS), jnp.result_type(x))
    return np.asarray(jax.vmap(lambda h: network.log_joint(jnp.broadcast_to(h, (len(x), UNITS)), x), out_axes=1)(h))


def test_the_exact_likelihood_is_the_sum_of_the_joint(bn, network, images):
    with jax.default_matmul_precision("highest"):  # on a GPU, products are less accurate by default
        joint = log_joint_of_states(network, images)
        exact = bn.exact_log_likelihood(images, network)
    np.testing.assert_allclose(exact, np.logaddexp.reduce(joint, 1), rtol=1e-5)


@pytest.mark.parametrize("heat", [1.0, 0.4])
def test_a_sweep_keeps_the_conditional_law(bn, network, images, heat):
    """
    With draws from the law of all states as starts, means and products of the units after a sweep are those of the
    law; with other logits of the units they are not.
    """
    copies = 4000
    x = images[:1]
    base = network.guess(x)
    joint = heat * log_joint_of_states(network, x)[0]
    logits = joint + (1 - heat) * np.asarray(bn.log_bernoulli(jnp.asarray(states(UNITS)), base[0]))
    p = np.exp(logits - np.logaddexp.reduce(logits))
    pairs = np.array([np.outer(h, h)[np.triu_indices(UNITS)] for h in states(UNITS)])
    mean = p @ pairs
    sd = np.sqrt(p @ (pairs - mean) ** 2 / copies)
    at = np.random.default_rng(0).choice(len(p), copies, p=p)
    h, many = jnp.asarray(states(UNITS)[at]), jnp.broadcast_to(x, (copies, PIXELS))

    def furthest(network):
        moved = np.asarray(bn.sweep(random.key(2), h, many, network, heat, base))
        found = np.array([np.outer(m, m)[np.triu_indices(UNITS)] for m in moved]).mean(0)
        return np.abs((found - mean) / np.maximum(sd, 1e-3)).max()

    assert furthest(network) < 4.5
    assert furthest(network._replace(b=network.b + 0.3)) > 4.5


def test_many_sweeps_forget_where_they_began(bn, network, images):
    copies = 4000
    x = images[1:2]
    joint = log_joint_of_states(network, x)[0]
    p = np.exp(joint - np.logaddexp.reduce(joint))
    mean = p @ states(UNITS)
    h, many = jnp.zeros((copies, UNITS)), jnp.broadcast_to(x, (copies, PIXELS))
    for key in random.split(random.key(3), 60):
        h = bn.sweep(key, h, many, network)
    assert np.abs(np.asarray(h).mean(0) - mean).max() < 4.5 * 0.5 / np.sqrt(copies)


@pytest.mark.parametrize("by_recognition", [True, False])
def test_annealing_is_unbiased_for_the_likelihood(bn, network, images, by_recognition):
    """The mean of p-hat / p is 1 after a few temperatures too, and the mean of the logarithm is too small."""
    x = images[:2]
    exact = bn.exact_log_likelihood(x, network)
    runs = jax.jit(jax.vmap(lambda key: bn.annealed_log_likelihood(key, x, network, 30, by_recognition)))
    logs = np.asarray(runs(random.split(random.key(4), 2000)) - exact)
    ratio = np.exp(logs)
    error = ratio.std(0) / np.sqrt(len(ratio))
    assert (np.abs(ratio.mean(0) - 1) < 4.5 * error).all(), (ratio.mean(0), error)
    assert (error < 0.1).all(), error
    assert (logs.mean(0) < 0).all()
    # the error of a mean is small enough to see units that are on too often
    other = bn.exact_log_likelihood(x, network._replace(b=network.b + 1))
    wrong = np.exp(logs + np.asarray(exact - other))
    assert (np.abs(wrong.mean(0) - 1) > 4.5 * wrong.std(0) / np.sqrt(len(wrong))).any()
