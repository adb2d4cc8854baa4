"""
Lines of a summary from the fields that a run has kept: its cost, and how well its chains have mixed. R-hat and the
effective sample size measure only mixing.
"""

from typing import Any

import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import latent_draws, numbers_of_rows
from numpyro_sgmcmc.diagnostics.monte_carlo import FEWEST, bound, effective, r_hat, standard_error
from numpyro_sgmcmc.diagnostics.table import Line, graded, plain
from numpyro_sgmcmc.kernels.run_checks import LONG, STUCK, beyond_chance, known_temperatures, long_steps
from numpyro_sgmcmc.kernels.settings import settings
from numpyro_sgmcmc.kernels.sgmcmc import SGMCMC
from numpyro_sgmcmc.kernels.state import Marks, SGMCMCState
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.tuning.tuning import Tuning
from numpyro_sgmcmc.types import Thermostatted

UNCERTAIN = 0.15  # a larger standard error is too large for a verdict
VARIANCE = 0.1, 0.3  # a relative error: doubtful, wrong
MIXED, APART = 1.1, 1.5  # R-hat
FEW = 100  # effective draws
SMALLER = "a smaller step_size, larger batches, or gradient=ControlVariate(find_mode(...))"
LONGER = "a larger num_warmup or batch_size, or other parameters of the model (numpyro.infer.reparam)"


def remedy_of(kernel: SGMCMC) -> str:
    """What makes the draws more accurate; not a smaller step size, if the warm-up has chosen it."""
    return LONGER if kernel._chain.tuned else SMALLER


def cost_lines(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState, seconds: float | None) -> dict[str, Line]:
    chains = mcmc.num_chains
    kept = next(iter(latent_draws(mcmc).values())).shape[1]
    wraps = np.asarray(Marks.of(state.marks).wraps, float)
    steps = float((np.asarray(state.i, float) + 2.0**32 * wraps).max())
    h = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["step_size"], float).reshape(chains, -1)
    last = h[:, -1].mean()
    varies = not np.allclose(h, last, atol=0)
    lines = {
        "draws": Line("draws", chains * kept, f"{chains} x {kept}"),
        "steps": Line("steps of a chain, warm-up included", steps, plain(steps)),
        "step_size": _step_size(h, plain(last) + (", at the end" if varies else "")),
    }
    each = getattr(kernel.integrator, "gradients_per_step", 1)
    evaluations = each * steps * chains * len(getattr(mcmc.sampler, "temperatures", [1.0]))
    details: dict[str, Any] = {}
    try:
        potential = ModelPotential.of(kernel._model, mcmc._args or (), mcmc._kwargs or {}, kernel._batch_size)
        batch, size = numbers_of_rows(potential)
        twice = 2 if hasattr(kernel._chain_for(potential).gradient, "anchor") else 1
        passes = evaluations * twice * (batch / size if size else 1.0)
        lines["passes"] = Line("passes over the data, by the steps", passes, plain(passes))
    except (TypeError, ValueError):
        pass  # the arguments of the run are not known any more, as after unpickling
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


def kept_lines(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState, z: np.ndarray, names: list[str]) -> dict[str, Line]:
    monitor = mcmc.get_extra_fields(group_by_chain=True)["monitor"]
    lines = {"refused": _refused(mcmc, monitor, z)}
    T = known_temperatures(monitor.temperature)
    if not np.isnan(T).all():
        lines["kinetic_temperature"] = temperature_line("kinetic temperature", T, remedy_of(kernel), z.shape[-1])
    jump = np.asarray(monitor.jump, float)
    if jump.any():  # it is 0 for dynamics with a momentum
        late = jump[:, jump.shape[1] // 2 :]
        lines["squared_steps"] = Line(
            "squared steps over those of the noise",
            float(late.mean()),
            f"{late.mean():.3g}",
            f"<= {LONG:g}",
            "doubtful" if long_steps(jump, z.shape[-1]) else "ok",
            f"the gradients, or their minibatch noise, increase the variance of the draws: {remedy_of(kernel)}.",
        )
    if isinstance(kernel.dynamics, Thermostatted):
        lines["thermostat"] = _thermostat(mcmc, kernel, state)
    lines |= _warm_up(mcmc, state)
    with np.errstate(invalid="ignore"):
        R, n = r_hat(z), effective(z)
    worst, fewest = int(np.argmax(R)), int(np.argmin(n))
    mixed = "longer chains, a larger steps_per_sample, or init_params=find_mode(...); perhaps there are several modes"
    enough = z.shape[1] >= FEWEST  # R-hat of fewer draws is large by chance
    lines["r_hat"] = Line(
        "mixing (not correctness): R-hat",
        float(R[worst]),
        f"{R[worst]:.3f} at {names[worst]}" + ("" if enough else ", of too few draws"),
        f"<= {MIXED}",
        graded(R[worst], MIXED, APART) if enough else "doubtful",
        f"the chains are not in the same region: {mixed}.",
        {"where": names[worst]},
    )
    lines["ess"] = Line(
        "mixing (not correctness): effective draws",
        float(n[fewest]),
        f"{n[fewest]:.0f} at {names[fewest]}",
        f">= {FEW}",
        "ok" if n[fewest] >= FEW else "doubtful",
        f"averages are not accurate: {mixed}.",
        {"where": names[fewest]},
    )
    return lines


def _refused(mcmc: MCMC, monitor: Any, z: np.ndarray) -> Line:
    diverging = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["diverging"])
    share, in_a_row = float(diverging.mean()), int(np.asarray(monitor.refused).max())
    still = int((np.ptp(z, axis=1) == 0).all(-1).sum()) if z.shape[1] > 1 else 0
    wrong = still or in_a_row >= STUCK or share > 0.2
    return Line(
        "draws with a refused step",
        share,
        f"{share:.2%}" + (f", {still} chains stand still" if still else ""),
        "<= 1 %",
        "wrong" if wrong else graded(share, 0.01, 0.2),
        "steps led to values that are not finite or out of the support: use a smaller step_size, or check the data.",
        {"in_a_row": in_a_row, "standing_still": still},
    )


