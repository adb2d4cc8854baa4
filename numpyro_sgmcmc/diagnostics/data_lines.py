r"""
Lines of a summary that need the data: the identities of the score (:mod:`~numpyro_sgmcmc.diagnostics.scores`), the
configurational temperature :math:`E[(z - m) \cdot \nabla U] / d`, and the inflation that step size and minibatches
predict (:mod:`~numpyro_sgmcmc.diagnostics.predicted_inflation`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_sgmcmc.diagnostics.kept_lines import UNCERTAIN, temperature_line
from numpyro_sgmcmc.diagnostics.predicted_inflation import epoch_of, predicted
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import Gradients, identities
from numpyro_sgmcmc.diagnostics.table import Line
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.utils.monte_carlo import bound, effective
from numpyro_sgmcmc.utils.significance import ORDER, VARIANCE, graded

MEAN = 0.1, 0.3  # in posterior sds: doubtful, wrong


def score_lines(draws: Draws, found: Gradients, remedy: str) -> dict[str, Line]:
    """
    :param remedy: what makes the draws more accurate.
    """
    rows = "all rows" if found.whole else f"{found.rows} fresh rows"
    bits = f", {', '.join(found.widened)} in 32 bits" if found.widened else ""
    n = draws.z.shape[0] * draws.z.shape[1]
    lines = {
        "looked_at": Line("gradients evaluated", n, f"{n} draws, {rows} each{bits}", details={"passes": found.passes})
    }
    if draws.left_out:
        share = draws.left_out / (n + draws.left_out)
        lines["edge"] = Line(
            "draws at the edge of the support",
            share,
            f"{share:.2%}",
            "<= 1 %",
            graded(share, 0.01, 0.2),
            "values are rounded to the edge of their support: another parametrisation, or jax_enable_x64.",
        )
    wrong = ~np.isfinite(found.values).all(-1)
    if wrong.any():
        lines["score"] = Line(
            "E[dU/dz] = 0",
            float("nan"),
            f"not finite in {wrong.mean():.1%} of draws",
            "finite",
            "wrong",
            f"either the draws are so far away that the gradient overflows: {remedy}; or rows that no step has used "
            "are not finite or outside the support of their distribution.",
        )
        return lines
    of = identities(draws.z, found.values)
    ess = effective(draws.z)
    limit = bound(2 * len(draws.names), len(draws.z), ess)
    zero = (of.gradient, of.gradient_error, np.abs(of.gradient) / of.scale)
    shift = (of.shift, of.shift_error, np.abs(of.shift))
    lines["score"] = _identity(
        "E[dU/dz] = 0", draws, zero, shift, limit, MEAN, "the mean is off by {:.2f} sd", f"{MEAN[0]} sd", remedy
    )
    one = (of.virial - 1, of.virial_error, np.abs(of.virial - 1))
    inflation = (of.inflation, of.inflation_error, np.abs(of.inflation))
    lines["virial"] = _identity(
        "E[(z - m) dU/dz] = 1",
        draws,
        one,
        inflation,
        limit,
        VARIANCE,
        "the variance is off by {:+.0%}",
        f"{VARIANCE[0]:.0%}",
        remedy,
    )
    if found.widened:
        overflow = f"perhaps the model overflows in the dtype of {', '.join(found.widened)}: give it 32 bits. Else "
        lines |= {key: lines[key]._replace(advice=overflow + lines[key].advice) for key in ("score", "virial")}
    product = (draws.z - draws.z.mean((0, 1))) * (found.values - found.values.mean((0, 1))) + 1 / ess  # see identities
    least = float(np.sqrt((1 / ess).sum()) / len(ess))
    line = temperature_line("configurational temperature", product.mean(-1), remedy, least=least)
    by_site = {site: product[..., np.asarray(draws.sites) == site].mean() for site in dict.fromkeys(draws.sites)}
    lines["configurational_temperature"] = line._replace(details={**line.details, "by_site": by_site})
    return lines


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
        numbers: dict[str, Any] = {"where": worst["where"], "score": first["z"], "virial": second["z"]}
        numbers["temperature"] = float(by_site["configurational_temperature"][site])
        for key in ("inflation_by_noise", "inflation_by_step"):
            if key in by_site:
                numbers[key] = by_site[key][site]
        verdicts = first["verdict"], second["verdict"]
        found[site] = numbers | {"verdict": max(verdicts, key=ORDER.index)}
    return found


def _largest_by_site(draws: Draws, numbers: np.ndarray) -> dict[str, float]:
    sites = np.asarray(draws.sites)
    of = {site: numbers[sites == site] for site in dict.fromkeys(draws.sites)}
    return {site: float(own[np.argmax(np.abs(own))]) for site, own in of.items()}


def _identity(
    name: str,
    draws: Draws,
    own: tuple,
    mixed: tuple,
    limit: np.ndarray,
    tolerance: tuple[float, float],
    effect: str,
    allowed: str,
    remedy: str,
) -> Line:
    """
    :param own: deviation, its standard error and its size in the coordinates themselves.
    :param mixed: the same, multiplied by the covariance of the draws.
    :param limit: limit of the z-score of each coordinate.
    :param effect: format string that describes ``mixed``.
    :param allowed: the first tolerance, in its words.
    """
    deviation, own_error, own_size = own
    shifted, mixed_error, mixed_size = mixed
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.nan_to_num(np.abs(deviation) / own_error)
        z_mixed = np.nan_to_num(np.abs(shifted) / mixed_error)
    certain = np.maximum(np.where(z > limit, own_size, 0), np.where(z_mixed > limit, mixed_size, 0))
    verdict = graded(float(certain.max()), *tolerance)
    both = np.maximum(z, z_mixed)
    worst = int(np.argmax(both / limit))
    by_site = {}
    for site in dict.fromkeys(draws.sites):
        index = np.flatnonzero(np.asarray(draws.sites) == site)
        at = index[np.argmax((both / limit)[index])]
        by_site[site] = {
            "z": float(both[at]),
            "where": draws.names[at],
            "effect": float(shifted[at]),
            "verdict": graded(float(certain[index].max()), *tolerance),
        }
    advice = (
        f"{effect.format(shifted[int(np.argmax(certain))])} at {draws.names[int(np.argmax(certain))]}, to first order: "
        f"{remedy}; step_halving(mcmc, key, ...) shows more."
    )
    shown = f"{effect.format(shifted[worst])[4:].replace(' is', '')} (+- {mixed_error[worst]:.2g})"
    if both[worst] <= limit[worst]:
        shown += ", not significant"
    error = float(np.median(mixed_error))
    if verdict == "ok" and not error <= UNCERTAIN:
        verdict = "doubtful"
        advice = f"its standard error is {error:.2f}, which is too large for a verdict: more draws, or larger batches."
    return Line(
        name,
        float(both[worst]),
        f"z = {both[worst]:.1f} at {draws.names[worst]}, {shown}",
        f"z <= {limit[worst]:.1f}, or less than {allowed}",
        verdict,
        advice,
        {
            "where": draws.names[worst],
            "bound_z": float(limit[worst]),
            "effect": float(shifted[worst]),
            "effect_error": float(mixed_error[worst]),
            "by_site": by_site,
        },
    )


def prediction_lines(run: Run, draws: Draws, found: Gradients, pairs: np.ndarray, use: Remedies) -> dict[str, Line]:
    of = predicted(run, draws, found.values, pairs)
    if of is None:
        return {}
    lines, epoch = {}, epoch_of(run)
    at = "" if isinstance(run.kernel.schedule, Constant) else ", at the mean step size"
    advice = {
        "noise": f"minibatch noise increases the variance of the draws: {use.quiet}.",
        "step": f"the step is too large for the integrator: {use.stable}.",
    }
    for key, words in (("noise", "minibatch noise"), ("step", "the step size")):
        inflation = getattr(of, key)
        error = of.noise_error if key == "noise" else np.zeros_like(inflation)
        size = np.abs(inflation)
        with np.errstate(invalid="ignore"):  # of infinite inflations
            certain = np.where(size - bound(len(size), len(draws.z)) * error <= VARIANCE[0], 0, size)  # and NaN
        worst = int(np.argmax(certain if certain.any() else size))
        known_to = f" +- {error[worst]:.1%}" if error[worst] > 0.01 else ""
        verdict, way_out = graded(float(certain.max()), *VARIANCE), advice[key]
        if verdict == "ok" and error.max() > UNCERTAIN:
            verdict = "doubtful"
            way_out = (
                f"its standard error is {error.max():.0%} at {draws.names[int(np.argmax(error))]}, which is too large "
                f"for a verdict: {use.quiet}."
            )
        lines[f"inflation_by_{key}"] = Line(
            f"inflation predicted from {words}" + (", reshuffled" if key == "noise" and epoch >= 2 else "") + at,
            float(inflation[worst]),
            f"{inflation[worst]:+.1%}{known_to} at {draws.names[worst]}",
            f"<= {VARIANCE[0]:.0%}",
            verdict,
            way_out,
            {
                "where": draws.names[worst],
                "by_coordinate": dict(zip(draws.names, inflation.tolist())),
                "by_site": _largest_by_site(draws, inflation),
            },
        )
    lines["stability"] = Line(
        "stability of the step" + at,
        of.stable,
        ("unstable", "near its limit", "stable")[of.stable],
        "at 1.25 h as well",
        ("wrong", "doubtful", "ok")[of.stable],
        "the step is close to the stability limit of the narrowest direction, or beyond it: "
        f"{use.stable if use.tuned else use.stable + ', or an inverse_mass_matrix'}.",
    )
    return lines
