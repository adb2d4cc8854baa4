"""
Tells the user, once a run, what is wrong with it and can be noticed for nothing.

A compiled step that calls Python would cost more than the step itself, and NumPyro calls no method of a kernel when a
run has ended. But it rebuilds what it has collected, as a pytree of arrays with the axes chains and draws. So one of
the collected fields, :class:`Collected`, is a node that looks at itself when it is rebuilt from the arrays of a whole
run. While a progress bar runs, :class:`Bar` shows what the last finished transition says.
"""

import logging
from typing import Any, NamedTuple
import warnings
import weakref

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size

from numpyro_sgmcmc.utils.compat import stack_level

STUCK = 100  # steps refused in a row after which a chain is reported
HOT, COLD = 2.0, 0.5  # kinetic temperatures, for whole runs, that no right run has
CERTAIN = 5.0  # standard errors between the mean temperature and these bounds
ENOUGH = 30  # effective draws for which a standard error means something
BLATANT = 10.0  # a temperature that no draw of a right run falls short of all the time


SCORE = 4.5  # a z-score of a check, and
MIXED = 1.1  # an R-hat, that no right warm-up exceeds


logger = logging.getLogger(__name__.partition(".")[0])

_reported: list[Any] = [None]  # the arrays of the last report, weakly


class Monitor(NamedTuple):
    """
    What a chain says of itself at the end of a transition.

    - **chain** - the number of the chain in a state of several, else 0; ``()`` once a run has ended.
    - **refused** - steps refused in a row.
    - **temperature** - kinetic temperature; NaN without a momentum.
    - **step_size** - that of the last step.
    - **data_changed** - whether the data are not those that the chain was started with.
    - **num_steps**, **noise**, **passes** - what the warm-up has found: steps of a draw, the largest variance of the
      gradient in x, passes over the data; 0 where it does not look.
    - **gradient**, **virial**, **r_hat** - the worst scores of the check at the end of the warm-up, see
      :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 where there was none.
    """

    chain: Any
    refused: Any
    temperature: Any
    step_size: Any
    data_changed: Any
    num_steps: Any
    noise: Any
    passes: Any
    gradient: Any
    virial: Any
    r_hat: Any


class Collected:
    """
    A :class:`Monitor` packed into one array, along its last axis, as each collected array costs some 5 us a call. When
    it is rebuilt from the arrays of a whole run it reports, and what is rebuilt is a :class:`Monitor`.
    """

    def __init__(self, packed: Any, chains: int):
        self.packed, self.chains = packed, chains

    @classmethod
    def of(cls, monitor: Monitor, chains: int) -> "Collected":
        """
        :param int chains: those that are vectorized in one state, else 1.
        """
        return cls(jnp.stack([jnp.asarray(part, jnp.float32) for part in monitor], -1), chains)

    def is_whole_run(self) -> bool:
        """Whether the axes are chains and draws. Under way NumPyro has draws in front, or no axis of chains."""
        packed = self.packed
        if not isinstance(packed, (jax.Array, np.ndarray)) or isinstance(packed, Tracer) or packed.ndim != 3:
            return False
        if self.chains == 1:
            return True
        if packed.shape[0] != self.chains:
            return False
        # as many draws as chains: what is in the array tells the two orders apart
        return packed.shape[1] != self.chains or bool((np.asarray(packed)[:, 0, 0] == np.arange(self.chains)).all())


def _rebuild(chains: int, children: Any) -> Any:
    (packed,) = children
    collected = Collected(packed, chains)
    if not collected.is_whole_run():
        return collected
    if _reported[0] is None or _reported[0]() is not packed:  # some transformations rebuild a tree twice
        _reported[0] = weakref.ref(packed)
        report(_unpacked(packed))
    return _unpacked(packed)


def _unpacked(packed: Any) -> Monitor:
    _, refused, temperature, step_size, changed, *found = np.moveaxis(np.asarray(packed), -1, 0)
    return Monitor((), refused.astype(np.int32), temperature, step_size, changed > 0, *found)


jax.tree_util.register_pytree_node(Collected, lambda node: ((node.packed,), node.chains), _rebuild)


def report(monitor: Monitor) -> None:
    """
    Warn of chains that stand still, of a temperature that is not 1, of data that have changed.

    :param monitor: arrays of shape ``(chains, draws)``.
    """
    kept = np.asarray(monitor.step_size)[:, -1] > 0  # a warm-up alone collects no draws
    if not kept.any():
        return
    _log_found(monitor, kept)
    refused, h = np.asarray(monitor.refused), float(np.asarray(monitor.step_size)[kept][-1, -1])
    stuck = np.flatnonzero((refused.max(1) >= STUCK) | (refused > 0).all(1))
    if stuck.size:
        _warn(
            f"{_chains(stuck, refused)} refused every step for a while (up to {refused.max()} in a row), as they left "
            f"the finite numbers or the support; the step size is {h:.3g}. A refused step leaves the chain where it "
            "is. Use a smaller step_size, or look for data that are not finite."
        )
    T = _off_temperature(monitor.temperature, np.delete(np.arange(len(refused)), stuck))
    if T:
        why = (
            "the step size is beyond its stability limit, the minibatches are noisier than the friction can take up, "
            "or the chain is still on its way from a distant start. Use a smaller step_size, larger batches, or more "
            "warm-up from init_params=find_mode(...)."
            if T > 1
            else "the momentum has been slowed down, by thermostats that were wound up on the way from a distant start "
            "or by refused steps. Start at find_mode(...), use more warm-up, or a smaller step_size."
        )
        _warn(
            f"the kinetic temperature of the run is {T:.3g}, where 1 is right, so the draws are not those of the "
            f"posterior; step_size is {h:.3g}. Perhaps {why}"
        )
    elif not stuck.size:
        _report_check(*(np.asarray(score)[kept][:, -1] for score in (monitor.gradient, monitor.virial, monitor.r_hat)))
    if np.asarray(monitor.data_changed).any():
        _warn(
            "the run was resumed with other data than it was started with. What the state holds of the data "
            "(control variates, tables, thermostats) is that of the old ones. Start a new run, or resume with the data "
            "that the state comes from."
        )


