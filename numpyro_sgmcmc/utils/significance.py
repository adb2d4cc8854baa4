"""Limits that a statistic exceeds by chance with a stated probability, and the verdict on one that should be small."""

from typing import Any

import numpy as np
from scipy.special import stdtrit  # a dependency of jax

FALSE_ALARMS = 1e-3  # probability of a false alarm
ORDER = ("ok", "doubtful", "wrong")
# errors of a mean in posterior sds, and relative errors of a variance or a temperature: doubtful, wrong
ERRORS = 0.1, 0.3


def largest_z_score(tests: Any, freedom: Any) -> Any:
    """
    The z-score that the largest of ``tests`` z-scores exceeds with probability ``FALSE_ALARMS``: a quantile of
    Student's t.

    :param tests: a number, or an array of them.
    :param freedom: degrees of freedom, a number or an array.
    """
    return -stdtrit(freedom, FALSE_ALARMS / (2 * np.maximum(tests, 1)))


def graded(size: float, doubtful: float, wrong: float) -> str:
    """The verdict on a number that should be small; NaN is wrong."""
    return "ok" if size <= doubtful else "doubtful" if size <= wrong else "wrong"


def worst(*verdicts: str) -> str:
    """The worst of some verdicts, ``"ok"`` of none; an empty one counts as ``"ok"``."""
    return max(("ok", *(verdict or "ok" for verdict in verdicts)), key=ORDER.index)
