"""
Checks of a run at its end, which use a few numbers collected with every draw: :class:`Monitor`. A run without problems
gives no warning.
"""

import logging
import math
from typing import Any, NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size

from numpyro_sgmcmc.tuning.pilot import score_limit
from numpyro_sgmcmc.utils.compat import stack_level

logger = logging.getLogger(__name__.partition(".")[0])

STUCK = 100  # steps refused in a row after which a chain is reported
HOT, COLD = 2.0, 0.5  # mean kinetic temperatures of a run that are always reported
CERTAIN = 5.0  # standard errors between the mean temperature and these bounds
ENOUGH = 30  # effective draws needed for a reliable standard error
BLATANT = 10.0  # if the temperature of every draw is higher, a few draws are enough for a report


MIXED = 1.1  # an R-hat that is too large for a correct warm-up
OFF = 0.1  # deviation of a temperature from 1, or an inflation, that is reported if it is significant
NEVER_MIXED = 2.0  # an R-hat of chains that do not overlap
LONG_ENOUGH = 100  # draws per chain needed for the checks of energy and mixing
HIGH, FAR = 5.0, 10.0  # sds of the late energies by which the first draws, and the very first one, lie above their mean
CHANCE = 1e-6  # probability of a false report by :func:`beyond_chance`
LONG = 3.0  # a squared step, relative to that of its noise
FIRST = 64  # coordinates per site that are used to distinguish chains


class Monitor(NamedTuple):
    """
    Numbers that describe a chain at the end of a transition.

    - **chain** - the number of the chain in a state of several chains, otherwise 0; ``()`` once a run has ended.
    - **refused** - steps refused in a row.
    - **temperature** - kinetic temperature; NaN without a momentum, and after a step without noise.
    - **step_size** - size of the last step.
    - **data_changed** - whether the data have changed since the start of the chain.
    - **energy** - estimate of U at the last evaluation of the gradient.
    - **place** - one linear function of the position: see :func:`projection`.
    - **jump** - the squared last step, relative to that of its noise alone: see :func:`squared_step`; 0 with a
      momentum.
    - **num_steps**, **noise**, **passes** - results of the warm-up: steps per draw, the largest variance of the
      gradient in x, passes over the data; 0 if the step size was given.
    - **inflation** - relative inflation of the variance that the warm-up predicts; 0 if the step size was given.
    - **gradient**, **virial**, **r_hat** - the worst scores of the check at the end of the warm-up, see
      :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 if there was none.
    """

    chain: Any
    refused: Any
    temperature: Any
    step_size: Any
    data_changed: Any
    energy: Any
    place: Any
    jump: Any
    num_steps: Any
    noise: Any
    passes: Any
    inflation: Any
    gradient: Any
    virial: Any
    r_hat: Any


def report(monitor: Monitor, coordinates: int = 1, chains: int = 1) -> None:
    """
    Warns of chains that do not move, of a temperature that is not 1, of doubtful draws, and of changed data.

    :param monitor: arrays of shape ``(chains, draws)``.
    :param int coordinates: number of coordinates of a chain.
    :param int chains: number of chains that are tuned together.
    """
    kept = np.asarray(monitor.step_size)[:, -1] > 0  # a warm-up alone collects no draws
    if not kept.any():
        return
    limit = score_limit(coordinates, chains)
    _log_found(monitor, kept, limit)
    refused, h = np.asarray(monitor.refused), float(np.asarray(monitor.step_size)[kept][-1, -1])
    stuck = np.flatnonzero((refused.max(1) >= STUCK) | (refused > 0).all(1))
    if stuck.size:
        _warn(
            f"{_chains(stuck, refused)} refused every step for a while (up to {refused.max()} in a row), because "
            f"these steps led to values that are not finite or out of the support; step_size is {h:.3g}. Use a smaller "
            "step_size, or check the data for values that are not finite."
        )
    T = _off_temperature(known_temperatures(monitor), np.delete(np.arange(len(refused)), stuck))
    if T:
        why = (
            "the step size is beyond its stability limit, the friction is too small for the noise of the minibatches, "
            "or the chain has not converged from a distant start. Use a smaller step_size, larger batches, or more "
            "warm-up from init_params=find_mode(...)."
            if T > 1
            else "thermostats that grew on the way from a distant start, or refused steps, have slowed down the "
            "momentum. Start at find_mode(...), or use more warm-up or a smaller step_size."
        )
        _warn(
            f"the kinetic temperature of the run is {T:.3g} instead of 1, so the draws are not from the posterior; "
            f"step_size is {h:.3g}. Perhaps {why}"
        )
    elif not stuck.size:
        of = Monitor(*(part if isinstance(part, tuple) else np.asarray(part)[kept] for part in monitor))
        scores = (score[:, -1] for score in (of.gradient, of.virial, of.r_hat))
        if not _report_check(*scores, limit=limit):
            _report_doubts(of, h, coordinates)
    if np.asarray(monitor.data_changed).any():
        _warn(
            "the run was resumed with other data than those it was started with. Its state (control variates, tables, "
            "thermostats) still belongs to the old data. Start a new run, or resume with the old data."
        )