def temperature_line(name: str, T: np.ndarray, remedy: str, coordinates: int | None = None, least: float = 0.0) -> Line:
    """
    A deviation from 1 that is not significant is doubtful only if the standard error is too large for a verdict.

    :param T: temperatures, whose mean should be 1, shape ``(chains, draws)``.
    :param remedy: see :func:`remedy_of`.
    :param coordinates: number of coordinates, if T is their kinetic temperature.
    :param least: lower bound of the standard error.
    """
    mean, error = float(T.mean()), max(float(standard_error(T)), least)
    off = abs(mean - 1)
    verdict = graded(off, *VARIANCE)
    beyond = coordinates is not None and beyond_chance(T, coordinates, VARIANCE[0])
    if off <= bound(1, len(T), effective(T)) * error and not beyond:
        verdict = "doubtful" if error > UNCERTAIN and verdict != "ok" else "ok"
    return Line(
        name,
        mean,
        f"{mean:.3f} +- {error:.3f}",
        f"1 +- {VARIANCE[0]}",
        verdict,
        f"the draws are too {'wide' if mean > 1 else 'narrow'}, or the chains have not converged from a distant start: "
        f"{remedy}, or more warm-up.",
        {"error": error},
    )


def _thermostat(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState) -> Line:
    """Mean thermostat minus D: the effect of the gradient noise that it balances, h s^2 / 2."""
    fields = mcmc.get_extra_fields(group_by_chain=True)
    kept = fields.get("thermostat", state.thermostat)
    leaves = [np.asarray(leaf, float).ravel() for leaf in (kept.values() if isinstance(kept, dict) else [kept])]
    absorbed = float(np.concatenate(leaves).mean()) - kernel.dynamics.noise
    of = "" if "thermostat" in fields else ", of the last state"
    return Line("thermostat minus D: the noise that it balances", absorbed, plain(absorbed) + of)


def _warm_up(mcmc: MCMC, state: SGMCMCState) -> dict[str, Line]:
    """The results of the warm-up, for a kernel without a given step size."""
    if not isinstance(state.tuning, Tuning):
        return {}
    found = settings(mcmc)
    worst = {name: float(np.max(score)) for name, score in found["scores"].items()}
    z = max(worst["gradient"], worst["virial"])
    checked = worst["r_hat"] > 0
    limit = state.tuning.score_limit
    red = checked and not (z <= limit and worst["r_hat"] <= MIXED)
    inflation = float(np.max(found["predicted_inflation"]))
    return {
        "warm_up": Line(
            "check at the end of the warm-up",
            z,
            f"z = {z:.1f}, R-hat = {worst['r_hat']:.2f}" if checked else "too short for one",
            f"z <= {limit:.1f}, R-hat <= {MIXED}" if checked else "",
            ("doubtful" if red else "ok") if checked else "",
            "perhaps the model is hierarchical (centre groups with many rows, non-centre those with few), the "
            "posterior has several modes, or num_warmup was too small.",
            worst,
        ),
        "tuned_inflation": Line(
            "inflation that the warm-up predicts", inflation, f"{inflation:.1%}", "<= 10 %", graded(inflation, 0.1, 0.3)
        ),
    }
