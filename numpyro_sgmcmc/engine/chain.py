"""
One chain whose step size is given. Pure functions of potential and state; the kernel maps them over chains.

A step that ends in non-finite values, or outside the support, is refused: the chain goes back to the last position
with a finite energy and reverses its momentum,

.. math:: (z, p) \\to (z, -p).

For symmetric words this is the rejection of generalised HMC (Horowitz 1991): it leaves :math:`\\exp(-H)`, restricted to
the support, invariant up to the error of the steps. A second refusal in a row also halves the momentum, so that no
chain is trapped between two boundaries.

A chain whose settings the warm-up chooses (:mod:`~numpyro_sgmcmc.engine.tuned`) refuses more steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.metropolis import acceptance, passes, work
from numpyro_sgmcmc.engine.state import RarelyChanging, SGMCMCState, Stream, derive_key
from numpyro_sgmcmc.potential.centred import centred_potential
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows, row_weights
from numpyro_sgmcmc.schedules import schedule_index
from numpyro_sgmcmc.tuning.all_rows import uses_all_rows
from numpyro_sgmcmc.tuning.coordinates import gradient_in_x, sites_at
from numpyro_sgmcmc.tuning.start import gradient_variance, with_given
from numpyro_sgmcmc.types import (
    Adaptive,
    Dynamics,
    Evaluation,
    GradientEstimator,
    Integrator,
    Phase,
    Rows,
    RowScheme,
    RowsState,
    Schedule,
    Sites,
    Thermostatted,
)
from numpyro_sgmcmc.utils import noise, trees

Descents = tuple[ModelPotential, int]  # the potential of the descents for a start, and their number for each chain


@dataclass(frozen=True)
class Chain:
    dynamics: Dynamics
    integrator: Integrator
    gradient: GradientEstimator
    rows: RowScheme
    schedule: Schedule
    init_strategy: Any = None  # as for NUTS. None: the dynamics chooses the start
    steps_per_sample: int | None = 1  # integrator steps per transition. None: the number that the warm-up chooses
    centering: Any = None  # the given centring by site, False: all as written, or None
    checked: bool = False  # whether the draws are checked, see run_check

    tuned: ClassVar[bool] = False  # whether the warm-up chooses the settings
    batch_size: ClassVar[Any] = None  # the one that is used if none is given

    # -- the start ----------------------------------------------------------------------------------------------

    def descents(self, potential: ModelPotential, chains: int) -> Descents:
        """The descents for the start of a chain that is one of ``chains``."""
        return potential, 0

    def start(
        self, potential: ModelPotential, rng_key: jax.Array, rows: Rows, init_params: Sites | None, descents: Descents
    ) -> Sites:
        """The position by ``init_params`` and ``init_strategy``, or by descents."""
        z = potential.initial(rng_key, rows, self.init_strategy)
        return z if init_params is None else with_given(z, init_params)

    @property
    def balances(self) -> bool:
        """Whether the default start is in the bulk of the posterior, where the thermostats are at equilibrium."""
        return isinstance(self.dynamics, Thermostatted) and self.init_strategy is None

    def first(
        self, potential: ModelPotential, z: Sites, rows: Rows, gradient_state: Any, balanced: bool, keys: tuple
    ) -> tuple[Phase, jax.Array, Any]:
        """Phase and step size at the start, and the gradient for words that carry it."""
        key_momentum, key_probes, key_gradient = keys
        phase, variance = self.dynamics.init(z, noise.normal_like(key_momentum, z)), ()
        h = self.h(jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32), z)
        if balanced or self.integrator.needs_variance:
            variance = self._white_noise(potential, z, gradient_state, key_probes)
        if balanced:
            assert isinstance(self.dynamics, Thermostatted)
            phase = self.dynamics.at_equilibrium(phase, h, variance)
        if self.integrator.needs_variance:
            phase = phase._replace(noise_variance=variance)
        if not self.integrator.carries_gradient:
            return phase, h, ()
        return phase, h, self.evaluate(potential, z, rows, gradient_state, key_gradient).gradient

    def _white_noise(self, potential: ModelPotential, z: Sites, gradient_state: Any, rng_key: jax.Array) -> Sites:
        """Variance of the gradient noise at ``z`` if that is white noise; 0 if it is not, or if there is none."""
        noisy = potential.plates or potential.randomised
        if not noisy or not getattr(self.rows, "independent", False):
            return jax.tree.map(jnp.zeros_like, z)
        key_rows, key_model = random.split(rng_key)

        def gradient_fn(k):
            rows, _ = next_rows(self.rows, RowsState(key_rows, k), potential.plates)
            return self.evaluate(potential, z, rows, gradient_state, random.fold_in(key_model, k)).gradient

        return gradient_variance(gradient_fn)

    # -- a transition: begin, some steps, end -------------------------------------------------------------------

    def begin(self, state: SGMCMCState, fingerprint: int) -> SGMCMCState:
        """The state at the start of a transition, with the key of its steps."""
        marks = RarelyChanging.unpacked(state.marks)
        changed = (marks.fingerprint != fingerprint) & (marks.fingerprint != 0) & (fingerprint != 0)
        return state._replace(
            i=jnp.asarray(state.i, jnp.uint32),
            rows_state=state.rows_state._replace(t=jnp.asarray(state.rows_state.t, jnp.uint32)),
            diverging=jnp.zeros_like(state.diverging),
            accept_prob=jax.tree.map(jnp.zeros_like, state.accept_prob),
            marks=marks._replace(data_changed=marks.data_changed | changed).packed(),
            rng_key=derive_key(state.rng_key, Stream.STEPS),
        )

    def step(self, potential: ModelPotential, state: SGMCMCState, read: tuple[jax.Array, ...] = ()) -> SGMCMCState:
        """One step of the integrator. If it is refused, the counter and the rows still advance."""
        # even numbers for the noise, odd ones for the model: a split would be computed even if the model needs no key
        key_noise = random.fold_in(state.rng_key, 2 * state.i)
        key_model = random.fold_in(state.rng_key, 2 * state.i + 1)
        rows, rows_state = next_rows(self.rows, state.rows_state, potential.plates, state.settings.contiguous)
        marks = RarelyChanging.unpacked(state.marks)
        position = self.position(potential, state)
        h = self.step_size(state)
        key_begin = random.fold_in(key_model, 2**32 - 1)  # differs from every key of a split
        gradient_state = self.gradient.begin_step(potential, position, state.gradient_state, state.i, key_begin)

        def gradient_fn(z: Sites) -> Evaluation:
            return self.evaluate(potential, z, rows, gradient_state, key_model, read)

        old, gradient_at = state.phase, gradient_in_x(gradient_fn, state.settings.coordinates, potential.prototype)
        if isinstance(self.dynamics, Adaptive):
            old = self.dynamics.adapt(old, state.i, marks.num_warmup)
        noise_free = self._noise_free(state.i, marks.wraps)
        metropolis = not isinstance(state.accept_prob, tuple)
        integrator: Any = self.integrator
        step = integrator.observed_step if metropolis else integrator.step
        arguments = self.dynamics, old, state.gradient, h, gradient_at, key_noise
        new, gradient, evaluations, *around_noise = step(*arguments, **noise_free)
        last = evaluations[-1]  # every word evaluates at least once: the position has moved since the previous step
        # outside a hard support the energy is infinite, but its gradient may be finite
        finite = trees.all_finite((new, [evaluation.energy for evaluation in evaluations]))
        last_finite = trees.where(finite, old.z, state.last_finite) if self.integrator.evaluates_start else ()
        accepted = self.accepted(finite, old, new, h)
        energy, new_energy = state.potential_estimate, last.energy.astype(state.potential_estimate.dtype)
        taken, probabilities = accepted, state.accept_prob
        if metropolis:
            key, exact = random.fold_in(key_model, 2**32 - 2), uses_all_rows(gradient_state)
            done = work(self.dynamics, old, new, around_noise[0], energy, new_energy)
            taken &= passes(done, energy, key) | ~exact
            probabilities += jnp.where(exact, jnp.where(accepted, acceptance(done, energy), 0), 1)
        taken, new = self.with_falls(taken, finite & ~accepted, old, new, gradient)
        phase = trees.where(taken, new, self._back(state._replace(last_finite=last_finite)))
        i = state.i + 1
        return state.with_phase(
            phase,
            i=i,
            marks=state.marks.at[0].add(i == 0),
            last_finite=last_finite,
            gradient=trees.where(taken, gradient, state.gradient),
            gradient_state=self.gradient.commit(gradient_state, last.update, taken),
            rows_state=rows_state,
            step_size=h,
            potential_estimate=jnp.where(taken, new_energy, energy),
            diverging=state.diverging | ~accepted,
            refused=jnp.where(accepted | taken, self.still_refused(state), state.refused + 1),
            accept_prob=probabilities,
        )

    def accepted(self, finite: jax.Array, old: Phase, new: Phase, h: jax.Array) -> jax.Array:
        """Whether a step is not refused. ``finite``: whether it has ended in finite values."""
        return finite

    def with_falls(
        self, taken: jax.Array, impossible: jax.Array, old: Phase, new: Phase, gradient: Any
    ) -> tuple[jax.Array, Phase]:
        """Whether the new phase is taken, and that phase. An ``impossible`` one is finite, but would be refused."""
        return taken, new

    def passes_a_test(self, potential: ModelPotential) -> bool:
        """Whether the state has the acceptance probability of :mod:`~numpyro_sgmcmc.engine.metropolis`."""
        return False

    def position(self, potential: ModelPotential, state: SGMCMCState) -> Sites:
        """z, in the variables of the potential."""
        return sites_at(state.settings.coordinates, state.phase.z, potential.prototype)

    def still_refused(self, state: SGMCMCState) -> jax.Array:
        """The number of steps refused in a row, after an accepted step."""
        if not self.integrator.evaluates_start:
            return jnp.zeros_like(state.refused)
        # a step from the position that the chain has gone back to has evaluated no new one. The noise moves all
        # coordinates, so one is enough
        here, known = (jax.tree.leaves(z)[0].ravel()[0] for z in (state.phase.z, state.last_finite))
        return jnp.where(here == known, state.refused, 0)

    def end(self, usual: ModelPotential, before: SGMCMCState, state: SGMCMCState) -> SGMCMCState:
        """
        The state after a transition. If the word does not evaluate its final position, the energy of the prior is
        checked there, which needs no data, so that no draw lies outside the support. If it is not finite, the chain
        goes back by one step if that position is known, otherwise to the start of the transition.
        """
        potential = centred_potential(usual, state.settings.centering)
        if not self.integrator.evaluates_end:
            key = derive_key(before.rng_key, Stream.DRAW)
            inside = jnp.isfinite(potential.prior(self.position(potential, state), key))
            start = state if self.integrator.evaluates_start else before
            phase = trees.where(inside, state.phase, self._back(start))
            state = state.with_phase(
                phase,
                diverging=state.diverging | ~inside,
                refused=jnp.where(inside, state.refused, jnp.maximum(state.refused, before.refused) + 1),
            )
        temperature = self.dynamics.temperature(state.phase)
        if not isinstance(temperature, tuple):
            for noise_free in self._noise_free(state.i - 1, RarelyChanging.unpacked(state.marks).wraps).values():
                temperature = jnp.where(noise_free, jnp.nan, temperature)
        z = potential.in_variables_of(usual, self.position(potential, state))
        mean = jax.tree.map(lambda p: p / (state.i - before.i).astype(p.dtype), state.accept_prob)
        key = derive_key(before.rng_key, Stream.NEXT)
        return state._replace(z=z, temperature=temperature, accept_prob=mean, rng_key=key)

    def _back(self, state: SGMCMCState) -> Phase:
        """The phase after a refusal: the last position of finite energy, and the momentum reversed."""
        phase = self.dynamics.reverse(state.phase, jnp.where(state.refused > 0, 0.5, 1.0))
        return phase._replace(z=state.last_finite) if self.integrator.evaluates_start else phase

    # -- other methods ------------------------------------------------------------------------------------------

    def evaluate(
        self, potential: ModelPotential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array, read: tuple = ()
    ) -> Evaluation:
        """
        The estimator's gradient at ``z`` from rows of this chain's scheme, whose data on disk have been ``read``. Each
        device looks up its own share.
        """
        potential = potential.using_rows(rows, read, row_weights(self.rows, potential.plates))
        return self.gradient.evaluate(potential, z, rows, gradient_state, rng_key)

    def refresh(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        """Recomputes what depends on the values that the potential is conditioned on."""
        key_state, key = random.split(random.fold_in(derive_key(state.rng_key, Stream.REFRESH), state.i))
        moved_in = centred_potential(potential, state.settings.centering)
        state = state._replace(gradient_state=self.gradient.refresh(moved_in, state.gradient_state, key_state))
        if not self.integrator.carries_gradient:
            return state
        rows, _ = next_rows(self.rows, state.rows_state, potential.plates, state.settings.contiguous)
        evaluate = lambda z: self.evaluate(moved_in, z, rows, state.gradient_state, key)  # noqa: E731
        evaluation = gradient_in_x(evaluate, state.settings.coordinates, potential.prototype)(state.phase.z)
        energy = evaluation.energy.astype(state.potential_estimate.dtype)
        return state._replace(gradient=evaluation.gradient, potential_estimate=energy)

    def _noise_free(self, i: jax.Array, wraps: jax.Array) -> dict[str, jax.Array]:
        """Whether step i has no noise, for schedules with such steps."""
        if not getattr(self.schedule, "exploration", 0):
            return {}
        schedule: Any = self.schedule
        return {"noise_free": schedule.explores(schedule_index(schedule, i, wraps))}

    def step_size(self, state: SGMCMCState) -> jax.Array:
        """h of the next step."""
        return self.h(state.i, RarelyChanging.unpacked(state.marks).wraps, state.z)

    def h(self, i: jax.Array, wraps: jax.Array, z: Sites) -> jax.Array:
        """h of step i, in the dtype of ``z``."""
        h = self.schedule(schedule_index(self.schedule, i, wraps))
        return jnp.asarray(h, jnp.result_type(*jax.tree.leaves(z))).reshape(())

    # -- the warm-up, which changes nothing if the step size is given ------------------------------------------------

    def for_run(self, potential: ModelPotential, rng_key: jax.Array, on_potential: Callable) -> "Chain":
        """The chain with what the shape of its state depends on. Raises a ValueError for settings that do not fit."""
        return self

    def announced(self, potential: ModelPotential) -> str:
        """What the warm-up does before the first draw; empty if nothing is searched for."""
        return ""

    def begin_warm_up(
        self, potential: ModelPotential, state: SGMCMCState, energies: Any, num_warmup: int, descents: Descents
    ) -> SGMCMCState:
        """The initial state with that of the warm-up; ``descents``: those that each chain has made."""
        return state

    def before(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        """The state before a transition, with the settings that the warm-up has found so far."""
        return state

    def is_sampling(self, state: SGMCMCState) -> jax.Array:
        """Whether the warm-up has ended."""
        marks = RarelyChanging.unpacked(state.marks)
        wraps, i, end = (jnp.ravel(x)[0] for x in (marks.wraps, state.i, marks.num_warmup))
        return (wraps > 0) | (i > end)
