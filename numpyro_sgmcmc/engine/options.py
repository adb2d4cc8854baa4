"""
The options that all kernels share. :class:`KernelOptions` declares them for type checkers,
:class:`~numpyro_sgmcmc.SGMCMC` has their defaults and explains them, and the signature of every kernel lists them.
"""

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypedDict

from numpyro_sgmcmc.types import GradientEstimator, RowScheme, Schedule


class KernelOptions(TypedDict, total=False):
    """Keyword arguments of every kernel; :class:`~numpyro_sgmcmc.SGMCMC` explains them."""

    step_size: float | Schedule | None
    batch_size: int | Mapping[str, int] | None
    steps_per_sample: int | None
    gradient: GradientEstimator | None
    rows: RowScheme | None
    init_strategy: Any
    dense_mass: bool | Sequence[tuple[str, ...]]
    settings: Mapping[str, Any] | None
    local: Any
    centering: Any
    check: bool | None


def listed_options(kernel: type, parent: type) -> Signature:
    """The signature of a kernel's constructor, with ``**options`` replaced by the options of its parent class."""
    own = list(signature(kernel.__init__).parameters.values())[1:]
    listed = [each for each in own if each.kind is not Parameter.VAR_KEYWORD]
    if len(listed) < len(own):
        names, shared = {each.name for each in own}, KernelOptions.__annotations__
        listed += [
            each.replace(kind=Parameter.KEYWORD_ONLY)
            for each in signature(parent).parameters.values()
            if each.name not in names and (each.kind is Parameter.KEYWORD_ONLY or each.name in shared)
        ]
    return Signature(listed)
