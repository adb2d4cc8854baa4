"""The chains of a kernel, one or several that are mapped over: how they start, and a transition."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.chain import Chain, Descents
from numpyro_sgmcmc.engine.read_ahead import repeat_with_rows
from numpyro_sgmcmc.engine.run_check import RunCheck
from numpyro_sgmcmc.engine.state import RarelyChanging, SGMCMCState, axes_of_chains
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.model.centering import fitted
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.centred import centred_potential, hierarchical_sites
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import for_devices, is_contiguous, next_rows
from numpyro_sgmcmc.tuning.start import mean_field
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import RowsState, Sites
from numpyro_sgmcmc.utils.validation import is_key


def chain_for(chain: Chain, potential: ModelPotential) -> Chain:
    """The chain with the rows, the dynamics and, if it was not given, the gradient estimator for this potential."""
    chain = replace(chain, rows=for_devices(chain.rows, potential))
    dynamics = chain.dynamics.bind(potential)
    if dynamics is not chain.dynamics:
        return replace(chain, dynamics=dynamics)
    plain = not potential.plates or GIBBS_SITES_KWARG in potential.kwargs or potential.draws_local_sites
    if isinstance(chain.gradient, ControlVariate) and chain.gradient.shared and plain:
        return replace(chain, gradient=Minibatch())
    return chain


@dataclass(frozen=True)
class Chains:
    """Pure functions of their states."""

    potential: ModelPotential
    chain: Chain  # the chain for the potential, see chain_for
    searching: bool = True  # False after the warm-up: transitions without the program that chooses the settings

    def start(
        self, rng_key: jax.Array, init_params: Sites | None, num_warmup: int, fingerprint: int
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """The initial state of a chain, or of several for a batch of keys, and the energy of each site there."""
        potential, chain = self.potential, self.chain
        given = chain.centering
        centering = fitted(given, hierarchical_sites(potential), potential.prototype) if given else ()
        single = is_key(rng_key)
        chains = 1 if single else len(rng_key)
        steps = min(num_warmup * (chain.steps_per_sample or 1), 2**32 - 1)
        descents = (potential, 0) if init_params is not None else chain.descents(potential, chains)
        start_one = partial(self._one, steps, descents, centering, fingerprint)
        state, energies = start_one(rng_key, init_params) if single else jax.vmap(start_one)(rng_key, init_params)
        state = state._replace(settings=Settings(centering=centering))
        state = chain.begin_warm_up(potential, state, energies, num_warmup, descents)
        return RunCheck(chain, potential).start(state, chains), energies

    def _one(
        self,
        steps: int,
        descents: Descents,
        centering: Any,
        fingerprint: int,
        rng_key: jax.Array,
        init_params: Sites | None,
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """The state of one chain, without settings, and the energy of each site."""
        usual, chain = self.potential, self.chain
        if GIBBS_SITES_KWARG in usual.kwargs and init_params is not None:
            init_params = usual.unconstrain(init_params)
        rng_key, key_z, key_rows, key_momentum, key_gradient, key_descent, key_probes = random.split(rng_key, 7)
        rows, rows_state = next_rows(chain.rows, RowsState(key_rows, jnp.zeros((), jnp.uint32)), usual.plates)
        z = chain.start(usual, key_z, rows, init_params, descents)
        balanced = chain.balances and init_params is None
        if balanced:
            z, _ = mean_field(usual, z, *random.split(key_descent), contiguous=is_contiguous(chain.rows))
        key_energy, key_start, key_first = random.split(key_gradient, 3)
        energies = usual.by_site(z, rows, key_energy)
        energy = sum(energies.values(), start=jnp.zeros(()))
        potential = centred_potential(usual, centering)
        position = usual.in_variables_of(potential, z)
        gradient_state = chain.gradient.start(potential, position, key_start)
        keys = key_momentum, key_probes, key_first
        phase, h, gradient = chain.first(potential, position, rows, gradient_state, balanced, keys)
        state = SGMCMCState(
            i=jnp.zeros((), jnp.uint32),
            z=z,
            x=() if phase.z is z else phase.z,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            auxiliary=phase.auxiliary,
            noise_variance=phase.noise_variance,
            last_finite=phase.z if chain.integrator.evaluates_start else (),
            gradient=gradient,
            gradient_state=gradient_state,
            rows_state=rows_state,
            step_size=h,
            potential_estimate=energy,
            temperature=chain.dynamics.temperature(phase),
            diverging=jnp.zeros((), bool),
            # a zero that is mapped like the chains, so that NumPyro's buffers fit from the start
            refused=0 * jnp.isnan(energy).astype(jnp.int32),
            marks=RarelyChanging(0, jnp.uint32(steps), fingerprint, 0).packed(),
            rng_key=rng_key,
            accept_prob=1 + 0 * energy if chain.passes_a_test(usual) else (),
        )
        return state, energies

    def transition(self, state: SGMCMCState, fingerprint: int) -> SGMCMCState:
        """One MCMC transition of every chain: ``steps_per_sample`` steps."""
        potential, chain = self.potential, self.chain
        batched = jnp.ndim(state.i) == 1
        axes = axes_of_chains(chain) if batched else None
        over_chains = lambda fn, *in_axes: jax.vmap(fn, in_axes or (axes,), axes) if batched else fn  # noqa: E731
        if self.searching:
            state = chain.before(potential, state)
        steps = state.settings.steps_per_sample if chain.steps_per_sample is None else chain.steps_per_sample
        begun = over_chains(partial(chain.begin, fingerprint=fingerprint))(state)
        sampled = centred_potential(potential, state.settings.centering)
        step = over_chains(partial(chain.step, sampled), axes, 0)
        moved = repeat_with_rows(step, begun, steps, sampled, chain.rows)
        ended = over_chains(partial(chain.end, potential), axes, axes)(state, moved)
        return RunCheck(chain, sampled).after(state, ended, steps)
