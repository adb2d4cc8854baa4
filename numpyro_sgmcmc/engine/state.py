"""The state of a chain, and the streams of random numbers that are derived from its key."""

from enum import IntEnum
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.report.monitor import Monitor, projection, squared_step
from numpyro_sgmcmc.report.report_hook import Collected
from numpyro_sgmcmc.report.run_scores import RunNumbers, RunScores, ScoreAverages
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import Phase, TemperatureFromSteps
from numpyro_sgmcmc.utils.validation import check_keys, is_key


class Stream(IntEnum):
    """The streams derived from the key of a state. The key itself is not used otherwise."""

    NEXT, STEPS, DRAW, REFRESH, PROBE, TUNE, CENTRE, CHECK, EXCHANGE = range(9)


def derive_key(rng_key: jax.Array, use: int | jax.Array) -> jax.Array:
    """The key of a stream."""
    return random.fold_in(rng_key, use)


def keys_of_chains(rng_key: jax.Array) -> jax.Array:
    """The key of a chain, or those of several, that ``init`` was given. Raises a TypeError if these are no keys."""
    check_keys(rng_key)
    rng_key = _raw_key(rng_key)
    return rng_key[0] if not is_key(rng_key) and len(rng_key) == 1 else rng_key  # NumPyro gives an axis for one chain


def _raw_key(rng_key: jax.Array) -> jax.Array:
    """
    The data of typed keys of the default kind: NumPyro cannot collect a typed key as an extra field. Other typed keys
    are not changed: their data would be read as those of the default kind, and the four numbers of ``rbg`` as several
    keys.
    """
    if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        if random.key_impl(rng_key) == random.key_impl(random.key(0)) == "threefry2x32":
            return random.key_data(rng_key)
    return rng_key


class RarelyChanging(NamedTuple):
    """Numbers that rarely change, four uint32 in one array: each array of a state costs about 3 us per call."""

    wraps: Any  # how often the counter i has started again at 0
    num_warmup: Any  # integrator steps of the warm-up
    fingerprint: Any  # that of the data at the start
    data_changed: Any  # 1 after a transition with other data

    def packed(self) -> jax.Array:
        """The marks as one array."""
        return jnp.stack([jnp.asarray(mark, jnp.uint32) for mark in self])

    @classmethod
    def unpacked(cls, marks: jax.Array) -> "RarelyChanging":
        """The marks from the array of a state, of one chain or several."""
        return cls(*(marks[..., k] for k in range(4)))


class _Fields(NamedTuple):
    i: jax.Array
    z: Any
    x: Any
    momentum: Any
    thermostat: Any
    auxiliary: Any
    noise_variance: Any
    last_finite: Any
    gradient: Any
    gradient_state: Any
    rows_state: Any
    step_size: jax.Array
    potential_estimate: jax.Array
    temperature: Any
    diverging: jax.Array
    refused: jax.Array
    marks: jax.Array
    rng_key: jax.Array
    settings: Settings = Settings()
    warm_up: Any = ()
    scores: Any = ()
    accept_prob: Any = ()


