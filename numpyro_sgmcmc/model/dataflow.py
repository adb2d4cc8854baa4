"""
Follows the row numbers of the plates through the trace of a model: which values depend on them, and which arrays they
index.

This is a forward pass over the equations of a jaxpr, with calls inlined. *Row numbers* that are copied, cast, broadcast
or reshaped remain row numbers. The result of arithmetic on them (``rows + 1``) is *computed* numbers, and the result of
a look-up (``group[rows]``) is data. Data that index another array (``effect[group[rows]]``) are *codes*.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal, primitives as prim
from jax.lax import GatherScatterMode
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.given_values import MISSING
from numpyro_sgmcmc.utils.compat import ClosedJaxpr

_COPIES = {prim.convert_element_type_p, prim.copy_p, prim.device_put_p}
_RESHAPES = {prim.broadcast_in_dim_p, prim.reshape_p, prim.squeeze_p, prim.slice_p, prim.transpose_p}
_CALLS = {prim.jit_p, prim.closed_call_p, prim.remat_p, prim.custom_jvp_call_p, prim.custom_vjp_call_p}
CLOSED_OVER = "a closed-over array"


class Fact(NamedTuple):
    """The facts about one value of the trace."""

    depends: frozenset[str] = frozenset()  # plates whose rows it depends on, and names of missing values
    row_of: str | None = None  # the plate whose row numbers its elements are
    computed_from: frozenset[str] = frozenset()  # plates from whose row numbers it is computed
    columns: tuple["Fact", ...] = ()  # for index vectors: the facts about each component
    argument: str = ""  # for data: the name of the argument of the model, or CLOSED_OVER
    codes: str = ""  # the argument, if the value consists of elements of it, from all of its columns
    negative_of: "Fact | None" = None  # of a mask of the negative elements of a value: the facts about that value
    shifted_from: "Fact | None" = None  # of row numbers or codes plus a number: the facts about these


class Lookup(NamedTuple):
    """An array indexed along ``dim`` by numbers that come from a plate, or by codes, one element at a time."""

    plate: str  # empty for codes
    exact: bool  # by row numbers, not by numbers computed from them
    shape: tuple[int, ...]
    dim: int
    argument: str
    codes: str = ""  # the argument whose elements are the index


class Use(NamedTuple):
    """An array that is used as a whole, not by rows."""

    argument: str
    shape: tuple[int, ...]
    numbers: int  # of the largest array in the equation
    depends: frozenset[str]  # plates whose rows the result depends on


def follow(
    closed: ClosedJaxpr, inputs: Sequence[Fact], name_of: Callable[[Any], str] = lambda _: ""
) -> tuple[list[Fact], list[Lookup], list[Use]]:
    """
    :param closed: trace.
    :param inputs: the facts about its inputs.
    :param name_of: array that the trace closes over -> its name.
    :return: the facts about the outputs, the arrays that are indexed by a plate, and those that are used as a whole.
    """
    run = _Run(name_of, [], [])
    constants = [Fact(argument=name_of(const)) for const in closed.consts]
    return run.through(closed.jaxpr, inputs, constants), run.lookups, run.uses


def dependence(fn: Callable, values: Mapping[str, Any]) -> Any:
    """The result of ``fn(values)``, with the names of the values that each array in it depends on in its place."""
    closed, out = jax.make_jaxpr(fn, return_shape=True)(values)
    # dicts are flattened in the order of their keys
    facts, _, _ = follow(closed, [Fact(frozenset([name])) for name in sorted(values)])
    return jax.tree.unflatten(jax.tree.structure(out), [fact.depends for fact in facts])


class _Run(NamedTuple):
    name_of: Callable[[Any], str]
    lookups: list[Lookup]
    uses: list[Use]

    def through(self, jaxpr: Any, inputs: Sequence[Fact], constants: Sequence[Fact] = ()) -> list[Fact]:
        facts = dict(zip(jaxpr.invars, inputs)) | dict(zip(jaxpr.constvars, constants))

        def fact_of(var: Any) -> Fact:
            if not isinstance(var, Literal):
                return facts.get(var, Fact())
            # JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS puts arrays here too
            return Fact(argument=self.name_of(var.val) if getattr(var.aval, "shape", ()) else "")

        for eqn in jaxpr.eqns:
            facts.update(zip(eqn.outvars, self.outputs(eqn, [fact_of(var) for var in eqn.invars])))
        return [fact_of(var) for var in jaxpr.outvars]

    def outputs(self, eqn: Any, inputs: list[Fact]) -> list[Fact]:
        depends = frozenset().union(*(fact.depends for fact in inputs))
        if eqn.primitive in _CALLS:
            body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            return self.through(getattr(body, "jaxpr", body), inputs)
        if eqn.primitive is prim.scan_p:
            body = eqn.params["jaxpr"].jaxpr
            self.through(body, _of_one_step(eqn, body, inputs))
            return _after_scan(eqn, body, [Fact(fact.depends) for fact in inputs])
        if eqn.primitive in _COPIES:
            return inputs
        if eqn.primitive is prim.name_p and eqn.params["name"].startswith(MISSING):
            return [Fact(frozenset([eqn.params["name"]]))]
        if eqn.primitive in _RESHAPES:
            part = eqn.primitive is prim.slice_p and eqn.invars[0].aval.ndim > 1  # perhaps of some columns only
            codes = "" if part else codes_of(inputs[0])
            return [Fact(depends, inputs[0].row_of, inputs[0].computed_from, codes=codes)] * len(eqn.outvars)
        if eqn.primitive is prim.concatenate_p:
            return [Fact(depends, columns=_columns(eqn, inputs), computed_from=_sources(inputs))]
        if eqn.primitive is prim.lt_p and _is_zero(eqn.invars[1]):
            return [Fact(depends, negative_of=inputs[0])]
        if eqn.primitive is prim.select_n_p and len(inputs) == 3 and _counts_from_the_end(*inputs):
            return [inputs[1]]
        codes = ""
        if eqn.primitive in (prim.gather_p, prim.dynamic_slice_p):
            self.lookups.extend(_lookups(eqn, inputs))
            inputs = inputs[:1]  # the result does not count as computed from the index
            if eqn.params["slice_sizes"][1:] == eqn.invars[0].aval.shape[1:]:
                codes = codes_of(inputs[0])
        else:
            self.uses.extend(_uses(eqn, inputs, depends))
        of_numbers = Fact(depends, codes=codes)
        shifted_from = next(filter(_index, inputs), None) if eqn.primitive is prim.add_p else None
        of_integers = of_numbers._replace(computed_from=_sources(inputs), shifted_from=shifted_from)
        return [of_integers if jnp.issubdtype(var.aval.dtype, jnp.integer) else of_numbers for var in eqn.outvars]


def _is_zero(var: Any) -> bool:
    # with JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS the value may be an array of JAX, whose comparison would be traced
    return isinstance(var, Literal) and np.ndim(var.val) == 0 and bool(np.asarray(var.val) == 0)


def _uses(eqn: Any, inputs: list[Fact], depends: frozenset[str]) -> list[Use]:
    numbers = max(var.aval.size for var in (*eqn.invars, *eqn.outvars) if hasattr(var.aval, "size"))
    return [
        Use(fact.argument or fact.codes, var.aval.shape, numbers, depends)
        for var, fact in zip(eqn.invars, inputs)
        if (fact.argument or fact.codes) and not fact.depends and getattr(var.aval, "shape", ())
    ]


def _index(fact: Fact) -> tuple[str, str] | None:
    """The plate of row numbers, or the argument of codes; None for other values."""
    kind = fact.row_of or "", codes_of(fact)
    return kind if any(kind) else None


def _counts_from_the_end(mask: Fact, i: Fact, other: Fact) -> bool:
    """Whether a selection is i + N where i < 0, and otherwise i: how JAX reads an index."""
    negative, shifted = mask.negative_of, other.shifted_from
    return bool(negative and shifted and _index(i) and _index(negative) == _index(i) == _index(shifted))


def codes_of(fact: Fact) -> str:
    """The argument of the model that a value consists of."""
    return fact.codes or (fact.argument if fact.argument != CLOSED_OVER else "")


def _of_one_step(eqn: Any, body: Any, inputs: list[Fact]) -> list[Fact]:
    """Facts about the inputs of a step of a scan: elements of the scanned arrays, and values that change by step."""
    depends, sources = frozenset().union(*(fact.depends for fact in inputs)), _sources(inputs)
    varying = [Fact(depends, computed_from=sources, argument=fact.argument) for fact in inputs]
    return [fact if of_step else other for fact, other, of_step in zip(inputs, varying, _scanned(eqn, body))]


def _scanned(eqn: Any, body: Any) -> list[bool]:
    """Which inputs of a scan are arrays that each step sees an element of."""
    return [inner.aval.ndim < outer.aval.ndim for inner, outer in zip(body.invars, eqn.invars)]


def _after_scan(eqn: Any, body: Any, facts: list[Fact]) -> list[Fact]:
    """What the results of a scan depend on: a step is followed until what is carried depends on no more than before."""
    carries = sum(inner.aval.ndim == outer.aval.ndim for inner, outer in zip(body.outvars, eqn.outvars))
    end = len(facts) - sum(_scanned(eqn, body))  # constants come first, then what is carried, then scanned arrays
    carried = slice(end - carries, end)
    while True:
        depends = [fact.depends for fact in _Run(lambda _: "", [], []).through(body, facts)]
        after = [Fact(fact.depends | new) for fact, new in zip(facts[carried], depends)]
        if after == facts[carried]:
            return [*after, *map(Fact, depends[carries:])]
        facts[carried] = after


def _sources(inputs: Sequence[Fact]) -> frozenset[str]:
    """Plates whose row numbers are among the inputs, or from whose row numbers an input is computed."""
    exact = {fact.row_of for fact in inputs if fact.row_of is not None}
    return frozenset(exact).union(*(fact.computed_from for fact in inputs))


def _columns(eqn: Any, inputs: list[Fact]) -> tuple[Fact, ...]:
    dim = eqn.params["dimension"]
    if dim != eqn.outvars[0].aval.ndim - 1:
        return ()
    return tuple(fact for var, fact in zip(eqn.invars, inputs) for _ in range(var.aval.shape[dim]))


def _lookups(eqn: Any, inputs: list[Fact]) -> list[Lookup]:
    array, shape = inputs[0], eqn.invars[0].aval.shape
    if eqn.primitive is prim.gather_p:
        dims = eqn.params["dimension_numbers"].start_index_map
        columns = inputs[1].columns or (inputs[1],) * len(dims)
    else:
        dims, columns = range(len(shape)), inputs[1:]
    single = [(dim, column) for dim, column in zip(dims, columns) if eqn.params["slice_sizes"][dim] == 1]  # no windows
    by_rows = [
        Lookup(plate, plate == column.row_of, shape, dim, array.argument)
        for dim, column in single
        for plate in _sources([column])
    ]
    if eqn.params.get("mode") in (GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP):
        return by_rows  # the model says what an index beyond the end means
    return by_rows + [
        Lookup("", False, shape, dim, array.argument, codes_of(column)) for dim, column in single if codes_of(column)
    ]
