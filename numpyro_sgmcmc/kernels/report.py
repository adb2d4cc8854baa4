"""
Tells the user, once a run, what is wrong with it and can be noticed for nothing.

A compiled step that calls Python would cost more than the step itself, and NumPyro calls no method of a kernel when a
run has ended. But it rebuilds what it has collected, as a pytree of arrays with the axes chains and draws. So one of
the collected fields, :class:`Collected`, is a node that looks at itself when it is rebuilt from the arrays of a whole
run. While a progress bar runs, :class:`Bar` shows what the last finished transition says.
"""

from typing import Any, NamedTuple
import warnings
import weakref

import jax
from jax.core import Tracer
import numpy as np
from numpyro.diagnostics import effective_sample_size

from numpyro_sgmcmc.utils.compat import stack_level

STUCK = 100  # steps refused in a row after which a chain is reported
HOT, COLD = 2.0, 0.5  # kinetic temperatures, for whole runs, that no right run has
CERTAIN = 5.0  # standard errors between the mean temperature and these bounds


_reported: list[Any] = [None]  # the arrays of the last report, weakly


class Monitor(NamedTuple):
    """
    What a chain says of itself at the end of a transition.

    - **chain** - while a run is under way, the number of each of several vectorized chains, else ``()``.
    - **refused** - steps refused in a row.
    - **temperature** - kinetic temperature, or ``()``.
    - **step_size** - that of the last step.
    - **data_changed** - whether the data are not those that the chain was started with.
    """

    chain: Any
    refused: Any
    temperature: Any
    step_size: Any
    data_changed: Any


class Collected(Monitor):
    """A :class:`Monitor` that reports when it is rebuilt from the arrays of a whole run, and then is a plain one."""

    chains: int


def collected(monitor: Monitor, chains: int) -> Any:
    """
    :param int chains: those that are vectorized in one state, else 1.
    """
    node = Collected(*monitor)
    node.chains = chains
    return node


def _rebuild(chains: int, children: Any) -> Monitor:
    monitor = Monitor(*children)
    if _is_whole_run(monitor, chains):
        report(monitor)
        return monitor._replace(chain=())  # the same under every chain method
    return collected(monitor, chains)


jax.tree_util.register_pytree_node(
    Collected,
    lambda node: (tuple(node), node.chains),
    _rebuild,  # pyright: ignore[reportArgumentType]
)


def _is_whole_run(monitor: Monitor, chains: int) -> bool:
    """Whether the arrays have the axes chains and draws. Under way NumPyro has draws in front, or no axis of chains."""
    refused, chain = monitor.refused, monitor.chain
    if not isinstance(refused, (jax.Array, np.ndarray)) or isinstance(refused, Tracer) or np.ndim(refused) != 2:
        return False
    if chains == 1:
        return True
    if refused.shape[0] != chains:
        return False
    # as many draws as chains: what is in the array tells the two orders apart
    return refused.shape[1] != chains or bool((np.asarray(chain)[:, 0] == np.arange(chains)).all())


def report(monitor: Monitor) -> None:
    """
    Warn of chains that stand still, of a temperature that is not 1, of data that have changed.

    :param monitor: arrays of shape ``(chains, draws)``.
    """
    if _reported[0] is not None and _reported[0]() is monitor.refused:
        return  # some transformations rebuild a tree twice
    _reported[0] = weakref.ref(monitor.refused)
    kept = np.asarray(monitor.step_size)[:, -1] > 0  # a warm-up alone collects no draws
    if not kept.any():
        return
    refused, h = np.asarray(monitor.refused), float(np.asarray(monitor.step_size)[kept][-1, -1])
    stuck = np.flatnonzero((refused.max(1) >= STUCK) | (refused > 0).all(1))
    if stuck.size:
        _warn(
            f"{_chains(stuck, refused)} refused every step for a while (up to {refused.max()} in a row), as they left "
            f"the finite numbers or the support; the step size is {h:.3g}. A refused step leaves the chain where it "
            "is. Use a smaller step_size, or look for data that are not finite."
        )
    hot = _off_temperature(monitor.temperature, np.delete(np.arange(len(refused)), stuck))
    if hot:
        _warn(
            f"the kinetic temperature of the run is {hot:.3g}, where 1 is right: the step size {h:.3g} is beyond its "
            "stability limit, or the noise of the minibatches is more than the friction takes up. The draws are not "
            "those of the posterior. Use a smaller step_size, or larger batches."
        )
    if np.asarray(monitor.data_changed).any():
        _warn(
            "the run was resumed with other data than it was started with. What the state holds of the data "
            "(control variates, tables, thermostats) is that of the old ones. Start a new run, or resume with the data "
            "that the state comes from."
        )


def _chains(stuck: np.ndarray, refused: np.ndarray) -> str:
    if len(refused) == 1:
        return "the chain has"
    return f"{len(stuck)} of {len(refused)} chains ({', '.join(map(str, stuck[:8]))}{', ...' * (len(stuck) > 8)}) have"


def _off_temperature(temperature: Any, chains: np.ndarray) -> float:
    """The mean temperature if it is certainly too high or too low, else 0."""
    if isinstance(temperature, tuple) or not chains.size:
        return 0.0
    T = np.asarray(temperature, float)[chains]
    if T.shape[1] < 4:
        return 0.0  # too few draws for a standard error
    with np.errstate(all="ignore"):
        error = T.std() / np.sqrt(np.clip(effective_sample_size(T), 1, T.size))
    low, high = T.mean() - CERTAIN * error, T.mean() + CERTAIN * error
    return float(T.mean()) if low > HOT or high < COLD else 0.0


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=stack_level())


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
