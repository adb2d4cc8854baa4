r"""
Sites that the model itself has non-centred: ``a = mu + tau * z``, where z has a distribution without latents.

Such a site is found in the trace. A value a is a candidate if it is computed from z by element, :math:`a = m + s z`,
where s depends on other latents, and if no distribution of the model depends on z in another way. Then the variable
that is sampled is

.. math:: \tilde a = \lambda m + \operatorname{sign}(s) |s|^\lambda z, \qquad
    \log |\partial z / \partial \tilde a| = -\lambda \log |s|,

as for sites that are written centred (:mod:`~numpyro_sgmcmc.model.centering`): at :math:`\lambda = 0` it is z, at 1 it
is a.

In the same way a can consist of vectors, :math:`a = m + R z`, as in ``mu + L @ z`` or ``mu + z @ L.T`` with a Cholesky
factor L, or ``cumsum(tau * z)``. Then :math:`\tilde a = \lambda m + T z` with T as in
:mod:`~numpyro_sgmcmc.model.multivariate`, made of the lower triangle of R. This keeps the posterior for any R, but
helps only if R is triangular.
"""

from collections.abc import Callable, Iterable, Mapping
import math
from typing import Any, NamedTuple

import jax
from jax.extend.core import primitives as p
import jax.numpy as jnp

from numpyro_sgmcmc.model.multivariate import Multivariate, partly_whitened, solved
from numpyro_sgmcmc.types import Rows, Sites
from numpyro_sgmcmc.utils.program import Program

_MOVES = {p.convert_element_type_p, p.copy_p, p.reshape_p, p.squeeze_p, p.broadcast_in_dim_p}
_ARITHMETIC = {p.add_p, p.sub_p, p.mul_p, p.neg_p}
_TAKES = {p.gather_p, p.dynamic_slice_p, p.slice_p}
_MIXES = {p.dot_general_p, p.cumsum_p}

LONGEST, LARGEST = 200, 200_000  # elements of a vector, and of R for all vectors: it is computed in every gradient


class Chain(NamedTuple):
    """How a value is computed from a site."""

    axes: tuple[int, ...] | None  # the axes of the site in the order of those of the value; None after a reshape
    aligned: bool = True  # it has the elements of the site; otherwise some of them, in any order
    uniform: bool = True  # m and s are the same for all elements
    factors: frozenset[int] = frozenset()  # the numbers of the factors of s that depend on other latents
    vector: int | None = None  # the axis of the site along which R mixes the elements

    def mixed(self, eqn: Any, operand: int, sizes: tuple[int, ...]) -> "Chain | None":
        """The chain of a product with square matrices, or of a cumulative sum; None for other equations."""
        if self.axes is None or (along := _mixed_axis(eqn, operand)) is None:
            return None
        axes, vector = tuple(self.axes[k] for k in _order(eqn, operand, along, len(self.axes))), self.axes[along]
        n, is_square = sizes[vector], tuple(sizes[k] for k in axes) == eqn.outvars[0].aval.shape
        if not is_square or n > LONGEST or n * math.prod(sizes) > LARGEST or self.vector not in (None, vector):
            return None
        return self._replace(axes=axes, uniform=False, vector=vector)


class Elements(NamedTuple):
    """a = loc + scale z, by element."""

    loc: jax.Array
    scale: jax.Array

    def sampled(self, z: jax.Array, share: jax.Array) -> jax.Array:
        return share * self.loc + self._factor(share) * z

    def written(self, x: jax.Array, share: jax.Array) -> jax.Array:
        return (x - share * self.loc) / self._factor(share)

    def log_det(self, share: jax.Array) -> jax.Array:
        """Of the derivative of :meth:`written`."""
        return -jnp.sum(jnp.log(jnp.abs(self._factor(share))))

    def after(self, form: Any) -> Any:
        """The form of a, where that of z is given."""
        return form.scaled(jnp.abs(self.scale))

    def _factor(self, share: jax.Array) -> jax.Array:
        return _signed_power(self.scale, share)


