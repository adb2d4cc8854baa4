r"""
Gradients in x at a position, from which the warm-up learns two things beside the score: the gradient noise, from the
difference of two minibatches, and how far the step is from that of a normal posterior, from one minibatch at the
position and at both ends of a drift through it,

.. math:: b = \frac{g(x + r n) + g(x - r n)}{2} - g(x), \qquad n \sim N(0, I),
    \qquad E[b] = \frac{r^2}{2} \nabla \Delta U + O(r^4).

On a normal posterior E[b] = 0. With r = h / 2 it is the error :math:`E[\nabla U]` of the draws of ``ABOBA`` (see
:mod:`~numpyro_sgmcmc.dynamics.underdamped`), in posterior standard deviations of x. The minibatch is the same, so most
of its noise cancels.
"""

from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import next_rows, row_weights
from numpyro_sgmcmc.tuning.coordinates import raveled, unraveler
from numpyro_sgmcmc.types import GradientEstimator, Potential, RowScheme, RowsState
from numpyro_sgmcmc.utils import noise


class Probe(NamedTuple):
    """Gradients at one position of each chain, shape ``(chains, d)``, from two new minibatches."""

    first: jax.Array
    second: jax.Array
    bend: jax.Array  # b, from the first of them
    energy: jax.Array  # the estimate of U from the first of them, shape (chains,)


class Looks(NamedTuple):
    """
    What is measured at the end of a round of the warm-up, for each kind of gradient along the first axis: in the first
    round from scattered rows and from blocks, later from a control variate of first and of second order.
    """

    differences: jax.Array  # samples of the gradient noise e, shape (kinds, places, chains, d)
    bends: jax.Array  # samples of b
    gradient: jax.Array  # at the positions of the chains, shape (kinds, chains, d)
    energy: jax.Array  # the estimates of U there

    @classmethod
    def zeros(cls, kinds: int, places: jax.Array) -> "Looks":
        like = jnp.zeros((kinds, *places.shape), places.dtype)
        return cls(like, like, like[:, 0], like[:, 0, :, 0])

    def add(self, kind: jax.Array, place: jax.Array, gradients: Probe) -> "Looks":
        """The first place of each kind is that of the chains."""
        first = lambda x, new: x.at[kind].set(jnp.where(place > 0, x[kind], new))  # noqa: E731
        return Looks(
            self.differences.at[kind, place].set((gradients.first - gradients.second) / jnp.sqrt(2.0)),
            self.bends.at[kind, place].set(gradients.bend),
            first(self.gradient, gradients.first),
            first(self.energy, gradients.energy),
        )


def probe(
    potential: Potential,
    gradient: GradientEstimator,
    rows: RowScheme,
    coordinates: Any,
    x: jax.Array,
    gradient_state: Any,
    reach: jax.Array,
    rng_key: jax.Array,
    contiguous: Any = None,
) -> Probe:
    """
    :param x: positions, shape ``(chains, d)``.
    :param gradient_state: of all chains if the estimator shares it, otherwise with chains along the first axis.
    :param reach: r.
    :param contiguous: whether a row scheme that is undecided uses blocks.
    """
    unravel = unraveler(potential.prototype)

    def probe_chain(x, key, gradient_state):
        first, second, key_away = random.split(key, 3)
        away = reach * noise.normal(key_away, x.shape, x.dtype)

        def gradient_at(x, key):
            z = unravel(coordinates.to_z(x))
            key_rows, key_model = random.split(key)
            drawn, _ = next_rows(rows, RowsState(key_rows, jnp.uint32(0)), potential.plates, contiguous)
            drawn_potential = potential.using_rows(drawn, weights=row_weights(rows, potential.plates))
            evaluation = gradient.evaluate(drawn_potential, z, drawn, gradient_state, key_model)
            return coordinates.pull_back(raveled(evaluation.gradient)), evaluation.energy

        places, keys = jnp.stack([x, x, x + away, x - away]), jnp.stack([first, second, first, first])
        (here, other, *ends), energies = jax.vmap(gradient_at)(places, keys)
        return Probe(here, other, (ends[0] + ends[1]) / 2 - here, energies[0])

    axis = None if gradient.shared else 0
    return jax.vmap(probe_chain, (0, 0, axis))(x, random.split(rng_key, len(x)), gradient_state)
