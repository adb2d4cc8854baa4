"""
A keyed pseudo-random permutation of ``0 .. size - 1`` that is evaluated only where it is asked for: a Feistel network
over a grid ``a x b`` of the rows. Where their number has no such factors the grid just covers them, with cycle walking
for the few cells that are not rows (Black & Rogaway 2002).
"""

import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

_ROUNDS = 6
BITS = _ROUNDS + 1  # random words that name a permutation


def words(rng_key: jax.Array, t: Any, count: int) -> jax.Array:
    """
    Random uint32 for the number ``t``, shape ``(count,)``: one call of the generator, the slowest part of a small step,
    where ``random.bits(random.fold_in(rng_key, t), (count,))`` takes two.
    """
    keys = -(-count // 2)
    numbers = jnp.asarray(t).astype(jnp.uint32) * jnp.uint32(keys) + jnp.arange(keys, dtype=jnp.uint32)
    folded = jax.vmap(random.fold_in, (None, 0))(rng_key, numbers)
    # two of each key: the other two of an rbg key are the same again
    return random.key_data(folded)[:, :2].reshape(-1)[:count]


def _round(right: jax.Array, key: jax.Array, size: int) -> jax.Array:
    """A keyed hash of ``right`` into ``0 .. size - 1`` (two rounds of multiply and shift)."""
    x = (right ^ key) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    # the upper 16 bits times size: a multiplication in place of a division
    return ((x >> 16) * jnp.uint32(size)) >> 16


def add(left: jax.Array, right: jax.Array, size: int) -> jax.Array:
    """Sum modulo ``size`` of two numbers below it."""
    x = left + right
    return jnp.where(x >= size, x - jnp.uint32(size), x)


def _grid(size: int) -> tuple[int, int]:
    """
    Sides of like length of a grid with ``size`` cells, or where there are none, with hardly more. The longer side comes
    first: small grids are then shuffled better.
    """
    root = math.isqrt(size)
    for b in range(root, max(1, root // 2), -1):
        if size % b == 0:
            return size // b, b
    a = math.isqrt(size - 1) + 1
    return a, -(-size // a)


def permute(bits: jax.Array, x: jax.Array, size: int) -> jax.Array:
    """
    Images of ``x`` under a pseudo-random permutation of ``0 .. size - 1``, in O(len(x)) time and memory.

    :param bits: names the permutation: ``BITS`` random uint32.
    :param x: integers in ``0 .. size - 1``, any shape.
    :param int size: at most 2**31 - 1.
    :return: int32 array of the shape of ``x``. A random rotation follows the network, so that the image of any single
        row is uniform to within size / 2**32; of pairs and more, to within the quality of the hash.
    """
    if size >= 2**31:
        raise ValueError(f"a plate of {size} rows is more than int32 row numbers can tell apart.")
    if size == 1:
        return jnp.zeros(jnp.shape(x), jnp.int32)
    a, b = _grid(size)

    def network(x):
        left, right = x // jnp.uint32(b), x % jnp.uint32(b)
        for r in range(0, _ROUNDS, 2):
            left = add(left, _round(right, bits[r], a), a)
            right = add(right, _round(left, bits[r + 1], b), b)
        return left * jnp.uint32(b) + right

    y = network(jnp.asarray(x).astype(jnp.uint32))
    if a * b > size:
        y = lax.while_loop(lambda y: jnp.any(y >= size), lambda y: jnp.where(y >= size, network(y), y), y)
    y = add(y, bits[_ROUNDS] % jnp.uint32(size), size).astype(jnp.int32)
    # without the barrier XLA fuses the network into the gather of the data and runs it once for each column
    return lax.optimization_barrier(y)
