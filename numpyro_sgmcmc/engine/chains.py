"""
The chains of a kernel: one chain, or several that are mapped over. If the warm-up chooses the step size, its settings
are updated before each transition, and are the same for all chains.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
import math
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.read_ahead import repeat_with_rows
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.engine.tuned import axes_of_chains, tuned, with_tuning
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import for_devices
from numpyro_sgmcmc.tuning.search import expected_passes
from numpyro_sgmcmc.tuning.start import descents_of, passes_of
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.tuner import Tuner
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.validation import is_key


def chain_for(chain: Chain, potential: ModelPotential) -> Chain:
    """The chain with the rows, the dynamics and, if it was not given, the gradient estimator for this potential."""
    chain = replace(chain, rows=for_devices(chain.rows, potential))
    dynamics = chain.dynamics.bind(potential)
    if dynamics is not chain.dynamics:
        return replace(chain, dynamics=dynamics)
    plain = not potential.plates or GIBBS_SITES_KWARG in potential.kwargs or potential.draws_local_sites
    if chain.tuned and isinstance(chain.gradient, ControlVariate) and chain.gradient.shared and plain:
        return replace(chain, gradient=Minibatch())
    return chain


@dataclass(frozen=True)
class Chains:
    """
    Pure functions of their states.

    :param chain: the chain for the potential, see :func:`chain_for`.
    :param steps_per_sample: integrator steps per transition. None: the number that the warm-up chooses.
    :param dense_mass: the coordinates whose correlations the warm-up estimates.
    :param known: coordinates and curvature with which the warm-up starts, or None.
    :param bool searching: False after the warm-up: transitions without the program that chooses the settings.
    """

    potential: ModelPotential
    chain: Chain
    steps_per_sample: int | None
    dense_mass: Any
    known: Any
    searching: bool = True

    def start(
        self, rng_key: jax.Array, init_params: Sites | None, num_warmup: int, fingerprint: int
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """
        The state of a new chain, or of several chains if ``rng_key`` is a batch of keys.

        :param int num_warmup: transitions of the warm-up.
        :param int fingerprint: fingerprint of the data, 0 if it is not known.
        :return: the initial state, and the energy of each site there.
        """
        potential, chain = self.potential, self.chain

        def one(rng_key, init_params):
            if GIBBS_SITES_KWARG in potential.kwargs and init_params is not None:
                init_params = potential.unconstrain(init_params)
            steps = min(num_warmup * (self.steps_per_sample or 1), 2**32 - 1)
            return chain.init(potential, rng_key, init_params, steps, fingerprint, descents)

        single = is_key(rng_key)
        descents = self._descents(1 if single else len(rng_key)) if init_params is None else 0
        state, energies = one(rng_key, init_params) if single else jax.vmap(one)(rng_key, init_params)
        if chain.tuned:
            chains = None if single else len(rng_key)
            passes = passes_of(potential, descents * (chains or 1))
            state = with_tuning(chain, self._tuner, potential, state, chains, num_warmup, passes)
        return state, energies

    def transition(self, state: SGMCMCState, fingerprint: int) -> SGMCMCState:
        """One MCMC transition of every chain: ``steps_per_sample`` steps."""
        potential, chain, steps = self.potential, self.chain, self.steps_per_sample
        batched = jnp.ndim(state.i) == 1
        axes = axes_of_chains(chain) if batched else None
        over_chains = lambda fn, *of: jax.vmap(fn, of or (axes,), axes) if batched else fn  # noqa: E731
        if chain.tuned:
            if self.searching:
                state = tuned(self._tuner, potential, state, self._first_gradient(batched))
            steps = state.tuning.num_steps if steps is None else steps
        begun = over_chains(partial(chain.begin, fingerprint=fingerprint))(state)
        step = over_chains(partial(chain.step, potential), axes, 0)
        moved = repeat_with_rows(step, begun, steps, potential, chain.rows)
        return over_chains(partial(chain.end, potential), axes, axes)(state, moved)

    @property
    def announced(self) -> str:
        """What the warm-up does before the first draw; empty if nothing is chosen."""
        if not self.chain.tuned or self.known is not None:
            return ""
        d = sum(site.size for site in self.potential.prototype.values())
        passes = float(f"{expected_passes(self.potential):.1g}")
        return f"searching for a normal approximation in {d} coordinates: about {passes:g} passes over the data"

    def _descents(self, chains: int) -> int:
        """Number of descents for the start of each chain of a kernel that chooses its settings."""
        arguments = jax.tree.leaves((self.potential.args, self.potential.kwargs))
        in_memory = not any(isinstance(leaf, RowArray) for leaf in arguments)
        free = self.chain.tuned and self.chain.init_strategy is None and self.known is None
        if not free or not in_memory or GIBBS_SITES_KWARG in self.potential.kwargs:
            return 0
        sites = self.potential.structure.sites.values()
        observed = sum(math.prod(site.log_prob_shape) for site in sites if site.observed)
        return descents_of(self.potential, observed, chains)

    @property
    def _tuner(self) -> Tuner:
        rule = StepRule(self.chain.dynamics, self.chain.integrator.needs_variance)
        return Tuner(rule, self.chain.gradient, self.chain.rows, self.steps_per_sample, self.dense_mass, self.known)

    def _first_gradient(self, batched: bool) -> Callable | None:
        if not self.chain.integrator.carries_gradient:
            return None
        first = partial(self.chain.first_gradient, self.potential)
        return jax.vmap(first, (axes_of_chains(self.chain), 0)) if batched else first
