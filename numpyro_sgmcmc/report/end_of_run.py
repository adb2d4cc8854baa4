"""
Reports problems of a run, once at its end, without additional cost.

A callback from a compiled step to Python would cost more than the step itself, and NumPyro calls no method of a kernel
at the end of a run. But it rebuilds the collected fields, as a pytree of arrays with the axes chains and draws. So one
of the collected fields, :class:`Collected`, is a pytree node that runs the checks when it is rebuilt from the arrays of
a whole run. During a run, :class:`Bar` writes the text of the progress bar.
"""

from collections.abc import Mapping
import time
from typing import Any
import weakref

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.run_checks import STUCK
from numpyro_sgmcmc.report.run_scores import Layout
from numpyro_sgmcmc.report.run_warnings import report
from numpyro_sgmcmc.types import Plate

READABLE = 0.5  # seconds between two updates: numbers that change faster cannot be read

_reported: list[Any] = [None]  # the arrays of the last report, weakly


class Collected:
    """
    A :class:`Monitor` packed into one array, along its last axis, as each collected array costs about 5 us per call.
    When it is rebuilt from the arrays of a whole run, it runs the checks and becomes a :class:`Monitor`.

    :param int chains: number of chains in one vectorized state, otherwise 1.
    :param layout: the latent sites.
    """

    def __init__(self, packed: Any, chains: int, layout: Layout):
        self.packed, self.chains, self.layout = packed, chains, layout

    @classmethod
    def of(cls, monitor: Monitor, chains: int, layout: Layout) -> "Collected":
        """The packed form of a monitor."""
        return cls(jnp.stack([jnp.asarray(part, jnp.float32) for part in monitor], -1), chains, layout)

    def is_whole_run(self) -> bool:
        """Whether the axes are chains and draws. During a run draws are the first axis, or there is none of chains."""
        packed = self.packed
        if getattr(packed, "ndim", 0) != 3:  # first, as this is asked at every call
            return False
        if not isinstance(packed, (jax.Array, np.ndarray)) or isinstance(packed, Tracer):
            return False
        if self.chains == 1:
            return True
        if packed.shape[0] != self.chains:
            return False
        # if there are as many draws as chains, the numbers of the chains distinguish the two orders
        return packed.shape[1] != self.chains or bool((np.asarray(packed)[:, 0, 0] == np.arange(self.chains)).all())


def _rebuild(fixed: tuple[int, Layout], children: Any) -> Any:
    (packed,) = children
    collected = Collected(packed, *fixed)
    if not collected.is_whole_run():
        return collected
    if _reported[0] is None or _reported[0]() is not packed:  # some transformations rebuild a tree twice
        _reported[0] = weakref.ref(packed)
        report(_unpacked(packed), collected.layout, collected.chains)
    return _unpacked(packed)


def _unpacked(packed: Any) -> Monitor:
    _, refused, diverging, temperature, step_size, changed, *rest = np.moveaxis(np.asarray(packed), -1, 0)
    return Monitor((), refused.astype(np.int32), diverging > 0, temperature, step_size, changed > 0, *rest)


jax.tree_util.register_pytree_node(Collected, lambda node: ((node.packed,), (node.chains, node.layout)), _rebuild)


class Bar:
    """
    The text of a progress bar: rows used by each chain, passes over the data, rows per second, the steps per draw that
    the warm-up has chosen, and the number of chains that do not move. It describes the state of the previous call,
    which has been computed by now, so it does not wait for the device.
    """

    def __init__(self):
        self._plate: Plate | None = None
        self._before: Any = None
        self._text = ""
        self._looked: tuple[float, int] | None = None  # time of the last update, and steps at that time

    def __reduce__(self):
        return Bar, ()

    def begin(self, plates: Mapping[str, Plate], text: str = "") -> None:
        """
        Called at the start of a run on these plates; the rows shown are those of the largest.

        :param text: what is shown until the second transition.
        """
        self._plate = max(plates.values(), default=None)
        self._before, self._looked, self._text = None, None, text

    def __call__(self, state: Any) -> str:
        found = getattr(getattr(state, "tuning", ()), "num_steps", ())
        before, self._before = self._before, (state.i, state.marks, state.refused, found)
        if before is None or (self._looked is not None and time.monotonic() - self._looked[0] < READABLE):
            return self._text
        if all(not isinstance(x, Tracer) and x.is_ready() for x in jax.tree.leaves(before)):
            self._look(*before)
        return self._text

    def _look(self, i: jax.Array, marks: jax.Array, refused: jax.Array, num_steps: Any) -> None:
        wraps = np.asarray(marks).reshape(-1, marks.shape[-1])[0, 0]
        now, steps = time.monotonic(), int(np.ravel(i)[0]) + 2**32 * int(wraps)
        last, self._looked = self._looked, (now, steps)
        stuck = np.atleast_1d(np.asarray(refused)) >= STUCK
        still = f"{stuck.sum()} of {stuck.size} chains stand still" if stuck.any() else ""
        each = 0 if isinstance(num_steps, tuple) else int(np.max(num_steps))
        chosen = f"{each} steps per draw" if each else ""
        self._text = ", ".join(filter(None, (self._pace(last, now, steps), chosen, still)))

    def _pace(self, last: tuple[float, int] | None, now: float, steps: int) -> str:
        if last is None or self._plate is None or steps < last[1]:  # fewer steps: another chain
            return ""
        size, batch = self._plate
        rows, pace = steps * batch, (steps - last[1]) * batch / (now - last[0])
        return f"{rows:.3g} rows, {rows / size:.3g} passes, {pace:.3g} rows/s"
