"""The trace of a function as a program that can be searched, and run in parts."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jax import lax
from jax.extend import core
from jax.extend.core import primitives as p
import jax.numpy as jnp

from numpyro_sgmcmc.utils import compat

# outputs are linear in any one of the operands, and jointly
LINEAR = {p.add_p, p.sub_p, p.neg_p, p.convert_element_type_p, p.reshape_p, p.broadcast_in_dim_p, p.squeeze_p}
LINEAR |= {p.transpose_p, p.concatenate_p, p.reduce_sum_p, p.cumsum_p, p.rev_p, p.copy_p, p.slice_p}
LINEAR |= {lax.optimization_barrier_p}
# linear in one operand if the others do not depend on the latents
BILINEAR = {p.mul_p, p.dot_general_p, p.conv_general_dilated_p}
# linear in the first operand(s) if the rest, divisors and indices, does not depend on the latents
LINEAR_IN_FIRST = {p.div_p: 1, p.gather_p: 1, p.dynamic_slice_p: 1, p.pad_p: 2}
CALLS = {p.jit_p, p.call_p, p.closed_call_p, p.remat_p}


class Equation(NamedTuple):
    eqn: Any
    inputs: list[int]
    outputs: list[int]


class Program:
    """A trace with its calls inlined; values are numbered in the order in which they are computed."""

    def __init__(self, closed: compat.ClosedJaxpr):
        self.shapes: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
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
            inner = eqn.params.get("jaxpr") if eqn.primitive in CALLS else None
            if inner is not None:
                outputs = self._inline(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), arguments)
            else:
                outputs = [self._value(var.aval) for var in eqn.outvars]
                self.equations.append(Equation(eqn, arguments, outputs))
            env.update(zip(eqn.outvars, outputs))
        return [read(var) for var in jaxpr.outvars]

    def dependents(self, sources: Iterable[int], without: int | None = None) -> set[int]:
        """Values that depend on the sources other than through the value ``without``."""
        dependents = set(sources) - {without}
        for equation in self.equations:
            if dependents.intersection(equation.inputs):
                dependents.update(set(equation.outputs) - {without})
        return dependents

    def affine(self, sources: Iterable[int], dependents: set[int]) -> set[int]:
        """Values that are affine in the sources by construction."""
        affine = set(sources)
        for eqn, inputs, outputs in self.equations:
            moving = [k for k, number in enumerate(inputs) if number in dependents]
            primitive = eqn.primitive
            if not moving or any(inputs[k] not in affine for k in moving):
                continue
            allowed = (
                primitive in LINEAR
                or (primitive in BILINEAR and len(moving) == 1)
                or max(moving) < LINEAR_IN_FIRST.get(primitive, 0)
                or (primitive is p.select_n_p and 0 not in moving)
            )
            if allowed and all(jnp.issubdtype(self.shapes[k].dtype, jnp.floating) for k in outputs):
                affine.update(outputs)
        return affine

    def run(self, known: dict[int, Any], wanted: list[int]) -> list[Any]:
        """The wanted values, computed from known ones, without duplicate or unnecessary computations."""
        needed, equations = set(wanted) - known.keys(), []
        for equation in reversed(self.equations):
            if needed.intersection(equation.outputs) and not known.keys() >= set(equation.outputs):
                equations.append(equation)
                needed.update(set(equation.inputs) - known.keys())
        values = self.constants | known
        for eqn, inputs, outputs in reversed(equations):
            values.update(zip(outputs, compat.bind(eqn, *(values[k] for k in inputs))))
            values.update(known)
        return [values[number] for number in wanted]
