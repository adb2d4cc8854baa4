"""
The table of all kernels, estimators and row schemes. ``test_catalogue.py`` tests every row: it runs through MCMC, is
traced once, keeps dtypes and structure, resumes exactly, and can be pickled.
"""

import re
from typing import Any, NamedTuple

import models
from numpyro.infer import init_to_median

from numpyro_sgmcmc import (
    MSGNHT,
    PSGLD,
    SAGA,
    SCIR,
    SGHMC,
    SGLD,
    SGMCMC,
    SGNHT,
    SGRHMC,
    SGRLD,
    SVRG,
    AdaptiveSGHMC,
    ControlVariate,
    Cyclical,
    Energy,
    ExpandedMean,
    Fisher,
    Natural,
    Piecewise,
    Polynomial,
    Recipe,
    Reshuffled,
    SGBarker,
    WithoutReplacement,
    WithReplacement,
)
from numpyro_sgmcmc.contrib.isokinetic import SGIsokinetic


class Cell(NamedTuple):
    kernel: Any
    model: Any
    args: tuple
    options: dict

    def __str__(self):
        options = (f"{k}={getattr(v, '__name__', v)}" for k, v in self.options.items())
        name = "-".join([self.kernel.__name__, self.model.__name__, *options])
        return re.sub("<function (.*?) at 0x.*?>", r"\1", name)  # the same in every process

    def make(self, **options):
        return self.kernel(self.model, **{"step_size": 1e-3, "steps_per_sample": 2, **self.options, **options})


GAUSSIAN = (models.gaussian, (models.ROWS,))
BATCH = {"batch_size": models.B}
SKEW = ((0.0, 1.0, -2.0), (-1.0, 0.0, 0.5), (2.0, -0.5, 0.0))

CATALOGUE = [
    # the words
    Cell(SGLD, *GAUSSIAN, {}),
    *(Cell(SGHMC, *GAUSSIAN, BATCH | {"integrator": w}) for w in ("euler", "ssi", "BAOAB", "NOGIN")),
    *(Cell(SGNHT, *GAUSSIAN, BATCH | {"integrator": w}) for w in ("euler", "BADODAB")),
    Cell(MSGNHT, *GAUSSIAN, BATCH | {"integrator": "ssi"}),
    # the row schemes
    Cell(SGLD, *GAUSSIAN, BATCH | {"rows": Reshuffled(contiguous=True)}),
    Cell(SGHMC, *GAUSSIAN, BATCH | {"rows": WithReplacement()}),
    Cell(MSGNHT, models.logistic, (models.X, models.COUNTS), BATCH | {"rows": WithoutReplacement()}),
    Cell(SGNHT, *GAUSSIAN, BATCH | {"rows": Reshuffled()}),
    # the estimators
    Cell(SGLD, *GAUSSIAN, BATCH | {"gradient": SAGA()}),
    Cell(SGHMC, models.logistic, (models.X, models.COUNTS), BATCH | {"gradient": SAGA("linear", "online")}),
    Cell(SGNHT, *GAUSSIAN, BATCH | {"gradient": SAGA("batch", "zeros")}),
    Cell(SGHMC, *GAUSSIAN, BATCH | {"gradient": SVRG(3), "integrator": "BAOAB"}),
    Cell(MSGNHT, *GAUSSIAN, BATCH | {"gradient": ControlVariate({"mu": 0.5})}),
    # step sizes
    Cell(SGLD, *GAUSSIAN, BATCH | {"step_size": Polynomial(1e-2, 1.0, 0.5)}),
    Cell(SGLD, *GAUSSIAN, BATCH | {"step_size": Piecewise((3, 9), (1e-2, 1e-3, 1e-4))}),
    Cell(SGHMC, *GAUSSIAN, BATCH | {"step_size": Cyclical(1e-2, 5), "integrator": "OBABO"}),
    Cell(SGHMC, *GAUSSIAN, BATCH | {"step_size": Cyclical(1e-2, 5, exploration=0.4)}),
    # the other options
    Cell(SGHMC, *GAUSSIAN, BATCH | {"friction": 0.0, "steps_per_sample": 1}),
    Cell(SGHMC, models.logistic, (models.X, models.COUNTS), BATCH | {"inverse_mass_matrix": {"weights": [1.0, 2, 3]}}),
    Cell(SGLD, models.logistic, (models.X, models.COUNTS), BATCH | {"skew": SKEW}),
    Cell(SGHMC, models.logistic, (models.X, models.COUNTS), BATCH | {"skew": SKEW}),
    # preconditioners of the warm-up
    Cell(PSGLD, models.logistic, (models.X, models.COUNTS), BATCH | {"memory": 0.9}),
    *(Cell(AdaptiveSGHMC, *GAUSSIAN, BATCH | {"integrator": w}) for w in ("ABOBA", "BAOAB", "NOGIN")),
    # jumps
    Cell(
        SGBarker, models.logistic, (models.X, models.COUNTS), BATCH | {"inverse_mass_matrix": {"weights": [1.0, 2, 3]}}
    ),
    # a momentum of constant length
    Cell(SGIsokinetic, models.logistic, (models.X, models.COUNTS), BATCH),
    Cell(SGIsokinetic, models.logistic, (models.X, models.COUNTS), BATCH | {"inverse_mass_matrix": "noise"}),
    # recipes
    Cell(SGMCMC, *GAUSSIAN, BATCH | {"dynamics": Recipe(D=models.metric), "integrator": "euler"}),
    Cell(SGMCMC, *GAUSSIAN, BATCH | {"dynamics": models.THERMOSTAT, "integrator": "euler"}),
    Cell(SGMCMC, *GAUSSIAN, BATCH | {"dynamics": Recipe(D=1.0, gradient_noise="measured"), "integrator": "E"}),
    Cell(SGRLD, *GAUSSIAN, BATCH | {"metric": Fisher(4), "gradient": SAGA()}),
    Cell(SGRLD, models.shares, (models.CATEGORIES,), BATCH | {"metric": ExpandedMean()}),
    Cell(SGRLD, models.shares, (models.CATEGORIES,), BATCH | {"metric": Natural(), "step_size": 1e-4}),
    Cell(SGRHMC, *GAUSSIAN, BATCH | {"metric": Energy(0.1, 10.0)}),
    Cell(SCIR, models.shares, (models.CATEGORIES,), BATCH),
    # the models
    Cell(SGLD, models.declared, (models.ROWS,), {"inverse_mass_matrix": 0.5}),
    Cell(SGHMC, models.logistic_subsample, (models.X, models.COUNTS), BATCH | {"integrator": "BAOAB"}),
    Cell(SGLD, models.crossed, (models.TABLE,), {"batch_size": {"rows": 2, "columns": models.B}}),
    Cell(SGLD, models.constrained, (models.VECTORS,), BATCH | {"init_strategy": init_to_median}),
    Cell(SGHMC, models.deterministics, (models.ROWS,), BATCH),
    Cell(SGLD, models.weighted, (models.ROWS,), BATCH),
]
