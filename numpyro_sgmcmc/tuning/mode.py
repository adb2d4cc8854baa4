"""Finds a mode of the posterior from minibatches, as a centre of control variates or a start for chains."""

from collections.abc import Callable, Iterator, Mapping
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from numpyro.optim import optax_to_numpyro
from tqdm.auto import trange

from numpyro_sgmcmc.gradients.full_pass import full_gradient, over_all_rows
from numpyro_sgmcmc.local.models import keeps_values, with_local
from numpyro_sgmcmc.potential.compiled import compiled
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import Reshuffled, next_rows
from numpyro_sgmcmc.tuning.start import falling_adam, minimise, with_given
from numpyro_sgmcmc.types import Potential, RowsState, Sites
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.compat import warn
from numpyro_sgmcmc.utils.curvature import gradient_and_product
from numpyro_sgmcmc.utils.validation import check_energies, check_key, checked_batch_size, checked_count, checked_model

FIRST, LAST = 0.1, 1e-6  # Adam's step size, in units of a coordinate, which are 1 at first
ROUNDS = 8  # maximal number of rounds
STRAIGHT = 0.25  # share of the maximal distance of a round: a coordinate that moves farther has too small a unit
GROWTH = 10.0  # factor by which such a unit grows
SEGMENTS = 50  # segments of a round, for the progress bar
PRODUCTS = 8  # products with the Hessian in the check


def find_mode(
    model: Any,
    rng_key: jax.Array,
    *args: Any,
    batch_size: Any = None,
    num_steps: int = 10_000,
    optimizer: Any = None,
    progress_bar: bool = True,
    local: Any = None,
    model_args: tuple | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Sites:
    r"""
    A minimum of U in unconstrained space, found by stochastic gradient descent.

    The descent takes up to eight rounds of ``num_steps`` steps, until the Newton step :math:`H^{-1}\nabla U` is at most
    one posterior standard deviation long (root mean square over coordinates). Its length is computed from a gradient
    over all rows and a few products with the Hessian H. If a coordinate moves far in one round, for example because the
    data are not standardised, it takes ten times larger steps in the next.

    :param model: NumPyro model.
    :param rng_key: random key of the start and the minibatches.
    :param args: arguments of the model.
    :param batch_size: as for the kernels.
    :param int num_steps: minibatches per round.
    :param optimizer: from :mod:`numpyro.optim` or optax, for one round; None: Adam with a step size that decreases
        geometrically from 0.1 to 1e-6 in each round.
    :param bool progress_bar: whether to show a progress bar for each round.
    :param local: as for the kernels.
    :param model_args: arguments of the model, instead of ``args``.
    :param model_kwargs: keyword arguments of the model; those named like one of this function can only be given here.
    :param kwargs: more keyword arguments of the model.
    :return: dict of unconstrained values, for :class:`~numpyro_sgmcmc.ControlVariate` and ``init_params``. With several
        chains NumPyro needs a value for each: ``init_params=jax.tree.map(lambda x: jnp.stack([x] * 4), mode)``.
    :raises TypeError: for a model that is not callable, an ``rng_key`` that is not a key, an ``optimizer`` that is not
        an optimizer, or an argument of the model given twice.
    :raises ValueError: for a model that cannot be minibatched with this ``batch_size``; an energy that is not finite at
        the start.
    :warns UserWarning: if the last round ended further than one standard deviation from a minimum, or not near one.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro_sgmcmc import find_mode
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> mode = find_mode(model, random.key(1), x, batch_size=100, num_steps=1000, progress_bar=False)
        >>> bool(abs(mode["mu"] - x.mean()) < 0.01)
        True
    """
    checked_model(model)
    check_key(rng_key, "find_mode(model, jax.random.key(0), *args)")
    num_steps = checked_count("num_steps", num_steps)
    batch_size = checked_batch_size(batch_size)
    args, kwargs = model_arguments(args, model_args, kwargs, model_kwargs)
    rounds = ROUNDS if optimizer is None else 1
    optimizer = checked_optimizer(optimizer, FIRST, LAST, num_steps)
    key_start, key_check, key_rows, key_model = random.split(rng_key, 4)

    # whatever differs between rounds and segments is an argument, so that all use the same compiled program
    def advance(potential: Potential, state: Any, steps: Any, units: Sites, key_rows: Any, key_model: Any) -> Any:
        loss = lambda u, rows, key: potential.estimate(jax.tree.map(jnp.multiply, u, units), rows, key)  # noqa: E731
        return minimise(loss, optimizer, state, steps, Reshuffled(), potential.plates, key_rows, key_model)

    model = with_local(model, local)
    if keeps_values(model):
        raise ValueError(
            'local= has start="previous", but find_mode keeps no values from visit to visit. Use start=None or a '
            "function."
        )
    ModelPotential.from_model(model, args, kwargs, batch_size)  # checks the model before anything is compiled
    start, descent, check = (compiled(fn, model, args, kwargs, batch_size) for fn in (start_at, advance, _distance))
    z, energies = start(key_start)
    check_energies(energies)
    units = jax.tree.map(jnp.ones_like, z)
    for k in range(rounds):
        begin, state = z, initialised(optimizer.init, jax.tree.map(jnp.divide, z, units))
        label = None if not progress_bar else f"mode, round {k + 1}" if k else "mode"
        for steps in segments(k * num_steps, num_steps, label):
            state = jax.block_until_ready(descent(state, steps, units, key_rows, key_model))
        z = jax.tree.map(jnp.multiply, optimizer.get_params(state), units)
        distance = float(check(z, key_check))
        if distance <= 1:
            return z
        units = _grown(units, begin, z, num_steps)
    _warn(distance)
    return z


def model_arguments(
    args: tuple, model_args: tuple | None, kwargs: Mapping[str, Any], model_kwargs: Mapping[str, Any] | None
) -> tuple[tuple, dict[str, Any]]:
    """Raises a TypeError if an argument is given in both ways."""
    if args and model_args is not None:
        raise TypeError("give the arguments of the model one by one or as model_args=(...), not both.")
    twice = kwargs.keys() & (model_kwargs or {})
    if twice:
        raise TypeError(
            f"{', '.join(sorted(map(repr, twice)))} given both as a keyword and in model_kwargs. Give it once."
        )
    return tuple(model_args or args), {**kwargs, **(model_kwargs or {})}


def checked_optimizer(optimizer: Any, first: float, last: float, num_steps: int) -> Any:
    """An optimizer as those of NumPyro. None: Adam, whose step size falls."""
    if optimizer is None:
        return falling_adam(first, last, max(num_steps, 1))
    if isinstance(optimizer, type) or not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"optimizer={optimizer!r} has no `init` and `update`. Give an optimizer of optax, such as optax.adam(1e-3)."
        )
    return optimizer if hasattr(optimizer, "get_params") else optax_to_numpyro(optimizer)


