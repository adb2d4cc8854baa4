"""Types shared by the subpackages, and the interfaces between them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax

Sites: TypeAlias = dict[str, jax.Array]
"""Unconstrained values of the latent sites, keyed by name."""

Rows: TypeAlias = dict[str, jax.Array]
"""Plate name -> int32 row numbers, shape ``(batch_size,)``. Empty if all rows are used."""

Schedule: TypeAlias = Callable[[Any], Any]
"""Step index -> step size h. Counts integrator steps, not MCMC transitions."""


class Plate(NamedTuple):
    """A plate: each step uses ``batch_size`` of its ``size`` rows."""

    size: int
    batch_size: int


class Phase(NamedTuple):
    """
    The variables that the flows of a dynamics update.

    - **z** - dict of unconstrained values.
    - **momentum** - dict like ``z``; ``()`` for first-order dynamics.
    - **thermostat** - scalar (SGNHT), dict like ``z`` (MSGNHT), or ``()``.
    - **auxiliary** - any other variables that a dynamics owns: a pytree, or ``()``.
    """

    z: Any
    momentum: Any = ()
    thermostat: Any = ()
    auxiliary: Any = ()


class Flow(NamedTuple):
    """
    The meaning of a letter of a word, declared by its dynamics.

    - **name** - description, for messages.
    - **needs_gradient**, **needs_noise** - whether it takes the gradient, and standard normal noise like ``z``.
    - **moves** - whether it changes the position.
    - **contains** - the letters whose terms of the SDE it integrates together; empty: its own.
    - **place** - the adjacent letters among which it is correct, once in a word; empty: anywhere.
    - **needs_variance** - whether it reads the variance of the gradient noise, a dict like ``z`` in ``auxiliary``.
    - **shares_noise** - whether it uses the noise of the step, one draw like :meth:`Dynamics.noise_like` for all
      letters with ``shares_noise``.
    - **needs_key** - whether it takes a random key, for noise that is not normal.
    """

    name: str
    needs_gradient: bool = False
    needs_noise: bool = False
    moves: bool = False
    contains: str = ""
    place: str = ""
    needs_variance: bool = False
    shares_noise: bool = False
    needs_key: bool = False


class RowsState(NamedTuple):
    """The position of a chain in its sequence of minibatches; its size does not depend on the size of the data."""

    rng_key: jax.Array  # one key for the whole chain
    t: jax.Array  # shape=(), dtype=uint32, batches drawn so far; 0 again after 2**32


class BySteps(NamedTuple):
    """
    Holds no array. It takes the place of the kinetic temperature for a dynamics without momentum and with unit mass,
    whose temperature is estimated from its last step.
    """


class Evaluation(NamedTuple):
    """One gradient evaluation; ``update`` is what the estimator will store of it."""

    energy: jax.Array
    gradient: Any
    update: Any


class Potential(Protocol):
    """U(z), the negative log joint density in unconstrained space."""

    plates: Mapping[str, Plate]

    @property
    def prototype(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the unconstrained latents."""
        ...

    @property
    def randomised(self) -> bool:
        """Whether the model draws its own keys (``numpyro.prng_key()``)."""
        ...

    @property
    def draws_local_sites(self) -> bool:
        """Whether latent sites of the rows are drawn for each minibatch."""
        ...

    @property
    def keeps_local_values(self) -> bool:
        """Whether these draws start at the values of the previous visit to a row."""
        ...

    @property
    def local_values(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of these values for a minibatch, with rows along axis 0."""
        ...

    def visit(
        self, z: Sites, rows: Rows, rng_key: jax.Array | None, before: tuple[Sites, jax.Array] | None
    ) -> tuple[jax.Array, Sites]:
        """The estimate with local values drawn by a chain that starts at ``before``, and the new values."""
        ...

    @property
    def devices(self) -> int:
        """The number of devices over which the rows are distributed, in order."""
        ...

    def serving(
        self, rows: Rows, read: tuple[jax.Array, ...] = (), weights: Mapping[str, Any] = MappingProxyType({})
    ) -> AbstractContextManager:
        """
        A context in which each device looks up its own share of these rows, the same number on every device.

        :param read: the data of these rows that have already been read, from each source on disk.
        :param weights: weights of the rows, by plate, if they are not 1.
        """
        ...

    def prior(self, z: Sites, rng_key: jax.Array | None = None) -> jax.Array:
        """Energy of everything outside the minibatched plates, shape ``()``."""
        ...

    def per_row(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        """Energy of each row, shape ``(batch_size,)``, not scaled by N/n."""
        ...

    def estimate(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        """Unbiased estimate of U(z) from the rows, shape ``()``."""
        ...


class RowScheme(Protocol):
    """
    Chooses the rows of a plate that are in batch t. The model holds the data and looks the rows up.

    A scheme keeps no state and is hashable. Its rows depend only on the arguments of the call, so that a chain can be
    resumed, or a batch drawn again, from a key and a number. It is called under ``jit`` and ``vmap``.

    - Each row is equally likely to be in batch t, over the keys: so the estimate scaled by N/n is unbiased.
    - Batches of different keys are independent.
    - ``t`` is a uint32, traced or not, or a Python int. After 2**32 batches it starts at 0 again, and the sequence of
      batches repeats.
    """

    @property
    def independent(self) -> bool:
        """Whether batches are independent of each other, so that their gradient noise is white."""
        ...

    @property
    def distinct(self) -> bool:
        """Whether the rows of a batch are distinct."""
        ...

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        """Rows of batch ``t``: int32 numbers in ``0 .. size - 1``, shape ``(batch_size,)``."""
        ...


class GradientEstimator(Protocol):
    """
    Rows -> unbiased gradient of U, for one chain; the kernel maps it over chains.

    The estimator itself is a frozen dataclass of options. Whatever it stores about a chain is its state: any pytree of
    arrays, which at every step has the structure, shapes and dtypes of the one that ``start`` returns. An estimator
    draws no rows; rows and keys are arguments. All methods except ``with_rows`` and ``check`` are traced: a step cannot
    branch on values in Python, and what a method closes over becomes a constant of the compiled program.

    The order of the calls: ``with_rows`` when a kernel is made, ``check`` and ``start`` in ``init``; then in each step
    ``begin_step`` once, ``evaluate`` once for every gradient of the integrator, and ``commit`` once.

    Estimators inherit from this class: it has defaults for the methods that most of them do not need.
    """

    def with_rows(self, rows: RowScheme) -> tuple["GradientEstimator", RowScheme]:
        """
        The estimator and the row scheme that the kernel will use. An estimator may read the properties of the scheme
        (``distinct``, ``independent``) and may replace it.
        """
        return self, rows

    def check(self, potential: Potential, chains: int) -> None:
        """
        Called before anything is compiled.

        :param chains: number of chains, each with a state.
        :raises ValueError: if this estimator cannot be used with this potential.
        """
        del potential, chains

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Any:
        """The state of a chain that starts at ``z``. A pass over the data is allowed."""
        ...

    def begin_step(self, potential: Potential, z: Sites, gradient_state: Any, i: jax.Array, rng_key: jax.Array) -> Any:
        """
        The state before a step from ``z``. It is kept even if the step is refused.

        :param i: number of the step, counted from 0. A 32-bit integer, which may be unsigned and start at 0 again
            after 2**32 steps. It is the same for all chains that run together.
        """
        del potential, z, i, rng_key
        return gradient_state

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        """
        An estimate of U and of its gradient at ``z``. It is unbiased for any state, if the rows are drawn independently
        of the state.

        :param rows: ``batch_size`` rows of each minibatched plate; the same for all evaluations of a step. A row may
            occur twice if the scheme is not ``distinct``.
        :param gradient_state: the result of ``begin_step``; it does not change between the evaluations of a step.
        :param rng_key: for ``numpyro.prng_key()`` in the model; the same for all evaluations of a step.
        :return: the evaluation. Its ``update`` is the argument of ``commit``, any pytree of arrays.
        """
        ...

    def commit(self, gradient_state: Any, update: Any, accepted: jax.Array) -> Any:
        """
        The state after a step.

        :param gradient_state: the result of ``begin_step``.
        :param update: ``update`` of the last evaluation of the step.
        :param accepted: whether the step was accepted, a boolean of shape ``()``. If not, the update may contain
            non-finite numbers, and the state must not change.
        """
        del update, accepted
        return gradient_state

    @property
    def shared(self) -> bool:
        """Whether chains that run together share one state. Then only ``recenter`` may change it."""
        return False

    def recenter(self, potential: Potential, gradient_state: Any, z: Sites, rng_key: jax.Array) -> Any:
        """The state for chains around ``z``; the warm-up calls this when it has estimated their centre."""
        del potential, z, rng_key
        return gradient_state

    def refresh(self, potential: Potential, gradient_state: Any, rng_key: jax.Array) -> Any:
        """
        The state after the conditioning values have changed, for a block of :class:`numpyro.infer.Gibbs`; the potential
        has the new values already. The state must not depend on the old values in a way that makes ``evaluate`` biased.
        A pass over the data is allowed.
        """
        del potential, rng_key
        return gradient_state


class Dynamics(Protocol):
    """
    An SDE as a set of flows, one method per letter. A flow takes ``(phase, h)``, then the gradient if it needs one,
    then standard normal noise like ``z`` if it needs that.

    Dynamics inherit from this class: it has defaults for the methods that most of them do not need.
    """

    @property
    def flows(self) -> Mapping[str, Flow]:
        """Letter -> flow."""
        ...

    @property
    def integrators(self) -> Mapping[str, str]:
        """Names of integrators in the papers -> words."""
        ...

    def largest_step(self, curvature: Any) -> Any:
        """The largest step size of its words if no curvature of U exceeds ``curvature``, 1 for a standard normal."""
        ...

    def init(self, z: Any, noise: Any) -> Phase: ...

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white gradient noise of this variance adds to z, to first order."""
        ...

    def informed(self, phase: Phase, variance: Any) -> Phase:
        """The phase whose flows account for white gradient noise of this variance, if they need it."""
        return phase._replace(auxiliary=variance)

    def reckoning(self, phase: Phase, factor: float) -> Phase:
        """The phase where the variance of the gradient noise, set by ``informed``, is multiplied by ``factor``."""
        return phase._replace(auxiliary=jax.tree.map(lambda s2: factor * s2, phase.auxiliary))

    def reverse(self, phase: Phase, scale: Any) -> Phase:
        """The phase with its momentum times ``-scale``."""
        return phase._replace(momentum=jax.tree.map(lambda p: -scale * p, phase.momentum))

    def temperature(self, phase: Phase) -> Any:
        """Kinetic temperature, 1 on average; ``()``, or :class:`BySteps`, without a momentum."""
        del phase
        return ()

    def noise_like(self, phase: Phase) -> Any:
        """A pytree with the structure and shapes of the noise of a step, for letters that share it."""
        return phase.z

    def settled(self, phase: Phase) -> tuple["Dynamics", Phase]:
        """The dynamics whose adapted quantities are constants, at their values in this phase, and its phase."""
        return self, phase

    def bind(self, potential: Potential) -> "Dynamics":
        """The dynamics for a potential, if it contains a function of the model, such as its Fisher information."""
        del potential
        return self


@runtime_checkable
class Adaptive(Protocol):
    """A dynamics that adapts its own variables during the warm-up."""

    def adapt(self, phase: Phase, gradient: Any, i: jax.Array, num_warmup: jax.Array) -> Phase:
        """
        The phase after step ``i`` with its thermostat and auxiliary variables adapted.

        :param gradient: the last one of this step.
        :param num_warmup: integrator steps of the warm-up. From this step on nothing may change.
        """
        ...


@runtime_checkable
class Checked(Protocol):
    """A dynamics with parts that the user has written. Its coordinates are always z."""

    def report(self, phase: Phase, h: jax.Array) -> Any:
        """Arrays at the start of a chain that ``check`` needs; may be traced."""
        ...

    def check(self, report: Any, phase: Phase) -> None:
        """
        :raises ValueError: if an entry is wrong; the message names it.
        """
        ...


@runtime_checkable
class Thermostatted(Protocol):
    """A dynamics that measures its own temperature, and needs a start close to equilibrium."""

    def balanced(self, phase: Phase, h: jax.Array, variance: Any) -> Phase:
        """The phase with thermostats that balance gradient noise of this variance."""
        ...


class Integrator(Protocol):
    """One step of size h; ``gradient`` is carried from step to step if ``carries_gradient``."""

    @property
    def carries_gradient(self) -> bool: ...

    @property
    def evaluates_start(self) -> bool:
        """Whether a step evaluates a gradient at its initial position."""
        ...

    @property
    def evaluates_end(self) -> bool:
        """Whether a step evaluates a gradient at its final position."""
        ...

    @property
    def needs_variance(self) -> bool:
        """Whether a step needs the variance of the gradient noise, which must be white (:meth:`Dynamics.informed`)."""
        ...

    def check(self, dynamics: Dynamics) -> None: ...

    def step(
        self,
        dynamics: Dynamics,
        phase: Phase,
        gradient: Any,
        h: jax.Array,
        gradient_fn: Callable[[Sites], Evaluation],
        rng_key: jax.Array,
    ) -> tuple[Phase, Any, tuple[Evaluation, ...]]: ...
