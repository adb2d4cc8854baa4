r"""
The log-likelihood :math:`\log p(y_i \mid z_l)` of each draw and row, for ArviZ: in chunks of rows, or of some rows.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.draws import latent_draws
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.gradients.full_pass import chunk_length
from numpyro_sgmcmc.types import Plate


def log_likelihood_of(run: Run, count: int | None, seed: int) -> Any:
    """The log-likelihood of all rows of the largest minibatched plate, or of ``count`` of them, in chunks of rows."""
    draws = {name: jnp.asarray(x.reshape(-1, *x.shape[2:])) for name, x in latent_draws(run.mcmc).items()}
    chains = run.mcmc.num_chains
    about: dict[str, Any] = {}
    jacobians = {f"_{name}_log_det" for name in draws}  # factors of the transforms, which are not data

    def of_draw(potential, values, rows):
        trace = potential.trace(potential.unconstrain(values), rows, None)
        densities = {}
        for name, site in trace.items():
            if site["type"] == "sample" and site["is_observed"] and name not in jacobians:
                value = site["fn"].log_prob(site["value"])
                frames = {frame.dim: frame.name for frame in site["cond_indep_stack"]}
                about[name] = [frames.get(k - value.ndim, f"{name}_dim_{k}") for k in range(value.ndim)]
                densities[name] = value
        return densities

    def chunk(potential, values, rows):
        every = {name: jnp.arange(plate.size, dtype=jnp.int32) for name, plate in potential.plates.items()}
        return lax.map(lambda values: of_draw(potential, values, every | rows), values, batch_size=8)

    def sizes(potential):
        plates = potential.plates
        if potential.draws_local_sites:
            raise ValueError(
                "log_likelihood= needs the density of a row given the global sites, which is not available if the "
                "kernel draws the local sites of a row (local=). Leave log_likelihood out."
            )
        about["plates"] = plates
        if plates:
            name = _largest(plates)
            z = {name: x[0] for name, x in draws.items()}
            about["length"] = chunk_length(
                lambda rows: of_draw(potential, z, potential.some_rows() | rows), {name: plates[name]}
            )
        return jnp.zeros(())

    run.compiled(sizes)()
    plates = about["plates"]
    evaluate = run.compiled(chunk)
    if not plates:
        whole = evaluate(draws, {})
        return _as_dataset([whole], about, chains, "", np.zeros(0))
    name = _largest(plates)
    size = plates[name].size
    numbers = np.arange(size)
    if count is not None:
        if count > size:
            raise ValueError(f"log_likelihood={count}: plate {name!r} has {size} rows. Use log_likelihood=True.")
        numbers = np.sort(np.random.default_rng(seed).choice(size, count, replace=False))
    length = min(about["length"], len(numbers))
    parts = []
    for first in range(0, len(numbers), length):
        rows = numbers[first : first + length]
        padded = np.resize(rows, length)  # the same length for all chunks, so that one program is compiled
        parts.append(jax.tree.map(np.asarray, evaluate(draws, {name: jnp.asarray(padded, jnp.int32)})))
        axes = {site: 1 + about[site].index(name) for site in parts[-1] if name in about[site]}
        parts[-1] = {
            site: np.take(x, np.arange(len(rows)), axes[site]) if site in axes else x for site, x in parts[-1].items()
        }
    return _as_dataset(parts, about, chains, name, numbers)


def _largest(plates: Mapping[str, Plate]) -> str:
    return max(plates, key=lambda name: plates[name].size)


def _as_dataset(parts: list, about: Mapping[str, Any], chains: int, plate: str, numbers: np.ndarray) -> Any:
    if not parts[0]:
        raise ValueError("log_likelihood= needs an observed site, but the model has none. Leave log_likelihood out.")
    variables = {}
    for site in parts[0]:
        dims = about[site]
        if plate in dims:
            value = np.concatenate([np.asarray(part[site]) for part in parts], 1 + dims.index(plate))
        else:
            value = np.asarray(parts[0][site])
        variables[site] = (("chain", "draw", *dims), value.reshape(chains, -1, *value.shape[1:]))
    draws = next(iter(variables.values()))[1].shape[1]
    coords = {"chain": np.arange(chains), "draw": np.arange(draws)} | ({plate: numbers} if plate else {})
    import xarray as xr  # slow to import

    return xr.Dataset(variables, coords=coords)
