"""Passes over all rows, in chunks."""

from collections.abc import Callable, Mapping
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.shares import Shares
from numpyro_sgmcmc.types import Plate, Potential, Rows, Sites
from numpyro_sgmcmc.utils.memory import peak

CHUNK = 4096  # maximal number of rows per chunk, or of combinations of rows of several plates
BUDGET = 2**26  # bytes that a chunk may take


def full_gradient(potential: Potential, z: Sites, rng_key: jax.Array, chunk_size: int | None = None) -> Sites:
    """The gradient of U over all rows, in chunks. A model that draws its own keys gets one per chunk."""

    def gradient(potential, z, rows, rng_key):
        return jax.grad(potential.estimate)(z, rows, rng_key)

    return over_all_rows(potential, gradient, z, rng_key, chunk_size)


def full_evaluation(potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[jax.Array, Sites]:
    """U over all rows, in the dtype of ``z``, and its gradient; in chunks of at most ``CHUNK`` rows."""
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(z)))

    def evaluation(potential, z, rows, rng_key):
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        return energy.astype(zero.dtype), gradient

    return over_all_rows(potential, evaluation, z, rng_key, CHUNK, (zero, z))


def over_all_rows(
    potential: Potential, fn: Any, z: Sites, rng_key: jax.Array, chunk_size: int | None = None, total: Any = None
) -> Any:
    """
    The mean of an unbiased estimate ``fn(potential, z, rows, rng_key)`` over all chunks of all plates, weighted by
    their sizes. It is exact, since each site is scaled by N/n for each of its plates. All chunks of a plate have the
    same length, so that ``fn`` is compiled once. If rows are distributed over devices, a chunk has the same number of
    rows from each device.

    :param chunk_size: see :func:`chunk_length`.
    :param total: zeros of the shape of an estimate. None: it has that of ``z``.
    """
    devices, plates = potential.devices, potential.plates
    length = chunk_length(lambda rows: fn(potential, z, rows, rng_key), plates, chunk_size)
    counts = {name: -(-plate.size // (devices * length)) for name, plate in plates.items()}
    times = math.prod(counts.values())

    def add(k, total):
        rows, weights, digit = {}, {}, k
        for name, count in counts.items():
            shares = Shares(plates[name].size, devices)
            n = -(-shares.longest // count)
            places = (digit % count) * n + jnp.arange(n, dtype=jnp.int32)
            rows[name] = shares.rows(places).ravel()
            if devices * n * count > shares.size:  # rows that are not there get weight 0
                there = places < shares.numbers[:, None]
                weights[name] = (devices * n * count / shares.size * there).ravel()
            digit = digit // count
        estimate = fn(potential.using_rows(rows, weights=weights), z, rows, random.fold_in(rng_key, k))
        return jax.tree.map(lambda t, x: t + x / times, total, estimate)

    total = jax.tree.map(jnp.zeros_like, z if total is None else total)
    return add(0, total) if times == 1 else lax.fori_loop(0, times, add, total)


def in_chunks(fn: Callable[[Any, int, Any], Any], size: int, length: int, carry: Any) -> Any:
    """``carry = fn(first, n, carry)`` for consecutive ranges of ``n <= length`` numbers below ``size``."""
    count, rest = divmod(size, length)
    if count:
        carry = lax.fori_loop(0, count, lambda k, carry: fn(k * length, length, carry), carry)
    return fn(count * length, rest, carry) if rest else carry


def chunk_length(fn: Callable[[Rows], Any], plates: Mapping[str, Plate], chunk_size: int | None = None) -> int:
    """
    The number of rows of each plate in a chunk.

    :param fn: the function of the rows that is computed.
    :param chunk_size: rows, or combinations of rows of several plates. None: as many as ``fn`` can take within
        ``BUDGET`` bytes, at most ``CHUNK``. The memory is estimated from the trace of ``fn``, which is not run.
    """
    if not plates:
        return 1
    if chunk_size is None:
        single, most = ({name: min(n, plate.size) for name, plate in plates.items()} for n in (1, _root(CHUNK, plates)))
        combinations = math.prod(most.values())
        each = (_memory(fn, most) - _memory(fn, single)) / max(1, combinations - 1)
        chunk_size = int(min(CHUNK, max(1, BUDGET // max(1, each))))
    return _root(chunk_size, plates)


def _root(combinations: int, plates: Mapping[str, Plate]) -> int:
    """The number of rows of each plate in this number of combinations."""
    return max(1, int(combinations ** (1 / len(plates)) + 1e-9))


def _memory(fn: Callable[[Rows], Any], lengths: Mapping[str, int]) -> int:
    rows = {name: jax.ShapeDtypeStruct((n,), jnp.int32) for name, n in lengths.items()}
    return peak(jax.make_jaxpr(fn)(rows).jaxpr)
