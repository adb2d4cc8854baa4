r"""
The log-likelihood :math:`\log p(y_i \mid z_l)` of each draw and row, for ArviZ: in chunks of rows, or of some rows.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.draws import latent_draws
from numpyro_sgmcmc.diagnostics.predicted_sites import joined_chunks, row_chunks
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.gradients.full_pass import chunk_length


def log_likelihood_of(run: Run, count: int | None, seed: int) -> Any:
    """The log-likelihood of all rows of the largest minibatched plate, or of ``count`` of them, in chunks of rows."""
    draws = {name: jnp.asarray(x.reshape(-1, *x.shape[2:])) for name, x in latent_draws(run.mcmc).items()}
    plates = run.potential.plates
    plate = max(plates, key=lambda name: plates[name].size, default="")
    numbers = np.arange(plates[plate].size if plates else 0)
    if run.potential.draws_local_sites:
        raise ValueError(
            "log_likelihood= needs the density of a row given the global sites, which is not available if the "
            "kernel draws the local sites of a row (local=). Leave log_likelihood out."
        )
    if plates and count is not None:
        if count > len(numbers):
            raise ValueError(
                f"log_likelihood={count}: plate {plate!r} has {len(numbers)} rows. Use log_likelihood=True."
            )
        numbers = np.sort(np.random.default_rng(seed).choice(len(numbers), count, replace=False))
    dims: dict[str, list[str]] = {}  # of each observed site
    jacobians = {f"_{name}_log_det" for name in draws}  # factors of the transforms, which are not data

    def of_draw(potential, values, rows):
        trace = potential.trace(potential.unconstrain(values), rows, None)
        densities = {}
        for name, site in trace.items():
            if site["type"] == "sample" and site["is_observed"] and name not in jacobians:
                value = site["fn"].log_prob(site["value"])
                frames = {frame.dim: frame.name for frame in site["cond_indep_stack"]}
                dims[name] = [frames.get(k - value.ndim, f"{name}_dim_{k}") for k in range(value.ndim)]
                densities[name] = value
        return densities

    def of_draws(potential, draws, rows):
        every = {name: jnp.arange(plate.size, dtype=jnp.int32) for name, plate in potential.plates.items()}
        return lax.map(lambda values: of_draw(potential, values, every | rows), draws, batch_size=8)

    def length_of_chunk(potential):
        draw = {name: x[0] for name, x in draws.items()}
        at_rows = lambda rows: of_draw(potential, draw, potential.some_rows() | rows)  # noqa: E731
        return chunk_length(at_rows, {plate: plates[plate]})

    at_rows = [{}]
    if plates:
        chunks = row_chunks(numbers, int(run.compiled(length_of_chunk)()))
        at_rows = [{plate: jnp.asarray(chunk, jnp.int32)} for chunk in chunks]
    evaluate = run.compiled(of_draws)
    parts = [jax.tree.map(np.asarray, evaluate(draws, rows)) for rows in at_rows]
    values = joined_chunks(
        parts, {site: 1 + own.index(plate) for site, own in dims.items() if plate in own}, len(numbers)
    )
    if not values:
        raise ValueError("log_likelihood= needs an observed site, but the model has none. Leave log_likelihood out.")
    chains, kept = run.mcmc.num_chains, run.draws_of_a_chain
    variables = {
        site: (("chain", "draw", *dims[site]), x.reshape(chains, kept, *x.shape[1:])) for site, x in values.items()
    }
    coords = {"chain": np.arange(chains), "draw": np.arange(kept)} | ({plate: numbers} if plates else {})
    import xarray as xr  # slow to import

    return xr.Dataset(variables, coords=coords)
