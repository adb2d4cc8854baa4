"""Limits that a statistic exceeds by chance with a stated probability."""

from typing import Any

from scipy.special import stdtrit  # a dependency of jax

FALSE_ALARMS = 1e-3  # probability of a false alarm


def largest_z_score(tests: int, freedom: Any) -> Any:
    """
    The z-score that the largest of ``tests`` z-scores exceeds with probability ``FALSE_ALARMS``: a quantile of
    Student's t.

    :param freedom: degrees of freedom, a number or an array.
    """
    return -stdtrit(freedom, FALSE_ALARMS / (2 * max(tests, 1)))
