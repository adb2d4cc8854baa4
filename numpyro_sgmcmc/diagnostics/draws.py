"""The constrained draws of the latent sites of a run, as ``MCMC`` keeps them."""

from typing import Any

import jax
from jax import lax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.engine.settings import check_mcmc
from numpyro_sgmcmc.utils.validation import checked_count

TOGETHER = 8  # number of draws at which gradients are evaluated at once


def check_draws(mcmc: Any, caller: str) -> None:
    """Raises an error if it is not an MCMC, with any kernel, or has no draws."""
    check_mcmc(mcmc, caller)
    states = mcmc._states or {}
    # after mcmc.warmup(...), which keeps no draws, NumPyro's arrays of draws consist of zeros
    kept = (states.get("step_size"), states.get(mcmc.sampler.sample_field))
    if mcmc.last_state is None or not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(kept)):
        raise ValueError(f"{caller}(mcmc): there are no draws yet; call mcmc.run(...) first.")
    if not jax.tree.leaves(kept[1]):
        raise ValueError(f"{caller}(mcmc): the run has kept averages and no draws. Run it without averages=.")


def latent_draws(mcmc: MCMC) -> dict[str, np.ndarray]:
    """Constrained draws of the latent sites, without deterministic ones, shape ``(chains, draws, ...)``."""
    assert mcmc.last_state is not None
    latents = set(mcmc.last_state.z)
    samples = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(x) for name, x in samples.items() if name in latents}


def explored(mcmc: MCMC) -> np.ndarray:
    """
    Which draws are from the exploration of a Cyclical schedule, shape ``(chains, draws)``. Raises a ValueError if that
    is not known, or if all draws are.
    """
    fields = mcmc.get_extra_fields(group_by_chain=True)
    schedule: Any = getattr(getattr(mcmc.sampler, "kernel", mcmc.sampler), "schedule", None)
    shape = np.shape(fields["step_size"])[:2]
    if not getattr(schedule, "exploration", 0):
        return np.zeros(shape, bool)
    number = "cold.i" if hasattr(mcmc.sampler, "temperatures") else "i"
    if number not in fields:
        raise ValueError(
            "the numbers of the steps are needed to identify the draws of the exploration of each cycle. Collect "
            f"them: mcmc.run(..., extra_fields=({number!r},))."
        )
    exploring = schedule.cycle_of(fields[number]).reshape(shape) < 0
    if exploring.all():
        raise ValueError("all draws are from the exploration of a cycle. Use shorter cycles, or more draws.")
    return exploring


def posterior_draws(mcmc: MCMC) -> dict[str, np.ndarray]:
    """:func:`latent_draws` without those of an exploration, which are not from the posterior."""
    of_posterior = ~explored(mcmc).any(0)  # in all chains, so that they have the same length
    return {name: x[:, of_posterior] for name, x in latent_draws(mcmc).items()}


def thinned(mcmc: MCMC, max_draws: int) -> dict[str, np.ndarray]:
    """The latent draws, evenly thinned to at most ``max_draws`` over all chains, including the last ones."""
    draws = posterior_draws(mcmc)
    chains, kept = next(iter(draws.values())).shape[:2]
    every = max(1, -(-chains * kept // checked_count("max_draws", max_draws)))
    return {name: x[:, (kept - 1) % every :: every] for name, x in draws.items()}


def at_draws(fn: Any, *arrays: Any) -> Any:
    """``fn`` at each draw, ``TOGETHER`` at a time."""
    return lax.map(lambda rest: fn(*rest), arrays, batch_size=TOGETHER)
