r"""
The normal with the largest evidence lower bound, in coordinates shaped like the plates
(:mod:`~numpyro_sgmcmc.tuning.arrow`), by Newton's method: with the means of gradient and Hessian over draws of
:math:`N(c, L L^T)`, in x,

.. math:: L \leftarrow L A, \quad A^T \bar H A = I, \qquad c \leftarrow c - L L^T \bar g.

Only the blocks and the border of the Hessian are needed. The border takes one product with H for each global, the
blocks of all groups together take one for each coordinate of a group: a vector of random signs, one for each group.
Each part of the rows has its own draws, so that a look at all draws takes one pass over the data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.tuning.arrow import Arrow, whitening
from numpyro_sgmcmc.tuning.newton import BOLDEST, CENTRED, COLUMNS, ROUND, TIMID
from numpyro_sgmcmc.utils import noise, trees

PAIRS = 8  # antithetic pairs of draws
LOOKS = 30  # maximal number of looks
ITERATIONS = 20  # of the power method


class Look(NamedTuple):
    """
    Means over the draws, in x.

    - **bound** - minus the evidence lower bound, up to a constant.
    - **gradient** - shape ``(d,)``.
    - **common**, **own**, **border** - the blocks of the Hessian, as in :class:`~numpyro_sgmcmc.tuning.arrow.Arrow`.
    """

    bound: jax.Array
    gradient: jax.Array
    common: jax.Array
    own: list[jax.Array]
    border: list[jax.Array]


class Search(NamedTuple):
    """The state of the search; ``length`` is that of its steps."""

    law: Arrow
    look: Look
    trial: Arrow
    length: jax.Array
    looks: jax.Array
    done: jax.Array


def arrow_law(
    energy: Callable[[Any], Callable[[jax.Array], jax.Array]], start: Arrow, parts: int, rng_key: jax.Array
) -> tuple[Arrow, jax.Array, jax.Array]:
    """
    :param energy: number of a part of the rows -> (raveled z -> estimate of U from that part).
    :param int parts: number of parts that are used.
    :return: coordinates, the largest curvature in x, and the number of evaluations of a part.
    """
    layout, d = start.layout, start.center.size
    key_draws, key_signs, key_power = random.split(rng_key, 3)
    draws = noise.normal(key_draws, (PAIRS, d), start.center.dtype)
    signs = [random.rademacher(key_signs, (J, 1), start.center.dtype) for J, _ in layout.families]
    along = _directions(start, signs)
    number = parts * -(-PAIRS // parts)

    def look_at(law: Arrow) -> Look:
        def add(k, sums):
            draw, of_part = draws[k % PAIRS], energy(k % parts)
            ends = jax.vmap(law.to_z)(jnp.stack([draw, -draw]))
            values, slopes = jax.vmap(jax.value_and_grad(of_part))(ends)
            columns = _columns(jax.grad(of_part), law, ends[k // parts % 2], along)
            return jax.tree.map(jnp.add, sums, (values.mean(), slopes.mean(0), columns))

        zeros = jnp.zeros((), draws.dtype), jnp.zeros_like(law.center), jnp.zeros_like(along)
        value, slope, columns = jax.tree.map(lambda x: x / number, lax.fori_loop(0, number, add, zeros))
        return Look(value - law.log_det(), law.pull_back(slope), *_blocks(columns, law, signs))

    def body(state: Search) -> Search:
        new = look_at(state.trial)
        better = trees.all_finite(new) & (new.bound < state.look.bound)
        first = state.looks == 0
        law, look = trees.where(better, (state.trial, new), (state.law, state.look))
        longer = jnp.minimum(1.0, 1.5 * state.length)
        length = jnp.where(first, 1.0, jnp.where(better, longer, state.length / 2))
        mixed = lambda H: length * H + (1 - length) * jnp.eye(H.shape[-1], dtype=H.dtype)  # noqa: E731
        border = [length * B for B in look.border]
        G, R, K, _ = whitening(mixed(look.common), [mixed(H) for H in look.own], border, 1 / BOLDEST, BOLDEST)
        rounder = law.after(G, R, K)
        slope = Arrow(law.center, G, R, K, layout).pull_back(look.gradient)
        slope = slope * length * jnp.minimum(1, jnp.sqrt(d / jnp.maximum(jnp.sum(slope**2), 1e-30)))
        trial = rounder._replace(center=law.center - rounder.times(slope))
        *_, extremes = whitening(look.common, look.own, look.border, 1 / BOLDEST, BOLDEST)
        enough = (extremes > 1 / ROUND).all() & (extremes < ROUND).all() & (jnp.mean(look.gradient**2) < CENTRED)
        done = (better & enough) | (length < TIMID) | (state.looks >= LOOKS - 1)
        return Search(law, look, trial, length, state.looks + 1, done)

    blocks = _blocks(jnp.zeros_like(along), start, signs)
    infinite = jnp.asarray(jnp.inf, draws.dtype)
    nothing = Look(infinite, jnp.zeros_like(start.center), *blocks)
    state = Search(start, nothing, start, infinite, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    state = lax.while_loop(lambda state: ~state.done, body, state)
    seen = state.looks * number * (2 + 2 * len(along)) * 1.0
    return state.law, _largest(energy, state.law, parts, key_power), seen


def _directions(law: Arrow, signs: list[jax.Array]) -> jax.Array:
    """Unit vectors of the globals, and signs of the groups for each of their coordinates, in x."""
    layout, dtype = law.layout, law.center.dtype
    nothing = [jnp.zeros((J, b), dtype) for J, b in layout.families]
    rows = [layout.merge(unit, nothing) for unit in jnp.eye(layout.size, dtype=dtype)]
    for family, (J, b) in enumerate(layout.families):
        for column in range(b):
            one = jnp.zeros((J, b), dtype).at[:, column].set(signs[family][:, 0])
            members = [one if k == family else zero for k, zero in enumerate(nothing)]
            rows.append(layout.merge(jnp.zeros(layout.size, dtype), members))
    return jnp.stack(rows)


def _columns(gradient: Callable, law: Arrow, z: jax.Array, along: jax.Array) -> jax.Array:
    """L^T H L times each direction."""
    times = lambda x: law.pull_back(jax.jvp(gradient, (z,), (law.times(x),))[1])  # noqa: E731
    return lax.map(times, along, batch_size=min(COLUMNS, len(along)))


def _blocks(columns: jax.Array, law: Arrow, signs: list[jax.Array]) -> tuple:
    """The blocks of the Hessian in x, from its products with :func:`_directions`."""
    layout = law.layout
    of_global = jax.vmap(layout.split)(columns[: layout.size])
    border = [jnp.moveaxis(members, 0, -1) for members in of_global[1]]
    own, first = [], layout.size
    for family, (_, b) in enumerate(layout.families):
        of_family = jax.vmap(layout.split)(columns[first : first + b])[1][family]
        own.append(jnp.moveaxis(signs[family] * of_family, 0, -1))
        first += b
    return of_global[0], own, border


def _largest(energy: Callable, law: Arrow, parts: int, rng_key: jax.Array) -> jax.Array:
    """The largest curvature in x at c, from what couples the groups beside the arrow too."""
    if len(law.layout.families) == 1:
        return jnp.ones((), law.center.dtype)

    def times(k, v):
        of_part = lambda part, total: total + jax.jvp(jax.grad(energy(part)), (law.center,), (law.times(v),))[1]  # noqa: E731
        w = law.pull_back(lax.fori_loop(0, parts, of_part, jnp.zeros_like(v)) / parts)
        return w / jnp.maximum(jnp.linalg.norm(w), 1e-30), jnp.linalg.norm(w)

    v = noise.normal(rng_key, law.center.shape, law.center.dtype)
    step = lambda k, carry: times(k, carry[0])  # noqa: E731
    _, size = lax.fori_loop(0, ITERATIONS, step, (v / jnp.linalg.norm(v), jnp.ones((), v.dtype)))
    return jnp.maximum(1.1 * size, 1)
