"""The state of a new run, after all checks: of options and arguments, of the data, at last those that need a start."""

from collections.abc import Mapping
from functools import partial
import logging
from typing import Any

import jax
from jax import random
from jax.core import Tracer
import jax.numpy as jnp

from numpyro_sgmcmc.checks.before_start import check_before_start, warn_before_run, warn_of_local_moves
from numpyro_sgmcmc.checks.data_values import check_data, check_finite, known_values
from numpyro_sgmcmc.checks.single_rows import check_single_rows, energies_of_halves
from numpyro_sgmcmc.data.arrays import fingerprint
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.state import SGMCMCState, Stream, derive_key
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.compat import slow_threads
from numpyro_sgmcmc.utils.validation import check_energies

logger = logging.getLogger(__name__.partition(".")[0])


def new_state(
    kernel: Any,
    rng_key: jax.Array,
    num_warmup: int,
    init_params: Sites | None,
    model_args: tuple,
    model_kwargs: Mapping[str, Any] | None,
) -> SGMCMCState:
    """What :meth:`~numpyro_sgmcmc.SGMCMC.init` returns. ``kernel``: an :class:`~numpyro_sgmcmc.SGMCMC`."""
    arguments = model_args, model_kwargs
    potential = kernel.potential(*arguments)
    kernel.check_model(potential)
    chain = kernel.chain_for(potential)
    check_before_start(type(kernel).__name__, chain, potential, rng_key, num_warmup, init_params)
    values = known_values(*arguments)
    check_data(potential, values)
    warn_before_run(potential, chain.rows)  # before the search, which may take minutes if a step uses all rows
    on_potential = partial(kernel.compiled, model_args=model_args, model_kwargs=model_kwargs)
    for_run = kernel.replace(chain=kernel.chain.for_run(potential, rng_key, on_potential))
    search = for_run.chain.announced(potential)
    kernel.bar.begin(potential.plates, search)
    if search:
        logger.info(f"compiling, then {search}; the progress bar stands still until its end.")
    mark, mapped = fingerprint_of_data(*arguments), isinstance(rng_key, Tracer)

    def start(potential, rng_key, init_params):
        state, energies = for_run.chains_for(potential).start(rng_key, init_params, num_warmup, mark)
        return state, _first_chain(potential, state, energies, mapped)

    state, first = on_potential(start)(rng_key, init_params)
    if search:
        logger.info(f"a start is found; compiling the search and the steps.{slow_threads()}")
    if not mapped:
        z, key, energies, gradient, halves = first
        check_finite(on_potential, potential, z, key, values)
        check_energies(energies, gradient)
        check_single_rows(halves)
        kernel.check_start(on_potential, z, state)
        warn_of_local_moves(on_potential, potential, kernel.sampled_model, z, key)
    elif mark and init_params is None and GIBBS_SITES_KWARG not in potential.kwargs:
        # in a map over chains the start has no values; another start, made here, has
        with jax.ensure_compile_time_eval():
            energies, gradient, halves = on_potential(partial(_another_start, kernel.chain))(random.key(0))
            check_energies(energies, gradient)
            check_single_rows(halves)
    return state


def fingerprint_of_data(model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> int:
    """That of the data alone: the values of the other Gibbs blocks change at every sweep."""
    data = {name: value for name, value in (model_kwargs or {}).items() if name != GIBBS_SITES_KWARG}
    return fingerprint(model_args, data)


def _first_chain(potential: ModelPotential, state: SGMCMCState, energies: Any, mapped: bool) -> tuple:
    """
    For the checks of a start: a position and a key of the first chain, the energies, the gradient, and the energies of
    halves of minibatches.
    """
    z, key = state.z, state.rng_key
    if jnp.ndim(state.i):
        z, key = jax.tree.map(lambda x: x[0], (z, key))
    key = derive_key(key, Stream.PROBE)
    return z, key, energies, *(({}, {}) if mapped else _looked_at(potential, z, key))


def _looked_at(potential: ModelPotential, z: Sites, key: jax.Array) -> tuple[Sites, dict]:
    """The gradient, and the energies of halves of minibatches."""
    in_memory = not (potential.sources or potential.sharded)
    gradient = jax.grad(potential.estimate)(z, potential.some_rows(), key) if in_memory else {}
    return gradient, energies_of_halves(potential, z, key)


def _another_start(chain: Chain, potential: ModelPotential, rng_key: jax.Array) -> tuple[dict, Sites, dict]:
    z, energies = energies_of_a_start(chain, potential, rng_key)
    return energies, *_looked_at(potential, z, rng_key)


def energies_of_a_start(chain: Chain, potential: ModelPotential, rng_key: jax.Array) -> tuple[Sites, dict]:
    """A start that this key gives, and the energies of the sites there."""
    rows = potential.some_rows()
    z = chain.start(potential, rng_key, rows, None, descents=(potential, 0))
    return z, potential.by_site(z, rows, rng_key)
