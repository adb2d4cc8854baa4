"""
The structure of a model: its sample sites, its plates, and what depends on the rows of a plate.

It is found by abstract tracing, before anything is compiled, and consists of plain Python values.
"""

from collections.abc import Iterable, Mapping
import math
import re
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import Delta, Distribution, ExpandedDistribution, Independent, Unit
from numpyro.infer import init_to_sample, init_to_uniform

from numpyro_sgmcmc.data.arrays import described, named_leaves, without_data
from numpyro_sgmcmc.model.dataflow import CLOSED_OVER, Fact, Lookup, Use, codes_of, follow
from numpyro_sgmcmc.model.given_values import MISSING, is_masked
from numpyro_sgmcmc.model.handlers import IN_SCAN, Transforms, minibatch, transform_of
from numpyro_sgmcmc.model.numpyro_internals import ParamShape, sample_code
from numpyro_sgmcmc.types import Rows
from numpyro_sgmcmc.utils.compat import local_in_failing_frame
from numpyro_sgmcmc.utils.memory import largest_array


class Site(NamedTuple):
    """The properties of a sample site, as plain Python values."""

    observed: bool
    plates: Mapping[str, int]  # plate name -> dim
    log_prob_shape: tuple[int, ...]
    unconstrained: jax.ShapeDtypeStruct | None  # None for observed sites
    discrete: bool
    delta: bool
    factor: bool
    one_number_in: frozenset[str]  # plates over which its log density is one number, repeated
    uses: frozenset[str] = frozenset()  # plates whose rows its log density depends on, and missing values
    scale: float | None = 1.0  # factor of its log density, that of its plates included; None if it is not one number
    argument: str = ""  # the argument of the model that observed values are elements of
    support: Any = None  # of an observed site without a mask, if its bounds are numbers
    crossed: tuple[tuple[int, ...], ...] = ()  # shapes of values and distribution, if each repeats the other
    in_scan: bool = False


