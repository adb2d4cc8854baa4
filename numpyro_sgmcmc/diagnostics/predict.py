r"""
Predictions as running averages over draws,

.. math:: \bar y_i = \frac{1}{L} \sum_l E[y_i \mid z_l], \qquad
    \log p(y_i) = \log \frac{1}{L} \sum_l p(y_i \mid z_l),

computed for chunks of rows, one draw after the other. This needs memory for the averages, one chunk and one draw, while
:class:`~numpyro.infer.Predictive` stores a number for each row and draw.
"""

from collections.abc import Callable, Mapping
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import check_draws
from numpyro_sgmcmc.diagnostics.predicted_sites import PredictedSites
from numpyro_sgmcmc.diagnostics.weights import weights


class Predictions(NamedTuple):
    """
    - **mean** - site -> mean of its predictive distribution, with the shape of the site; for a categorical site its
      probabilities, with the categories along the last axis.
    - **log_density** - observed site, or factor in a plate -> log of its predictive density, for each row.
    - **function** - the average of ``function``, or ``()``.
    - **count** - number of draws that are averaged.
    """

    mean: dict[str, np.ndarray]
    log_density: dict[str, np.ndarray]
    function: Any
    count: float


def predict(
    draws: Any,
    *args: Any,
    function: Callable[[dict[str, jax.Array]], Any] | None = None,
    so_far: Predictions | None = None,
    model_args: tuple | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Predictions:
    """
    Predictions for some data, averaged over the draws of a run: means, densities, and any function of the draws.

    With decreasing steps the draws are weighted by :func:`~numpyro_sgmcmc.weights`, and those from the exploration of a
    cycle are left out. Sites that are not among the draws, but that others depend on, are drawn for each draw.

    To predict during sampling without keeping the draws, alternate: run some draws, call ``predict(...,
    so_far=found)``, and continue the run from ``mcmc.last_state``.

    :param draws: an :class:`~numpyro.infer.MCMC` that has run, with any kernel; or ``(model, draws)`` with
        constrained draws by site, shape ``(draws, ...)``, as returned by ``mcmc.get_samples()``.
    :param args: arguments of the model: data to predict, with observations for their density, or without.
    :param function: a function of one draw, a dict of constrained values, that returns any pytree of arrays.
    :param so_far: the result of earlier calls for other draws and the same data.
    :param model_args, model_kwargs, kwargs: as for :func:`~numpyro_sgmcmc.find_mode`.
    :raises TypeError: if ``draws`` is neither of these.
    :raises ValueError: for a run without draws; ``so_far`` of other data; a model that does not index its data by the
        rows of its plate.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, predict
        >>> def model(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("y", dist.Normal(w * x[rows], 1), obs=None if y is None else y[rows])
        >>> x = random.normal(random.key(0), (1000,))
        >>> y = 3 * x + random.normal(random.key(1), (1000,))
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
        >>> mcmc.run(random.key(2), x, y)
        >>> found = predict(mcmc, x, y, function=lambda draw: draw["w"] ** 2)
        >>> found.mean["y"].shape, bool(abs(found.function - 9) < 1), round(float(found.log_density["y"].mean()), 1)
        ((1000,), True, -1.4)
        >>> mcmc.post_warmup_state = mcmc.last_state  # the next draws, by themselves
        >>> mcmc.run(mcmc.last_state.rng_key, x, y)
        >>> predict(mcmc, x, y, function=lambda draw: draw["w"] ** 2, so_far=found).count
        400.0
    """
    model, values, weight = _draws_of(draws)
    sites = PredictedSites(model, values, tuple(model_args or args), {**kwargs, **(model_kwargs or {})})
    mean, log_sum = sites.sums({name: values[name] for name in sites.latents}, jnp.asarray(weight))
    total = float(weight.sum())
    predictions = Predictions(
        {name: x / total for name, x in mean.items()},
        {name: x - math.log(total) for name, x in log_sum.items()},
        () if function is None else _average(function, values, weight / total),
        total,
    )
    return predictions if so_far is None else _together(so_far, predictions)


def _draws_of(draws: Any) -> tuple[Any, dict[str, jax.Array], np.ndarray]:
    """The model, the constrained draws of all chains along one axis, and their weights."""
    if isinstance(draws, MCMC):
        check_draws(draws, "predict")
        values = draws.get_samples()
        count = len(jax.tree.leaves(values)[0])
        ours = hasattr(draws.sampler, "posterior_chain")
        return draws.sampler.model, values, count * weights(draws) if ours else np.ones(count)
    if isinstance(draws, tuple) and len(draws) == 2 and callable(draws[0]) and isinstance(draws[1], Mapping):
        model, values = draws
        lengths = {name: np.shape(x)[:1] for name, x in values.items()}
        if len(set(lengths.values())) != 1 or () in lengths.values():
            raise ValueError(f"the first axis of the draws must be equally long at all sites; it is {lengths}.")
        values = {name: jnp.asarray(x) for name, x in values.items()}
        return model, values, np.ones(next(iter(lengths.values())))
    raise TypeError(
        f"predict({type(draws).__name__}, ...) needs a numpyro.infer.MCMC that has run, or (model, draws) with a dict "
        "of draws by site."
    )


def _average(function: Callable, values: dict[str, jax.Array], weight: np.ndarray) -> Any:
    """The weighted mean of a function of a draw."""

    def run(values, weight):
        def add(total, draw):
            value, w = draw
            return jax.tree.map(lambda t, x: t + jnp.where(w > 0, w * x, 0), total, function(value)), None

        shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], values))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.result_type(s.dtype, weight.dtype)), shapes)
        return lax.scan(add, zero, (values, weight))[0]

    return jax.tree.map(np.asarray, jax.jit(run)(values, jnp.asarray(weight)))


def _together(a: Predictions, b: Predictions) -> Predictions:
    """The predictions from two sets of draws together."""
    shapes = [jax.tree.map(np.shape, predictions[:3]) for predictions in (a, b)]
    if jax.tree.structure(a[:3]) != jax.tree.structure(b[:3]) or shapes[0] != shapes[1]:
        raise ValueError("so_far= has predictions for other data, sites or functions. Give those for the same ones.")
    total = a.count + b.count
    share = a.count / total, b.count / total
    both = lambda x, y: share[0] * x + share[1] * y  # noqa: E731
    logs = lambda x, y: np.logaddexp(x + math.log(share[0]), y + math.log(share[1]))  # noqa: E731
    return Predictions(
        jax.tree.map(both, a.mean, b.mean),
        jax.tree.map(logs, a.log_density, b.log_density),
        jax.tree.map(both, a.function, b.function),
        total,
    )
