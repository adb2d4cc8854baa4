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
            return coordinates.pull_back(raveled(evaluation.gradient))

        places, keys = jnp.stack([x, x, x + away, x - away]), jnp.stack([first, second, first, first])
        here, other, *ends = jax.vmap(gradient_at)(places, keys)
        return Probe(here, other, (ends[0] + ends[1]) / 2 - here)

    axis = None if gradient.shared else 0
    return jax.vmap(probe_chain, (0, 0, axis))(x, random.split(rng_key, len(x)), gradient_state)
