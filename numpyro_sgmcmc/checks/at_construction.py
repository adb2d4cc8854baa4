"""Checks of the options of a kernel when it is made. Each error names the argument and a remedy."""

from collections.abc import Iterable, Mapping
import difflib
from inspect import signature
from typing import Any

from numpyro_sgmcmc.rows.schemes import is_undecided
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import Checked, Dynamics, GradientEstimator, RowScheme, Thermostatted

PREVIOUS = 'local= has start="previous", which keeps the local values of each row,'


def check_options(kernel: type, unknown: Iterable[str], step_size: Any, missing: str) -> None:
    """Raises an error for an unknown argument, with the nearest names, and for a ``missing`` step size."""
    for name in unknown:
        known = [each for each in signature(kernel).parameters if each not in ("model", "unknown")]
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        advice = f"Did you mean {nearest[0]}=?" if nearest else f"It has {', '.join(known)}."
        raise TypeError(f"{kernel.__name__} has no option {name}=. {advice}")
    if missing and (step_size is None or getattr(step_size, "relative", False)):
        raise ValueError(f"step_size= is missing{missing}")


def checked_settings(dense_mass: Any, settings: Any, tuned: bool) -> tuple[Any, Settings | None]:
    """``dense_mass`` and ``settings``. Raises an error for others, or if either is given with a step size."""
    if not tuned and (dense_mass is not True or settings is not None):
        name = "settings" if settings is not None else "dense_mass"
        raise ValueError(f"{name}= is used only if the warm-up chooses the step size. Leave {name}= or step_size= out.")
    if not isinstance(dense_mass, bool):
        tuples = isinstance(dense_mass, (list, tuple)) and all(isinstance(block, (tuple, list)) for block in dense_mass)
        if not tuples or not all(isinstance(name, str) for block in dense_mass for name in block):
            raise ValueError(
                f"dense_mass={dense_mass!r} must be True, False or a list of tuples of sites, for example [('a', 'b')]."
            )
        dense_mass = tuple(map(tuple, dense_mass))
    if settings is None:
        return dense_mass, None
    if not isinstance(settings, Mapping) or not {"coordinates", "curvature"} <= set(settings):
        raise TypeError("settings= must be the result of numpyro_sgmcmc.settings(mcmc) for another run.")
    return dense_mass, Settings.known(settings)


def checked_part(name: str, part: Any, verb: str, example: str) -> Any:
    """``part``, if it is an instance and not a class or a name."""
    if isinstance(part, type) or not hasattr(part, verb):
        raise TypeError(f"{name}={part!r} must be an instance with `{verb}`, for example {name}={example}.")
    return part


def check_can_be_chosen(dynamics: Dynamics, keeps_values: bool) -> None:
    """Raises a ValueError for parts with which the warm-up cannot choose a step size."""
    inverse_mass = getattr(dynamics, "inverse_mass_matrix", 1.0)
    if isinstance(inverse_mass, Mapping) or inverse_mass != 1.0:
        raise ValueError(
            "inverse_mass_matrix= is given without step_size=, but the warm-up chooses both together. Leave both out, "
            "or give both."
        )
    if isinstance(dynamics, Checked):
        raise ValueError(
            f"step_size= is missing: the warm-up cannot choose one for {type(dynamics).__name__}, because it would "
            "change the coordinates. Give a step_size."
        )
    if keeps_values:
        raise ValueError(
            f"{PREVIOUS} but step_size= is missing, and the search of the warm-up cannot keep them. Give a step_size, "
            "or use start=None or a function."
        )


def check_center(gradient: Any, tuned: bool) -> None:
    """Raises a ValueError for an estimator without a centre, in a kernel whose warm-up does not choose one."""
    if not tuned and getattr(gradient, "shared", False):
        raise ValueError(
            f"{type(gradient).__name__}() has no center. The warm-up chooses one only if it also chooses the step "
            "size. Leave step_size= out, or give center=find_mode(model, key, ...)."
        )


def check_independent(rows: RowScheme, integrator: Any) -> None:
    """Raises a ValueError for batches that depend on each other, with a word that assumes white gradient noise."""
    if not getattr(rows, "independent", False):
        raise ValueError(
            f"rows={getattr(rows, 'scheme', rows)!r} gives batches whose errors partly cancel, but {integrator!r} "
            "subtracts the variance of independent batches from its own noise, so the draws would be too narrow. Leave "
            "rows= out, or use rows=WithoutReplacement()."
        )


def check_undecided(rows: RowScheme, chosen: bool) -> None:
    """Raises a ValueError for a scheme that leaves a choice to a warm-up that makes none."""
    if is_undecided(rows) and not chosen:
        raise ValueError(
            f"rows={rows!r} leaves a choice to the warm-up, which makes it only if it also chooses the step size. "
            "Leave step_size= out, or use contiguous=True or False."
        )


def check_can_be_quiet(dynamics: Dynamics, integrator: Any) -> None:
    """Raises a ValueError for noise that cannot be left out, or a thermostat that would compensate for its absence."""
    flows = [integrator.flows[letter] for letter in getattr(integrator, "word", "")]
    if not flows or any(flow.needs_key for flow in flows) or isinstance(dynamics, Thermostatted):
        raise ValueError(
            f"step_size=Cyclical(exploration=...) leaves out the normal noise of SGLD and SGHMC, but {integrator!r} of "
            f"{type(dynamics).__name__} has other noise, or a thermostat, which would replace the missing noise. Use "
            "exploration=0, or SGLD or SGHMC."
        )


def checked_init_strategy(init_strategy: Any) -> Any:
    """None or a function, as for NUTS."""
    if init_strategy is not None and not callable(init_strategy):
        raise TypeError(
            f"init_strategy={init_strategy!r} must be a function, for example numpyro.infer.init_to_median."
        )
    return init_strategy


def check_previous(gradient: GradientEstimator, integrator: Any) -> None:
    """Raises a ValueError for a kernel that cannot keep local values from visit to visit."""
    if integrator.needs_variance:
        raise ValueError(
            f"{PREVIOUS} but {integrator!r} assumes that the gradient noise of different steps is independent, while "
            "kept values change little from visit to visit. Use start=None or a function."
        )
    if not hasattr(gradient, "keeps_local_values"):
        raise ValueError(f"{PREVIOUS} but gradient={gradient!r} cannot store them. Use gradient=Minibatch().")
