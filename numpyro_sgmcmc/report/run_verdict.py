"""The verdict of the identities of the score at the end of a run, and its words."""

from typing import NamedTuple

import numpy as np

from numpyro_sgmcmc.report.run_scores import FEW, RunNumbers, ScoreAverages
from numpyro_sgmcmc.utils.significance import graded

ERRORS = 0.1, 0.3  # errors of a mean in sds, and of a variance relative to it: doubtful, wrong
UNFIT = "does not fit the gradients at the draws"
KNOWN = 1.0  # larger errors, in sds or relative to a variance, are not known to first order
BLIND = 4.0  # a run that would have to be longer by more than this factor is unchecked


class RunVerdict(NamedTuple):
    numbers: RunNumbers  # RunNumbers, as Python numbers
    verdict: str  # "ok", "doubtful", "wrong", or empty if the draws were not checked

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
        return cls(numbers, graded(abs(numbers.size), *ERRORS) if numbers.score > 1 else "ok")

    @property
    def decides(self) -> bool:
        """Whether an error of .3 sd, or 30 % of a variance, would have been seen, or an error has been."""
        seen = max(self.numbers.least_shift, self.numbers.least_inflation) <= ERRORS[1]
        return bool(self.verdict) and (seen or self.verdict != "ok")

    @property
    def needed(self) -> float:
        """The factor by which a run must be longer to decide."""
        return (max(self.numbers.least_shift, self.numbers.least_inflation) / ERRORS[1]) ** 2

    @property
    def is_blind(self) -> bool:
        """Whether even twice these errors would not have been seen: then the warm-up does not make it right."""
        return bool(self.verdict) and not self.decides and not self.needed <= BLIND

    def words(self, averages: ScoreAverages) -> str:
        """What is wrong, and where."""
        size, error = self.numbers.size, self.numbers.error
        if not np.isfinite(size):
            return "the gradients at the draws are not finite"
        what, where = averages.name(int(self.numbers.series))
        if what == "mean":
            return mean_in_words(where, size, error)
        return variance_in_words(where if what == "variance" else f"{where}, averaged over the site,", size, error)

    def power(self, draws: int) -> str:
        """The errors that would have been seen, or how many draws of each chain are needed for a verdict."""
        numbers = self.numbers
        if not np.isfinite(self.needed):
            return "gradients are not finite"
        if self.needed > 1:
            return f"a verdict needs {self.needed * draws:.2g} draws of each chain"
        return power_in_words(numbers.least_shift, numbers.least_inflation)


def power_in_words(shift: float, inflation: float) -> str:
    """The smallest errors that would have been found."""
    if max(shift, inflation) > KNOWN:
        return f"not even errors of {KNOWN:g} sd of a mean and {KNOWN:.0%} of a variance would have been found"
    return f"errors above {shift:.2g} sd of a mean and {inflation:.0%} of a variance would have been found"


def mean_in_words(where: str, size: float, error: float) -> str:
    """An error of a mean, in sds, which the first identity tells to first order."""
    if abs(size) > KNOWN:
        return f"the mean of {where} {UNFIT} ({size:+.2g} +- {error:.2g} sd instead of 0)"
    return f"the mean of {where} is off by {size:+.2g} +- {error:.2g} sd"


def variance_in_words(where: str, size: float, error: float) -> str:
    """A relative error of a variance, which the second identity tells to first order."""
    if abs(size) > KNOWN:
        return f"the variance of {where} {UNFIT} ({1 + size:.2g} +- {error:.2g} instead of 1)"
    return f"the variance of {where} is off by {size:+.0%} +- {error:.0%}"
