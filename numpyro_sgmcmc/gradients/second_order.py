r"""
The term of second order of a control variate around c:

.. math:: \hat g(z) = \nabla\tilde U_S(z) - \nabla\tilde U_S(c) - \nabla^2\tilde U_S(c)\, (z - c)
    + \nabla U(c) + \nabla^2 U(c)\, (z - c),

with the same rows S in all estimates. It is unbiased, because the mean of the Hessians of minibatches is that of all
rows. The noise that is left is of order :math:`N^2 \lVert z - c \rVert^4 / n`; without the term it is of order
:math:`N^2 \lVert z - c \rVert^2 / n`, and grows with the distance of a coordinate whose rows are a random number of a
minibatch, such as the effect of a group. A step costs up to twice as much: the product with the Hessian of a minibatch
takes two of its gradients.

The Hessian of all rows at c is computed once, from its products with a few directions. It is a matrix, or for a
hierarchy of many groups an arrow (:mod:`~numpyro_sgmcmc.tuning.arrow`).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.full_pass import over_all_rows
from numpyro_sgmcmc.types import Potential, Rows, Sites
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.curvature import gradient_and_product

REACH = 3.0  # standard deviations from the centre up to which the term grows
EXACT = 1e-3  # maximal relative error of the product with a random vector: an arrow may lack what couples two groups


@partial(jax.tree_util.register_dataclass, data_fields=["blocks", "width", "used"], meta_fields=["layout"])
@dataclass(frozen=True)
class Hessian:
    """The Hessian of U at the centre of a control variate."""

    blocks: Any  # a matrix, or the blocks of an arrow
    width: jax.Array  # the standard deviations of z, shape (d,)
    used: jax.Array  # whether the control variate has the term of second order
    layout: Any  # the groups of a hierarchy if it is an arrow, otherwise None

    @classmethod
    def unknown(cls, coordinates: Any, z: jax.Array) -> "Hessian":
        """A Hessian that is not used, in the form of these coordinates."""
        directions = coordinates.directions(jax.random.key(0))
        shape = jax.eval_shape(coordinates.hessian, jnp.broadcast_to(z, (len(directions), z.size)), directions)
        blocks = jax.tree.map(lambda x: jnp.zeros(x.shape, z.dtype), shape)
        return cls(blocks, jnp.zeros_like(z), jnp.zeros((), bool), coordinates.layout)

    @classmethod
    def at(cls, potential: Potential, z: Sites, coordinates: Any, rng_key: jax.Array) -> "Hessian":
        """The Hessian at ``z``, in the form of these coordinates. It is used if it has this form."""
        key_directions, key_check, key_model = jax.random.split(rng_key, 3)
        flat, unravel = ravel_pytree(z)
        directions = coordinates.directions(key_directions)
        away = coordinates.times(noise.normal(key_check, flat.shape, flat.dtype))
        vectors = jnp.concatenate([directions, away[None]])

        def products(potential, z, rows, rng_key):
            gradient = jax.grad(lambda z: potential.estimate(z, rows, rng_key))
            along = lambda v: ravel_pytree(gradient_and_product(gradient, z, unravel(v))[1])[0]  # noqa: E731
            return jax.vmap(along)(vectors)

        found = over_all_rows(potential, products, z, key_model, total=vectors)
        blocks = coordinates.hessian(found[:-1], directions)
        width = jnp.sqrt(coordinates.variances(jnp.ones_like(flat)))
        hessian = cls(blocks, width, jnp.ones((), bool), coordinates.layout)
        size = lambda v: jnp.linalg.norm(coordinates.pull_back(v))  # noqa: E731
        return replace(hessian, used=size(hessian.times(away) - found[-1]) <= EXACT * size(found[-1]))

    def times(self, v: jax.Array) -> jax.Array:
        """The product with a vector."""
        dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        if self.layout is None:
            return dot(self.blocks, v)
        of_globals, own, border = self.blocks
        v_globals, members = self.layout.split(v)
        product, moved = dot(of_globals, v_globals), []
        for H, B, v_groups in zip(own, border, members):
            moved.append(jnp.sum(H * v_groups[:, None, :], -1) + jnp.sum(B * v_globals, -1))
            product = product + dot(v_groups.ravel(), B.reshape(-1, B.shape[-1]))
        return self.layout.merge(product, moved)


def expansion(
    potential: Potential, center: Sites, gradient: Sites, hessian: Any, z: Sites, rows: Rows, rng_key: jax.Array
) -> tuple[Sites, Sites]:
    """
    The Taylor series of the gradient around ``center`` at ``z``, of the estimate from these rows and of all rows: of
    second order if the Hessian is used, otherwise their values at the centre.

    :param gradient: that of all rows at the centre.
    :param hessian: a :class:`Hessian`, or () if there is none.
    """
    gradient_of_rows = jax.grad(lambda z: potential.estimate(z, rows, rng_key))
    first = lambda: (gradient_of_rows(center), gradient)  # noqa: E731
    if not isinstance(hessian, Hessian):
        return first()
    add = partial(jax.tree.map, jnp.add)

    def second():
        flat, unravel = ravel_pytree(jax.tree.map(jnp.subtract, z, center))
        # any function of z will do: far away the term would add more noise than it takes away
        flat = jnp.clip(flat, -REACH * hessian.width, REACH * hessian.width)
        away = unravel(flat)
        return add(*gradient_and_product(gradient_of_rows, center, away)), add(gradient, unravel(hessian.times(flat)))

    return lax.cond(hessian.used, second, first)


def expands(gradient_state: Any) -> bool:
    """Whether this is the state of a control variate that may have a term of second order."""
    return isinstance(getattr(gradient_state, "hessian", None), Hessian)


def using(gradient_state: Any, used: jax.Array) -> Any:
    """The state of such a control variate, with its term only if ``used``."""
    hessian = gradient_state.hessian
    return gradient_state._replace(hessian=replace(hessian, used=hessian.used & used))


def passes_of_hessian(coordinates: Any) -> int:
    """Passes over the data that the Hessian costs: two for each product."""
    return 2 * jax.eval_shape(coordinates.directions, jax.random.key(0)).shape[0]
