r"""
A mode, and the normal distribution closest to the posterior, by Newton's method in coordinates that are whitened again
at every step.

With :math:`z = c + L x`, gradient g and Hessian :math:`H = V \Lambda V^T` in x,

.. math:: L \leftarrow L V |\Lambda|^{-1/2}, \qquad c \leftarrow c - L H^{-1} g / (1 + \mu).

In float32 a Hessian in z cannot resolve curvatures whose ratio is a million; a Hessian in x can, after two or three
such steps. Two searches use this step, one after the other:

1. **for a mode**, with g and H at c and the damping :math:`\mu` of Levenberg and Marquardt. U is estimated from a part
   of the rows. The part grows by a factor of eight whenever the step is shorter than the error of this estimate, until
   it contains all rows. The Hessian is estimated from a few thousand rows.
2. **for the normal** :math:`N(c, L L^T)` with the largest evidence lower bound, with the means of g and H over draws
   of that normal. If both steps vanish, so does the derivative of the bound (Opper & Archambeau 2009). The search
   starts at the better of two normals: the one that both searches are given, and the one at the mode. The mode of a
   hierarchical model may lie in a pit, where its scale is almost zero and all is narrow; the normal that was given has
   the larger bound there. It uses a quarter of the draws until it has converged on them, and then all.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.tuning.coordinates import Coordinates, axes_of, product
from numpyro_sgmcmc.utils import trees

NEWTON_STEPS = 60  # maximal number of steps of the search for the mode
STILL = 3  # number of first steps that whiten without a move
GROWTH = 8  # factor by which the number of rows grows
CLOSE, ARRIVED = 1.0, 0.01  # squared step lengths per coordinate at which a part of the rows, and all rows, are done
FLOOR = 1e-6  # smallest curvature that is resolved, relative to the largest
REACH = 30.0  # maximal step per coordinate, in whitened units
COLUMNS = 64  # columns of the Hessian that are computed at once
LAWS = 40  # maximal number of evaluations in the search for the normal
ROUND, CENTRED = 1.6, 0.05  # bounds of curvatures and squared gradient per coordinate at which a normal is good enough
BOLDEST = 10.0  # maximal factor of a curvature in one step of the search for the normal
TIMID = 0.1  # step length below which the search for the normal ends
PAIRS = 4  # antithetic pairs of draws with which it begins


class Trial(NamedTuple):
    """
    - **energy** - U.
    - **gradient** - gradient in x, shape ``(d,)``.
    - **curvature** - Hessian in x, shape ``(d, d)``.
    """

    energy: jax.Array
    gradient: jax.Array
    curvature: jax.Array


class Rung(NamedTuple):
    """The state of the search."""

    law: Coordinates  # the best so far
    value: jax.Array  # its energy, or minus its bound
    look: Trial  # evaluated there
    trial: Coordinates  # evaluated next
    damping: jax.Array  # damping of the steps to the mode; length of the steps to the normal
    parts: jax.Array  # parts of the rows in use
    step: jax.Array
    draws: jax.Array  # draws of the normal over which to evaluate; 0: at c
    mode: Coordinates  # the normal at the mode, once the first search has ended
    done: jax.Array


def normal_law(
    energy: Callable[[Any], Callable[[jax.Array], jax.Array]],
    start: Coordinates,
    draws: jax.Array,
    parts: int,
    first_parts: int,
    hessian_parts: int,
    blocks: np.ndarray | None = None,
) -> tuple[Coordinates, jax.Array, jax.Array]:
    """
    :param energy: number of a part of the rows -> (raveled z -> estimate of U from that part).
    :param start: a normal N(c, L L^T), where L is a matrix.
    :param draws: draws of N(0, 1) as consecutive antithetic pairs, shape ``(draws, d)``.
    :param int parts: number of all parts.
    :param int first_parts: parts used at first.
    :param int hessian_parts: maximal number of parts used for the Hessian.
    :param blocks: blocks of L, see :func:`~numpyro_sgmcmc.tuning.coordinates.blocks_of`.
    :return: coordinates, the largest curvature in x, and the number of evaluations of a part.
    """
    center, identity = start.center, jnp.eye(start.center.size, dtype=start.center.dtype)
    d = center.size

    def look(rung: Rung) -> tuple[Trial, jax.Array]:
        law, over_law = rung.trial, rung.draws > 0
        many = rung.parts + 2 * rung.draws
        few = jnp.where(over_law, rung.draws, jnp.minimum(rung.parts, hessian_parts))

        def add(k, sums):
            # the value at c from all parts, plus the difference between a draw and c from the same part
            draw = k - rung.parts
            at_draw = (draw >= 0) & (draw % 2 == 0)
            z = jnp.where(at_draw, law.to_z(draws[draw // 2]), law.center)
            of_part = energy(jnp.where(draw >= 0, draw // 4 % parts, k))  # one part for each antithetic pair
            weight = jnp.where(draw >= 0, (1.0 - 2.0 * (draw % 2)) / rung.draws, 1.0 / rung.parts)
            slope = jax.tree.map(lambda x: weight.astype(x.dtype) * x, jax.value_and_grad(of_part)(z))
            curved = jnp.where(over_law, at_draw, k < few)
            hessian = lax.cond(curved, lambda: sums[2] + _times_hessian(of_part, z, law.scale) / few, lambda: sums[2])
            return sums[0] + slope[0], sums[1] + slope[1], hessian

        zeros = jnp.zeros((), center.dtype), jnp.zeros_like(center), jnp.zeros_like(law.scale)
        value, gradient, curvature = lax.fori_loop(0, many, add, zeros)
        return Trial(value, law.pull_back(gradient), product(law.scale.T, curvature)), many + d * few

    def body(carry: tuple[Rung, jax.Array]) -> tuple[Rung, jax.Array]:
        rung, seen = carry
        new, cost = look(rung)
        first = min(2 * PAIRS, len(draws))
        to_law = partial(towards_law, draws=len(draws), blocks=blocks)
        to_mode = partial(towards_mode, start=start, parts=parts, draws=first, blocks=blocks)
        return lax.cond(rung.draws > 0, to_law, to_mode, rung, new), seen + cost

    zero, infinite = jnp.zeros((), center.dtype), jnp.asarray(jnp.inf, center.dtype)
    rung = Rung(
        law=start,
        value=infinite,
        look=Trial(infinite, jnp.zeros_like(center), identity),
        trial=start,
        damping=jnp.ones((), center.dtype),
        parts=jnp.asarray(min(first_parts, parts), jnp.int32),
        step=jnp.zeros((), jnp.int32),
        draws=jnp.zeros((), jnp.int32),
        mode=start,
        done=jnp.zeros((), bool),
    )
    rung, seen = lax.while_loop(lambda carry: ~carry[0].done, body, (rung, zero))
    return rung.law, axes_of(rung.look.curvature)[0][-1], seen


def towards_mode(rung: Rung, new: Trial, start: Coordinates, parts: int, draws: int, blocks: np.ndarray | None) -> Rung:
    """Levenberg and Marquardt's step; at the mode, the first one towards the normal."""
    d = new.gradient.size
    slack = 4 * jnp.finfo(new.energy.dtype).eps * jnp.abs(rung.value)
    accepted = trees.all_finite(new) & ((new.energy <= rung.value + slack) | ~jnp.isfinite(rung.value))
    rounder = whitened(new.curvature, blocks)
    there = Coordinates(rung.trial.center, product(rung.trial.scale, rounder)), product(rounder.T, new.gradient)
    law, slope = trees.where(accepted, there, (rung.law, rung.look.gradient))
    damping = jnp.where(accepted, rung.damping / 4, 4 * jnp.maximum(rung.damping, 0.25))
    moving = rung.step >= STILL - 1
    whole = rung.parts >= parts
    squared = jnp.sum(slope**2) / d
    near = moving & accepted & (squared <= jnp.where(whole, ARRIVED, CLOSE))
    away = jnp.where(moving, _within(-slope / (1 + damping), REACH), 0)
    arrived = (near & whole) | (damping > 1e8) | (rung.step >= NEWTON_STEPS)
    trial = Coordinates(law.center + law.times(away), law.scale)
    value = jnp.where(near, jnp.inf, jnp.where(accepted, new.energy, rung.value))  # inf: the rows change
    return Rung(
        law=law,
        value=jnp.where(arrived, jnp.inf, value),
        look=Trial(new.energy, slope, jnp.eye(d, dtype=slope.dtype)),
        trial=trees.where(arrived, start, trial),
        damping=jnp.where(arrived, 1.0, damping),
        parts=jnp.where(near, jnp.minimum(GROWTH * rung.parts, parts), rung.parts),
        step=jnp.where(arrived, 0, rung.step + 1),
        draws=jnp.where(arrived, draws, 0).astype(jnp.int32),
        mode=law,
        done=jnp.zeros((), bool),
    )