def start_at(potential: ModelPotential, rng_key: jax.Array, given: Sites | None = None) -> tuple[Sites, Sites]:
    """A start with the ``given`` values of some sites, and the energy of each site there."""
    key_z, key_rows, key_model = random.split(rng_key, 3)
    rows, _ = next_rows(Reshuffled(), RowsState(key_rows, jnp.zeros((), jnp.uint32)), potential.plates)
    z = potential.initial(key_z, rows, None)
    if given:
        z = with_given(z, potential.unconstrain(given))
    return z, potential.by_site(z, rows, key_model)


def initialised(init: Callable[[Sites], Any], z: Sites) -> Any:
    """The state of an optimizer."""
    # its counter has a weak type until the first update, which would cause a second compilation of the descent
    return jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), init(z))


def segments(first: int, num_steps: int, label: str | None) -> Iterator[tuple[int, int]]:
    """Segments of a round that starts with step ``first``, with a progress bar if there is a label."""
    ends = [num_steps * k // SEGMENTS for k in range(SEGMENTS + 1)]
    with trange(num_steps, desc=label, disable=label is None) as bar:
        for begin, end in zip(ends, ends[1:]):
            if begin < end:
                yield first + begin, first + end
                bar.update(end - begin)


def _grown(units: Sites, begin: Sites, end: Sites, num_steps: int) -> Sites:
    """Larger units for the coordinates that have moved a good part of the maximal distance of a round."""
    reach = STRAIGHT * num_steps * FIRST / math.log(FIRST / LAST)
    grow = lambda unit, a, b: jnp.where(jnp.abs(b - a) > reach * unit, GROWTH * unit, unit)  # noqa: E731
    return jax.tree.map(grow, units, begin, end)


def _distance(potential: Potential, z: Sites, rng_key: jax.Array) -> jax.Array:
    """
    The distance from the mode in posterior standard deviations, root mean square over coordinates: the length of the
    Newton step in the metric of the Hessian. Infinity if the curvature along this step is not positive.
    """

    def product(v):
        def of_rows(potential, z, rows, key):
            return gradient_and_product(lambda z: jax.grad(potential.estimate)(z, rows, key), z, v)[1]

        return over_all_rows(potential, of_rows, z, rng_key)

    gradient = full_gradient(potential, z, rng_key)
    step, _ = cg(product, gradient, maxiter=PRODUCTS)
    dot = lambda a, b: trees.total(jax.tree.map(jnp.multiply, a, b))  # noqa: E731
    squared, curvature = dot(step, gradient), dot(step, product(step))
    upwards = (squared > 0) & (curvature > 0)
    return jnp.where(upwards, jnp.sqrt(squared / trees.size(z)), jnp.where(squared == 0, 0, jnp.inf))


def _warn(distance: float) -> None:
    if math.isinf(distance):
        message = (
            "find_mode has not found a minimum: the curvature of U along the Newton step is not positive at the end. "
            "Use more num_steps or another optimizer; control variates do not help much without a single mode."
        )
    else:
        message = (
            f"find_mode has not converged: the mode is about {distance:.1f} posterior standard deviations away (root "
            "mean square over coordinates). Use more num_steps, larger batches, or another optimizer."
        )
    warn(message)
