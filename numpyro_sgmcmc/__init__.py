"""Stochastic-gradient MCMC for NumPyro: ``MCMC(SGHMC(model, step_size=..., batch_size=...))``."""

from numpyro_sgmcmc.batches import Reshuffled, WithoutReplacement, WithReplacement, shuffle_rows
from numpyro_sgmcmc.chain import SGMCMCState
from numpyro_sgmcmc.control_variate import SVRG, ControlVariate
from numpyro_sgmcmc.diagnostics import GradientNoise, gradient_noise
from numpyro_sgmcmc.gradients import Minibatch
from numpyro_sgmcmc.integrators import Splitting
from numpyro_sgmcmc.kernel import SGMCMC
from numpyro_sgmcmc.mode import find_mode
from numpyro_sgmcmc.saga import SAGA
from numpyro_sgmcmc.schedules import Constant, Cyclical, Piecewise, Polynomial
from numpyro_sgmcmc.sghmc import SGHMC
from numpyro_sgmcmc.sgld import SGLD
from numpyro_sgmcmc.sgnht import MSGNHT, SGNHT
from numpyro_sgmcmc.weights import resample, weighted_summary, weights

__version__ = "0.1.0"

__all__ = [
    "MSGNHT",
    "SAGA",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "SVRG",
    "Constant",
    "ControlVariate",
    "Cyclical",
    "GradientNoise",
    "Minibatch",
    "Piecewise",
    "Polynomial",
    "Reshuffled",
    "SGMCMCState",
    "Splitting",
    "WithReplacement",
    "WithoutReplacement",
    "find_mode",
    "gradient_noise",
    "resample",
    "shuffle_rows",
    "weighted_summary",
    "weights",
]
