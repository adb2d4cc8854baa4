"""Named algorithms, one per file: dynamics, defaults and options."""

from numpyro_sgmcmc.kernels.adaptive_sghmc import AdaptiveSGHMC
from numpyro_sgmcmc.kernels.psgld import PSGLD
from numpyro_sgmcmc.kernels.sghmc import SGHMC
from numpyro_sgmcmc.kernels.sgld import SGLD
from numpyro_sgmcmc.kernels.sgnht import MSGNHT, SGNHT
from numpyro_sgmcmc.kernels.sgrhmc import SGRHMC
from numpyro_sgmcmc.kernels.sgrld import SGRLD

__all__ = ["AdaptiveSGHMC", "MSGNHT", "PSGLD", "SGHMC", "SGLD", "SGNHT", "SGRHMC", "SGRLD"]
