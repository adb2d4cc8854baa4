r"""
Samples of the gradient noise, and what they say: its axes, its variance along them, and whether minibatches may be
blocks of neighbouring rows.

At the end of a round of the warm-up, two new minibatches at each of its draws give :math:`e = (g_1 - g_2) / \sqrt{2}`,
in x. The covariance of the noise at the position of the chain is :math:`S = E[e e^T]`. Samples have the shape
``(samples, d)``.

Blocks of neighbouring rows are unbiased minibatches whatever the order of the data. So their noise alone decides
whether they can take the place of scattered rows, which take longer to read: they do if it is not larger, along any of
its axes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.tuning.coordinates import axes_of, product
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.step_rule import Noise
from numpyro_sgmcmc.utils.significance import largest_z_score

ALIKE = 20  # at least so many groups, or this part of them, have noise with about the same variance
OUTLYING = 20.0  # maximal squared length of a sample of the noise, relative to the median
LOUDER = 1.1  # maximal variance of the noise of blocks, relative to that of scattered rows
SILENT = 1e-3  # variance of a noise that does not matter: times h / 2 it is the heat that it adds


def rotation(noise: jax.Array, blocks: np.ndarray | None = None, turns: Any = slice(None)) -> tuple[Noise, jax.Array]:
    """
    The gradient noise along its axes, and these axes: the eigenvectors of S, along which the noise is uncorrelated.

    One half of the samples determines the axes and the other half the variances: the largest eigenvalue of 1000 samples
    in 30 dimensions is a third too large. Outliers are :func:`shortened`.

    :param blocks: blocks of L, see :func:`~numpyro_sgmcmc.tuning.coordinates.blocks_of`.
    :param turns: the coordinates whose axes are looked for.
    """
    noise = shortened(noise)
    first, second = jnp.split(noise, [len(noise) // 2])
    first = first[:, turns]
    _, axes = axes_of(product(first.T, first), blocks)
    return measured(turned(second, turns, axes)), axes


def is_as_quiet(blocks: jax.Array, scattered: jax.Array) -> jax.Array:
    r"""
    Whether the noise of blocks is at most that of scattered rows times ``LOUDER``, in every coordinate and in the sum
    over them. It may exceed this as far as chance explains: in a coordinate by the largest of d z-scores, in the sum by
    two standard errors. Both are samples along axes that others have determined.
    """

    def fits(blocks, scattered, most, floor):
        error = jnp.sqrt(blocks.var(0) / len(blocks) + LOUDER**2 * scattered.var(0) / len(scattered))
        return (blocks.mean(0) <= LOUDER * scattered.mean(0) + most * error + floor).all()

    blocks, scattered = shortened(blocks) ** 2, shortened(scattered) ** 2
    d = blocks.shape[1]
    each = fits(blocks, scattered, largest_z_score(d, len(blocks) - 1), SILENT)
    return each & fits(blocks.sum(1), scattered.sum(1), 2.0, d * SILENT)


def along_axes(noise: jax.Array, x: jax.Array, coordinates: Any, blocks: np.ndarray | None) -> tuple[Noise, jax.Array]:
    """The gradient noise along the axes to which these coordinates can be turned, and the axes; at positions x."""
    if coordinates.turns is None:
        of_noise, axes = measured(shortened(noise)), jnp.eye(0)
    else:
        of_noise, axes = rotation(noise, blocks, coordinates.turns)
        noise, x = (turned(samples, coordinates.turns, axes) for samples in (noise, x))
    if coordinates.layout is not None:
        of_noise = pooled(of_noise, coordinates.layout)
    return of_noise._replace(growth=growth(noise, x)), axes


def turned(x: jax.Array, turns: Any, axes: jax.Array) -> jax.Array:
    """x in coordinates whose axes are turned, if they can be."""
    return x if turns is None else x.at[..., turns].set(product(x[..., turns], axes))


def measured(noise: jax.Array) -> Noise:
    """The variances of samples of the noise, and their relative standard errors."""
    squares = noise**2
    variance = jnp.mean(squares, 0)
    error = squares.std(0) / jnp.maximum(variance, 1e-30) / jnp.sqrt(len(squares))
    return Noise(variance, error, jnp.zeros_like(error))


def growth(noise: jax.Array, x: jax.Array) -> jax.Array:
    r"""
    :math:`E[e_j^4 x_j^4] / E[x_j^8]`: that is :math:`E[\xi^4]` if :math:`e_j = \xi x_j`. If e does not depend on x,
    it is 3 % of :math:`E[e_j^4]`.
    """
    finite = jnp.isfinite(noise) & jnp.isfinite(x)
    noise, x = jnp.where(finite, noise, 0), jnp.where(finite, x, 0)
    return jnp.sum((noise * x) ** 4, 0) / jnp.maximum(jnp.sum(x**8, 0), 1e-30)


def pooled(noise: Noise, layout: Layout) -> Noise:
    """
    The noise where the groups of a family learn from each other: a few hundred samples tell little about a group that
    few minibatches hit. The variances of the groups move to their mean as far as they differ by chance only, and the
    standard error is that of groups with about the same variance.
    """

    def over_groups(variance, squared_error):
        mean, differences = variance.mean(), variance.var()
        own = jnp.maximum(differences - squared_error.mean(), 0) / jnp.maximum(differences, 1e-30)
        alike = max(ALIKE, len(variance) // ALIKE)  # neighbours in the order of their variances
        order = jnp.argsort(variance)
        window = jnp.ones(min(alike, len(variance))) / min(alike, len(variance))
        smooth = jnp.convolve(squared_error[order], window, "valid")
        first = (len(variance) - len(smooth)) // 2
        smooth = jnp.pad(smooth, (first, len(variance) - len(smooth) - first), "edge")
        return mean + own * (variance - mean), jnp.zeros_like(smooth).at[order].set(own * smooth)

    of_globals, members = layout.split(noise.variance)
    its_error, errors = layout.split((noise.variance * noise.error) ** 2)
    pairs = [jax.vmap(over_groups, 1, 1)(*pair) for pair in zip(members, errors)]
    variance = layout.merge(of_globals, [pair[0] for pair in pairs])
    error = jnp.sqrt(layout.merge(its_error, [pair[1] for pair in pairs]))
    return noise._replace(variance=variance, error=error / jnp.maximum(variance, 1e-30))


def bend_of(bends: jax.Array) -> jax.Array:
    r"""
    :math:`|E[b]|`. The product of the means of two halves of the samples estimates its square without bias, however
    many coordinates there are. Outliers are :func:`shortened`: where the step is not stable, b says nothing about its
    error elsewhere.
    """
    bends = shortened(bends)
    first, second = bends[::2].mean(0), bends[1::2].mean(0)
    return jnp.sqrt(jnp.maximum(jnp.sum(first * second), 0))


def shortened(noise: jax.Array) -> jax.Array:
    """
    Samples of the noise, where those that are much longer than samples of a normal are shortened. Those that are not
    finite do not count: the others take their weight.
    """
    finite = jnp.isfinite(noise).all(1, keepdims=True)
    noise = jnp.where(finite, noise, 0) / jnp.sqrt(jnp.maximum(finite.mean(), 1 / len(noise)))
    squares = jnp.sum(noise**2, 1)
    longest = OUTLYING * jnp.median(squares)
    return noise * jnp.sqrt(jnp.minimum(1, longest / jnp.maximum(squares, 1e-30)))[:, None]
