r"""
Standard normal numbers: Box & Muller (1958) with the block cipher of JAX's own keys, Threefry-2x32-20 (Salmon et al.
2011, "Parallel random numbers: as easy as 1, 2, 3").

.. math::
    (a_i, b_i) = \mathrm{threefry}_{key}(0, i), \qquad
    z_i = \sqrt{-2 \ln u_i} \, \cos(2 \pi t_i), \qquad
    u_i = 2^{-32} (a_i + 1/2), \quad t_i = 2^{-32} b_i

``jax.random.normal`` uses the same blocks, but on a CPU it runs their rounds as a loop over arrays and then needs the
inverse error function. Here everything is one expression in the index, which becomes one vectorised loop. The noise is
the most expensive part of a step for a network.
"""

import math

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)  # rotations of consecutive rounds
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20
SINE = [(-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(6)]  # sin(2 pi x), in x


def box_muller(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent standard normal float32 numbers; ``key`` consists of two words."""

    def draw():
        count = lax.iota(jnp.uint32, math.prod(shape))
        a, b = threefry(key, jnp.zeros_like(count), count)
        u = (a.astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-32)  # in (0, 1]: the largest are rounded to 1
        t = lax.bitcast_convert_type(b, jnp.int32).astype(jnp.float32) * np.float32(2**-32)  # in [-1/2, 1/2]
        return (jnp.sqrt(-2 * jnp.log(u)) * cosine(t)).reshape(shape)

    # XLA would recompute the numbers wherever they are used. A barrier prevents that. On jax 0.10 the CPU compiler
    # repeats some rounds in spite of a barrier, but not with a `cond` that is always true
    if jax.default_backend() == "cpu" and jax.__version_info__ < (0, 11):
        return lax.cond((key[0] | np.uint32(1)) > 0, draw, lambda: jnp.zeros(shape, jnp.float32))
    return lax.optimization_barrier(draw())


def threefry(key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encrypts blocks of two uint32 words; ``key`` consists of two words."""
    keys = key[0], key[1], key[0] ^ key[1] ^ PARITY
    x, y = x + keys[0], y + keys[1]
    for i in range(ROUNDS):
        turn = ROTATIONS[i % 8]
        x = x + y
        y = x ^ (y << turn | y >> (32 - turn))
        if i % 4 == 3:
            j = i // 4 + 1
            x, y = x + keys[j % 3], y + keys[(j + 1) % 3] + np.uint32(j)
    return x, y


def cosine(t: jax.Array) -> jax.Array:
    """cos(2 pi t) for t in [-1/2, 1/2], by the sine series around the zero at 1/4; the error is below 6e-8."""
    x = np.float32(0.25) - jnp.abs(t)
    value = jnp.full_like(x, SINE[-1])
    for coefficient in SINE[-2::-1]:
        value = value * (x * x) + np.float32(coefficient)
    return value * x
