"""
The checks of a run without its data. The warning at its end, ``settings`` and ``summary`` use the same, so that they
agree. To add a warning, add its check here.
"""

from dataclasses import dataclass
from functools import cached_property
import math
from typing import Any

import numpy as np

from numpyro_sgmcmc.report import statistics
from numpyro_sgmcmc.report.check import Checks, Line
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.remedies import MORE_DRAWS, MORE_ROWS, MORE_WARM_UP, Remedies
from numpyro_sgmcmc.report.run_scores import RunNumbers, ScoreAverages
from numpyro_sgmcmc.report.run_verdict import RunVerdict
from numpyro_sgmcmc.utils.monte_carlo import FEWEST, effective, r_hat as mixing, unequal_spread
from numpyro_sgmcmc.utils.significance import ERRORS
from numpyro_sgmcmc.utils.wording import inflation as in_words, plain, ratio

STUCK = 100  # steps refused in a row after which a chain is reported
SELDOM = 0.01  # share of draws with a refused step that is doubtful
UNLIKELY = 0.002  # the same with minibatches if the warm-up has chosen the step: right runs have half of it at most
REFUSED = 0.5  # share of draws that end with a refused step that is wrong; 0.2 occurs near a hard wall
MIXED, APART = 1.1, 1.5  # an R-hat that is doubtful, wrong
SEVERAL_MODES = f"Use {MORE_WARM_UP}. If that does not help, the posterior has several modes"
FEW = 100  # effective draws
MANY = 1000  # draws of all chains that nearly always suffice for a verdict
WIDE = 1.0  # a larger inflation is not known by a prediction to first order

CHECKS = Checks()  # in the order of a warning: those that explain others first, then the most reliable ones


