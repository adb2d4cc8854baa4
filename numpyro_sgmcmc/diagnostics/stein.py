r"""
``kernel_stein_discrepancy``: the distance between the draws and the posterior, which needs only its score.

.. math::
    \mathrm{KSD}^2 = E\big[k_0(z, z')\big], \qquad
    k_0 = s^T s' k + s^T \nabla_{z'} k + s'^T \nabla_z k + \nabla_z \cdot \nabla_{z'} k, \qquad s = -\nabla U(z),

with the inverse multiquadric kernel :math:`k = (1 + |z - z'|^2 / \ell^2)^{-1/2}` (Gorham & Mackey 2017, equation 4 and
theorem 8), in coordinates where the draws have unit covariance, :math:`\ell^2 = d`. With :math:`q = 1 + |z - z'|^2 /
\ell^2`,

.. math::
    k_0 = \frac{s^T s'}{q^{1/2}} + \frac{(s - s')^T (z - z')}{\ell^2 q^{3/2}}
        + \frac{d}{\ell^2 q^{3/2}} - \frac{3 |z - z'|^2}{\ell^4 q^{5/2}} .

The estimate uses only pairs of different draws (the U-statistic), each draw with its own minibatch, so it is unbiased
also with noisy gradients. Its standard error is that of its Hoeffding projection :math:`2\, E[k_0(z_i, \cdot)]`,
including the autocorrelation. If the draws are from the posterior, the projection vanishes, and the remainder is of
order 1 / n.
"""

from functools import partial
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.scores import gradients
from numpyro_sgmcmc.diagnostics.table import Table
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils.monte_carlo import effective, positive_sd, standard_error
from numpyro_sgmcmc.utils.significance import graded

CHUNK = 256  # number of draws whose kernels with all others are in memory at once
DENSE = 300  # with more coordinates, only their scales are standardised
CERTAIN = 4.0  # standard errors of a significant discrepancy
CLOSE, FAR = 0.1, 0.3  # KSD^2, for scores with unit variance per coordinate: shifts of about .1 sd and .3 sd


def kernel_stein_discrepancy(mcmc: MCMC, *model_args: Any, max_draws: int = 2000, **model_kwargs: Any) -> Table:
    r"""
    The kernel Stein discrepancy between the draws and the posterior, with the inverse multiquadric kernel.

    It needs no other sampler, and converges to 0 only if the draws converge to the posterior. It cannot detect wrong
    weights of modes that are far apart. The cost is ``max_draws**2 * d``, in chunks, and one or two minibatches per
    draw.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param model_args, model_kwargs: arguments of the model; none: those of ``mcmc.run``.
    :param int max_draws: maximal number of draws that are used, over all chains.
    :return: a mapping with the line ``"ksd"``: ``value``, the root of :math:`\mathrm{KSD}^2 / d`, or 0 if that is
        negative; ``squared``, :math:`\mathrm{KSD}^2 / d`, and its ``error``.
    :raises ValueError: if there was no run yet.

    **References:**

    1. *Measuring Sample Quality with Kernels*, J. Gorham, L. Mackey (2017)
    2. *A Kernelized Stein Discrepancy for Goodness-of-fit Tests*, Q. Liu, J. D. Lee, M. Jordan (2016), theorem 4.1

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, kernel_stein_discrepancy
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> def run(step_size):
        ...     mcmc = MCMC(SGLD(model, step_size=step_size, steps_per_sample=20), num_warmup=50, num_samples=1000,
        ...                 progress_bar=False)
        ...     mcmc.run(random.key(1), x)
        ...     return mcmc
        >>> [kernel_stein_discrepancy(run(h), x).verdict for h in (5e-5, 1.5e-3)]
        ['right', 'wrong']
    """
    run = Run(mcmc, model_args, model_kwargs, "kernel_stein_discrepancy")
    draws = run.draws(max_draws)
    gradient_values = gradients(run, draws, random.fold_in(run.key, 3)).values
    z, score = _whitened(draws.z, -gradient_values)
    squared, error, at_least = discrepancy(z, score)
    verdict = graded(squared, CLOSE, FAR) if not squared <= CERTAIN * error + at_least else "ok"
    advice = "the draws are not from the posterior. summary(mcmc, *model_args) shows the cause"
    if verdict == "ok" and not error + at_least <= CLOSE:
        verdict, advice = "doubtful", "its error is too large for a verdict. Use a larger num_samples"
    root = float(np.sqrt(max(squared, 0.0)))
    line = Line(
        root,
        f"{root:.3f}, squared {squared:.4f} +- {error + at_least:.4f}",
        f"squared <= {CLOSE}, or not certain",
        verdict,
        advice,
        {"squared": squared, "error": error + at_least, "draws": len(draws.flat)},
        "kernel Stein discrepancy",
    )
    return Table("Distance of the draws to the posterior", {"ksd": line})


def _whitened(z: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws with unit covariance, and their scores in the same coordinates."""
    away = z - z.mean((0, 1))
    sd = positive_sd(away)
    x, s = away / sd, score * sd
    n, d = x.shape[0] * x.shape[1], x.shape[-1]
    if d > DENSE or n < 10 * d:
        return x, s
    values, vectors = np.linalg.eigh(x.reshape(n, d).T @ x.reshape(n, d) / n)
    scale = np.sqrt(np.maximum(values, 1e-12))
    return x @ vectors / scale, s @ vectors * scale


def discrepancy(z: np.ndarray, score: np.ndarray) -> tuple[float, float, float]:
    """
    KSD^2 / d, the standard error of its projection, and the size of the remainder, from draws, shape ``(chains, draws,
    d)``, and unbiased estimates of their scores that are independent between draws.
    """
    chains, kept, d = z.shape
    n = chains * kept
    flat, scores = (jnp.asarray(a.reshape(n, d), jnp.result_type(float)) for a in (z, score))
    sums, squares = (np.asarray(a, float) for a in _rows(flat, scores))
    rows = sums / (n - 1)
    value = rows.mean()
    # correlated draws count for less
    ess = float(np.min(effective(z)))
    rest = np.sqrt(2 * squares.sum() / n / (n - 1)) / ess
    return value / d, float(2 * standard_error(rows.reshape(chains, kept)) / d), float(rest / d)


@jax.jit
def _rows(z: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each draw, the sums of the kernel and of its square over all other draws, in chunks."""
    d = float(z.shape[1])  # also the square of the kernel's width
    product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

    def of_draw(draw):
        z_i, s_i, i = draw
        away = z_i - z
        distance = (away**2).sum(-1)
        q = 1 + distance / d
        cross = ((s_i - s) * away).sum(-1)
        value = product(s, s_i) / jnp.sqrt(q) + (cross + d) / (d * q**1.5) - 3 * distance / (d**2 * q**2.5)
        value = jnp.where(jnp.arange(len(z)) == i, 0.0, value)
        return value.sum(), (value**2).sum()

    return lax.map(of_draw, (z, s, jnp.arange(len(z))), batch_size=CHUNK)
