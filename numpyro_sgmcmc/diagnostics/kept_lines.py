"""
Lines of a summary from the fields that a run has kept: its cost, and how well its chains have mixed. R-hat and the
effective sample size measure only mixing.
"""

from typing import Any

import numpy as np

from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.table import Line, plain
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.report.run_checks import LONG, MIXED, OFF, SELDOM, known_temperatures, verdict_on_one
from numpyro_sgmcmc.report.run_doubts import doubts
from numpyro_sgmcmc.report.run_verdict import RunVerdict
from numpyro_sgmcmc.tuning.tuning import Tuning
from numpyro_sgmcmc.types import Thermostatted
from numpyro_sgmcmc.utils.monte_carlo import FEWEST, effective, r_hat, unequal_spread
from numpyro_sgmcmc.utils.significance import VARIANCE, worst

OTHER_LINES = {
    "energy": ("energy", None, "falls"),
    "data": ("data", None, "changed"),
}  # that a summary has only if they are not ok
UNCERTAIN = 0.15  # a larger standard error is too large for a verdict
FEW = 100  # effective draws


def remedies_of(run: Run) -> Remedies:
    """What the user of this run may change."""
    return Remedies(False) if run.tuning is None else Remedies(True, bool(np.any(np.asarray(run.tuning.variance))))


def is_checked(run: Run) -> bool:
    """Whether draws or warm-up decide about a run whose draws are checked."""
    scores = RunVerdict.of(run.fields["monitor"].scores)
    of_warm_up = run.tuning is not None and bool(np.any(run.tuning.scores))
    return run.state.scores == () or scores.decides or (of_warm_up and not scores.is_blind)


def cost_lines(run: Run, seconds: float | None) -> dict[str, Line]:
    kernel, chains, kept = run.kernel, run.mcmc.num_chains, run.draws_of_a_chain
    steps, h = float(run.steps.max()), run.step_sizes
    last = h[:, -1].mean()
    varies = not np.allclose(h, last, atol=0)
    lines = {
        "draws": Line("draws", chains * kept, f"{chains} x {kept}"),
        "steps": Line("steps of a chain, warm-up included", steps, plain(steps)),
        "step_size": _step_size(h, plain(last) + (", at the end" if varies else "")),
    }
    each = getattr(kernel.integrator, "gradients_per_step", 1)
    evaluations = each * steps * chains * len(getattr(run.sampler, "temperatures", [1.0]))
    details: dict[str, Any] = {}
    if run.knows_data:
        batch, size = run.rows
        twice = 2 if hasattr(kernel.chain_for(run.potential).gradient, "anchor") else 1
        passes = evaluations * twice * (batch / size if size else 1.0)
        lines["passes"] = Line("passes over the data, by the steps", passes, plain(passes))
    shown = plain(evaluations)
    if seconds is not None:
        details["per_second"] = evaluations / seconds
        shown += f", {plain(evaluations / seconds)} a second"
    lines["gradient_evaluations"] = Line("gradient evaluations", evaluations, shown, details=details)
    return lines


def _step_size(h: np.ndarray, shown: str) -> Line:
    """
    A schedule that has ended at 0 freezes the chains: each of these draws repeats the one before it.

    :param h: step sizes, shape ``(chains, draws)``.
    """
    line = Line("step size", h[:, -1].mean(), shown)
    ended = float((h <= 0).mean())
    if not ended:
        return line
    return line._replace(
        shown=f"{shown}, 0 in {ended:.1%} of draws",
        bound="> 0",
        verdict="wrong" if ended > 0.2 else "doubtful",
        advice="draws after a step of size 0 repeat the one before: use a schedule that stays positive, such as "
        "Polynomial, or give optax an end value.",
    )


