"""Types shared by the subpackages, and the interfaces between them."""

from numpyro_sgmcmc.types.basic import Evaluation, Phase, Plate, Rows, RowsState, Schedule, Sites, TemperatureFromSteps
from numpyro_sgmcmc.types.dynamics import Adaptive, Checked, Dynamics, Flow, Integrator, Thermostatted
from numpyro_sgmcmc.types.gradients import GradientEstimator
from numpyro_sgmcmc.types.potentials import Potential, RowScheme

__all__ = [
    "Adaptive",
    "TemperatureFromSteps",
    "Checked",
    "Dynamics",
    "Evaluation",
    "Flow",
    "GradientEstimator",
    "Integrator",
    "Phase",
    "Plate",
    "Potential",
    "RowScheme",
    "Rows",
    "RowsState",
    "Schedule",
    "Sites",
    "Thermostatted",
]
