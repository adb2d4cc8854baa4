"""Types that pass between rooms: what one file may expect of another."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

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
    """

    z: Any
    momentum: Any
    thermostat: Any


class RowsState(NamedTuple):
    """Where a chain stands in its sequence of minibatches: all of it, whatever the size of the data."""

    rng_key: jax.Array  # one key for the life of the chain
    t: jax.Array  # shape=(), dtype=int32, batches drawn so far


class Evaluation(NamedTuple):
    """One gradient evaluation; ``proposal`` is what the estimator wants to remember of it."""

    energy: jax.Array
    gradient: Any
    proposal: Any


class Potential(Protocol):
    """U(z), the negative log joint density in unconstrained space: one potential, three questions."""

    plates: Mapping[str, Plate]

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
    """Which rows come t-th: a pure function of the key, so a scheme keeps no O(N) state."""

    independent: ClassVar[bool]  # whether batches are independent of each other, their gradient noise white

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array: ...


class GradientEstimator(Protocol):
    """
    Rows -> unbiased gradient of U. ``evaluate`` looks, ``commit`` remembers: a step that is refused
    commits nothing. An estimator never draws; rows and key are handed in.
    """

    def init(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Any: ...

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation: ...

    def commit(self, gradient_state: Any, proposal: Any, accepted: jax.Array) -> Any: ...


class Dynamics(Protocol):
    """
    An SDE as a set of flows, one method a letter. The signature follows from the letter: every flow
    takes ``(phase, h)``, kicks (``B``, ``E``) also the gradient, noisy flows (``N``, ``O``, ``E``)
    also standard normal noise like ``z``.
    """

    @property
    def flows(self) -> str:
        """The letters it has."""
        ...

    @property
    def moves(self) -> str:
        """The letters that change z."""
        ...

    @property
    def integrators(self) -> Mapping[str, str]:
        """The papers' names -> words."""
        ...

    def init(self, z: Sites, noise: Any) -> Phase: ...


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
