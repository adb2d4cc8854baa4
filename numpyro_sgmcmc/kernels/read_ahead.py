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
import math
from threading import Lock
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.kernels.state import SGMCMCState
from numpyro_sgmcmc.model.on_disk import OnDisk
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.types import RowScheme
from numpyro_sgmcmc.utils import compat
from numpyro_sgmcmc.utils.loop import repeat

BLOCK = 4 * 2**20  # bytes of a block: smaller ones cost calls, larger ones memory
WAITING = 32  # blocks that may wait, one for each chain that shares a reader


class ReadAhead:
    """The rows of a block from each source. Those of the next block are read by a thread in the meantime."""

    def __init__(self, sources: Sequence[OnDisk]):
        self._sources = sources
        self._thread = ThreadPoolExecutor(1, "numpyro_sgmcmc.OnDisk")
        self._waiting: OrderedDict[bytes, Future] = OrderedDict()
        self._lock = Lock()

    def __call__(self, now: Any, after: Any) -> tuple[np.ndarray, ...]:
        now, after = np.asarray(now), np.asarray(after)
        with self._lock:
            ahead = self._waiting.pop(now.tobytes(), None)
            self._waiting[after.tobytes()] = self._thread.submit(self._read, after)
            while len(self._waiting) > WAITING:
                self._waiting.popitem(last=False)[1].cancel()
        return self._read(now) if ahead is None else ahead.result()

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(source.read(rows) for source in self._sources)


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
        read = jax.pure_callback(read_ahead, shapes, *rows, vmap_method="broadcast_all")

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
