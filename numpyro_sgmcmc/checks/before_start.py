"""
Checks of a kernel and of a start against the model, before a run: parts, settings, a start or a state that does not fit
it. Each error names the argument and a remedy. The checks at the end only warn.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import init_to_value

from numpyro_sgmcmc.checks.costs import warn_of_costs
from numpyro_sgmcmc.local.models import makes_moves, recorded_draw
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import independent_rows, is_contiguous
from numpyro_sgmcmc.tuning.coordinates import blocks_of
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import Adaptive, Dynamics, GradientEstimator, RowScheme, Sites
from numpyro_sgmcmc.utils.compat import is_mapped, stack_level
from numpyro_sgmcmc.utils.validation import check_like_z, check_sites, is_key

MOST_COORDINATES = 100_000  # the limit for choosing a step size: the moments of the warm-up take about 100 numbers each
FEW_MOVES = 0.01  # a smaller share of accepted local moves cannot be chance, or a row that is unlike the others
PROPOSALS = 300  # at least as many decide about it


def check_before_start(
    kernel: str, chain: Any, potential: ModelPotential, rng_key: jax.Array, num_warmup: int, init_params: Any
) -> None:
    """Raises a ValueError for parts or a start that do not fit the model, or a warm-up that is missing."""
    adapts = isinstance(chain.dynamics, Adaptive)
    if adapts and num_warmup < 1:
        raise ValueError(
            f"num_warmup={num_warmup}: {kernel} estimates its preconditioner in the first half of the warm-up. Give "
            "MCMC a num_warmup."
        )
    batched = not is_key(rng_key)
    check_fits(chain.dynamics, chain.gradient, potential, len(rng_key) if batched else 1)
    if GIBBS_SITES_KWARG not in potential.kwargs:
        check_init_params(init_params, potential, batched)
        check_init_strategy(chain.init_strategy, potential)


def warn_before_run(potential: ModelPotential, rows: RowScheme) -> None:
    """All warnings of the model and its rows that need no values."""
    warn_of_sites(potential.structure)
    warn_of_costs(potential)
    warn_of_scales(potential)
    warn_of_scattered_rows(potential, rows)


def check_not_mapped(rng_key: Any) -> None:
    """Raises a ValueError for chains mapped by ``jax.vmap``, which would repeat the search in every transition."""
    if is_mapped(rng_key):
        raise ValueError(
            "step_size= is missing, and with jax.vmap over chains the search for it would be repeated in every "
            'transition. Use chain_method="vectorized", "sequential" or "parallel", or give step_size=.'
        )


def check_settings_fit(known: Settings | None, dense_mass: Any, prototype: Mapping[str, Any]) -> None:
    """Raises a ValueError for settings of another model, unknown sites in blocks, or too many coordinates."""
    blocks_of(prototype, dense_mass)  # checks the names
    d = sum(site.size for site in prototype.values())
    theirs = d if known is None else known.coordinates.center.size
    if theirs != d:
        raise ValueError(
            f"settings= belong to a model with {theirs} unconstrained coordinates; this one has {d}. Use settings of "
            "the same model, or leave settings= out."
        )
    if d > MOST_COORDINATES:
        raise ValueError(
            f"the model has {d} unconstrained coordinates, but the warm-up can choose a step size only for up to "
            f"{MOST_COORDINATES}. Give step_size=."
        )


def check_fits(dynamics: Dynamics, gradient: GradientEstimator, potential: ModelPotential, num_chains: int) -> None:
    """Raises a ValueError for parts of a kernel that do not fit the model."""
    prototype = potential.prototype
    inverse_mass = getattr(dynamics, "inverse_mass_matrix", None)
    if isinstance(inverse_mass, Mapping):
        check_like_z("inverse_mass_matrix", inverse_mass, prototype, scalars=True)
    skew = getattr(dynamics, "skew", None)
    if skew is not None:
        skew.check(prototype)
    gradient.check(potential, num_chains)


def check_init_params(init_params: Any, potential: ModelPotential, batched: bool) -> None:
    """Raises a ValueError for anything but unconstrained values by site, with an axis of chains if ``batched``."""
    if init_params is None:
        return
    prototype = potential.prototype
    if isinstance(init_params, Mapping):
        _check_not_local("init_params", init_params, potential)
        for name, value in init_params.items():
            shape = np.shape(value)[1:] if batched else np.shape(value)
            # NumPyro splits the first axis between several chains; here that axis is one of the site
            if name in prototype and prototype[name].shape and shape == prototype[name].shape[1:]:
                raise ValueError(
                    f"init_params[{name!r}] has shape {shape} for each chain, but the unconstrained site has "
                    f"{prototype[name].shape}. With several chains NumPyro needs a value for each of them: "
                    "init_params=jax.tree.map(lambda x: jnp.stack([x] * num_chains), values)."
                )
    check_sites("init_params", init_params, prototype, batched=batched)


def check_init_strategy(init_strategy: Any, potential: ModelPotential) -> None:
    """Raises a ValueError for an ``init_to_value`` that names a local site, whose value would not be used."""
    if getattr(init_strategy, "func", None) is init_to_value:
        _check_not_local("init_strategy=init_to_value", init_strategy.keywords.get("values", {}), potential)


def _check_not_local(argument: str, values: Mapping[str, Any], potential: ModelPotential) -> None:
    unknown = values.keys() - potential.prototype.keys()
    if unknown and potential.draws_local_sites:
        raise ValueError(
            f"{argument} names {', '.join(map(repr, sorted(unknown)))}, but the chains move the sites "
            f"{', '.join(map(repr, potential.prototype))} only. Local sites are drawn for each minibatch: leave them "
            "out. Their values start where start= of LocalGibbs, LocalHMC or LocalLangevin says."
        )


def check_resumed(state: Any, prototype: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Raises a ValueError for a state or a key of another model, or of chains under another chain method."""
    batched = jnp.ndim(state.i) == 1
    if batched == is_key(state.rng_key):
        raise ValueError(
            f"the state holds {'several chains' if batched else 'one chain'}, but its rng_key has shape "
            f"{state.rng_key.shape}: resume with one key for each chain, mcmc.last_state.rng_key for one."
        )
    if batched and np.ndim(state.settings.step_size) == 1:
        raise ValueError(
            "each of these chains has chosen its own settings, but chains under chain_method='vectorized' share them. "
            "Resume with the chain_method of the run."
        )
    shapes = {name: jnp.shape(value)[1:] if batched else jnp.shape(value) for name, value in state.z.items()}
    expected = {name: site.shape for name, site in prototype.items()}
    if shapes != expected:
        raise ValueError(
            f"the state has sites with the unconstrained shapes {shapes}, but the model has {expected}. Resume with "
            "the model, the data and the number of chains of the run that the state comes from."
        )


