"""What the numbers of a :class:`~numpyro_sgmcmc.report.monitor.Monitor` show. Those of a right run show nothing."""

import math

import numpy as np

from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils.monte_carlo import bound, effective, standard_error
from numpyro_sgmcmc.utils.significance import ERRORS

HOT, COLD = 2.0, 0.5  # mean kinetic temperatures of a run that are always reported
TENTH = 10  # its inverse, the share of draws that are the first ones
CERTAIN = 5.0  # standard errors between the mean temperature and these bounds
ENOUGH = 30  # effective draws needed for a reliable standard error
BLATANT = 10.0  # if the temperature of every draw is higher, a few draws are enough for a report
OFF = ERRORS[0]  # deviation of a temperature from 1, or an inflation, that is reported if it is significant
NEVER_MIXED = 2.0  # an R-hat of chains that do not overlap
LONG_ENOUGH = 100  # draws per chain needed for the checks of energy and mixing
HIGH, FAR = 5.0, 10.0  # sds of the late energies by which the first draws, and the very first one, lie above their mean
CHANCE = 1e-6  # probability of a false report by :func:`beyond_chance`
LONG = 3.0  # a squared step, relative to that of its noise


def never_mixed(place: np.ndarray) -> bool:
    """Whether chains do not overlap: their R-hat is above ``NEVER_MIXED``."""
    place = np.asarray(place, float)
    if len(place) < 2 or place.shape[1] < LONG_ENOUGH or not np.isfinite(place).all():
        return False
    within = place.var(1, ddof=1).mean()
    between = place.mean(1).var(ddof=1)
    return bool(within + between > NEVER_MIXED**2 * within)


def still_falling(energy: np.ndarray) -> bool:
    """Whether a chain's energy is far higher in its first tenth of draws, or its first draw, than in its last half."""
    energy = np.asarray(energy, float)
    n = energy.shape[1]
    if n < LONG_ENOUGH or not np.isfinite(energy).all():
        return False
    late = energy[:, n // 2 :]
    sd = np.maximum(late.std(1), 1e-30)
    high = energy[:, : n // TENTH].mean(1) - late.mean(1) > HIGH * sd
    far = (energy[:, 0] - late.mean(1) > FAR * sd) & (energy[:, 0] > late.max(1))  # not just an unusual minibatch
    return bool((high | far).any())


def is_arriving(energy: np.ndarray) -> bool:
    """Whether a chain's energy is higher in each of its first draws, a tenth of them, than in all of its last half."""
    energy = np.asarray(energy, float)
    n = energy.shape[1]
    return n >= 2 * TENTH and bool((energy[:, : n // TENTH].min(1) > energy[:, n // 2 :].max(1)).any())


def long_steps(jump: np.ndarray, coordinates: int) -> float:
    """
    The mean of :func:`squared_step` over the later half of the draws if it significantly exceeds ``LONG``, else 0. With
    reshuffled rows most of the noise cancels if it is small, but little of it if it is that large.
    """
    jump = np.asarray(jump, float)
    late = jump[:, jump.shape[1] // 2 :]
    if late.shape[1] < 4 or not late.any():
        return 0.0
    if not np.isfinite(late).all():
        return math.inf
    certain = late.mean() - CERTAIN * sure_error(late) > LONG or beyond_chance(late, coordinates, LONG - 1)
    return float(late.mean()) if certain and late.mean() > LONG else 0.0


def off_temperature(T: np.ndarray) -> float:
    """The mean temperature if it is significantly too high or too low, by a factor of two or more, else 0."""
    if not np.isfinite(T).all():
        return math.inf
    if T.size >= 4 and T.min() > BLATANT:
        return float(np.median(T))
    if T.shape[1] < 4:
        return 0.0  # too few draws for a standard error
    # an unstable chain has a long tail, so HOT is compared on the log scale; the mean log is below 0 for a correct
    # chain with any number of coordinates
    log_T = np.log(np.clip(T, np.finfo(float).tiny, None))
    if log_T.mean() - CERTAIN * sure_error(log_T) > np.log(HOT):
        return float(np.exp(log_T.mean()))
    return float(T.mean()) if T.mean() + CERTAIN * sure_error(T) < COLD else 0.0


def deviation_from_1(T: np.ndarray, coordinates: int | None = None, least: float = 0.0) -> Line:
    """
    What temperatures show, whose mean should be 1. A deviation of a kinetic temperature is not ``"wrong"`` unless a run
    would end with a warning: the standard errors of few draws that depend on each other are too small.

    :param T: shape ``(chains, draws)``.
    :param coordinates: number of coordinates, if T is their kinetic temperature.
    :param least: lower bound of the standard error.
    """
    mean, error, n = float(T.mean()), max(float(standard_error(T)), least), effective(T)
    size = abs(mean - 1)
    certain = n >= ENOUGH and not size <= bound(1, len(T), n) * error
    if coordinates is not None:
        certain |= beyond_chance(T, coordinates, OFF)
    unsure = coordinates is not None and np.isfinite(mean) and not sure_temperature(T, coordinates)
    return Line(
        mean,
        f"{mean:.3f} +- {error:.3f}",
        seen=f"the draws are too {'wide' if mean > 1 else 'narrow'}, or the chains are still on their way",
        details={"error": error},
        size=(min(size, ERRORS[1]) if unsure else size) if certain else 0.0,
        error=error if size > OFF else 0.0,
    )


def sure_temperature(T: np.ndarray, coordinates: int) -> bool:
    """Whether the mean is so certainly off that a run ends with a warning."""
    if T.shape[1] < 4:
        return False
    return bool(abs(T.mean() - 1) - CERTAIN * sure_error(T) > OFF) or beyond_chance(T, coordinates, OFF)


def beyond_chance(T: np.ndarray, coordinates: int, tolerance: float) -> bool:
    """
    Whether the mean kinetic temperature is significantly further from 1 than ``tolerance``, for draws with any
    dependence. For d coordinates d T is chi-squared, and the mean of dependent draws has no larger exponential moments
    than one draw (Jensen). So by Chernoff's bound the mean of C chains exceeds x with a probability of at most
    exp(-C d (x - 1 - log x) / 2).

    :param T: shape ``(chains, draws)``.
    """
    mean = float(T.mean())
    if not T.size or not math.isfinite(mean) or abs(mean - 1) <= tolerance:
        return bool(T.size) and not math.isfinite(mean)
    x = max(mean / (1 + math.copysign(tolerance, mean - 1)), np.finfo(float).tiny)
    return len(T) * coordinates * (x - 1 - math.log(x)) / 2 > -math.log(CHANCE)


def sure_error(x: np.ndarray) -> float:
    """Standard error of the mean of dependent draws; infinite if there are too few of them to be sure of it."""
    return float(standard_error(x)) if effective(x) >= ENOUGH else math.inf
