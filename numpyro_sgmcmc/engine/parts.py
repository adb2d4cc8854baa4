"""The parts of a chain: completed by defaults, and checked against each other."""

from functools import partial
from typing import Any

from numpyro_sgmcmc.checks.at_construction import (
    check_can_be_chosen,
    check_can_be_quiet,
    check_center,
    check_independent,
    check_previous,
    check_undecided,
    checked_init_strategy,
    checked_part,
    checked_settings,
)
from numpyro_sgmcmc.dynamics.splitting import Splitting, named
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.tuned import TunedChain
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.model.centering import checked_centering
from numpyro_sgmcmc.rows.schemes import Reshuffled, WithoutReplacement
from numpyro_sgmcmc.schedules import as_schedule
from numpyro_sgmcmc.types import Dynamics, RowScheme
from numpyro_sgmcmc.utils.validation import checked_count


def chain_of_parts(
    dynamics: Dynamics,
    integrator: Any,
    gradient: Any,
    rows: RowScheme | None,
    step_size: Any,
    *,
    init_strategy: Any,
    steps_per_sample: int | None,
    dense_mass: Any,
    settings: Any,
    centering: Any,
    check: bool | None,
    keeps_values: bool,
    batch_size: Any,
) -> Chain:
    """The chain of the arguments of a kernel. Raises an error for parts that do not work together."""
    if isinstance(integrator, Splitting) or not hasattr(integrator, "step"):
        integrator = named(integrator, dynamics)
    integrator.check(dynamics)
    chosen = step_size is None or getattr(step_size, "relative", False)
    dense_mass, known = checked_settings(dense_mass, settings, chosen)
    if chosen:
        check_can_be_chosen(dynamics, keeps_values)
        kind = partial(TunedChain, dense_mass=dense_mass, known=known, chooses_rows=batch_size is None)
        default = ControlVariate()
        schedule = as_schedule(step_size or 1.0)  # relative to the step size that is found
    else:
        kind, default, schedule = Chain, Minibatch(), as_schedule(step_size)
    if getattr(schedule, "exploration", 0):
        check_can_be_quiet(dynamics, integrator)
    if rows is None:
        rows = default_rows(integrator.needs_variance, chosen)
    gradient = checked_part("gradient", default if gradient is None else gradient, "evaluate", "Minibatch()")
    checked_part("rows", rows, "__call__", "Reshuffled()")
    estimator, scheme = gradient.with_rows(rows)
    if integrator.needs_variance:
        check_independent(scheme, integrator)
    check_undecided(scheme, chosen)
    check_center(estimator, chosen)
    if keeps_values:
        check_previous(estimator, integrator)
    options: dict[str, Any] = {"centering": checked_centering(centering, known, estimator)}
    if steps_per_sample is not None:
        options["steps_per_sample"] = checked_count("steps_per_sample", steps_per_sample)
    if check is not None:
        options["checked"] = bool(check)
    strategy = checked_init_strategy(init_strategy)
    return kind(dynamics, integrator, estimator, scheme, schedule, strategy, **options)


def default_rows(independent: bool, chosen: bool) -> RowScheme:
    """The default of a kernel. If the warm-up chooses the step size, it also chooses whether batches are blocks."""
    return (WithoutReplacement if independent else Reshuffled)(contiguous=None if chosen else False)
