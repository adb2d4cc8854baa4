"""
The doubts about a run, from the numbers collected with every draw (:class:`~numpyro_sgmcmc.report.monitor.Monitor`).
The warning at the end of a run, ``settings`` and ``summary`` all use them, so that they agree.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.remedies import NEARER, OTHER_PARAMETERS, REFUSED_FOR, Remedies
from numpyro_sgmcmc.report.run_checks import (
    APART,
    MIXED,
    NEVER_MIXED,
    OFF,
    REFUSED,
    SELDOM,
    STUCK,
    failed_check,
    known_temperatures,
    long_steps,
    never_mixed,
    off_temperature,
    still_falling,
    sure_temperature,
    verdict_on_one,
)
from numpyro_sgmcmc.report.run_scores import Layout
from numpyro_sgmcmc.report.run_verdict import RunVerdict
from numpyro_sgmcmc.utils.monte_carlo import r_hat as mixing
from numpyro_sgmcmc.utils.significance import VARIANCE, graded, worst


class Doubt(NamedTuple):
    """
    - **line** - key of its line of a summary.
    - **verdict** - ``"doubtful"`` or ``"wrong"``.
    - **found** - what was found.
    - **remedy** - causes and what to do, a sentence.
    - **told** - whether a run ends with a warning of it, as of each that is ``"wrong"`` if none above explains it.
    """

    line: str
    verdict: str
    found: str
    remedy: str
    told: bool = True


def doubts(monitor: Monitor, layout: Layout, limit: float, r_hat: float | None = None) -> list[Doubt]:
    """
    The doubts about a run, the most reliable first; empty if there are none, or no draws.

    :param monitor: arrays of shape ``(chains, draws)``.
    :param layout: the latent sites.
    :param float limit: bound of the scores of the warm-up, see :func:`~numpyro_sgmcmc.tuning.pilot.score_limit`.
    :param float r_hat: R-hat of the draws in the worst coordinate. None: that of one function of the coordinates.
    """
    monitor = Monitor(*(part if isinstance(part, tuple) else np.asarray(part) for part in monitor))
    kept = ~(monitor.step_size[:, -1] <= 0)  # a warm-up alone collects no draws; NaN is one
    if not kept.any():
        return []
    use = Remedies.of(monitor)
    refused = monitor.refused
    stuck = np.flatnonzero((refused.max(1) >= STUCK) | (refused > 0).all(1))
    moving = np.delete(np.arange(len(refused)), stuck)
    T = known_temperatures(monitor.temperature)
    found = []
    if stuck.size:
        found.append(_stuck(stuck, refused, use))
    off = off_temperature(T, moving)
    if off:
        seen = f"the kinetic temperature of the run is {off:.3g} instead of 1"
        found.append(Doubt("kinetic_temperature", "wrong", seen, use.hot(off)))
    of = Monitor(*(part if isinstance(part, tuple) else part[kept] for part in monitor))
    rest = [*_of_steps(of, T[:, :0] if off else T[moving], layout.coordinates, use)]
    rest += _of_draws(of, layout, limit, use, r_hat)
    found += [doubt._replace(told=doubt.told and not found) for doubt in rest]  # they may follow from the first
    if monitor.data_changed.any():
        found.append(
            Doubt(
                "data",
                "doubtful",
                "the run was resumed with other data than those it was started with. Its state (control variates, "
                "tables, thermostats) still belongs to the old data",
                "Start a new run, or resume with the old data, and look for new values that are not finite",
            )
        )
    return found


def _stuck(stuck: np.ndarray, refused: np.ndarray, use: Remedies) -> Doubt:
    which = "the last step of every draw"
    if refused.max() >= STUCK:
        which = f"every step for a while (up to {refused.max()} in a row)"
    of = f"{len(stuck)} of {len(refused)} chains ({', '.join(map(str, stuck[:8]))}{', ...' * (len(stuck) > 8)}) have"
    return Doubt(
        "refused",
        "wrong",
        f"{of if len(refused) > 1 else 'the chain has'} refused {which}, because these steps led to {REFUSED_FOR}",
        f"Use {use.stable}. Data on disk or over devices are not checked for values that are not finite",
    )


def _of_steps(monitor: Monitor, T: np.ndarray, coordinates: int, use: Remedies) -> Iterable[Doubt]:
    share, ends = float(monitor.diverging.mean()), float((monitor.refused > 0).mean())
    if share > SELDOM or ends > SELDOM:
        yield Doubt(
            "refused",
            "wrong" if ends > REFUSED else "doubtful",
            f"{max(share, ends):.1%} of the draws have a refused step, and {ends:.1%} end with one. Such a step led to "
            f"{REFUSED_FOR}",
            f"Use {use.stable}",
            ends > REFUSED,
        )
    if T.size and T.shape[1] >= 4:
        mean, (verdict, error) = float(T.mean()), verdict_on_one(T, coordinates)
        sure = sure_temperature(T, coordinates)
        if verdict != "ok" or sure:
            certain = f" +- {error:.2f}" if np.isfinite(error) else ""
            yield Doubt(
                "kinetic_temperature",
                worst(verdict, "doubtful"),
                f"the kinetic temperature is {mean:.3g}{certain} instead of 1",
                use.hot(mean),
                sure,
            )
    jump = long_steps(monitor.jump, coordinates)
    if jump:
        yield Doubt(
            "squared_steps",
            "doubtful",
            f"the squared steps are {jump:.3g} times as large as with the injected noise alone, so the gradients, or "
            "their minibatch noise, increase the variance of the draws",
            f"Use {use.accurate}",
        )


def _of_draws(monitor: Monitor, layout: Layout, limit: float, use: Remedies, r_hat: float | None) -> Iterable[Doubt]:
    inflation = float(np.max(monitor.inflation[:, -1]))
    if not inflation <= OFF:
        yield Doubt(
            "tuned_inflation",
            graded(inflation, *VARIANCE),
            f"minibatch noise is predicted to increase the posterior variances by up to {inflation:.0%}",
            f"Use {use.quiet}",
        )
    run = RunVerdict.of(monitor.scores)
    if run.verdict not in ("ok", ""):
        yield Doubt("run_scores", run.verdict, run.words(layout), f"Use {use.accurate}")
    scores, apart = (monitor.gradient[:, -1], monitor.virial[:, -1]), monitor.r_hat[:, -1]
    if run.decides:  # not the draws of the warm-up, unless those of the run have not mixed either
        scores, apart = (0.0, 0.0), apart * (mixing(monitor.place) > MIXED)
    failed = failed_check(*scores, apart, limit)
    if failed:
        yield failed_warm_up(failed, use)
    if still_falling(monitor.energy):
        yield Doubt(
            "energy",
            "doubtful",
            "the energy was still falling when the draws began, as after a start far from the mode",
            f"Use {NEARER}",
        )
    apart = never_mixed(monitor.place)
    verdict = "ok" if r_hat is None else graded(r_hat, MIXED, APART)
    if apart or verdict != "ok":
        above = f"above {NEVER_MIXED:g}" if r_hat is None else f"{r_hat:.2f}"
        yield Doubt(
            "r_hat",
            "wrong" if apart else verdict,
            f"the chains are in different regions and do not mix (R-hat is {above})",
            f"Use {use.mixing}",
            apart,
        )


def failed_warm_up(failed: list[str], use: Remedies) -> Doubt:
    """
    :param failed: see :func:`~numpyro_sgmcmc.report.run_checks.failed_check`.
    """
    return Doubt(
        "warm_up",
        "doubtful",
        f"in the second half of the warm-up, in the worst direction, {' and '.join(failed)}",
        f"Possible causes: a hierarchy (use {OTHER_PARAMETERS}), several modes, parameters that are known only up to "
        "a rotation or a permutation, a posterior that is far from normal (compare with NUTS on fewer rows), or too "
        "short a warm-up (use a larger num_warmup)",
    )


def verdict(scores: Any, limit: float) -> str:
    """
    The verdict of the check at the end of the warm-up: ``"right"``, ``"doubtful"``, or ``"unchecked"``.

    :param scores: gradient, virial and r_hat, see :class:`~numpyro_sgmcmc.tuning.tuning.Scores`.
    """
    if not np.any(scores):
        return "unchecked"
    gradient, virial, r_hat = scores
    return "doubtful" if failed_check(gradient, virial, r_hat, limit) else "right"
