"""
The results of a run in the form that the diagnostics need: unconstrained draws by chain, and the state of each chain.

NumPyro keeps constrained draws. Their unconstrained values z are computed by the transforms of the model. A value that
was rounded to the edge of its support has no finite z, so its draw is left out of diagnostics that need z.
"""

from collections.abc import Mapping
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.engine.settings import check_mcmc
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import PROBE, SGMCMCState, stream
from numpyro_sgmcmc.engine.tuned import axes_of_chains
from numpyro_sgmcmc.potential.compiled import compiled
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.coordinates import raveled, unraveler
from numpyro_sgmcmc.utils.monte_carlo import FEWEST
from numpyro_sgmcmc.utils.validation import checked_count

TOGETHER = 8  # number of draws at which gradients are evaluated at once


class Draws(NamedTuple):
    """
    - **z** - unconstrained values, raveled in the order of ``ravel_pytree``, float64, shape ``(chains, draws, d)``.
    - **names** - names of the coordinates, such as ``"w[2]"``.
    - **sites** - the site of each coordinate.
    - **left_out** - number of draws that have no finite z.
    """

    z: np.ndarray
    names: tuple[str, ...]
    sites: tuple[str, ...]
    left_out: int

    @property
    def flat(self) -> np.ndarray:
        """Draws of all chains, shape ``(chains * draws, d)``."""
        return self.z.reshape(-1, self.z.shape[-1])


def check_draws(mcmc: Any, caller: str) -> None:
    """
    :raises TypeError: if it is not an :class:`~numpyro.infer.MCMC`, with any kernel.
    :raises ValueError: if it has no draws.
    """
    check_mcmc(mcmc, caller)
    states = mcmc._states or {}
    # after mcmc.warmup(...), which keeps no draws, NumPyro's arrays of draws consist of zeros
    kept = (states.get("step_size"), states.get(mcmc.sampler.sample_field))
    if mcmc.last_state is None or not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(kept)):
        raise ValueError(f"{caller}(mcmc): there are no draws yet; call mcmc.run(...) first.")
    if not jax.tree.leaves(kept[1]):
        raise ValueError(f"{caller}(mcmc): the run has kept averages and no draws. Run it without averages=.")


def checked_run(mcmc: Any, caller: str, tempered: bool = True) -> tuple[SGMCMC, SGMCMCState]:
    """
    The kernel and the last state of a run; for :class:`~numpyro_sgmcmc.Tempered`, of the replica at temperature 1.

    :param bool tempered: whether the caller works with draws of a tempered run.
    :raises TypeError: if it is not an :class:`~numpyro.infer.MCMC` with a kernel of this package.
    :raises ValueError: if there was no run yet.
    """
    check_mcmc(mcmc, caller)
    if hasattr(mcmc.sampler, "temperatures") and not tempered:
        raise TypeError(
            f"{caller} continues single chains, but those of Tempered exchange their temperatures, so it would test "
            "other chains. Use summary or kernel_stein_discrepancy, or compare two runs."
        )
    if not (isinstance(mcmc.sampler, SGMCMC) or hasattr(mcmc.sampler, "temperatures")):
        raise TypeError(
            f"{caller} needs a run with a kernel of numpyro_sgmcmc, not {type(mcmc.sampler).__name__}. For a block of "
            "numpyro.infer.Gibbs see mcmc.last_state.block_states; for other kernels use ArviZ."
        )
    check_draws(mcmc, caller)
    sampler, state = mcmc.sampler, mcmc.last_state
    if hasattr(sampler, "temperatures"):
        return sampler.kernel, state.cold
    return sampler, state


def latent_draws(mcmc: MCMC) -> dict[str, np.ndarray]:
    """Constrained draws of the latent sites, without deterministic ones, shape ``(chains, draws, ...)``."""
    assert mcmc.last_state is not None
    latents = set(mcmc.last_state.z)
    samples = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(x) for name, x in samples.items() if name in latents}


def explored(mcmc: MCMC) -> np.ndarray:
    """
    Which draws are from the exploration of a :class:`~numpyro_sgmcmc.Cyclical`, shape ``(chains, draws)``.

    :raises ValueError: if the numbers of the steps were not collected, or if all draws are.
    """
    fields = mcmc.get_extra_fields(group_by_chain=True)
    tempered = hasattr(mcmc.sampler, "temperatures")
    schedule: Any = getattr(mcmc.sampler.kernel if tempered else mcmc.sampler, "schedule", None)
    shape = np.shape(fields["step_size"])[:2]
    if not getattr(schedule, "exploration", 0):
        return np.zeros(shape, bool)
    number = "cold.i" if tempered else "i"
    if number not in fields:
        raise ValueError(
            "the numbers of the steps are needed to identify the draws of the exploration of each cycle. Collect "
            f"them: mcmc.run(..., extra_fields=({number!r},))."
        )
    found = schedule.cycle_of(fields[number]).reshape(shape) < 0
    if found.all():
        raise ValueError("all draws are from the exploration of a cycle. Use shorter cycles, or more draws.")
    return found


