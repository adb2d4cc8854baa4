r"""
``compare(idata, reference)``: differences of the draws from those of a reference, such as an exact sampler.

.. math::
    \frac{\bar z - \bar z_{ref}}{s_{ref}}, \qquad \frac{s}{s_{ref}} - 1, \qquad
    \frac{Q_p - Q_{p,ref}}{s_{ref}},

each with the root of the summed squared Monte Carlo errors of both sides. The error of a quantile is half the distance
between the quantiles at :math:`p \pm \mathrm{se}(\hat p)`, where :math:`\hat p` is the share of draws below it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import check_draws
from numpyro_sgmcmc.diagnostics.pictures import comparison_picture
from numpyro_sgmcmc.diagnostics.table import Table
from numpyro_sgmcmc.report.check import UNCERTAIN, Line
from numpyro_sgmcmc.report.run_checks import MIXED
from numpyro_sgmcmc.utils.monte_carlo import FEWEST, bound, effective, positive_sd, r_hat, standard_error
from numpyro_sgmcmc.utils.significance import ORDER, graded

QUANTILES = (0.05, 0.5, 0.95)
TOLERANCE = {"mean": (0.1, 0.3), "sd": (0.05, 0.15), "quantile": (0.15, 0.4)}  # doubtful, wrong


def compare(idata: Any, reference: Any) -> Table:
    """
    Differences of means, standard deviations and quantiles from a reference, in units of its standard deviation, with
    the Monte Carlo errors of both sides. A site is ``wrong`` or ``doubtful`` if a difference is significant and exceeds
    its bound. It is ``doubtful``, whatever the difference, if the chains of the reference have not mixed, with an R-hat
    above 1.1; and it is not ``ok`` if those of the other side have not, or if the standard error of a mean exceeds
    0.15, which is too large for a verdict.

    :param idata: an :class:`~numpyro.infer.MCMC` that has run, ArviZ's ``InferenceData`` or ``DataTree`` with a group
        ``posterior``, or a dict from sites to arrays of shape ``(chains, draws, ...)``.
    :param reference: draws of the same model in one of these forms, for example from NUTS.
    :return: a mapping from each common site to a dict of arrays of its shape: ``mean``, ``sd``, ``5%``, ``50%``,
        ``95%``, each with its standard error as ``mean_error`` and so on, and the ``verdict`` of the worst of them.
    :raises TypeError: if one of them has none of these forms.
    :raises ValueError: if there is no site in common, a site has different shapes, or the sites of one side have
        different numbers of chains or draws, as those of ``get_samples()`` without ``group_by_chain=True`` have.

    **Example**

    .. doctest::

        >>> import numpy as np
        >>> from numpyro_sgmcmc import compare
        >>> rng = np.random.default_rng(0)
        >>> wide = {"mu": 1.3 * rng.normal(size=(4, 1000))}
        >>> found = compare(wide, {"mu": rng.normal(size=(4, 1000))})
        >>> found.verdict, bool(abs(found["mu"]["sd"] - 0.3) < 4 * found["mu"]["sd_error"])
        ('wrong', True)
    """
    ours, theirs = chains_of(idata, "idata"), chains_of(reference, "reference")
    common = [name for name in ours if name in theirs]
    if not common:
        raise ValueError(
            f"idata has the sites {', '.join(map(repr, ours))}, reference {', '.join(map(repr, theirs))}: none in "
            "common. Give draws of the same model."
        )
    for name in common:
        if ours[name].shape[2:] != theirs[name].shape[2:]:
            raise ValueError(
                f"site {name!r} has shape {ours[name].shape[2:]} in idata and {theirs[name].shape[2:]} in reference. "
                "Give draws of the same model."
            )
    sides = ("idata", ours), ("reference", theirs)
    for side, draws in sides:
        if len({draws[name].shape[:2] for name in common}) > 1:
            shapes = ", ".join(f"{name!r} {draws[name].shape}" for name in common)
            raise ValueError(
                f"the sites of {side} have different numbers of chains or draws: {shapes}. The first two dimensions "
                "must be those of chains and draws: mcmc.get_samples(group_by_chain=True)."
            )
    tests = sum(int(np.prod(ours[name].shape[2:])) for name in common) * len(STATISTICS)
    lines = {name: _line(ours[name], theirs[name], tests) for name in common}
    alone = sorted(set(ours) ^ set(theirs))
    read = (f"{side}: {'{} x {}'.format(*draws[common[0]].shape)} draws" for side, draws in sides)
    note = "; ".join(read) + "." + (f" Only on one side: {', '.join(alone)}." if alone else "")
    return Table("Errors in sds of the reference", lines, note, picture=comparison_picture)


def chains_of(draws: Any, name: str) -> dict[str, np.ndarray]:
    """Site -> array of shape ``(chains, draws, ...)``. Raises a TypeError for another form of draws."""
    if isinstance(draws, MCMC):
        check_draws(draws, "compare")
        draws = draws.get_samples(group_by_chain=True)
    elif hasattr(draws, "posterior"):
        group = draws.posterior
        return {str(key): np.asarray(x.transpose("chain", "draw", ...)) for key, x in group.data_vars.items()}
    if not isinstance(draws, Mapping):
        raise TypeError(
            f"{name}= must be an MCMC that has run, ArviZ's InferenceData or DataTree, or a dict of arrays of shape "
            f"(chains, draws, ...), not {type(draws).__name__}."
        )
    arrays = {str(key): np.asarray(x) for key, x in draws.items()}
    for key, x in arrays.items():
        if x.ndim < 2 or x.shape[1] < FEWEST:
            raise ValueError(
                f"{name}[{key!r}] has shape {x.shape}; it must be (chains, draws, ...), with at least {FEWEST} draws: "
                "mcmc.get_samples(group_by_chain=True)."
            )
    return arrays


def _line(ours: np.ndarray, theirs: np.ndarray, tests: int) -> Line:
    ours, theirs = ours.astype(float), theirs.astype(float)
    ess = {"idata": effective(ours), "reference": effective(theirs)}
    limit = bound(tests, min(len(ours), len(theirs)), np.minimum(*ess.values()))
    sd = positive_sd(theirs)
    details: dict[str, Any] = {}
    worst = ("ok", 0.0, "", 0.0, 0.0)
    for key, statistic in STATISTICS.items():
        (first, e1), (second, e2) = statistic(ours), statistic(theirs)
        error, value = np.hypot(e1, e2) / sd, (first - second) / sd
        details |= {key: value, f"{key}_error": error}
        tolerance = TOLERANCE.get(key, TOLERANCE["quantile"])
        for index in np.ndindex(*value.shape):
            size = abs(float(value[index]))
            verdict = graded(size, *tolerance) if not size <= limit[index] * error[index] else "ok"
            where = f"{key} of element {list(index)}" if index else key
            entry = verdict, size, where, float(error[index]), float(limit[index])
            worst = max(worst, entry, key=lambda w: (ORDER.index(w[0]), w[1]))
    verdict, size, where, error, most = worst
    advice = "the draws have another distribution than the reference"
    largest = float(np.max(details["mean_error"], initial=0))
    if verdict == "ok" and not largest <= UNCERTAIN:
        verdict = "doubtful"
        fewer = min(ess, key=lambda side: ess[side].min())
        advice = (
            f"the standard error of a mean is {largest:.2f} sd, which is too large for a verdict: {fewer} has only "
            f"{ess[fewer].min():.0f} effective draws"
        )
    apart = {side: float(np.max(r_hat(x), initial=1)) for side, x in (("reference", theirs), ("idata", ours))}
    for side, R in apart.items():
        if not R <= MIXED and (side == "reference" or verdict == "ok"):
            verdict = "doubtful"
            advice = (
                f"the chains of {side} have not mixed (R-hat {R:.2f}), so the difference says little. Run it longer"
            )
            break
    shown = f"{size:.3f} +- {error:.3f}, {where}"
    allowed = f"mean .1, sd .05, quantiles .15, or within {most:.1f} standard errors of 0"
    return Line(size, shown, allowed, verdict, advice, details)


def _mean(x: np.ndarray) -> tuple:
    return x.mean((0, 1)), standard_error(x)


def _sd(x: np.ndarray) -> tuple:
    sd = x.std((0, 1))
    return sd, standard_error((x - x.mean((0, 1))) ** 2) / np.maximum(2 * sd, 1e-300)


def _quantile(x: np.ndarray, p: float) -> tuple:
    q = np.quantile(x, p, axis=(0, 1))
    error = np.minimum(standard_error(x <= q), 0.5)
    columns = x.reshape(-1, *x.shape[2:]).reshape(x.shape[0] * x.shape[1], -1)
    pairs = list(zip(columns.T, np.ravel(error)))
    ends = ([np.quantile(column, np.clip(p + sign * e, 0, 1)) for column, e in pairs] for sign in (-1, 1))
    low, high = (np.reshape(end, np.shape(q)) for end in ends)
    return q, (high - low) / 2


STATISTICS = {"mean": _mean, "sd": _sd} | {f"{p:.0%}": partial(_quantile, p=p) for p in QUANTILES}
