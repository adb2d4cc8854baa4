"""Runs that can be continued after their process has ended: segments of a run, and their storage on disk."""

from numpyro_sgmcmc.runs.checkpointed import Checkpointed

__all__ = ["Checkpointed"]
