r"""
Monte Carlo errors of averages over dependent draws.

The standard error of the mean of n draws from C chains is the larger of two estimates,

.. math:: \sqrt{v_B / (B C)} \qquad \text{and} \qquad \sigma / \sqrt{\mathrm{ESS}},

where :math:`v_B` is the variance of the means of B blocks of each chain (Flegal & Jones 2010), and ESS is the effective
sample size of Geyer (1992) over all chains. Blocks are too short for slow chains, and the estimate of the effective
sample size is noisy for fast ones; the larger of the two is conservative.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from scipy.special import fdtri  # a dependency of jax

from numpyro_sgmcmc.utils.significance import FALSE_ALARMS, largest_z_score

BLOCKS = 20  # blocks per chain
TOGETHER = 256  # number of coordinates whose statistics are computed at once
OF_EACH = 25  # effective draws of each chain that are needed to compare their widths
FEWEST = 8  # smallest number of draws per chain for which a standard error is estimated


def standard_error(x: np.ndarray) -> np.ndarray:
    """Standard error of the mean over chains and draws, ``(chains, draws, ...)``; infinite if there are too few."""
    x = np.asarray(x, float)
    chains, draws = x.shape[:2]
    if draws < FEWEST:
        return np.full(x.shape[2:], np.inf)
    blocks = min(BLOCKS, draws // 2)
    length = draws // blocks
    means = x[:, draws - blocks * length :].reshape(chains, blocks, length, *x.shape[2:]).mean(2)
    with np.errstate(all="ignore"):
        by_blocks = np.sqrt(means.reshape(-1, *x.shape[2:]).var(0, ddof=1) / (blocks * chains))
        error = np.maximum(by_blocks, x.std((0, 1)) / np.sqrt(effective(x)))
    return np.where(np.isfinite(error), error, np.inf)


def positive_sd(x: np.ndarray) -> np.ndarray:
    """The standard deviation over chains and draws, ``(chains, draws, ...)``, as a divisor: never 0."""
    return np.maximum(x.std((0, 1)), 1e-300)


def effective(x: np.ndarray) -> np.ndarray:
    """
    Effective sample size, at most the number of draws and at least 1; the number of draws if all draws are equal.

    :param x: shape ``(chains, draws, ...)``; with fewer than 4 draws the result is 1.
    """
    n = np.shape(x)[0] * np.shape(x)[1]
    if np.shape(x)[1] < 4:
        return np.ones(np.shape(x)[2:])
    return np.clip(np.nan_to_num(_in_parts(effective_sample_size, x), nan=n, posinf=n, neginf=1), 1, n)


def r_hat(x: np.ndarray) -> np.ndarray:
    """
    Split R-hat (Gelman et al. 2013); infinite if each half of a chain is constant at a different value, 1 if all draws
    are equal.

    :param x: shape ``(chains, draws, ...)``.
    """
    if np.shape(x)[1] < 4:
        return np.ones(np.shape(x)[2:])
    values = np.nan_to_num(_in_parts(split_gelman_rubin, x), nan=np.inf, posinf=np.inf)
    return np.where(np.ptp(x, axis=(0, 1)) == 0, 1.0, values)


def _in_parts(statistic: Callable[[np.ndarray], Any], x: np.ndarray) -> np.ndarray:
    """A statistic of each coordinate, of ``TOGETHER`` at a time."""
    columns = np.reshape(x, (*np.shape(x)[:2], -1))
    parts = np.split(columns, range(TOGETHER, columns.shape[-1], TOGETHER), axis=-1)
    with np.errstate(all="ignore"):
        values = [np.asarray(statistic(np.asarray(part, float))) for part in parts]
    return np.concatenate(values, -1).reshape(np.shape(x)[2:])


def bound(tests: Any, chains: int, ess: Any = np.inf) -> Any:
    """
    The limit of the largest of ``tests`` z-scores (:func:`~numpyro_sgmcmc.utils.significance.largest_z_score`). Its
    degrees of freedom are those of ``BLOCKS`` blocks of each chain, or half of the effective sample size if that is
    less, as for slow chains, whose blocks are not independent.

    :param ess: effective sample size, a number or an array.
    :return: the z-score for each ``ess``.
    """
    freedom = np.maximum(np.minimum(BLOCKS * chains, np.asarray(ess) / 2) - 1, 2)
    return largest_z_score(tests, freedom)


def unequal_spread(x: np.ndarray) -> np.ndarray:
    """
    The relative standard deviation, over the chains, of their mean distance from the median of all draws, where that is
    significant, else 0. R-hat compares means only. The test is one of equal means (F) with the standard errors above.
    The limit is exceeded in the worst coordinate of right chains with probability ``FALSE_ALARMS``.

    :param x: shape ``(chains, draws, coordinates)``, of at least two chains.
    """
    chains, _, d = x.shape
    spreads = np.zeros(d)
    for first in range(0, d, TOGETHER):
        part = np.asarray(x[..., first : first + TOGETHER], float)
        away = np.abs(part - np.median(part, (0, 1)))
        means, errors = away.mean(1), np.stack([standard_error(chain[None]) for chain in away])
        ess = sum(effective(chain[None]) for chain in away)  # of chains that may differ
        freedom = np.maximum(np.minimum(BLOCKS * chains, ess / 2) - chains, 2)
        limit = fdtri(chains - 1, freedom, 1 - FALSE_ALARMS / d)
        with np.errstate(all="ignore"):
            spread = np.nan_to_num(means.std(0, ddof=1) / means.mean(0))
            certain = means.var(0, ddof=1) > limit * (errors**2).mean(0)
            certain &= effective(part) >= OF_EACH * chains  # standard errors of shorter chains are too small
        spreads[first : first + TOGETHER] = np.where(certain, spread, 0)
    return spreads
