"""
Checks of a kernel and of a start against the model, before a run: parts, settings, a start or a state that does not fit
it. Each error names the argument and a remedy. The checks at the end only warn.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import init_to_value

from numpyro_sgmcmc.data.argument_checks import without_value
from numpyro_sgmcmc.local.models import makes_moves, recorded_draw
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import independent_rows, is_contiguous
from numpyro_sgmcmc.tuning.coordinates import blocks_of
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.types import Adaptive, RowScheme, Sites
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.compat import is_mapped, warn
from numpyro_sgmcmc.utils.validation import check_like_z, check_sites, is_key

MOST_COORDINATES = 100_000  # the limit for choosing a step size: the moments of the warm-up take about 100 numbers each
FEW_MOVES = 0.01  # a smaller share of accepted local moves cannot be chance, or a row that is unlike the others
PROPOSALS = 300  # at least as many decide about it
FEW = 100_000  # numbers that a step may use besides its minibatch: they take about as long as the rest of a step
RATIO = 10  # rows of the plate over those of a minibatch, from which on all rows are many


def check_before_start(
    kernel: str, chain: Any, potential: ModelPotential, rng_key: jax.Array, num_warmup: int, init_params: Any
) -> None:
    """Raises a ValueError for parts or a start that do not fit the model, or a warm-up that is missing."""
    if isinstance(chain.dynamics, Adaptive) and num_warmup < 1:
        raise ValueError(
            f"num_warmup={num_warmup}: {kernel} estimates its preconditioner in the first half of the warm-up. Give "
            "MCMC a num_warmup."
        )
    inverse_mass = getattr(chain.dynamics, "inverse_mass_matrix", None)
    if isinstance(inverse_mass, Mapping):
        check_like_z("inverse_mass_matrix", inverse_mass, potential.prototype, scalars=True)
    skew = getattr(chain.dynamics, "skew", None)
    if skew is not None:
        skew.check(potential.prototype)
    batched = not is_key(rng_key)
    chain.gradient.check(potential, len(rng_key) if batched else 1)
    if GIBBS_SITES_KWARG not in potential.kwargs:
        _check_init_params(init_params, potential, batched)
        if getattr(chain.init_strategy, "func", None) is init_to_value:
            values = chain.init_strategy.keywords.get("values", {})
            _check_not_local("init_strategy=init_to_value", values, potential)


def warn_before_run(potential: ModelPotential, rows: RowScheme) -> None:
    """All warnings of the model and its rows that need no values."""
    _warn_of_sites(potential.structure)
    warn_of_costs(potential)
    _warn_of_data(potential)
    _warn_of_scales(potential)
    if potential.sources and not is_contiguous(rows):
        warn(
            f"{potential.sources[0]!r} is on disk, and rows={rows!r} reads its rows one by one, which is several times "
            "slower than in blocks. Put the rows into random order once and use rows=Reshuffled(contiguous=True)."
        )


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
    d = trees.size(prototype)
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


def _check_init_params(init_params: Any, potential: ModelPotential, batched: bool) -> None:
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


def _check_not_local(argument: str, values: Mapping[str, Any], potential: ModelPotential) -> None:
    """Raises a ValueError for values of local sites, which would not be used."""
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
    own_settings = np.ndim(state.settings.step_size) == 1
    own_checks = state.scores != () and np.ndim(state.scores.numbers) == 2
    if batched and (own_settings or own_checks):
        raise ValueError(
            "each of these chains has settings or checks of its own, but chains under chain_method='vectorized' share "
            "them. Resume with the chain_method of the run."
        )
    shapes = {name: jnp.shape(value)[1:] if batched else jnp.shape(value) for name, value in state.z.items()}
    expected = {name: site.shape for name, site in prototype.items()}
    if shapes != expected:
        raise ValueError(
            f"the state has sites with the unconstrained shapes {shapes}, but the model has {expected}. Resume with "
            "the model, the data and the number of chains of the run that the state comes from."
        )


def _warn_of_sites(structure: Structure) -> None:
    """Warns of sites that are frozen, or left out of the draws."""
    for name in structure.frozen[:1]:
        warn(
            f"param site {name!r} is frozen at its initial value: SG-MCMC updates latent sample "
            "sites only. Give it a prior with numpyro.sample to infer it."
        )
    for left_out, why in (
        (structure.left_out, "the rows of a minibatched plate but is outside it: its value would be of one minibatch"),
        (structure.with_missing, "missing values, which obs_mask= marks and which are not drawn"),
    ):
        if left_out:
            names = ", ".join(map(repr, left_out))
            warn(
                f"deterministic site {names} depends on {why}. It is not collected. For its values on all rows use "
                "Predictive(kernel.model, mcmc.get_samples())(rng_key, *args)."
            )


def warn_of_costs(potential: ModelPotential) -> None:
    """Warns of deterministic sites with a number for each row, and of data that are used before they are indexed."""
    for name, (plate, size) in potential.structure.of_all_rows.items():
        warn(
            f"deterministic site {name!r} has a number for each of the {size} rows of plate {plate!r}, but is outside "
            "of it, so every draw computes and keeps all. Move it into the plate, on data that are indexed by "
            "its rows, x[rows]. Then it is not collected; Predictive(kernel.model, mcmc.get_samples()) computes it."
        )
    for plate, (size, n) in potential.plates.items():
        uses = [use for use in potential.structure.whole if use.numbers > FEW and size in use.shape]
        if size < RATIO * n or not uses:
            continue
        largest = max(uses, key=lambda use: use.numbers)
        warn(
            f"the model computes with all of {largest.argument}, of shape {largest.shape}, in every step, and not only "
            f"with the {n} of {size} rows of a minibatch of plate {plate!r}. Index it by the rows first, inside the "
            "plate: x[rows] @ w, not (x @ w)[rows]. What depends on the data alone, such as their mean, is best "
            "computed before the run."
        )


def _warn_of_data(potential: ModelPotential) -> None:
    """Warns of data that were not passed to the model, and of many rows that it does not offer to minibatches."""
    structure = potential.structure
    names = without_value(potential.model, potential.args, potential.kwargs)
    observes = any(site.observed for site in structure.sites.values())
    if names and not observes:
        warn(
            f"the model has no observed site, and its argument {' and '.join(map(repr, names))} is None: the draws are "
            "those of the prior. Pass the data to mcmc.run."
        )
    elif not observes and any(getattr(x, "shape", ()) for x in jax.tree.leaves((potential.args, potential.kwargs))):
        warn(
            "the model has no observed site, although it has arrays as arguments: the draws are those of the prior. "
            "Observe the data: numpyro.sample(..., obs=y[rows])."
        )
    elif structure.why_all_rows:
        warn(
            "every step uses all rows, because no minibatch of them can be taken: "
            f"{structure.why_all_rows} If all rows are meant, give batch_size={{}}."
        )


def _warn_of_scales(potential: ModelPotential) -> None:
    """Warns of sites that the model scales by N / n, although NumPyro's plate does so already."""
    for name, site in potential.structure.sites.items():
        by_plates = math.prod(
            plate.size / plate.batch_size for key, plate in potential.plates.items() if key in site.plates
        )
        if by_plates < 1.01 or site.scale is None:  # one factor and two cannot be told apart
            continue
        if math.isclose(site.scale, by_plates**2, rel_tol=1e-3):
            warn(
                f"the model scales site {name!r} by {by_plates:.6g}, which is N / n of its minibatched plate. The "
                f"plate does so already, so each row counts {by_plates:.6g} times. Leave handlers.scale out."
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
    warn(
        f"{type(model.local).__name__}(step_size={model.local.step_size}) rejects nearly all of its moves of the local "
        f"site {names} at the start: at most {FEW_MOVES:.0%} are accepted, so the posterior of the other sites is "
        "wrong. Use a smaller step_size for the local moves, about the width of a local site given its row. If the "
        "chains start far away, give init_params=. summary(mcmc, *model_args) shows the acceptance at the draws."
    )