@dataclass(frozen=True, eq=False)
class Kept:
    """What a run has kept."""

    monitor: Monitor  # numbers of each draw, arrays of shape (chains, draws)
    averages: ScoreAverages  # the latent sites
    limit: float  # bound of the scores of the warm-up, see tuning.pilot.score_limit
    r_hat: np.ndarray | None = None  # of each coordinate; None at the end of a run
    draws: np.ndarray | None = None  # shape (chains, draws, d); only for a summary
    names: tuple[str, ...] = ()  # of the coordinates; only for a summary

    @property
    def failures(self) -> dict[str, Line]:
        """The lines that are not ok; empty if there are no draws, as after a warm-up alone."""
        if (np.asarray(self.monitor.step_size)[:, -1] <= 0).all():
            return {}
        return {name: line for name, line in CHECKS.lines(self).items() if line.failed}

    @property
    def warnings(self) -> list[Line]:
        """The failures of which a run ends with a warning. None may follow from one before it."""
        lines, explained = [], False
        for line in self.failures.values():
            lines += [line] * (line.explains or (line.warns and not explained))
            explained |= line.explains
        return lines

    @property
    def unchecked(self) -> str:
        """Why many draws, after a warm-up that has passed its check, are too few for a verdict; otherwise empty."""
        chains, draws = np.shape(self.monitor.step_size)
        long = self.of_warm_up == "right" and self.verdict.verdict and chains * draws >= MANY
        if not long or self.warnings or self.verdict.after("right") == "right":
            return ""
        power = self.verdict.power
        return f"{power.words(True, draws)}. Use {self.use.conclusive(power.needed)}"

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a chain."""
        return self.averages.coordinates

    @cached_property
    def verdict(self) -> RunVerdict:
        """The verdict of the identities of the score at the draws."""
        kept, shape = self.monitor._asdict(), np.shape(self.monitor.step_size)
        return RunVerdict.from_numbers(RunNumbers(*(np.broadcast_to(kept[name], shape) for name in RunNumbers._fields)))

    @cached_property
    def use(self) -> Remedies:
        """What the user may change."""
        return Remedies.for_run(self.monitor)

    @cached_property
    def stuck(self) -> np.ndarray:
        """The numbers of the chains that refuse every step for a while."""
        in_a_row = np.asarray(self.monitor.refused)
        return np.flatnonzero((in_a_row.max(1) >= STUCK) | (in_a_row > 0).all(1))

    @cached_property
    def temperature(self) -> np.ndarray:
        """The kinetic temperatures of the other chains, at the draws that have one."""
        T = np.delete(np.asarray(self.monitor.temperature, float), self.stuck, 0)
        return T[:, ~np.isnan(T).all(0)]

    @cached_property
    def scores(self) -> list[float]:
        """Gradient, virial and R-hat of the check of the warm-up, the largest of chains that were tuned one by one."""
        return [float(np.max(x[:, -1])) for x in (self.monitor.gradient, self.monitor.virial, self.monitor.r_hat)]

    @property
    def of_warm_up(self) -> str:
        """The verdict of the check of the warm-up."""
        return verdict_on_warm_up(self.scores, self.limit)

    def worst(self, sizes: np.ndarray) -> tuple[float, dict[str, str]]:
        """The largest of some numbers by coordinate, and where it is."""
        k = int(np.argmax(sizes))
        return float(sizes[k]), {"where": self.names[k] if self.names else ""}


@CHECKS.add("data", (0, math.inf), "the same", "Start a new run with these data")
def data(run: Kept) -> Line | None:
    seen = "the run was resumed with other data than those it began with"
    return Line(None, "changed", seen=seen, size=1, explains=True) if np.any(run.monitor.data_changed) else None


@CHECKS.add("step size", (0, 0.2), "> 0", "Use a schedule that stays positive")
def step_size(run: Kept) -> Line:
    """A schedule that has ended at 0 freezes the chains."""
    h = np.asarray(run.monitor.step_size, float)
    last, ended = float(h[:, -1].mean()), float((h <= 0).mean())
    shown = f"{last:.3g}{', at the end' * (not np.allclose(h, last, atol=0))}"
    shown += f", 0 in {ended:.1%} of draws" * (ended > 0)
    return Line(last, shown, seen="a step of size 0 repeats the draw before", size=ended, warns=False)


@CHECKS.add("draws with a refused step", (SELDOM, REFUSED), "<= {0:.0%}", "Use {run.use.stable}")
def refused(run: Kept) -> Line:
    in_a_row, z, stuck = np.asarray(run.monitor.refused), run.draws, run.stuck.size > 0
    share, ends = float(np.mean(run.monitor.diverging)), float((in_a_row > 0).mean())
    still = 0 if z is None or z.shape[1] == 1 else int((np.ptp(z, axis=1) == 0).all(-1).sum())
    size = ends if ends > REFUSED else min(max(share, ends), REFUSED)
    chosen = run.use.tuned and run.use.noisy  # by a step that chance does not allow
    if chosen and UNLIKELY < size <= SELDOM:
        size = 2 * SELDOM
    seen = f"{max(share, ends):.1%} of the draws have a refused step, and {ends:.1%} end with one"
    if stuck:
        seen = _what_is_stuck(in_a_row, run.stuck)
    return Line(
        share,
        f"{share:.2%}" + f", {still} chains stand still" * (still > 0),
        seen=f"{still} chains do not move" if still and not stuck else seen,
        bound=f"<= {UNLIKELY:.1%}" if chosen else "",
        size=1.0 if stuck or still else size,
        details={"in_a_row": int(in_a_row.max()), "standing_still": still},
        remedy=f"Use {MORE_ROWS}" if chosen and ends <= REFUSED and not (stuck or still) else "",
        warns=chosen or ends > REFUSED,
        explains=stuck,
    )


def _what_is_stuck(in_a_row: np.ndarray, stuck: np.ndarray) -> str:
    which, most = "the last step of every draw", in_a_row.max()
    if most >= STUCK:
        which = f"every step, up to {most} in a row"
    numbers = ", ".join(map(str, stuck[:8])) + ", ..." * (len(stuck) > 8)
    chains = f"{len(stuck)} of {len(in_a_row)} chains ({numbers}) have" if len(in_a_row) > 1 else "the chain has"
    where = "out of the support, or to an energy that is too high or not finite"
    return f"{chains} refused {which}: the steps lead {where}"


@CHECKS.add("kinetic temperature", ERRORS, "1 +- {0}", "")
def kinetic_temperature(run: Kept) -> Line | None:
    T = run.temperature
    if not T.size:
        return None
    line, blatant = statistics.deviation_from_1(T, run.coordinates), statistics.off_temperature(T)
    line = line._replace(remedy=f"Use {run.use.hot(line.value)}")
    cause = ": steps were refused, or the thermostats have grown on the way from a distant start"
    if line.value > 1:
        cause = ": the steps are too large" + ", or the minibatches too small" * run.use.noisy
        cause *= not run.use.arriving
    if blatant:
        size = f"{plain(blatant)} instead of 1" if math.isfinite(blatant) else "not finite"
        seen = f"the kinetic temperature of the run is {size}{cause}"
        return line._replace(seen=seen, size=math.inf, explains=True)
    known_to = f" +- {line.details['error']:.2g}" * math.isfinite(line.details["error"])
    return line._replace(
        seen=f"the kinetic temperature is {plain(line.value)}{known_to} instead of 1{cause}",
        error=0.0 if run.draws is None else line.error,  # only a summary says that it cannot tell
        warns=statistics.sure_temperature(T, run.coordinates),
    )


@CHECKS.add("squared steps over those of the noise", (statistics.LONG, math.inf), "<= {0:g}", "Use {run.use.accurate}")
def squared_steps(run: Kept) -> Line | None:
    jump = np.asarray(run.monitor.jump, float)
    late = float(jump[:, jump.shape[1] // 2 :].mean())
    seen = f"the squared steps are {plain(late)} times those of the injected noise, so the draws are too wide"
    line = Line(late, plain(late), seen=seen, size=statistics.long_steps(jump, run.coordinates))
    return line if jump.any() else None  # there is no such number for dynamics with a momentum


@CHECKS.add("inflation that the warm-up predicts", ERRORS, "<= {0:.0%}", "Use {run.use.less_noise}")
def tuned_inflation(run: Kept) -> Line | None:
    inflation = float(np.max(run.monitor.inflation[:, -1]))
    size = f"increases a variance by {inflation:.0%}" if inflation <= WIDE else "more than doubles a variance"
    seen = f"the warm-up predicts that minibatch noise {size}"
    line = Line(inflation, in_words(inflation), seen=seen, size=inflation)
    return line if run.use.tuned or inflation else None


@CHECKS.add("check at the end of the warm-up", (0, math.inf), "", f"Use {MORE_WARM_UP}")
def warm_up(run: Kept) -> Line | None:
    if not any(run.scores):
        return Line(0.0, "too short for one") if run.use.tuned else None
    gradient, virial, R = run.scores
    failed = failed_scores(run.scores, run.limit)
    if run.verdict.decides:  # not the draws of the warm-up, unless those of the run have not mixed either
        failed = failed_scores([0.0, 0.0, R * (mixing(np.asarray(run.monitor.place, float)) > MIXED)], run.limit)
    z = float(np.maximum(gradient, virial))
    seen = f"the check at the end of the warm-up failed, as {' and '.join(failed)}"
    bound = f"z <= {run.limit:.1f}, R-hat <= {MIXED}"
    numbers = {"gradient": gradient, "virial": virial, "r_hat": R}
    return Line(z, f"z = {plain(z)}, R-hat = {R:.2f}", bound, seen=seen, size=len(failed), details=numbers)


def failed_scores(scores: Any, limit: float) -> list[str]:
    """The scores of the check of the warm-up (gradient, virial, R-hat) that are too large, or NaN, in words."""
    names = "E[dU]", "E[(z - m) dU]", "R-hat"
    sizes = "{} standard errors from 0", "{} standard errors from 1", "{}"
    failed = []
    for score, bound, name, size in zip(scores, (limit, limit, MIXED), names, sizes):
        if not score <= bound:
            text = "not a number" if np.isnan(score) else size.format(plain(float(score)))
            failed.append(f"{name} is {text}")
    return failed


def verdict_on_warm_up(scores: Any, limit: float) -> str:
    """``"right"``, ``"doubtful"``, or ``"unchecked"``, see :func:`failed_scores`."""
    return "unchecked" if not np.any(scores) else "doubtful" if failed_scores(scores, limit) else "right"


@CHECKS.add("score identities during the run", ERRORS, "certain errors <= {0}", "Use {run.use.accurate}")
def run_scores(run: Kept) -> Line | None:
    verdict = run.verdict
    if not verdict.verdict:
        return None
    numbers, draws = verdict.numbers, run.monitor.step_size.shape[1]
    size = abs(numbers.size) if numbers.score > 1 else 0.0
    shown = f"{ratio(numbers.score)} of the bound; {verdict.power.words(run.of_warm_up == 'right', draws)}"
    return Line(numbers.score, shown, seen=verdict.words(run.averages), size=size, details=numbers._asdict())


@CHECKS.add("energy", (0, math.inf), "constant", f"Use {MORE_WARM_UP}")
def energy(run: Kept) -> Line | None:
    seen = "the energy was still falling when the draws began"
    return Line(None, "falls", seen=seen, size=1) if statistics.still_falling(run.monitor.energy) else None


@CHECKS.add("mixing (not correctness): R-hat", (MIXED, APART), "<= {0}", SEVERAL_MODES)
def r_hat(run: Kept) -> Line | None:
    apart = statistics.never_mixed(run.monitor.place)
    seen = "the chains are in different regions and do not mix (R-hat is {})"
    if run.r_hat is None:
        return Line(None, "", seen=seen.format(f"above {statistics.NEVER_MIXED:g}"), size=math.inf) if apart else None
    R, where = run.worst(run.r_hat)
    shown, size, seen = f"{R:.3f} at {where['where']}", math.inf if apart else R, seen.format(f"{R:.2f}")
    if run.draws is not None and run.draws.shape[1] < FEWEST:  # it is large by chance
        shown, size, seen = f"{shown}, of too few draws", APART, "chains of so few draws cannot be compared"
    return Line(R, shown, seen=seen, size=size, details=where)


@CHECKS.add("mixing (not correctness): effective draws", (-FEW, math.inf), f">= {FEW}", f"Use {MORE_DRAWS}")
def ess(run: Kept) -> Line | None:
    if run.draws is None:
        return None
    with np.errstate(invalid="ignore"):
        size, where = run.worst(-effective(run.draws))
    seen = f"only {-size:.0f} draws of {where['where']} are effective"
    return Line(-size, f"{-size:.0f} at {where['where']}", seen=seen, size=size, details=where)


@CHECKS.add("mixing (not correctness): widths", (ERRORS[0], math.inf), "<= {0:.0%}", f"Use {MORE_DRAWS}")
def spread(run: Kept) -> Line | None:
    if run.draws is None or len(run.draws) == 1:
        return None
    size, where = run.worst(unequal_spread(run.draws))
    shown = f"{size:.0%} apart at {where['where']}" if size else "no significant difference"
    seen = f"the standard deviations of {where['where']} differ by {size:.0%} from chain to chain"
    return Line(size, shown, seen=seen, size=size, details=where)
