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
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.read_ahead import repeat_with_rows
from numpyro_sgmcmc.engine.run_check import RunCheck
from numpyro_sgmcmc.engine.state import CENTRE, SGMCMCState, stream
from numpyro_sgmcmc.engine.tuned import axes_of_chains, tuned, with_tuning
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.model.centering import fitted
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import for_devices, is_contiguous
from numpyro_sgmcmc.tuning.data_share import PROBES, shares_of_data
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.search import expected_passes
from numpyro_sgmcmc.tuning.start import DESCENT_ROWS, descend, descents_of, passes_of
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.tuner import Tuner
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.validation import is_key

ROUNDS = 2  # of the choice of a centring


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
    """
    Pure functions of their states.

    :param chain: the chain for the potential, see :func:`chain_for`.
    :param steps_per_sample: integrator steps per transition. None: the number that the warm-up chooses.
    :param dense_mass: the coordinates whose correlations the warm-up estimates.
    :param known: coordinates and curvature with which the warm-up starts, or None.
    :param centering: the centring that is given by site, False, or None: chosen if the step size is.
    :param bool searching: False after the warm-up: transitions without the program that chooses the settings.
    """

    potential: ModelPotential
    chain: Chain
    steps_per_sample: int | None
    dense_mass: Any
    known: Any
    centering: Any = None
    searching: bool = True

    def start(
        self,
        rng_key: jax.Array,
        init_params: Sites | None,
        num_warmup: int,
        fingerprint: int,
        layout: Layout | None = None,
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """
        The state of a new chain, or of several chains if ``rng_key`` is a batch of keys.

        :param int num_warmup: transitions of the warm-up.
        :param int fingerprint: fingerprint of the data, 0 if it is not known.
        :param layout: the groups of a hierarchy, if the coordinates have their shape.
        :return: the initial state, and the energy of each site there.
        """
        potential, chain = self.potential, self.chain

        def one(rng_key, init_params):
            if GIBBS_SITES_KWARG in potential.kwargs and init_params is not None:
                init_params = potential.unconstrain(init_params)
            steps = min(num_warmup * (self.steps_per_sample or 1), 2**32 - 1)
            return chain.init(potential, rng_key, init_params, steps, fingerprint, descents, centering)

        chooses = chain.tuned and self.centering is None and GIBBS_SITES_KWARG not in potential.kwargs
        sites = potential.hierarchical_sites if self.centering or chooses else {}
        centering = fitted(self.centering, sites, potential.prototype) if self.centering else ()
        single = is_key(rng_key)
        descents = self._descents(1 if single else len(rng_key)) if init_params is None else 0
        state, energies = one(rng_key, init_params) if single else jax.vmap(one)(rng_key, init_params)
        if chooses and sites:
            centering = self._chosen(state if single else _best(state, energies))
        check = RunCheck(chain, potential)
        state = check.start(state._replace(centering=centering), 1 if single else len(rng_key))
        if chain.tuned:
            chains = None if single else len(rng_key)
            passes = passes_of(potential, descents * (chains or 1))
            if chooses and sites:
                passes += ROUNDS * (passes_of(potential, 1, DESCENT_ROWS) + 3 * PROBES * len(state.centering))
            state = with_tuning(chain, self._tuner, potential, state, chains, num_warmup, passes, layout)
        return state, energies

    def _chosen(self, state: SGMCMCState) -> Sites:
        """
        The centring that is chosen at the start of a chain. In the second round the descent is in the variables that
        the first has chosen: the scales that a mean-field normal finds are the better, the nearer they are independent.
        """
        sites = self.potential.hierarchical_sites
        written = {name: jnp.ones(site.shape, site.dtype) for name, site in sites.items()}
        keys = random.split(stream(state.rng_key, CENTRE), ROUNDS)

        def choose(k, chosen):
            z, centering = chosen
            key_rows, key_noise, key = random.split(keys[k], 3)
            centred = self.potential.centred(centering)
            start = self.potential.in_variables_of(centred, z)
            end = descend(centred, start, key_rows, key_noise, is_contiguous(self.chain.rows))
            z = centred.in_variables_of(self.potential, end)
            return z, shares_of_data(self.potential, z, key)

        return lax.fori_loop(0, ROUNDS, choose, (state.z, written))[1]

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
        centred = potential.centred(state.centering)
        step = over_chains(partial(chain.step, centred), axes, 0)
        moved = repeat_with_rows(step, begun, steps, centred, chain.rows)
        ended = over_chains(partial(chain.end, potential), axes, axes)(state, moved)
        return RunCheck(chain, centred).after(state, ended, steps)

    @property
    def announced(self) -> str:
        """What the warm-up does before the first draw; empty if nothing is chosen."""
        if not self._searches:
            return ""
        d = sum(site.size for site in self.potential.prototype.values())
        passes = float(f"{expected_passes(self.potential):.1g}")
        return f"searching for a normal approximation in {d} coordinates: about {passes:g} passes over the data"

    def _descents(self, chains: int) -> int:
        """Number of descents for the start of each chain of a kernel that chooses its settings."""
        arguments = jax.tree.leaves((self.potential.args, self.potential.kwargs))
        in_memory = not any(isinstance(leaf, RowArray) for leaf in arguments)
        free = self._searches and self.chain.init_strategy is None
        if not free or not in_memory or GIBBS_SITES_KWARG in self.potential.kwargs:
            return 0
        sites = self.potential.structure.sites.values()
        observed = sum(math.prod(site.log_prob_shape) for site in sites if site.observed)
        return descents_of(self.potential, observed, chains)

    @property
    def _searches(self) -> bool:
        """Whether the first transition searches for coordinates."""
        return self.chain.tuned and self.known is None

    @property
    def _tuner(self) -> Tuner:
        rule = StepRule(self.chain.dynamics, self.chain.integrator.needs_variance)
        return Tuner(rule, self.chain.gradient, self.chain.rows, self.steps_per_sample, self.dense_mass, self.known)

    def _first_gradient(self, batched: bool) -> Callable | None:
        if not self.chain.integrator.carries_gradient:
            return None
        first = partial(self.chain.with_first_gradient, self.potential)
        axes = axes_of_chains(self.chain)
        return jax.vmap(first, (axes, 0), axes) if batched else first


def _best(state: SGMCMCState, energies: dict[str, jax.Array]) -> SGMCMCState:
    """The chain with the smallest energy."""
    best = jnp.argmin(sum(energies.values(), start=jnp.zeros(())))
    return state._replace(z=jax.tree.map(lambda x: x[best], state.z), rng_key=state.rng_key[best])
