"""Stochastic-gradient MCMC for NumPyro: ``MCMC(SGHMC(model, step_size=..., batch_size=...))``."""

from numpyro_sgmcmc.batches import Reshuffled, WithoutReplacement, WithReplacement, shuffle_rows
from numpyro_sgmcmc.chain import SGMCMCState
from numpyro_sgmcmc.gradients import Minibatch
from numpyro_sgmcmc.integrators import Splitting
from numpyro_sgmcmc.kernel import SGMCMC
from numpyro_sgmcmc.schedules import Constant, Cyclical, Piecewise, Polynomial
from numpyro_sgmcmc.sghmc import SGHMC
from numpyro_sgmcmc.sgld import SGLD
from numpyro_sgmcmc.sgnht import MSGNHT, SGNHT

__version__ = "0.1.0"

__all__ = [
    "MSGNHT",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "Constant",
    "Cyclical",
    "Minibatch",
    "Piecewise",
    "Polynomial",
    "Reshuffled",
    "SGMCMCState",
    "Splitting",
    "WithReplacement",
    "WithoutReplacement",
    "shuffle_rows",
]