def _log_found(monitor: Monitor, kept: np.ndarray) -> None:
    """What the warm-up has found, at INFO level."""
    if not logger.isEnabledFor(logging.INFO) or not np.asarray(monitor.num_steps)[kept][0, -1]:
        return
    names = "step_size", "num_steps", "noise", "passes", "gradient", "virial", "r_hat"
    h, steps, noise, passes, *scores = (float(np.asarray(getattr(monitor, name))[kept][0, -1]) for name in names)
    logger.info(
        f"found in the warm-up: step_size {h:.3g} in coordinates where the posterior is round, steps_per_sample "
        f"{steps:.0f}, variance of the gradient's noise at most {noise:.3g}; {passes:.3g} passes over the data by the "
        f"search; the check says {verdict(*scores)}."
    )


def verdict(gradient: float, virial: float, r_hat: float) -> str:
    """Of the check: ``"right"``, ``"doubtful"``, or ``"unchecked"``."""
    if gradient == virial == r_hat == 0:
        return "unchecked"
    return "right" if gradient <= SCORE and virial <= SCORE and r_hat <= MIXED else "doubtful"


def _report_check(gradient: np.ndarray, virial: np.ndarray, r_hat: np.ndarray) -> None:
    """Warn of draws of the warm-up that are not those of the posterior. Single chains each have scores of their own."""
    seen = []
    if not (gradient <= SCORE).all():
        seen.append(f"E[dU] is {gradient.max():.1f} standard errors from 0")
    if not (virial <= SCORE).all():
        seen.append(f"E[(z - m) dU] is {virial.max():.1f} standard errors from 1")
    if not (r_hat <= MIXED).all():
        seen.append(f"R-hat is {r_hat.max():.2f}")
    if seen:
        _warn(
            "the draws are doubtful: in the second half of the warm-up, in the worst direction, "
            f"{' and '.join(seen)}. The posterior is perhaps a funnel (non-centre it: "
            "numpyro.infer.reparam.LocScaleReparam), of several modes, or far from a normal shape (compare with NUTS "
            "on fewer rows); or the warm-up was too short (a larger num_warmup). numpyro_sgmcmc.settings(mcmc) has "
            "what was found."
        )


def _chains(stuck: np.ndarray, refused: np.ndarray) -> str:
    if len(refused) == 1:
        return "the chain has"
    return f"{len(stuck)} of {len(refused)} chains ({', '.join(map(str, stuck[:8]))}{', ...' * (len(stuck) > 8)}) have"


def _off_temperature(temperature: Any, chains: np.ndarray) -> float:
    """The mean temperature if it is certainly too high or too low, else 0."""
    if not chains.size or np.isnan(temperature).all():
        return 0.0
    T = np.asarray(temperature, float)[chains]
    if T.size >= 4 and T.min() > BLATANT:
        return float(np.median(T))
    if T.shape[1] < 4:
        return 0.0  # too few draws for a standard error
    # the tail of an unstable chain is long, so "hot" is decided on the scale of logarithms; their mean is below 0 for
    # a right chain, whatever the number of its coordinates
    log_T = np.log(np.clip(T, np.finfo(float).tiny, None))
    if log_T.mean() - CERTAIN * _standard_error(log_T) > np.log(HOT):
        return float(np.exp(log_T.mean()))
    return float(T.mean()) if T.mean() + CERTAIN * _standard_error(T) < COLD else 0.0


def _standard_error(x: np.ndarray) -> float:
    """Of the mean of draws that depend on each other; infinite where there are too few of them."""
    with np.errstate(all="ignore"):
        ess = float(effective_sample_size(x))
    return float(x.std() / np.sqrt(min(ess, x.size))) if ess >= ENOUGH else np.inf


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=stack_level())


class Bar:
    """
    What a progress bar shows: the chains that stand still. It looks at the state before the one that it is handed,
    which has been computed by now, so nothing waits for the device.
    """

    def __init__(self):
        self._before: Any = None

    def __reduce__(self):
        return Bar, ()

    def __call__(self, refused: jax.Array) -> str:
        before, self._before = self._before, refused
        if before is None or isinstance(before, Tracer) or not before.is_ready():
            return ""
        stuck = np.atleast_1d(np.asarray(before)) >= STUCK
        return f"{stuck.sum()} of {stuck.size} chains stand still" if stuck.any() else ""
