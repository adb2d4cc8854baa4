r"""
A mode and its curvature, by Levenberg and Marquardt's method in coordinates that are whitened anew at every step.

With :math:`z = c + L x` and the Hessian in x at c, :math:`H = V \Lambda V^T`,

.. math:: L \leftarrow L V |\Lambda|^{-1/2}, \qquad c \leftarrow c - L L^T \nabla_z U(c) / (1 + \mu).

Curvatures a million times apart do not show in float32 in a Hessian in z; they do in one in x, after two or three such
steps. U is that of a part of the rows, eight times larger whenever the step is shorter than the error that the part
makes, until it is all of them. The Hessian is that of a few thousand rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_sgmcmc.model.coordinates import Coordinates, axes_of, product
from numpyro_sgmcmc.utils import trees

STEPS = 60  # at most
STILL = 3  # steps that whiten and do not move, at first
GROWTH = 8  # times as many rows in the next part
CLOSE, ARRIVED = 1.0, 0.01  # squared lengths of a step, for each coordinate, at which a part and the whole are done
FLOOR = 1e-6  # curvatures are looked at down to this share of the largest
REACH = 30.0  # longest step, for each coordinate, in whitened units
COLUMNS = 64  # of the Hessian, computed at once


class Rung(NamedTuple):
    """Where the search stands."""

    coordinates: Coordinates
    energy: jax.Array
    gradient: jax.Array
    trial: jax.Array
    damping: jax.Array
    parts: jax.Array
    step: jax.Array
    done: jax.Array
    first: Coordinates  # after the steps that do not move


def whitened_newton(
    energy: Callable[[jax.Array, Any], jax.Array], start: jax.Array, parts: int, first_parts: int, hessian_parts: int
) -> tuple[Coordinates, Coordinates, jax.Array]:
    """
    :param energy: (raveled z, number of a part) -> estimate of U from that part of the rows.
    :param start: raveled z.
    :param int parts: in all.
    :param int first_parts: to begin with.
    :param int hessian_parts: looked at for the Hessian, at most.
    :return: coordinates whitened at the start, those at the mode, and the parts seen in all.
    """
    d = start.size

    def mean(fn, count):
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(fn, jnp.zeros((), jnp.int32)))
        total = lax.fori_loop(0, count, lambda k, t: jax.tree.map(jnp.add, t, fn(k)), zero)
        return jax.tree.map(lambda t: t / count, total)

    def body(rung: Rung) -> Rung:
        new_energy, new_gradient = mean(lambda k: jax.value_and_grad(energy)(rung.trial, k), rung.parts)
        slack = 4 * jnp.finfo(start.dtype).eps * jnp.abs(rung.energy)
        finite = trees.all_finite((new_energy, new_gradient))
        accepted = finite & ((new_energy <= rung.energy + slack) | ~jnp.isfinite(rung.energy))
        here = (rung.coordinates.center, rung.energy, rung.gradient)
        center, value, gradient = trees.where(accepted, (rung.trial, new_energy, new_gradient), here)
        damping = jnp.where(accepted, rung.damping / 4, 4 * jnp.maximum(rung.damping, 0.25))
        scale = rung.coordinates.scale
        few = jnp.minimum(rung.parts, hessian_parts)
        curvature = mean(lambda k: _times_hessian(lambda z: energy(z, k), center, scale), few)
        coordinates = Coordinates(center, whitened(scale, product(scale.T, curvature)))
        slope = coordinates.pull_back(gradient)
        squared = jnp.sum(slope**2) / d
        moving = rung.step >= STILL - 1
        whole = rung.parts >= parts
        near = moving & accepted & (squared <= jnp.where(whole, ARRIVED, CLOSE))
        away = jnp.where(moving, -slope / (1 + damping), 0)
        away = away * jnp.minimum(1, REACH * jnp.sqrt(d / jnp.maximum(jnp.sum(away**2), 1e-30)))
        return Rung(
            coordinates,
            jnp.where(near, jnp.inf, value),  # of other rows from now on
            gradient,
            center + coordinates.times(away),
            damping,
            jnp.where(near, jnp.minimum(GROWTH * rung.parts, parts), rung.parts),
            rung.step + 1,
            (near & whole) | (damping > 1e8),
            trees.where(rung.step < STILL, coordinates, rung.first),
        )

    identity = Coordinates(start, jnp.eye(d, dtype=start.dtype))
    infinite = jnp.asarray(jnp.inf, start.dtype)
    rung = Rung(
        identity,
        infinite,
        jnp.zeros_like(start),
        start,
        jnp.asarray(1.0, start.dtype),
        jnp.asarray(min(first_parts, parts), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
        identity,
    )

    def counted(carry):
        rung, seen = carry
        new = body(rung)
        return new, seen + rung.parts + d * jnp.minimum(rung.parts, hessian_parts)

    rung, seen = lax.while_loop(
        lambda carry: ~carry[0].done & (carry[0].step < STEPS), counted, (rung, jnp.zeros((), start.dtype))
    )
    return rung.first, rung.coordinates, seen


def whitened(scale: jax.Array, hessian: jax.Array) -> jax.Array:
    """L V |Lambda|^-1/2; L itself where the Hessian is not finite."""
    values, vectors = axes_of(hessian)
    sizes = jnp.abs(values)
    return product(scale, vectors) / jnp.sqrt(jnp.maximum(sizes, jnp.maximum(FLOOR * sizes.max(), 1e-30)))


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
