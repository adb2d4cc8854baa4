"""
All undocumented parts of JAX that this package uses, each with the reason; those of NumPyro are in
:mod:`~numpyro_sgmcmc.model.numpyro_internals`. If a version renames or removes one of them,
``tests/model/test_compat.py`` fails first and names it. ``warn`` is what Python before 3.12 lacks.
"""

import os
import sys
import traceback
from types import CodeType
from typing import Any, TypeAlias
import warnings

import jax
from jax.experimental.buffer_callback import buffer_callback as buffer_callback  # writes into XLA's buffers, on CPUs
from jax.extend import core

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # SciPy's OpenBLAS reads them when it is loaded
PACKAGES = ("numpyro_sgmcmc", "numpyro", "jax", "jaxlib")  # no warning should point to lines of these
# from JAX 0.12 on this is another name of Jaxpr, which JAX does not declare for type checkers
ClosedJaxpr: TypeAlias = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]


def bind(eqn: Any, *operands: Any) -> list[Any]:
    """The outputs of an equation of a jaxpr for other operands."""
    # get_bind_params unpacks parameters that are functions, for example of custom_jvp
    outputs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def is_mapped(value: Any) -> bool:
    """Whether this value is mapped by ``jax.vmap``: JAX has no function for it."""
    return type(value).__name__ == "BatchTracer"


def jit_is_disabled() -> bool:
    """Whether ``jax.disable_jit()`` is on: JAX has no function for it."""
    return bool(getattr(jax.config, "jax_disable_jit"))  # noqa: B009, unknown to the type checker


def closed_over_arrays_are_constants() -> bool:
    """Whether a program has the arrays that it closes over as constants: no ``JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS``."""
    return not getattr(jax.config, "jax_use_simplified_jaxpr_constants")  # noqa: B009, unknown to the type checker


def local_in_failing_frame(error: BaseException, codes: tuple[CodeType | None, ...], name: str) -> Any:
    """
    A local variable of the outermost function with one of these codes in the traceback of an error; None if there is
    none, for example because JAX has removed frames from the traceback.
    """
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code in codes)
    return next((frame.f_locals[name] for frame in frames if name in frame.f_locals), None)


def slow_threads() -> str:
    """
    Advice if JAX calls the threads of SciPy's OpenBLAS: on a CPU, for factorisations and triangular solves. The threads
    wait for each other, so where other programs use the cores, a call of microseconds takes milliseconds.
    """
    if jax.default_backend() != "cpu" or "1" in (os.environ.get(name) for name in BLAS_THREADS):
        return ""
    return " If it takes minutes, set OPENBLAS_NUM_THREADS=1 in the environment before Python starts."


def warn(message: str) -> None:
    """A warning that points to the user's own line. ``warnings.warn`` can skip files only from Python 3.12 on."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
