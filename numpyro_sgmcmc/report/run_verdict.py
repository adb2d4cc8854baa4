"""The verdict of the identities of the score at the end of a run, and its words."""

import math
from typing import NamedTuple

import numpy as np

from numpyro_sgmcmc.report.run_scores import FEW, RunNumbers, ScoreAverages
from numpyro_sgmcmc.utils.significance import ERRORS, graded
from numpyro_sgmcmc.utils.wording import plain, ratio

UNFIT = "does not fit the gradients at the draws"
KNOWN = 1.0  # larger errors, in sds or relative to a variance, are not known to first order
BLIND = 4.0  # a run that would have to be longer by more than this factor is unchecked


class Power(NamedTuple):
    """
    The smallest errors that would have been found in the worst global coordinate: of a mean, in sds, and of a variance,
    relative to it. The verdict and its words both follow from these numbers. If none would have been found, they are
    infinite.
    """

    shift: float = math.inf
    inflation: float = math.inf

    @property
    def needed(self) -> float:
        """The factor by which a run must be longer, so that its draws alone decide."""
        return (max(self) / ERRORS[1]) ** 2 if not any(map(math.isnan, self)) else math.nan

    def is_enough(self, passed: bool) -> bool:
        """
        Whether a run in which nothing is wrong is right: an error of .3 sd, or 30 % of a variance, would have been
        found, or twice as much, and the warm-up has passed its check.
        """
        return self.needed <= (BLIND if passed else 1)

    def words(self, passed: bool, draws: int) -> str:
        """What would have been found by so many draws of each chain, or how many are needed for a verdict."""
        needed = f"about {plain(self.needed * draws, 2)} draws of each chain"
        if not self.is_enough(passed):
            return "too few draws for a verdict" + f"; it needs {needed}" * math.isfinite(self.needed)
        errors = f"errors above {self.shift:.2g} sd of a mean and {self.inflation:.0%} of a variance"
        by_warm_up = f". The warm-up has passed its check, too; without it, a verdict needs {needed}"
        return f"{errors} would have been found{by_warm_up * (not self.is_enough(False))}"

    def or_by(self, other: "Power") -> "Power":
        """Of two checks of the same draws: what at least one of them would have found."""
        return Power(*map(np.fmin, self, other))


class RunVerdict(NamedTuple):
    numbers: RunNumbers  # as Python numbers
    verdict: str  # "ok", "doubtful", "wrong", or empty if the draws were not checked
    power: Power = Power()  # the errors that would have been found

    @classmethod
    def from_numbers(cls, numbers: RunNumbers) -> "RunVerdict":
        """
        The verdict at the end of a run, from arrays of shape ``(chains, draws)``. Chains that run one by one have
        separate numbers: the worst of them counts, and together they see what a longer chain would.
        """
        last = np.stack([np.asarray(part, float)[:, -1] for part in numbers], -1)
        chains = np.unique(last, axis=0)
        of_chain = [RunNumbers(*row) for row in chains.tolist()]
        size = lambda chain: np.inf if np.isnan(chain.size) else abs(chain.size)  # noqa: E731
        worst = max(of_chain, key=lambda chain: size(chain) if chain.score > 1 else 0)
        least = np.sqrt((chains[:, -2:] ** 2).mean(0) / len(chains)).tolist()
        numbers = worst._replace(gradients=float(chains[:, 0].sum()), least_shift=least[0], least_inflation=least[1])
        if not numbers.gradients > FEW:
            return cls(numbers, "")
        return cls(numbers, graded(abs(numbers.size), *ERRORS) if numbers.score > 1 else "ok", Power(*least))

    @property
    def decides(self) -> bool:
        """Whether the draws alone decide: they are enough, or an error has been found."""
        return self.verdict in ("doubtful", "wrong") or self.power.is_enough(passed=False)

    def after(self, of_warm_up: str) -> str:
        """The verdict on a run in which nothing else is wrong; ``of_warm_up``: that of the check of its warm-up."""
        enough = of_warm_up != "right" or self.power.is_enough(passed=True)
        return "right" if self.decides else of_warm_up if enough else "unchecked"

    def words(self, averages: ScoreAverages) -> str:
        """What is wrong, and where."""
        size, error = self.numbers.size, self.numbers.error
        if not np.isfinite(size):
            return "the gradients at the draws are not finite"
        what, where = averages.name(int(self.numbers.series))
        if what == "mean":
            return mean_in_words(where, size, error)
        return variance_in_words(where, size, error, over=what == "variances")


def mean_in_words(where: str, size: float, error: float) -> str:
    """An error of a mean, in sds, which the first identity tells to first order."""
    sign = "-" if size < 0 else "+"
    if abs(size) > KNOWN:
        return f"the mean of {where} {UNFIT} ({sign}{ratio(abs(size))} +- {plain(error, 2)} sd instead of 0)"
    return f"the mean of {where} is off by {size:+.2g} +- {error:.2g} sd"


def variance_in_words(where: str, size: float, error: float, over: bool = False) -> str:
    """A relative error of a variance, or of the mean one ``over`` a site, which the second identity tells likewise."""
    what = f"the mean variance of the elements of {where}" if over else f"the variance of {where}"
    if abs(size) > KNOWN:
        return f"{what} {UNFIT} ({ratio(1 + size)} +- {ratio(error)} instead of 1)"
    return f"{what} is off by {size:+.0%} +- {error:.0%}"
