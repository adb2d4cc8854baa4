r"""
``score_linearity``: whether the posterior is close to a normal.

The score of a normal is linear, :math:`\nabla U(z) = \Lambda (z - m)`. A linear fit to the scores at half of the draws
is tested on the other half,

.. math:: R_j^2 = 1 - \frac{\sum_t r_{tj} r'_{tj}}{\sum_t (g_{tj} - \bar g_j) (g'_{tj} - \bar g_j)},

where g and g' are gradients from two independent minibatches at the same draw, and r and r' their residuals, so the
expectation of both sums does not depend on minibatch noise. If :math:`R^2` is close to 1, a control variate at the
centre removes nearly all of the noise, and one mass matrix or whitening works everywhere. Otherwise, as in a funnel,
neither does.
"""

from typing import Any

from jax import random
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.scores import gradients
from numpyro_sgmcmc.diagnostics.table import Table
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils.monte_carlo import positive_sd

LINEAR, HALF = 0.8, 0.5  # smallest R^2 that is ok, and doubtful
BLOCKS = 10  # blocks of draws, which alternate between fit and test


def score_linearity(mcmc: MCMC, *model_args: Any, max_draws: int = 2000, **model_kwargs: Any) -> Table:
    r"""
    Held-out :math:`R^2` of a linear fit to the score: whether control variates and a fixed mass can be trusted.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param model_args, model_kwargs: arguments of the model; none: those of ``mcmc.run``.
    :param int max_draws: maximal number of draws that are used, over all chains; with two minibatches each, or all rows
        if these are few.
    :return: a mapping from each site to a dict with ``value``, the smallest :math:`R^2` of its coordinates, ``r2``,
        that of each coordinate, and a ``verdict``.
    :raises ValueError: if there was no run yet, or there are fewer than four draws per coordinate.

    **References:**

    1. *Control Variates for Stochastic Gradient MCMC*, J. Baker, P. Fearnhead, E. B. Fox, C. Nemeth (2019), lemma 1

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, score_linearity
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> found = score_linearity(mcmc, x)  # a normal posterior
        >>> found.verdict, bool(found["mu"]["value"] > 0.99)
        ('right', True)
    """
    run = Run(mcmc, model_args, model_kwargs, "score_linearity")
    draws = run.draws(max_draws)
    n, d = draws.flat.shape
    if n < 4 * d + 8:
        raise ValueError(
            f"score_linearity fits {d} slopes for each of {d} coordinates, for which it needs {4 * d + 8} draws, but "
            f"there are {n}. Use a larger num_samples, or a larger max_draws."
        )
    keys = random.split(random.fold_in(run.key, 1))
    pair = [gradients(run, draws, key).values for key in keys]
    r2 = held_out(draws.z, *pair)
    lines = {}
    for site, own in draws.by_site.items():
        worst = own[np.argmin(r2[own])]
        value = float(r2[worst])
        lines[site] = Line(
            value,
            f"{value:.3f} at {draws.names[worst]}",
            f">= {LINEAR}",
            "ok" if value >= LINEAR else "doubtful" if value >= HALF else "wrong",
            "the score is not linear, so the posterior is not close to a normal: control variates and a fixed mass "
            "will not help much. Reparametrise (LocScaleReparam for a funnel), and compare with NUTS on fewer rows",
            {"where": draws.names[worst], "r2": r2[own]},
        )
    return Table("R^2 of a linear fit to the score", lines)


def held_out(z: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """R^2 of each coordinate, by cross-validation over blocks of draws, from two independent unbiased gradients."""
    d = z.shape[-1]
    sd = positive_sd(z)
    x, g1, g2 = (z - z.mean((0, 1))) / sd, first * sd, second * sd
    odd = np.broadcast_to((np.arange(z.shape[1]) * BLOCKS // z.shape[1]) % 2 == 1, z.shape[:2])
    residual, total = np.zeros(d), np.zeros(d)
    for fitted in (odd, ~odd):
        x_in, mean = x[fitted], (g1[fitted] + g2[fitted]) / 2
        centre, level = x_in.mean(0), mean.mean(0)
        slopes = np.linalg.lstsq(x_in - centre, mean - level, rcond=None)[0]
        line = (x[~fitted] - centre) @ slopes + level
        g, other = g1[~fitted], g2[~fitted]
        residual += ((g - line) * (other - line)).sum(0)
        total += ((g - g.mean(0)) * (other - other.mean(0))).sum(0)
    return 1 - residual / np.where(total > 0, total, np.nan)
