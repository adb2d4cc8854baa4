"""
One chain: how it starts and how it steps. Pure functions of potential and state; the kernel maps them over chains.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.tuning.start import descend, gradient_variance
from numpyro_sgmcmc.types import (
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


class SGMCMCState(NamedTuple):
    """
    - **i** - integrator steps so far; the argument of the schedule.
    - **z** - dict of unconstrained values.
    - **momentum** - dict like ``z``, or ``()``.
    - **thermostat** - scalar, dict like ``z``, or ``()``.
    - **gradient** - gradient at ``z`` for words that begin with a kick (BAOAB), else ``()``.
    - **gradient_state** - what the gradient estimator remembers.
    - **rows_state** - place in the sequence of minibatches.
    - **step_size** - that of the last step.
    - **potential_estimate** - minibatch estimate of U where the gradient was last evaluated: noisy, and not at ``z``.
    - **diverging** - whether the last transition refused a step that left the finite numbers.
    - **refused** - steps refused in a row.
    - **rng_key** - key of the noise.
    """

    i: jax.Array
    z: Any
    momentum: Any
    thermostat: Any
    gradient: Any
    gradient_state: Any
    rows_state: Any
    step_size: jax.Array
    potential_estimate: jax.Array
    diverging: jax.Array
    refused: jax.Array
    rng_key: jax.Array


@dataclass(frozen=True)
class Chain:
    """
    The parts a chain is made of.

    :param init_strategy: as for :class:`~numpyro.infer.NUTS`; None leaves the start to the dynamics.
    """

    dynamics: Dynamics
    integrator: Integrator
    gradient: GradientEstimator
    rows: RowScheme
    schedule: Schedule
    init_strategy: Any = None

    def init(
        self, potential: ModelPotential, rng_key: jax.Array, init_params: Sites | None
    ) -> tuple[SGMCMCState, dict[str, jax.Array]]:
        """
        :param init_params: unconstrained values for some sites; the others start by ``init_strategy``.
        :return: the state, and the energy of each site at its start.
        """
        rng_key, key_z, key_rows, key_momentum, key_model = random.split(rng_key, 5)
        rows, rows_state = next_rows(self.rows, RowsState(key_rows, jnp.zeros((), jnp.int32)), potential.plates)
        z = potential.initial(key_z, rows, self.init_strategy)
        if init_params is not None:
            z = {name: jnp.asarray(init_params.get(name, x), x.dtype) for name, x in z.items()}
        to_balance = None
        if isinstance(self.dynamics, Thermostatted) and init_params is None and self.init_strategy is None:
            to_balance = self.dynamics
            z = descend(potential, z, key_rows, key_model)
        energies = potential.by_site(z, rows, key_model)
        h = self.h(jnp.zeros((), jnp.int32), z)
        phase = self.dynamics.init(z, noise.normal_like(key_momentum, z))
        gradient_state = self.gradient.start(potential, z, key_model)

        def evaluate(rows: Rows, key: jax.Array) -> Evaluation:
            return self.gradient.evaluate(potential, phase.z, rows, gradient_state, key)

        noisy = potential.plates or potential.randomised
        if to_balance is not None and noisy and getattr(self.rows, "independent", False):

            def gradient_fn(k):
                rows, _ = next_rows(self.rows, RowsState(key_rows, k), potential.plates)
                return evaluate(rows, random.fold_in(key_model, k)).gradient

            phase = to_balance.balanced(phase, h, gradient_variance(gradient_fn))
        state = SGMCMCState(
            i=jnp.zeros((), jnp.int32),
            z=phase.z,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            gradient=evaluate(rows, key_model).gradient if self.integrator.carries_gradient else (),
            gradient_state=gradient_state,
            rows_state=rows_state,
            step_size=h,
            potential_estimate=sum(energies.values(), start=jnp.zeros(())),
            diverging=jnp.zeros((), bool),
            refused=jnp.zeros((), jnp.int32),
            rng_key=rng_key,
        )
        return state, energies

    def step(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        """
        One step of the integrator. A step that leaves the finite numbers is not taken: position, momentum and
        thermostat stay, while the counter and the rows go on.
        """
        # two counters in one, where a split would be computed also for models that have no use for a key
        key_noise = random.fold_in(state.rng_key, 2 * state.i)
        key_model = random.fold_in(state.rng_key, 2 * state.i + 1)
        rows, rows_state = next_rows(self.rows, state.rows_state, potential.plates)
        h = self.h(state.i, state.z)
        gradient_state = self.gradient.begin_step(potential, state.z, state.gradient_state, state.i, key_model)

        def gradient_fn(z: Sites) -> Evaluation:
            return self.gradient.evaluate(potential, z, rows, gradient_state, key_model)

        old = Phase(state.z, state.momentum, state.thermostat)
        new, gradient, evaluations = self.integrator.step(self.dynamics, old, state.gradient, h, gradient_fn, key_noise)
        # an infinite energy, outside of a hard support, may have a finite gradient
        accepted = trees.all_finite((new, [evaluation.energy for evaluation in evaluations]))
        phase = trees.where(accepted, new, old)
        last = evaluations[-1]  # a position must have moved since the step before, so there is one
        energy = state.potential_estimate
        return SGMCMCState(
            i=state.i + 1,
            z=phase.z,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            gradient=trees.where(accepted, gradient, state.gradient),
            gradient_state=self.gradient.commit(gradient_state, last.update, accepted),
            rows_state=rows_state,
            step_size=h,
            potential_estimate=jnp.where(accepted, last.energy.astype(energy.dtype), energy),
            diverging=state.diverging | ~accepted,
            refused=jnp.where(accepted, 0, state.refused + 1),
            rng_key=state.rng_key,
        )

    def refresh(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        """Anew what depends on values that the potential is conditioned on."""
        key = random.fold_in(state.rng_key, 2 * state.i + 1)
        state = state._replace(gradient_state=self.gradient.refresh(potential, state.gradient_state, key))
        if not self.integrator.carries_gradient:
            return state
        rows, _ = next_rows(self.rows, state.rows_state, potential.plates)
        evaluation = self.gradient.evaluate(potential, state.z, rows, state.gradient_state, key)
        return state._replace(gradient=evaluation.gradient)

    def h(self, i: jax.Array, z: Sites) -> jax.Array:
        """h of step i, in the dtype of ``z``."""
        return jnp.asarray(self.schedule(i), jnp.result_type(*jax.tree.leaves(z))).reshape(())
