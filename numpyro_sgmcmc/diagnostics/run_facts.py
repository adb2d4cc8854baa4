"""Lines of a summary that are not checked: the size and the cost of a run, and what its thermostat has balanced."""

from typing import Any

import numpy as np

from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.types import Thermostatted
from numpyro_sgmcmc.utils.wording import plain


def run_facts(run: Run, seconds: float | None) -> dict[str, Line]:
    """
    :param seconds: duration of the run, if it is known.
    """
    kernel, chains, kept, steps = run.kernel, run.mcmc.num_chains, run.draws_of_a_chain, float(run.steps.max())
    lines = {
        "draws": Line(chains * kept, f"{chains} x {kept}"),
        "steps": Line(steps, plain(steps), title="steps of a chain, warm-up included"),
    }
    each = getattr(kernel.integrator, "gradients_per_step", 1)
    evaluations = each * steps * chains * len(getattr(run.sampler, "temperatures", [1.0]))
    if run.knows_data:
        batch, size = run.rows
        twice = 2 if hasattr(kernel.chain_for(run.potential).gradient, "anchor") else 1
        passes = evaluations * twice * (batch / size if size else 1.0)
        lines["passes"] = Line(passes, plain(passes), title="passes over the data, by the steps")
    shown, details = plain(evaluations), {}
    if seconds is not None:
        details["per_second"] = evaluations / seconds
        shown += f", in {plain(seconds)} s: {plain(evaluations / seconds)} a second"
    lines["gradient_evaluations"] = Line(evaluations, shown, details=details, title="gradient evaluations")
    if isinstance(kernel.dynamics, Thermostatted):
        lines["thermostat"] = _thermostat(run)
    return lines


def _thermostat(run: Run) -> Line:
    """Mean thermostat minus D: the effect of the gradient noise that it balances, h s^2 / 2."""
    kept: Any = run.fields.get("thermostat", run.state.thermostat)
    leaves = [np.asarray(leaf, float).ravel() for leaf in (kept.values() if isinstance(kept, dict) else [kept])]
    balanced = float(np.concatenate(leaves).mean()) - run.kernel.dynamics.noise
    shown = plain(balanced) + ", of the last state" * ("thermostat" not in run.fields)
    return Line(balanced, shown, title="thermostat minus D: the noise that it balances")
