"""Checks of a user's arguments: each error names the argument and a remedy."""

from collections.abc import Mapping
import math
import numbers
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Plate


def checked_model(model: Any) -> Any:
    """Raises a TypeError if it is not callable."""
    if not callable(model):
        raise TypeError(f"model= must be a NumPyro model (a callable), not {type(model).__name__}.")
    return model


def is_key(value: Any) -> bool:
    """Whether ``value`` is a single random key, typed or raw."""
    if not hasattr(value, "dtype"):
        return False
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.shape == ()
    return value.dtype == jnp.uint32 and value.shape in ((2,), (4,))


def check_keys(value: Any) -> None:
    """Raises a TypeError if it is neither a random key nor one for each chain."""
    if not (is_key(value) or (value.ndim and is_key(value[0]))):
        raise TypeError(
            "the first argument of mcmc.run is the random key, mcmc.run(jax.random.key(0), ...), not an array of "
            f"shape {value.shape} and dtype {value.dtype}."
        )


def check_key(value: Any, call: str) -> None:
    """Raises a TypeError if it is not a single random key; ``call`` is a correct call with one."""
    if not is_key(value):
        raise TypeError(f"the second argument is the random key: {call}.")


def checked_batch_size(batch_size: Any) -> int | dict[str, int] | None:
    """A batch size as far as it can be checked without the model: an int of at least 1, a dict of these, or None."""
    if batch_size is None:
        return None
    if isinstance(batch_size, Mapping):
        return {name: _count(f"batch_size[{name!r}]", n, "") for name, n in batch_size.items()}
    return _count("batch_size", batch_size, ", a dict {plate: rows}, or None")


def _count(what: str, n: Any, otherwise: str) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"{what}={n!r} must be an integer number of rows{otherwise}.")
    if n < 1:
        raise ValueError(f"{what}={n}: a minibatch needs at least one row; batch_size={{}} uses all of the data.")
    return int(n)


def checked_rate(name: str, value: float) -> float:
    """A friction or diffusion: finite and not negative; 0 is allowed."""
    try:
        rate = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"{name}={value!r}: the {name} must be a finite number, 0 or larger.")
    return rate


def check_positive(owner: object, **values: Any) -> None:
    """Raises a ValueError for an argument of ``owner`` that is not a positive, finite number."""
    for name, value in values.items():
        if not (isinstance(value, numbers.Real) and 0 < float(value) < math.inf):
            raise ValueError(f"{type(owner).__name__}({name}={value!r}): {name} must be a positive, finite number.")


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """An integer, not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} must be an integer.")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}.")
    return int(value)


def checked_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """One of some values."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}.")
    return value


def checked_inverse_mass(value: Any) -> Any:
    """``inverse_mass_matrix`` as a float or a dict of NumPy arrays (None: 1.0), all positive and finite."""
    checked = 1.0 if value is None else value
    if isinstance(checked, Mapping):
        return {site: _positive(f"inverse_mass_matrix[{site!r}]", entry) for site, entry in checked.items()}
    _positive("inverse_mass_matrix", checked)
    if np.ndim(checked):
        raise ValueError("inverse_mass_matrix must be None, a scalar, or a dict of diagonals like z.")
    return float(checked)


def checked_metric(metric: Any) -> Any:
    """A function of the position, or an object whose ``bind`` makes one. Raises a TypeError for anything else."""
    if isinstance(metric, type) or not (callable(metric) or hasattr(metric, "bind")):
        raise TypeError(
            f"metric={metric!r} must be a function of z, the unconstrained values by site. For a constant metric use "
            "SGLD(model, inverse_mass_matrix=...), for the Fisher information of the model metric=Fisher()."
        )
    return metric


def checked_rates(what: str, rates: Any) -> dict[str, np.ndarray]:
    """A dict of numbers by site. Raises a ValueError if it is not a dict of positive, finite numbers."""
    if rates is None:
        return {}
    if not isinstance(rates, Mapping):
        raise ValueError(f"{what}={rates!r} must be a dict of positive numbers by site.")
    return {site: _positive(f"{what}[{site!r}]", rate) for site, rate in rates.items()}


def _positive(what: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{what} must contain positive, finite numbers, got {value!r}.")
    return array.astype(float)


def check_like_z(
    what: str, given: Any, prototype: Mapping[str, jax.ShapeDtypeStruct], *, scalars: bool = False
) -> None:
    """Raises a ValueError for anything but a finite value of the right shape, or a scalar, for each latent site."""
    check_sites(what, given, prototype, scalars=scalars)
    for name in prototype:
        if name not in given:
            raise ValueError(f"{what} has no entry for the latent site {name!r}; it needs one for each latent site.")
        if not np.isfinite(np.asarray(given[name], float)).all():
            raise ValueError(f"{what}[{name!r}] must contain finite numbers.")


def check_sites(
    what: str,
    given: Any,
    prototype: Mapping[str, jax.ShapeDtypeStruct],
    *,
    batched: bool = False,
    scalars: bool = False,
) -> None:
    """Raises a ValueError for anything but values of the right shapes by latent site."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a dict of unconstrained values by site, got {type(given)}.")
    unknown = sorted(set(given) - set(prototype))
    if unknown:
        raise ValueError(
            f"{what} names {', '.join(map(repr, unknown))}, but the latent sites of the model are "
            f"{', '.join(map(repr, prototype))}."
        )
    for name, value in given.items():
        shape = np.shape(value)[1:] if batched else np.shape(value)
        if shape != prototype[name].shape and not (scalars and shape == ()):
            raise ValueError(
                f"{what}[{name!r}] has shape {shape}{' for each chain' if batched else ''}, but the unconstrained "
                f"site has {prototype[name].shape}."
            )


def check_minibatched(estimator: str, plates: Mapping[str, Plate]) -> None:
    """Raises a ValueError if there is no minibatch noise to reduce."""
    if not plates:
        raise ValueError(
            f"gradient={estimator}(...) reduces the noise of minibatches, but no plate is minibatched. "
            "Give the kernel a batch_size, or leave gradient= out."
        )


def check_energies(energies: Mapping[str, jax.Array], gradient: Mapping[str, jax.Array] = MappingProxyType({})) -> None:
    """Raises a ValueError if energies or the gradient are not finite at the start; the message names the sites."""
    if wrong := _not_finite(energies):
        raise ValueError(
            f"the energy at the start is not finite at site {wrong}. Check for values that are missing or outside the "
            "support of that site's distribution; otherwise choose another start with init_params or init_strategy."
        )
    if wrong := _not_finite(gradient):
        raise ValueError(
            f"the gradient with respect to site {wrong} is not finite at the start, although the energy is, so every "
            "step would be refused. Often a branch of jnp.where that is not taken has no finite derivative: give it an "
            "argument that has one, jnp.where(ok, f(jnp.where(ok, x, 1)), 0); so has a density that JAX cannot "
            "differentiate there. Otherwise choose another start with init_params or init_strategy."
        )


def _not_finite(values: Mapping[str, jax.Array]) -> str:
    """The names of those that have an element that is not finite."""
    return ", ".join(repr(name) for name, x in values.items() if not np.isfinite(np.asarray(x)).all())
