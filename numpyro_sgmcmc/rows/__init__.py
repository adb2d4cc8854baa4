"""Schemes that choose the rows of the data for each step."""

from numpyro_sgmcmc.rows.schemes import Reshuffled, Sharded, WithoutReplacement, WithReplacement, shuffle_rows

__all__ = ["Reshuffled", "Sharded", "WithReplacement", "WithoutReplacement", "shuffle_rows"]
