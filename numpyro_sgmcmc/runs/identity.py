"""
Identifies a run: numbers that distinguish models, kernels, data and versions, and that must be the same for a run to be
continued.

A function is identified by its computation: a checksum of the operations of its trace, with their shapes, plain
parameters, and constants. Unlike the text of a trace, which contains addresses, it is the same in every process.
"""

from importlib.metadata import version
import sys
from typing import Any
import zlib

import jax
from jax.extend.core import Jaxpr, Literal
import numpy as np

from numpyro_sgmcmc.data.arrays import fingerprint
from numpyro_sgmcmc.utils.compat import ClosedJaxpr

PLAIN = (bool, int, float, complex, str, type(None), np.dtype, np.generic)
CHECKSUMS = ("data", "model", "kernel", "rng_key", "init_params", "averages")


def versions() -> dict[str, str]:
    """Versions of all packages that may change the numbers of a run."""
    packages = {name: version(name) for name in ("numpyro_sgmcmc", "numpyro", "jax")}
    return packages | {"python": "{}.{}".format(*sys.version_info)}


def checksum(fn: Any, *args: Any) -> int:
    """A checksum of the computation of ``fn`` for arguments of these shapes."""
    words: list[str] = []
    _tell(jax.make_jaxpr(fn)(*args), words)
    return zlib.crc32("\n".join(words).encode())


def _tell(program: Any, words: list[str]) -> None:
    if isinstance(program, ClosedJaxpr):
        words += [str(fingerprint((np.asarray(x),), {})) for x in program.consts if _is_number(x)]
        program = program.jaxpr
    for eqn in program.eqns:
        values = [_literal(v) if isinstance(v, Literal) else str(v.aval) for v in eqn.invars]
        words.append(f"{eqn.primitive.name} {values} {[str(v.aval) for v in eqn.outvars]}")
        for name, value in sorted(eqn.params.items()):
            _tell_parameter(name, value, words)


def _tell_parameter(name: str, value: Any, words: list[str]) -> None:
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        _tell(value, words)
    elif isinstance(value, (tuple, list)):
        for part in value:
            _tell_parameter(name, part, words)
    elif isinstance(value, PLAIN):
        words.append(f"{name} {value}")


def _literal(v: Any) -> str:
    return f"{np.asarray(v.val)!r}" if _is_number(v.val) else str(v.aval)


def _is_number(x: Any) -> bool:
    return np.isscalar(x) or (hasattr(x, "dtype") and getattr(x.dtype, "kind", "V") in "biufc")


def check_same(was: dict[str, Any], now: dict[str, Any], folder: Any) -> None:
    """Raises a ValueError if the folder has another run; the message names the first difference."""
    for name, value in now.items():
        if was.get(name) != value:
            checksum = isinstance(value, int) and name in CHECKSUMS
            what = "is not that" if checksum else f"is {value!r}, not {was.get(name)!r}"
            raise ValueError(
                f"{name}: {what} of the run in {folder}, so the draws would not be those of one run. Continue with the "
                f"{name} of that run, or give another folder."
            )
