"""How far a run is, how fast it is, and how long it will take."""

import math
import time
from typing import NamedTuple

import numpy as np

from numpyro_sgmcmc.engine.state import RarelyChanging
from numpyro_sgmcmc.runs.segments import Carry, Segments
from numpyro_sgmcmc.utils.wording import plain


class Progress(NamedTuple):
    """
    The argument of a hook, at each checkpoint.

    - **transition**, **total** - transitions so far, and of the whole run, including the warm-up.
    - **draws** - draws of each chain so far.
    - **rows**, **passes** - rows that the steps of each chain have used, and the same in passes over the data; with
      several plates, those of the largest. Rows that the warm-up uses to choose its settings are not counted.
    - **rows_per_second** - rows per second of each chain, in this process so far; NaN before its first transition.
    - **seconds** - since the call of :meth:`Checkpointed.run`.
    - **left** - estimate of the remaining seconds, at the speed of this process so far; NaN before its first
      transition.
    """

    transition: int
    total: int
    draws: int
    rows: int
    passes: float
    rows_per_second: float
    seconds: float
    left: float

    def __str__(self) -> str:
        return (
            f"{self.transition} of {self.total} transitions, {self.draws} draws, {plain(self.passes)} passes, "
            f"{plain(self.rows_per_second)} rows/s, {self.left:.0f} s left"
        )


class Pace:
    """The speed of a process since its first transition."""

    def __init__(self, segments: Segments, begin: float, t: int, carry: Carry):
        plates = segments.mcmc.sampler.potential(segments.args, segments.kwargs).plates.values()
        self._size, self._batch = max(plates, default=(1, 1))
        self._segments, self._begin, self._t, self._steps = segments, begin, t, _steps(carry)

    def progress(self, t: int, carry: Carry, draws: int) -> Progress:
        seconds, made, steps = time.monotonic() - self._begin, t - self._t, _steps(carry)
        a_second = self._batch * (steps - self._steps) / seconds if made else math.nan
        left = seconds / made * (self._segments.total - t) if made else math.nan
        rows = steps * self._batch
        return Progress(t, self._segments.total, draws, rows, rows / self._size, a_second, seconds, left)


def _steps(carry: Carry) -> int:
    """Steps that the chains have made, including those before their 32-bit counter started again at 0."""
    wraps = RarelyChanging.unpacked(carry.state.marks).wraps
    return int(np.ravel(carry.state.i)[0]) + 2**32 * int(np.ravel(wraps)[0])
