r"""
Averages over draws of a chain with decreasing steps, weighted by the step sizes (Chen, Ding & Carin 2015, section 3.3),

.. math:: \hat\phi = \sum_l w_l\, \phi(z_l), \qquad w_l = h_l \Big/ \sum_k h_k.

With :math:`h_l \propto l^{-\alpha}` and an integrator of order K the bias of the weighted average decreases as
:math:`L^{-K/(K+1)}` at :math:`\alpha = 1/(K+1)`, its mean squared error as :math:`L^{-2K/(2K+1)}` at
:math:`\alpha = 1/(2K+1)` (remarks 7 and 10). The unweighted average is also consistent, at the same rates, as long as
:math:`K\alpha < 1`. It gives more weight to late draws, which have smaller steps and a smaller bias, and less to early
ones. As it weights the chain's time less evenly, its variance is larger by a constant factor.
"""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import check_draws, explored
from numpyro_sgmcmc.utils.validation import check_key, checked_count

QUANTILES = {"5%": 0.05, "50%": 0.5, "95%": 0.95}


def weights(mcmc: MCMC, group_by_chain: bool = False) -> np.ndarray:
    """
    Normalised weights of the draws. The weight of a draw is proportional to the step size of its last step, and 0 for a
    draw from the exploration phase of a :class:`~numpyro_sgmcmc.Cyclical`.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param bool group_by_chain: return shape ``(chains, draws)`` instead of ``(chains * draws,)``, the order of
        ``mcmc.get_samples()``.
    :return: numbers with sum 1.
    :raises TypeError: if ``mcmc`` is not an :class:`~numpyro.infer.MCMC`.
    :raises ValueError: if there was no run yet, or it has kept no step sizes; for cycles with an exploration phase, if
        it has not kept the numbers of the steps, or if all draws are from the exploration.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import Polynomial, SGLD, weighted_summary, weights
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGLD(model, step_size=Polynomial(1e-3, 1.0, 0.33), batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> w = weights(mcmc)
        >>> w.shape, bool(w[0] > w[-1])
        ((500,), True)
        >>> bool(abs(weighted_summary(mcmc)["mu"]["mean"] - x.mean()) < 0.02)
        True
    """
    check_draws(mcmc, "weights")
    fields = mcmc.get_extra_fields(group_by_chain=True)
    if "step_size" not in fields:
        raise ValueError("the run has no field 'step_size': weights(mcmc) needs a kernel of numpyro_sgmcmc.")
    h = np.asarray(fields["step_size"], float).reshape(mcmc.num_chains, -1)
    chosen = getattr(getattr(mcmc.last_state, "settings", None), "step_size", None)
    if chosen is not None:  # chains may have chosen different step sizes; only a schedule makes draws unequal
        h = h / np.asarray(chosen, float).reshape(-1, 1)
    h = np.where(explored(mcmc), 0.0, h)
    if not h.any():
        raise ValueError("all draws are from steps of size 0. Use a schedule that stays positive.")
    w = h / h.sum()
    return w if group_by_chain else w.reshape(-1)


def weighted_summary(mcmc: MCMC) -> dict[str, dict[str, np.ndarray]]:
    """
    Mean, standard deviation, quantiles and effective sample size of every site under :func:`weights`. With a constant
    step size these are the unweighted ones.

    :param mcmc: as for :func:`weights`.
    :return: site -> ``mean``, ``sd``, ``5%``, ``50%``, ``95%``, ``ess``, each of the shape of the site. The effective
        sample size is that of the mean: its squared standard error is ``sd**2 / ess``. It is NaN for fewer than 4
        draws of a chain; the sd of a single draw is NaN too.
    :raises ValueError: as for :func:`weights`, which has an example.
    """
    w = weights(mcmc, group_by_chain=True)
    return {name: _summary(np.asarray(x), w) for name, x in mcmc.get_samples(group_by_chain=True).items()}


def _summary(x: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    flat, weight = x.reshape(-1, *x.shape[2:]).astype(float), w.reshape(-1)
    mean = np.tensordot(weight, flat, 1)
    with np.errstate(invalid="ignore", divide="ignore"):  # a single draw has no variance
        variance = np.tensordot(weight, (flat - mean) ** 2, 1) / (1 - np.sum(weight**2))
    # the weighted mean is the plain mean of these
    terms = weight.reshape(w.shape + (1,) * (x.ndim - 2)) * weight.size * (x - mean)
    if x.shape[1] < 4:  # too few for autocorrelations
        ess = np.full(mean.shape, np.nan)
    else:
        spread = terms.var(axis=(0, 1), ddof=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            ess = np.asarray(effective_sample_size(terms)) * np.where(spread > 0, variance / spread, np.nan)
    quantiles = {name: _quantile(flat, weight, q) for name, q in QUANTILES.items()}
    return {"mean": mean, "sd": np.sqrt(variance), **quantiles, "ess": ess}


def _quantile(x: np.ndarray, w: np.ndarray, q: float) -> np.ndarray:
    """Linear interpolation between sorted draws, each at the middle of its weight; ``np.quantile`` if all are equal."""
    columns = x.reshape(len(x), -1)
    order = np.argsort(columns, axis=0, kind="stable")
    quantiles = []
    for column, index in zip(columns.T, order.T):
        sorted_w = w[index]
        place = np.cumsum(sorted_w) - 0.5 * sorted_w
        place = (place - place[0]) / max(place[-1] - place[0], np.finfo(float).tiny)
        quantiles.append(np.interp(q, place, column[index]))
    return np.reshape(quantiles, x.shape[1:])


def resample(mcmc: MCMC, rng_key: jax.Array, num_samples: int | None = None) -> dict[str, jax.Array]:
    """
    Draws of equal weight, by systematic resampling within each chain, in the original order. With a constant step size
    and ``num_samples=None`` they are the draws themselves.

    :param mcmc: as for :func:`weights`.
    :param rng_key: random key.
    :param num_samples: draws for each chain; None: as many as there are.
    :return: site -> draws, shape ``(chains, draws, ...)``, as needed by ``az.from_dict``.
    :raises ValueError: as for :func:`weights`, or if ``num_samples`` is not a positive integer.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import Polynomial, SGLD, resample
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGLD(model, step_size=Polynomial(1e-3, 1.0, 0.33), batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> resample(mcmc, random.key(2), num_samples=200)["mu"].shape
        (1, 200)
    """
    w = weights(mcmc, group_by_chain=True)
    check_key(rng_key, "resample(mcmc, jax.random.key(0))")
    samples = mcmc.get_samples(group_by_chain=True)
    n = w.shape[1] if num_samples is None else checked_count("num_samples", num_samples)
    offsets = np.asarray(random.uniform(rng_key, (len(w), 1)), float)
    ends = np.cumsum(w, axis=1) / w.sum(axis=1, keepdims=True)
    places = (np.arange(n) + np.clip(offsets, 1e-6, 1 - 1e-6)) / n
    index = np.stack([np.searchsorted(end, place) for end, place in zip(ends, places)])
    index = jnp.asarray(np.minimum(index, w.shape[1] - 1))
    return jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, index), samples)
