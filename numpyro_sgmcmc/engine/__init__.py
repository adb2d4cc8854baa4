"""The contract with ``numpyro.infer.MCMC``: chains, their state, and the settings of a run."""

from numpyro_sgmcmc.engine.settings import settings
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState

__all__ = ["SGMCMC", "SGMCMCState", "settings"]