class Structure(NamedTuple):
    """The structure of a model: its sample sites, its plates, and its other statements that need attention."""

    sites: Mapping[str, Site]
    plates: Mapping[str, tuple[int, int | None]]  # name -> (size, declared subsample_size)
    frozen: tuple[str, ...]  # `param` sites with a value that is used
    has_params: bool
    mutable: tuple[str, ...]
    in_scan: Mapping[str, tuple[int, int | None]]  # the same for plates inside `scan`
    randomised: bool
    left_out: tuple[str, ...]  # deterministic sites that depend on the rows of a plate but are outside it
    with_missing: tuple[str, ...]  # deterministic sites outside of these plates that depend on missing values
    of_all_rows: Mapping[str, tuple[str, int]]  # other deterministic sites with a number for each row of a plate
    lookups: tuple[Lookup, ...]  # arrays indexed by the rows of a plate, or by data
    whole: tuple[Use, ...]  # arrays of data that are used without an index
    unequal: Mapping[str, tuple[int, int]]  # plates that are declared twice, with these sizes
    largest: int  # numbers of the largest array
    why_all_rows: str = ""  # why every step uses all rows, although there are many and the user has not asked for it

    @property
    def latents(self) -> dict[str, Site]:
        return {name: site for name, site in self.sites.items() if not site.observed}

    @property
    def prototype(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the unconstrained latents."""
        return {name: site.unconstrained for name, site in self.latents.items() if site.unconstrained is not None}


class _Statements(NamedTuple):
    """The statements found by one trace, as plain Python values."""

    sites: dict[str, Site]
    deterministic: dict[str, tuple[frozenset[str], frozenset[int]]]  # name -> plates, lengths of axes without a plate
    frozen: tuple[str, ...]
    has_params: bool
    mutable: tuple[str, ...]


def outline(
    model: Any,
    args: tuple,
    kwargs: Mapping[str, Any],
    batch_sizes: Mapping[str, int],
    transforms: Transforms | None = None,
) -> Structure:
    """Traces the model once, abstractly, with the named plates cut to the given lengths."""
    chosen, runs = minibatch(model), []
    shapes, with_traced = without_data(args, kwargs)

    def run(rows: Rows, arrays: dict[str, jax.Array]) -> Any:
        chosen.rows = rows
        traced_args, traced_kwargs = with_traced(arrays)
        seeded = handlers.substitute(handlers.seed(chosen, jax.random.key(0)), substitute_fn=_some_value)
        tr = handlers.trace(seeded).get_trace(*traced_args, **traced_kwargs)
        densities = {name: _log_density(name, site) for name, site in tr.items() if site["type"] == "sample"}
        # these values are static; the shapes must be read while the tracers exist
        runs.append(_read(tr, densities, transforms))
        values = {name: _arrays(tr[name]["value"]) for name in runs[-1].deterministic}
        observed = {name: _arrays(tr[name]["value"]) for name, site in runs[-1].sites.items() if site.observed}
        return densities, values, {name: leaves for name, leaves in observed.items() if leaves}

    rows = {name: jax.ShapeDtypeStruct((n,), jnp.int32) for name, n in batch_sizes.items()}
    try:
        closed, out = jax.make_jaxpr(run, return_shape=True)(rows, shapes)
    except Exception as error:
        _explain(error, chosen, batch_sizes)
        error.add_note(f"numpyro_sgmcmc ran the model with {described(args, kwargs) or 'no arrays'}.")
        raise
    # dicts are flattened in the order of their keys
    inputs = [Fact(frozenset([name]), row_of=name) for name in sorted(rows)]
    inputs += [Fact(argument=name) for name in sorted(shapes)]
    named = named_leaves(args, kwargs)
    name_of = lambda const: next((name for name, x in named if x is const), CLOSED_OVER)  # noqa: E731
    facts, lookups, whole = follow(closed, inputs, name_of)
    log_densities, values, observed = jax.tree.unflatten(jax.tree.structure(out), facts)

    statements: _Statements = runs[-1]
    argument = {name: codes_of(fact) for name, (fact,) in observed.items()}
    uses = {name: frozenset().union(*(fact.depends for fact in leaves)) for name, leaves in values.items()}
    outside = {
        name: axes for name, (plates, axes) in statements.deterministic.items() if not batch_sizes.keys() & plates
    }
    return Structure(
        sites={
            name: site._replace(uses=log_densities[name].depends, argument=argument.get(name, ""))
            for name, site in statements.sites.items()
        },
        plates=chosen.declared,
        frozen=statements.frozen,
        has_params=statements.has_params,
        mutable=statements.mutable,
        in_scan=chosen.in_scan,
        randomised=chosen.randomised,
        left_out=tuple(name for name in outside if uses[name] & batch_sizes.keys()),
        with_missing=tuple(name for name in outside if any(used.startswith(MISSING) for used in uses[name])),
        of_all_rows={
            name: (plate, chosen.declared[plate][0])
            for name, axes in outside.items()
            for plate in batch_sizes
            if not uses[name] and chosen.declared[plate][0] in axes
        },
        lookups=tuple(lookups),
        whole=tuple(whole),
        unequal=chosen.unequal,
        largest=largest_array(closed.jaxpr),
    )


def _explain(error: Exception, chosen: minibatch, batch_sizes: Mapping[str, int]) -> None:
    """Adds notes to an error of a model."""
    declared = {name: n for name, (size, n) in chosen.declared.items() if n is not None and n < size}
    if declared and not batch_sizes:
        error.add_note(
            "numpyro_sgmcmc ran the model with all rows of its plates. Pass the whole data, not a minibatch of it "
            f"(the model declares subsample_size={declared})."
        )
    if site := failing_site(error):
        error.add_note(f"The model fails at site {site!r}.")
    if isinstance(error, ImportError):
        error.add_note("The model itself, not the kernel, needs a package that is not installed.")
    if "Indexer must have integer" in str(error):  # by JAX
        error.add_note("An index is not an integer. Pass codes as integers: codes.astype(int).")


def _some_value(site: Any) -> Any:
    try:
        return init_to_sample(site)
    except ImportError:  # NumPyro draws some distributions by another package; their density may not need it
        return init_to_uniform(site)


def failing_site(error: Exception) -> str | None:
    """The name of the site in which a model fails, if the traceback has it."""
    return local_in_failing_frame(error, (sample_code(), _log_density.__code__), "name")


def _log_density(name: str, site: Any) -> jax.Array:
    """The log density, scaled only by weights of its elements; ``name`` is for :func:`failing_site`."""
    density, scale = site["fn"].log_prob(site["value"]), site["scale"]
    return density if scale is None or not jnp.ndim(scale) else density * scale


def _read(tr: Mapping[str, Any], densities: Mapping[str, jax.Array], transforms: Transforms | None) -> _Statements:
    of_type = lambda kind: {name: site for name, site in tr.items() if site["type"] == kind}  # noqa: E731
    return _Statements(
        sites={name: _site(name, site, densities[name], transforms) for name, site in of_type("sample").items()},
        deterministic={
            name: (frozenset(_plates(site)), _lengths(site)) for name, site in of_type("deterministic").items()
        },
        frozen=tuple(
            name for name, site in of_type("param").items() if _is_used(name, site["value"], of_type("sample"))
        ),
        has_params=bool(of_type("param")),
        mutable=tuple(of_type("mutable")),
    )


def _arrays(value: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]


def _lengths(site: Any) -> frozenset[int]:
    dims = _plates(site).values()
    shapes = [x.shape for x in _arrays(site["value"])]
    return frozenset(n for shape in shapes for dim, n in enumerate(shape, -len(shape)) if dim not in dims)


def _is_used(name: str, value: Any, samples: Iterable[str]) -> bool:
    """Whether a part of a param site has no prior by one of NumPyro's ``random_*_module``."""
    is_shape = lambda leaf: isinstance(leaf, ParamShape)  # noqa: E731
    leaves = jax.tree.leaves(value, is_leaf=is_shape)
    if any(map(is_shape, leaves)):  # in place of the parts with a prior, but for equinox
        return not all(map(is_shape, leaves))
    module = re.escape(name.removesuffix("$params"))
    return len(leaves) > sum(bool(re.match(rf"{module}\W", site)) for site in samples)


def _plates(site: Any) -> dict[str, int]:
    return {frame.name: frame.dim for frame in site["cond_indep_stack"]}


def _site(name: str, site: Any, log_prob: jax.Array, transforms: Transforms | None) -> Site:
    fn: Distribution = site["fn"]
    observed = bool(site["is_observed"])
    discrete = not observed and is_discrete(fn)
    unconstrained = None
    if not observed and not discrete:
        value = transform_of(name, fn, transforms).inv(site["value"])
        unconstrained = jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))
    own, values = own_batch_shape(fn), jnp.shape(site["value"])[: jnp.ndim(site["value"]) - fn.event_dim]
    return Site(
        observed=observed,
        plates=_plates(site),
        log_prob_shape=jnp.shape(log_prob),
        unconstrained=unconstrained,
        discrete=discrete,
        delta=isinstance(fn, Delta) and not observed,
        factor=isinstance(fn, Unit) or (isinstance(fn, ExpandedDistribution) and isinstance(fn.base_dist, Unit)),
        one_number_in=frozenset(
            frame.name
            for frame in site["cond_indep_stack"]
            if not any(has_rows(shape, frame.dim, frame.size) for shape in (own, values))
        ),
        scale=_number(site["scale"]),
        crossed=(values, own) if observed and _is_outer(jnp.shape(log_prob), values, own, _plates(site)) else (),
        support=fn.support if observed and not is_masked(fn) and not moves(fn.support) else None,
        in_scan=IN_SCAN in site["infer"],
    )


