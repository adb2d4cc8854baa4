"""Latent variables of single rows: a model that has them -> a model of the global sites alone."""

from numpyro_sgmcmc.local.function import LocalFunction
from numpyro_sgmcmc.local.moves import LocalGibbs, LocalHMC, LocalLangevin

__all__ = ["LocalFunction", "LocalGibbs", "LocalHMC", "LocalLangevin"]
