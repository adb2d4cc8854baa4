"""Starts for chains of a network: several optimisations in parallel from minibatches, or weights already trained."""

from collections.abc import Iterator, Mapping
from functools import partial
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.gradients.full_pass import chunk_length, in_chunks
from numpyro_sgmcmc.potential.compiled import compiled
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import Reshuffled
from numpyro_sgmcmc.tuning.mode import checked_optimizer, initialised, model_arguments, segments, start_at
from numpyro_sgmcmc.tuning.start import minimise
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.validation import check_energies, check_key, checked_batch_size, checked_count, checked_model

FIRST, LAST = 1e-2, 1e-5  # Adam's step


def warm_start(
    model: Any,
    rng_key: jax.Array,
    *args: Any,
    members: int = 8,
    batch_size: Any = None,
    num_steps: int = 10_000,
    optimizer: Any = None,
    start: Mapping[str, Any] | None = None,
    held_out: float = 0.0,
    patience: int = 10,
    progress_bar: bool = True,
    model_args: tuple | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Sites:
    r"""
    Optimised starting points for several chains: each member minimises U from its own start, with its own minibatches.

    The posterior of a network has many modes, so searching for *the* mode, as :func:`~numpyro_sgmcmc.find_mode` does,
    makes no sense. Instead, each chain starts at the end of one training run, and together they are an ensemble of
    short chains.

    To sample only some of the weights, such as the last layer or low-rank adapters, give them a prior in the model and
    pass the trained values of the others as an argument.

    :param model: NumPyro model.
    :param rng_key: random key of the starts and the minibatches.
    :param args: arguments of the model.
    :param int members: M, the number of chains.
    :param batch_size: as for the kernels.
    :param int num_steps: minibatches for each member; 0: return the starts themselves, for example ``start``.
    :param optimizer: from optax or :mod:`numpyro.optim`; None: Adam with a step size that decreases from 1e-2 to 1e-5.
    :param dict start: initial values: values of sites, in their own (constrained) space, and weights of whole modules
        by the name given to ``random_flax_module`` or ``random_nnx_module``, nested as in flax:
        ``{"net": variables["params"]}`` of linen, ``{"net": nnx.state(net, nnx.Param)}``. Each value is the same for
        all members, or has members along its first axis. Other sites start as in :class:`~numpyro.infer.NUTS`.
    :param float held_out: share of the rows that no member is trained on. The mean energy of these rows is evaluated
        fifty times, and each member returns its best weights. 0: the last weights.
    :param int patience: number of evaluations without an improvement of any member after which the training stops.
    :param model_args: arguments of the model, instead of ``args``.
    :param model_kwargs: keyword arguments of the model; those named like one of this function can only be given here.
    :param kwargs: more keyword arguments of the model.
    :return: dict of unconstrained values, shape ``(members, ...)``, for ``init_params`` of ``members`` chains; without
        the first axis for a single one.
    :raises TypeError: for a model that is not callable, an ``rng_key`` that is not a key, or an ``optimizer`` that is
        not an optimizer.
    :raises ValueError: for a name or a shape in ``start`` that does not fit the model; ``held_out`` without exactly one
        minibatched plate; an energy that is not finite at the start.

    **References:**

    1. *Microcanonical Langevin Ensembles: Advancing the Sampling of Bayesian Neural Networks*, E. Sommer, J. Robnik,
       G. Nozadze, U. Seljak, D. Rügamer (2025)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, warm_start
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> options = {"batch_size": 100, "progress_bar": False}
        >>> starts = warm_start(model, random.key(1), x, members=4, **options)
        >>> starts["mu"].shape, bool(abs(starts["mu"] - x.mean()).max() < 0.05)
        ((4,), True)
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=100)
        >>> chains = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
        >>> mcmc = MCMC(kernel, num_warmup=0, num_samples=100, **chains)
        >>> mcmc.run(random.key(2), x, init_params=starts)
    """
    checked_model(model)
    check_key(rng_key, "warm_start(model, jax.random.key(0), *args)")
    members, patience = checked_count("members", members), checked_count("patience", patience)
    num_steps = checked_count("num_steps", num_steps, least=0)
    batch_size = checked_batch_size(batch_size)
    args, kwargs = model_arguments(args, model_args, kwargs, model_kwargs)
    optimizer = checked_optimizer(optimizer, FIRST, LAST, num_steps)
    potential = ModelPotential.from_model(model, args, kwargs, batch_size)  # checks the model before it is compiled
    given = _given(start, potential, members)
    share = _checked_held_out(held_out, potential)
    on_model = lambda fn: compiled(fn, model, args, kwargs, batch_size)  # noqa: E731
    key_start, key_split, *keys = random.split(rng_key, 4)
    keys = [random.split(key, members) for key in keys]

    starts = lambda potential, *of_members: jax.vmap(partial(start_at, potential))(*of_members)  # noqa: E731
    z, energies = on_model(starts)(random.split(key_start, members), given)
    check_energies(energies)
    trained, held = _split(key_split, share, potential)

    def advance(potential, state, steps, trained, keys):
        plates = {name: p._replace(size=len(trained.get(name, range(p.size)))) for name, p in potential.plates.items()}

        def loss(z, rows, key):
            rows = {name: trained[name][r] if name in trained else r for name, r in rows.items()}
            return potential.estimate(z, rows, key)

        train = lambda state, *keys: minimise(loss, optimizer, state, steps, Reshuffled(), plates, *keys)  # noqa: E731
        state = jax.vmap(train)(state, *keys)
        z = jax.tree.map(lambda new, old: new.astype(old.dtype), jax.vmap(optimizer.get_params)(state), z_like)
        return state, z

    z_like, state = z, initialised(jax.vmap(optimizer.init), z)
    descent, look = on_model(advance), on_model(_held_out_energy)
    best, lowest, waited = z, look(z, held) if held else None, 0
    for steps in segments(0, num_steps, f"{members} starts" if progress_bar else None):
        state, z = jax.block_until_ready(descent(state, steps, trained, keys))
        if lowest is None:
            best = z
            continue
        energy = look(z, held)
        better = energy < lowest
        choose = lambda new, old: jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)  # noqa: E731, B023
        best, lowest = jax.tree.map(choose, z, best), jnp.minimum(energy, lowest)
        waited = 0 if bool(better.any()) else waited + 1
        if waited >= patience:
            break
    return best if members > 1 else jax.tree.map(lambda x: x[0], best)


