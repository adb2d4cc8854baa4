r"""
Sites that the model itself has non-centred: ``a = mu + tau * z``, where z has a distribution without latents.

Such a site is found in the trace. A value a is a candidate if it is computed from z by element, :math:`a = m + s z`,
where s depends on other latents, and if no distribution of the model depends on z in another way. Then the variable
that is sampled is

.. math:: \tilde a = \lambda m + \operatorname{sign}(s) |s|^\lambda z, \qquad
    \log |\partial z / \partial \tilde a| = -\lambda \log |s|,

as for sites that are written centred (:mod:`~numpyro_sgmcmc.model.centering`): at :math:`\lambda = 0` it is z, at 1 it
is a.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax.extend.core import primitives as p
import jax.numpy as jnp

from numpyro_sgmcmc.types import Rows, Sites
from numpyro_sgmcmc.utils.program import Program

_MOVES = {p.convert_element_type_p, p.copy_p, p.reshape_p, p.squeeze_p, p.broadcast_in_dim_p}
_ARITHMETIC = {p.add_p, p.sub_p, p.mul_p, p.neg_p}
_TAKES = {p.gather_p, p.dynamic_slice_p, p.slice_p}


class Chain(NamedTuple):
    """How a value is computed from a site."""

    aligned: bool = True  # it has the elements of the site in their order; otherwise some of them, in any order
    uniform: bool = True  # m and s are the same for all elements
    factors: frozenset[int] = frozenset()  # the numbers of the factors of s that depend on other latents


class NonCentred:
    """
    The sites of a model that are non-centred by hand. ``scales`` maps them to the sites on which their scales depend.

    :param parameters: (z, rows) -> site -> the parameters of the distribution of each site, the latents among them.
    :param names: the sites that come into question.
    """

    def __init__(
        self,
        parameters: Callable[[Sites, Rows], Mapping[str, Any]],
        prototype: Mapping[str, jax.ShapeDtypeStruct],
        rows: Rows,
        names: Iterable[str],
    ):
        self._prototype = prototype
        closed, shapes = jax.make_jaxpr(parameters, return_shape=True)(dict(prototype), dict(rows))
        self._program = Program(closed)
        self._inputs = dict(zip(sorted(prototype), self._program.inputs))
        outputs = jax.tree.unflatten(jax.tree.structure(shapes), self._program.outputs)
        self._rows = dict(zip(self._program.inputs[len(prototype) :], jax.tree.leaves(dict(rows))))
        by_row, of_latents = map(self._program.dependents, (self._rows, self._inputs.values()))
        replaced = {}
        for name in names:
            others = {k for site, leaves in outputs.items() if site != name for k in jax.tree.leaves(leaves)}
            chosen = self._chosen(self._inputs[name], others, by_row, of_latents)
            if chosen is not None:
                replaced[name] = chosen
        # the location and the scale of a site can depend on the sites whose values are computed before
        self._values = {name: number for name, (number, _) in sorted(replaced.items(), key=lambda item: item[1][0])}
        self.scales = {
            name: frozenset(
                site for site, k in self._inputs.items() if self._program.dependents([k]) & replaced[name][1]
            )
            for name in self._values
        }

    def _chosen(
        self, source: int, outputs: set[int], by_row: set[int], of_latents: set[int]
    ) -> tuple[int, frozenset[int]] | None:
        """The number of the last value that can replace the site, and the factors of its scale."""
        for number, chain in sorted(self._chains(source, by_row, of_latents).items(), reverse=True):
            replaces = not self._program.dependents([source], without=number) & outputs
            if chain.factors and (chain.aligned or chain.uniform) and replaces:
                return number, chain.factors
        return None

    def _chains(self, source: int, by_row: set[int], of_latents: set[int]) -> dict[int, Chain]:
        program = self._program
        chains, moving = {source: Chain()}, program.dependents([source])
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
                chains[number] = chain._replace(aligned=False)
            elif eqn.primitive in _MOVES and same_size:
                chains[number] = chain
            elif same_size and (eqn.primitive in _ARITHMETIC or (eqn.primitive is p.div_p and inputs[0] == before)):
                uniform = chain.uniform and repeated.issuperset(rest)
                if (chain.aligned or uniform) and not by_row.intersection(rest):
                    factors = of_latents.intersection(rest) if eqn.primitive in (p.mul_p, p.div_p) else ()
                    chains[number] = Chain(chain.aligned, uniform, chain.factors.union(factors))
        return chains

    def location_and_scale(self, name: str, z: Sites) -> tuple[jax.Array, jax.Array]:
        """m and s, of the shape of the site; its own value in z does not matter."""
        shape, value = self._prototype[name], self._values[name]
        known = self._rows | {number: z[site] for site, number in self._inputs.items()}

        def a(x):
            return self._program.run(known | {self._inputs[name]: x}, [value])[0]

        ones = jnp.ones(shape.shape, shape.dtype)
        pair = jax.jvp(a, (0 * ones,), (ones,))
        if self._program.shapes[value].size != ones.size:
            pair = [jnp.broadcast_to(x.ravel()[:1], ones.size) for x in pair]
        return pair[0].reshape(shape.shape), pair[1].reshape(shape.shape)

    def as_written(self, z: Sites, centering: Sites) -> tuple[Sites, jax.Array]:
        """The values of the sites as the model has them, and the log determinant of their derivative."""
        log_det = jnp.zeros(())
        for name in self._values:  # in this order
            shift, factor = self._affine(name, z, centering[name])
            z = {**z, name: (z[name] - shift) / factor}
            log_det -= jnp.sum(jnp.log(jnp.abs(factor)))
        return z, log_det

    def as_sampled(self, z: Sites, centering: Sites) -> Sites:
        """The inverse of :meth:`as_written`."""
        sampled = dict(z)
        for name in self._values:  # in this order
            shift, factor = self._affine(name, z, centering[name])
            sampled[name] = shift + factor * z[name]
        return sampled

    def _affine(self, name: str, z: Sites, share: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The sampled variable as a function of z: what is added, and the factor."""
        m, s = self.location_and_scale(name, z)
        size = jnp.maximum(jnp.abs(s), jnp.finfo(s.dtype).tiny) ** share
        return share * m, jnp.where(s < 0, -size, size)
