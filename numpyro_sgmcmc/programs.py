"""
Functions of a potential as compiled programs.

They are traced anew for every run, since a model may read what has changed in the meantime, but the compiler is asked
only for a program that it has not been handed before: a second run of the same shapes starts without it.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
import hashlib
from typing import Any

import jax
from jax.core import Tracer

from numpyro_sgmcmc import trees
from numpyro_sgmcmc.judge import NeedsValues
from numpyro_sgmcmc.plates import indexable
from numpyro_sgmcmc.potential import ModelPotential

KEPT = 32  # programs
CONSTANTS = 1_000_000  # bytes of them that a program may have to be kept: they are part of its text

_kept: OrderedDict[Any, Callable] = OrderedDict()


def compiled(
    fn: Callable, model: Any, model_args: tuple, model_kwargs: Mapping[str, Any] | None, batch_size: Any
) -> Callable:
    """
    ``fn(potential, *rest)`` as a compiled function of ``rest``.

    The data are arguments of what is compiled, for a closure would make constants, copies, of them.
    """
    model_kwargs = {} if model_kwargs is None else model_kwargs
    # made indexable here, as flattening needs the arrays to be what the model will see
    arrays, rebuild = trees.arrays_apart(indexable((model_args, model_kwargs)))

    @jax.jit
    def on_arguments(arrays, *rest):
        args, kwargs = rebuild(arrays)
        return fn(ModelPotential.of(model, args, kwargs, batch_size), *rest)

    @jax.jit
    def on_constants(*rest):
        return fn(ModelPotential.of(model, model_args, model_kwargs, batch_size), *rest)

    programs = {}  # for each kind of arguments, so that calls in a loop are traced once

    def run(*rest):
        kinds = _kinds(rest)
        if kinds not in programs:
            try:
                programs[kinds] = partial(_program(on_arguments, arrays, *rest), arrays)
            except (jax.errors.JAXTypeError, NeedsValues):
                programs[kinds] = on_constants  # a model that asks for values, int(y.max()), gets them
        return programs[kinds](*rest)

    return run


def _kinds(args: tuple) -> Hashable:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(map(jax.typeof, leaves)), tuple(map(_place, leaves))


def _place(leaf: Any) -> Any:
    return Tracer if isinstance(leaf, Tracer) else getattr(leaf, "sharding", None)


def _program(jitted: Any, *args: Any) -> Callable:
    """A function of ``args``, compiled if it was not kept."""
    traced = jitted.trace(*args)
    leaves, structure = jax.tree.flatten(args)
    places = tuple(map(_place, leaves))
    if Tracer in places:
        return jitted  # part of another program, which what is compiled cannot be
    if sum(getattr(constant, "nbytes", 0) for constant in traced.jaxpr.consts) > CONSTANTS:
        return jitted
    lowered = traced.lower()
    text = lowered.as_text()
    if "callback" in text:  # which function it calls is not in the text
        return lowered.compile()
    default = getattr(jax.config, "jax_default_device")  # noqa: B009, unknown to the type checker
    # names of sites are not in the text, and what is compiled takes and gives trees of one structure only
    structures = structure, jax.tree.structure(traced.out_info)
    key = hashlib.sha256(text.encode()).digest(), structures, places, default
    if key not in _kept:
        _kept[key] = lowered.compile()
    _kept.move_to_end(key)
    if len(_kept) > KEPT:
        _kept.popitem(last=False)
    return _kept[key]
