r"""
A diagonal preconditioner that is estimated in the warm-up (Li et al. 2016; Springenberg et al. 2016). It works with any
dynamics that has a mass,

.. math:: M^{-1} = \frac{1}{\lambda + \sqrt{V}}, \qquad V' = V + \max(1 - \beta, \tfrac{1}{k}) (g^2 - V),

where V is the running mean of squared gradients of U, by coordinate, and k their number. It changes in the first half
of the warm-up and is then constant, so that the second half and the draws follow the dynamics with a constant mass and
have its stationary distribution. When the mass changes, the momentum is rescaled to keep its distribution:
:math:`p' = \sqrt{M' / M}\, p`.

While V changes, a gradient is part of V before it is used, so that :math:`g / \sqrt{V}` is at most
:math:`1 / \sqrt{1 - \beta}`, or :math:`\sqrt{k}`: near an optimised start gradients are small, and the first large one
would throw the chain far away.

A preconditioner that adapts for ever has another stationary distribution. Its divergence :math:`\Gamma` would not
correct that: V is a function of the path, not of the position, and Li et al. (2016) leave :math:`\Gamma` out in their
own experiments. For a metric that is a function of the position, with its :math:`\Gamma`, use
:class:`~numpyro_sgmcmc.SGRLD`.

The first gradient sets V to its square, or to its mean square over all coordinates where that is larger, so that no
coordinate moves far before its own V is known. Before that the mass is so large that the chain does not move.
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
    inverse_mass: Any  # M^-1, a dict like z
    square: Any  # V, a dict like z
    share: jax.Array  # the weight of the next gradient in V, of shape (); 0 from the middle of the warm-up on


def _letter(name: str) -> Callable[..., Phase]:
    def flow(self: "Preconditioned", phase: Phase, h: jax.Array, *inputs: Any) -> Phase:
        if self.flows[name].needs_gradient:
            phase = self.averaged(phase, inputs[0])
        dynamics, inner = self.with_frozen_adaptation(phase)
        return getattr(dynamics, name)(inner, h, *inputs)._replace(auxiliary=phase.auxiliary)

    return flow


@dataclass(frozen=True)
class Preconditioned(Dynamics):
    """A dynamics whose mass is estimated in the warm-up."""

    base: Any  # overdamped or underdamped dynamics, which defines the letters and words
    memory: float = 0.99  # beta; V averages over about 1 / (1 - beta) steps
    damping: float = 1e-5  # lambda, in the units of a gradient of U

    A, B, E, F, G, N, O = map(_letter, "ABEFGNO")

    @property
    def flows(self) -> Mapping[str, Flow]:
        return self.base.flows

    @property
    def integrators(self) -> Mapping[str, str]:
        return self.base.integrators

    def with_frozen_adaptation(self, phase: Phase) -> tuple[Any, Phase]:
        """The base dynamics with the mass of this phase as a constant, and its phase."""
        return replace(self.base, inverse_mass_matrix=phase.auxiliary.inverse_mass), phase._replace(auxiliary=())

    def largest_step(self, curvature: Any) -> Any:
        return self.base.largest_step(curvature)

    def init(self, z: Any, noise: Any) -> Phase:
        still = jax.tree.map(lambda x: jnp.full_like(x, STILL), z)
        own = Preconditioner(still, jax.tree.map(jnp.zeros_like, z), jnp.ones(()))
        return replace(self.base, inverse_mass_matrix=still).init(z, noise)._replace(auxiliary=own)

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        dynamics, inner = self.with_frozen_adaptation(phase)
        return dynamics.inflation(inner, h, variance)

    def temperature(self, phase: Phase) -> Any:
        dynamics, inner = self.with_frozen_adaptation(phase)
        return dynamics.temperature(inner)

    def adapt(self, phase: Phase, i: jax.Array, num_warmup: jax.Array) -> Phase:
        """The phase with a constant preconditioner, from the middle of the warm-up on."""
        own = phase.auxiliary
        share = jnp.where(i < jnp.maximum(num_warmup // 2, 1), own.share, 0)
        return phase._replace(auxiliary=own._replace(share=share))

    def averaged(self, phase: Phase, gradient: Any) -> Phase:
        """The phase with V updated by one gradient, unless V is constant."""
        own = phase.auxiliary
        moves = own.share > 0
        squared = jax.tree.map(jnp.square, gradient)
        mean = trees.total(squared) / trees.size(squared)

        def mean_square(v, g2, inverse_mass):
            first = jnp.maximum(g2, mean.astype(v.dtype))
            new = jnp.where(inverse_mass == STILL, first, v + own.share.astype(v.dtype) * (g2 - v))
            return jnp.where(moves, new, v)

        square = jax.tree.map(mean_square, own.square, squared, own.inverse_mass)
        inverse_mass = jax.tree.map(
            lambda v, im: jnp.where(moves, 1 / (self.damping + jnp.sqrt(v)), im), square, own.inverse_mass
        )
        momentum = phase.momentum
        if not isinstance(momentum, tuple):
            rescaled = lambda p, im, new: jnp.where(moves, p * jnp.sqrt(im / new), p)  # noqa: E731
            momentum = jax.tree.map(rescaled, momentum, own.inverse_mass, inverse_mass)
        # 1, 1/2, 1/3, ..., 1 - beta
        share = jnp.where(moves, jnp.maximum(1 - self.memory, own.share / (1 + own.share)), 0)
        own = own._replace(inverse_mass=inverse_mass, square=square, share=share)
        return phase._replace(momentum=momentum, auxiliary=own)


STEP_SIZE_IS_GIVEN = (
    ": the warm-up estimates the preconditioner, not the step size. Give one, or use SGLD or SGHMC, whose warm-up "
    "chooses coordinates and step size."
)


def preconditioned(base: Any, memory: float, damping: float) -> Preconditioned:
    """Raises a ValueError if an argument is wrong; the message names it."""
    if not (isinstance(memory, (int, float)) and 0 <= memory < 1):
        raise ValueError(f"memory={memory!r} must be a number in [0, 1): 0.99 averages over 100 steps.")
    if not (isinstance(damping, (int, float)) and math.isfinite(damping) and damping > 0):
        raise ValueError(f"damping={damping!r} must be a positive, finite number.")
    return Preconditioned(base, float(memory), float(damping))
