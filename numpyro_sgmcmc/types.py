"""Types that pass between packages: what one may expect of another."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax

Sites: TypeAlias = dict[str, jax.Array]
"""Unconstrained values of the latent sites, keyed by name."""

Rows: TypeAlias = dict[str, jax.Array]
"""Plate name -> int32 row numbers, shape ``(batch_size,)``. Empty where all rows are used."""

Schedule: TypeAlias = Callable[[Any], Any]
"""Step index -> step size h. Counts integrator steps, not MCMC transitions."""


class Plate(NamedTuple):
    """A plate of which each step sees ``batch_size`` of its ``size`` rows."""

    size: int
    batch_size: int


class Phase(NamedTuple):
    """
    What the flows of a dynamics move.

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
    What a letter of a word stands for, as its dynamics declares it.

    - **name** - in words, for messages.
    - **needs_gradient**, **needs_noise** - whether it is handed the gradient, and standard normal noise like ``z``.
    - **moves** - whether it changes the position.
    - **contains** - the letters whose terms of the SDE it integrates together; empty: its own.
    - **place** - the letters next to each other among which it is right, once in a word; empty: anywhere.
    - **needs_variance** - whether it reads the variance of the gradient's noise, a dict like ``z`` in ``auxiliary``.
    - **shares_noise** - whether its noise is that of the step, one draw like :meth:`Dynamics.noise_like` for all
      letters that say so.
    - **needs_key** - whether it is handed a random key, for noise that is not normal.
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
    """Where a chain stands in its sequence of minibatches: all of it, whatever the size of the data."""

    rng_key: jax.Array  # one key for the life of the chain
    t: jax.Array  # shape=(), dtype=uint32, batches drawn so far; 0 again after 2**32


class BySteps(NamedTuple):
    """
    No array: in place of a kinetic temperature, for a dynamics without momentum and of unit mass, whose last step says
    how warm it is.
    """


class Evaluation(NamedTuple):
    """One gradient evaluation; ``update`` is what the estimator wants to remember of it."""

    energy: jax.Array
    gradient: Any
    update: Any


