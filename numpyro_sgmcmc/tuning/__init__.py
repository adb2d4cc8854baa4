"""Starts of chains, step sizes, and the settings that the warm-up chooses."""

from numpyro_sgmcmc.tuning.mode import find_mode
from numpyro_sgmcmc.tuning.warm_start import warm_start

__all__ = ["find_mode", "warm_start"]
