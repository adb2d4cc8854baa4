"""
What a kernel refuses: parts that do not go together, a start or a state that does not fit the model. Each error names
the argument and the way out. What it only warns of stands at the end.
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

MOST_COORDINATES = 100_000  # that the warm-up finds a step size for: its moments take some 100 numbers for each


def checked_part(name: str, part: Any, verb: str, example: str) -> Any:
    """An instance, not its class or its name."""
    if isinstance(part, type) or not hasattr(part, verb):
        raise TypeError(f"{name}={part!r} is not an instance that offers `{verb}`; write {name}={example} for one.")
    return part


def check_center(gradient: Any, step_size: Any) -> None:
    """
    :raises ValueError: an estimator that waits for a centre, in a kernel whose warm-up does not look for one.
    """
    if step_size is not None and getattr(gradient, "shared", False):
        raise ValueError(
            f"{type(gradient).__name__}() without a center leaves it to the warm-up, which looks for one where "
            "step_size= is left out as well. Leave it out, or give center=find_mode(model, key, ...)."
        )


def check_mass_has_step(inverse_mass: Any, step_size: Any) -> None:
    """
    :raises ValueError: masses without a step size; the warm-up finds both or none.
    """
    if step_size is None and (isinstance(inverse_mass, Mapping) or inverse_mass != 1.0):
        raise ValueError(
            "inverse_mass_matrix= is given and step_size= is not: the warm-up finds both. Leave both out, or give both."
        )


def check_independent(rows: RowScheme, integrator: Any) -> None:
    """
    :raises ValueError: batches that depend on each other, under a word that takes the noise of the gradient for white.
    """
    if not getattr(rows, "independent", False):
        raise ValueError(
            f"rows={getattr(rows, 'scheme', rows)!r} hands out batches whose errors cancel in part, but "
            f"{integrator!r} takes out of its own noise what independent batches would add, so the draws would come "
            "out too narrow. Leave out rows=, or use rows=WithoutReplacement()."
        )


def check_can_be_quiet(dynamics: Dynamics, integrator: Any) -> None:
    """
    :raises ValueError: noise that cannot be left out, or a thermostat that would make up for it.
    """
    flows = [integrator.flows[letter] for letter in getattr(integrator, "word", "")]
    if not flows or any(flow.needs_key for flow in flows) or isinstance(dynamics, Thermostatted):
        raise ValueError(
            f"step_size=Cyclical(exploration=...) leaves out the normal noise of SGLD and SGHMC; {integrator!r} of "
            f"{type(dynamics).__name__} has other noise, or a thermostat that makes up for it. Use exploration=0, or "
            "SGLD or SGHMC."
        )


def checked_init_strategy(init_strategy: Any) -> Any:
    """None or a function, as for NUTS."""
    if init_strategy is not None and not callable(init_strategy):
        raise TypeError(
            f"init_strategy={init_strategy!r} is not a function; import one, numpyro.infer.init_to_median for example."
        )
    return init_strategy


def checked_found(dense_mass: Any, settings: Any, step_size: Any) -> tuple[Any, Any]:
    """
    ``dense_mass``, and coordinates and curvature of ``settings`` or None.

    :raises ValueError: either of them beside a step size; what is neither a bool nor tuples of names.
    :raises TypeError: settings that are none.
    """
    if step_size is not None and (dense_mass is not True or settings is not None):
        name = "settings" if settings is not None else "dense_mass"
        raise ValueError(f"{name}= is for a warm-up that finds the step size: leave step_size= out.")
    if not isinstance(dense_mass, bool):
        tuples = isinstance(dense_mass, (list, tuple)) and all(isinstance(block, (tuple, list)) for block in dense_mass)
        if not tuples or not all(isinstance(name, str) for block in dense_mass for name in block):
            raise ValueError(
                f"dense_mass={dense_mass!r} is neither True, False nor a list of tuples of sites, [('a', 'b')] for "
                "example."
            )
        dense_mass = tuple(map(tuple, dense_mass))
    if settings is None:
        return dense_mass, None
    if not isinstance(settings, Mapping) or not {"coordinates", "curvature"} <= set(settings):
        raise TypeError("settings= is what numpyro_sgmcmc.settings(mcmc) returns for another run.")
    known = settings["coordinates"], settings["curvature"]
    if np.ndim(known[1]) == 1:  # chains that have each found their own
        known = jax.tree.map(lambda part: part[0], known)
    return dense_mass, known


def check_not_mapped(rng_key: Any) -> None:
    """
    :raises ValueError: chains mapped by ``jax.vmap``, which would run the search in every transition of every chain.
    """
    if is_mapped(rng_key):
        raise ValueError(
            "step_size= is missing, and jax.vmap over chains would search for it anew in every transition. Use "
            'chain_method="vectorized", "sequential" or "parallel", or give step_size=.'
        )


def check_found_fits(known: Any, prototype: Mapping[str, Any]) -> None:
    """
    :raises ValueError: settings of another model, too many coordinates.
    """
    d = sum(site.size for site in prototype.values())
    if known is not None and known[0].center.size != d:
        raise ValueError(
            f"settings= are those of a model with {known[0].center.size} unconstrained coordinates; this one has {d}."
        )
    if d > MOST_COORDINATES:
        raise ValueError(
            f"the model has {d} unconstrained coordinates, and the warm-up finds a step size only for up to "
            f"{MOST_COORDINATES}. Give step_size=."
        )


def check_inverse_mass_fits(inverse_mass: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """
    :raises ValueError: a dict that is not like ``z``.
    """
    if not isinstance(inverse_mass, Mapping):
        return
    check_like_z("inverse_mass_matrix", inverse_mass, prototype, scalars=True)


def check_init_params(init_params: Any, prototype: Mapping[str, jax.ShapeDtypeStruct], batched: bool) -> None:
    """
    :raises ValueError: not a dict of unconstrained values of latent sites, with an axis of chains where ``batched``.
    """
    if init_params is None:
        return
    if isinstance(init_params, Mapping):
        for name, value in init_params.items():
            shape = np.shape(value)[1:] if batched else np.shape(value)
            # of several chains NumPyro gives each its part of the first axis, which here is one of the site
            if name in prototype and prototype[name].shape and shape == prototype[name].shape[1:]:
                raise ValueError(
                    f"init_params[{name!r}] has shape {shape} for a chain, and the unconstrained site has "
                    f"{prototype[name].shape}. With several chains NumPyro takes a value for each of them: "
                    "init_params=jax.tree.map(lambda x: jnp.stack([x] * num_chains), values)."
                )
    check_sites("init_params", init_params, prototype, batched=batched)


def check_previous(gradient: GradientEstimator, integrator: Any, step_size: Any) -> None:
    """
    :raises ValueError: local values that are kept from visit to visit, and a kernel that cannot have them.
    """
    what = 'local= has start="previous", which keeps the local values of each row,'
    if step_size is None:
        raise ValueError(
            f"{what} and step_size= is missing: the search of the warm-up begins anew for each minibatch. Give a "
            "step_size, or use start=None or a function."
        )
    if integrator.needs_variance:
        raise ValueError(
            f"{what} and {integrator!r} takes the noise of the gradient for white, while that of kept values lasts "
            "from visit to visit. Use start=None or a function."
        )
    if not hasattr(gradient, "keeps_local_values"):
        raise ValueError(f"{what} and gradient={gradient!r} has no place for them. Use gradient=Minibatch().")


def check_resumed(z: Mapping[str, Any], prototype: Mapping[str, jax.ShapeDtypeStruct], batched: bool) -> None:
    """
    :raises ValueError: a state of another model.
    """
    found = {name: jnp.shape(value)[1:] if batched else jnp.shape(value) for name, value in z.items()}
    expected = {name: site.shape for name, site in prototype.items()}
    if found != expected:
        raise ValueError(
            f"the state holds sites of the unconstrained shapes {found}, the model has {expected}. Resume with the "
            "model, the data and the number of chains that the state comes from."
        )


def warn_of_sites(structure: Structure) -> None:
    """Of sites that are frozen, or left out of the draws."""
    for name in structure.frozen[:1]:
        warnings.warn(
            f"param site {name!r} is frozen at its initial value: SG-MCMC moves latent sample "
            "sites only. Give it a prior with numpyro.sample to infer it.",
            stacklevel=stack_level(),
        )
    if structure.left_out:
        names = ", ".join(map(repr, structure.left_out))
        warnings.warn(
            f"deterministic site {names} depends on the rows of a minibatched plate but stands outside it. It is "
            "not collected, as its value would be that of one minibatch. For its values on all rows use "
            "Predictive(kernel.model, mcmc.get_samples())(rng_key, *args).",
            stacklevel=stack_level(),
        )


def warn_of_scattered_rows(potential: ModelPotential, rows: RowScheme) -> None:
    """Of rows on disk that are read one by one."""
    if potential.sources and not getattr(rows, "contiguous", False):
        warnings.warn(
            f"{potential.sources[0]!r} is on disk, and rows={rows!r} reads its rows one by one, which is several times "
            "slower than in blocks. Put the rows into random order once and use rows=Reshuffled(contiguous=True).",
            stacklevel=stack_level(),
        )
