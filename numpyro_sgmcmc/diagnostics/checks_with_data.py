r"""
The checks of a run that need its data: the identities of the score (:mod:`~numpyro_sgmcmc.diagnostics.scores`), the
configurational temperature :math:`E[(z - m) \cdot \nabla U] / d`, and the inflation that step size and minibatches
predict (:mod:`~numpyro_sgmcmc.diagnostics.predicted_inflation`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
import math
from typing import Any

import numpy as np

from numpyro_sgmcmc.diagnostics.predicted_inflation import Prediction, epoch_of, predicted
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import Gradients, Identities, identities
from numpyro_sgmcmc.report.check import Checks, Line
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.report.statistics import deviation_from_1
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.utils.monte_carlo import bound, effective
from numpyro_sgmcmc.utils.significance import ORDER, VARIANCE, graded

MEAN = 0.1, 0.3  # in posterior sds: doubtful, wrong

CHECKS_WITH_DATA = Checks()


@dataclass(frozen=True, eq=False)
class WithData:
    """
    A run, gradients at its draws, and pairs of gradients for a prediction, or None if there is none.
    """

    run: Run
    draws: Draws
    gradients: Gradients
    use: Remedies
    pairs: np.ndarray | None = None

    @cached_property
    def ess(self) -> np.ndarray:
        """Effective draws of each coordinate."""
        return effective(self.draws.z)

    @cached_property
    def of(self) -> Identities | None:
        """The identities; None if a gradient is not finite."""
        values = self.gradients.values
        return identities(self.draws.z, values) if np.isfinite(values).all() else None

    @cached_property
    def prediction(self) -> Prediction | None:
        """What step size and minibatches add to the variances."""
        return None if self.pairs is None else predicted(self.run, self.draws, self.gradients.values, self.pairs)

    @property
    def overflow(self) -> str:
        """What a deviation may be due to, if arguments were widened."""
        names = ", ".join(self.gradients.widened)
        return f"perhaps the model overflows in the dtype of {names}: give it 32 bits. Else " * bool(names)

    @property
    def mean_step(self) -> str:
        """Words for the step of a prediction."""
        return "" if isinstance(self.run.kernel.schedule, Constant) else ", at the mean step size"

    @property
    def narrow(self) -> str:
        """The remedy for a step that is not stable in the narrowest direction."""
        return f"Use {self.use.stable}{', or an inverse_mass_matrix' * (not self.use.tuned)}"

    def by_site(self, sizes: np.ndarray) -> dict[str, int]:
        """The coordinate of each site where these numbers are largest."""
        index = {site: np.flatnonzero(np.asarray(self.draws.sites) == site) for site in dict.fromkeys(self.draws.sites)}
        return {site: own[np.argmax(sizes[own])] for site, own in index.items()}


def gradient_facts(run: WithData) -> dict[str, Line]:
    """The line of the gradients that were evaluated."""
    of, n = run.gradients, len(run.draws.flat)
    rows = "all rows" if of.whole else f"{of.rows} fresh rows"
    shown = f"{n} draws, {rows} each" + (f", {', '.join(of.widened)} in 32 bits" if of.widened else "")
    return {"looked_at": Line(n, shown, details={"passes": of.passes}, title="gradients evaluated")}


@CHECKS_WITH_DATA.add(
    "draws at the edge of the support", (0.01, 0.2), "<= 1 %", "Use another parametrisation, or jax_enable_x64"
)
def edge(run: WithData) -> Line | None:
    share = run.draws.left_out / (len(run.draws.flat) + run.draws.left_out)
    seen = "values are rounded to the edge of their support"
    return Line(share, f"{share:.2%}", seen=seen, size=share) if share else None


@CHECKS_WITH_DATA.add("E[dU/dz] = 0", MEAN, "", "Use {run.use.accurate}; step_halving(mcmc, key, ...) shows more")
def score(run: WithData) -> Line:
    of = run.of
    if of is None:
        wrong = ~np.isfinite(run.gradients.values).all(-1)
        seen = (
            "the gradient is not finite: either the draws are so far away that it overflows, or rows that no step has "
            "used are not finite or outside the support of their distribution"
        )
        return Line(math.nan, f"not finite in {wrong.mean():.1%} of draws", "finite", seen=seen, size=math.inf)
    own = of.gradient, of.gradient_error, np.abs(of.gradient) / of.scale
    return _identity(run, own, (of.shift, of.shift_error), MEAN, "the mean is off by", "{:.2f} sd", f"{MEAN[0]} sd")


@CHECKS_WITH_DATA.add(
    "E[(z - m) dU/dz] = 1", VARIANCE, "", "Use {run.use.accurate}; step_halving(mcmc, key, ...) shows more"
)
def virial(run: WithData) -> Line | None:
    of = run.of
    if of is None:
        return None
    own = of.virial - 1, of.virial_error, np.abs(of.virial - 1)
    mixed = of.inflation, of.inflation_error
    return _identity(run, own, mixed, VARIANCE, "the variance is off by", "{:+.0%}", f"{VARIANCE[0]:.0%}")


def _identity(
    run: WithData, own: tuple, mixed: tuple, bounds: tuple[float, float], is_off: str, by: str, allowed: str
) -> Line:
    """
    :param own: deviation, its standard error and its size in the coordinates themselves.
    :param mixed: deviation and its standard error, multiplied by the covariance of the draws.
    :param bounds: those of the check.
    :param is_off: what ``mixed`` means, ``by`` how much as a format string, and what is ``allowed``.
    """
    names, (effect, error) = run.draws.names, mixed
    limit = bound(2 * len(names), len(run.draws.z), run.ess)
    with np.errstate(divide="ignore", invalid="ignore"):
        z, z_mixed = (np.nan_to_num(np.abs(off) / its_error) for off, its_error in (own[:2], mixed))
    certain = np.maximum(np.where(z > limit, own[2], 0), np.where(z_mixed > limit, np.abs(effect), 0))
    both = np.maximum(z, z_mixed)
    k, most = int(np.argmax(both / limit)), int(np.argmax(certain))
    sizes = {site: float(certain[np.asarray(run.draws.sites) == site].max()) for site in dict.fromkeys(run.draws.sites)}
    by_site = {
        site: {
            "z": float(both[j]),
            "where": names[j],
            "effect": float(effect[j]),
            "verdict": graded(sizes[site], *bounds),
        }
        for site, j in run.by_site(both / limit).items()
    }
    insignificant = ", not significant" * bool(both[k] <= limit[k])
    return Line(
        float(both[k]),
        f"z = {both[k]:.1f} at {names[k]}, {is_off} {by.format(effect[k])} (+- {error[k]:.2g}){insignificant}",
        f"z <= {limit[k]:.1f}, or less than {allowed}",
        seen=f"{run.overflow}{is_off} {by.format(effect[most])} at {names[most]}, to first order",
        size=float(certain.max()),
        error=float(np.median(error)),
        details={
            "where": names[k],
            "bound_z": float(limit[k]),
            "effect": float(effect[k]),
            "effect_error": float(error[k]),
            "by_site": by_site,
        },
    )


@CHECKS_WITH_DATA.add("configurational temperature", VARIANCE, "1 +- {0}", "Use {run.use.accurate}")
def configurational_temperature(run: WithData) -> Line | None:
    if run.of is None:
        return None
    z, g, ess, sites = run.draws.z, run.gradients.values, run.ess, np.asarray(run.draws.sites)
    product = (z - z.mean((0, 1))) * (g - g.mean((0, 1))) + 1 / ess  # see identities
    line = deviation_from_1(product.mean(-1), least=float(np.sqrt((1 / ess).sum()) / len(ess)))
    by_site = {site: product[..., sites == site].mean() for site in dict.fromkeys(run.draws.sites)}
    return line._replace(details={**line.details, "by_site": by_site})


@CHECKS_WITH_DATA.add("inflation predicted from minibatch noise", VARIANCE, "<= {0:.0%}", "Use {run.use.less_noise}")
def inflation_by_noise(run: WithData) -> Line | None:
    if run.prediction is None:
        return None
    seen = "minibatch noise increases the variance of the draws"
    line = _predicted(run, run.prediction.noise, run.prediction.noise_error, seen)
    return line._replace(shown=line.shown + ", reshuffled" * (epoch_of(run.run) >= 2))


@CHECKS_WITH_DATA.add("inflation predicted from the step size", VARIANCE, "<= {0:.0%}", "Use {run.use.stable}")
def inflation_by_step(run: WithData) -> Line | None:
    if run.prediction is None:
        return None
    none = np.zeros_like(run.prediction.step)
    return _predicted(run, run.prediction.step, none, "the step is too large for the integrator")


def _predicted(run: WithData, inflation: np.ndarray, error: np.ndarray, seen: str) -> Line:
    size, names = np.abs(inflation), run.draws.names
    with np.errstate(invalid="ignore"):  # of infinite inflations
        certain = np.where(size - bound(len(size), len(run.draws.z)) * error <= VARIANCE[0], 0, size)  # and NaN
    k = int(np.argmax(certain if certain.any() else size))
    known_to = f" +- {error[k]:.1%}" if error[k] > 0.01 else ""
    return Line(
        float(inflation[k]),
        f"{inflation[k]:+.1%}{known_to} at {names[k]}{run.mean_step}",
        seen=seen,
        size=float(certain.max()),
        error=float(error.max()),
        details={
            "where": names[k],
            "by_coordinate": dict(zip(names, inflation.tolist())),
            "by_site": {site: float(inflation[j]) for site, j in run.by_site(size).items()},
        },
    )


@CHECKS_WITH_DATA.add("stability of the step", (0, 1), "at 1.25 h as well", "{run.narrow}")
def stability(run: WithData) -> Line | None:
    if run.prediction is None:
        return None
    stable = run.prediction.stable
    seen = "the step is close to the stability limit of the narrowest direction, or beyond it"
    shown = ("unstable", "near its limit", "stable")[stable] + run.mean_step
    return Line(stable, shown, seen=seen, size=2 - stable)


def numbers_by_site(lines: Mapping[str, Line]) -> dict[str, dict[str, Any]]:
    """
    Site -> the z-scores of the identities in its worst coordinate, its configurational temperature, the predicted
    inflations, and the verdict of its identities; empty if the gradients are not finite.
    """
    if "virial" not in lines:
        return {}
    by_site = {key: line.details["by_site"] for key, line in lines.items() if "by_site" in line.details}
    found = {}
    for site, first in by_site["score"].items():
        second = by_site["virial"][site]
        worst = max(first, second, key=lambda numbers: numbers["z"])
        found[site] = {
            "where": worst["where"],
            "score": first["z"],
            "virial": second["z"],
            "temperature": float(by_site["configurational_temperature"][site]),
            **{key: by_site[key][site] for key in ("inflation_by_noise", "inflation_by_step") if key in by_site},
            "verdict": max(first["verdict"], second["verdict"], key=ORDER.index),
        }
    return found
