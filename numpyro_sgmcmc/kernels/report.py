"""
Tells the user, once a run, what is wrong with it and can be noticed for nothing.

A compiled step that calls Python would cost more than the step itself, and NumPyro calls no method of a kernel when a
run has ended. But it rebuilds what it has collected, as a pytree of arrays with the axes chains and draws. So one of
the collected fields, :class:`Collected`, is a node that looks at itself when it is rebuilt from the arrays of a whole
run. While a progress bar runs, :class:`Bar` shows what the last finished transition says.
"""

from typing import Any
import weakref

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.kernels.run_checks import STUCK, Monitor, report

_reported: list[Any] = [None]  # the arrays of the last report, weakly


class Collected:
    """
    A :class:`Monitor` packed into one array, along its last axis, as each collected array costs some 5 us a call. When
    it is rebuilt from the arrays of a whole run it reports, and what is rebuilt is a :class:`Monitor`.

    :param int chains: those that are vectorized in one state, else 1.
    :param int coordinates: of the position of a chain.
    """

    def __init__(self, packed: Any, chains: int, coordinates: int):
        self.packed, self.chains, self.coordinates = packed, chains, coordinates

    @classmethod
    def of(cls, monitor: Monitor, chains: int, coordinates: int) -> "Collected":
        """What is to be collected of a monitor."""
        return cls(jnp.stack([jnp.asarray(part, jnp.float32) for part in monitor], -1), chains, coordinates)

    def is_whole_run(self) -> bool:
        """Whether the axes are chains and draws. Under way NumPyro has draws in front, or no axis of chains."""
        packed = self.packed
        if not isinstance(packed, (jax.Array, np.ndarray)) or isinstance(packed, Tracer) or packed.ndim != 3:
            return False
        if self.chains == 1:
            return True
        if packed.shape[0] != self.chains:
            return False
        # as many draws as chains: what is in the array tells the two orders apart
        return packed.shape[1] != self.chains or bool((np.asarray(packed)[:, 0, 0] == np.arange(self.chains)).all())


def _rebuild(fixed: tuple[int, int], children: Any) -> Any:
    (packed,) = children
    collected = Collected(packed, *fixed)
    if not collected.is_whole_run():
        return collected
    if _reported[0] is None or _reported[0]() is not packed:  # some transformations rebuild a tree twice
        _reported[0] = weakref.ref(packed)
        report(_unpacked(packed), collected.coordinates)
    return _unpacked(packed)


def _unpacked(packed: Any) -> Monitor:
    _, refused, temperature, step_size, changed, *rest = np.moveaxis(np.asarray(packed), -1, 0)
    return Monitor((), refused.astype(np.int32), temperature, step_size, changed > 0, *rest)


jax.tree_util.register_pytree_node(Collected, lambda node: ((node.packed,), (node.chains, node.coordinates)), _rebuild)


class Bar:
    """
    What a progress bar shows: the chains that stand still. It looks at the state before the one that it is handed,
    which has been computed by now, so nothing waits for the device.
    """

    def __init__(self):
        self._before: Any = None

    def __reduce__(self):
        return Bar, ()

    def __call__(self, refused: jax.Array) -> str:
        before, self._before = self._before, refused
        if before is None or isinstance(before, Tracer) or not before.is_ready():
            return ""
        stuck = np.atleast_1d(np.asarray(before)) >= STUCK
        return f"{stuck.sum()} of {stuck.size} chains stand still" if stuck.any() else ""
