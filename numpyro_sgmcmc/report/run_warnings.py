"""The warning at the end of a run, of the doubts that :mod:`~numpyro_sgmcmc.report.run_doubts` finds."""

import logging
import warnings

import numpy as np

from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.run_doubts import doubts, verdict
from numpyro_sgmcmc.report.run_scores import Layout
from numpyro_sgmcmc.tuning.pilot import score_limit
from numpyro_sgmcmc.utils.compat import stack_level
from numpyro_sgmcmc.utils.significance import worst

ONE = Layout((("z", 1),))  # a model with one number

logger = logging.getLogger(__name__.partition(".")[0])


def report(monitor: Monitor, layout: Layout = ONE, chains: int = 1) -> None:
    """
    Warns, once, of all doubts about a run that are worth it. Logs the results of its warm-up at level INFO.

    :param monitor: arrays of shape ``(chains, draws)``.
    :param layout: the latent sites.
    :param int chains: number of chains that are tuned together.
    """
    limit = score_limit(layout.coordinates, chains)
    told = [doubt for doubt in doubts(monitor, layout, limit) if doubt.told]
    h, steps = (float(np.asarray(part)[-1, -1]) for part in (monitor.step_size, monitor.num_steps))
    if steps and h > 0:
        _log_found(monitor, limit)
    if not told:
        return
    text = f"the draws are {worst(*(doubt.verdict for doubt in told))}: "
    for k, doubt in enumerate(told):
        remedy = f" {doubt.remedy}." * (doubt.remedy not in text)  # each once
        text += f"{' Also ' * (k > 0)}{doubt.found}.{remedy}"
    chosen = ", chosen by the warm-up (see numpyro_sgmcmc.settings(mcmc))" if steps else ""
    warnings.warn(
        f"{text} The step_size is {h:.3g}{chosen}. numpyro_sgmcmc.summary(mcmc, *args) shows more.",
        stacklevel=stack_level(),
    )


def _log_found(monitor: Monitor, limit: float) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    names = "step_size", "num_steps", "noise", "passes", "gradient", "virial", "r_hat"
    h, steps, noise, passes, *scores = (float(np.asarray(getattr(monitor, name))[0, -1]) for name in names)
    logger.info(
        f"found in the warm-up: step_size {h:.3g} in coordinates that standardise the posterior, steps_per_sample "
        f"{steps:.0f}, variance of the gradient noise at most {noise:.3g}; {passes:.3g} passes over the data in the "
        f"search; verdict of the check: {verdict(scores, limit)}."
    )
