r"""
The divergence of the rows of a matrix that depends on the n variables x (Ma, Chen & Fox 2015, equation 3),

.. math:: \Gamma_i(x) = \sum_j \frac{\partial A_{ij}}{\partial x_j}(x)
    = \sum_j \left. \frac{d}{dt} (A(x + t e_j) e_j)_i \right|_{t = 0}
    = E_v \left. \frac{d}{dt} (A(x + t v) v)_i \right|_{t = 0},
    \qquad v_j = \pm 1 \text{ independent, equally likely}.

For a scalar it is the gradient, one VJP. Otherwise it takes n JVPs, or one JVP with signs v. This is unbiased, and
exact for diagonals whose entries depend on their own coordinate only, because :math:`v_j^2 = 1`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics.matrices import Matrix

EXACT = 16  # number of variables up to which it is computed column by column


def divergence(matrix_at: Callable[[jax.Array], Matrix], x: jax.Array, signs: jax.Array, exact: bool | None):
    """
    Gamma at x, see the module.

    :param matrix_at: x -> the matrix.
    :param signs: v, shape ``(n,)``.
    :param exact: whether to compute it column by column; None: if there are few variables.
    """
    matrix = matrix_at(x)
    scalars = [block for block in matrix.blocks if block.value.ndim == 0]
    out = jnp.zeros_like(x)
    if scalars:
        _, pull_back = jax.vjp(lambda x: jnp.stack([b.value for b in matrix_at(x).blocks if b.value.ndim == 0]), x)
        for block, unit in zip(scalars, jnp.eye(len(scalars), dtype=x.dtype)):
            out = out.at[block.rows].add(pull_back(unit)[0][block.columns])
    if matrix.map is None and len(scalars) == len(matrix.blocks):
        return out

    def along(v):
        def product(x):
            at_x = matrix_at(x)
            at_x.blocks = [block for block in at_x.blocks if block.value.ndim]
            return at_x.times(v)

        return jax.jvp(product, (x,), (v,))[1]

    exact = x.size <= EXACT if exact is None else exact
    return out + (jax.vmap(along)(jnp.eye(x.size, dtype=x.dtype)).sum(0) if exact else along(signs))
