r"""
Latent sites of the rows, which are drawn for each minibatch.

With local values :math:`u_i` drawn from their conditional distribution, Fisher's identity

.. math:: \nabla_z \log p(x_i \mid z) = E_{p(u_i \mid x_i, z)}[\nabla_z \log p(x_i, u_i \mid z)]

makes the gradient at fixed u an unbiased estimate of the gradient of the marginal density, over the rows and the draws.
If the support of a local site depends on global ones, u is fixed in its unconstrained coordinates, Jacobian included.
The randomness of the draws is part of the gradient noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import itertools
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpyro
from numpyro.distributions import Distribution, biject_to, constraints
from numpyro.primitives import Messenger, apply_stack

from numpyro_sgmcmc.local.function import PREVIOUS, Conditional, checked_local
from numpyro_sgmcmc.local.replay import FirstRun, LocalError, check_nothing_else_depends, emit, run_again, to_plates
from numpyro_sgmcmc.local.summed import summed_out
from numpyro_sgmcmc.model.given_values import is_masked
from numpyro_sgmcmc.model.handlers import elementwise, transformed
from numpyro_sgmcmc.model.structure import is_discrete, moves
from numpyro_sgmcmc.types import Rows, Sites


def with_local(model: Any, local: Any) -> Any:
    """The model of a potential: the model itself, or the model with local sites drawn by ``local``."""
    return model if local is None else drawn_locally(summed_out(model, imputes=True), checked_local(local))


def keeps_values(model: Any) -> bool:
    """Whether the draws of local sites start at the values of the previous visit to a row."""
    return isinstance(model, drawn_locally) and getattr(model.local, "start", None) == PREVIOUS


class visit(Messenger):
    """
    Runs a model that draws local sites, and records their values.

    :param before: initial values by site, with rows along the first axis, and whether each row has any.
    """

    def __init__(self, fn: Any = None, before: tuple[Mapping[str, jax.Array], jax.Array] | None = None):
        self.before = before
        self.values: dict[str, jax.Array] = {}
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "local_start" and self.before is not None:
            before, seen = self.before
            axis_of_rows = lambda seen, x: seen.reshape(-1, *(1,) * (x.ndim - 1)) > 0  # noqa: E731
            fresh = msg["value"]
            msg["value"] = {s: jnp.where(axis_of_rows(seen, x), x, fresh[s]) for s, x in before.items()}
        elif msg["type"] == "local_values":
            self.values = msg["value"]


def _sent(kind: str, values: Any) -> Any:
    message: Any = {"type": kind, "name": f"_{kind}", "fn": None, "args": (), "kwargs": {}, "value": values}
    return apply_stack(message)["value"]


@dataclass(frozen=True)
class drawn_locally:
    """The model as a function of its global sites; latent sites in the minibatched plates are drawn by ``local``."""

    fn: Any  # model
    local: Any  # an object with draw(rng_key, conditional), which returns values like conditional.start

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = numpyro.prng_key()
        assert key is not None  # a potential always has one
        key_prior, key_draw = random.split(key)
        count = itertools.count()

        def is_local(msg: Any) -> bool:
            # plates whose rows are given; they may be all rows, if a search goes through the data in parts
            return any(first.plates[frame.name][0][1] is not None for frame in msg["cond_indep_stack"])

        def from_the_prior(name: str, fn: Distribution) -> jax.Array:
            try:
                return jnp.asarray(fn.sample(random.fold_in(key_prior, next(count))))
            except NotImplementedError as error:
                raise LocalError(
                    f"local site {name!r} has a distribution that cannot be sampled, but the "
                    "draws of local sites start from the prior. Give it a proper prior."
                ) from error

        first = FirstRun(is_local, from_the_prior)
        with first:
            result = self.fn(*args, **kwargs)
        if not first.sites:
            return result
        sites = first.sites
        transforms = {  # of the other sites, the sampler gets constrained values
            name: biject_to(fn.support)
            for name, fn in sites.items()
            if not is_discrete(fn) and (getattr(self.local, "on_real_line", True) or moves(fn.support))
        }

        def constrain(values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return {name: transforms[name](x) if name in transforms else x for name, x in values.items()}

        def unconstrain(values: Mapping[str, Any]) -> dict[str, jax.Array]:
            inside = {name: _inside(jnp.asarray(values[name]), fn) for name, fn in sites.items()}
            return {name: transforms[name].inv(x) if name in transforms else x for name, x in inside.items()}

        def densities(values: Mapping[str, jax.Array]) -> Any:
            log_dets = []

            def value_of(name: str, fn: Distribution) -> jax.Array:
                if name not in transforms:
                    return values[name]
                value, log_det = transformed(biject_to(fn.support), values[name], fn)
                log_dets.append(log_det)
                return value

            total, others = run_again(self.fn, args, kwargs, first, value_of)
            return sum((to_plates(log_det, first.frames) for log_det in log_dets), start=total), others

        def density(values: Mapping[str, jax.Array]) -> jax.Array:
            return densities(values)[0]

        plates = [name for name in first.frames if first.plates[name][0][1] is not None]
        rows = {name: first.plates[name][1] for name in plates}
        of_rows = rows[plates[0]] if len(plates) == 1 else rows
        start = lax.stop_gradient(unconstrain({name: first.values[name] for name in sites}))
        axes = {name: first.frames[plates[0]] - fn.event_dim for name, fn in sites.items()}
        if keeps_values(self):
            rows_first = {name: jnp.moveaxis(x, axes[name], 0) for name, x in start.items()}
            start = {name: jnp.moveaxis(x, 0, axes[name]) for name, x in _sent("local_start", rows_first).items()}
        check_nothing_else_depends(densities, start, "drawn by local=")
        given = (lax.stop_gradient(first.globals), of_rows, *args), kwargs
        conditional = Conditional(sites, start, density, constrain, unconstrain, given)
        sampler = _sent("local_sampler", self.local)
        values = jax.tree.map(lax.stop_gradient, sampler.draw(key_draw, conditional))
        if keeps_values(self):
            _sent("local_values", {name: jnp.moveaxis(x, axes[name], 0) for name, x in values.items()})
        emit(f"{' and '.join([*first.observed, *sites])} (drawn by local=)", density(values), first)
        return result


def _inside(value: jax.Array, fn: Distribution) -> jax.Array:
    """
    Moves a value that was rounded to the boundary of its support, where densities may be infinite, inside. A value
    further outside becomes NaN, so that the step is refused: NumPyro's densities may be finite there. A masked site may
    have any values.
    """
    support = elementwise(fn.support)
    if support in (constraints.simplex, constraints.positive, constraints.nonnegative, constraints.unit_interval):
        limits = jnp.finfo(value.dtype)
        inside, possible = jnp.maximum(value, limits.tiny), value >= -limits.eps
        if support is constraints.unit_interval:
            inside, possible = jnp.minimum(inside, 1 - limits.epsneg), possible & (value <= 1 + limits.eps)
    elif support.event_dim == 0 and not is_discrete(fn):
        inside, possible = value, support(value)
    else:
        return value
    return inside if is_masked(fn) else jnp.where(possible, inside, jnp.nan)


class Recorded(NamedTuple):
    """A draw of local sites, with what a run does not keep."""

    start: Sites  # local site -> the initial values of its chain, in the coordinates of the sampler
    values: Sites  # local site -> the values drawn, like start
    stored: Sites  # the values drawn with rows along axis 0, for the next visit; empty if no values are kept
    accepted: jax.Array | None  # whether each move was accepted, shape (moves, *plates); None if there are no moves
    plates: Mapping[str, int]  # number of axes of the plates, which come first in start and values, by site


class _record(visit):
    """Draws the local sites in the place of their sampler, and records the draw."""

    recorded: Any = None

    def process_message(self, msg: Any) -> None:
        super().process_message(msg)
        if msg["type"] == "local_sampler":
            self.sampler, msg["value"] = msg["value"], self

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> Any:
        if hasattr(self.sampler, "draw_watched"):
            values, accepted = self.sampler.draw_watched(rng_key, conditional)
        else:
            values, accepted = self.sampler.draw(rng_key, conditional), None
        plates = {name: len(fn.batch_shape) for name, fn in conditional.sites.items()}
        self.recorded = Recorded(dict(conditional.start), dict(values), {}, accepted, plates)
        return values


def makes_moves(model: Any) -> bool:
    """Whether local sites are drawn by moves that may be rejected."""
    return isinstance(model, drawn_locally) and hasattr(model.local, "draw_watched")


def recorded_draw(
    potential: Any, z: Sites, rows: Rows, rng_key: jax.Array, before: tuple[Sites, jax.Array] | None = None
) -> Recorded:
    """A draw of the local sites of these rows, made anew, so that a step of the global chain costs no more."""
    record = _record(potential.model, before)
    potential.replace(model=record).estimate(z, rows, rng_key)
    return record.recorded._replace(stored=dict(record.values))
