r"""
Coordinates shaped like the plates of a hierarchy. Given the globals, the groups of a plate are independent, so the
Hessian H is an arrow: a dense block for the k globals, a small block for each group j of b coordinates, and the border
between them. Then :math:`z = c + L x` with

.. math:: z_g = c_g + G x_g, \qquad z_j = c_j + R_j x_j + K_j x_g

can make :math:`L^T H L` the identity, in O(d (k + b)) operations: with the pivots
:math:`M_j = -H_{jj}^{-1} H_{jg}` and :math:`S = H_{gg} + \sum_j H_{gj} M_j`,

.. math:: R_j = H_{jj}^{-1/2}, \qquad G = S^{-1/2}, \qquad K_j = M_j G.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.tuning.coordinates import axes_of, product
from numpyro_sgmcmc.tuning.groups import Layout

Blocks = tuple[jax.Array, list[jax.Array], list[jax.Array]]  # H_gg, and H_jj and H_jg of each family


@partial(jax.tree_util.register_dataclass, data_fields=["center", "common", "own", "border"], meta_fields=["layout"])
@dataclass(frozen=True)
class Arrow:
    center: jax.Array  # c, shape (d,)
    common: jax.Array  # G, shape (k, k)
    own: list[jax.Array]  # R of each family, shape (groups, b, b)
    border: list[jax.Array]  # K of each family, shape (groups, b, k)
    layout: Layout  # where the groups are in z and x

    is_rescaled = False

    @classmethod
    def diagonal(cls, center: jax.Array, width: jax.Array, layout: Layout) -> "Arrow":
        """Coordinates in which L is a diagonal."""
        common, members = layout.split(width)
        own = [jax.vmap(jnp.diag)(width) for width in members]
        border = [jnp.zeros((*width.shape, layout.size), width.dtype) for width in members]
        return cls(center, jnp.diag(common), own, border, layout)

    def _replace(self, **fields) -> "Arrow":
        return replace(self, **fields)

    def times(self, x: jax.Array) -> jax.Array:
        common, members = self.layout.split(x)
        moved = [_each(R, x) + _border(K, common) for R, K, x in zip(self.own, self.border, members)]
        return self.layout.merge(product(self.common, common), moved)

    def to_z(self, x: jax.Array) -> jax.Array:
        return self.center + self.times(x)

    def to_x(self, z: jax.Array) -> jax.Array:
        common, members = self.layout.split(z - self.center)
        x = jnp.linalg.solve(self.common, common)
        away = [z - _border(K, x) for K, z in zip(self.border, members)]
        return self.layout.merge(x, [jnp.linalg.solve(R, z[..., None])[..., 0] for R, z in zip(self.own, away)])

    def pull_back(self, gradient: jax.Array) -> jax.Array:
        common, members = self.layout.split(gradient)
        x = product(self.common.T, common)
        for K, g in zip(self.border, members):
            x = x + product(g.ravel(), K.reshape(-1, K.shape[-1]))
        return self.layout.merge(x, [_each(R.mT, g) for R, g in zip(self.own, members)])

    def variances(self, x: jax.Array) -> jax.Array:
        return self._each_block(jnp.square).times(x)

    def matrix(self) -> jax.Array:
        return jax.vmap(self.times, 1, 1)(jnp.eye(self.center.size, dtype=self.center.dtype))

    def after(self, other: "Arrow") -> "Arrow":
        border = [product(R, M) + product(K, other.common) for R, K, M in zip(self.own, self.border, other.border)]
        own = [product(R, other) for R, other in zip(self.own, other.own)]
        return replace(self, common=product(self.common, other.common), own=own, border=border)

    def narrowed(self, factor: float) -> "Arrow":
        return self._each_block(lambda block: factor * block)

    def _each_block(self, fn: Callable) -> "Arrow":
        common, own, border = jax.tree.map(fn, (self.common, self.own, self.border))
        return replace(self, common=common, own=own, border=border)

    @property
    def turns(self) -> np.ndarray:
        """The coordinates of x whose axes may be turned: those of the globals."""
        return self.layout.globals

    def turned(self, axes: jax.Array) -> "Arrow":
        return replace(self, common=product(self.common, axes), border=[product(K, axes) for K in self.border])

    def log_det(self) -> jax.Array:
        return sum((jnp.linalg.slogdet(R)[1].sum() for R in self.own), start=jnp.linalg.slogdet(self.common)[1])  # pyright: ignore[reportReturnType]

    def directions(self, rng_key: jax.Array) -> jax.Array:
        """
        The x whose products with a Hessian determine :meth:`whitening`: unit vectors of the globals, and for each
        coordinate of the groups of a family a vector of random signs.
        """
        layout, dtype = self.layout, self.center.dtype
        nothing = [jnp.zeros((J, b), dtype) for J, b in layout.families]
        rows = [layout.merge(unit, nothing) for unit in jnp.eye(layout.size, dtype=dtype)]
        for family, (J, b) in enumerate(layout.families):
            signs = random.rademacher(random.fold_in(rng_key, family), (J,), dtype)
            for column in range(b):
                members = list(nothing)
                members[family] = members[family].at[:, column].set(signs)
                rows.append(layout.merge(jnp.zeros(layout.size, dtype), members))
        return jnp.stack(rows)

    def hessian(self, products: jax.Array, directions: jax.Array) -> Blocks:
        layout = self.layout
        common, members = jax.vmap(layout.split)(products[: layout.size])
        own, first = [], layout.size
        for family, (_, b) in enumerate(layout.families):
            of_family = lambda x, family=family: layout.split(x)[1][family]  # noqa: E731
            signs = of_family(directions[first])[:, :1]
            own.append(jnp.moveaxis(signs * jax.vmap(of_family)(products[first : first + b]), 0, -1))
            first += b
        return common, own, [jnp.moveaxis(border, 0, -1) for border in members]

    def whitening(
        self, hessian: Blocks, length: jax.Array, most: float, blocks: Any = None
    ) -> tuple["Arrow", jax.Array]:
        r"""
        As in :class:`~numpyro_sgmcmc.tuning.coordinates.Coordinates`, but with the extreme eigenvalues of the blocks
        :math:`H_{jj}` and S of H, the latter to first order in :math:`\rho`.
        """
        del blocks
        mixed = lambda H: length * H + (1 - length) * jnp.eye(H.shape[-1], dtype=H.dtype)  # noqa: E731
        common, own, border = hessian
        roots, pivots, extremes = [], [], []
        schur = mixed(common)
        for H, B in zip(own, border):
            values, vectors = jnp.linalg.eigh(mixed((H + H.mT) / 2))
            extremes += [values.min(), values.max()]
            size = jnp.clip(values, 1 / most, most)[:, None]
            roots.append(product(vectors / jnp.sqrt(size), vectors.mT))
            M = -length * product(vectors / size, product(vectors.mT, B))
            pivots.append(M)
            schur = schur + length * jnp.einsum("jbk,jbl->kl", B, M, precision=lax.Precision.HIGHEST)
        values, vectors = axes_of(schur)
        G = product(vectors / jnp.sqrt(jnp.clip(values, 1 / most, most)), vectors.T)
        extremes += [values.min(), values.max()] if values.size else []
        A = replace(self, common=G, own=roots, border=[product(M, G) for M in pivots])
        return A, 1 + (jnp.stack(extremes) - 1) / length


def _each(R: jax.Array, x: jax.Array) -> jax.Array:
    """R_j x_j for each group; sums over b in the open, which XLA compiles to one loop."""
    return jnp.sum(R * x[:, None, :], -1)


def _border(K: jax.Array, x: jax.Array) -> jax.Array:
    """K_j x_g for each group."""
    return product(K.reshape(-1, K.shape[-1]), x).reshape(K.shape[:2])