def _is_outer(shape: tuple[int, ...], values: tuple[int, ...], own: tuple[int, ...], plates: Mapping[str, int]) -> bool:
    """Whether, in a dimension without a plate, each value is combined with each element of the distribution."""
    without_plate = [k for k in range(-len(shape), 0) if shape[k] > 1 and k not in plates.values()]
    smaller, larger = sorted([math.prod(values), math.prod(own)])
    return bool(without_plate) and 1 < smaller and larger < math.prod(shape)


def is_discrete(fn: Distribution) -> bool:
    return fn.support is not None and bool(fn.support.is_discrete)


def moves(support: Any) -> bool:
    """Whether a support may depend on other sites, because one of its bounds is an array."""
    return any(isinstance(bound, jax.Array) for bound in jax.tree.leaves(support))


def _number(scale: Any) -> float | None:
    if scale is None:
        return 1.0
    return float(scale) if jnp.size(scale) == 1 and not isinstance(scale, Tracer) else None


def has_rows(shape: tuple[int, ...], dim: int, n: int) -> bool:
    """Whether a shape has n elements in a dimension counted from the right."""
    return len(shape) >= -dim and shape[dim] == n


def own_batch_shape(fn: Distribution) -> tuple[int, ...]:
    """The batch shape of a distribution before plates, or ``.expand``, repeat it."""
    if isinstance(fn, ExpandedDistribution):
        return own_batch_shape(fn.base_dist)
    if isinstance(fn, Independent):
        own = own_batch_shape(fn.base_dist)
        return own[: max(0, len(own) - fn.reinterpreted_batch_ndims)]
    return fn.batch_shape
