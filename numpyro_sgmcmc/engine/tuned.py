r"""
A chain whose coordinates and step size the warm-up chooses: the same settings for all chains of a state.

A step is also refused after which the kinetic energy is larger than chance allows: the mass is 1, so :math:`|p|^2` is
chi-squared with d degrees of freedom, and

.. math:: |p|^2 \le 3 d + 50.

So :math:`\exp(-H)` is restricted to momenta that it has with a probability of more than 1 - 2e-12. Without a momentum
the same bound holds for :math:`|x' - x|^2 / 2h`: if a step is reversible, it remains so without moves above a length.
An unstable step breaks the bound after a few steps; otherwise it would end at huge but finite values. So does a chain
that falls back from far away, where :math:`|x'|^2` exceeds the same bound, faster and faster. An unstable step goes too
far, so the gradient points back where it ends; in a fall it points further down, :math:`(x' - x)^T \nabla U(x') < 0`.
Such a step is taken. Its momentum gets the length that it has on average. With the momentum reversed, the chain would
climb up again.

Where the curvature is much larger than in the warm-up, every step of size h may be refused. After each ten of them in a
row the steps have half of the size, and the count of refused steps then falls by one with each step that is taken. So
no chain stays there.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
import math
from typing import Any, ClassVar

import jax
from jax import lax, random
from jax.core import Tracer
import jax.numpy as jnp

from numpyro_sgmcmc.checks.before_start import check_not_mapped, check_settings_fit
from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.engine.chain import Chain, Descents
from numpyro_sgmcmc.engine.metropolis import is_reversible
from numpyro_sgmcmc.engine.state import SGMCMCState, Stream, derive_key
from numpyro_sgmcmc.gradients.second_order import Hessian
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.model.plates import AUTOMATIC
from numpyro_sgmcmc.potential.centred import centred_potential, sites_to_centre
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.monitor import squared_step
from numpyro_sgmcmc.rows.schemes import is_contiguous
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.tuning.all_rows import can_use_all_rows
from numpyro_sgmcmc.tuning.coordinates import is_high_dimensional, raveled
from numpyro_sgmcmc.tuning.data_share import chosen_centering, passes_of_centering
from numpyro_sgmcmc.tuning.groups import COUPLED, Layout, coupling, layout_of
from numpyro_sgmcmc.tuning.search import expected_passes
from numpyro_sgmcmc.tuning.start import FEW_ROWS, best_of_several, descents_of, passes_of, with_given
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.tuner import Tuner
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import Phase, Rows, Sites, TemperatureFromSteps
from numpyro_sgmcmc.utils import trees

PER_COORDINATE, BEYOND = 3, 50  # of the bound 3 d + 50
PATIENCE, MOST_HALVINGS = 10, 20  # steps refused in a row at one step size, and how often it is halved
FEW_COORDINATES = 0.1  # coordinates for each row of a minibatch: the noise of a control variate is about d / n


@dataclass(frozen=True)
class TunedChain(Chain):
    steps_per_sample: int | None = None
    checked: bool = True
    dense_mass: Any = True  # the coordinates whose correlations the warm-up estimates
    # settings of another run with which the warm-up starts, or None: it searches for some
    known: Settings | None = None
    layout: Layout | None = None  # the groups of a hierarchy, if the coordinates have their shape
    chooses_rows: bool = False  # whether no batch size is given, so that the steps may use all rows

    tuned: ClassVar[bool] = True
    batch_size: ClassVar[Any] = AUTOMATIC
    balances: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def tuner(self) -> Tuner:
        rule = StepRule(self.dynamics, self.integrator.needs_variance)
        options = self.steps_per_sample, self.dense_mass, self.known, self.layout
        return Tuner(rule, self.gradient, self.rows, *options)

    # -- the start ----------------------------------------------------------------------------------------------

    def start(
        self, potential: ModelPotential, rng_key: jax.Array, rows: Rows, init_params: Sites | None, descents: Descents
    ) -> Sites:
        """The position given by ``init_params`` and ``init_strategy``, or the best of several."""
        if self.init_strategy is not None:
            return super().start(potential, rng_key, rows, init_params, descents)
        of_few_rows, number = descents
        z = best_of_several(of_few_rows, rng_key, rows, number, is_contiguous(self.rows))
        return z if init_params is None else with_given(z, init_params)

    def first(self, potential: ModelPotential, z: Sites, *_: Any) -> tuple[Phase, jax.Array, Any]:
        """Zeros: the first transition sets the coordinates, and all that depends on them."""
        x = jnp.zeros_like(raveled(z))
        phase = self.dynamics.init(x, x)
        if self.integrator.needs_variance:
            phase = phase._replace(noise_variance=x)
        return phase, jnp.zeros((), x.dtype), x if self.integrator.carries_gradient else ()

    def begin_warm_up(
        self, potential: ModelPotential, state: SGMCMCState, energies: Any, num_warmup: int, descents: Descents
    ) -> SGMCMCState:
        """The initial state; its first transition chooses the settings, but for the centring."""
        several = jnp.ndim(state.i) == 1
        chains = len(state.i) if several else 1
        centering = state.settings.centering
        of_few_rows, number = descents
        passes = chains * number * passes_of(of_few_rows, FEW_ROWS)
        if self.centering is None and GIBBS_SITES_KWARG not in potential.kwargs and sites_to_centre(potential):
            best = _best(state, energies) if several else state
            key = derive_key(best.rng_key, Stream.CENTRE)
            centering = chosen_centering(potential, best.z, key, is_contiguous(self.rows))
            passes += passes_of_centering(potential, len(centering))
        settings, warm_up = self.tuner.start(potential, chains, num_warmup)
        settings = replace(settings, centering=centering, passes=settings.passes + passes)
        state = state._replace(settings=settings, warm_up=warm_up)
        if not self.gradient.shared:
            return state
        z = jax.tree.map(lambda x: jnp.zeros_like(x[0] if several else x), state.z)
        gradient_state = self.gradient.start(potential, z, random.key(0))
        if self.may_expand(potential):
            gradient_state = gradient_state._replace(hessian=Hessian.unknown(settings.coordinates, raveled(z)))
        if self.may_use_all_rows(potential):
            gradient_state = gradient_state._replace(all_rows=jnp.zeros((), bool))
        return state._replace(gradient_state=gradient_state)

    def may_expand(self, potential: ModelPotential) -> bool:
        """
        Whether the warm-up may add a term of second order to the control variate. Its programs take two seconds to
        compile, so only if noise may limit the step size: in a hierarchy, or with few rows for each coordinate.
        """
        order = getattr(self.gradient, "order", 1)
        if order == 1 or potential.randomised or potential.sources:
            return False
        form = len(self.layout.families) == 1 if self.layout else not is_high_dimensional(potential.prototype)
        if order == 2 and not form:
            raise ValueError(
                "ControlVariate(order=2) needs the Hessian of all rows: at most 1000 coordinates, or a hierarchy whose "
                "groups are those of one plate. Leave order= out."
            )
        return form and (order == 2 or bool(sites_to_centre(potential)) or _has_few_rows(potential))

    def may_use_all_rows(self, potential: ModelPotential) -> bool:
        """
        Whether the warm-up chooses between minibatches and all rows, see :mod:`~numpyro_sgmcmc.tuning.all_rows`: only
        if noise may limit the step size, as it compiles both gradients.
        """
        if not self.chooses_rows or potential.sources or not can_use_all_rows(self.gradient, potential):
            return False
        declared = any(potential.structure.plates[name][1] is not None for name in potential.plates)
        usual = not declared and GIBBS_SITES_KWARG not in potential.kwargs and self.layout is None
        return usual and is_reversible(self.integrator) and _has_few_rows(potential)

    def announced(self, potential: ModelPotential) -> str:
        if self.known is not None:
            return ""
        d = trees.size(potential.prototype)
        passes = float(f"{expected_passes(potential, self.layout):.1g}")
        return f"searching for a normal approximation in {d} coordinates: about {passes:g} passes over the data"

    def for_run(self, potential: ModelPotential, rng_key: jax.Array, on_potential: Callable) -> "TunedChain":
        """The chain with the groups of a hierarchy, if the coordinates have their shape."""
        check_not_mapped(rng_key)
        check_settings_fit(self.known, self.dense_mass, potential.prototype)
        usual = not (potential.randomised or potential.draws_local_sites or potential.sources)
        if self.known is not None or self.dense_mass is not True or not usual:
            return self

        def coupled(layout: Layout) -> bool:
            # a run in segments traces its start, for the shapes of its state; only then, as it compiles all operations
            traced = isinstance(rng_key, Tracer)
            with jax.ensure_compile_time_eval() if traced else nullcontext():
                return bool(on_potential(partial(coupling, layout=layout))(random.key(0)) > COUPLED)

        return replace(self, layout=layout_of(potential, coupled))

    def descents(self, potential: ModelPotential, chains: int) -> Descents:
        """With minibatches if it can be; none if the start or the coordinates are given."""
        on_disk = any(isinstance(leaf, RowArray) for leaf in jax.tree.leaves((potential.args, potential.kwargs)))
        given = self.known is not None or self.init_strategy is not None
        if given or on_disk or GIBBS_SITES_KWARG in potential.kwargs:
            return potential, 0
        observed = sum(math.prod(s.log_prob_shape) for s in potential.structure.sites.values() if s.observed)
        of_few_rows = potential.with_minibatches()
        return of_few_rows, descents_of(of_few_rows, observed, chains)

    # -- a step -------------------------------------------------------------------------------------------------

    def step_size(self, state: SGMCMCState) -> jax.Array:
        """h, after the warm-up multiplied by a relative schedule, and halved after each ten steps refused in a row."""
        h, halvings = state.settings.step_size, jnp.minimum(state.refused // PATIENCE, MOST_HALVINGS)
        h *= 0.5 ** halvings.astype(h.dtype)
        if isinstance(self.schedule, Constant):
            return h
        after = jnp.maximum(state.warm_up.transition - 1 - state.warm_up.num_warmup, 0).astype(h.dtype)
        return h * self.schedule(after * state.settings.steps_per_sample).astype(h.dtype)

    def still_refused(self, state: SGMCMCState) -> jax.Array:
        return jnp.where(state.refused >= PATIENCE, state.refused - 1, super().still_refused(state))

    def accepted(self, finite: jax.Array, old: Phase, new: Phase, h: jax.Array) -> jax.Array:
        """Whether chance also allows the kinetic energy, or without a momentum the length of the step."""
        temperature = self.dynamics.temperature(new)
        if isinstance(temperature, TemperatureFromSteps):
            temperature = squared_step(new.z, old.z, h, batched=False)
        d = new.z.size
        return finite if isinstance(temperature, tuple) else finite & _is_possible(d * temperature, d)

    def with_falls(
        self, taken: jax.Array, impossible: jax.Array, old: Phase, new: Phase, gradient: Any
    ) -> tuple[jax.Array, Phase]:
        temperature = self.dynamics.temperature(new)
        if isinstance(temperature, tuple) or not self.integrator.carries_gradient:
            return taken, new
        uphill = trees.total(jax.tree.map(lambda x, before, g: (x - before) * g, new.z, old.z, gradient))
        falls = impossible & (uphill < 0) & ~_is_possible(trees.total(jax.tree.map(jnp.square, new.z)), new.z.size)
        shorter = jnp.where(falls, 1 / jnp.sqrt(jnp.maximum(temperature, 1)), 1)
        return taken | falls, new._replace(momentum=jax.tree.map(lambda p: shorter * p, new.momentum))

    def passes_a_test(self, potential: ModelPotential) -> bool:
        """With all rows, steps of reversible words do, so that their size does not bias the draws."""
        exact = not potential.plates and not potential.randomised
        return is_reversible(self.integrator) and (exact or self.may_use_all_rows(potential))

    # -- the warm-up --------------------------------------------------------------------------------------------

    def before(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        # nothing is computed after the warm-up: a loop of one iteration or none, whose variables XLA updates in place,
        # while a conditional would copy the moments of the warm-up in every transition
        t = state.warm_up.transition
        during = (t <= state.warm_up.num_warmup).astype(jnp.int32)
        state = lax.fori_loop(0, during, lambda _, state: self._updated(potential, state), state)
        return state._replace(warm_up=state.warm_up._replace(transition=jnp.minimum(t + 1, 2**31 - 2)))

    def is_sampling(self, state: SGMCMCState) -> jax.Array:
        return state.warm_up.transition > state.warm_up.num_warmup

    def _updated(self, usual: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        batched = jnp.ndim(state.i) == 1
        with_axis = lambda tree: tree if batched else jax.tree.map(lambda x: x[None], tree)  # noqa: E731
        without = lambda tree: tree if batched else jax.tree.map(lambda x: x[0], tree)  # noqa: E731
        key = derive_key(state.rng_key[0] if batched else state.rng_key, Stream.TUNE)
        z, phase = with_axis((state.z, state.phase))
        centering, shared = state.settings.centering, self.gradient.shared
        potential = centred_potential(usual, centering)
        z = jax.vmap(partial(usual.in_variables_of, potential))(z) if centering else z
        gradient_state = state.gradient_state if shared else with_axis(state.gradient_state)
        tested = () if isinstance(state.accept_prob, tuple) else (state.accept_prob,)
        new = self.tuner.before(potential, state.settings, state.warm_up, z, phase, gradient_state, key, *tested)
        gradient_state = new.gradient_state if shared else without(new.gradient_state)
        state = state._replace(settings=new.settings, warm_up=new.warm_up, gradient_state=gradient_state)
        state = state.with_phase(without(new.phase))
        changed = partial(trees.where, new.renewed)
        if isinstance(state.last_finite, jax.Array):  # the gradient is finite at new positions
            state = state._replace(last_finite=changed(state.x, state.last_finite))
        if not self.integrator.carries_gradient:
            return state
        energy = without(new.energy).astype(state.potential_estimate.dtype)
        return state._replace(
            gradient=changed(without(new.gradient), state.gradient),
            potential_estimate=changed(energy, state.potential_estimate),
        )


def _has_few_rows(potential: ModelPotential) -> bool:
    """Whether a minibatch has few rows for each coordinate."""
    rows = max(plate.batch_size for plate in potential.plates.values())
    return trees.size(potential.prototype) >= FEW_COORDINATES * rows


def _is_possible(square: jax.Array, d: int) -> jax.Array:
    """Whether chance allows the sum of the squares of d standard normal numbers."""
    return square <= PER_COORDINATE * d + BEYOND


def _best(state: SGMCMCState, energies: dict[str, jax.Array]) -> SGMCMCState:
    """The chain with the smallest energy."""
    best = jnp.argmin(sum(energies.values(), start=jnp.zeros(())))
    return state._replace(z=jax.tree.map(lambda x: x[best], state.z), rng_key=state.rng_key[best])
