r"""
The default start of a chain with thermostats: in the bulk of the posterior, with thermostats that balance the noise.

If a chain starts far away, it converts potential energy into momentum, and each thermostat integrates it,
dxi = (p^2 / M - 1) dt. The thermostat can increase without bound, but decreases by at most 1 per unit of time, and
until it has decreased, the draws are too narrow. On the other hand, if a thermostat starts at D, below its balance
D + h s^2 / 2, the draws are too wide, for about as many units of time as the balance is large. So the start is found
by a short descent for z, and the thermostats are set from the variance of the gradient there.
docs/maintainers/measurements.md has the numbers.

The descent minimises :math:`E_q U - \sum_j s_j` over mean-field normals q = N(m, exp(2 s)), not U over points: the mode
of a hierarchical model with an unknown scale is where the scale is 0, which is a bad start.

A descent can end in a mode that has hardly any mass, as for a mixture. So kernels that choose their settings start at
the best of ``DESCENTS`` cheaper descents, each from another place.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax, random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from numpyro.optim import Adam

from numpyro_sgmcmc.rows.schemes import Reshuffled, WithoutReplacement, next_rows
from numpyro_sgmcmc.tuning.coordinates import is_high_dimensional
from numpyro_sgmcmc.types import Plate, Potential, Rows, RowScheme, RowsState, Sites
from numpyro_sgmcmc.utils import noise, trees

DESCENT_STEPS = 1000  # steps of the descent
FIRST, LAST = 0.1, 1e-4  # Adam's step size, in units of the unconstrained coordinates
LOG_WIDTH = -2.0  # initial log width of the normal
DESCENT_ROWS = 500  # minimal number of rows per step, so that the descent is not limited by minibatch noise
DESCENTS, FEW_ROWS = 16, 100  # number of cheaper descents, for all chains together, and the rows of their steps
CANDIDATES = 23  # number of positions that are compared for a start
WIDE = 5  # number of further candidates for each descent
PROBES = 300  # number of minibatches, which give the variance of the gradient to 8 %


def best_of_several(
    potential: Potential, rng_key: jax.Array, rows: Rows, descents: int = 0, contiguous: bool = False
) -> Sites:
    """
    The position with the smallest finite energy among draws of normals around 0 with various widths up to 2; the origin
    if no energy is finite.

    :param int descents: number of the best draws, of more of them, that are replaced by the means of the mean-field
        normals found from there.
    """
    key_draws, key_model, key_rows, key_steps = random.split(rng_key, 4)
    sizes = 2.0 ** (1 - jnp.arange(CANDIDATES) / 2)
    sizes = jnp.concatenate([jnp.zeros(1), sizes, jnp.resize(sizes[:4], (WIDE * descents,))])

    def draw(key, size):
        return jax.tree.map(lambda n: size.astype(n.dtype) * n, noise.normal_like(key, potential.prototype))

    def improved(draws):
        plates = {name: p._replace(batch_size=min(p.size - 1, FEW_ROWS)) for name, p in potential.plates.items()}

        mean = lambda z, key: mean_field(potential, z, key_rows, key, contiguous, plates)[0]  # noqa: E731
        starts = jax.tree.map(lambda x: x[:descents], draws)
        means = jax.vmap(mean)(starts, random.split(key_steps, descents))
        return jax.tree.map(lambda x, new: x.at[:descents].set(new), draws, means)

    def ordered(k, draws):
        # in a loop, so that the energy is compiled once
        energy = with_gradient(lambda z: potential.estimate(z, rows, key_model))
        order = jnp.argsort(jax.vmap(energy)(draws))
        draws = jax.tree.map(lambda x: x[order], draws)
        return lax.cond(k == 0, improved, lambda draws: draws, draws) if descents else draws

    draws = jax.vmap(draw)(random.split(key_draws, len(sizes)), sizes)
    return jax.tree.map(lambda x: x[0], lax.fori_loop(0, 2 if descents else 1, ordered, draws))


def with_given(z: Sites, init_params: Sites) -> Sites:
    """The position ``z`` but for the given sites."""
    return {name: jnp.asarray(init_params.get(name, x), x.dtype) for name, x in z.items()}


def with_gradient(energy: Callable[[Any], jax.Array]) -> Callable[[Any], jax.Array]:
    """The energy where it has a finite gradient, otherwise infinity: no sampler can start elsewhere."""

    def energy_at(z):
        value, gradient = jax.value_and_grad(energy)(z)
        return jnp.where(trees.all_finite((value, gradient)), value, jnp.inf)

    return energy_at


def descents_of(potential: Potential, observed: int, chains: int) -> int:
    """
    Number of descents for each chain: fewer if each step uses all of many observed numbers; 0 if there are too many
    coordinates.
    """
    if is_high_dimensional(potential.prototype):
        return 0
    few = potential.plates or observed <= 10 * DESCENT_ROWS
    return max(1, (DESCENTS if few else DESCENTS // 2) // chains)


def passes_of(potential: Potential, rows: int = DESCENT_ROWS) -> float:
    """Rows used by a descent with this number of rows per step, in passes over the data."""
    size = max((plate.size for plate in potential.plates.values()), default=1)
    return DESCENT_STEPS * min(rows, size) / size


def mean_field(
    potential: Potential,
    z: Sites,
    key_rows: jax.Array,
    key: jax.Array,
    contiguous: bool = False,
    plates: Mapping[str, Plate] | None = None,
) -> tuple[Sites, Sites]:
    """
    Means and log widths of a mean-field normal, after ``DESCENT_STEPS`` minibatch steps of Adam that start around z.

    :param key_rows: key of the minibatches.
    :param key: another key, for the noise and the model.
    :param contiguous: whether the minibatches are blocks of neighbouring rows.
    :param plates: the plates with their batch sizes; None: those of the kernel, with at least ``DESCENT_ROWS`` rows.
    """
    optimizer = falling_adam(FIRST, LAST, DESCENT_STEPS)
    if plates is None:
        plates = {
            name: plate._replace(batch_size=max(plate.batch_size, min(plate.size - 1, DESCENT_ROWS)))
            for name, plate in potential.plates.items()
        }

    def loss(q, rows, key):
        key_noise, key_model = random.split(key)
        mean, log_width = q
        draw = unravel(mean + jnp.exp(log_width) * noise.normal(key_noise, mean.shape, mean.dtype))
        return potential.estimate(draw, rows, key_model) - log_width.sum()

    # as vectors, which compile sooner than a pair of arrays for each site
    origin, unravel = ravel_pytree(z)
    start = origin, jnp.full_like(origin, LOG_WIDTH)
    scheme = Reshuffled(contiguous=True) if contiguous else WithoutReplacement()
    state = minimise(loss, optimizer, optimizer.init(start), (0, DESCENT_STEPS), scheme, plates, key_rows, key)
    mean, log_width = (new.astype(origin.dtype) for new in optimizer.get_params(state))
    return unravel(mean), unravel(log_width)


def falling_adam(first: Any, last: float, steps: int) -> Adam:
    """Adam with a step size that decreases geometrically from ``first`` to ``last`` in ``steps`` steps."""
    return Adam(lambda k: first * (last / first) ** (k / steps))


def minimise(
    loss: Callable[[Any, Rows, jax.Array], jax.Array],
    optimizer: Any,
    state: Any,
    steps: tuple[Any, Any],
    rows: RowScheme,
    plates: Mapping[str, Plate],
    key_rows: jax.Array,
    key_loss: jax.Array,
) -> Any:
    """
    The state of an optimizer after steps on ``loss(params, rows, rng_key)``, from ``steps[0]`` up to ``steps[1]``. Step
    k uses batch k. Steps that end in non-finite values are skipped.
    """

    def body(k, state):
        batch, _ = next_rows(rows, RowsState(key_rows, k), plates)
        loss_at = lambda params: loss(params, batch, random.fold_in(key_loss, k))  # noqa: E731
        value, gradient = jax.value_and_grad(loss_at)(optimizer.get_params(state))
        moved = optimizer.update(gradient, state, value)
        return trees.where(trees.all_finite((value, moved)), moved, state)

    return lax.fori_loop(*steps, body, state)


def gradient_variance(gradient_fn: Callable[[Any], Any], probes: int = PROBES) -> Any:
    """The variance over minibatches of the gradient at one position; ``gradient_fn`` maps a number to it."""
    # use deviations from one of the gradients: in float32 the mean may be too large compared with the sd
    origin = gradient_fn(0)
    zeros = jax.tree.map(jnp.zeros_like, origin)

    def body(k, moments):
        mean, square = moments
        deviation = jax.tree.map(jnp.subtract, gradient_fn(k), origin)
        mean = jax.tree.map(lambda m, x: m + x / probes, mean, deviation)
        square = jax.tree.map(lambda s, x: s + x * x / probes, square, deviation)
        return mean, square

    mean, square = lax.fori_loop(0, probes, body, (zeros, zeros))
    return jax.tree.map(lambda s, m: (s - m * m) * (probes / (probes - 1)), square, mean)
