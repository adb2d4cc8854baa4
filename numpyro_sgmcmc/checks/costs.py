"""Warnings, at the start, of what costs as much as all rows of a minibatched plate, in every step or draw."""

import warnings

from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.utils.compat import stack_level

FEW = 1_000_000  # numbers that a step may use besides its minibatch: they take less than about a millisecond
RATIO = 10  # rows of the plate over those of a minibatch, from which on all rows are many


def warn_of_costs(potential: ModelPotential) -> None:
    """Warns of deterministic sites with a number for each row, and of data that are used before they are indexed."""
    for name, (plate, size) in potential.structure.of_all_rows.items():
        warnings.warn(
            f"deterministic site {name!r} has a number for each of the {size} rows of plate {plate!r}, but is outside "
            "of it, so every draw computes and keeps all. Move it into the plate, on data that are indexed by "
            "its rows, x[rows]. Then it is not collected; Predictive(kernel.model, mcmc.get_samples()) computes it.",
            stacklevel=stack_level(),
        )
    for plate, (size, n) in potential.plates.items():
        uses = [use for use in potential.structure.whole if use.numbers > FEW and size in use.shape]
        if size < RATIO * n or not uses:
            continue
        largest = max(uses, key=lambda use: use.numbers)
        warnings.warn(
            f"the model computes with all of {largest.argument}, of shape {largest.shape}, in every step, and not only "
            f"with the {n} of {size} rows of a minibatch of plate {plate!r}. Index it by the rows first, inside the "
            "plate: x[rows] @ w, not (x @ w)[rows]. What depends on the data alone, such as their mean, is best "
            "computed before the run.",
            stacklevel=stack_level(),
        )
