"""
Checks of a kernel's arguments: parts that do not work together, a start or a state that does not fit the model. Each
error names the argument and a remedy. The checks at the end only warn.
"""

from collections.abc import Mapping
from typing import Any
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.types import Dynamics, GradientEstimator, RowScheme, Thermostatted
from numpyro_sgmcmc.utils.compat import is_mapped, stack_level
from numpyro_sgmcmc.utils.validation import check_like_z, check_sites

MOST_COORDINATES = 100_000  # the limit for choosing a step size: the moments of the warm-up take about 100 numbers each


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


def checked_found(dense_mass: Any, settings: Any, step_size: Any) -> tuple[Any, Any]:
    """
    ``dense_mass``, and coordinates and curvature of ``settings`` or None.

    :raises ValueError: if either is given with a step size; if ``dense_mass`` is neither a bool nor tuples of names.
    :raises TypeError: if ``settings`` is not a result of :func:`~numpyro_sgmcmc.settings`.
    """
    if step_size is not None and (dense_mass is not True or settings is not None):
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
    known = settings["coordinates"], settings["curvature"]
    if np.ndim(known[1]) == 1:  # each chain has found its own
        known = jax.tree.map(lambda part: part[0], known)
    return dense_mass, known


def check_not_mapped(rng_key: Any) -> None:
    """
    :raises ValueError: for chains mapped by ``jax.vmap``, which would repeat the search in every transition.
    """
    if is_mapped(rng_key):
        raise ValueError(
            "step_size= is missing, and with jax.vmap over chains the search for it would be repeated in every "
            'transition. Use chain_method="vectorized", "sequential" or "parallel", or give step_size=.'
        )


def check_found_fits(known: Any, prototype: Mapping[str, Any]) -> None:
    """
    :raises ValueError: for settings of another model, or too many coordinates.
    """
    d = sum(site.size for site in prototype.values())
    if known is not None and known[0].center.size != d:
        raise ValueError(
            f"settings= belong to a model with {known[0].center.size} unconstrained coordinates; this one has {d}. Use "
            "settings of the same model, or leave settings= out."
        )
    if d > MOST_COORDINATES:
        raise ValueError(
            f"the model has {d} unconstrained coordinates, but the warm-up can choose a step size only for up to "
            f"{MOST_COORDINATES}. Give step_size=."
        )


def check_inverse_mass_fits(inverse_mass: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """
    :raises ValueError: for a dict that is not like ``z``.
    """
    if not isinstance(inverse_mass, Mapping):
        return
    check_like_z("inverse_mass_matrix", inverse_mass, prototype, scalars=True)


def check_init_params(init_params: Any, prototype: Mapping[str, jax.ShapeDtypeStruct], batched: bool) -> None:
    """
    :raises ValueError: if it is not a dict of unconstrained values of latent sites, with an axis of chains if
        ``batched``.
    """
    if init_params is None:
        return
    if isinstance(init_params, Mapping):
        for name, value in init_params.items():
            shape = np.shape(value)[1:] if batched else np.shape(value)
            # NumPyro splits the first axis between several chains; here that axis is one of the site
            if name in prototype and prototype[name].shape and shape == prototype[name].shape[1:]:
                raise ValueError(
                    f"init_params[{name!r}] has shape {shape} for each chain, but the unconstrained site has "
                    f"{prototype[name].shape}. With several chains NumPyro needs a value for each of them: "
                    "init_params=jax.tree.map(lambda x: jnp.stack([x] * num_chains), values)."
                )
    check_sites("init_params", init_params, prototype, batched=batched)


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


def check_resumed(z: Mapping[str, Any], prototype: Mapping[str, jax.ShapeDtypeStruct], batched: bool) -> None:
    """
    :raises ValueError: for a state of another model.
    """
    found = {name: jnp.shape(value)[1:] if batched else jnp.shape(value) for name, value in z.items()}
    expected = {name: site.shape for name, site in prototype.items()}
    if found != expected:
        raise ValueError(
            f"the state has sites with the unconstrained shapes {found}, but the model has {expected}. Resume with the "
            "model, the data and the number of chains of the run that the state comes from."
        )


def warn_of_sites(structure: Structure) -> None:
    """Warns of sites that are frozen, or left out of the draws."""
    for name in structure.frozen[:1]:
        warnings.warn(
            f"param site {name!r} is frozen at its initial value: SG-MCMC updates latent sample "
            "sites only. Give it a prior with numpyro.sample to infer it.",
            stacklevel=stack_level(),
        )
    if structure.left_out:
        names = ", ".join(map(repr, structure.left_out))
        warnings.warn(
            f"deterministic site {names} depends on the rows of a minibatched plate but is outside it. It is "
            "not collected, as its value would be that of one minibatch. For its values on all rows use "
            "Predictive(kernel.model, mcmc.get_samples())(rng_key, *args).",
            stacklevel=stack_level(),
        )


def warn_of_scattered_rows(potential: ModelPotential, rows: RowScheme) -> None:
    """Warns of rows on disk that are read one by one."""
    if potential.sources and not getattr(rows, "contiguous", False):
        warnings.warn(
            f"{potential.sources[0]!r} is on disk, and rows={rows!r} reads its rows one by one, which is several times "
            "slower than in blocks. Put the rows into random order once and use rows=Reshuffled(contiguous=True).",
            stacklevel=stack_level(),
        )
