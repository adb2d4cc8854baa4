"""Stochastic differential equations, one per file, their metrics (masses), and their integrators."""

from numpyro_sgmcmc.dynamics.matrices import LinearMap
from numpyro_sgmcmc.dynamics.metrics import Energy, Fisher
from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.recipe import Recipe
from numpyro_sgmcmc.dynamics.splitting import Splitting
from numpyro_sgmcmc.dynamics.underdamped import Underdamped

__all__ = [
    "Energy",
    "Fisher",
    "LinearMap",
    "NoseHoover",
    "Overdamped",
    "Recipe",
    "Splitting",
    "Underdamped",
]