def towards_law(rung: Rung, new: Trial, draws: int, blocks: np.ndarray | None) -> Rung:
    """
    Newton's step for the bound, halved if the last one made it smaller; the first two only compare the starts. The
    bound over more draws is another one, so the best normal is evaluated again.
    """
    value = new.energy - _log_det(rung.trial.scale)
    better = trees.all_finite((new, value)) & (value < rung.value)
    law, best, look = trees.where(better, (rung.trial, value, new), (rung.law, rung.value, rung.look))
    compared = rung.step > 0
    length = jnp.where(rung.step < 2, 1.0, jnp.where(better, jnp.minimum(1, 1.5 * rung.damping), rung.damping / 2))
    values, vectors = axes_of(look.curvature, blocks)
    curvature = 1 - length + length * jnp.clip(values, 1 / BOLDEST, BOLDEST)
    turned = vectors / jnp.sqrt(curvature)
    slope = product(vectors.T, look.gradient)
    away = product(vectors, _within(-length * slope / curvature, 1.0))
    step = Coordinates(law.center + law.times(away), product(law.scale, product(turned, vectors.T)))
    enough = (values > 1 / ROUND).all() & (values < ROUND).all() & (jnp.mean(slope**2) < CENTRED)
    ended = compared & (enough | (length < TIMID) | (rung.step >= LAWS - 1))
    more = ended & (rung.draws < draws)
    return rung._replace(
        law=law,
        value=jnp.where(more, jnp.inf, best),
        look=look,
        trial=trees.where(more, law, trees.where(compared, step, rung.mode)),
        damping=jnp.where(more, 1.0, length),
        draws=jnp.where(more, draws, rung.draws),
        step=jnp.where(more, jnp.minimum(rung.step + 1, LAWS // 2), rung.step + 1),
        done=ended & ~more,
    )


def whitened(hessian: jax.Array, blocks: np.ndarray | None) -> jax.Array:
    """V |Lambda|^-1/2; the identity if the Hessian is not finite."""
    values, vectors = axes_of(hessian, blocks)
    sizes = jnp.abs(values)
    return vectors / jnp.sqrt(jnp.maximum(sizes, jnp.maximum(FLOOR * sizes.max(), 1e-30)))


def _within(away: jax.Array, reach: float) -> jax.Array:
    """The step, shortened to a root mean square of at most ``reach`` over the coordinates."""
    return away * jnp.minimum(1, reach * jnp.sqrt(away.size / jnp.maximum(jnp.sum(away**2), 1e-30)))


def _log_det(scale: jax.Array) -> jax.Array:
    return jnp.linalg.slogdet(scale)[1]


def _times_hessian(energy: Callable[[jax.Array], jax.Array], center: jax.Array, scale: jax.Array) -> jax.Array:
    """The Hessian in z times L, some columns at a time."""
    d = len(center)

    def column(v):
        return jax.jvp(jax.grad(energy), (center,), (v,))[1]

    if d <= COLUMNS:
        return jax.vmap(column, 1, 1)(scale)
    groups = -(-d // COLUMNS)
    padded = jnp.zeros((groups * COLUMNS, d), scale.dtype).at[:d].set(scale.T)
    columns = lax.map(jax.vmap(column), padded.reshape(groups, COLUMNS, d))
    return columns.reshape(-1, d)[:d].T
