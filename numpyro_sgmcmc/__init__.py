"""
Stochastic-gradient MCMC for NumPyro: ``MCMC(SGHMC(model, batch_size=...))``.

The names that most users need are here. The others are in the namespaces of their subjects: ``schedules``,
``gradients``, ``rows``, ``dynamics``, ``local``, ``data``, ``diagnostics`` and ``contrib``. All of their names can be
imported from here as well. What a run does not need is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numpyro_sgmcmc.engine import SGMCMC
from numpyro_sgmcmc.kernels import MSGNHT, PSGLD, SGHMC, SGLD, SGNHT, SGRHMC, SGRLD, AdaptiveSGHMC

if TYPE_CHECKING:
    from numpyro_sgmcmc import contrib, data, diagnostics, dynamics, gradients, local, rows, schedules
    from numpyro_sgmcmc.data import OnDisk, shard_rows
    from numpyro_sgmcmc.diagnostics import compare, couple, predict, step_halving, summary, to_arviz
    from numpyro_sgmcmc.engine import settings
    from numpyro_sgmcmc.runs import Checkpointed
    from numpyro_sgmcmc.tuning import find_mode, warm_start

__version__ = "0.2.0"

__all__ = [
    "AdaptiveSGHMC",
    "Checkpointed",
    "MSGNHT",
    "OnDisk",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "SGRHMC",
    "SGRLD",
    "compare",
    "contrib",
    "couple",
    "data",
    "diagnostics",
    "dynamics",
    "find_mode",
    "gradients",
    "local",
    "predict",
    "rows",
    "schedules",
    "settings",
    "shard_rows",
    "step_halving",
    "summary",
    "to_arviz",
    "warm_start",
]

_NAMESPACES = "engine schedules rows gradients dynamics local data tuning runs diagnostics contrib".split()


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    for namespace in _NAMESPACES if not name.startswith("_") else ():
        module = import_module(f"{__name__}.{namespace}")
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    modules = [import_module(f"{__name__}.{namespace}") for namespace in _NAMESPACES]
    return sorted({"__version__", *__all__, *_NAMESPACES, *(name for module in modules for name in module.__all__)})
