"""The text of the progress bar."""

from collections.abc import Mapping
import time
from typing import Any

import jax
from jax.core import Tracer
import numpy as np

from numpyro_sgmcmc.report.run_checks import STUCK
from numpyro_sgmcmc.types import Plate
from numpyro_sgmcmc.utils.wording import plain

READABLE = 0.5  # seconds between two updates: numbers that change faster cannot be read


class Bar:
    """
    The text of a progress bar: rows used by each chain, passes over the data, rows per second, the steps per draw that
    the warm-up has chosen, and the number of chains that do not move. It describes the state of the previous call,
    which has been computed by now, so it does not wait for the device.
    """

    def __init__(self):
        self.begin({})

    def __reduce__(self):
        return Bar, ()

    def begin(self, plates: Mapping[str, Plate], text: str = "") -> None:
        """Called at the start of a run on these plates; ``text`` is shown until the second transition."""
        self._plate = max(plates.values(), default=None)
        self._text, self._before = text, None
        self._looked: tuple[float, int] | None = None  # time of the last update, and steps at that time

    def __call__(self, state: Any) -> str:
        settings = getattr(state, "settings", None)
        chosen = [getattr(settings, name, None) for name in ("steps_per_sample", "share")]
        before, self._before = self._before, (state.i, state.marks, state.refused, chosen)
        if before is None or (self._looked is not None and time.monotonic() - self._looked[0] < READABLE):
            return self._text
        if all(not isinstance(x, Tracer) and x.is_ready() for x in jax.tree.leaves(before)):
            self._look(*before)
        return self._text

    def _look(self, i: jax.Array, marks: jax.Array, refused: jax.Array, chosen: Any) -> None:
        wraps = np.asarray(marks).reshape(-1, marks.shape[-1])[0, 0]
        now, steps = time.monotonic(), int(np.ravel(i)[0]) + 2**32 * int(wraps)
        last, self._looked = self._looked, (now, steps)
        stuck = np.atleast_1d(np.asarray(refused)) >= STUCK
        still = f"{stuck.sum()} of {stuck.size} chains stand still" if stuck.any() else ""
        number, share = chosen  # None if the step size is given
        each = "" if number is None else f"{np.max(number)} steps per draw"
        self._text = ", ".join(filter(None, (self._pace(last, now, steps, share), each, still)))

    def _pace(self, last: tuple[float, int] | None, now: float, steps: int, share: Any) -> str:
        if last is None or self._plate is None or steps < last[1]:  # fewer steps: another chain
            return ""
        size, batch = self._plate
        batch = size if np.all(share == 1) else batch  # the warm-up may have chosen all rows
        rows, pace = steps * batch, (steps - last[1]) * batch / (now - last[0])
        return f"{plain(rows)} rows, {plain(rows / size)} passes, {plain(pace)} rows/s"
