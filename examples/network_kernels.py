"""The kernels that the comparisons of samplers for networks have in common."""

from numpyro_sgmcmc import MSGNHT, PSGLD, SGHMC, AdaptiveSGHMC, Cyclical, SGBarker


def six_kernels(model, h, adaptive, barker, cycle, *, batch_size, steps_per_sample):
    """
    Name -> kernel.

    :param h: step size of SGHMC and MSGNHT, where .96 of the momentum is left after a step.
    :param adaptive, barker: step sizes of adaptive SGHMC and of SG-Barker.
    :param cycle: draws of a cycle of cyclical SGHMC.
    """
    common = {"batch_size": batch_size, "steps_per_sample": steps_per_sample}
    cycles = Cyclical(2 * h, cycle * steps_per_sample, exploration=0.4)
    return {
        "SGHMC": SGHMC(model, step_size=h, friction=0.04 / h, **common),
        "cyclical SGHMC": SGHMC(model, step_size=cycles, friction=0.04 / h, **common),
        "MSGNHT ssi": MSGNHT(model, step_size=h, diffusion=0.04 / h, integrator="ssi", **common),
        "adaptive SGHMC": AdaptiveSGHMC(model, step_size=adaptive, friction=2.5, **common),
        "PSGLD": PSGLD(model, step_size=1e-3, **common),
        "SG-Barker": SGBarker(model, step_size=barker, **common),
    }
