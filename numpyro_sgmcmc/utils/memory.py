"""The available memory, and the memory and the operations that a computation needs."""

import itertools
import logging
import math
import os
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal

from numpyro_sgmcmc.utils.compat import ClosedJaxpr

logger = logging.getLogger("numpyro_sgmcmc")

PRODUCTS = 4  # products of a matrix that take as long as another operation on a number
SLOW = 30  # other operations that take as long as one of a special function
SPECIAL = {"lgamma", "digamma", "igamma", "igammac", "igamma_grad_a", "random_gamma_grad", "erf_inv", "bessel_i0e"}
SPECIAL |= {"bessel_i1e", "regularized_incomplete_beta"}


def limit() -> int | None:
    """Bytes of memory on the default device; None if they are not known."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        return None  # not POSIX
    try:
        with open("/sys/fs/cgroup/memory.max") as file:  # the limit of a container
            limits.append(int(file.read()))
    except (OSError, ValueError):
        pass  # not in a container, or "max"
    return min(limits)


def announce(entries: str, table: Any, chains: int, share: float, alternatives: str) -> None:
    """
    Logs the memory that the tables of all chains will take. Raises a ValueError if it is more than this share of all
    memory.

    :param table: the shapes and dtypes of the table of one chain.
    """
    size = chains * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(table))
    what = f"the table of {entries} for {chains} chain{'s' * (chains > 1)}"
    available = limit()
    if available is not None and size > share * available:
        raise ValueError(
            f"{what} would take {size} bytes ({size / 1e9:.3g} GB), more than the share {share:g} of all "
            f"memory, {available} bytes. {alternatives}"
        )
    logger.info("%s takes %d bytes.", what, size)


def peak(jaxpr: Jaxpr) -> int:
    """
    The maximal number of bytes of values that are alive at the same time, if the equations run one by one. The
    arguments are not counted. This is an upper bound, because XLA fuses equations, and fused values need no memory.
    """
    last_use = {v: k for k, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    last_use |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
    alive, most = {}, 0
    for k, eqn in enumerate(jaxpr.eqns):
        made = {v: _bytes(v.aval) for v in eqn.outvars}
        inside = max(map(peak, bodies(eqn)), default=0)
        most = max(most, sum(alive.values()) + max(sum(made.values()), inside))
        alive |= made
        alive = {v: size for v, size in alive.items() if last_use.get(v, k) > k}
    return most


def largest_array(jaxpr: Jaxpr) -> int:
    """The numbers of the largest array that an equation makes."""
    made = (math.prod(_shape(v.aval)) for eqn in jaxpr.eqns for v in eqn.outvars)
    inside = (largest_array(body) for eqn in jaxpr.eqns for body in bodies(eqn))
    return max(itertools.chain(made, inside), default=0)


def operations(jaxpr: Jaxpr) -> float:
    """About how many operations on single numbers take as long as this program; a loop without a length counts once."""
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if inside := bodies(eqn):
            total += eqn.params.get("length", 1) * sum(map(operations, inside))
            continue
        size = sum(math.prod(_shape(v.aval)) for v in eqn.outvars)
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            size *= 1 + math.prod(_shape(eqn.invars[0].aval)[axis] for axis in contracted) / PRODUCTS
        total += size * (SLOW if name in SPECIAL else 1)
    return total


def _bytes(aval: Any) -> int:
    return math.prod(_shape(aval)) * getattr(getattr(aval, "dtype", None), "itemsize", 0)


def _shape(aval: Any) -> tuple[int, ...]:
    return getattr(aval, "shape", ())


def bodies(eqn: Any) -> list[Jaxpr]:
    """The programs inside an equation: those of calls, loops and branches."""
    values = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda value: isinstance(value, (ClosedJaxpr, Jaxpr)))
    programs = [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in values]
    return [program for program in programs if isinstance(program, Jaxpr)]