def _log_found(monitor: Monitor, kept: np.ndarray, limit: float) -> None:
    """Logs the results of the warm-up, at level INFO."""
    if not logger.isEnabledFor(logging.INFO) or not np.asarray(monitor.num_steps)[kept][0, -1]:
        return
    names = "step_size", "num_steps", "noise", "passes", "gradient", "virial", "r_hat"
    h, steps, noise, passes, *scores = (float(np.asarray(getattr(monitor, name))[kept][0, -1]) for name in names)
    logger.info(
        f"found in the warm-up: step_size {h:.3g} in coordinates that standardise the posterior, steps_per_sample "
        f"{steps:.0f}, variance of the gradient noise at most {noise:.3g}; {passes:.3g} passes over the data in the "
        f"search; verdict of the check: {verdict(*scores, limit=limit)}."
    )


def verdict(gradient: float, virial: float, r_hat: float, limit: float) -> str:
    """
    The verdict of the check: ``"right"``, ``"doubtful"``, or ``"unchecked"``.

    :param float limit: see :func:`~numpyro_sgmcmc.tuning.pilot.score_limit`.
    """
    if gradient == virial == r_hat == 0:
        return "unchecked"
    return "right" if gradient <= limit and virial <= limit and r_hat <= MIXED else "doubtful"


def _report_check(gradient: np.ndarray, virial: np.ndarray, r_hat: np.ndarray, limit: float) -> bool:
    """
    Warns if the draws of the warm-up are not from the posterior. Chains that run one by one have separate scores.

    :return: whether it warned.
    """
    seen = []
    if not (gradient <= limit).all():
        seen.append(f"E[dU] is {gradient.max():.1f} standard errors from 0")
    if not (virial <= limit).all():
        seen.append(f"E[(z - m) dU] is {virial.max():.1f} standard errors from 1")
    if not (r_hat <= MIXED).all():
        seen.append(f"R-hat is {r_hat.max():.2f}")
    if seen:
        _warn(
            "the draws are doubtful: in the second half of the warm-up, in the worst direction, "
            f"{' and '.join(seen)}. Possible causes: a hierarchy (centre the groups with many rows, non-centre those "
            "with few: numpyro.infer.reparam.LocScaleReparam), several modes, a posterior that is far from normal "
            "(compare with NUTS on fewer rows), or too short a warm-up (use a larger num_warmup). "
            "numpyro_sgmcmc.settings(mcmc) returns what the warm-up found."
        )
    return bool(seen)


def _report_doubts(monitor: Monitor, h: float, coordinates: int) -> None:
    """One warning of all signs of a wrong run, the most reliable first, with the arguments to change."""
    doubts = []
    T = known_temperatures(monitor)
    if T.shape[1] >= 4 and (
        abs(T.mean() - 1) - CERTAIN * _standard_error(T) > OFF or beyond_chance(T, coordinates, OFF)
    ):
        error = _standard_error(T)
        certain = f" +- {error:.2f}" if math.isfinite(error) else ""
        doubts.append(
            f"the kinetic temperature is {T.mean():.3g}{certain} instead of 1. "
            + (
                f"Use a smaller step_size (it is {h:.3g}), a larger batch_size or friction, gradient=ControlVariate("
                "find_mode(...)), or more warm-up from a distant start"
                if T.mean() > 1
                else "Use more warm-up, or init_params=find_mode(...)"
            )
        )
    jump = long_steps(monitor.jump, coordinates)
    if jump:
        doubts.append(
            f"the squared steps are {jump:.3g} times as large as with the injected noise alone, so the gradients, or "
            f"their minibatch noise, increase the variance of the draws. Use a smaller step_size (it is {h:.3g}), a "
            "larger batch_size, or gradient=ControlVariate(find_mode(...))"
        )
    inflation = float(np.max(monitor.inflation[:, -1]))
    if inflation > OFF:
        doubts.append(
            f"minibatch noise is predicted to increase the posterior variances by up to {inflation:.0%}. Use a larger "
            "batch_size or friction"
        )
    if _still_falling(monitor.energy):
        doubts.append(
            "the energy was still falling when the draws began, as after a start far from the mode. Use a larger "
            "num_warmup, or init_params=find_mode(...)"
        )
    elif _never_mixed(monitor.place):
        doubts.append(
            f"the chains are in different regions and do not mix (R-hat above {NEVER_MIXED:g}). Use a larger "
            "num_warmup or steps_per_sample, or init_params=find_mode(...); perhaps there are several modes"
        )
    if doubts:
        _warn("the draws are doubtful: " + ". Also ".join(doubts) + ". numpyro_sgmcmc.summary(mcmc, *args) shows more.")