def _held_out_energy(potential: ModelPotential, z: Sites, held: dict[str, jax.Array]) -> jax.Array:
    """Mean energy of the rows, shape ``(members,)``."""
    ((name, rows),) = held.items()
    members = len(jax.tree.leaves(z)[0])
    energies = lambda part: jax.vmap(lambda z: potential.per_row(z, part).sum())(z)  # noqa: E731
    length = chunk_length(energies, {name: potential.plates[name]})

    def add(first, n, total):
        return total + energies({name: lax.dynamic_slice_in_dim(rows, first, n)})

    return in_chunks(add, len(rows), min(length, len(rows)), jnp.zeros(members)) / len(rows)


def _split(rng_key: jax.Array, share: float, potential: ModelPotential) -> tuple[dict, dict]:
    """Rows to train on, and rows that are held out; both empty if none are held out."""
    if not share:
        return {}, {}
    ((name, plate),) = potential.plates.items()
    order = Reshuffled()(rng_key, jnp.zeros((), jnp.uint32), plate.size, plate.size)  # an epoch in one batch
    count = max(1, round(share * plate.size))
    return {name: order[count:]}, {name: order[:count]}


def _checked_held_out(share: Any, potential: ModelPotential) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise ValueError(f"held_out={share!r} must be a share of the rows, 0 <= held_out < 1.")
    if share:
        if len(potential.plates) != 1:
            raise ValueError(
                f"held_out={share} needs exactly one minibatched plate, not {len(potential.plates)}: give a batch_size "
                "for one plate, or leave out held_out=."
            )
        ((name, plate),) = potential.plates.items()
        if plate.size - max(1, round(share * plate.size)) < plate.batch_size:
            raise ValueError(
                f"held_out={share} leaves fewer rows than the {plate.batch_size} of a minibatch of plate {name!r}. "
                "Hold out less, or use a smaller batch_size."
            )
    return float(share)


# -- given starts ----------------------------------------------------------------------------------------------------


def _given(start: Any, potential: ModelPotential, members: int) -> dict[str, jax.Array]:
    """Values by site, with members along the first axis. Raises a ValueError for a name or shape that does not fit."""
    if start is None:
        return {}
    if not isinstance(start, Mapping):
        raise ValueError(f"start= must be a dict by site or by module, got {type(start)}.")
    prototype = jax.eval_shape(potential.latents, potential.prototype)
    given = {}
    for name, value in _flat(start):
        if name not in prototype:
            raise ValueError(
                f"start= names {name!r}, but the latent sites of the model are {', '.join(map(repr, prototype))}. Give "
                "the weights of a module under its name: start={'net': params}."
            )
        shape = prototype[name].shape
        if np.shape(value) == shape:
            value = np.broadcast_to(np.asarray(value), (members, *shape))
        elif np.shape(value) != (members, *shape):
            raise ValueError(
                f"start= has shape {np.shape(value)} at {name!r}; it must be {shape}, or {(members, *shape)} with "
                "members along the first axis."
            )
        if not np.isfinite(value).all():
            raise ValueError(f"start= has a value at {name!r} that is not finite. Give finite values.")
        given[name] = jnp.asarray(value)
    return given


def _flat(tree: Mapping[str, Any], prefix: str = "", joint: str = "/") -> Iterator[tuple[str, Any]]:
    """Pairs of site and value. NumPyro names a weight by its module, ``/``, and its path joined by dots."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, name + joint, ".")
        else:
            leaves = jax.tree.leaves(value)  # a variable of flax.nnx has one
            yield name, leaves[0] if len(leaves) == 1 and math.prod(np.shape(leaves[0])) else value