class SGMCMCState(_Fields):
    """
    - **i** - integrator steps so far, uint32; 0 again after 2**32.
    - **z** - dict of unconstrained values.
    - **x** - position in the coordinates of the dynamics, raveled; ``()`` if these are the coordinates of ``z``.
    - **momentum** - like the position, or ``()``.
    - **thermostat** - scalar, like the position, or ``()``.
    - **auxiliary** - any other variables of the dynamics, or ``()``.
    - **noise_variance** - variance of the gradient noise, like the position, for words that need it, or ``()``.
    - **last_finite** - the last position with a finite energy, for words that evaluate a gradient at the initial
      position (SGLD, ``EA``), otherwise ``()``.
    - **gradient** - gradient at ``z`` for words that start with a kick (BAOAB), otherwise ``()``.
    - **gradient_state** - state of the gradient estimator.
    - **rows_state** - position in the sequence of minibatches.
    - **step_size** - size of the last step.
    - **potential_estimate** - minibatch estimate of U at the last evaluation of the gradient: noisy, and not at ``z``.
    - **temperature** - kinetic temperature, NaN after a step without noise; or ``()``, or ``TemperatureFromSteps()``.
    - **diverging** - whether the last transition refused a step that ended in non-finite values or outside the support.
    - **refused** - steps refused in a row. From ten on, steps that are taken are subtracted if the warm-up has chosen
      the step size.
    - **marks** - see :class:`RarelyChanging`.
    - **rng_key** - key of the next transition.
    - **settings** - those that the warm-up has found so far, the same for all chains, see
      :class:`~numpyro_sgmcmc.tuning.warm_up.Settings`. With a centring the position is that of the partially centred
      variables (:mod:`~numpyro_sgmcmc.model.centering`), and ``z`` is still that of the model.
    - **warm_up** - the state of the search for settings, the same for all chains, see
      :class:`~numpyro_sgmcmc.tuning.warm_up.WarmUp`; ``()`` if the step size is given.
    - **scores** - the averages that check the draws (:mod:`~numpyro_sgmcmc.report.run_scores`), the same for all
      chains, or ``()``.
    - **accept_prob** - mean acceptance probability of the steps of the last transition, if they pass a Metropolis test;
      1 with minibatches, if the warm-up may choose all rows; otherwise ``()``.
    """

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        # NumPyro tries this with the names in extra_fields= that are no attribute
        if isinstance(index, str):
            energy = "; potential_estimate is the energy of a minibatch" * (index == "potential_energy")
            raise KeyError(f"extra_fields={index!r}: a state has the fields {', '.join(self._fields)}{energy}.")
        return super().__getitem__(index)

    def _replace(self, /, **fields: Any) -> "SGMCMCState":
        # MCMC puts the key of a resumed run here; one of another kind than that of init would compile its program anew
        if "rng_key" in fields:
            fields["rng_key"] = _raw_key(fields["rng_key"])
        return super()._replace(**fields)

    @property
    def phase(self) -> Phase:
        """The variables that the dynamics updates."""
        position = self.z if isinstance(self.x, tuple) else self.x
        return Phase(position, self.momentum, self.thermostat, self.auxiliary, self.noise_variance)

    def with_phase(self, phase: Phase, **fields: Any) -> "SGMCMCState":
        """This state at another phase, and with other values of ``fields``."""
        position, *rest = phase
        name = "z" if isinstance(self.x, tuple) else "x"
        return self._replace(**{name: position}, **dict(zip(Phase._fields[1:], rest)), **fields)

    @property
    def monitor(self) -> Collected:
        """The numbers collected with every draw for the checks of :mod:`~numpyro_sgmcmc.report.run_checks`."""
        return Collected(_packed(self), jnp.size(self.i), self.averages)

    @property
    def averages(self) -> ScoreAverages:
        """The latent sites of a chain."""
        chains = jnp.size(self.i)
        return ScoreAverages(tuple((name, jnp.size(self.z[name]) // chains) for name in sorted(self.z)))


@jax.jit
def _packed(state: SGMCMCState) -> jax.Array:
    """The numbers of a monitor, from a program, because MCMC evaluates them once outside of any."""
    batched = jnp.ndim(state.i) == 1
    by_steps = isinstance(state.temperature, TemperatureFromSteps)
    of_scores = {}
    if isinstance(state.scores, RunScores):
        of_scores = RunNumbers(*jnp.moveaxis(state.scores.numbers, -1, 0))._asdict()
    return Monitor(
        chain=jnp.arange(len(state.i)) if batched else 0,
        refused=state.refused,
        diverging=state.diverging,
        temperature=jnp.nan if isinstance(state.temperature, tuple) else state.temperature,
        step_size=state.step_size,
        data_changed=RarelyChanging.unpacked(state.marks).data_changed,
        energy=state.potential_estimate,
        # chains that are tuned one by one have coordinates of their own
        place=projection(state.phase.z if batched else state.z, batched),
        jump=squared_step(state.phase.z, state.last_finite, state.step_size, batched) if by_steps else 0.0,
        **state.settings.kept,
        **of_scores,
    ).packed()


def axes_of_chains(chain: Any) -> Any:
    """The axis of chains in each field of a state of several chains; None if they share the field."""
    axes: dict[str, Any] = dict.fromkeys(SGMCMCState._fields, 0)
    axes |= {"settings": None, "warm_up": None, "scores": None, "gradient_state": None if chain.gradient.shared else 0}
    return SGMCMCState(**axes)
