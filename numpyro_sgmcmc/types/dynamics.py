"""Interfaces of the dynamics, and of what integrates them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from numpyro_sgmcmc.types.basic import Evaluation, Phase, Sites
from numpyro_sgmcmc.types.potentials import Potential


class Flow(NamedTuple):
    """
    The meaning of a letter of a word, declared by its dynamics.

    - **name** - description, for messages.
    - **needs_gradient**, **needs_noise** - whether it takes the gradient, and standard normal noise like ``z``.
    - **moves** - whether it changes the position.
    - **contains** - the letters whose terms of the SDE it integrates together; empty: its own.
    - **places** - the words, or parts of words, in which it is correct, with all occurrences of their letters; empty:
      any word.
    - **needs_variance** - whether it reads the variance of the gradient noise in ``noise_variance``.
    - **shares_noise** - whether it uses the noise of the step, one draw like :meth:`Dynamics.noise_like` for all
      letters with ``shares_noise``.
    - **needs_key** - whether it takes a random key, for noise that is not normal.
    - **reversible** - whether with an exact gradient it is undone, in distribution, by itself between two reversals of
      the momentum, preserves volume, and its noise leaves the distribution of the momentum invariant.
    """

    name: str
    needs_gradient: bool = False
    needs_noise: bool = False
    moves: bool = False
    contains: str = ""
    places: tuple[str, ...] = ()
    needs_variance: bool = False
    shares_noise: bool = False
    needs_key: bool = False
    reversible: bool = False


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

    def init(self, z: Any, noise: Any) -> Phase:
        """The phase of a chain that starts at ``z``, with standard normal noise for its momentum, if there is one."""
        return Phase(z)

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance that white gradient noise of this variance adds to z, to first order."""
        ...

    def reverse(self, phase: Phase, scale: Any) -> Phase:
        """The phase with its momentum times ``-scale``."""
        return phase._replace(momentum=jax.tree.map(lambda p: -scale * p, phase.momentum))

    def temperature(self, phase: Phase) -> Any:
        """Kinetic temperature, 1 on average; ``()``, or :class:`TemperatureFromSteps`, without a momentum."""
        return ()

    def noise_like(self, phase: Phase) -> Any:
        """A pytree with the structure and shapes of the noise of a step, for letters that share it."""
        return phase.z

    def with_frozen_adaptation(self, phase: Phase) -> tuple["Dynamics", Phase]:
        """A dynamics whose adapted quantities are constants, with their values in this phase, and its phase."""
        return self, phase

    def bind(self, potential: Potential) -> "Dynamics":
        """The dynamics for a potential, if it contains a function of the model, such as its Fisher information."""
        return self


@runtime_checkable
class Adaptive(Protocol):
    """A dynamics that adapts its own variables during the warm-up."""

    def adapt(self, phase: Phase, i: jax.Array, num_warmup: jax.Array) -> Phase:
        """
        The phase before step ``i``. Its auxiliary variables say whether this step may adapt them.

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
        """Raises a ValueError if an entry is wrong; the message names it."""
        ...


@runtime_checkable
class Thermostatted(Protocol):
    """A dynamics that measures its own temperature, and needs a start close to equilibrium."""

    def at_equilibrium(self, phase: Phase, h: jax.Array, variance: Any) -> Phase:
        """The phase with thermostats at their equilibrium for gradient noise of this variance."""
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
        """Whether a step needs ``Phase.noise_variance``, so that the gradient noise must be white."""
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
