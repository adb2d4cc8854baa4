r"""
Where a thermostat's chain starts when nobody says: where the posterior is, its thermostats in balance with the noise.

A chain that falls into the posterior from afar turns potential energy into momentum, and each thermostat integrates
it, dxi = (p^2 / M - 1) dt: on the way up without bound, on the way down by at most 1 per unit of time. Until it is
down the posterior comes out too narrow. On the other side, a thermostat that starts at D, below its balance
D + h s^2 / 2, leaves the posterior too wide for about as many units of time as the balance is large. Hence a short
descent for z, then a look at the variance of the gradient there. docs/measurements.md has the numbers.

The descent is of a mean-field normal law q = N(m, exp(2 s)), by :math:`E_q U - \sum_j s_j`, not of a point: the mode of
a hierarchy with an unknown scale is the pit where the scale is 0, and no place to start from.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import WithoutReplacement
from numpyro_sgmcmc.tuning.descent import falling_adam, minimise
from numpyro_sgmcmc.types import Potential, Rows, Sites
from numpyro_sgmcmc.utils import noise, trees

STEPS = 1000  # of the descent
FIRST, LAST = 0.1, 1e-4  # Adam's step, in units of the unconstrained coordinates
LOG_WIDTH = -2.0  # of the law at first
DESCENT_ROWS = 500  # at least so many rows a step: the fall must end near the mode, not in the noise of small batches
PLACES = 23  # places looked at for a start
PROBES = 300  # minibatches looked at: the variance of the gradient to 8 %


def best_of_several(potential: Potential, rng_key: jax.Array, rows: Rows) -> Sites:
    """
    The place of least energy, among those where the energy is finite, of draws of normal laws around 0 of all widths up
    to 2; the origin where there is none.
    """
    key_draws, key_model = random.split(rng_key)
    sizes = 2.0 ** (1 - jnp.arange(PLACES) / 2)
    origin = {name: jnp.zeros(site.shape, site.dtype) for name, site in potential.prototype.items()}

    def draw(key, size):
        return jax.tree.map(lambda n: size * n, noise.normal_like(key, origin))

    draws = jax.vmap(draw)(random.split(key_draws, PLACES), sizes)
    draws = jax.tree.map(lambda x, o: jnp.concatenate([x, o[None]]), draws, origin)

    def energy(z):
        value, gradient = jax.value_and_grad(potential.estimate)(z, rows, key_model)
        return jnp.where(trees.all_finite(gradient) & jnp.isfinite(value), value, jnp.inf)

    best = jnp.argmin(jax.vmap(energy)(draws))
    return jax.tree.map(lambda x: x[best], draws)


def descend(potential: Potential, z: Sites, key_rows: jax.Array, key: jax.Array) -> Sites:
    """The mean of the law that :func:`mean_field` finds."""
    return mean_field(potential, z, key_rows, key)[0]


def mean_field(potential: Potential, z: Sites, key_rows: jax.Array, key: jax.Array) -> tuple[Sites, Sites]:
    """
    ``STEPS`` minibatch steps of Adam on a mean-field normal law around ``z``, its step size falling geometrically from
    ``FIRST`` to ``LAST``.

    :param key_rows: key of the minibatches.
    :param key: another key, of the noise and the model.
    :return: means and logarithms of the widths of the last finite law.
    """
    optimizer = falling_adam(FIRST, LAST, STEPS)
    plates = {
        name: plate._replace(batch_size=max(plate.batch_size, min(plate.size - 1, DESCENT_ROWS)))
        for name, plate in potential.plates.items()
    }

    def draw(q, key):
        return jax.tree.map(lambda m, s, n: m + jnp.exp(s) * n, *q, noise.normal_like(key, q[0]))

    def loss(q, rows, key):
        key_noise, key_model = random.split(key)
        return potential.estimate(draw(q, key_noise), rows, key_model) - trees.total(q[1])

    start = (z, jax.tree.map(lambda x: jnp.full_like(x, LOG_WIDTH), z))
    state = minimise(loss, optimizer, optimizer.init(start), (0, STEPS), WithoutReplacement(), plates, key_rows, key)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), optimizer.get_params(state), start)


def gradient_variance(gradient_fn: Callable[[Any], Any], probes: int = PROBES) -> Any:
    """
    Variance over minibatches of the gradient at one place.

    :param gradient_fn: number of a batch -> gradient.
    :param int probes: how many are looked at, 2 or more.
    """
    # deviations from one of the gradients: the mean may be large against the spread in float32
    origin = gradient_fn(0)
    zeros = jax.tree.map(jnp.zeros_like, origin)

    def body(k, moments):
        mean, square = moments
        deviation = jax.tree.map(lambda g, o: g - o, gradient_fn(k), origin)
        mean = jax.tree.map(lambda m, x: m + x / probes, mean, deviation)
        square = jax.tree.map(lambda s, x: s + x * x / probes, square, deviation)
        return mean, square

    mean, square = lax.fori_loop(0, probes, body, (zeros, zeros))
    return jax.tree.map(lambda s, m: (s - m * m) * (probes / (probes - 1)), square, mean)
