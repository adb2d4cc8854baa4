"""
The warnings at the end of a run, from the numbers collected with every draw
(:class:`~numpyro_sgmcmc.kernels.monitor.Monitor`) and the checks of :mod:`~numpyro_sgmcmc.kernels.run_checks`.
"""

import logging
import math
import warnings

import numpy as np

from numpyro_sgmcmc.kernels.monitor import Monitor
from numpyro_sgmcmc.kernels.run_checks import (
    CERTAIN,
    MIXED,
    NEVER_MIXED,
    OFF,
    REFUSED,
    STUCK,
    beyond_chance,
    known_temperatures,
    long_steps,
    never_mixed,
    off_temperature,
    standard_error,
    still_falling,
)
from numpyro_sgmcmc.tuning.pilot import score_limit
from numpyro_sgmcmc.utils.compat import stack_level

logger = logging.getLogger(__name__.partition(".")[0])


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
    tuned = bool(np.asarray(monitor.num_steps).any())
    stuck = np.flatnonzero((refused.max(1) >= STUCK) | (refused > 0).all(1))
    if stuck.size:
        most, which = refused.max(), "the last step of every draw"
        if most >= STUCK:
            which = f"every step for a while (up to {most} in a row)"
        _warn(
            f"{_chains(stuck, refused)} refused {which}, because "
            f"these steps led to values that are not finite or out of the support; step_size is {h:.3g}. Use a "
            f"{'larger num_warmup' if tuned else 'smaller step_size'}, or check the data for values that are not "
            "finite."
        )
    T = off_temperature(known_temperatures(monitor.temperature), np.delete(np.arange(len(refused)), stuck))
    if T:
        _warn(
            f"the kinetic temperature of the run is {T:.3g} instead of 1, so the draws are not from the posterior; "
            f"step_size is {h:.3g}. Perhaps {_why(T, tuned)}"
        )
    elif not stuck.size:
        of = Monitor(*(part if isinstance(part, tuple) else np.asarray(part)[kept] for part in monitor))
        _report_doubts(of, h, coordinates, limit, tuned)
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


def _why(T: float, tuned: bool) -> str:
    """Possible causes of a temperature, and remedies."""
    if tuned:
        return (
            "the posterior is far from normal, as with a hierarchy or several modes, or the warm-up was too short. Use "
            "a larger num_warmup, or other parameters of the model (numpyro.infer.reparam)."
        )
    if T > 1:
        return (
            "the step size is beyond its stability limit, the friction is too small for the noise of the minibatches, "
            "or the chain has not converged from a distant start. Use a smaller step_size, larger batches, a "
            "larger friction (diffusion for thermostats), or more warm-up from init_params=find_mode(...)."
        )
    return (
        "thermostats that grew on the way from a distant start, or refused steps, have slowed down the momentum. Start "
        "at find_mode(...), or use more warm-up or a smaller step_size."
    )


def _report_doubts(monitor: Monitor, h: float, coordinates: int, limit: float, tuned: bool) -> None:
    """
    One warning of all signs of a wrong run, the most reliable first, with the arguments to change.

    :param limit: see :func:`~numpyro_sgmcmc.tuning.pilot.score_limit`.
    :param bool tuned: whether the warm-up has chosen the step size.
    """
    remedy = (
        f"a larger num_warmup or batch_size, or other parameters of the model (the step size {h:.3g} was chosen by the "
        "warm-up)"
        if tuned
        else f"a smaller step_size (it is {h:.3g}), a larger batch_size, friction or diffusion, "
        "gradient=ControlVariate(find_mode(...)), or more warm-up from a distant start"
    )
    doubts = []
    share = float((np.asarray(monitor.refused) > 0).mean())
    if share > REFUSED:
        doubts.append(
            f"{share:.0%} of the draws end with a refused step, which led to values that are not finite or out of the "
            f"support. Use {remedy}"
        )
    T = known_temperatures(monitor.temperature)
    if T.shape[1] >= 4 and (
        abs(T.mean() - 1) - CERTAIN * standard_error(T) > OFF or beyond_chance(T, coordinates, OFF)
    ):
        error = standard_error(T)
        certain = f" +- {error:.2f}" if math.isfinite(error) else ""
        hot = tuned or T.mean() > 1
        doubts.append(
            f"the kinetic temperature is {T.mean():.3g}{certain} instead of 1. "
            f"Use {remedy if hot else 'more warm-up, or init_params=find_mode(...)'}"
        )
    jump = long_steps(monitor.jump, coordinates)
    if jump:
        doubts.append(
            f"the squared steps are {jump:.3g} times as large as with the injected noise alone, so the gradients, or "
            f"their minibatch noise, increase the variance of the draws. Use {remedy}"
        )
    inflation = float(np.max(monitor.inflation[:, -1]))
    if inflation > OFF:
        doubts.append(
            f"minibatch noise is predicted to increase the posterior variances by up to {inflation:.0%}. Use a larger "
            "batch_size or friction"
        )
    check = _failed_check(monitor.gradient[:, -1], monitor.virial[:, -1], monitor.r_hat[:, -1], limit)
    if check:
        doubts.append(check)
    elif still_falling(monitor.energy):
        doubts.append(
            "the energy was still falling when the draws began, as after a start far from the mode. Use a larger "
            "num_warmup, or init_params=find_mode(...)"
        )
    elif never_mixed(monitor.place):
        doubts.append(
            f"the chains are in different regions and do not mix (R-hat above {NEVER_MIXED:g}). Use a larger "
            "num_warmup or steps_per_sample, or init_params=find_mode(...); perhaps there are several modes"
        )
    if doubts:
        more = " numpyro_sgmcmc.settings(mcmc) returns what the warm-up found." if tuned else ""
        _warn(
            f"the draws are doubtful: {'. Also '.join(doubts)}. numpyro_sgmcmc.summary(mcmc, *args) shows more.{more}"
        )


def _failed_check(gradient: np.ndarray, virial: np.ndarray, r_hat: np.ndarray, limit: float) -> str:
    """
    The scores of the check at the end of the warm-up that are too large, and possible causes; empty if it did not fail.
    Chains that run one by one have separate scores.
    """
    seen = []
    if not (gradient <= limit).all():
        seen.append(f"E[dU] is {gradient.max():.1f} standard errors from 0")
    if not (virial <= limit).all():
        seen.append(f"E[(z - m) dU] is {virial.max():.1f} standard errors from 1")
    if not (r_hat <= MIXED).all():
        seen.append(f"R-hat is {r_hat.max():.2f}")
    if not seen:
        return ""
    return (
        f"in the second half of the warm-up, in the worst direction, {' and '.join(seen)}. Possible causes: a "
        "hierarchy (centre the groups with many rows, non-centre those with few: "
        "numpyro.infer.reparam.LocScaleReparam), several modes, parameters that are known only up to a rotation or a "
        "permutation, a posterior that is far from normal (compare with NUTS on fewer rows), or too short a warm-up "
        "(use a larger num_warmup)"
    )


def _chains(stuck: np.ndarray, refused: np.ndarray) -> str:
    if len(refused) == 1:
        return "the chain has"
    return f"{len(stuck)} of {len(refused)} chains ({', '.join(map(str, stuck[:8]))}{', ...' * (len(stuck) > 8)}) have"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=stack_level())
