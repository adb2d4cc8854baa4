"""Functions of a potential as compiled programs, for computations outside of a transition."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from jax.core import Tracer

from numpyro_sgmcmc.data.arrays import Indexable, indexable
from numpyro_sgmcmc.model.handlers import Transforms
from numpyro_sgmcmc.potential.minibatched import NeedsValues
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.workarounds.constants import LEAST, not_copied

# of a model that uses the values of traced arguments, such as int(y.max()), len(np.unique(group)) or y[known]
VALUES_ARE_NEEDED = (jax.errors.JAXTypeError, jax.errors.NonConcreteBooleanIndexError, NeedsValues)


def compiled(
    fn: Callable,
    model: Any,
    model_args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    batch_size: Any,
    transforms: Transforms | None = None,
) -> Callable:
    """
    ``fn(potential, *rest)`` as a compiled function of ``rest``. The data are arguments of the compiled program, because
    a closure would copy them as constants. NumPy arrays are copied to the device once, for all calls.
    """

    def on_potential(args, kwargs, *rest):
        return fn(ModelPotential.from_model(model, args, kwargs, batch_size, transforms), *rest)

    return on_data(on_potential, model_args, model_kwargs)


def on_data(fn: Callable, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable:
    """``fn(args, kwargs, *rest)`` as a compiled function of ``rest``, as in :func:`compiled`."""
    model_args, model_kwargs = indexable((model_args, {} if model_kwargs is None else model_kwargs))
    arrays, rebuild = trees.arrays_apart((model_args, model_kwargs))
    arrays = [x.on_device() if isinstance(x, Indexable) else x for x in arrays]

    @jax.jit
    def on_arguments(arrays, *rest):
        args, kwargs = rebuild(arrays)
        return fn(args, kwargs, *rest)

    @jax.jit
    def on_constants(*rest):
        return fn(model_args, model_kwargs, *rest)

    program = None

    def run(*rest):
        nonlocal program
        if program is None:
            program = partial(on_arguments, arrays)
            try:
                return program(*rest)
            except VALUES_ARE_NEEDED:
                program = on_constants
        return program(*rest)

    return run


def within_a_program(
    potential_of: Callable[..., ModelPotential], model_args: tuple, model_kwargs: Mapping[str, Any] | None
) -> ModelPotential:
    """``potential_of(model_args, model_kwargs)`` in a program that closes over the data, without copies of them."""
    arguments = indexable((model_args, {} if model_kwargs is None else model_kwargs))

    def replaced(x):
        if isinstance(x, Tracer) or getattr(x, "nbytes", 0) < LEAST:
            return x
        if isinstance(x, Indexable):
            return x.standing_for(not_copied(x.on_device()))
        return not_copied(x) if isinstance(x, jax.Array) else x

    try:
        return potential_of(*jax.tree.map(replaced, arguments))
    except VALUES_ARE_NEEDED:
        return potential_of(*arguments)