def kept_lines(run: Run, draws: Draws) -> dict[str, Line]:
    """Their verdicts are those of :func:`~numpyro_sgmcmc.report.run_doubts.doubts`, or worse."""
    z, names, monitor = draws.z, draws.names, run.fields["monitor"]
    use = remedies_of(run)
    lines = {"refused": _refused(monitor, z, use)}
    T = known_temperatures(monitor.temperature)
    if T.size:
        lines["kinetic_temperature"] = temperature_line("kinetic temperature", T, use.accurate, z.shape[-1])
    jump = np.asarray(monitor.jump, float)
    if jump.any():  # it is 0 for dynamics with a momentum
        late = float(jump[:, jump.shape[1] // 2 :].mean())
        lines["squared_steps"] = Line("squared steps over those of the noise", late, plain(late), f"<= {LONG:g}", "ok")
    if isinstance(run.kernel.dynamics, Thermostatted):
        lines["thermostat"] = _thermostat(run)
    if run.tuning is not None:
        lines |= _warm_up(run.tuning)
    with np.errstate(invalid="ignore"):
        R, n = r_hat(z), effective(z)
    worst_R, fewest = int(np.argmax(R)), int(np.argmin(n))
    enough = z.shape[1] >= FEWEST  # R-hat of fewer draws is large by chance
    lines["r_hat"] = Line(
        "mixing (not correctness): R-hat",
        float(R[worst_R]),
        f"{R[worst_R]:.3f} at {names[worst_R]}" + ("" if enough else ", of too few draws"),
        f"<= {MIXED}",
        "ok" if enough else "doubtful",
        f"chains of so few draws cannot be compared: {use.mixing}.",
        {"where": names[worst_R]},
    )
    lines["ess"] = Line(
        "mixing (not correctness): effective draws",
        float(n[fewest]),
        f"{n[fewest]:.0f} at {names[fewest]}",
        f">= {FEW}",
        "ok" if n[fewest] >= FEW else "doubtful",
        f"averages are not accurate: {use.mixing}.",
        {"where": names[fewest]},
    )
    if len(z) > 1:
        spread = unequal_spread(z)
        widest = int(np.argmax(spread))
        lines["spread"] = Line(
            "mixing (not correctness): widths of the chains",
            float(spread[widest]),
            f"{spread[widest]:.0%} apart at {names[widest]}" if spread[widest] else "no significant difference",
            f"<= {VARIANCE[0]:.0%}",
            "doubtful" if spread[widest] > VARIANCE[0] else "ok",
            f"the standard deviations of the chains differ, so that of all draws is not known: {use.mixing}.",
            {"where": names[widest]},
        )
    scores = RunVerdict.of(monitor.scores)
    if scores.verdict:
        lines["run_scores"] = _run_scores(scores, run)
    limit = np.inf if run.tuning is None else run.tuning.score_limit
    for doubt in doubts(monitor, run.state.layout, limit, float(R[worst_R]) if enough else None):
        line = lines.get(doubt.line, Line(*OTHER_LINES.get(doubt.line, (doubt.line, None, "see below"))))
        verdict = worst(line.verdict, doubt.verdict)
        lines[doubt.line] = line._replace(verdict=verdict, advice=f"{doubt.found}. {doubt.remedy}.")
    return lines


def _refused(monitor: Monitor, z: np.ndarray, use: Remedies) -> Line:
    share, in_a_row = float(monitor.diverging.mean()), int(monitor.refused.max())
    still = int((np.ptp(z, axis=1) == 0).all(-1).sum()) if z.shape[1] > 1 else 0
    return Line(
        "draws with a refused step",
        share,
        f"{share:.2%}" + (f", {still} chains stand still" if still else ""),
        f"<= {SELDOM:.0%}",
        "wrong" if still else "ok",
        f"chains do not move: {use.stable}.",
        {"in_a_row": in_a_row, "standing_still": still},
    )


def temperature_line(name: str, T: np.ndarray, remedy: str, coordinates: int | None = None, least: float = 0.0) -> Line:
    """
    A deviation from 1 that is not significant is doubtful only if the standard error is too large for a verdict.

    :param T: temperatures, whose mean should be 1, shape ``(chains, draws)``.
    :param remedy: what makes the draws more accurate.
    :param coordinates: number of coordinates, if T is their kinetic temperature.
    :param least: lower bound of the standard error.
    """
    mean = float(T.mean())
    verdict, error = verdict_on_one(T, coordinates, least)
    if verdict == "ok" and error > UNCERTAIN and abs(mean - 1) > VARIANCE[0]:
        verdict = "doubtful"
    return Line(
        name,
        mean,
        f"{mean:.3f} +- {error:.3f}",
        f"1 +- {VARIANCE[0]}",
        verdict,
        f"the draws are too {'wide' if mean > 1 else 'narrow'}, or the chains have not converged from a distant start: "
        f"{remedy}.",
        {"error": error},
    )


def _run_scores(scores: RunVerdict, run: Run) -> Line:
    """The identities of the score during the run."""
    score, details = scores.numbers.score, scores.numbers._asdict()
    shown = f"{score:.2g} of the bound; {scores.power(run.draws_of_a_chain)}"
    return Line("score identities during the run", score, shown, "<= 1", "ok", details=details)


def _thermostat(run: Run) -> Line:
    """Mean thermostat minus D: the effect of the gradient noise that it balances, h s^2 / 2."""
    fields = run.fields
    kept = fields.get("thermostat", run.state.thermostat)
    leaves = [np.asarray(leaf, float).ravel() for leaf in (kept.values() if isinstance(kept, dict) else [kept])]
    absorbed = float(np.concatenate(leaves).mean()) - run.kernel.dynamics.noise
    of = "" if "thermostat" in fields else ", of the last state"
    return Line("thermostat minus D: the noise that it balances", absorbed, plain(absorbed) + of)


def _warm_up(tuning: Tuning) -> dict[str, Line]:
    """The results of the warm-up, for a kernel without a given step size."""
    scores = {name: float(np.max(score)) for name, score in tuning.scores._asdict().items()}
    z, R = np.maximum(scores["gradient"], scores["virial"]), scores["r_hat"]
    checked = bool(np.any(tuning.scores))
    inflation = float(np.max(tuning.inflation))
    return {
        "warm_up": Line(
            "check at the end of the warm-up",
            float(z),
            f"z = {z:.1f}, R-hat = {R:.2f}" if checked else "too short for one",
            f"z <= {tuning.score_limit:.1f}, R-hat <= {MIXED}" if checked else "",
            "ok" if checked else "",
            details=scores,
        ),
        "tuned_inflation": Line(
            "inflation that the warm-up predicts", inflation, f"{inflation:.1%}", f"<= {OFF:.0%}", "ok"
        ),
    }
