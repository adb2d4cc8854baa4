"""Checks the numbers that a user hands in: each error names the argument and the way out."""

from collections.abc import Mapping
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Dynamics, Plate, RowScheme, Thermostatted
from numpyro_sgmcmc.utils.compat import is_mapped


def checked_model(model: Any) -> Any:
    """
    :raises TypeError: not a callable.
    """
    if not callable(model):
        raise TypeError(f"model={model!r} is not a NumPyro model (a callable).")
    return model


def is_key(value: Any) -> bool:
    """Whether it is a single random key, typed or raw."""
    if not hasattr(value, "dtype"):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.shape == ()
    return value.dtype == jnp.uint32 and value.shape in ((2,), (4,))


def checked_batch_size(batch_size: Any) -> int | dict[str, int] | None:
    """
    What can be said of ``batch_size`` before a model is seen.

    :raises TypeError: not an int, a dict of ints, or None.
    :raises ValueError: smaller than 1.
    """
    if batch_size is None:
        return None
    if isinstance(batch_size, Mapping):
        return {name: _count(f"batch_size[{name!r}]", n, "") for name, n in batch_size.items()}
    return _count("batch_size", batch_size, ", a dict {plate: rows}, or None")


def _count(what: str, n: Any, otherwise: str) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"{what}={n!r}: give a whole number of rows{otherwise}.")
    if n < 1:
        raise ValueError(f"{what}={n}: a minibatch needs at least one row; batch_size=None uses all of the data.")
    return int(n)


def checked_rate(name: str, value: float) -> float:
    """A friction or diffusion: finite and not negative; 0 is legal."""
    try:
        rate = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"{name}={value!r}: the {name} must be a finite number, 0 or larger.")
    return rate


