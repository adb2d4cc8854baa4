"""
The warning at the end of a run, without additional cost.

A callback from a compiled step to Python would cost more than the step itself, and NumPyro calls no method of a kernel
at the end of a run. But it rebuilds the collected fields, as a pytree of arrays with the axes chains and draws. So one
of the collected fields, :class:`Collected`, is a pytree node that runs the checks when it is rebuilt from the arrays of
a whole run.
"""

import logging
from typing import Any
import weakref

import jax
from jax.core import Tracer
import numpy as np

from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.run_checks import Kept
from numpyro_sgmcmc.report.run_scores import ScoreAverages
from numpyro_sgmcmc.tuning.pilot import score_limit
from numpyro_sgmcmc.utils.compat import warn
from numpyro_sgmcmc.utils.significance import worst
from numpyro_sgmcmc.utils.wording import plain

logger = logging.getLogger(__name__.partition(".")[0])
LENGTH = 4 * 100  # characters of a warning: four lines
_reported: list[Any] = [None]  # the arrays of the last report, weakly


class Collected:
    """
    The numbers of a :class:`Monitor`, packed. Those of a whole run become a monitor, and the run is checked.

    :param int chains: number of chains in one vectorized state, otherwise 1.
    :param averages: the latent sites.
    """

    def __init__(self, packed: Any, chains: int, averages: ScoreAverages):
        self.packed, self.chains, self.averages = packed, chains, averages

    def is_whole_run(self) -> bool:
        """Whether the axes are chains and draws. During a run there is no axis of chains, or that of draws is first."""
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
        first = np.asarray(packed)[:, 0, Monitor._fields.index("chain")]
        return packed.shape[1] != self.chains or bool((first == np.arange(self.chains)).all())


def _rebuild(fixed: tuple[int, ScoreAverages], children: Any) -> Any:
    (packed,) = children
    collected = Collected(packed, *fixed)
    if not collected.is_whole_run():
        return collected
    monitor = Monitor.unpacked(packed)
    if _reported[0] is None or _reported[0]() is not packed:  # some transformations rebuild a tree twice
        _reported[0] = weakref.ref(packed)
        report(monitor, collected.averages, collected.chains)
    return monitor


jax.tree_util.register_pytree_node(Collected, lambda node: ((node.packed,), (node.chains, node.averages)), _rebuild)


def report(monitor: Monitor, averages: ScoreAverages, chains: int) -> None:
    """Warns, once, of what is wrong with a run, or that a long run is not checked, and logs what its warm-up found."""
    run = Kept(monitor, averages, score_limit(averages.coordinates, chains))
    last = {name: float(np.asarray(x)[-1, -1]) for name, x in monitor._asdict().items() if name != "chain"}
    tuned = last["num_steps"] > 0
    if tuned and last["step_size"] > 0:
        logger.info(
            f"found in the warm-up: step_size {last['step_size']:.3g} in coordinates that standardise the posterior, "
            f"steps_per_sample {last['num_steps']:.0f}, variance of the gradient noise at most {last['noise']:.3g}; "
            f"{plain(last['passes'])} passes over the data in the search; verdict of the check: "
            f"{run.of_warm_up}."
        )
    if run.warnings:
        warn(_text(run.warnings))
    elif run.unchecked:
        warn(f"the draws are unchecked: {run.unchecked}.")


def _text(lines: list[Line]) -> str:
    """The warning: what is wrong first of all, what to do about it, and what else is wrong."""
    verdict = worst(*(line.verdict for line in lines))
    first = next(line for line in lines if line.explains or line.verdict == verdict)
    begin = f"the draws are {verdict}: {first.seen}. {first.remedy}."
    end = " numpyro_sgmcmc.summary(mcmc, *args) shows more."
    others, also = [line.seen.partition(": ")[0] for line in lines if line is not first], ""  # without their causes
    for k in range(len(others), -1, -1):  # as many as there is room for
        rest = f" and {len(others) - k} more" * (k < len(others))
        also = f" Also: {'; '.join(others[:k])}{rest}." * bool(others)
        if len(begin + also + end) <= LENGTH:
            break
    return begin + also + end
