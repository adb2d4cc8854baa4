r"""
Matrices over the variables of a phase, raveled to n numbers: z by site, then the momentum, then auxiliary variables.

A matrix A is given as a scalar (times the identity), a diagonal, a matrix, blocks by name, or a linear map. The recipe
of Ma, Chen & Fox (2015) needs the products A v, a factor F with F F' = A, and the divergence of the rows of A, see
:mod:`~numpyro_sgmcmc.dynamics.divergence`.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Phase

SHOWN = 512  # number of variables up to which a check uses the whole matrix


class LinearMap(NamedTuple):
    """
    A matrix over the raveled variables of a phase, given by its products.

    - **times** - v -> A v, both of shape ``(n,)``.
    - **factor** - v -> F v with F F' = A, of shape ``(n,)``. D needs it, for its noise.
    """

    times: Callable[[jax.Array], jax.Array]
    factor: Callable[[jax.Array], jax.Array] | None = None


class Block(NamedTuple):
    """A scalar times the identity, a diagonal or a matrix, in some rows and columns."""

    rows: slice
    columns: slice
    value: jax.Array


class Layout:
    """The positions of the variables of a phase in the raveled vector, and the names of its entries."""

    def __init__(self, phase: Phase):
        tree = (phase.z, phase.momentum, phase.auxiliary)
        flat, self._unravel = ravel_pytree(tree)
        self.size, self.dtype, self.everything = flat.size, flat.dtype, slice(0, flat.size)
        self.places: dict[str, slice] = {}
        self.names: list[tuple[str, int, tuple[int, ...]]] = []
        self.ambiguous: set[str] = set()  # names of parts that are also names of sites
        end = 0
        for part, variables in zip(("z", "momentum", "auxiliary"), tree):
            begin = end
            for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
                own = slice(end, end + jnp.size(leaf))
                self.names.append((part + jax.tree_util.keystr(path), end, jnp.shape(leaf)))
                if part != "momentum" and path:
                    self.places.setdefault(str(getattr(path[0], "key", path[0])), own)
                end = own.stop
            if self.places.setdefault(part, slice(begin, end)) != slice(begin, end):
                self.ambiguous.add(part)
            self.places[part] = slice(begin, end)
        self.z = self.places["z"]

    def ravel(self, phase: Phase) -> jax.Array:
        """A phase as a vector, shape ``(n,)``."""
        return ravel_pytree((phase.z, phase.momentum, phase.auxiliary))[0]

    def unravel(self, x: jax.Array, phase: Phase) -> Phase:
        """The inverse of :meth:`ravel`; the variables that are not raveled are those of ``phase``."""
        z, momentum, auxiliary = self._unravel(x)
        return phase._replace(z=z, momentum=momentum, auxiliary=auxiliary)

    def name(self, i: int) -> str:
        """The name of entry i, for messages: ``z['w'][2]``."""
        name, begin, shape = [entry for entry in self.names if entry[1] <= i][-1]
        index = np.unravel_index(i - begin, shape) if shape else ()
        return name + (f"[{', '.join(str(int(k)) for k in index)}]" if shape else "")

    def place(self, what: str, name: Any) -> slice:
        """Raises a ValueError if there is no variable with this name."""
        if name not in self.places:
            known = ", ".join(repr(place) for place, s in self.places.items() if s.stop > s.start)
            raise ValueError(f"{what} has a block for {name!r}; the variables are {known}.")
        if name in self.ambiguous:
            raise ValueError(
                f"{what} has a block for {name!r}, which is the name of a site and of a part of the state. Rename the "
                "site, for example by handlers.scope, or give one matrix for all variables."
            )
        return self.places[name]


class Matrix:
    """
    A matrix given in one of the allowed forms, which is checked.

    :param str what: its name, for messages.
    :param value: the value that the user's function has returned.
    :param int sign: sign of the mirror image of an off-diagonal block: 1 for symmetric matrices, -1 for skew ones.
    :raises ValueError: if the value is not a matrix over the variables.
    """

    def __init__(self, what: str, value: Any, layout: Layout, sign: int = 1):
        self.layout, self.blocks, self.map = layout, [], None
        if isinstance(value, LinearMap):
            self.map = value
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                names = key if isinstance(key, tuple) else (key, key)
                rows, columns = (layout.place(what, name) for name in names)
                block = _checked_block(f"{what}[{key!r}]", rows, columns, entry, layout)
                self.blocks.append(block)
                if rows != columns:
                    self.blocks.append(Block(columns, rows, sign * block.value.T))
        else:
            self.blocks.append(_checked_block(what, layout.everything, layout.everything, value, layout))
        for k, block in enumerate(self.blocks):
            if any(_meet(block.rows, b.rows) and _meet(block.columns, b.columns) for b in self.blocks[:k]):
                raise ValueError(f"{what} gives {layout.name(block.rows.start)} twice; give each block once.")

    @property
    def diagonal(self) -> bool:
        """Whether only the diagonal is given, each entry once."""
        return self.map is None and all(b.value.ndim < 2 and b.rows == b.columns for b in self.blocks)

    def times(self, v: jax.Array) -> jax.Array:
        """A v."""
        return self._product(_times, v) if self.map is None else self.map.times(v)

    def factor(self, v: jax.Array) -> jax.Array:
        """F v with F F' = A; NaN if A is not symmetric and positive semi-definite."""
        if self.map is not None:
            assert self.map.factor is not None
            return self.map.factor(v)
        if any(block.rows != block.columns for block in self.blocks):
            return _factor(self.dense()) @ v
        return self._product(lambda value, v: _times(_factor(value), v), v)

    def _product(self, times: Callable[[jax.Array, jax.Array], jax.Array], v: jax.Array) -> jax.Array:
        """The sum of the products of the blocks with their parts of v."""
        if len(self.blocks) == 1 and self.blocks[0].rows == self.layout.everything:
            return times(self.blocks[0].value, v)
        out = jnp.zeros_like(v)
        for block in self.blocks:
            out = out.at[block.rows].add(times(block.value, v[block.columns]))
        return out

    def dense(self) -> jax.Array:
        """As a matrix, shape ``(n, n)``."""
        n, dtype = self.layout.size, self.layout.dtype
        if self.map is not None:
            return jax.vmap(self.times, out_axes=1)(jnp.eye(n, dtype=dtype))
        out = jnp.zeros((n, n), dtype)
        for block in self.blocks:
            size = block.rows.stop - block.rows.start
            value = block.value if block.value.ndim == 2 else block.value * jnp.eye(size, dtype=dtype)
            out = out.at[block.rows, block.columns].add(value)
        return out

    def as_diagonal(self) -> jax.Array:
        """The diagonal, shape ``(n,)``, of a matrix that is :attr:`diagonal`."""
        out = jnp.zeros(self.layout.size, self.layout.dtype)
        for block in self.blocks:
            out = out.at[block.rows].add(block.value)
        return out

    def scaled(self, by: jax.Array) -> "Matrix":
        """The matrix times a positive number."""
        if self.map is not None:
            times, factor = self.map
            root = None if factor is None else lambda v: jnp.sqrt(by) * factor(v)
            return Matrix("", LinearMap(lambda v: by * times(v), root), self.layout)
        return self._of(*(block._replace(value=by * block.value) for block in self.blocks))

    def less_noise(self, Q: "Matrix", variance: jax.Array, h: jax.Array) -> "Matrix":
        """
        2 D h - A_z V A_z' h^2, where D is this matrix, A = D + Q, and A_z are the columns of z.

        :param variance: V, shape ``(d,)``.
        """
        z, blocks = self.layout.z, [*self.blocks, *Q.blocks]
        of_z = [block for block in blocks if _meet(block.columns, z)]
        apart = not any(_meet(a.columns, b.columns) or _meet(a.rows, b.rows) for a, b in combinations(of_z, 2))
        if self.diagonal and Q.map is None and apart and all(block.value.ndim < 2 for block in of_z):
            added = jnp.zeros(self.layout.size, variance.dtype)
            everywhere = added.at[z].set(variance)
            for block in of_z:
                added = added.at[block.rows].add(block.value**2 * everywhere[block.columns])
            covariance = 2 * h * self.as_diagonal() - h * h * added
        else:
            columns = (self.dense() + Q.dense())[:, z]
            covariance = 2 * h * self.dense() - h * h * (columns * variance) @ columns.T
        return self._of(Block(self.layout.everything, self.layout.everything, covariance))

    def _of(self, *blocks: Block) -> "Matrix":
        matrix = Matrix("", {}, self.layout)
        matrix.blocks = list(blocks)
        return matrix

    def shown(self) -> jax.Array:
        """
        The array that is checked: the diagonal of a diagonal matrix, A itself, or V'AV for a large A, where the columns
        of V are a few vectors of signs. V'AV is symmetric, skew or positive if A is.
        """
        n = self.layout.size
        if self.diagonal:
            return self.as_diagonal()
        if n <= SHOWN:
            return self.dense()
        V = jnp.sign(jnp.cos(jnp.outer(jnp.arange(1, 9), jnp.arange(n) ** 2 % 1009 + 0.5))).astype(self.layout.dtype)
        return V @ jax.vmap(self.times)(V).T / n


