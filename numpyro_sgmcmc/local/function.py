"""The conditional distribution of local sites, and a user's function that draws them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from numpyro_sgmcmc.local.replay import LocalError

PREVIOUS = "previous"


class Conditional(NamedTuple):
    """
    The conditional distribution of the local sites of a minibatch. Their values are unconstrained for samplers with
    ``on_real_line``, except those of discrete sites.
    """

    sites: Mapping[str, Distribution]  # local site -> its distribution given the global sites
    start: Mapping[str, jax.Array]  # initial values: draws from the prior, or the values of the previous visit
    density: Callable[[Mapping[str, jax.Array]], jax.Array]  # log density, by element of the sites' plates, + constant
    constrain: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]  # values -> values on the sites' supports
    unconstrain: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]  # the inverse
    given: tuple[tuple, Mapping[str, Any]]  # arguments of a user's function after the key and the local values


@dataclass(frozen=True)
class LocalFunction:
    """
    A user's function as ``local=``. A plain function can be given itself; this class is needed only for a function of
    the values of the previous visit to the rows.

    :param fn: ``fn(rng_key, local_sites, global_sites, rows, *model_args, **model_kwargs) -> local_sites`` on
        constrained values, like the function of :class:`numpyro.infer.CustomGibbs`. It must return draws from the
        conditional distribution of the local sites, or close to it. ``rows`` are the numbers of the minibatch's rows,
        by plate if there are several.
    :param start: the argument ``local_sites``. None: draws from the prior. ``"previous"``: the values that the function
        returned at the previous visit to the row, kept in a table over all rows; draws from the prior at the first
        visit.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro_sgmcmc import LocalFunction, SGHMC
        >>> def effects(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("rows", len(y)) as rows:
        ...         u = numpyro.sample("u", dist.Normal(mu, 1))
        ...         numpyro.sample("y", dist.Normal(u, 1), obs=y[rows])
        >>> def over_relaxed(rng_key, local_sites, global_sites, rows, y):
        ...     mean = (global_sites["mu"] + y[rows]) / 2
        ...     noise = random.normal(rng_key, mean.shape)
        ...     return {"u": mean - 0.8 * (local_sites["u"] - mean) + 0.6 * 0.5**0.5 * noise}
        >>> local = LocalFunction(over_relaxed, start="previous")
        >>> kernel = SGHMC(effects, local=local, step_size=1e-3, friction=10.0, batch_size=50)
    """

    fn: Callable
    start: str | None = None
    on_real_line: ClassVar[bool] = False

    def __post_init__(self):
        if not callable(self.fn):
            raise ValueError(f"LocalFunction(fn={self.fn!r}) must be a function.")
        if self.start not in (None, PREVIOUS):
            raise ValueError(f"LocalFunction(start={self.start!r}) must be None or {PREVIOUS!r}.")

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> dict[str, jax.Array]:
        """The values returned by the function."""
        args, kwargs = conditional.given
        start = conditional.constrain(conditional.start)
        try:
            values = self.fn(rng_key, start, *args, **kwargs)
        except (TypeError, LookupError, AttributeError, NameError) as error:  # those of JAX are TypeErrors
            raise LocalError(
                "the function given as local= fails. It is called as fn(rng_key, local_sites, global_sites, rows, "
                "*model_args, **model_kwargs), compiled by JAX, with the values of a minibatch. The failure was: "
                f"{type(error).__name__}: {error}"
            ) from error
        check_values(values, start)
        return conditional.unconstrain(values)


def checked_local(local: Any) -> Any:
    """Raises a ValueError if it is neither a function nor an object with a method ``draw``."""
    if isinstance(local, type) or not callable(getattr(local, "draw", local)):
        raise ValueError(
            f"local={local!r} must be a function (rng_key, local_sites, global_sites, rows, *model_args) -> "
            "local_sites, or LocalFunction(...), LocalGibbs(), LocalHMC(...), LocalLangevin(...)."
        )
    return local if hasattr(local, "draw") else LocalFunction(local)


def check_values(values: Any, start: Mapping[str, jax.Array]) -> None:
    """Raises an error if there is not a JAX array of the right shape and kind for each local site."""
    if not isinstance(values, Mapping) or values.keys() != start.keys():
        got = sorted(values) if isinstance(values, Mapping) else type(values).__name__
        raise LocalError(f"local= must return a dict with a value for each of the sites {sorted(start)}, got {got}.")
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            raise LocalError(
                f"local= returns a NumPy array for {name!r}. It would be the same in every step: draw it by jax.random "
                "from rng_key."
            )
        if jnp.issubdtype(start[name].dtype, jnp.integer) and not jnp.issubdtype(jnp.result_type(value), jnp.integer):
            raise LocalError(
                f"local= returns {name!r} as {jnp.result_type(value)}. The site is discrete, so it must be "
                f"{start[name].dtype}."
            )
        if jnp.shape(value) != start[name].shape:
            raise LocalError(
                f"local= returns {name!r} with shape {jnp.shape(value)}; in this minibatch it must be "
                f"{start[name].shape}."
            )
