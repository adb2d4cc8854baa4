"""
What this package uses of NumPyro and JAX beyond their documented interfaces, each with the reason. A version that
renames or drops one of them fails ``tests/test_compat.py`` first, by name.
"""

import sys
import traceback
from types import CodeType
from typing import Any, TypeAlias

import jax
from jax.experimental.buffer_callback import buffer_callback  # a callback that writes where XLA computes, on CPUs
from jax.extend import core
import numpyro
from numpyro.contrib.control_flow.scan import scan_wrapper  # tells a `scan` from a `cond` among the messages
from numpyro.contrib.module import ParamShape  # stands for a parameter that random_*_module gives a prior
from numpyro.infer.gibbs import GIBBS_SITES_KWARG  # keyword under which Gibbs hands over the values of its other blocks
from numpyro.infer.util import find_valid_initial_params  # NumPyro's own search for a start, under every init strategy
from numpyro.primitives import _PYRO_STACK  # the handlers around a statement: a `subsample` does not know its plates

__all__ = [
    "GIBBS_SITES_KWARG",
    "SCAN_INDEX",
    "ClosedJaxpr",
    "ParamShape",
    "bind",
    "buffer_callback",
    "closed_over_arrays_are_constants",
    "find_valid_initial_params",
    "is_mapped",
    "jit_is_disabled",
    "local_in_failing_frame",
    "plates_around",
    "put_run",
    "sample_code",
    "scan_wrapper",
    "stack_level",
]

PACKAGES = ("numpyro_sgmcmc", "numpyro", "jax", "jaxlib")  # whose lines no warning should point to
# from JAX 0.12 on another name of Jaxpr, which JAX does not declare to type checkers
ClosedJaxpr: TypeAlias = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
SCAN_INDEX = "_scan_current_index"  # in site["infer"] inside a `scan`: the step, where a value is given for all steps


def plates_around() -> list[Any]:
    """The plates that a statement of a model stands in."""
    return [handler for handler in _PYRO_STACK if isinstance(handler, numpyro.plate)]


def bind(eqn: Any, *operands: Any) -> list[Any]:
    """The outputs of an equation of a jaxpr for other operands."""
    # parameters that are functions, as of custom_jvp, are unpacked by get_bind_params
    outputs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def is_mapped(value: Any) -> bool:
    """Whether ``jax.vmap`` hands over this value: JAX offers no function that tells."""
    return type(value).__name__ == "BatchTracer"


def jit_is_disabled() -> bool:
    """Whether ``jax.disable_jit()`` is on: JAX offers no function that tells."""
    return bool(getattr(jax.config, "jax_disable_jit"))  # noqa: B009, unknown to the type checker


def closed_over_arrays_are_constants() -> bool:
    """Whether a program holds the arrays that it closes over, see ``JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS``."""
    return not getattr(jax.config, "jax_use_simplified_jaxpr_constants")  # noqa: B009, unknown to the type checker


def sample_code() -> CodeType | None:
    """The code of ``numpyro.sample``, to find its frame in a traceback: errors in a site do not name it."""
    return getattr(numpyro.sample, "__code__", None)


def local_in_failing_frame(error: BaseException, codes: tuple[CodeType | None, ...], name: str) -> Any:
    """
    A local variable of the innermost function with one of these codes through which the error came; None where there
    is none, as where JAX has taken frames out of the traceback.
    """
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in codes:
            found = frame.f_locals.get(name, found)
    return found


def put_run(mcmc: Any, states: dict[str, Any], last_state: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Leaves an ``MCMC`` as its ``run`` does, with draws that were made elsewhere: it has no method for that."""
    mcmc._states, mcmc._states_flat, mcmc._last_state = states, None, last_state
    mcmc._args, mcmc._kwargs = args, kwargs


def stack_level() -> int:
    """
    The ``stacklevel`` of a warning that points to the user's own line. ``warnings.warn`` can skip files by itself only
    from Python 3.12 on.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