class Vectors(NamedTuple):
    """a = loc + R z, along an axis; the methods are those of :class:`Elements`."""

    form: Multivariate

    def sampled(self, z: jax.Array, share: jax.Array) -> jax.Array:
        share, z = self._last(share), self._last(z)
        return self._back(share * self.form.loc + jnp.einsum("...ij,...j->...i", self._matrix(share), z))

    def written(self, x: jax.Array, share: jax.Array) -> jax.Array:
        share, x = self._last(share), self._last(x)
        return self._back(solved(self._matrix(share), x - share * self.form.loc))

    def log_det(self, share: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.log(jnp.abs(self._diagonal(self._last(share)))))

    def after(self, form: Any) -> Multivariate:
        scale = form.scale
        if not isinstance(form, Multivariate):
            scale = jnp.broadcast_to(scale, self._back(self.form.loc).shape)
            scale = self._last(scale)[..., None] * jnp.eye(self.form.scale.shape[-1])
        return self.form._replace(scale=self.form.scale @ scale)

    def _diagonal(self, share: jax.Array) -> jax.Array:
        return _signed_power(jnp.diagonal(self.form.scale, axis1=-2, axis2=-1), share)

    def _matrix(self, share: jax.Array) -> jax.Array:
        return partly_whitened(self.form.scale, self._diagonal(share), share)

    def _last(self, x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x, self.form.axis, -1)

    def _back(self, x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x, -1, self.form.axis)


def _mixed_axis(eqn: Any, operand: int) -> int | None:
    """The axis of an operand over which a product or a cumulative sum from the first element adds."""
    if eqn.primitive is p.cumsum_p:
        return None if eqn.params["reverse"] else eqn.params["axis"]
    contracted = eqn.params["dimension_numbers"][0][operand]
    return contracted[0] if len(contracted) == 1 else None


def _order(eqn: Any, operand: int, mixed: int, ndim: int) -> Iterable[int]:
    """The axes of an operand in the order of those of the result; for the ``mixed`` one, that of the other operand."""
    if eqn.primitive is p.cumsum_p:
        return range(ndim)
    batched = eqn.params["dimension_numbers"][1][operand]
    rest = [k for k in range(ndim) if k not in (mixed, *batched)]
    return [*batched, *rest, mixed] if operand == 0 else [*batched, mixed, *rest]


def _signed_power(scale: jax.Array, share: jax.Array) -> jax.Array:
    size = jnp.maximum(jnp.abs(scale), jnp.finfo(scale.dtype).tiny) ** share
    return jnp.where(scale < 0, -size, size)