def warn_of_sites(structure: Structure) -> None:
    """Warns of sites that are frozen, or left out of the draws."""
    for name in structure.frozen[:1]:
        warnings.warn(
            f"param site {name!r} is frozen at its initial value: SG-MCMC updates latent sample "
            "sites only. Give it a prior with numpyro.sample to infer it.",
            stacklevel=stack_level(),
        )
    for left_out, why in (
        (structure.left_out, "the rows of a minibatched plate but is outside it: its value would be of one minibatch"),
        (structure.with_missing, "missing values, which obs_mask= marks and which are not drawn"),
    ):
        if left_out:
            names = ", ".join(map(repr, left_out))
            warnings.warn(
                f"deterministic site {names} depends on {why}. It is not collected. For its values on all rows use "
                "Predictive(kernel.model, mcmc.get_samples())(rng_key, *args).",
                stacklevel=stack_level(),
            )


def warn_of_scales(potential: ModelPotential) -> None:
    """Warns of sites that the model scales by N / n, although NumPyro's plate does so already."""
    for name, site in potential.structure.sites.items():
        by_plates = math.prod(
            plate.size / plate.batch_size for key, plate in potential.plates.items() if key in site.plates
        )
        if by_plates < 1.01 or site.scale is None:  # one factor and two cannot be told apart
            continue
        if math.isclose(site.scale, by_plates**2, rel_tol=1e-3):
            warnings.warn(
                f"the model scales site {name!r} by {by_plates:.6g}, which is N / n of its minibatched plate. The "
                f"plate does so already, so each row counts {by_plates:.6g} times. Leave handlers.scale out.",
                stacklevel=stack_level(),
            )


def warn_of_scattered_rows(potential: ModelPotential, rows: RowScheme) -> None:
    """Warns of rows on disk that are read one by one."""
    if potential.sources and not is_contiguous(rows):
        warnings.warn(
            f"{potential.sources[0]!r} is on disk, and rows={rows!r} reads its rows one by one, which is several times "
            "slower than in blocks. Put the rows into random order once and use rows=Reshuffled(contiguous=True).",
            stacklevel=stack_level(),
        )


def warn_of_local_moves(on_potential: Callable, potential: ModelPotential, model: Any, z: Sites, rng_key: Any) -> None:
    """
    Warns if nearly all moves of local sites are rejected at the start. The start may be far from the posterior, so this
    is for step sizes that are wrong by far; ``summary`` has the acceptance at the draws.

    :param on_potential: a function of a potential -> that function, compiled on the model and its arguments.
    """
    if not makes_moves(model):
        return
    batch = math.prod(plate.batch_size for plate in potential.plates.values())
    sites: tuple[str, ...] = ()

    def share(potential, z, rng_key):
        key_rows, key_draws = random.split(rng_key)
        rows = independent_rows(key_rows, potential.plates)

        def accepted(key):
            nonlocal sites
            record = recorded_draw(potential, z, rows, key)
            sites = tuple(record.values)
            return record.accepted

        return lax.map(accepted, random.split(key_draws, -(-PROPOSALS // batch))).mean()

    if float(on_potential(share)(z, rng_key)) > FEW_MOVES:
        return
    names = " and ".join(map(repr, sites))
    warnings.warn(
        f"{type(model.local).__name__}(step_size={model.local.step_size}) rejects nearly all of its moves of the local "
        f"site {names} at the start: at most {FEW_MOVES:.0%} are accepted, so the posterior of the other sites is "
        "wrong. Use a smaller step_size for the local moves, about the width of a local site given its row. If the "
        "chains start far away, give init_params=. summary(mcmc, *model_args) shows the acceptance at the draws.",
        stacklevel=stack_level(),
    )
