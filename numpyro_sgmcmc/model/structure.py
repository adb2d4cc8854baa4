"""
What a model looks like from the data's side: which plates it has, which of them can be cut to a minibatch, and why not.

Everything here is decided from abstract traces, before anything is compiled, and leaves plain Python values behind.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.contrib.module import ParamShape
from numpyro.distributions import Delta, Distribution, ExpandedDistribution, Unit, biject_to
from numpyro.infer import init_to_sample

from numpyro_sgmcmc.model.handlers import minibatch
from numpyro_sgmcmc.types import Rows


class Site(NamedTuple):
    """What must be known of a sample site, in plain Python."""

    observed: bool
    plates: Mapping[str, int]  # plate name -> dim
    log_prob_shape: tuple[int, ...]
    unconstrained: jax.ShapeDtypeStruct | None  # None for observed sites
    discrete: bool
    delta: bool
    uses: frozenset[str]  # plates whose rows its log density depends on
    one_number_in: frozenset[str]  # plates over which a factor is one number, broadcast


class Structure(NamedTuple):
    """A model's outline: its sample sites, its plates and the statements that need care."""

    sites: Mapping[str, Site]
    plates: Mapping[str, tuple[int, int | None]]  # name -> (size, declared subsample_size)
    frozen: tuple[str, ...]  # `param` sites with a value that is used
    has_params: bool
    mutable: tuple[str, ...]
    in_scan: Mapping[str, tuple[int, int | None]]  # plates inside `scan`, likewise
    randomised: bool

    @property
    def latents(self) -> dict[str, Site]:
        return {name: site for name, site in self.sites.items() if not site.observed}

    @property
    def prototype(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the unconstrained latents."""
        return {name: site.unconstrained for name, site in self.latents.items() if site.unconstrained is not None}


def outline(model: Any, args: tuple, kwargs: Mapping[str, Any], batch_sizes: Mapping[str, int]) -> Structure:
    """
    Trace the model once, abstractly, with the named plates cut to the given lengths.
    """
    found: dict[str, Any] = {}
    chosen = minibatch(model)

    def run(rows: Rows) -> dict[str, jax.Array]:
        chosen.rows = rows
        key = jax.random.key(0)
        seeded = handlers.substitute(handlers.seed(chosen, key), substitute_fn=init_to_sample)
        tr = handlers.trace(seeded).get_trace(*args, **kwargs)
        densities = {name: site["fn"].log_prob(site["value"]) for name, site in tr.items() if site["type"] == "sample"}
        found["trace"] = tr
        # everything asked of the trace below is static; the shapes are read while the tracers live
        found["sites"] = {name: _site(site, densities[name]) for name, site in tr.items() if site["type"] == "sample"}
        found["frozen"] = tuple(
            name for name, site in tr.items() if site["type"] == "param" and _is_used(site["value"])
        )
        return densities

    shapes = {name: jax.ShapeDtypeStruct((n,), jnp.int32) for name, n in batch_sizes.items()}
    try:
        jaxpr, out = jax.make_jaxpr(run, return_shape=True)(shapes)
    except Exception as error:
        declared = {name: n for name, (size, n) in chosen.declared.items() if n is not None and n < size}
        if declared and not batch_sizes:
            error.add_note(
                "numpyro_sgmcmc ran the model with all rows of its plates, which it must be given: pass the whole data"
                f", not a minibatch of it (the model declares subsample_size={declared})."
            )
        raise
    used = _dependence(jaxpr.jaxpr, sorted(shapes), sorted(out))
    tr = found["trace"]
    return Structure(
        sites={name: site._replace(uses=used[name]) for name, site in found["sites"].items()},
        plates=chosen.declared,
        frozen=found["frozen"],
        has_params=any(site["type"] == "param" for site in tr.values()),
        mutable=tuple(name for name, site in tr.items() if site["type"] == "mutable"),
        in_scan=chosen.in_scan,
        randomised=chosen.randomised,
    )


def _is_used(value: Any) -> bool:
    # random_*_module puts a ParamShape in the place of every parameter it gives a prior
    is_shape = lambda leaf: isinstance(leaf, ParamShape)  # noqa: E731
    return not all(is_shape(leaf) for leaf in jax.tree.leaves(value, is_leaf=is_shape))


def _site(site: Any, log_prob: jax.Array) -> Site:
    fn: Distribution = site["fn"]
    observed = bool(site["is_observed"])
    plates = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
    discrete = bool(fn.support is not None and fn.support.is_discrete) if not observed else False
    unconstrained = None
    if not observed and not discrete:
        value = biject_to(fn.support).inv(site["value"])
        unconstrained = jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))
    broadcast = frozenset()
    if isinstance(fn, ExpandedDistribution) and isinstance(fn.base_dist, Unit):
        inner = fn.base_dist.batch_shape
        broadcast = frozenset(name for name, dim in plates.items() if len(inner) < -dim or inner[dim] == 1)
    return Site(
        observed=observed,
        plates=plates,
        log_prob_shape=jnp.shape(log_prob),
        unconstrained=unconstrained,
        discrete=discrete,
        delta=isinstance(fn, Delta) and not observed,
        uses=frozenset(),
        one_number_in=broadcast,
    )


def _dependence(jaxpr: Any, inputs: list[str], outputs: list[str]) -> dict[str, frozenset[str]]:
    """Which inputs each output depends on, by following the equations forward."""
    depends = {var: frozenset([name]) for var, name in zip(jaxpr.invars, inputs)}

    def of(var: Any) -> frozenset[str]:
        return frozenset() if hasattr(var, "val") else depends.get(var, frozenset())

    for eqn in jaxpr.eqns:
        everything = frozenset().union(*(of(var) for var in eqn.invars))
        depends.update({var: everything for var in eqn.outvars})
    return {name: of(var) for var, name in zip(jaxpr.outvars, outputs)}
