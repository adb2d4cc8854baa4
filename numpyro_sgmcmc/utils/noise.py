"""The random numbers of a step: normal and uniform numbers like a pytree, and those of a noncentral chi-square law."""

from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils.workarounds.box_muller import box_muller


def normal(rng_key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """
    Independent standard normal numbers.

    For other dtypes than float32, and keys of other generators than Threefry, it calls ``jax.random.normal``.
    """
    if dtype != jnp.float32 or random.key_impl(rng_key) != "threefry2x32":
        return random.normal(rng_key, shape, dtype)
    return box_muller(random.key_data(rng_key), shape)


def normal_like(rng_key: jax.Array, tree: Any) -> Any:
    """
    Standard normal noise with the structure, shapes and dtypes of ``tree``.

    All leaves share one draw, so a step for a network with many small arrays calls the generator once.
    """
    return _like(normal, rng_key, tree)


def uniform_like(rng_key: jax.Array, tree: Any) -> Any:
    """Numbers uniform on [0, 1), with the structure, shapes and dtypes of ``tree``."""
    return _like(random.uniform, rng_key, tree)


def _like(draw: Any, rng_key: jax.Array, tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    if len(leaves) == 1:
        noise = [draw(rng_key, leaves[0].shape, leaves[0].dtype)]
    else:
        ends = np.cumsum([leaf.size for leaf in leaves])
        flat = draw(rng_key, (int(ends[-1]),), jnp.result_type(*leaves))
        parts = jnp.split(flat, ends[:-1])
        noise = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves)]
    return jax.tree.unflatten(treedef, noise)


def log_central_mixture(rng_key: jax.Array, shape: jax.Array, mean: jax.Array) -> jax.Array:
    """
    The logarithm of Gamma(b + J, 1) numbers, J ~ Poisson(m): half a noncentral chi-square number with 2 b degrees of
    freedom and noncentrality 2 m. It is finite even if the number itself underflows.

    :param shape: b > 0.
    :param mean: m >= 0, of the same shape. Above 1e8 the Poisson number is replaced by a rounded normal one.
    """
    key_count, key_large, key_gamma = random.split(rng_key, 3)
    small = jnp.minimum(mean, 1e8)
    count = random.poisson(key_count, small).astype(shape.dtype)
    large = jnp.round(mean + jnp.sqrt(mean) * normal(key_large, mean.shape, shape.dtype))
    return random.loggamma(key_gamma, shape + jnp.where(mean > 1e8, large, count), dtype=shape.dtype)