def posterior_draws(mcmc: MCMC) -> dict[str, np.ndarray]:
    """:func:`latent_draws` without those of an exploration, which are not from the posterior."""
    of_posterior = ~explored(mcmc).any(0)  # in all chains, so that they have the same length
    return {name: x[:, of_posterior] for name, x in latent_draws(mcmc).items()}


def coordinate_names(prototype: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the coordinates in the order of ``ravel_pytree``, and the site of each."""
    names, sites = [], []
    for site in sorted(prototype):
        for index in np.ndindex(*prototype[site].shape):
            names.append(site + (f"[{', '.join(map(str, index))}]" if index else ""))
            sites.append(site)
    return tuple(names), tuple(sites)


def thinned(mcmc: MCMC, max_draws: int) -> dict[str, np.ndarray]:
    """The latent draws, evenly thinned to at most ``max_draws`` over all chains, including the last ones."""
    draws = posterior_draws(mcmc)
    chains, kept = next(iter(draws.values())).shape[:2]
    every = max(1, -(-chains * kept // checked_count("max_draws", max_draws)))
    return {name: x[:, (kept - 1) % every :: every] for name, x in draws.items()}


class TooFewDraws(ValueError):
    """A run has too few draws for a diagnostic."""


def unconstrained_draws(
    mcmc: MCMC, model_args: tuple, model_kwargs: Mapping[str, Any], max_draws: int, caller: str
) -> Draws:
    """
    The draws in unconstrained space, thinned.

    :raises TooFewDraws: if fewer than ``FEWEST`` draws of each chain are left.
    """
    kernel, _ = checked_run(mcmc, caller)
    draws = thinned(mcmc, max_draws)
    chains, kept = next(iter(draws.values())).shape[:2]

    def back(potential, values):
        def one(values):
            return raveled(potential.unconstrain(values))

        return lax.map(one, values, batch_size=64)

    flat = {name: jnp.asarray(x.reshape(-1, *x.shape[2:])) for name, x in draws.items()}
    z = np.asarray(on_model(kernel, back, model_args, model_kwargs)(flat), float).reshape(chains, kept, -1)
    finite = np.isfinite(z).all(-1).all(0)  # in all chains, so that they have the same length
    if finite.sum() < FEWEST:
        raise TooFewDraws(
            f"{caller}(mcmc) needs at least {FEWEST} draws of each chain whose unconstrained values are finite, but "
            f"has {finite.sum()} of {kept}. Use a larger num_samples, or check for sites at the edge of their support."
        )
    prototype = ModelPotential.of(kernel._model, model_args, model_kwargs, kernel._batch_size).prototype
    return Draws(z[:, finite], *coordinate_names(prototype), int((~finite).sum()) * chains)


def on_model(kernel: SGMCMC, fn: Any, model_args: tuple, model_kwargs: Mapping[str, Any]) -> Any:
    """
    ``fn(potential, *rest)`` as a compiled function of ``rest``. The potential is a function of NumPyro's unconstrained
    values, also if the kernel samples others, such as the expanded mean of a simplex.
    """
    return compiled(fn, kernel._model, model_args, model_kwargs, kernel._batch_size)


def numbers_of_rows(potential: ModelPotential) -> tuple[int, int]:
    """
    Rows of a batch, and of the data: the elements of observed sites in minibatched plates. Those of crossed plates
    multiply, those of separate plates add up.
    """
    plates = potential.plates
    inside = [[plates[name] for name in site.plates if name in plates] for site in potential.structure.sites.values()]
    found = {tuple(of) for of in inside if of}  # once for several sites in the same plates
    batch = sum(math.prod(plate.batch_size for plate in of) for of in found)
    return batch, sum(math.prod(plate.size for plate in of) for of in found)


def states_of(kernel: SGMCMC, state: SGMCMCState) -> list[SGMCMCState]:
    """The separate state of each chain."""
    if jnp.ndim(state.i) == 0:
        return [state]
    axes: Any = (0,) * len(SGMCMCState._fields)
    if kernel._chain.tuned and jnp.ndim(state.tuning.step_size) == 0:
        axes = axes_of_chains(kernel._chain)
    chains = len(np.asarray(state.i))

    def take(k, x, axis):
        return x if axis is None else jax.tree.map(lambda leaf: leaf[k], x)

    return [SGMCMCState(*(take(k, x, axis) for x, axis in zip(state, axes))) for k in range(chains)]


def key_of(state: SGMCMCState) -> jax.Array:
    """A key derived from the run that its chains do not use."""
    return stream(jnp.asarray(state.rng_key)[0] if jnp.ndim(state.i) else state.rng_key, PROBE)


def unravel_of(potential: ModelPotential) -> Any:
    """One vector -> values by site."""
    return unraveler(potential.prototype)


def at_draws(fn: Any, *arrays: Any) -> Any:
    """``fn`` at each draw, ``TOGETHER`` at a time."""
    return lax.map(lambda rest: fn(*rest), arrays, batch_size=TOGETHER)