def _checked_block(what: str, rows: slice, columns: slice, value: Any, layout: Layout) -> Block:
    size, width = rows.stop - rows.start, columns.stop - columns.start
    shape = jnp.shape(value)
    if size == width and shape != (size,) and shape != (size, size):
        own = [s for _, begin, s in layout.names if begin == rows.start]
        if shape and shape in own:
            value = jnp.ravel(value)  # a diagonal of the shape of its site
    value = jnp.asarray(value, layout.dtype)
    if value.shape == (size, width) or (size == width and value.shape in ((), (size,))):
        return Block(rows, columns, value)
    some = f"a scalar, a diagonal of shape ({size},) or a matrix" if size == width else "a matrix"
    hint, momentum = "", layout.places["momentum"]
    if momentum.stop == momentum.start and shape and shape[0] == 2 * size:
        hint = " That fits z and a momentum: to have one, give kinetic=1.0 or a function."
    raise ValueError(f"{what} has shape {shape}; it must be {some} of shape ({size}, {width}).{hint}")


def _meet(s, t):
    return max(s.start, t.start) < min(s.stop, t.stop)


def _times(value, v):
    return value @ v if value.ndim == 2 else value * v


def _factor(value):
    """
    A square root. For a matrix it is the Cholesky factor of C + d I, rescaled, where C is the matrix scaled to a unit
    diagonal (or zeros) and d is of the order of the rounding errors. NaN if the value is not symmetric and positive
    semi-definite.
    """
    if value.ndim < 2:
        return jnp.sqrt(value)
    n, eps = len(value), jnp.finfo(value.dtype).eps
    scale = jnp.sqrt(jnp.diagonal(value))
    positive = scale > 0
    divisor = jnp.where(positive, scale, 1)
    unit = value / divisor[:, None] / divisor
    asymmetric = jnp.abs(unit - unit.T).max() > eps**0.5
    outside = jnp.where(positive[:, None] & positive, 0, jnp.abs(unit)).max() > 0  # a zero diagonal needs a zero row
    shift = 8 * n * eps
    shifted = jnp.where(jnp.eye(n, dtype=bool), jnp.where(positive, 1, 1 - shift) + shift, unit)
    root = scale[:, None] * jnp.linalg.cholesky(shifted / (1 + shift), symmetrize_input=False)
    return jnp.where(asymmetric | outside, jnp.nan, root)
