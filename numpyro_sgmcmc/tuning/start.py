r"""
The default start of a chain with thermostats: in the bulk of the posterior, with thermostats that balance the noise.

If a chain starts far away, it converts potential energy into momentum, and each thermostat integrates it,
dxi = (p^2 / M - 1) dt. The thermostat can increase without bound, but decreases by at most 1 per unit of time, and
until it has decreased, the draws are too narrow. On the other hand, if a thermostat starts at D, below its balance
D + h s^2 / 2, the draws are too wide, for about as many units of time as the balance is large. So the start is found
by a short descent for z, and the thermostats are set from the variance of the gradient there. docs/measurements.md has
the numbers.

The descent minimises :math:`E_q U - \sum_j s_j` over mean-field normals q = N(m, exp(2 s)), not U over points: the mode
of a hierarchical model with an unknown scale is where the scale is 0, which is a bad start.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import Reshuffled, WithoutReplacement
from numpyro_sgmcmc.tuning.descent import falling_adam, minimise
from numpyro_sgmcmc.types import Potential, Rows, Sites
from numpyro_sgmcmc.utils import noise, trees

STEPS = 1000  # steps of the descent
FIRST, LAST = 0.1, 1e-4  # Adam's step size, in units of the unconstrained coordinates
LOG_WIDTH = -2.0  # initial log width of the normal
DESCENT_ROWS = 500  # minimal number of rows per step, so that the descent is not limited by minibatch noise
PLACES = 23  # number of positions that are compared for a start
PROBES = 300  # number of minibatches, which give the variance of the gradient to 8 %


def best_of_several(potential: Potential, rng_key: jax.Array, rows: Rows) -> Sites:
    """
    The position with the smallest finite energy among draws of normals around 0 with various widths up to 2; the origin
    if no energy is finite.
    """
    key_draws, key_model = random.split(rng_key)
    sizes = 2.0 ** (1 - jnp.arange(PLACES) / 2)
    origin = {name: jnp.zeros(site.shape, site.dtype) for name, site in potential.prototype.items()}

    def draw(key, size):
        return jax.tree.map(lambda n: size * n, noise.normal_like(key, origin))

    draws = jax.vmap(draw)(random.split(key_draws, PLACES), sizes)
    draws = jax.tree.map(lambda x, o: jnp.concatenate([x, o[None]]), draws, origin)

    energies = jax.vmap(with_gradient(lambda z: potential.estimate(z, rows, key_model)))(draws)
    best = jnp.where(jnp.isfinite(energies).any(), jnp.argmin(energies), PLACES)
    return jax.tree.map(lambda x: x[best], draws)


def with_gradient(energy: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
    """The energy where it has a finite gradient, otherwise infinity: no sampler can start elsewhere."""

    def at(z):
        value, gradient = jax.value_and_grad(energy)(z)
        return jnp.where(trees.all_finite((value, gradient)), value, jnp.inf)

    return at


def descend(potential: Potential, z: Sites, key_rows: jax.Array, key: jax.Array, contiguous: bool = False) -> Sites:
    """The mean of the normal that :func:`mean_field` finds."""
    return mean_field(potential, z, key_rows, key, contiguous)[0]


def mean_field(
    potential: Potential, z: Sites, key_rows: jax.Array, key: jax.Array, contiguous: bool = False
) -> tuple[Sites, Sites]:
    """
    ``STEPS`` minibatch steps of Adam on a mean-field normal around ``z``, with a step size that decreases geometrically
    from ``FIRST`` to ``LAST``.

    :param key_rows: key of the minibatches.
    :param key: another key, for the noise and the model.
    :param contiguous: whether the minibatches are blocks of neighbouring rows.
    :return: means and log widths of the last finite normal.
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
    scheme = Reshuffled(contiguous=True) if contiguous else WithoutReplacement()
    state = minimise(loss, optimizer, optimizer.init(start), (0, STEPS), scheme, plates, key_rows, key)
    return jax.tree.map(lambda new, old: new.astype(old.dtype), optimizer.get_params(state), start)


def gradient_variance(gradient_fn: Callable[[Any], Any], probes: int = PROBES) -> Any:
    """
    Variance over minibatches of the gradient at one position.

    :param gradient_fn: number of a batch -> gradient.
    :param int probes: number of minibatches, 2 or more.
    """
    # use deviations from one of the gradients: in float32 the mean may be too large compared with the sd
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
