r"""
The kernels for images of digits. Their step sizes are given in words that do not depend on the temperature T: chains
sample :math:`\exp(-U / T)`, and at a small T they are nearly descent.
"""

from typing import Any, NamedTuple

import numpy as np
import numpyro

from numpyro_sgmcmc import MSGNHT, PSGLD, SGHMC, AdaptiveSGHMC, Cyclical, SGBarker

CONSTANT = "SGHMC"  # the only chain without cycles
ADAPTIVE = ("adaptive SGHMC", "PSGLD")  # they estimate a preconditioner in the first half of the warm-up
ESTIMATED = 2  # epochs of their warm-up: pixels that few images have are to be seen while it is estimated
QUIET = 1e-9  # a temperature at which the noise does not matter


class Setting(NamedTuple):
    r"""
    - **step** - the largest of a cycle, and for ``CONSTANT`` that of all steps. Of SGHMC and MSGNHT it is the rate of
      descent with momentum on the mean energy of a row, :math:`h = \sqrt{step \cdot T / N}`; of adaptive SGHMC and
      PSGLD the learning rate of Adam, :math:`h = \sqrt{step \cdot decay}` and :math:`h = step`; of SG-Barker the size
      of a jump, :math:`h = step^2 / 2`.
    - **temperature** - T.
    """

    step: float
    temperature: float


# what is tried on the validation rows
GRID = {
    "MSGNHT ssi": [Setting(step, T) for step in (0.05, 0.1, 0.2) for T in (1e-3, 0.02, 0.3)],
    "adaptive SGHMC": [Setting(step, T) for step in (1e-3, 3e-3, 1e-2) for T in (1e-3, 0.02)],
    "PSGLD": [Setting(step, T) for step in (3e-4, 1e-3, 3e-3, 1e-2) for T in (1e-3, 0.02)],
    "SG-Barker": [Setting(step, T) for step in (1e-5, 3e-5, 1e-4) for T in (1e-3, 0.02, 0.3)],
}


def digit_kernel(model: Any, name: str, setting: Setting, N: int, cycle: int, decay: float, **common: Any) -> Any:
    """
    :param cycle: steps of a cycle.
    :param decay: share of the momentum that is lost in a step.
    :param common: arguments of the kernel.
    """
    step, T = setting
    tempered = numpyro.handlers.scale(model, scale=1 / T) if T != 1 else model
    h = {
        "adaptive SGHMC": np.sqrt(step * decay),
        "PSGLD": step,
        "SG-Barker": step**2 / 2,
    }.get(name, np.sqrt(step * T / N))
    common |= {"step_size": float(h) if name == CONSTANT else Cyclical(float(h), cycle)}
    match name:
        case "MSGNHT ssi":
            return MSGNHT(tempered, diffusion=float(decay / h), integrator="ssi", **common)
        case "adaptive SGHMC":
            return AdaptiveSGHMC(tempered, friction=float(decay / h), memory=0.999, **common)
        case "PSGLD":
            return PSGLD(tempered, memory=0.999, **common)
        case "SG-Barker":
            return SGBarker(tempered, **common)
    return SGHMC(tempered, friction=float(decay / h), **common)
