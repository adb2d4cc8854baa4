r"""
The identities of the score, which hold for draws from the posterior and need no reference. Integrating by parts,

.. math:: E[\partial_j U(z)] = 0, \qquad E[(z_j - m_j)\, \partial_k U(z)] = \delta_{jk}.

Their estimates use one new minibatch S per draw, independent of the rows of the steps, or all rows if these are few.
Minibatch gradients are corrected by a control variate at the mean m of the draws, whose expectation is known from one
full pass,

.. math:: g(z) = \nabla U_S(z) - \beta \left(\nabla U_S(m) - \nabla U(m)\right),

with :math:`\beta = 1`, or the :math:`\beta` that minimises the variance in coordinates where this clearly reduces it
(posteriors that are far from normal), so that g is never worse than the plain gradient.

A violation is translated into an error of the draws to first order. With their covariance :math:`\Sigma` and
:math:`v = \Sigma \nabla U`, on a normal posterior :math:`E[v_j]` is the error of the mean, and
:math:`E[(z - m)_j v_j] / \Sigma_{jj} - 1` is the relative error of the variance, also for correlated coordinates.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.arrays import named_leaves
from numpyro_sgmcmc.diagnostics.draws import at_draws
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.gradients.full_pass import full_gradient
from numpyro_sgmcmc.potential.centred import centred_potential
from numpyro_sgmcmc.rows.schemes import independent_rows
from numpyro_sgmcmc.tuning.coordinates import raveled, unraveler
from numpyro_sgmcmc.utils.monte_carlo import effective, positive_sd, standard_error

ALL_ROWS = 2000  # up to this number of rows, in all plates together, all rows are used for each draw
CLEARLY = 0.8  # maximal variance with a fitted coefficient, relative to that with coefficient 1
LARGEST = 2**26  # narrow data of more numbers are not widened, because a copy would take too much memory
DENSE = 500  # with more coordinates, correlations are ignored


class Identities(NamedTuple):
    """Estimates by coordinate, shape ``(d,)``, and their standard errors."""

    gradient: np.ndarray  # E[dU/dz_j]
    gradient_error: np.ndarray
    virial: np.ndarray  # E[(z - m)_j dU/dz_j]
    virial_error: np.ndarray
    shift: np.ndarray  # error of the mean, in sds of the draws: E[v_j] / sd_j
    shift_error: np.ndarray
    inflation: np.ndarray  # relative error of the variance: E[(z - m)_j v_j] / var_j - 1
    inflation_error: np.ndarray
    scale: np.ndarray  # the sd of the score in a correct run, computed from the draws' covariance


class Gradients(NamedTuple):
    values: np.ndarray  # gradient at each draw, shape (chains, draws, d)
    rows: int  # number of rows used for each draw, in all plates together
    whole: bool  # whether these are all rows
    passes: float  # passes over the data in total
    widened: tuple[str, ...] = ()  # arguments whose dtypes were widened


def gradients(run: Run, draws: Draws, rng_key: jax.Array) -> Gradients:
    """
    Unbiased gradients of U at the draws, see above, in their variables.

    :raises ValueError: if the kernel keeps local values, as those of other draws are not known any more.
    """
    if run.keeps_local_values:
        raise ValueError(
            'local= has start="previous": the local values that belong to a draw are not kept, so the gradient of U at '
            "the draw is not known. Use summary(mcmc), step_halving(mcmc, key, ...), or a run with start=None and more "
            "moves."
        )
    batch, size = run.rows
    whole = size <= ALL_ROWS
    controlled = not whole and not run.potential.randomised

    def evaluate(potential, z, mean, rng_key):
        potential = centred_potential(potential, draws.centering)
        unravel = unraveler(potential.prototype)
        key_draws, key_mean = random.split(rng_key)

        def at_draw(z, k):
            key_rows, key_model = random.split(random.fold_in(key_draws, k))
            if whole:
                return raveled(full_gradient(potential, unravel(z), key_model)), jnp.zeros_like(z)
            rows = independent_rows(key_rows, potential.plates)
            gradient = lambda at: raveled(jax.grad(potential.estimate)(unravel(at), rows, key_model))  # noqa: E731
            return gradient(z), gradient(mean) if controlled else jnp.zeros_like(z)

        values, control = at_draws(at_draw, z, jnp.arange(len(z), dtype=jnp.uint32))
        known = raveled(full_gradient(potential, unravel(mean), key_mean)) if controlled else jnp.zeros_like(mean)
        return values, control, known

    wide_args, wide_kwargs, widened_names = widened(run.args, run.kwargs)
    dtype = jnp.result_type(float)
    z, mean = jnp.asarray(draws.flat, dtype), jnp.asarray(draws.flat.mean(0), dtype)
    try:
        results = run.compiled(evaluate, (wide_args, wide_kwargs))(z, mean, rng_key)
    except TypeError:  # a model may need the dtype, for example for np.unpackbits
        if not widened_names:
            raise
        results, widened_names = run.compiled(evaluate)(z, mean, rng_key), ()
    values, control, known = (np.asarray(x, float) for x in results)
    away = control - known
    if np.isfinite(away).all() and np.isfinite(values).all():
        centred = away - away.mean(0)
        slope = (centred * (values - values.mean(0))).sum(0) / np.maximum((centred**2).sum(0), 1e-300)
        fitted, plain = values - slope * away, values - away
        values = np.where(fitted.var(0) < CLEARLY * plain.var(0), fitted, plain)
    rows = size if whole else batch
    passes = len(z) * rows / max(size, 1) * (2 if controlled else 1) + controlled
    return Gradients(values.reshape(draws.z.shape), rows, whole, passes, widened_names)


def widened(model_args: tuple, model_kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any], tuple[str, ...]]:
    """
    The arguments, with arrays of 8 or 16 bits replaced by wide ones, and the names of these. A model that computes with
    narrow data may overflow without an error, as x**2 of an int8 does. Gradients from wide data show the difference.
    """
    wide = jax.tree.map(_wide, (model_args, dict(model_kwargs)))
    pairs = zip(named_leaves(model_args, model_kwargs), jax.tree.leaves(wide))
    return *wide, tuple(name for (name, leaf), new in pairs if new is not leaf)


def _wide(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)) and 0 < leaf.size <= LARGEST:
        for kind, wide in ((jnp.floating, jnp.float32), (jnp.integer, jnp.int32)):
            if jnp.issubdtype(leaf.dtype, kind) and leaf.dtype.itemsize < 4:
                return leaf.astype(wide)
    return leaf


def identities(z: np.ndarray, g: np.ndarray) -> Identities:
    """The identities from draws and gradients there, shape ``(chains, draws, d)``."""
    away = z - z.mean((0, 1))
    sd = positive_sd(away)
    d, n = z.shape[-1], z.shape[0] * z.shape[1]
    x, s = away / sd, g * sd  # standardised, because the scales in z may differ by orders of magnitude
    mixed, scale = s, 1 / sd
    if d <= DENSE and n > 2 * d:
        correlation = x.reshape(n, d).T @ x.reshape(n, d) / n
        mixed = _by_other_half(x, s)
        scale = np.sqrt(np.maximum(np.diag(np.linalg.pinv(correlation, hermitian=True)), 1)) / sd
    # subtracting the mean of the draws loses 1 / ESS; no run determines a variance better than to 1 / ESS^1/2
    lost = 1 / effective(z)
    virial, inflation = x * s + lost, x * mixed - 1 + lost
    # the error of the mean of a product with x, to first order that of x s - x E[s], as for a covariance
    virial_error, inflation_error = (
        np.maximum(standard_error(product - x * by.mean((0, 1))), np.sqrt(lost))
        for by, product in ((s, virial), (mixed, inflation))
    )
    return Identities(
        g.mean((0, 1)),
        standard_error(g),
        virial.mean((0, 1)),
        virial_error,
        mixed.mean((0, 1)),
        standard_error(mixed),
        inflation.mean((0, 1)),
        inflation_error,
        scale,
    )


def _by_other_half(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """
    s times the correlation of the draws, where the draws of each half of the chains have that of the other half. With
    the correlation of the same draws, E[x_j (s R)_j] would be too large by (d + 1) / ESS.
    """
    half, d = x.shape[1] // 2, x.shape[-1]
    halves = (part.reshape(-1, d) for part in (x[:, :half], x[:, half:]))
    first, second = (part.T @ part / len(part) for part in halves)
    return np.concatenate([s[:, :half] @ second, s[:, half:] @ first], 1)
