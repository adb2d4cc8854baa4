r"""
The normal distribution closest to the posterior, by Newton's method in coordinates that are whitened again at every
step.

:math:`N(c, L L^T)` has the largest evidence lower bound where :math:`E[\nabla U] = 0` and
:math:`E[\nabla^2 U] = (L L^T)^{-1}`, with means over its draws (Opper & Archambeau 2009). With the means g and H of
gradient and Hessian in x, :math:`z = c + L x`, a step of length :math:`\rho` is

.. math:: A^T \bigl((1 - \rho) I + \rho H\bigr) A = I, \qquad L \leftarrow L A, \qquad c \leftarrow c - \rho L A A^T g.

A step that makes the bound smaller is halved and made again from the same g and H, so it costs no Hessian. While a
curvature is too large for one step, L becomes narrower and c stays. In float32 a Hessian in z cannot resolve curvatures
whose ratio is a million; a Hessian in x can, after a few steps.

The draws are the same throughout, in antithetic pairs. Every part of the rows has its own pair, so the bound and its
gradient cost two evaluations of each part. They are first those of some parts, then of eight times as many, until they
are those of all. The Hessian is a mean over a few draws, at one part each: two or a quarter of them at first, and twice
as many after each step.

The coordinates are a matrix (:mod:`~numpyro_sgmcmc.tuning.coordinates`) or have the shape of the plates
(:mod:`~numpyro_sgmcmc.tuning.arrow`), which choose the products with H that they need, and A.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.curvature import gradient_and_product

PAIRS = 16  # antithetic pairs of draws
LOOKS = 60  # maximal number of looks at the bound
GROWTH = 8  # factor by which the number of parts grows
ROUND, CENTRED = 1.6, 0.05  # bounds of curvatures and squared gradient per coordinate from which one step is enough
REACH = 30.0  # maximal step per coordinate, in whitened units
BOLDEST = 100.0  # maximal factor of a curvature in one step
TIMID, SHORTEST = 0.1, 1e-4  # step lengths below which the search ends, near the optimum and elsewhere
NARROWER = 0.25  # factor of L while no bound is finite
COLUMNS = 64  # products with a Hessian that are computed at once


class Search(NamedTuple):
    law: Any  # the best so far
    bound: jax.Array  # minus its evidence lower bound, up to a constant
    gradient: jax.Array  # the mean gradient and Hessian in its x
    hessian: Any
    trial: Any  # what is looked at next
    length: jax.Array  # rho of the step to it
    parts: jax.Array  # parts of the rows in use
    curved: jax.Array  # draws for a Hessian
    looks: jax.Array  # number of looks at the bound so far
    evaluations: jax.Array  # number of evaluations of a part so far
    done: jax.Array


def normal_law(
    energy: Callable[[Any], Callable[[jax.Array], jax.Array]],
    start: Any,
    draws: jax.Array,
    parts: int,
    first_parts: int,
    curved: int,
    rng_key: jax.Array,
    blocks: np.ndarray | None = None,
) -> tuple[Any, jax.Array]:
    """
    :param energy: number of a part of the rows -> (raveled z -> estimate of U from that part).
    :param start: a normal N(c, L L^T).
    :param draws: draws of N(0, 1), one of each antithetic pair, shape ``(pairs, d)``.
    :param int parts: number of all parts.
    :param int first_parts: parts used at first.
    :param int curved: number of draws for a Hessian.
    :param rng_key: key of the directions along which it is looked at.
    :param blocks: blocks of L, see :func:`~numpyro_sgmcmc.tuning.coordinates.blocks_of`.
    :return: coordinates, and the number of evaluations of a part.
    """
    pairs, d = draws.shape
    along = start.directions(rng_key)
    groups = -(-len(along) // COLUMNS)
    size = -(-len(along) // groups)
    padded = jnp.pad(along, ((0, groups * size - len(along)), (0, 0))).reshape(groups, size, d)

    def look(law, parts, number):
        def add(k, sums):
            ends = jax.vmap(law.to_z)(jnp.stack([draws[k % pairs], -draws[k % pairs]]))
            values, slopes = jax.vmap(jax.value_and_grad(energy(k % parts)))(ends)
            return sums[0] + values.mean(), sums[1] + slopes.mean(0)

        sums = lax.fori_loop(0, number, add, (jnp.zeros((), draws.dtype), jnp.zeros_like(law.center)))
        value, slope = jax.tree.map(lambda x: x / number, sums)
        return value - law.log_det(), law.pull_back(slope)

    def hessian(law, parts, many):
        def add(k, total):
            z = law.to_z(jnp.where(k % 2 == 0, 1, -1) * draws[k // 2 % pairs])
            gradient = jax.grad(energy(k % parts))
            times = lambda x: law.pull_back(gradient_and_product(gradient, z, law.times(x))[1])  # noqa: E731
            return total + lax.map(jax.vmap(times), padded).reshape(-1, d)[: len(along)]

        return law.hessian(lax.fori_loop(0, many, add, jnp.zeros_like(along)) / many, along)

    def step(law, gradient, hessian, length):
        A, extremes = law.whitening(hessian, length, BOLDEST, blocks)
        rounder, slope = law.after(A), A.pull_back(gradient)
        # first narrower where a curvature is not resolved, then to another place
        reach = jnp.where((extremes < BOLDEST).all(), length, 0)
        slope = slope * reach * jnp.minimum(1, REACH * jnp.sqrt(d / jnp.maximum(jnp.sum(slope**2), 1e-30)))
        return rounder._replace(center=law.center - rounder.times(slope)), extremes

    def body(state: Search) -> Search:
        number = state.parts * -(-pairs // state.parts)
        many = jnp.minimum(state.curved, number)
        bound, gradient = look(state.trial, state.parts, number)
        better = trees.all_finite((bound, gradient)) & (bound < state.bound)
        curvature = lax.cond(better, lambda: hessian(state.trial, state.parts, many), lambda: state.hessian)
        new = state.trial, bound, gradient
        law, bound, gradient = trees.where(better, new, (state.law, state.bound, state.gradient))
        length = jnp.where(better, jnp.minimum(1.0, 1.5 * state.length), state.length / 2)
        trial, extremes = step(law, gradient, curvature, length)
        squared = jnp.mean(gradient**2)
        near = (extremes > 1 / ROUND).all() & (extremes < ROUND).all() & (squared < CENTRED)
        arrived = better & near & (state.curved >= curved)
        law = trees.where(arrived, trial, law)  # a step from there needs no look
        nowhere = ~jnp.isfinite(bound)
        trial = trees.where(nowhere, law.narrowed(NARROWER), trial)
        ended = ~nowhere & (arrived | (length < jnp.where(squared < 1, TIMID, SHORTEST)))
        return Search(
            law=trees.where(nowhere, trial, law),
            bound=jnp.where(ended, jnp.inf, bound),
            gradient=gradient,
            hessian=curvature,
            trial=trees.where(ended, law, trial),
            length=jnp.where(ended | nowhere, 1.0, length),
            parts=jnp.where(ended, jnp.minimum(GROWTH * state.parts, parts), state.parts),
            curved=jnp.where(better, jnp.minimum(2 * state.curved, curved), state.curved),
            looks=state.looks + 1,
            evaluations=state.evaluations + 2 * number + jnp.where(better, many * len(along), 0),
            done=(ended & (state.parts >= parts)) | (state.looks >= LOOKS - 1),
        )

    zero = jnp.zeros((), draws.dtype)
    state = Search(
        law=start,
        bound=zero + jnp.inf,
        gradient=jnp.zeros_like(start.center),
        hessian=start.hessian(jnp.zeros_like(along), along),
        trial=start,
        length=zero + 1,
        parts=jnp.asarray(min(first_parts, parts), jnp.int32),
        curved=jnp.asarray(min(max(2, curved // 4), curved), jnp.int32),
        looks=jnp.zeros((), jnp.int32),
        evaluations=zero,
        done=jnp.zeros((), bool),
    )
    state = lax.while_loop(lambda state: ~state.done, body, state)
    return state.law, state.evaluations