class Potential(Protocol):
    """U(z), the negative log joint density in unconstrained space: one potential, three questions."""

    plates: Mapping[str, Plate]

    @property
    def prototype(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the unconstrained latents."""
        ...

    @property
    def randomised(self) -> bool:
        """Whether the model draws keys of its own (``numpyro.prng_key()``)."""
        ...

    @property
    def draws_local_sites(self) -> bool:
        """Whether latent sites of the rows are drawn for each minibatch."""
        ...

    @property
    def keeps_local_values(self) -> bool:
        """Whether the draws begin at the values of the previous visit of a row."""
        ...

    @property
    def local_values(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of these values for a minibatch, a row along axis 0."""
        ...

    def visit(
        self, z: Sites, rows: Rows, rng_key: jax.Array | None, before: tuple[Sites, jax.Array] | None
    ) -> tuple[jax.Array, Sites]:
        """An estimate with local values that are drawn beginning at given ones, and the new values."""
        ...

    @property
    def devices(self) -> int:
        """Over how many devices the rows are spread, in order."""
        ...

    def serving(
        self, rows: Rows, read: tuple[jax.Array, ...] = (), weights: Mapping[str, Any] = MappingProxyType({})
    ) -> AbstractContextManager:
        """
        Within it lookups of these very rows, as many of each device's own, stay on the devices.

        :param read: of each source on disk what has been read of these rows already.
        :param weights: what the rows count, by plate, where that is not 1.
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
    Which rows of a plate are in batch t. The data stay with the model, which looks the rows up.

    A scheme keeps no state and is hashable. Its rows depend on the arguments of the call alone, so that a chain can be
    resumed, or a batch drawn again, from a key and a number. It is called under ``jit`` and ``vmap``.

    - Each row is equally likely to be in batch t, over the keys: the estimate scaled by N/n is then unbiased.
    - Batches of different keys are independent.
    - ``t`` is a uint32, traced or not, or a Python int. After 2**32 batches it starts again at 0, and with it the
      sequence of batches.
    """

    @property
    def independent(self) -> bool:
        """Whether batches are independent of each other, their gradient noise white."""
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

    The estimator itself is a frozen dataclass of options. What it remembers of a chain is its state: any pytree of
    arrays, whose structure, shapes and dtypes are those that ``start`` returns, at every step. An estimator draws no
    rows; rows and keys are handed in. All methods but ``with_rows`` and ``check`` are traced: a step cannot branch on
    values in Python, and what a method closes over becomes a constant of the compiled program.

    The order of the calls: ``with_rows`` when a kernel is made, ``check`` and ``start`` in ``init``; then in each step
    ``begin_step`` once, ``evaluate`` once for every gradient of the integrator, and ``commit`` once.

    To be inherited from: what most estimators have no use for has its default here.
    """

    def with_rows(self, rows: RowScheme) -> tuple["GradientEstimator", RowScheme]:
        """
        The estimator and the row scheme that the kernel is to use. An estimator may look at the properties of the
        scheme (``distinct``, ``independent``) and may put another scheme in its place.
        """
        return self, rows

    def check(self, potential: Potential, chains: int) -> None:
        """
        Called before anything is compiled.

        :param chains: how many states will be held.
        :raises ValueError: this estimator cannot be used with this potential.
        """
        del potential, chains

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Any:
        """The state of a chain that starts at ``z``. A pass over the data is allowed."""
        ...

    def begin_step(self, potential: Potential, z: Sites, gradient_state: Any, i: jax.Array, rng_key: jax.Array) -> Any:
        """
        The state before a step from ``z``. It is kept even if the step is refused.

        :param i: number of the step, counted from 0. An integer of 32 bits, which may be unsigned and start at 0 again
            after 2**32 steps. In chains that are run together it is the same for all.
        """
        del potential, z, i, rng_key
        return gradient_state

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        """
        An estimate of U and of its gradient at ``z``. Unbiased over the rows, whatever the state holds, if these are
        drawn independently of it.

        :param rows: as many for each minibatched plate as the kernel's ``batch_size``; the same for all evaluations of
            a step. A row may come twice if the scheme is not ``distinct``.
        :param gradient_state: what ``begin_step`` returned; it is not changed between the evaluations of a step.
        :param rng_key: for ``numpyro.prng_key()`` in the model; the same for all evaluations of a step.
        :return: with the ``update`` that ``commit`` is to be given, any pytree of arrays.
        """
        ...

    def commit(self, gradient_state: Any, update: Any, accepted: jax.Array) -> Any:
        """
        The state after a step.

        :param gradient_state: what ``begin_step`` returned.
        :param update: that of the last evaluation of the step.
        :param accepted: whether the step was taken, a boolean of shape ``()``. If not, the update may hold numbers that
            are not finite, and the state must stay as it is.
        """
        del update, accepted
        return gradient_state

    @property
    def shared(self) -> bool:
        """Whether chains that are run together share one state, which then nothing but ``recenter`` may change."""
        return False

    def recenter(self, potential: Potential, gradient_state: Any, z: Sites, rng_key: jax.Array) -> Any:
        """The state for chains around ``z``, when the warm-up has found where they are."""
        del potential, z, rng_key
        return gradient_state

    def refresh(self, potential: Potential, gradient_state: Any, rng_key: jax.Array) -> Any:
        """
        The state under other conditioning values, as a block of :class:`numpyro.infer.Gibbs` gets them; the potential
        has the new ones already. Nothing in the state may depend on the old ones in a way that makes ``evaluate``
        biased. A pass over the data is allowed.
        """
        del potential, rng_key
        return gradient_state


class Dynamics(Protocol):
    """
    An SDE as a set of flows, one method a letter. A flow takes ``(phase, h)``, then the gradient if it needs one, then
    standard normal noise like ``z`` if it needs that.

    To be inherited from: what most dynamics have no use for has its default here.
    """

    @property
    def flows(self) -> Mapping[str, Flow]:
        """Its letters."""
        ...

    @property
    def integrators(self) -> Mapping[str, str]:
        """The papers' names -> words."""
        ...

    def largest_step(self, curvature: Any) -> Any:
        """The largest step that its words take where no curvature of U is larger; 1 where the posterior is round."""
        ...

    def init(self, z: Any, noise: Any) -> Phase: ...

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white gradient noise of this variance adds to z, to first order."""
        ...

    def informed(self, phase: Phase, variance: Any) -> Phase:
        """The phase whose flows reckon with white gradient noise of this variance, if they need to know it."""
        return phase._replace(auxiliary=variance)

    def reckoning(self, phase: Phase, factor: float) -> Phase:
        """The phase whose flows reckon with so many times the variance that they know."""
        return phase._replace(auxiliary=jax.tree.map(lambda s2: factor * s2, phase.auxiliary))

    def reverse(self, phase: Phase, scale: Any) -> Phase:
        """The phase with its momentum times ``-scale``."""
        return phase._replace(momentum=jax.tree.map(lambda p: -scale * p, phase.momentum))

    def temperature(self, phase: Phase) -> Any:
        """Kinetic temperature, 1 on average; ``()``, or :class:`BySteps`, without a momentum."""
        del phase
        return ()

    def noise_like(self, phase: Phase) -> Any:
        """What the noise of a step is like, where letters share it."""
        return phase.z

    def settled(self, phase: Phase) -> tuple["Dynamics", Phase]:
        """The dynamics at this phase with all that it has adapted for constants, and its phase."""
        return self, phase

    def bind(self, potential: Potential) -> "Dynamics":
        """The dynamics for a potential, where a function of the model, its Fisher information say, is part of it."""
        del potential
        return self


@runtime_checkable
class Adaptive(Protocol):
    """A dynamics that adapts what it owns during the warm-up."""

    def adapt(self, phase: Phase, gradient: Any, i: jax.Array, num_warmup: jax.Array) -> Phase:
        """
        The phase after step ``i`` with its thermostat and auxiliary variables adapted.

        :param gradient: the last one of this step.
        :param num_warmup: integrator steps of the warm-up. From this step on nothing may change.
        """
        ...


@runtime_checkable
class Checked(Protocol):
    """A dynamics whose parts a user has brought. It moves in z itself, in no other coordinates."""

    def report(self, phase: Phase, h: jax.Array) -> Any:
        """What is to be checked of the start of a chain, arrays; may be traced."""
        ...

    def check(self, report: Any, phase: Phase) -> None:
        """
        :raises ValueError: names the entry that is wrong.
        """
        ...


@runtime_checkable
class Thermostatted(Protocol):
    """A dynamics that measures its own temperature, and suffers from a start far from equilibrium."""

    def balanced(self, phase: Phase, h: jax.Array, variance: Any) -> Phase:
        """The phase with thermostats that balance gradient noise of this variance."""
        ...


class Integrator(Protocol):
    """One step of size h; ``gradient`` is carried from step to step where ``carries_gradient``."""

    @property
    def carries_gradient(self) -> bool: ...

    @property
    def evaluates_start(self) -> bool:
        """Whether a step evaluates a gradient where it begins."""
        ...

    @property
    def evaluates_end(self) -> bool:
        """Whether a step evaluates a gradient where it ends."""
        ...

    @property
    def needs_variance(self) -> bool:
        """Whether the dynamics must be ``informed`` of the variance of the gradient's noise, which must be white."""
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
