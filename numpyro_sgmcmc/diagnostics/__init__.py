"""Diagnostics of a run, predictions, and conversion to ArviZ."""

from numpyro_sgmcmc.diagnostics.comparison import compare
from numpyro_sgmcmc.diagnostics.coupling import couple
from numpyro_sgmcmc.diagnostics.gradient_noise import GradientNoise, gradient_noise
from numpyro_sgmcmc.diagnostics.predict import Predictions, predict
from numpyro_sgmcmc.diagnostics.stein import kernel_stein_discrepancy
from numpyro_sgmcmc.diagnostics.step_halving import step_halving
from numpyro_sgmcmc.diagnostics.summary import summary
from numpyro_sgmcmc.diagnostics.to_arviz import to_arviz
from numpyro_sgmcmc.diagnostics.weights import resample, weighted_summary, weights

__all__ = [
    "GradientNoise",
    "Predictions",
    "compare",
    "couple",
    "gradient_noise",
    "kernel_stein_discrepancy",
    "predict",
    "resample",
    "step_halving",
    "summary",
    "to_arviz",
    "weighted_summary",
    "weights",
]
