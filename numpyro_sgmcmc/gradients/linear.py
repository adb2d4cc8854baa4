r"""
Finds the linear predictor of a model: an intermediate value :math:`\eta` of one or a few numbers per row, which is
affine in the latents, such that the rows' energies depend on the latents only through it,

.. math:: u_i(z) = \phi_i(\eta_i(z)), \qquad \eta_i(z) = A_i z + b_i.

The gradient of a row is then :math:`\phi_i'(\eta_i) A_i`, and only the slope :math:`\phi_i'` changes with z. The search
uses the trace of the energy of a single row. A value qualifies if it is affine by construction, and the energy no
longer depends on the latents if the value is fixed. Several rows are the same computation under ``vmap``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Potential, Sites
from numpyro_sgmcmc.utils.program import Program


def linear_predictor(
    potential: Potential, label: str
) -> tuple[Callable[[Sites, jax.Array], jax.Array], Callable[[jax.Array, jax.Array], jax.Array]]:
    """
    :param label: name of the estimator, for the error.
    :return: (z, row) -> predictor, and (predictor, row) -> energy of the row.
    :raises ValueError: if the model has no predictor with fewer numbers per row than there are coordinates.
    """
    (plate,) = potential.plates
    prototypes, treedef = jax.tree.flatten(dict(potential.prototype))

    def energy(leaves, row):
        return potential.per_row(treedef.unflatten(leaves), {plate: row[None]})[0]

    program = Program(jax.make_jaxpr(energy)(prototypes, jax.ShapeDtypeStruct((), jnp.int32)))
    *latents, of_row = program.inputs
    on_latents, on_row = program.dependents(latents), program.dependents([of_row])
    d = sum(leaf.size for leaf in prototypes)
    candidates = [
        number
        for number in sorted(program.affine(latents, on_latents) & on_row - set(latents))
        if program.shapes[number].size < max(2, d)
    ]
    cuts = [k for k in candidates if not program.dependents(latents, without=k).intersection(program.outputs)]
    if not cuts:
        raise ValueError(
            f"{label} needs a model whose rows depend on the latents only through a linear predictor, with fewer "
            "numbers per row than there are coordinates. No such value was found for the latents "
            f"{', '.join(map(repr, potential.prototype))}; an unknown scale or a product of latents prevents it. "
            "If the model has one, name it with predictor=; otherwise use a table of the form 'batch' or 'row'."
        )
    cut = min(cuts, key=lambda number: program.shapes[number].size)

    def predictor(z, row):
        return program.run({of_row: row} | dict(zip(latents, jax.tree.leaves(z))), [cut])[0]

    def energy_of(eta, row):
        return program.run({of_row: row, cut: eta}, program.outputs)[0]

    return predictor, energy_of
