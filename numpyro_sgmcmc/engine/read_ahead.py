"""
The loop over the steps of a transition whose rows may be on disk.

The rows of a step are a function of a key and a counter, so those of the next steps are known. One callback returns the
data for a block of steps, and a thread reads those for the next block while the device computes. The data that have
been read are identified by their row numbers. So no chain depends on the state of a reader: several chains may share
one, and a resumed run needs none.
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

from numpyro_sgmcmc.data.on_disk import OnDisk, runs
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import RowScheme
from numpyro_sgmcmc.utils import compat
from numpyro_sgmcmc.utils.workarounds.loop import repeat

BLOCK = 4 * 2**20  # bytes per block: smaller blocks need more calls, larger ones more memory
WAITING = 32  # maximal number of blocks read ahead, one for each chain that shares a reader

Block = tuple[np.ndarray, ...]  # rows of each source


class ReadAhead:
    """Reads the rows of a block from each of its sources, while a thread reads those of the next block."""

    def __init__(self, sources: Sequence[OnDisk]):
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "numpyro_sgmcmc.OnDisk")
        self._waiting: OrderedDict[tuple, tuple[np.ndarray, Future]] = OrderedDict()
        self._lock = Lock()
        self._free: list[Block] = []  # reused, as allocating memory for each block would take longer than reading it

    def __call__(self, now: Any, after: Any) -> Block:
        """The data of the rows ``now``, as new arrays; ``after`` are the rows of the next call."""
        return self._take(np.asarray(now), np.asarray(after))

    def fill(self, context: Any, out: Sequence[Any], now: Any, after: Any) -> None:
        """The same, but written into XLA's own buffers ``out``."""
        block = self._take(np.asarray(now), np.asarray(after))
        for buffer, values in zip(out, block):
            np.copyto(np.asarray(buffer), values)
        self._free.append(block)

    def _take(self, now: np.ndarray, after: np.ndarray) -> Block:
        after = after.copy()  # XLA may overwrite it before the thread reads it
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
    """The key of a block in a look-up. It uses only the first rows: hashing all would take as long as reading them."""
    return rows.shape, rows[..., 0].tobytes()


def repeat_with_rows(
    step: Callable[[SGMCMCState, tuple[jax.Array, ...]], SGMCMCState],
    state: SGMCMCState,
    steps: Any,
    potential: ModelPotential,
    scheme: RowScheme,
) -> SGMCMCState:
    """
    Makes ``steps`` steps, for which data on disk are read ahead.

    :param step: a step of one state or of the states of several chains; its second argument is the data read for it
        from each of the potential's ``row_sources``.
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
            later = rows_state._replace(t=rows_state.t + k)
            return next_rows(scheme, later, potential.plates, state.settings.contiguous)[0][name]

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

        def step_of_block(carry):
            k, state = carry
            return k + 1, step(state, tuple(values[k] for values in read))

        return done + number, repeat(step_of_block, (jnp.int32(0), state), number)[1]

    return lax.while_loop(lambda carry: carry[0] < steps, block, (jnp.int32(0), state))[1]


def _block_length(sources: Sequence[OnDisk], rows: int, steps: Any) -> int:
    """Steps per block of about ``BLOCK`` bytes. Blocks are about equally long, so that few unused rows are read."""
    of_a_step = rows * sum(source.dtype.itemsize * math.prod(source.shape[1:]) for source in sources)
    length = max(BLOCK // of_a_step, 1)
    return math.ceil(steps / math.ceil(steps / length)) if isinstance(steps, int) else length