def _never_mixed(place: np.ndarray) -> bool:
    place = np.asarray(place, float)
    if len(place) < 2 or place.shape[1] < LONG_ENOUGH or not np.isfinite(place).all():
        return False
    within = place.var(1, ddof=1).mean()
    between = place.mean(1).var(ddof=1)
    return bool(within + between > NEVER_MIXED**2 * within)


def _still_falling(energy: np.ndarray) -> bool:
    """Whether a chain's energy is far higher in its first tenth of draws, or its first draw, than in its last half."""
    energy = np.asarray(energy, float)
    n = energy.shape[1]
    if n < LONG_ENOUGH or not np.isfinite(energy).all():
        return False
    late = energy[:, n // 2 :]
    sd = np.maximum(late.std(1), 1e-30)
    high = energy[:, : n // 10].mean(1) - late.mean(1) > HIGH * sd
    far = (energy[:, 0] - late.mean(1) > FAR * sd) & (energy[:, 0] > late.max(1))  # not just an unusual minibatch
    return bool((high | far).any())


def projection(position: Any, batched: bool) -> jax.Array:
    """A sum of the first coordinates of each site with fixed weights, O(1), which distinguishes chains."""
    total = jnp.zeros(())
    for k, leaf in enumerate(jax.tree.leaves(position)):
        flat = leaf.reshape(len(leaf) if batched else 1, -1)[:, :FIRST]
        weights = np.cos(1.0 + k + np.arange(flat.shape[1]))
        total = total + (flat * jnp.asarray(weights, flat.dtype)).sum(-1)
    return total if batched else total[0]


def squared_step(z: Any, before: Any, h: Any, batched: bool) -> jax.Array:
    r"""
    Mean over the coordinates of :math:`(z - z_{before})^2 / 2h`, for each chain. For
    :math:`z = z_{before} - h g + \sqrt{2h} n` its expectation is 1 + h E[g^2] / 2: to first order, 1 plus the relative
    variance that curvature and white gradient noise add.
    """
    squares = [jnp.square(x - y) for x, y in zip(jax.tree.leaves(z), jax.tree.leaves(before))]
    if not batched:
        squares = [x[None] for x in squares]
    total: Any = sum(x.reshape(len(x), -1).sum(-1) for x in squares)
    size = sum(x[0].size for x in squares)
    mean = total / (2 * size * jnp.maximum(h, jnp.finfo(total.dtype).tiny))
    return mean if batched else mean[0]


def long_steps(jump: np.ndarray, coordinates: int) -> float:
    """
    The mean of :func:`squared_step` over the later half of the draws if it significantly exceeds ``LONG``, else 0. With
    reshuffled rows most of the noise cancels if it is small, but little of it if it is that large.
    """
    jump = np.asarray(jump, float)
    late = jump[:, jump.shape[1] // 2 :]
    if late.shape[1] < 4 or not np.isfinite(late).all() or not late.any():
        return 0.0
    certain = late.mean() - CERTAIN * _standard_error(late) > LONG or beyond_chance(late, coordinates, LONG - 1)
    return float(late.mean()) if certain and late.mean() > LONG else 0.0


def _chains(stuck: np.ndarray, refused: np.ndarray) -> str:
    if len(refused) == 1:
        return "the chain has"
    return f"{len(stuck)} of {len(refused)} chains ({', '.join(map(str, stuck[:8]))}{', ...' * (len(stuck) > 8)}) have"


def _off_temperature(temperature: np.ndarray, chains: np.ndarray) -> float:
    """The mean temperature if it is significantly too high or too low, else 0."""
    if not chains.size:
        return 0.0
    T = temperature[chains]
    if T.size >= 4 and T.min() > BLATANT:
        return float(np.median(T))
    if T.shape[1] < 4:
        return 0.0  # too few draws for a standard error
    # an unstable chain has a long tail, so HOT is compared on the log scale; the mean log is below 0 for a correct
    # chain with any number of coordinates
    log_T = np.log(np.clip(T, np.finfo(float).tiny, None))
    if log_T.mean() - CERTAIN * _standard_error(log_T) > np.log(HOT):
        return float(np.exp(log_T.mean()))
    return float(T.mean()) if T.mean() + CERTAIN * _standard_error(T) < COLD else 0.0


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


def known_temperatures(monitor: Monitor) -> np.ndarray:
    """The temperatures of the draws that have one, shape ``(chains, draws)``."""
    T = np.asarray(monitor.temperature, float)
    return T[:, ~np.isnan(T).all(0)]


def _standard_error(x: np.ndarray) -> float:
    """Standard error of the mean of dependent draws; infinite if there are too few of them."""
    with np.errstate(all="ignore"):
        ess = float(effective_sample_size(x))
    return float(x.std() / np.sqrt(min(ess, x.size))) if ess >= ENOUGH else np.inf


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=stack_level())
