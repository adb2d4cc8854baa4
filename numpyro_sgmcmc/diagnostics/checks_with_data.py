r"""
The checks of a run that need its data: the identities of the score (:mod:`~numpyro_sgmcmc.diagnostics.scores`), the
configurational temperature :math:`E[(z - m) \cdot \nabla U] / d`, and the inflation that step size and minibatches
predict (:mod:`~numpyro_sgmcmc.diagnostics.predicted_inflation`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.arrays import named_leaves
from numpyro_sgmcmc.diagnostics.predicted_inflation import Prediction, epoch_of, predicted
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import Gradients, Identities, identities
from numpyro_sgmcmc.report.check import Checks, Line
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.report.run_verdict import KNOWN, Power, mean_in_words, variance_in_words
from numpyro_sgmcmc.report.statistics import deviation_from_1
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.utils.monte_carlo import bound, effective
from numpyro_sgmcmc.utils.significance import ERRORS, graded, worst
from numpyro_sgmcmc.utils.wording import inflation as in_words, plain

REFUTED = 0.5  # the share of a prediction which the draws would have to show at least

CHECKS_WITH_DATA = Checks()


@dataclass(frozen=True, eq=False)
class WithData:
    """A run with gradients at its draws."""

    run: Run
    draws: Draws
    gradients: Gradients
    use: Remedies  # what the user may change
    pairs: np.ndarray | None = None  # of gradients, for a prediction; None if there is none

    @cached_property
    def identities(self) -> Identities | None:
        """The identities; None if a gradient is not finite."""
        values = self.gradients.values
        return identities(self.draws.z, values) if np.isfinite(values).all() else None

    @cached_property
    def ess(self) -> np.ndarray:
        """Effective draws of each coordinate."""
        return effective(self.draws.z)

    @cached_property
    def limit(self) -> np.ndarray:
        """The bounds of the z-scores of the identities, by coordinate; each site has the same chance of a false one."""
        sites, site, sizes = np.unique(self.draws.sites, return_inverse=True, return_counts=True)
        return bound(2 * len(sites) * sizes[site], len(self.draws.z), self.ess)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What step size and minibatches add to the variances."""
        return None if self.pairs is None else predicted(self.run, self.draws, self.gradients.values, self.pairs)

    @property
    def not_finite(self) -> list[str]:
        """Names of the arguments in memory that have values that are not finite."""
        floats = [
            (name, leaf)
            for name, leaf in named_leaves(self.run.args, self.run.kwargs)
            if isinstance(leaf, (np.ndarray, jax.Array)) and jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return [name for name, leaf in floats if not bool(jnp.isfinite(leaf).all())]

    @property
    def mean_step(self) -> str:
        """Words for the step size of a prediction."""
        return "" if isinstance(self.run.kernel.schedule, Constant) else ", at the mean step size"

    def by_site(self, sizes: np.ndarray) -> dict[str, int]:
        """The coordinate of each site where these numbers are largest."""
        return {site: own[np.argmax(sizes[own])] for site, own in self.draws.by_site.items()}


def power(run: WithData) -> Power:
    """The errors that the identities would have shown in the worst global coordinate."""
    if run.identities is None:
        return Power()
    plates = {name: site.plates for name, site in run.run.potential.structure.latents.items()}
    inside = np.array([bool(plates[site]) for site in run.draws.sites])
    errors = np.stack([run.identities.shift_error, run.identities.inflation_error]) * run.limit
    return Power(*errors[:, ~inside | inside.all()].max(1).tolist())


@CHECKS_WITH_DATA.add("gradients evaluated", (0, 0), "", "")
def looked_at(run: WithData) -> Line:
    """A line without a verdict."""
    gradients, n = run.gradients, len(run.draws.flat)
    bits = f", {', '.join(gradients.widened)} widened to 32 bits" * bool(gradients.widened)
    shown = f"{n} draws, {'all rows' if gradients.whole else f'{gradients.rows} fresh rows'} each{bits}"
    return Line(n, shown, details={"passes": gradients.passes})


@CHECKS_WITH_DATA.add("draws at the edge of the support", (0.01, 0.2), "<= 1 %", "Use jax_enable_x64")
def edge(run: WithData) -> Line | None:
    share = run.draws.left_out / (len(run.draws.flat) + run.draws.left_out)
    seen = "values are rounded to the edge of their support"
    return Line(share, f"{share:.2%}", seen=seen, size=share) if share else None


@CHECKS_WITH_DATA.add("E[dU/dz] = 0", ERRORS, "", "Use {run.use.accurate}")
def score(run: WithData) -> Line:
    checked = run.identities
    if checked is None:
        shown = f"not finite in {1 - np.isfinite(run.gradients.values).all(-1).mean():.1%} of draws"
        arguments, remedy = ", ".join(run.not_finite), ""
        seen = f"the gradient is {shown}" + f", and so are values of {arguments}" * bool(arguments)
        if arguments:
            remedy = f"Leave out the rows in which {arguments} is not finite"
        return Line(math.nan, shown, "finite", seen=seen, size=math.inf, remedy=remedy)
    own = checked.gradient, checked.gradient_error, checked.gradient / checked.scale
    mixed = checked.shift, checked.shift_error
    return _identity(run, own, mixed, mean_in_words, f"{ERRORS[0]} sd")


@CHECKS_WITH_DATA.add("E[(z - m) dU/dz] = 1", ERRORS, "", "Use {run.use.accurate}")
def virial(run: WithData) -> Line | None:
    checked = run.identities
    if checked is None:
        return None
    own = checked.virial - 1, checked.virial_error, checked.virial - 1
    mixed = checked.inflation, checked.inflation_error
    return _identity(run, own, mixed, variance_in_words, f"{ERRORS[0]:.0%}")


def _identity(run: WithData, own: tuple, mixed: tuple, in_words: Callable, allowed: str) -> Line:
    """
    :param own: deviation, its standard error and its size in the coordinates themselves.
    :param mixed: deviation and its standard error, multiplied by the covariance of the draws.
    :param in_words: coordinate, deviation and error of ``mixed`` -> words.
    :param allowed: the first bound, in words.
    """
    names, limit = run.draws.names, run.limit
    (_, _, size), (effect, error) = own, mixed
    with np.errstate(divide="ignore", invalid="ignore"):
        z, z_mixed = (np.nan_to_num(np.abs(deviation[0]) / deviation[1]) for deviation in (own, mixed))
    certain = np.maximum(np.where(z > limit, np.abs(size), 0), np.where(z_mixed > limit, np.abs(effect), 0))
    both = np.maximum(z, z_mixed)
    k, most = int(np.argmax(both / limit)), int(np.argmax(certain))

    def numbers(j):
        errors = {"effect": float(effect[j]), "effect_error": float(error[j])}
        return {"z": float(both[j]), "bound_z": float(limit[j]), "where": names[j]} | errors

    places = zip(run.by_site(both / limit).items(), run.by_site(certain).values())
    by_site = {site: numbers(j) | {"verdict": graded(float(certain[m]), *ERRORS)} for (site, j), m in places}
    by_chance, overflow = ", within chance" * bool(both[k] <= limit[k]), ", ".join(run.gradients.widened)
    cause = f", perhaps because the model overflows in the dtype of {overflow}" * bool(overflow)
    return Line(
        float(both[k]),
        f"z = {plain(both[k])}, {in_words(names[k], effect[k], error[k])}{by_chance}",
        f"z <= {limit[k]:.1f}, or less than {allowed}",
        seen=f"{in_words(names[most], effect[most], error[most])}{cause}",
        remedy="Give the model data of 32 bits" if overflow else "",
        size=float(certain.max()),
        error=float(np.median(error)),
        details=numbers(k) | {"by_site": by_site},
    )


@CHECKS_WITH_DATA.add("configurational temperature", ERRORS, "1 +- {0}", "Use {run.use.accurate}")
def configurational_temperature(run: WithData) -> Line | None:
    if run.identities is None:
        return None
    z, g, ess = run.draws.z, run.gradients.values, run.ess
    product = (z - z.mean((0, 1))) * (g - g.mean((0, 1))) + 1 / ess  # see identities
    line = deviation_from_1(product.mean(-1), least=float(np.sqrt((1 / ess).sum()) / len(ess)))
    by_site = {site: float(product[..., own].mean()) for site, own in run.draws.by_site.items()}
    return line._replace(details={**line.details, "by_site": by_site})


@CHECKS_WITH_DATA.add("inflation predicted from minibatch noise", ERRORS, "<= {0:.0%}", "Use {run.use.less_noise}")
def inflation_by_noise(run: WithData) -> Line | None:
    law = run.prediction
    line = law and _predicted(run, law.noise, law.noise_error, "minibatch noise makes the draws too wide")
    return line and line._replace(shown=line.shown + ", reshuffled" * (epoch_of(run.run) >= 2))


@CHECKS_WITH_DATA.add("inflation predicted from the step size", ERRORS, "<= {0:.0%}", "Use {run.use.stable}")
def inflation_by_step(run: WithData) -> Line | None:
    law = run.prediction
    return law and _predicted(run, law.step, np.zeros_like(law.step), "the step is too large for the integrator")


def _not_refuted(run: WithData, inflation: np.ndarray) -> np.ndarray:
    """The predicted inflations, as far as they are within the limits that the second identity of the draws leaves."""
    if run.identities is None:
        return inflation
    low, high = (run.identities.inflation + sign * run.limit * run.identities.inflation_error for sign in (-1, 1))
    return np.clip(inflation, np.minimum(low, 0), np.maximum(high, 0))


def _predicted(run: WithData, inflation: np.ndarray, error: np.ndarray, seen: str) -> Line:
    size, names = np.abs(_not_refuted(run, inflation)), run.draws.names
    with np.errstate(invalid="ignore"):  # of infinite inflations
        certain = np.where(size - bound(len(size), len(run.draws.z)) * error <= ERRORS[0], 0, size)  # and NaN
    k = int(np.argmax(certain if certain.any() else size))
    k = k if size.any() else int(np.argmax(np.abs(inflation)))
    known_to = f" +- {error[k]:.1%}" * bool(error[k] > 0.01 and abs(inflation[k]) <= KNOWN)
    shown = f"{in_words(inflation[k])}{known_to} at {names[k]}{run.mean_step}"
    shown += ", which the draws refute" * bool(size[k] < REFUTED * abs(inflation[k]))
    by_site = {site: float(inflation[j]) for site, j in run.by_site(size).items()}
    return Line(
        float(inflation[k]),
        shown,
        seen=f"{seen} (predicted for the variance: {shown})",
        size=float(certain.max()),
        error=float(error.max()),
        details={"where": names[k], "by_coordinate": dict(zip(names, inflation.tolist())), "by_site": by_site},
    )


@CHECKS_WITH_DATA.add("stability of the step", (0, 1), "at 1.25 h as well", "Use {run.use.stable}")
def stability(run: WithData) -> Line | None:
    if run.prediction is None:
        return None
    stable = run.prediction.stable
    shown = ("unstable", "near its limit", "stable")[stable] + run.mean_step
    seen = f"the step is {shown} in the narrowest direction"
    return Line(stable, shown, seen=seen, size=2 - stable)


def numbers_by_site(lines: Mapping[str, Line]) -> dict[str, dict[str, Any]]:
    """
    Site -> the z-scores of the identities in its worst coordinate, its configurational temperature, the predicted
    inflations, and the verdict of its identities; empty if the gradients are not finite.
    """
    by_site = {key: line.details["by_site"] for key, line in lines.items() if "by_site" in line.details}
    table = {}
    for site, first in by_site.get("score", {}).items():
        second = by_site["virial"][site]
        where = max(first, second, key=lambda side: side["z"])["where"]
        numbers = {"where": where, "score": first["z"], "virial": second["z"]}
        numbers["temperature"] = by_site["configurational_temperature"][site]
        numbers |= {key: sites[site] for key, sites in by_site.items() if key.startswith("inflation_by")}
        table[site] = numbers | {"verdict": worst(first["verdict"], second["verdict"])}
    return table