def checked_count(name: str, value: Any) -> int:
    """A whole number of steps, at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} must be a whole number.")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1.")
    return int(value)


def checked_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of some words."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}.")
    return value


def checked_share(name: str, value: Any) -> float:
    """A share of a whole."""
    if not (isinstance(value, (int, float)) and 0 < value <= 1):
        raise ValueError(f"{name}={value!r} must be a share, above 0 and at most 1.")
    return value


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


MOST_COORDINATES = 4000  # that the warm-up finds a matrix L for: its eigenvectors, often needed, take half a minute


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
            f"{MOST_COORDINATES}: it needs a matrix of {d} x {d} numbers. Give step_size=."
        )


def checked_init_strategy(init_strategy: Any) -> Any:
    """None or a function, as for NUTS."""
    if init_strategy is not None and not callable(init_strategy):
        raise TypeError(
            f"init_strategy={init_strategy!r} is not a function; import one, numpyro.infer.init_to_median for example."
        )
    return init_strategy


def checked_inverse_mass(value: Any) -> Any:
    """
    ``inverse_mass_matrix`` as a float or a dict of NumPy arrays (None: 1.0).

    :raises ValueError: an entry that is not positive and finite, or an array without a site.
    """
    checked = 1.0 if value is None else value
    entries = checked if isinstance(checked, Mapping) else {None: checked}
    for site, entry in entries.items():
        array = np.asarray(entry)
        if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
            where = "inverse_mass_matrix" + ("" if site is None else f"[{site!r}]")
            raise ValueError(f"{where} must hold positive, finite numbers, got {entry!r}.")
    if isinstance(checked, Mapping):
        return {site: np.asarray(entry, float) for site, entry in checked.items()}
    if np.ndim(checked):
        raise ValueError("inverse_mass_matrix must be None, a scalar, or a dict of diagonals like z.")
    return float(checked)


def checked_metric(metric: Any) -> Any:
    """
    A function of the position, or an object that makes one of a potential.

    :raises TypeError: neither.
    """
    if isinstance(metric, type) or not (callable(metric) or hasattr(metric, "bind")):
        raise TypeError(
            f"metric={metric!r} is not a function of z, the unconstrained values by site. For a constant use "
            "SGLD(model, inverse_mass_matrix=...), for one of the model metric=Fisher()."
        )
    return metric


def checked_rates(what: str, rates: Any) -> dict[str, np.ndarray]:
    """
    A dict of numbers by site.

    :raises ValueError: not a dict of positive, finite numbers.
    """
    if rates is None:
        return {}
    if not isinstance(rates, Mapping):
        raise ValueError(f"{what}={rates!r} must be a dict of positive numbers by site.")
    for site, rate in rates.items():
        array = np.asarray(rate)
        if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{what}[{site!r}] must hold positive, finite numbers, got {rate!r}.")
    return {site: np.asarray(rate, float) for site, rate in rates.items()}


def check_rates_fit(what: str, rates: Mapping[str, Any], prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """
    :raises ValueError: the name of no site, or a value of the wrong shape.
    """
    _check_sites(what, rates, prototype, scalars=True)


def check_inverse_mass_fits(inverse_mass: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """
    :raises ValueError: a dict that is not like ``z``.
    """
    if not isinstance(inverse_mass, Mapping):
        return
    check_like_z("inverse_mass_matrix", inverse_mass, prototype, scalars=True)


def check_like_z(
    what: str, given: Any, prototype: Mapping[str, jax.ShapeDtypeStruct], *, scalars: bool = False
) -> None:
    """
    :raises ValueError: not a dict with a finite value of the right shape (or a scalar) for each latent site.
    """
    _check_sites(what, given, prototype, scalars=scalars)
    for name in prototype:
        if name not in given:
            raise ValueError(f"{what} has no entry for the latent site {name!r}.")
        if not np.isfinite(np.asarray(given[name], float)).all():
            raise ValueError(f"{what}[{name!r}] holds a number that is not finite.")


def check_init_params(init_params: Any, prototype: Mapping[str, jax.ShapeDtypeStruct], batched: bool) -> None:
    """
    :raises ValueError: not a dict of unconstrained values of latent sites, with an axis of chains where ``batched``.
    """
    if init_params is not None:
        _check_sites("init_params", init_params, prototype, batched=batched)


def _check_sites(
    what: str,
    given: Any,
    prototype: Mapping[str, jax.ShapeDtypeStruct],
    *,
    batched: bool = False,
    scalars: bool = False,
) -> None:
    """
    :raises ValueError: not a dict of values by site, the name of no site, or a value of the wrong shape.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a dict of unconstrained values by site, got {type(given)}.")
    unknown = sorted(set(given) - set(prototype))
    if unknown:
        raise ValueError(
            f"{what} names {', '.join(map(repr, unknown))}; the latent sites of the model are "
            f"{', '.join(map(repr, prototype))}."
        )
    for name, value in given.items():
        shape = np.shape(value)[1:] if batched else np.shape(value)
        if shape != prototype[name].shape and not (scalars and shape == ()):
            raise ValueError(
                f"{what}[{name!r}] has shape {shape}{' for each chain' if batched else ''}; the unconstrained "
                f"site has {prototype[name].shape}."
            )


def check_minibatched(estimator: Any, plates: Mapping[str, Plate]) -> None:
    """
    :raises ValueError: there is no minibatch noise to reduce.
    """
    if not plates:
        raise ValueError(
            f"gradient={type(estimator).__name__}(...) reduces the noise of minibatches, but no plate is minibatched. "
            "Give the kernel a batch_size, or leave out gradient=."
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


def check_energies(energies: Mapping[str, jax.Array]) -> None:
    """
    :raises ValueError: names the sites whose energy at the start is not finite.
    """
    wrong = [name for name, energy in energies.items() if not bool(jnp.isfinite(energy).all())]
    if wrong:
        raise ValueError(
            f"the energy at the start is not finite at site {', '.join(map(repr, wrong))}. Look for data that are "
            "missing or outside the support of that site's distribution; otherwise start elsewhere by init_params or "
            "init_strategy."
        )
