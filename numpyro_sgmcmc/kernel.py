"""
The kernel: wires dynamics, integrator, gradient estimator and row scheme together and keeps NumPyro's contract.

Everything that moves lives in the state, everything on the kernel is frozen, and the potential is made anew from the
arguments of each call. So a trace that NumPyro reuses for other chains, runs and resumes has nothing stale in it.
"""

from collections.abc import Callable, Mapping
import copy
from functools import partial
from typing import Any, NamedTuple
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro.infer.gibbs import GIBBS_SITES_KWARG
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key, not_jax_tracer

from numpyro_sgmcmc import trees
from numpyro_sgmcmc.base import (
    Dynamics,
    GradientEstimator,
    Integrator,
    Phase,
    RowScheme,
    RowsState,
    Schedule,
    Sites,
)
from numpyro_sgmcmc.batches import next_rows
from numpyro_sgmcmc.judge import checked_batch_size, judged
from numpyro_sgmcmc.plates import as_jax, full_rows
from numpyro_sgmcmc.potential import ModelPotential
from numpyro_sgmcmc.report import report_stuck
from numpyro_sgmcmc.schedules import as_schedule
from numpyro_sgmcmc.start import descend, gradient_variance


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


class SGMCMC(MCMCKernel):
    """
    A stochastic-gradient MCMC kernel composed of its parts. The named kernels only choose them.

    :param model: NumPyro model.
    :param dynamics: the SDE, see :class:`~numpyro_sgmcmc.base.Dynamics`.
    :param integrator: a :class:`~numpyro_sgmcmc.integrators.Splitting` that fits the dynamics.
    :param gradient: gradient estimator.
    :param rows: row scheme.
    :param step_size: h > 0, or a function of the step index.
    :param batch_size: an int, ``{plate: int}``, or None for the ``subsample_size`` declared in the model.
    :param int steps_per_sample: integrator steps for each MCMC transition, one compiled loop.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`.
    :raises ValueError: see :mod:`~numpyro_sgmcmc.judge`; at construction where possible, else at ``init``.
    """

    sample_field = "z"
    default_fields = ("z", "diverging", "step_size")
    _frozen = False

    def __init__(
        self,
        model: Any,
        dynamics: Dynamics,
        integrator: Integrator,
        gradient: GradientEstimator,
        rows: RowScheme,
        *,
        step_size: float | Schedule,
        batch_size: int | Mapping[str, int] | None = None,
        steps_per_sample: int = 1,
        init_strategy: Any = None,
    ):
        if not callable(model):
            raise TypeError(f"model={model!r} is not a NumPyro model (a callable).")
        if isinstance(steps_per_sample, bool) or not isinstance(steps_per_sample, (int, np.integer)):
            raise TypeError(f"steps_per_sample={steps_per_sample!r} must be a whole number.")
        if steps_per_sample < 1:
            raise ValueError(f"steps_per_sample={steps_per_sample} must be at least 1.")
        for name, part, verb in (("gradient", gradient, "evaluate"), ("rows", rows, "__call__")):
            if isinstance(part, type) or not hasattr(part, verb):
                raise TypeError(f"{name}={part!r} is not an instance that offers `{verb}`; write `{name}=...()`.")
        integrator.check(dynamics)
        self._model = model
        self.dynamics = dynamics
        self.integrator = integrator
        self.gradient = gradient
        self.rows = rows
        self.schedule = as_schedule(step_size)
        self.batch_size = checked_batch_size(batch_size)
        self.steps_per_sample = int(steps_per_sample)
        self.init_strategy = init_strategy
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise AttributeError(
                f"{type(self).__name__}.{name} is frozen: NumPyro compiles a kernel once, so a later change would be "
                "silently ignored. Make a new kernel."
            )
        object.__setattr__(self, name, value)

    @staticmethod
    def checked_inverse_mass(value: Any) -> Any:
        """
        ``inverse_mass_matrix`` as a float or a dict of NumPy arrays (None: 1.0).

        :raises ValueError: an entry that is not positive and finite.
        """
        checked = 1.0 if value is None else value
        entries = checked if isinstance(checked, Mapping) else {None: checked}
        for site, entry in entries.items():
            array = np.asarray(entry)
            if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
                where = "inverse_mass_matrix" + ("" if site is None else f"[{site!r}]")
                raise ValueError(f"{where} must hold positive, finite numbers, got {entry!r}.")
        if isinstance(checked, Mapping):
            return {site: np.asarray(entry, float) for site, entry in checked.items()}
        if np.ndim(checked):
            raise ValueError("inverse_mass_matrix must be None, a scalar, or a dict of diagonals like z.")
        return float(checked)

    # -- the host's contract ------------------------------------------------------------------------------------

    @property
    def model(self) -> full_rows:
        """The model on all of its rows, as ArviZ, ``Predictive`` and ``log_likelihood`` need it."""
        return full_rows(self._model)

    @property
    def _sample_fn(self) -> Callable:
        # MCMC calls `init` again on a resume where this is None. There is nothing to rebuild here, so a resume
        # never pays for an `init` whose result is thrown away.
        return self.sample

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        """Empty: any number of the state shown in the bar would wait for the device at every iteration."""
        del state
        return ""

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Sites | None,
        model_args: tuple,
        model_kwargs: Mapping[str, Any] | None,
    ) -> SGMCMCState:
        """
        The state of a fresh chain, or of a batch of chains where ``rng_key`` is a batch of keys. Costs O(batch).

        :param init_params: unconstrained values for some or all sites (constrained ones as a block of
            :class:`~numpyro.infer.Gibbs`, whose convention that is); the other sites start by ``init_strategy``.
        :raises ValueError: whatever :func:`~numpyro_sgmcmc.judge.judged` refuses; ``init_params`` of the wrong names
            or shapes; an energy that is not finite at the start, by site.
        """
        del num_warmup
        model_kwargs = {} if model_kwargs is None else dict(model_kwargs)
        rng_key = _raw(rng_key)
        batched = not is_prng_key(rng_key)
        if batched and rng_key.shape[0] == 1:
            # num_chains=1 with a batch of one key: a single chain, without an axis of chains
            rng_key, batched = rng_key[0], False
            init_params = jax.tree.map(lambda x: x[0], init_params)
        plates, structure = self._judge(model_args, model_kwargs)
        arrays, rebuild = _arrays_apart((model_args, model_kwargs))
        self._check_init_params(structure, init_params, batched, GIBBS_SITES_KWARG in model_kwargs)

        def one(arrays, rng_key, init_params):
            args, kwargs = rebuild(arrays)
            return self._init_chain(ModelPotential(self._model, args, kwargs, plates, structure), rng_key, init_params)

        many = jax.vmap(one, in_axes=(None, 0, 0)) if batched else one
        state, energies = jax.jit(many)(arrays, rng_key, init_params)
        if not_jax_tracer(rng_key):
            self._refuse_start(energies)
        if structure.frozen:
            warnings.warn(
                f"param site {structure.frozen[0]!r} is frozen at its initial value: SG-MCMC moves latent sample "
                "sites only. Give it a prior with numpyro.sample to infer it.",
                stacklevel=2,
            )
        return state

    def sample(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: Mapping[str, Any] | None
    ) -> SGMCMCState:
        """One MCMC transition: ``steps_per_sample`` steps of every chain in ``state``."""
        batched = jnp.ndim(state.i) == 1
        if batched == is_prng_key(state.rng_key):
            raise ValueError(
                f"the state holds {'several chains' if batched else 'one chain'}, but its rng_key has shape "
                f"{state.rng_key.shape}: resume with one key for each chain, mcmc.last_state.rng_key for one."
            )
        potential = self._potential(model_args, model_kwargs)
        step = partial(self._step, potential)
        step = jax.vmap(step) if batched else step
        before = state.refused
        state = state._replace(diverging=jnp.zeros_like(state.diverging))
        if self.steps_per_sample == 1:
            state = step(state)
        else:
            state = lax.fori_loop(0, self.steps_per_sample, lambda _, s: step(s), state)
        report_stuck(before, state.refused, state.step_size)
        advance = jax.vmap(_next_key) if batched else _next_key
        return state._replace(rng_key=advance(state.rng_key))

    def postprocess_fn(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable[[Sites], Sites]:
        """
        Unconstrained -> constrained values and deterministic sites, save those inside minibatched plates.

        NumPyro calls it at every transition, so it costs O(batch); compiled, because its one eager call would
        otherwise evaluate what nobody asks for.
        """
        return jax.jit(lambda z: self._potential(model_args, model_kwargs).constrain(z))

    # -- as a block of numpyro.infer.Gibbs ----------------------------------------------------------------------

    def get_constrain_fn(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable[[Sites], Sites]:
        """Unconstrained -> constrained values, whether or not the siblings' values are among the arguments."""

        def fn(z):
            kwargs = {} if model_kwargs is None else model_kwargs
            values = self._potential(model_args, kwargs).constrain(z)
            return {name: values[name] for name in z}

        return jax.jit(fn)

    def refresh(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: Mapping[str, Any] | None
    ) -> SGMCMCState:
        """The carried gradient under new conditioning values, on the rows of the coming batch."""
        if not self.integrator.carries_gradient:
            return state
        potential = self._potential(model_args, model_kwargs)
        rows, _ = next_rows(self.rows, state.rows_state, potential.plates)
        key = random.fold_in(state.rng_key, state.i)
        evaluation = self.gradient.evaluate(potential, state.z, rows, state.gradient_state, key)
        return state._replace(gradient=evaluation.gradient)

    def wrap_model(self, wrapper: Callable) -> "SGMCMC":
        """A copy of this kernel for ``wrapper(model)``."""
        kernel = copy.copy(self)
        object.__setattr__(kernel, "_model", wrapper(self._model))
        return kernel

    # -- one chain ----------------------------------------------------------------------------------------------

    def _judge(self, model_args, model_kwargs):
        args, kwargs = as_jax((model_args, model_kwargs))
        return judged(self._model, args, kwargs, self.batch_size)

    def _potential(self, model_args, model_kwargs) -> ModelPotential:
        model_kwargs = {} if model_kwargs is None else model_kwargs
        args, kwargs = as_jax((model_args, model_kwargs))
        return ModelPotential(self._model, args, kwargs, *judged(self._model, args, kwargs, self.batch_size))

    def _init_chain(self, potential, rng_key, init_params):
        rng_key, key_z, key_rows, key_momentum, key_model = random.split(rng_key, 5)
        rows_state = RowsState(key_rows, jnp.zeros((), jnp.int32))
        rows, rows_state = next_rows(self.rows, rows_state, potential.plates)
        z = potential.initial(key_z, rows, self.init_strategy)
        if init_params is not None:
            if GIBBS_SITES_KWARG in potential.kwargs:
                init_params = potential.unconstrain(init_params)
            z = {name: jnp.asarray(init_params.get(name, x), x.dtype).reshape(x.shape) for name, x in z.items()}
        settles = self.dynamics.settles and self.init_strategy is None and init_params is None
        if settles:
            z = descend(potential, z, key_rows, key_model)
        energies = potential.by_site(z, rows, key_model)
        h = self._step_size(jnp.zeros((), jnp.int32), z)
        phase = self.dynamics.init(z, trees.normal_like(key_momentum, z))
        gradient_state = self.gradient.init(potential, z, key_model)
        if settles and self.rows.independent and (potential.plates or potential.structure.randomised):

            def gradient_fn(k):
                rows, _ = next_rows(self.rows, RowsState(key_rows, k), potential.plates)
                key = random.fold_in(key_model, k)
                return self.gradient.evaluate(potential, phase.z, rows, gradient_state, key).gradient

            phase = self.dynamics.balanced(phase, h, gradient_variance(gradient_fn))
        gradient: Any = ()
        if self.integrator.carries_gradient:
            gradient = self.gradient.evaluate(potential, z, rows, gradient_state, key_model).gradient
        state = SGMCMCState(
            i=jnp.zeros((), jnp.int32),
            z=phase.z,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            gradient=gradient,
            gradient_state=gradient_state,
            rows_state=rows_state,
            step_size=h,
            potential_estimate=sum(energies.values(), start=jnp.zeros(())),
            diverging=jnp.zeros((), bool),
            refused=jnp.zeros((), jnp.int32),
            rng_key=rng_key,
        )
        return state, energies

    def _step_size(self, i, z):
        return jnp.asarray(self.schedule(i), jnp.result_type(*jax.tree.leaves(z))).reshape(())

    def _step(self, potential: ModelPotential, state: SGMCMCState) -> SGMCMCState:
        key_noise, key_model = random.split(random.fold_in(state.rng_key, state.i))
        rows, rows_state = next_rows(self.rows, state.rows_state, potential.plates)
        h = self._step_size(state.i, state.z)

        def gradient_fn(z):
            return self.gradient.evaluate(potential, z, rows, state.gradient_state, key_model)

        old = Phase(state.z, state.momentum, state.thermostat)
        new, gradient, evaluations = self.integrator.step(
            self.dynamics, old, state.gradient, h, gradient_fn, key_noise
        )
        accepted = trees.all_finite(new)
        phase = trees.where(accepted, new, old)
        gradient_state, energy = state.gradient_state, state.potential_estimate
        for evaluation in evaluations:
            gradient_state = self.gradient.commit(gradient_state, evaluation.proposal, accepted)
            energy = evaluation.energy.astype(energy.dtype)
        return SGMCMCState(
            i=state.i + 1,
            z=phase.z,
            momentum=phase.momentum,
            thermostat=phase.thermostat,
            gradient=trees.where(accepted, gradient, state.gradient),
            gradient_state=gradient_state,
            rows_state=rows_state,
            step_size=h,
            potential_estimate=energy,
            diverging=state.diverging | ~accepted,
            refused=jnp.where(accepted, 0, state.refused + 1),
            rng_key=state.rng_key,
        )

    # -- judging a start ----------------------------------------------------------------------------------------

    def _check_init_params(self, structure, init_params, batched, constrained):
        prototype = structure.prototype
        mass = getattr(self.dynamics, "inverse_mass_matrix", None)
        for what, tree in (("init_params", init_params), ("inverse_mass_matrix", mass)):
            if not isinstance(tree, Mapping):
                if what == "init_params" and tree is not None:
                    raise ValueError(f"init_params must be a dict of unconstrained values by site, got {type(tree)}.")
                continue
            unknown = sorted(set(tree) - set(prototype))
            if unknown:
                raise ValueError(
                    f"{what} names {', '.join(map(repr, unknown))}; the latent sites of the model are "
                    f"{', '.join(map(repr, prototype))}."
                )
        if isinstance(mass, Mapping):
            for name, s in prototype.items():
                if name not in mass:
                    raise ValueError(f"inverse_mass_matrix has no entry for the latent site {name!r}.")
                if np.shape(mass[name]) not in ((), s.shape):
                    raise ValueError(
                        f"inverse_mass_matrix[{name!r}] has shape {np.shape(mass[name])}; z[{name!r}] has {s.shape}."
                    )
        for name, value in ({} if constrained or init_params is None else init_params).items():
            shape = jnp.shape(value)[1:] if batched else jnp.shape(value)
            if shape != prototype[name].shape:
                raise ValueError(
                    f"init_params[{name!r}] has shape {shape}{' for each chain' if batched else ''}; the unconstrained "
                    f"site has {prototype[name].shape}."
                )

    def _refuse_start(self, energies):
        wrong = [name for name, energy in energies.items() if not bool(jnp.isfinite(energy).all())]
        if wrong:
            raise ValueError(
                f"the energy at the start is not finite at site {', '.join(map(repr, wrong))}. Look for data that are "
                "missing or outside the support of that site's distribution; otherwise start elsewhere by init_params "
                "or init_strategy."
            )


def _next_key(rng_key):
    return random.split(rng_key, 1)[0]


def _raw(rng_key):
    """Typed keys of the default kind as their data: NumPyro cannot collect a typed key as an extra field."""
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        if random.key_impl(rng_key) == random.key_impl(random.key(0)):
            return random.key_data(rng_key)
    return rng_key


def _arrays_apart(tree):
    """The array leaves, to be handed to a compiled function as arguments, and the way back to the whole."""
    leaves, treedef = jax.tree.flatten(tree)
    is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]

    def rebuild(arrays):
        arrays = iter(arrays)
        return treedef.unflatten([next(arrays) if flag else leaf for leaf, flag in zip(leaves, is_array)])

    return [leaf for leaf, flag in zip(as_jax(leaves), is_array) if flag], rebuild
