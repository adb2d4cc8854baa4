r"""
``corrected``: draws that are moved by an affine map about their mean m, with a description of the map.

.. math:: z' = m + A (z - m).

- **Location and scale**: the variances of the modes of the posterior are predicted to be
  :math:`(1 + \epsilon_k) / \lambda_k` with this step size and these minibatches
  (:mod:`~numpyro_sgmcmc.diagnostics.predicted_inflation`). A divides mode k by :math:`\sqrt{1 + \epsilon_k}`. It does
  not change the mean or the shape of the distribution.
- **Sandwich**, for a misspecified model: A changes the covariance :math:`\Sigma` of the draws to
  :math:`H^{-1} J H^{-1}`, with :math:`H = \Sigma^{-1} E[(z - m) \nabla U^T]` and J the sum over rows of
  :math:`(g_i - \bar g)(g_i - \bar g)^T` (White 1982; Müller 2013, section 2), by
  :math:`A = (H^{-1} J H^{-1})^{1/2}\, \Sigma^{-1/2}`. The result is not the posterior, so this is never the default.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import at_draws
from numpyro_sgmcmc.diagnostics.predicted_inflation import gradient_pairs, predicted
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import gradients
from numpyro_sgmcmc.tuning.coordinates import unraveler
from numpyro_sgmcmc.utils.monte_carlo import positive_sd
from numpyro_sgmcmc.utils.validation import checked_choice

ROWS = 20_000  # maximal number of rows from which J is estimated


class Corrected(dict[str, np.ndarray]):
    """
    Site -> corrected draws, constrained, shape ``(chains, draws, ...)``, as needed by ``az.from_dict``.

    - **done** - a sentence that describes the correction.
    - **factors** - name of a coordinate -> ratio of its sds after and before the correction.
    """

    def __init__(self, draws: Mapping[str, np.ndarray], done: str, factors: Mapping[str, float]):
        super().__init__(draws)
        self.done, self.factors = done, dict(factors)

    def __repr__(self) -> str:
        return f"Corrected draws of {', '.join(self)}. {self.done}"


def corrected(
    mcmc: MCMC, *model_args: Any, covariance: str = "posterior", max_draws: int = 4000, **model_kwargs: Any
) -> Corrected:
    r"""
    The draws of a run, corrected for the predicted inflation by step size and minibatches, or with the sandwich
    covariance. Use it for inflations up to a factor of about two and for nearly normal posteriors
    (:func:`~numpyro_sgmcmc.score_linearity`). A smaller step size is the better remedy.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package; it is not changed.
    :param model_args, model_kwargs: arguments of the model; none: those of ``mcmc.run``.
    :param str covariance: ``"posterior"``, or ``"sandwich"`` for a misspecified model, which needs exactly one
        minibatched plate.
    :param int max_draws: draws from which the map is estimated, over all chains; all draws are mapped.
    :return: a mapping from sites to draws; ``.done`` describes the correction.
    :raises ValueError: if there was no run yet, the data are not those of the run, the step size changes or is not
        stable, or there are too few draws for a sandwich.

    **References:**

    1. *Maximum Likelihood Estimation of Misspecified Models*, H. White (1982), theorem 3.2
    2. *Risk of Bayesian Inference in Misspecified Models, and the Sandwich Covariance Matrix*, U. K. Müller (2013)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, corrected
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGLD(model, step_size=5e-4, steps_per_sample=10)  # sd x 1 / (1 - 1 / 4)**.5
        >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=2000, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> draws = corrected(mcmc, x)
        >>> bool(mcmc.get_samples()["mu"].std() * 1000**0.5 > 1.1), bool(abs(draws["mu"].std() * 1000**0.5 - 1) < 0.05)
        (True, True)
        >>> draws.done
        'Each mode was divided about the mean by the root of its predicted inflation: sds times 0.866 to 0.866.'
    """
    run = Run(mcmc, model_args, model_kwargs, "corrected")
    checked_choice("covariance", covariance, ("posterior", "sandwich"))
    draws = run.draws(max_draws)
    key_scores, key_more = random.split(random.fold_in(run.key, 2))
    scores = gradients(run, draws, key_scores)
    if covariance == "sandwich":
        A = _sandwich(run, draws, scores.values, key_more)
        what = "The covariance of the draws was made the sandwich H^-1 J H^-1, which is not that of the posterior"
    else:
        h, law = run.step_sizes, None
        if not np.allclose(h, h[:, -1:], rtol=1e-3, atol=0):
            raise ValueError(
                "corrected(mcmc): the step size changes during the run, so its draws do not have the same inflation. "
                "Use weighted_summary(mcmc) or resample(mcmc, key), or a constant step_size."
            )
        if not run.samples_other_coordinates:  # a prediction is for NumPyro's
            law = predicted(run, draws, scores.values, gradient_pairs(run, draws, key_more))
        if law is None or not np.isfinite(law.noise + law.step).all():
            raise ValueError(
                "corrected(mcmc): the inflation is not known, because the step is not stable for the posterior, the "
                "integrator is not a word with normal noise, or the kernel samples coordinates of its own "
                "(centering=False: those of the model). Use a smaller step_size, or another kernel or integrator."
            )
        A = law.rescale
        what = "Each mode was divided about the mean by the root of its predicted inflation"
    if not np.isfinite(A).all():
        raise ValueError("corrected(mcmc): the gradients at the draws are not finite; see summary(mcmc, *model_args).")
    whole = run.draws(mcmc.num_chains * mcmc.num_samples)
    away = whole.z - draws.flat.mean(0)
    moved = draws.flat.mean(0) + (away @ A.T if A.ndim == 2 else away * A)
    factors = moved.std((0, 1)) / positive_sd(whole.z)

    def constrain(potential, z):
        return lax.map(lambda z: potential.constrain(unraveler(potential.prototype)(z)), z, batch_size=64)

    flat = jnp.asarray(moved.reshape(-1, moved.shape[-1]), jnp.result_type(float))
    back = run.compiled(constrain)(flat)
    done = f"{what}: sds times {factors.min():.3g} to {factors.max():.3g}."
    return Corrected(
        {name: np.asarray(x).reshape(*moved.shape[:2], *x.shape[1:]) for name, x in back.items()},
        done,
        dict(zip(draws.names, factors.tolist())),
    )


def _sandwich(run: Run, draws: Draws, g: np.ndarray, key: jax.Array) -> np.ndarray:
    n, d = draws.flat.shape
    if n < 10 * d:
        raise ValueError(
            f'covariance="sandwich" needs 10 draws for each of {d} coordinates, but there are {n} in all. Use a larger '
            "num_samples or max_draws."
        )
    sd = draws.flat.std(0)
    x, s = (draws.flat - draws.flat.mean(0)) / sd, (g.reshape(n, d) - g.mean((0, 1))) * sd
    covariance = x.T @ x / n
    H = np.linalg.solve(covariance, x.T @ s / n)
    J = _row_scores(run, draws, key) * np.outer(sd, sd)
    inverse = np.linalg.inv((H + H.T) / 2)
    A = _root(inverse @ J @ inverse) @ np.linalg.inv(_root(covariance))
    return sd[:, None] * A / sd


def _row_scores(run: Run, draws: Draws, key: jax.Array) -> np.ndarray:
    """J, from at most ``ROWS`` rows."""

    def over_rows(potential, mean, key):
        unravel = unraveler(potential.prototype)
        energy = lambda z, row, k: potential.per_row(unravel(z), row, k).sum()  # noqa: E731
        if len(potential.plates) != 1 or potential.draws_local_sites:
            plates = ", ".join(map(repr, potential.plates)) or "none"
            raise ValueError(
                'covariance="sandwich" uses the gradients of single rows: it needs exactly one minibatched plate '
                f"(there is {plates}), whose rows have no local sites that are drawn. Leave covariance= out."
            )
        ((name, plate),) = potential.plates.items()
        count = min(ROWS, plate.size)
        rows = random.choice(key, plate.size, (count,), replace=False) if count < plate.size else jnp.arange(count)
        scores = at_draws(lambda row: jax.grad(energy)(mean, {name: row[None].astype(jnp.int32)}, key), rows)
        scores = scores - scores.mean(0)
        return jnp.matmul(scores.T, scores, precision=lax.Precision.HIGHEST) * (plate.size / count)

    mean = jnp.asarray(draws.flat.mean(0), jnp.result_type(float))
    return np.asarray(run.compiled(over_rows)(mean, key), float)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The root of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
