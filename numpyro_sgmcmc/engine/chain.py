"""
One chain: how it starts and how it steps. Pure functions of potential and state; the kernel maps them over chains.

A step that ends in non-finite values, or outside the support, is refused: the chain goes back to the last position
with a finite energy and reverses its momentum,

.. math:: (z, p) \\to (z, -p).

For symmetric words this is the rejection of generalised HMC (Horowitz 1991): it leaves :math:`\\exp(-H)`, restricted to
the support, invariant up to the error of the steps. A second refusal in a row also halves the momentum, so that no
chain is trapped between two boundaries.

If the warm-up has chosen the step size, a step is also refused after which the kinetic energy is larger than chance
allows: the mass is 1 then, so :math:`|p|^2` is chi-squared with d degrees of freedom, and

.. math:: |p|^2 \\le 3 d + 50.

So :math:`\\exp(-H)` is restricted to momenta that it has with a probability of 1 - 1e-12. Without a momentum the same
bound holds for :math:`|x' - x|^2 / 2h`: if a step is reversible, it remains so when moves above a length are left out.
An unstable step breaks the bound after a few steps; otherwise it would end at huge but finite values.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.metropolis import is_reversible, passes, work
from numpyro_sgmcmc.engine.state import DRAW, REFRESH, STEPS, Marks, SGMCMCState, next_key, stream
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.monitor import squared_step
from numpyro_sgmcmc.rows.schemes import is_contiguous, next_rows, row_weights
from numpyro_sgmcmc.schedules import Constant, schedule_index
from numpyro_sgmcmc.tuning.coordinates import in_x, raveled, sites_at
from numpyro_sgmcmc.tuning.start import best_of_several, descend, gradient_variance
from numpyro_sgmcmc.tuning.tuning import Tuning
from numpyro_sgmcmc.types import (
    Adaptive,
    BySteps,
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

PER_COORDINATE, BEYOND = 3, 50  # of the bound 3 d + 50


@dataclass(frozen=True)
class Chain:
    """
    The parts of a chain.

    :param init_strategy: as for :class:`~numpyro.infer.NUTS`. None: the dynamics chooses the start.
    :param bool tuned: whether coordinates and step size are those of ``state.tuning``.
    :param bool checked: whether the draws are checked, see :mod:`~numpyro_sgmcmc.engine.run_check`.
    """

    dynamics: Dynamics
    integrator: Integrator
    gradient: GradientEstimator
    rows: RowScheme
    schedule: Schedule
    init_strategy: Any = None
    tuned: bool = False
    checked: bool = False

    # -- the start ----------------------------------------------------------------------------------------------

    def init(
        self,
        potential: ModelPotential,
        rng_key: jax.Array,
        init_params: Sites | None,
        num_warmup: int = 0,
        fingerprint: int = 0,
        descents: int = 0,
        centering: Any = (),
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """
        :param init_params: unconstrained values for some sites; the others start by ``init_strategy``.
        :param int num_warmup: integrator steps of the warm-up.
        :param int fingerprint: fingerprint of the data, 0 if it is not known.
        :param int descents: number of descents whose best end is the start.
        :param centering: the given centring of each element by site, or ``()``.
        :return: the initial state, and the energy of each site there.
        """
        rng_key, key_z, key_rows, key_momentum, key_gradient, key_descent, key_probes = random.split(rng_key, 7)
        rows, rows_state = next_rows(self.rows, RowsState(key_rows, jnp.zeros((), jnp.uint32)), potential.plates)
        z = self.start(potential, key_z, rows, init_params, descents)
        balance = isinstance(self.dynamics, Thermostatted) and init_params is None and self.init_strategy is None
        balance = balance and not self.tuned
        if balance:
            z = descend(potential, z, *random.split(key_descent), contiguous=is_contiguous(self.rows))
        key_energy, key_start, key_first = random.split(key_gradient, 3)
        energies = potential.by_site(z, rows, key_energy)
        energy = sum(energies.values(), start=jnp.zeros(()))
        users_z, usual, potential = z, potential, potential.centred(centering)
        z = usual.in_variables_of(potential, z)
        gradient_state = self.gradient.start(potential, z, key_start)
        variance = first = ()
        if self.tuned:  # the first transition sets the coordinates, and all that depends on them
            x = variance = first = jnp.zeros_like(raveled(z))
            phase, h = self.dynamics.init(x, x), jnp.zeros((), x.dtype)
        else:
            x = z if centering else ()
            phase = self.dynamics.init(z, noise.normal_like(key_momentum, z))
            h = self.h(jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32), z)
            if balance or self.integrator.needs_variance:
                variance = self._white_noise(potential, z, gradient_state, key_probes)
            if balance:
                assert isinstance(self.dynamics, Thermostatted)
                phase = self.dynamics.at_equilibrium(phase, h, variance)
            if self.integrator.carries_gradient:
                first = self.evaluate(potential, z, rows, gradient_state, key_first).gradient
        state = SGMCMCState(
            i=jnp.zeros((), jnp.uint32),
            z=users_z,
            x=x,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            auxiliary=phase.auxiliary,
            noise_variance=variance if self.integrator.needs_variance else (),
            last_finite=phase.z if self.integrator.evaluates_start else (),
            gradient=first if self.integrator.carries_gradient else (),
            gradient_state=gradient_state,
            rows_state=rows_state,
            step_size=h,
            potential_estimate=energy,
            temperature=self.dynamics.temperature(phase),
            diverging=jnp.zeros((), bool),
            # a zero that is mapped like the chains, so that NumPyro's buffers fit from the start
            refused=0 * jnp.isnan(energy).astype(jnp.int32),
            marks=Marks(0, jnp.uint32(num_warmup), fingerprint, 0).packed(),
            rng_key=rng_key,
        )
        return state, energies

    def start(
        self, potential: ModelPotential, rng_key: jax.Array, rows: Rows, init_params: Sites | None, descents: int = 0
    ) -> Sites:
        """The position given by ``init_params`` and ``init_strategy``, or the best of several."""
        if self.tuned and self.init_strategy is None:
            z = best_of_several(potential, rng_key, rows, descents, is_contiguous(self.rows))
        else:
            z = potential.initial(rng_key, rows, self.init_strategy)
        if init_params is None:
            return z
        return {name: jnp.asarray(init_params.get(name, x), x.dtype) for name, x in z.items()}

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
        marks = Marks.of(state.marks)
        changed = (marks.fingerprint != fingerprint) & (marks.fingerprint != 0) & (fingerprint != 0)
        return state._replace(
            i=jnp.asarray(state.i, jnp.uint32),
            rows_state=state.rows_state._replace(t=jnp.asarray(state.rows_state.t, jnp.uint32)),
            diverging=jnp.zeros_like(state.diverging),
            marks=marks._replace(data_changed=marks.data_changed | changed).packed(),
            rng_key=stream(state.rng_key, STEPS),
        )

    def step(self, potential: ModelPotential, state: SGMCMCState, read: tuple[jax.Array, ...] = ()) -> SGMCMCState:
        """
        One step of the integrator. If it is refused, the counter and the rows still advance.

        :param read: the step's rows, from each source that is read ahead.
        """
        # even numbers for the noise, odd ones for the model: a split would be computed even if the model needs no key
        key_noise = random.fold_in(state.rng_key, 2 * state.i)
        key_model = random.fold_in(state.rng_key, 2 * state.i + 1)
        rows, rows_state = next_rows(self.rows, state.rows_state, potential.plates)
        marks = Marks.of(state.marks)
        position = self.position(potential, state)
        h = self.found_h(state.tuning) if self.tuned else self.h(state.i, marks.wraps, state.z)
        key_begin = random.fold_in(key_model, 2**32 - 1)  # differs from every key of a split
        gradient_state = self.gradient.begin_step(potential, position, state.gradient_state, state.i, key_begin)

        def gradient_fn(z: Sites) -> Evaluation:
            return self.evaluate(potential, z, rows, gradient_state, key_model, read)

        old, at = state.phase, in_x(gradient_fn, state.tuning.coordinates, potential.prototype)
        if isinstance(self.dynamics, Adaptive):
            old = self.dynamics.adapt(old, state.i, marks.num_warmup)
        quiet = self._quiet(state.i, marks.wraps)
        metropolis = self.tuned and is_reversible(self.integrator, potential)
        integrator: Any = self.integrator
        step = integrator.observed_step if metropolis else integrator.step
        new, gradient, evaluations, *around_noise = step(self.dynamics, old, state.gradient, h, at, key_noise, **quiet)
        last = evaluations[-1]  # every word evaluates at least once: the position has moved since the previous step
        # outside a hard support the energy is infinite, but its gradient may be finite
        finite = trees.all_finite((new, [evaluation.energy for evaluation in evaluations]))
        last_finite = trees.where(finite, old.z, state.last_finite) if self.integrator.evaluates_start else ()
        accepted = finite & self._possible(old, new, h) if self.tuned else finite
        energy, new_energy = state.potential_estimate, last.energy.astype(state.potential_estimate.dtype)
        taken = accepted
        if metropolis:
            key = random.fold_in(key_model, 2**32 - 2)
            taken &= passes(work(self.dynamics, old, new, around_noise[0], energy, new_energy), energy, key)
        phase = trees.where(taken, new, self._back(state._replace(last_finite=last_finite)))
        i = state.i + 1
        return state.at(
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
            refused=jnp.where(accepted, self._still_refused(state), state.refused + 1),
        )

    def _possible(self, old: Phase, new: Phase, h: jax.Array) -> jax.Array:
        """Whether chance allows the kinetic energy after a step, or without a momentum the length of the step."""
        temperature = self.dynamics.temperature(new)
        if isinstance(temperature, BySteps):
            temperature = squared_step(new.z, old.z, h, batched=False)
        d = trees.size(new.z)
        return jnp.asarray(True) if isinstance(temperature, tuple) else d * temperature <= PER_COORDINATE * d + BEYOND

    def position(self, potential: ModelPotential, state: SGMCMCState) -> Sites:
        """z, in the variables of the potential."""
        return sites_at(state.tuning.coordinates, state.phase.z, potential.prototype)

    def _still_refused(self, state: SGMCMCState) -> jax.Array:
        """
        The number of steps refused in a row, after an accepted step. It is 0, unless the step began at the position
        that the chain had gone back to: then it has not evaluated a new one. Comparing one coordinate is enough,
        because the noise moves all of them.
        """
        if not self.integrator.evaluates_start:
            return jnp.zeros_like(state.refused)
        here, known = (jax.tree.leaves(z)[0].ravel()[0] for z in (state.phase.z, state.last_finite))
        return jnp.where(here == known, state.refused, 0)

    def end(self, usual: ModelPotential, before: SGMCMCState, state: SGMCMCState) -> SGMCMCState:
        """
        The state after a transition. If the word does not evaluate its final position, the energy of the prior is
        checked there, which needs no data, so that no draw lies outside the support. If it is not finite, the chain
        goes back by one step if that position is known, otherwise to the start of the transition.
        """
        potential = usual.centred(state.centering)
        if not self.integrator.evaluates_end:
            inside = jnp.isfinite(potential.prior(self.position(potential, state), stream(before.rng_key, DRAW)))
            start = state if self.integrator.evaluates_start else before
            phase = trees.where(inside, state.phase, self._back(start))
            state = state.at(
                phase,
                diverging=state.diverging | ~inside,
                refused=jnp.where(inside, state.refused, jnp.maximum(state.refused, before.refused) + 1),
            )
        temperature = self.dynamics.temperature(state.phase)
        if not isinstance(temperature, tuple):
            for quiet in self._quiet(state.i - 1, Marks.of(state.marks).wraps).values():
                temperature = jnp.where(quiet, jnp.nan, temperature)
        z = potential.in_variables_of(usual, self.position(potential, state))
        return state._replace(z=z, temperature=temperature, rng_key=next_key(before.rng_key))

    def _back(self, state: SGMCMCState) -> Phase:
        """The phase after a refusal: the last position of finite energy, and the momentum reversed."""
        phase = self.dynamics.reverse(state.phase, jnp.where(state.refused > 0, 0.5, 1.0))
        return phase._replace(z=state.last_finite) if self.integrator.evaluates_start else phase

    # -- other methods ------------------------------------------------------------------------------------------

    def evaluate(
        self,
        potential: ModelPotential,
        z: Sites,
        rows: Rows,
        gradient_state: Any,
        rng_key: jax.Array,
        read: tuple[jax.Array, ...] = (),
    ) -> Evaluation:
        """
        The estimator's gradient at ``z`` from rows drawn by this chain's scheme. Each device looks up its own share of
        them, and they are weighted if the shares are unequal.

        :param read: the data of these rows that have already been read, from each source on disk.
        """
        potential = potential.using_rows(rows, read, row_weights(self.rows, potential.plates))
        return self.gradient.evaluate(potential, z, rows, gradient_state, rng_key)

    def refresh(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        """Recomputes what depends on the values that the potential is conditioned on."""
        key_state, key = random.split(random.fold_in(stream(state.rng_key, REFRESH), state.i))
        centred = potential.centred(state.centering)
        state = state._replace(gradient_state=self.gradient.refresh(centred, state.gradient_state, key_state))
        if not self.integrator.carries_gradient:
            return state
        return self.with_first_gradient(potential, state, key)

    def with_first_gradient(self, potential: ModelPotential, state: SGMCMCState, rng_key: jax.Array) -> SGMCMCState:
        """The state with gradient and energy at its position, for a word that carries them from step to step."""
        potential = potential.centred(state.centering)
        rows, _ = next_rows(self.rows, state.rows_state, potential.plates)
        evaluate = lambda z: self.evaluate(potential, z, rows, state.gradient_state, rng_key)  # noqa: E731
        evaluation = in_x(evaluate, state.tuning.coordinates, potential.prototype)(state.phase.z)
        energy = evaluation.energy.astype(state.potential_estimate.dtype)
        return state._replace(gradient=evaluation.gradient, potential_estimate=energy)

    def found_h(self, tuning: Tuning) -> jax.Array:
        """The h chosen by the warm-up, after it multiplied by a relative schedule; constant during a transition."""
        if isinstance(self.schedule, Constant):
            return tuning.step_size
        after = jnp.maximum(tuning.transition - 1 - tuning.num_warmup, 0).astype(tuning.step_size.dtype)
        return tuning.step_size * self.schedule(after * tuning.num_steps).astype(tuning.step_size.dtype)

    def _quiet(self, i: jax.Array, wraps: jax.Array) -> dict[str, jax.Array]:
        """Whether step i has no noise, for schedules with such steps."""
        if not getattr(self.schedule, "exploration", 0):
            return {}
        schedule: Any = self.schedule
        return {"quiet": schedule.explores(schedule_index(schedule, i, wraps))}

    def h(self, i: jax.Array, wraps: jax.Array, z: Sites) -> jax.Array:
        """h of step i, in the dtype of ``z``."""
        h = self.schedule(schedule_index(self.schedule, i, wraps))
        return jnp.asarray(h, jnp.result_type(*jax.tree.leaves(z))).reshape(())
