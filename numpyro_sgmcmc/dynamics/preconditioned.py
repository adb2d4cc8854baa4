r"""
A diagonal preconditioner that is estimated in the warm-up (Li et al. 2016; Springenberg et al. 2016). It works with any
dynamics that has a mass,

.. math:: M^{-1} = \frac{1}{\lambda + \sqrt{V}}, \qquad V' = V + \max(1 - \beta, \tfrac{1}{i + 1}) (g^2 - V),

where V is the running mean of squared gradients of U, by coordinate. It changes in the first half of the warm-up and is
then constant, so that the second half and the draws follow the dynamics with a constant mass and have its stationary
distribution. When the mass changes, the momentum is rescaled to keep its distribution: :math:`p' = \sqrt{M' / M}\, p`.

A preconditioner that adapts for ever has another stationary distribution. Its divergence :math:`\Gamma` would not
correct that: V is a function of the path, not of the position, and Li et al. (2016) leave :math:`\Gamma` out in their
own experiments. For a metric that is a function of the position, with its :math:`\Gamma`, use
:class:`~numpyro_sgmcmc.SGRLD`.

The first gradient sets V to its mean square over all coordinates, so that no coordinate moves far before its own V is
known. Before that the mass is so large that the chain does not move.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Flow, Phase
from numpyro_sgmcmc.utils import trees

STILL = 1e-20  # M^-1 before the first gradient


class Preconditioner(NamedTuple):
    """
    - **inverse_mass** - M^-1, a dict like ``z``.
    - **square** - V, a dict like ``z``.
    - **frozen** - whether both are constant from now on, a boolean of shape ``()``.
    - **variance** - variance of the gradient noise if the word needs it, a dict like ``z``; otherwise ``()``.
    """

    inverse_mass: Any
    square: Any
    frozen: jax.Array
    variance: Any = ()


def _letter(name: str) -> Callable[..., Phase]:
    def flow(self: "Preconditioned", phase: Phase, h: jax.Array, *inputs: Any) -> Phase:
        dynamics, inner = self.settled(phase)
        return getattr(dynamics, name)(inner, h, *inputs)._replace(auxiliary=phase.auxiliary)

    return flow


@dataclass(frozen=True)
class Preconditioned(Dynamics):
    """
    A dynamics whose mass is estimated in the warm-up.

    :param base: overdamped or underdamped dynamics, which defines the letters and words.
    :param float memory: beta; V averages over about 1 / (1 - beta) steps.
    :param float damping: lambda, in the units of a gradient of U.
    """

    base: Any
    memory: float = 0.99
    damping: float = 1e-5

    A, B, E, F, G, N, O = map(_letter, "ABEFGNO")  # noqa: E741

    @property
    def flows(self) -> Mapping[str, Flow]:
        return self.base.flows

    @property
    def integrators(self) -> Mapping[str, str]:
        return self.base.integrators

    def settled(self, phase: Phase) -> tuple[Any, Phase]:
        """The base dynamics with the mass of this phase as a constant, and its phase."""
        own = phase.auxiliary
        return replace(self.base, inverse_mass_matrix=own.inverse_mass), phase._replace(auxiliary=own.variance)

    def largest_step(self, curvature: Any) -> Any:
        return self.base.largest_step(curvature)

    def init(self, z: Any, noise: Any) -> Phase:
        still = jax.tree.map(lambda x: jnp.full_like(x, STILL), z)
        own = Preconditioner(still, jax.tree.map(jnp.zeros_like, z), jnp.zeros((), bool))
        return replace(self.base, inverse_mass_matrix=still).init(z, noise)._replace(auxiliary=own)

    def informed(self, phase: Phase, variance: Any) -> Phase:
        return phase._replace(auxiliary=phase.auxiliary._replace(variance=variance))

    def reckoning(self, phase: Phase, factor: float) -> Phase:
        return self.informed(phase, jax.tree.map(lambda s2: factor * s2, phase.auxiliary.variance))

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        dynamics, inner = self.settled(phase)
        return dynamics.inflation(inner, h, variance)

    def temperature(self, phase: Phase) -> Any:
        dynamics, inner = self.settled(phase)
        return dynamics.temperature(inner)

    def adapt(self, phase: Phase, gradient: Any, i: jax.Array, num_warmup: jax.Array) -> Phase:
        """The phase with the preconditioner updated by one gradient, in the first half of the warm-up."""
        old = phase.auxiliary
        half = jnp.maximum(num_warmup // 2, 1)
        moves = ~old.frozen & (i < half)
        squared = jax.tree.map(jnp.square, gradient)
        mean = trees.total(squared) / trees.size(squared)

        def averaged(v, g2):
            rate = jnp.maximum(1 - self.memory, 1 / (i.astype(v.dtype) + 1))
            new = jnp.where(i == 0, mean.astype(v.dtype), v + rate * (g2 - v))
            return jnp.where(moves, new, v)

        square = jax.tree.map(averaged, old.square, squared)
        inverse_mass = jax.tree.map(
            lambda v, im: jnp.where(moves, 1 / (self.damping + jnp.sqrt(v)), im), square, old.inverse_mass
        )
        momentum = phase.momentum
        if not isinstance(momentum, tuple):
            rescaled = lambda p, im, new: jnp.where(moves, p * jnp.sqrt(im / new), p)  # noqa: E731
            momentum = jax.tree.map(rescaled, momentum, old.inverse_mass, inverse_mass)
        frozen = old.frozen | (i + 1 >= half)
        own = old._replace(inverse_mass=inverse_mass, square=square, frozen=frozen)
        return phase._replace(momentum=momentum, auxiliary=own)


def preconditioned(base: Any, memory: float, damping: float, step_size: Any) -> Preconditioned:
    """
    :raises ValueError: if an argument is wrong or missing; the message names it.
    """
    if step_size is None or getattr(step_size, "relative", False):
        raise ValueError(
            "step_size= is missing: the warm-up estimates the preconditioner, not the step size. Give one, or use SGLD "
            "or SGHMC, whose warm-up chooses coordinates and step size."
        )
    if not (isinstance(memory, (int, float)) and 0 <= memory < 1):
        raise ValueError(f"memory={memory!r} must be a number in [0, 1): 0.99 averages over 100 steps.")
    if not (isinstance(damping, (int, float)) and math.isfinite(damping) and damping > 0):
        raise ValueError(f"damping={damping!r} must be a positive, finite number.")
    return Preconditioned(base, float(memory), float(damping))