class NonCentred:
    """
    The sites of a model that are non-centred by hand. ``scales`` maps them to the sites on which their scales depend.

    :param parameters: (z, rows) -> site -> the parameters of the distribution of each site, the latents among them; and
        the Cholesky factors among the latents.
    :param names: the sites that come into question.
    """

    def __init__(
        self,
        parameters: Callable[[Sites, Rows], tuple[Mapping[str, Any], Any]],
        prototype: Mapping[str, jax.ShapeDtypeStruct],
        rows: Rows,
        names: Iterable[str],
    ):
        self._prototype = prototype
        closed, shapes = jax.make_jaxpr(parameters, return_shape=True)(dict(prototype), dict(rows))
        self._program = Program(closed)
        self._inputs = dict(zip(sorted(prototype), self._program.inputs))
        outputs, factors = jax.tree.unflatten(jax.tree.structure(shapes), self._program.outputs)
        self._rows = dict(zip(self._program.inputs[len(prototype) :], jax.tree.leaves(dict(rows))))
        computed = [k for eqn, _, numbers in self._program.equations if eqn.primitive is p.cholesky_p for k in numbers]
        sources = self._rows, self._inputs.values(), [*jax.tree.leaves(factors), *computed]
        self._by_row, self._of_latents, self._of_cholesky = map(self._program.dependents, sources)
        replaced = {}
        for name in names:
            others = {k for site, leaves in outputs.items() if site != name for k in jax.tree.leaves(leaves)}
            chosen = self._chosen(self._inputs[name], others)
            if chosen is not None:
                replaced[name] = chosen
        # the location and the scale of a site can depend on the sites whose values are computed before
        self._values = dict(sorted(replaced.items(), key=lambda item: item[1][0]))
        self.scales = {
            name: frozenset(site for site, k in self._inputs.items() if self._program.dependents([k]) & chain.factors)
            for name, (_, chain) in self._values.items()
        }

    def _chosen(self, source: int, outputs: set[int]) -> tuple[int, Chain] | None:
        """The number of the last value that can replace the site, and its chain."""
        for number, chain in reversed(self._chains(source).items()):
            replaces = not self._program.dependents([source], without=number) & outputs
            if chain.factors and (chain.aligned or chain.uniform) and replaces:
                return number, chain
        return None

    def _chains(self, source: int) -> dict[int, Chain]:
        """The values that are computed from a site in the ways that come into question, in their order."""
        program, of_latents, triangular = self._program, self._of_latents, self._of_cholesky - self._by_row
        sizes = program.shapes[source].shape
        chains, moving = {source: Chain(tuple(range(len(sizes))))}, program.dependents([source])
        repeated = {k for k, shape in enumerate(program.shapes) if shape.size == 1}
        for eqn, inputs, outputs in program.equations:
            if eqn.primitive in _MOVES | _ARITHMETIC and repeated.issuperset(inputs):
                repeated.update(outputs)
            of_site = [k for k in inputs if k in moving]
            if len(of_site) != 1 or of_site[0] not in chains or len(outputs) != 1:
                continue
            (before,), (number,) = of_site, outputs
            chain, rest = chains[before], [k for k in inputs if k != before]
            same_size = program.shapes[number].size == program.shapes[before].size
            if eqn.primitive in _TAKES and inputs[0] == before:
                chains[number] = chain._replace(aligned=False, axes=None)
            elif eqn.primitive is p.transpose_p and chain.axes is not None:
                chains[number] = chain._replace(axes=tuple(chain.axes[k] for k in eqn.params["permutation"]))
            elif eqn.primitive in _MOVES and same_size:
                if program.shapes[number].shape == program.shapes[before].shape:
                    chains[number] = chain
                elif chain.vector is None:
                    chains[number] = chain._replace(axes=None)
            elif same_size and (eqn.primitive in _ARITHMETIC or (eqn.primitive is p.div_p and inputs[0] == before)):
                uniform = chain.uniform and repeated.issuperset(rest)
                if (chain.aligned or uniform) and not self._by_row.intersection(rest):
                    factors = of_latents.intersection(rest) if eqn.primitive in (p.mul_p, p.div_p) else ()
                    chains[number] = chain._replace(uniform=uniform, factors=chain.factors.union(factors))
            elif eqn.primitive in _MIXES and chain.aligned and triangular.issuperset(rest):
                mixed = chain.mixed(eqn, inputs.index(before), sizes)
                if mixed is not None:
                    chains[number] = mixed._replace(factors=chain.factors.union(of_latents.intersection(rest)))
        return chains

    def form(self, name: str, z: Sites) -> Elements | Vectors:
        """How the model computes a from z; the site's own value in z does not matter."""
        shape, (value, chain) = self._prototype[name], self._values[name]
        known = self._rows | {number: z[site] for site, number in self._inputs.items()}

        def a(x):
            y = self._program.run(known | {self._inputs[name]: x}, [value])[0]
            return y if chain.axes is None else jnp.transpose(y, [chain.axes.index(k) for k in range(len(chain.axes))])

        zeros = jnp.zeros(shape.shape, shape.dtype)
        if chain.vector is not None:
            axis = chain.vector
            last = jnp.moveaxis(zeros, axis, -1)
            loc, push = jax.linearize(lambda x: jnp.moveaxis(a(jnp.moveaxis(x, -1, axis)), axis, -1), last)
            column = lambda unit: push(jnp.broadcast_to(unit, last.shape))  # noqa: E731
            scale = jax.vmap(column, out_axes=-1)(jnp.eye(last.shape[-1], dtype=shape.dtype))
            return Vectors(Multivariate(loc, scale, axis=axis))
        pair = jax.jvp(a, (zeros,), (1 + zeros,))
        if chain.axes is None:
            if self._program.shapes[value].size != zeros.size:
                pair = [jnp.broadcast_to(x.ravel()[:1], zeros.size) for x in pair]
            pair = [x.reshape(zeros.shape) for x in pair]
        return Elements(*pair)

    def as_written(self, z: Sites, centering: Sites) -> tuple[Sites, jax.Array]:
        """The values of the sites as the model has them, and the log determinant of their derivative."""
        log_det = jnp.zeros(())
        for name in self._values:  # in this order
            form, share = self.form(name, z), centering[name]
            z = {**z, name: form.written(z[name], share)}
            log_det += form.log_det(share)
        return z, log_det

    def as_sampled(self, z: Sites, centering: Sites) -> Sites:
        """The inverse of :meth:`as_written`."""
        sampled = dict(z)
        for name in self._values:  # in this order
            sampled[name] = self.form(name, z).sampled(z[name], centering[name])
        return sampled
