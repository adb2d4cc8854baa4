r"""
Finds the linear predictor of a model: an intermediate value :math:`\eta`, a number (or a few) for each row and affine
in the latents, through which alone the rows' energies depend on them,

.. math:: u_i(z) = \phi_i(\eta_i(z)), \qquad \eta_i(z) = A_i z + b_i.

The gradient of a row is then :math:`\phi_i'(\eta_i) A_i`, and only the slope :math:`\phi_i'` changes with z. The search
is of the trace of the model: values that are affine by construction, among them those without which the energies would
not depend on the latents any more.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jax.extend import core
import jax.numpy as jnp

from numpyro_sgmcmc.types import Potential, Rows, Sites

# outputs are linear in any one of the operands, and jointly
_LINEAR = frozenset(
    "add sub add_any neg convert_element_type reshape broadcast_in_dim squeeze expand_dims transpose concatenate "
    "reduce_sum cumsum rev copy copy_p slice optimization_barrier".split()
)
# linear in one operand if the others do not depend on the latents
_BILINEAR = frozenset("mul dot_general conv_general_dilated".split())
# linear in the first operand(s) if the rest, divisors and indices, does not depend on the latents
_LINEAR_IN_FIRST = {"div": 1, "gather": 1, "dynamic_slice": 1, "pad": 2}
_CALLS = frozenset("jit pjit closed_call core_call remat checkpoint".split())


class _Equation(NamedTuple):
    eqn: Any
    inputs: list[int]
    outputs: list[int]


class _Program:
    """A trace with its calls inlined; values are numbered in the order in which they are made."""

    def __init__(self, closed: core.ClosedJaxpr):
        self.shapes: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[_Equation] = []
        self.inputs = [self._value(var.aval) for var in closed.jaxpr.invars]
        self.outputs = self._inline(closed.jaxpr, closed.consts, self.inputs)

    def _value(self, aval: Any) -> int:
        self.shapes.append(aval)
        return len(self.shapes) - 1

    def _constant(self, value: Any, aval: Any) -> int:
        number = self._value(aval)
        self.constants[number] = value
        return number

    def _inline(self, jaxpr: Any, consts: Iterable[Any], inputs: list[int]) -> list[int]:
        env = dict(zip(jaxpr.invars, inputs))
        env.update({var: self._constant(const, var.aval) for var, const in zip(jaxpr.constvars, consts)})

        def read(var):
            return self._constant(var.val, var.aval) if isinstance(var, core.Literal) else env[var]

        for eqn in jaxpr.eqns:
            arguments = [read(var) for var in eqn.invars]
            inner = eqn.params.get("jaxpr") if eqn.primitive.name in _CALLS else None
            if inner is not None:
                outputs = self._inline(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), arguments)
            else:
                outputs = [self._value(var.aval) for var in eqn.outvars]
                self.equations.append(_Equation(eqn, arguments, outputs))
            env.update(zip(eqn.outvars, outputs))
        return [read(var) for var in jaxpr.outvars]

    def dependents(self, sources: Iterable[int], without: int | None = None) -> set[int]:
        """Values that depend on the sources, other than through one of them."""
        found = set(sources) - {without}
        for equation in self.equations:
            if found.intersection(equation.inputs):
                found.update(set(equation.outputs) - {without})
        return found

    def affine(self, sources: Iterable[int], dependents: set[int]) -> set[int]:
        """Values that are affine in the sources by construction."""
        found = set(sources)
        for eqn, inputs, outputs in self.equations:
            moving = [k for k, number in enumerate(inputs) if number in dependents]
            name = eqn.primitive.name
            if not moving or any(inputs[k] not in found for k in moving):
                continue
            allowed = (
                name in _LINEAR
                or (name in _BILINEAR and len(moving) == 1)
                or (name in _LINEAR_IN_FIRST and max(moving) < _LINEAR_IN_FIRST[name])
                or (name == "select_n" and 0 not in moving)
            )
            if allowed and all(jnp.issubdtype(self.shapes[k].dtype, jnp.floating) for k in outputs):
                found.update(outputs)
        return found

    def run(self, known: dict[int, Any], wanted: list[int]) -> list[Any]:
        """The wanted values, from known ones; nothing is computed twice, or for nothing."""
        needed, equations = set(wanted) - known.keys(), []
        for equation in reversed(self.equations):
            if needed.intersection(equation.outputs) and not known.keys() >= set(equation.outputs):
                equations.append(equation)
                needed.update(set(equation.inputs) - known.keys())
        values = self.constants | known
        for eqn, inputs, outputs in reversed(equations):
            params = eqn.primitive.get_bind_params(eqn.params)
            results = eqn.primitive.bind(*(values[k] for k in inputs), **params)
            values.update(zip(outputs, results if eqn.primitive.multiple_results else [results]))
            values.update(known)
        return [values[number] for number in wanted]


def linear_predictor(
    potential: Potential, z: Sites, rows: Rows
) -> tuple[Callable[[Sites], jax.Array], Callable[[jax.Array], jax.Array], int]:
    """
    :return: z -> predictor, predictor -> energies of the rows, and the axis of the rows in the predictor.
    :raises ValueError: the model has none with fewer numbers a row than there are coordinates.
    """
    ((_, numbers),) = rows.items()
    leaves, treedef = jax.tree.flatten(z)

    def energies(leaves, rows):
        return potential.per_row(treedef.unflatten(leaves), rows)

    program = _Program(jax.make_jaxpr(energies)(leaves, rows))
    latents, of_rows = program.inputs[: len(leaves)], program.inputs[len(leaves) :]
    on_latents, on_rows = program.dependents(latents), program.dependents(of_rows)
    n, d = numbers.shape[0], sum(leaf.size for leaf in leaves)
    candidates = [
        number
        for number in sorted(program.affine(latents, on_latents) & on_rows - set(latents))
        if program.shapes[number].shape.count(n) == 1 and program.shapes[number].size < max(2, d) * n
    ]
    cuts = [k for k in candidates if not program.dependents(latents, without=k).intersection(program.outputs)]
    if not cuts:
        raise ValueError(
            "SAGA(per='linear') needs a model whose rows depend on the latents through a linear predictor alone, with "
            f"fewer numbers a row than there are coordinates; of the latents {', '.join(map(repr, z))} none such was "
            "found (an unknown scale, or a product of latents, is in the way). Use SAGA(per='batch') or "
            "SAGA(per='row')."
        )
    cut = min(cuts, key=lambda number: program.shapes[number].size)
    known_rows = dict(zip(of_rows, jax.tree.leaves(rows)))

    def predictor(z):
        return program.run(known_rows | dict(zip(latents, jax.tree.leaves(z))), [cut])[0]

    def energies_of(eta):
        return program.run(known_rows | {cut: eta}, program.outputs)[0]

    return predictor, energies_of, program.shapes[cut].shape.index(n)
