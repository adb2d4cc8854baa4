"""
The loop over the steps of a transition whose rows may be on disk.

The rows of a step are a function of a key and a counter, so those of the next steps are known. One callback hands over
the rows of a block of steps, and a thread reads those of the next block while the device computes. What has been read
is found again by the row numbers: a reader keeps no state that a chain depends on, so several chains may share one, and
a resumed run needs nothing of it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
import math
from threading import Lock
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.kernels.state import SGMCMCState
from numpyro_sgmcmc.model.on_disk import OnDisk, runs
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import RowScheme
from numpyro_sgmcmc.utils import compat
from numpyro_sgmcmc.utils.loop import repeat

BLOCK = 4 * 2**20  # bytes of a block: smaller ones cost calls, larger ones memory
WAITING = 32  # blocks that may wait, one for each chain that shares a reader

Block = tuple[np.ndarray, ...]  # rows of each source


class ReadAhead:
    """
    The rows of a block from each source. Those of the next block are read by a thread in the meantime.

    :param sources: what is read, rows of every source.
    """

    def __init__(self, sources: Sequence[OnDisk]):
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "numpyro_sgmcmc.OnDisk")
        self._waiting: OrderedDict[tuple, tuple[np.ndarray, Future]] = OrderedDict()
        self._lock = Lock()
        self._free: list[Block] = []  # new memory for each block would cost more than what is read

    def __call__(self, now: Any, after: Any) -> Block:
        """What lies in the rows ``now``, as new arrays; ``after`` are the rows that will be asked for next."""
        return self._take(np.asarray(now), np.asarray(after))

    def fill(self, context: Any, out: Sequence[Any], now: Any, after: Any) -> None:
        """The same, written into XLA's own buffers ``out``."""
        block = self._take(np.asarray(now), np.asarray(after))
        for buffer, values in zip(out, block):
            np.copyto(np.asarray(buffer), values)
        self._free.append(block)

    def _take(self, now: np.ndarray, after: np.ndarray) -> Block:
        after = after.copy()  # the thread reads it when XLA may have overwritten it
        with self._lock:
            ahead = self._waiting.pop(_key(now), None)
            self._waiting[_key(after)] = after, self._thread.submit(self._read, after)
            while len(self._waiting) > WAITING:
                self._waiting.popitem(last=False)[1][1].cancel()
        if ahead is None or not np.array_equal(ahead[0], now):
            return self._read(now)
        return ahead[1].result()

    def _read(self, rows: np.ndarray) -> Block:
        try:
            block = self._free.pop()
        except IndexError:
            block = ()
        if not block or block[0].shape[: rows.ndim] != rows.shape:  # vmap may give one program blocks of two shapes
            block = tuple(source.empty(rows.shape) for source in self._sources)
        pieces = runs(rows)
        for source, out in zip(self._sources, block):
            source.read_into(out, rows, pieces)
        return block


def _key(rows: np.ndarray) -> tuple:
    """What tells blocks apart in a look-up: to hash all of their rows would cost as much as to read them."""
    return rows.shape, rows[..., 0].tobytes()


def repeat_with_rows(
    step: Callable[[SGMCMCState, tuple[jax.Array, ...]], SGMCMCState],
    state: SGMCMCState,
    steps: Any,
    potential: ModelPotential,
    scheme: RowScheme,
) -> SGMCMCState:
    """
    ``steps`` steps, with what is on disk read ahead.

    :param step: of one state or of the states of several chains, given what was read for it from each of the
        potential's ``row_sources``.
    """
    sources = potential.row_sources
    if not sources or compat.jit_is_disabled():
        return repeat(lambda state: step(state, ()), state, steps)
    ((name, plate),) = potential.plates.items()
    rows_shape = (*state.i.shape, plate.batch_size)
    length = _block_length(sources, math.prod(rows_shape), steps)
    shapes = tuple(jax.ShapeDtypeStruct((length, *rows_shape, *source.shape[1:]), source.dtype) for source in sources)
    read_ahead = ReadAhead(sources)

    def rows_from(rows_state, first):
        def rows_at(k):
            return next_rows(scheme, rows_state._replace(t=rows_state.t + k), potential.plates)[0][name]

        return jax.vmap(rows_at)(first + jnp.arange(length, dtype=jnp.uint32))

    rows_of_chains = jax.vmap(rows_from, (0, None), 1) if state.i.ndim else rows_from

    def block(carry):
        done, state = carry
        number = jnp.minimum(length, steps - done)
        rows = (rows_of_chains(state.rows_state, jnp.uint32(first)) for first in (0, number))
        read = lax.platform_dependent(
            *rows,
            cpu=compat.buffer_callback(read_ahead.fill, shapes, vmap_method="broadcast_all"),
            default=partial(jax.pure_callback, read_ahead, shapes, vmap_method="broadcast_all"),
        )

        def one(carry):
            k, state = carry
            return k + 1, step(state, tuple(values[k] for values in read))

        return done + number, repeat(one, (jnp.int32(0), state), number)[1]

    return lax.while_loop(lambda carry: carry[0] < steps, block, (jnp.int32(0), state))[1]


def _block_length(sources: Sequence[OnDisk], rows: int, steps: Any) -> int:
    """Steps of a block of about ``BLOCK`` bytes. Blocks of about equal length, so that little is read in vain."""
    of_a_step = rows * sum(source.dtype.itemsize * math.prod(source.shape[1:]) for source in sources)
    length = max(BLOCK // of_a_step, 1)
    return math.ceil(steps / math.ceil(steps / length)) if isinstance(steps, int) else length
