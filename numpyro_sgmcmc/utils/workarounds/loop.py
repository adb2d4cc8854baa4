"""
The loop over the steps of a transition.

On a CPU, jax 0.12 compiles a loop without library calls to a single kernel, which runs on a single core. Steps on small
arrays then take a third of the time, but steps on large arrays do not use the other cores, and XLA has no limit on the
size. So a loop over large steps gets a library call: it sorts its counter.
docs/maintainers/measurements.md has the times.
"""

from collections.abc import Callable
import math
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun
import jax.numpy as jnp

from numpyro_sgmcmc.utils import compat
from numpyro_sgmcmc.utils.memory import bodies

LARGE = 2**14  # numbers in the largest array of a step from which a call is faster: docs/maintainers/measurements.md
# Operations whose arrays may be larger than what a step computes
BRANCHES = ("cond", "while", "scan", "custom_vmap_call")
IN_PLACE = ("scatter", "dynamic_update_slice")  # only a part of a table is written
MASKS = ("select", "broadcast", "stop_gradient")  # made by a map over chains, from an array and itself
PASSED_OVER = BRANCHES + IN_PLACE + MASKS


def repeat(step: Callable[[Any], Any], state: Any, times: Any) -> Any:
    """``step(step(... step(state)))``, ``times`` times, with ``step`` traced once."""
    # without tracing, a model can be debugged
    if compat.jit_is_disabled() or (isinstance(times, int) and times == 1):
        for _ in range(times):
            state = step(state)
        return state
    closed = jax.make_jaxpr(step)(state)
    treedef = jax.tree.structure(state)

    def once(state):
        return jax.tree.unflatten(treedef, jaxpr_as_fun(closed)(*jax.tree.leaves(state)))

    if one_kernel_on_one_core() and widest(closed.jaxpr) >= LARGE:
        # the counter is two equal numbers, sorted at every step: the cheapest operation that is a call
        body = lambda carry: (lax.sort(carry[0] + 1), once(carry[1]))  # noqa: E731
        return lax.while_loop(lambda carry: carry[0][0] < times, body, (jnp.zeros(2, jnp.int32), state))[1]
    return lax.fori_loop(0, times, lambda _, state: once(state), state)


def one_kernel_on_one_core() -> bool:
    """Whether XLA compiles a loop to a single kernel."""
    return jax.default_backend() == "cpu" and jax.__version_info__ >= (0, 12)


def widest(jaxpr: Jaxpr) -> int:
    """Numbers in the largest array that depends on the arguments, without the operations in ``PASSED_OVER``."""
    depending, numbers = set(jaxpr.invars), 0
    for eqn in jaxpr.eqns:
        if not any(v in depending for v in eqn.invars if not isinstance(v, Literal)):
            continue  # it is the same at every step, so XLA computes it once
        depending.update(eqn.outvars)
        if eqn.primitive.name.startswith(PASSED_OVER):
            continue
        sizes = [widest(body) for body in bodies(eqn)] or [math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars]
        numbers = max(numbers, *sizes, 0)
    return numbers
