r"""
Latent sites of the rows, drawn anew for each minibatch.

With local values :math:`u_i` drawn from their conditional law, Fisher's identity

.. math:: \nabla_z \log p(x_i \mid z) = E_{p(u_i \mid x_i, z)}[\nabla_z \log p(x_i, u_i \mid z)]

makes the gradient at fixed u an unbiased estimate of that of the marginal density, over the rows and the draws. u is
held fixed in its unconstrained coordinates, Jacobian included: the support of a local site may depend on global ones.
The randomness of the draws is a part of the gradient's noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpyro
from numpyro.distributions import Distribution, biject_to

from numpyro_sgmcmc.model.replay import FirstRun, LocalError, emit, run_again, to_plates
from numpyro_sgmcmc.model.summed import summed_out


class Conditional(NamedTuple):
    """
    What the local sites of a minibatch are drawn from.

    - **sites** - local site -> its distribution given the global ones.
    - **start** - local site -> values drawn from the prior, unconstrained where they are not discrete.
    - **density** - such values -> log density of each row, up to a constant; for each element of the sites' plates.
    - **constrain**, **unconstrain** - such values from and to those on the sites' supports.
    - **given** - what a user's function is called with, after the key and the local values.
    """

    sites: Mapping[str, Distribution]
    start: Mapping[str, jax.Array]
    density: Callable[[Mapping[str, jax.Array]], jax.Array]
    constrain: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]
    unconstrain: Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]
    given: tuple[tuple, Mapping[str, Any]]


def is_discrete(fn: Distribution) -> bool:
    """Whether a site has values that can not be moved."""
    return fn.support is not None and bool(fn.support.is_discrete)


def checked_local(local: Any) -> Any:
    """
    :raises ValueError: neither a function nor an object with a method ``draw``.
    """
    if not callable(getattr(local, "draw", local)) or isinstance(local, type):
        raise ValueError(
            f"local={local!r} must be a function (rng_key, local_sites, global_sites, rows, *model_args) -> "
            "local_sites, or LocalGibbs(), LocalHMC(...), LocalLangevin(...)."
        )
    return local


def with_local(model: Any, local: Any) -> Any:
    """The model that a potential is made of: the model itself, or one whose local sites are drawn by ``local``."""
    return model if local is None else drawn_locally(summed_out(model), checked_local(local))


@dataclass(frozen=True)
class drawn_locally:
    """
    The model as a function of its global sites, those of the minibatched plates drawn by ``local``.

    :param fn: model.
    :param local: a function as :func:`by_function` takes it, or an object with ``draw(rng_key, conditional)``, which
        returns values like ``conditional.start``.
    """

    fn: Any
    local: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = numpyro.prng_key()
        assert key is not None  # a potential always has one
        key_prior, key_draw = random.split(key)
        count = iter(range(2**31))

        def is_local(msg: Any) -> bool:
            # plates whose rows are chosen, all of them perhaps, where a search goes through the data in parts
            return any(first.plates[frame.name][0][1] is not None for frame in msg["cond_indep_stack"])

        def from_the_prior(name: str, fn: Distribution) -> jax.Array:
            return jnp.asarray(fn.sample(random.fold_in(key_prior, next(count))))

        first = FirstRun(is_local, from_the_prior)
        with first:
            result = self.fn(*args, **kwargs)
        if not first.sites:
            return result
        sites = {name: site.fn for name, site in first.sites.items()}

        def density(values: Mapping[str, jax.Array]) -> Any:
            log_dets = []

            def value_of(name: str, fn: Distribution) -> jax.Array:
                value, log_det = _on_support(values[name], fn)
                log_dets.append(log_det)
                return value

            total, _ = run_again(self.fn, args, kwargs, first, value_of)
            return sum((to_plates(x, list(first.frames.values())) for x in log_dets), start=total)

        plates = [name for name in first.frames if first.plates[name][0][1] is not None]
        rows = {name: first.plates[name][1] for name in plates}
        of_rows = rows[plates[0]] if len(plates) == 1 else rows
        start = {name: lax.stop_gradient(_off_support(site.value, site.fn)) for name, site in first.sites.items()}
        conditional = Conditional(
            sites,
            start,
            density,
            lambda values: {name: _on_support(values[name], fn)[0] for name, fn in sites.items()},
            lambda values: {name: _off_support(values[name], fn) for name, fn in sites.items()},
            ((lax.stop_gradient(first.globals()), of_rows, *args), kwargs),
        )
        draw = by_function(self.local) if not hasattr(self.local, "draw") else self.local.draw
        values = jax.tree.map(lax.stop_gradient, draw(key_draw, conditional))
        emit(f"_{next(iter(sites))}_drawn", density(values), first)
        return result


def by_function(fn: Callable) -> Callable[[jax.Array, Conditional], dict[str, jax.Array]]:
    """
    The draws that a user's function makes: ``fn(rng_key, local_sites, global_sites, rows, *model_args,
    **model_kwargs) -> local_sites`` on constrained values, like the function of :class:`numpyro.infer.CustomGibbs`.
    ``local_sites`` are draws from the prior. ``rows`` are the numbers of the minibatch's rows, by plate if there are
    several. What the function returns must be distributed by the conditional law of the local sites, or close to it.
    """

    def draw(rng_key: jax.Array, conditional: Conditional) -> dict[str, jax.Array]:
        args, kwargs = conditional.given
        start = conditional.constrain(conditional.start)
        values = fn(rng_key, start, *args, **kwargs)
        check_values(values, start)
        return conditional.unconstrain(values)

    return draw


def check_values(values: Any, start: Mapping[str, jax.Array]) -> None:
    """
    :raises ValueError: not a value of the right shape for each local site.
    """
    if not isinstance(values, Mapping) or values.keys() != start.keys():
        got = sorted(values) if isinstance(values, Mapping) else type(values).__name__
        raise LocalError(f"local= must return a dict with a value for each of the sites {sorted(start)}, got {got}.")
    for name, value in values.items():
        if jnp.shape(value) != start[name].shape:
            raise LocalError(
                f"local= returns {name!r} in shape {jnp.shape(value)}; in this minibatch it has {start[name].shape}."
            )


def _on_support(x: jax.Array, fn: Distribution) -> tuple[jax.Array, jax.Array]:
    """The value, and the log determinant of the Jacobian for each element of the batch shape."""
    if is_discrete(fn):
        return x, jnp.zeros(fn.batch_shape)
    transform = biject_to(fn.support)
    value = transform(x)
    log_det = jnp.asarray(transform.log_abs_det_jacobian(x, value))
    event_dim = jnp.ndim(log_det) - len(fn.batch_shape)
    return value, log_det.sum(tuple(range(-event_dim, 0)))


def _off_support(value: Any, fn: Distribution) -> jax.Array:
    return jnp.asarray(value) if is_discrete(fn) else jnp.asarray(biject_to(fn.support).inv(value))
