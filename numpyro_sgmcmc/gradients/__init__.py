"""Gradient estimators: rows -> unbiased gradient of U."""

from numpyro_sgmcmc.gradients.control_variate import SVRG, ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.gradients.saga import SAGA

__all__ = [
    "ControlVariate",
    "Minibatch",
    "SAGA",
    "SVRG",
]
