"""A mode of the posterior from minibatches: where control variates are centred and where chains may start."""

from typing import Any
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from numpyro.optim import optax_to_numpyro
from numpyro.util import is_prng_key
from tqdm.auto import trange

from numpyro_sgmcmc.gradients.full_pass import full_gradient, over_all_rows
from numpyro_sgmcmc.model.compiled import compiled
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import Reshuffled, next_rows
from numpyro_sgmcmc.tuning.start import falling_adam
from numpyro_sgmcmc.types import Potential, RowsState, Sites
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.validation import check_energies, checked_batch_size, checked_count, checked_model

FIRST, LAST = 0.1, 1e-6  # Adam's step, in units of the unconstrained coordinates
SEGMENTS = 50  # of the descent, for the progress bar
PRODUCTS = 8  # products with the Hessian in the check


def find_mode(
    model: Any,
    rng_key: jax.Array,
    *model_args: Any,
    batch_size: Any = None,
    num_steps: int = 10_000,
    optimizer: Any = None,
    progress_bar: bool = True,
    **model_kwargs: Any,
) -> Sites:
    r"""
    A minimum of U in unconstrained space by stochastic gradient descent, and a look at whether it was reached.

    The look: the length of the Newton step :math:`H^{-1}\nabla U` in posterior standard deviations, from a gradient
    over all rows and a few products with the Hessian H.

    :param model: NumPyro model.
    :param rng_key: random key of the start and the minibatches.
    :param model_args: arguments of the model.
    :param batch_size: as for the kernels.
    :param int num_steps: minibatches.
    :param optimizer: of :mod:`numpyro.optim` or optax; None: Adam with a step size that falls geometrically from 0.1
        to 1e-6.
    :param bool progress_bar: whether to show one.
    :param model_kwargs: keyword arguments of the model.
    :return: dict of unconstrained values, for :class:`~numpyro_sgmcmc.ControlVariate` and ``init_params``.
    :raises TypeError: a model that is not callable, or a key that is none.
    :raises ValueError: a model that cannot be minibatched so; an energy that is not finite at the start.
    :warns UserWarning: the end is more than one posterior standard deviation (root mean square over coordinates) from a
        minimum, or at none.

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
    if not is_prng_key(rng_key):
        raise TypeError("the second argument is the random key: find_mode(model, jax.random.key(0), *model_args).")
    num_steps = checked_count("num_steps", num_steps)
    batch_size = checked_batch_size(batch_size)
    if optimizer is None:
        optimizer = falling_adam(FIRST, LAST, num_steps)
    elif not hasattr(optimizer, "get_params"):
        optimizer = optax_to_numpyro(optimizer)
    key_start, key_rows, key_model = random.split(rng_key, 3)

    # keys are arguments, so that a search under another key is the same program
    def begin(potential: ModelPotential, key_start: jax.Array, key_rows: jax.Array, key_model: jax.Array):
        rows, _ = next_rows(Reshuffled(), RowsState(key_rows, jnp.zeros((), jnp.int32)), potential.plates)
        z = potential.initial(key_start, rows, None)
        # its counter is of weak type until the first update, which would make another program of the descent
        state = jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), optimizer.init(z))
        return state, potential.by_site(z, rows, key_model)

    def advance(potential: Potential, state: Any, first: int, last: int, key_rows: jax.Array, key_model: jax.Array):
        def body(k, state):
            rows, _ = next_rows(Reshuffled(), RowsState(key_rows, k), potential.plates)
            loss = lambda z: potential.estimate(z, rows, random.fold_in(key_model, k))  # noqa: E731
            value, gradient = jax.value_and_grad(loss)(optimizer.get_params(state))
            moved = optimizer.update(gradient, state, value)  # pyright: ignore[reportCallIssue]
            return trees.where(trees.all_finite((value, moved)), moved, state)

        return lax.fori_loop(first, last, body, state)

    on_potential = lambda fn: compiled(fn, model, model_args, model_kwargs, batch_size)  # noqa: E731
    ModelPotential.of(model, model_args, model_kwargs, batch_size)  # refuses before anything is compiled
    state, energies = on_potential(begin)(key_start, key_rows, key_model)
    check_energies(energies)
    descent = on_potential(advance)
    with trange(num_steps, desc="mode", disable=not progress_bar) as bar:
        for segment in range(SEGMENTS):
            first, last = (num_steps * (segment + k) // SEGMENTS for k in (0, 1))
            state = descent(state, first, last, key_rows, key_model)
            bar.update(last - first)
    z = optimizer.get_params(state)
    squared, curvature = on_potential(_newton_step)(z, key_model)
    _warn_unless_arrived(squared, curvature, trees.size(z))
    return z


def _newton_step(potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Squared length of the Newton step in the metric of the Hessian, and the curvature along it."""

    def product(v):
        def one(z, rows, key):
            return jax.jvp(lambda z: jax.grad(potential.estimate)(z, rows, key), (z,), (v,))[1]

        return over_all_rows(potential.plates, one, z, rng_key)

    gradient = full_gradient(potential, z, rng_key)
    step, _ = cg(product, gradient, maxiter=PRODUCTS)
    dot = lambda a, b: trees.total(jax.tree.map(jnp.multiply, a, b))  # noqa: E731
    return dot(step, gradient), dot(step, product(step))


def _warn_unless_arrived(squared: jax.Array, curvature: jax.Array, d: int) -> None:
    if bool(squared == 0):
        return
    if not bool(jnp.isfinite(squared) & (squared > 0) & (curvature > 0)):
        warnings.warn(
            "find_mode has ended where U does not curve upwards: at no minimum. Use more num_steps or another "
            "optimizer; control variates are of little help where there is no single mode.",
            stacklevel=3,
        )
    elif bool(squared > d):
        warnings.warn(
            f"find_mode has not arrived: the mode is about {float(jnp.sqrt(squared / d)):.1f} posterior standard "
            "deviations away, root mean square over coordinates. Use more num_steps, larger batches, or another "
            "optimizer.",
            stacklevel=3,
        )
