"""
The parts of a chain: completed by defaults, and checked against each other. Each error names the argument and a remedy.
"""

from collections.abc import Mapping
from typing import Any

from numpyro_sgmcmc.dynamics.splitting import Splitting, named
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.rows.schemes import Reshuffled, WithoutReplacement
from numpyro_sgmcmc.schedules import as_schedule
from numpyro_sgmcmc.types import Checked, Dynamics, GradientEstimator, RowScheme, Schedule, Thermostatted


def chain_of_parts(
    dynamics: Dynamics,
    integrator: Any,
    gradient: GradientEstimator | None,
    rows: RowScheme | None,
    step_size: float | Schedule | None,
    init_strategy: Any,
    keeps_values: bool,
) -> Chain:
    """
    The chain of the arguments of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param bool keeps_values: whether local values of each row are kept from visit to visit.
    :raises ValueError: for parts that do not work together.
    :raises TypeError: for a class or a name where a part is needed.
    """
    if isinstance(integrator, Splitting) or not hasattr(integrator, "step"):
        integrator = named(integrator, dynamics)
    integrator.check(dynamics)
    schedule = as_schedule(1.0 if step_size is None else step_size)
    if getattr(schedule, "relative", False):
        step_size = None
    if getattr(schedule, "exploration", 0):
        check_can_be_quiet(dynamics, integrator)
    if gradient is None:
        gradient = Minibatch() if step_size is not None else ControlVariate()
    if rows is None:
        rows = WithoutReplacement() if integrator.needs_variance else Reshuffled()
    checked_part("gradient", gradient, "evaluate", "Minibatch()")
    checked_part("rows", rows, "__call__", "Reshuffled()")
    estimator, scheme = gradient.with_rows(rows)
    if integrator.needs_variance:
        check_independent(scheme, integrator)
    check_center(estimator, step_size)
    check_mass_has_step(getattr(dynamics, "inverse_mass_matrix", 1.0), step_size)
    if step_size is None and isinstance(dynamics, Checked):
        raise ValueError(
            f"step_size= is missing: the warm-up cannot choose one for {type(dynamics).__name__}, because it would "
            "change the coordinates. Give a step_size."
        )
    if keeps_values:
        check_previous(estimator, integrator, step_size)
    strategy = checked_init_strategy(init_strategy)
    return Chain(dynamics, integrator, estimator, scheme, schedule, strategy, tuned=step_size is None)


def checked_part(name: str, part: Any, verb: str, example: str) -> Any:
    """``part``, if it is an instance and not a class or a name."""
    if isinstance(part, type) or not hasattr(part, verb):
        raise TypeError(f"{name}={part!r} must be an instance with `{verb}`, for example {name}={example}.")
    return part


def check_center(gradient: Any, step_size: Any) -> None:
    """
    :raises ValueError: for an estimator without a centre, in a kernel whose warm-up does not choose one.
    """
    if step_size is not None and getattr(gradient, "shared", False):
        raise ValueError(
            f"{type(gradient).__name__}() has no center. The warm-up chooses one only if it also chooses the step "
            "size. Leave step_size= out, or give center=find_mode(model, key, ...)."
        )


def check_mass_has_step(inverse_mass: Any, step_size: Any) -> None:
    """
    :raises ValueError: for masses without a step size; the warm-up chooses both or neither.
    """
    if step_size is None and (isinstance(inverse_mass, Mapping) or inverse_mass != 1.0):
        raise ValueError(
            "inverse_mass_matrix= is given without step_size=, but the warm-up chooses both together. Leave both out, "
            "or give both."
        )


def check_independent(rows: RowScheme, integrator: Any) -> None:
    """
    :raises ValueError: for batches that depend on each other, with a word that assumes white gradient noise.
    """
    if not getattr(rows, "independent", False):
        raise ValueError(
            f"rows={getattr(rows, 'scheme', rows)!r} gives batches whose errors partly cancel, but {integrator!r} "
            "subtracts the variance of independent batches from its own noise, so the draws would be too narrow. Leave "
            "rows= out, or use rows=WithoutReplacement()."
        )


def check_can_be_quiet(dynamics: Dynamics, integrator: Any) -> None:
    """
    :raises ValueError: for noise that cannot be left out, or a thermostat that would compensate for its absence.
    """
    flows = [integrator.flows[letter] for letter in getattr(integrator, "word", "")]
    if not flows or any(flow.needs_key for flow in flows) or isinstance(dynamics, Thermostatted):
        raise ValueError(
            f"step_size=Cyclical(exploration=...) leaves out the normal noise of SGLD and SGHMC, but {integrator!r} of "
            f"{type(dynamics).__name__} has other noise, or a thermostat that compensates for its absence. Use "
            "exploration=0, or SGLD or SGHMC."
        )


def checked_init_strategy(init_strategy: Any) -> Any:
    """None or a function, as for NUTS."""
    if init_strategy is not None and not callable(init_strategy):
        raise TypeError(
            f"init_strategy={init_strategy!r} must be a function, for example numpyro.infer.init_to_median."
        )
    return init_strategy


def check_previous(gradient: GradientEstimator, integrator: Any, step_size: Any) -> None:
    """
    :raises ValueError: for a kernel that cannot keep local values from visit to visit.
    """
    what = 'local= has start="previous", which keeps the local values of each row,'
    if step_size is None:
        raise ValueError(
            f"{what} but step_size= is missing, and the search of the warm-up cannot keep them. Give a step_size, or "
            "use start=None or a function."
        )
    if integrator.needs_variance:
        raise ValueError(
            f"{what} but {integrator!r} assumes that the gradient noise is white, while the noise of kept values "
            "persists from visit to visit. Use start=None or a function."
        )
    if not hasattr(gradient, "keeps_local_values"):
        raise ValueError(f"{what} but gradient={gradient!r} cannot store them. Use gradient=Minibatch().")
