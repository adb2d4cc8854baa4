"""Stochastic-gradient MCMC for NumPyro: ``MCMC(SGHMC(model, batch_size=...))``."""

from numpyro_sgmcmc.contrib.correction import corrected
from numpyro_sgmcmc.contrib.linearity import score_linearity
from numpyro_sgmcmc.contrib.scir import SCIR
from numpyro_sgmcmc.contrib.sg_barker import SGBarker
from numpyro_sgmcmc.contrib.simplex_metrics import ExpandedMean, Natural
from numpyro_sgmcmc.contrib.tempered import Tempered
from numpyro_sgmcmc.data.on_disk import OnDisk
from numpyro_sgmcmc.data.sharded import ShardedRows, shard_rows
from numpyro_sgmcmc.diagnostics.comparison import compare
from numpyro_sgmcmc.diagnostics.coupling import couple
from numpyro_sgmcmc.diagnostics.gradient_noise import GradientNoise, gradient_noise
from numpyro_sgmcmc.diagnostics.predict import Predictions, predict
from numpyro_sgmcmc.diagnostics.stein import kernel_stein_discrepancy
from numpyro_sgmcmc.diagnostics.step_halving import step_halving
from numpyro_sgmcmc.diagnostics.summary import summary
from numpyro_sgmcmc.diagnostics.to_arviz import to_arviz
from numpyro_sgmcmc.diagnostics.weights import resample, weighted_summary, weights
from numpyro_sgmcmc.dynamics.matrices import LinearMap
from numpyro_sgmcmc.dynamics.metrics import Energy, Fisher
from numpyro_sgmcmc.dynamics.recipe import Recipe
from numpyro_sgmcmc.dynamics.splitting import Splitting
from numpyro_sgmcmc.engine.settings import settings
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.gradients.saga import SAGA
from numpyro_sgmcmc.gradients.svrg import SVRG
from numpyro_sgmcmc.kernels.adaptive_sghmc import AdaptiveSGHMC
from numpyro_sgmcmc.kernels.psgld import PSGLD
from numpyro_sgmcmc.kernels.sghmc import SGHMC
from numpyro_sgmcmc.kernels.sgld import SGLD
from numpyro_sgmcmc.kernels.sgnht import MSGNHT, SGNHT
from numpyro_sgmcmc.kernels.sgrhmc import SGRHMC
from numpyro_sgmcmc.kernels.sgrld import SGRLD
from numpyro_sgmcmc.local.function import LocalFunction
from numpyro_sgmcmc.local.moves import LocalGibbs, LocalHMC, LocalLangevin
from numpyro_sgmcmc.rows.schemes import Reshuffled, Sharded, WithoutReplacement, WithReplacement, shuffle_rows
from numpyro_sgmcmc.runs.checkpointed import Checkpointed
from numpyro_sgmcmc.tuning.mode import find_mode
from numpyro_sgmcmc.tuning.schedules import Constant, Cyclical, Piecewise, Polynomial
from numpyro_sgmcmc.tuning.warm_start import warm_start

__version__ = "0.1.0"

__all__ = [
    "MSGNHT",
    "PSGLD",
    "SAGA",
    "SCIR",
    "SGBarker",
    "Tempered",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "SGRHMC",
    "SGRLD",
    "SVRG",
    "AdaptiveSGHMC",
    "Checkpointed",
    "Constant",
    "ControlVariate",
    "Cyclical",
    "Energy",
    "ExpandedMean",
    "Fisher",
    "GradientNoise",
    "LinearMap",
    "LocalFunction",
    "LocalGibbs",
    "LocalHMC",
    "LocalLangevin",
    "Minibatch",
    "Natural",
    "OnDisk",
    "Piecewise",
    "Polynomial",
    "Predictions",
    "Recipe",
    "Reshuffled",
    "SGMCMCState",
    "Sharded",
    "ShardedRows",
    "Splitting",
    "WithReplacement",
    "WithoutReplacement",
    "compare",
    "corrected",
    "couple",
    "find_mode",
    "gradient_noise",
    "kernel_stein_discrepancy",
    "predict",
    "resample",
    "score_linearity",
    "settings",
    "shard_rows",
    "shuffle_rows",
    "step_halving",
    "summary",
    "to_arviz",
    "warm_start",
    "weighted_summary",
    "weights",
]
