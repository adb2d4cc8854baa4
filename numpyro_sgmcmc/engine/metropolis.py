r"""
The Metropolis test of a self-tuned step that uses all rows.

Let a word read the same backwards, such as ``BAOAB``, with exact gradients. A step :math:`(z, p) \to (z', p')` then is
reversible up to its work

.. math:: W = U(z') - U(z) + K(p') - K(p) - Q, \qquad K = \tfrac{1}{2} p^T M^{-1} p,

where the heat Q is the change of K by the noise, which leaves :math:`\exp(-K)` invariant by itself (Bussi & Parrinello
2007, arXiv 0803.4083, eq. 19). The step is accepted with probability :math:`\min(1, e^{-W})`. Otherwise the chain stays
and its momentum is reversed, :math:`(z, p) \to (z, -p)`, as in generalised HMC (Horowitz 1991). So the stationary
distribution of the draws is the posterior, whatever the step size. Both energies are by-products of the gradients that
the word evaluates anyway.

``G`` is ``O`` here, because there is no gradient noise to subtract.
"""

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Dynamics, Phase
from numpyro_sgmcmc.utils import noise, trees

ROUNDING = 0.1  # maximal rounding error of U: a larger one would decide in place of W


def is_reversible(integrator: Any) -> bool:
    """Whether the steps of this word are reversible if their gradients are exact."""
    word, flows = getattr(integrator, "word", ""), getattr(integrator, "flows", {})
    reversible = word == word[::-1] and all(flows[letter].reversible for letter in word)
    return reversible and integrator.carries_gradient


def work(
    dynamics: Dynamics, old: Phase, new: Phase, around_noise: Any, energy: jax.Array, new_energy: jax.Array
) -> jax.Array:
    """W; ``around_noise`` are the phases before and after each letter with noise."""

    def kinetic(phase):
        return trees.size(phase.z) / 2 * dynamics.temperature(phase)

    heat = sum(kinetic(after) - kinetic(before) for before, after in around_noise)
    return new_energy - energy + kinetic(new) - kinetic(old) - heat


def passes(work: jax.Array, energy: jax.Array, rng_key: jax.Array) -> jax.Array:
    """Whether a step of this work is accepted. Each is, if ``energy`` is too large for its precision."""
    chance = noise.uniform_like(rng_key, jnp.zeros_like(work))
    return ~_is_resolved(energy) | (jnp.log(chance) <= -work)


def acceptance(work: jax.Array, energy: jax.Array) -> jax.Array:
    """The probability of :func:`passes`."""
    return jnp.where(~_is_resolved(energy) | (work <= 0), 1, jnp.nan_to_num(jnp.exp(-work)))


def _is_resolved(energy: jax.Array) -> jax.Array:
    return jnp.abs(energy) * jnp.finfo(energy.dtype).eps <= ROUNDING
