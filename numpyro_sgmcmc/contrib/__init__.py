"""What few need: kernels and diagnostics for special cases, and experiments."""

from numpyro_sgmcmc.contrib.barker import SGBarker
from numpyro_sgmcmc.contrib.correction import corrected
from numpyro_sgmcmc.contrib.isokinetic import SGIsokinetic
from numpyro_sgmcmc.contrib.linearity import score_linearity
from numpyro_sgmcmc.contrib.scir import SCIR
from numpyro_sgmcmc.contrib.simplex import ExpandedMean, Natural
from numpyro_sgmcmc.contrib.tempered import Tempered

__all__ = ["ExpandedMean", "Natural", "SCIR", "SGBarker", "SGIsokinetic", "Tempered", "corrected", "score_linearity"]
