"""
All undocumented parts of NumPyro that this package uses, each with the reason. If a version renames or removes one of
them, ``tests/model/test_compat.py`` fails first and names it.
"""

from types import CodeType
from typing import Any

import jax
import numpyro
from numpyro.contrib.control_flow.scan import scan_wrapper as scan_wrapper  # tells `scan` from `cond` in messages
from numpyro.contrib.module import ParamShape as ParamShape  # replaces a parameter that random_*_module gives a prior
from numpyro.infer.gibbs import GIBBS_SITES_KWARG as GIBBS_SITES_KWARG  # argument: values of the other Gibbs blocks
from numpyro.infer.util import find_valid_initial_params as find_valid_initial_params  # a start, by any init strategy
from numpyro.primitives import _PYRO_STACK  # the handlers around a statement: a `subsample` does not know its plates

SCAN_INDEX = "_scan_current_index"  # in site["infer"] inside a `scan`: the step, if a value is given for all steps


def handlers_around(kind: type) -> list[Any]:
    """The handlers of a kind around the current statement of a model; plates are handlers, too."""
    return [handler for handler in _PYRO_STACK if isinstance(handler, kind)]


def rows_of(plate: Any) -> jax.Array:
    """The row numbers of a plate, which it has no public name for. Inside of ``scope`` it has another name."""
    return plate._indices


def sample_code() -> CodeType | None:
    """The code of ``numpyro.sample``, to find its frame in a traceback: errors in a site do not name it."""
    return getattr(numpyro.sample, "__code__", None)


def put_run(mcmc: Any, states: dict[str, Any], last_state: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Puts draws made elsewhere into an ``MCMC``, as if they were from its ``run``: it has no method for that."""
    mcmc._states, mcmc._states_flat, mcmc._last_state = states, None, last_state
    mcmc._args, mcmc._kwargs = args, kwargs
