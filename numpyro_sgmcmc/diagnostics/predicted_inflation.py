r"""
The predicted inflation of the variance by a kernel's step size and minibatches, for the posterior that it has sampled.

The posterior is approximated by a normal, whose precision is estimated from the draws and their gradients,

.. math:: \Lambda = \Sigma^{-1} E[(z - m) \nabla U^T],

which is correct even if the draws are too wide or too narrow. In the coordinates of the dynamics, where the mass is 1,
its eigenvectors are the modes. With many coordinates, each coordinate of z is a mode of its own. Its direction in x is
its row of L, so its gradient noise is that of its component of :math:`L L^T \nabla U`. Each mode has its curvature and
its variance of the gradient noise, estimated by half the squared difference of two minibatch gradients.
:mod:`~numpyro_sgmcmc.diagnostics.linear_law` computes the variance of each mode.
"""

from collections.abc import Mapping
from dataclasses import replace
import math
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.draws import TOGETHER, at_draws
from numpyro_sgmcmc.diagnostics.linear_law import linear_law
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.tuning.coordinates import DENSE as MATRIX, Identity, raveled, unraveler
from numpyro_sgmcmc.types import RowsState, Sites, Thermostatted

PAIRS, FEWEST = 1000, 200  # pairs of minibatches, at most, and at least for many coordinates
NUMBERS = 2**25  # numbers that all pairs may take together
DENSE = 300  # with more coordinates, each is its own mode
LONGER = 1.25  # a step size larger by this factor should still be stable


class Prediction(NamedTuple):
    """Arrays by coordinate of z, shape ``(d,)``, except the last two."""

    noise: np.ndarray  # inflation of the variance by minibatch noise
    # its standard error for this number of pairs: with NOGIN the inflation is a small difference of the added and the
    # subtracted noise
    noise_error: np.ndarray
    step: np.ndarray  # inflation of the variance by the step size
    variance: np.ndarray  # variance s^2 of the kernel's gradient
    stable: int  # 2: the step size is stable, 1: it is, but 1.25 times the step size would not be, 0: it is not
    rescale: np.ndarray  # the matrix or diagonal that removes the inflation, for z minus its mean


def gradient_pairs(run: Run, draws: Draws, rng_key: jax.Array, pairs: int | None = None) -> np.ndarray:
    """
    (g_1 - g_2) / sqrt(2) for pairs of new minibatches, by the kernel's own estimator, shape ``(pairs, d)``. Estimators
    whose state does not change are evaluated at draws of the run, others at the last position, where their state
    belongs.
    """
    kernel, states = run.kernel, run.states
    if pairs is None:
        pairs = min(PAIRS, max(FEWEST, NUMBERS // draws.z.shape[-1]))
    per_chain = -(-pairs // len(states))
    stays = isinstance(kernel.gradient, (Minibatch, ControlVariate))
    if (kernel.transforms is not None and not stays) or not run.is_as_written:
        raise ValueError(
            f"the noise of {kernel.gradient!r} is not known in NumPyro's coordinates, because {type(kernel).__name__} "
            "samples others. Use gradient_noise(kernel, state, ...)."
        )

    def probe(potential, z, gradient_state, rng_key, contiguous):
        chain, unravel = kernel.chain_for(potential), unraveler(potential.prototype)

        def difference(z, k):
            def gradient(key):
                # any batch of the kernel's own scheme: those of contiguous rows may differ more than random ones
                key_rows, key_t, key_model = random.split(key, 3)
                rows_state = RowsState(key_rows, random.bits(key_t))
                rows, _ = next_rows(chain.rows, rows_state, potential.plates, contiguous)
                return raveled(chain.evaluate(potential, unravel(z), rows, gradient_state, key_model).gradient)

            first, second = jax.vmap(gradient)(random.split(random.fold_in(rng_key, k)))
            return (first - second) / math.sqrt(2)

        return at_draws(difference, z, jnp.arange(len(z), dtype=jnp.uint32))

    measured = run.compiled(probe)
    differences = []
    for k, (state, key) in enumerate(zip(states, random.split(rng_key, len(states)))):
        index = np.linspace(0, draws.z.shape[1] - 1, per_chain).round().astype(int)
        last = np.asarray(raveled(state.z))
        z = draws.z[k][index] if stays else np.broadcast_to(last, (per_chain, last.size))
        of_chain = state.gradient_state, key, state.settings.contiguous
        differences.append(np.asarray(measured(jnp.asarray(z, last.dtype), *of_chain), float))
    return np.concatenate(differences)


def predicted(run: Run, draws: Draws, gradients: np.ndarray, pairs: np.ndarray) -> Prediction | None:
    """
    The prediction for the mean step size of the draws, to which their inflation is proportional at first order.

    :param gradients: gradients at the draws, shape ``(chains, draws, d)``.
    :param pairs: see :func:`gradient_pairs`.
    :return: None for an integrator that is not a word, for noise that is not normal, with a ``skew``, which couples the
        modes, for a step size of 0, for a kernel that samples other coordinates than NumPyro's, and for a dynamics that
        does not know its inflation, such as a recipe.
    """
    kernel, word = run.kernel, run.kernel.integrator
    if not hasattr(word, "word") or any(word.flows[letter].needs_key for letter in word.word):
        return None
    state, h = run.states[0], run.mean_step
    dynamics, phase = kernel.dynamics.with_frozen_adaptation(state.phase)
    if getattr(dynamics, "skew", None) is not None or run.samples_other_coordinates or not h > 0:
        return None
    if np.isnan(raveled(dynamics.inflation(phase, jnp.asarray(h), jax.tree.map(jnp.ones_like, phase.z)))).any():
        return None
    coordinates = state.settings.coordinates
    L = _scale(coordinates, dynamics, state.z)
    dense = L.ndim == 2
    wide = None if dense or isinstance(coordinates, Identity) else coordinates
    into = (lambda g: g @ L) if dense else (lambda g: g * L) if wide is None else (lambda g: _along(wide, g) / L)
    away = draws.flat - draws.flat.mean(0)
    y = np.linalg.solve(L, away.T).T if dense else away / L
    g, e = into(gradients.reshape(y.shape)), into(pairs)
    curvature, modes = _modes(y, g)
    in_modes = lambda a: a if modes is None else a @ modes  # noqa: E731
    squares = in_modes(e) ** 2
    s2 = squares.mean(0)
    relative_error = squares.std(0) / np.maximum(s2, 1e-300) / np.sqrt(len(squares))
    known = None
    if word.needs_variance:
        leaves = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(phase.noise_variance)])
        known = leaves * L**2 if isinstance(coordinates, Identity) else leaves
        if wide is not None:
            known = np.asarray(wide.variances(jnp.asarray(known)), float) / L**2
        known = known if modes is None else known @ modes**2
    zero = np.zeros_like(s2)
    thermostat = _balance(dynamics, h, s2)
    exact = {"known": zero if known is not None else None, "thermostat": _balance(dynamics, h, zero)}
    alone = linear_law(dynamics, word, h, curvature, zero, **exact)
    longer = linear_law(dynamics, word, LONGER * h, curvature, zero, **exact)
    law = linear_law(dynamics, word, h, curvature, s2, known=known, thermostat=thermostat, epoch=epoch_of(run))
    total = law.step + law.noise
    stable = 2 if longer.radius.max() < 1 else 1 if alone.radius.max() < 1 else 0
    by_z = _in_z(L, modes, curvature)
    step = by_z(alone.step)
    with np.errstate(invalid="ignore"):
        more = np.where(np.isfinite(step), by_z(total) - step, 0.0)
        error = np.where(np.isfinite(step), by_z(law.noise * relative_error), 0.0)
    return Prediction(more, error, step, (pairs**2).mean(0), stable, _rescaling(L, modes, total))


def epoch_of(run: Run) -> float:
    """Batches per epoch of reshuffled rows, 1 for independent batches; with several plates, the longest epoch."""
    if getattr(run.kernel.rows, "independent", False):
        return 1.0
    return max((plate.size // plate.batch_size for plate in run.potential.plates.values()), default=1.0)


def _balance(dynamics: Any, h: float, s2: np.ndarray) -> Any:
    """The thermostats that balance noise of this variance; ``()`` for a dynamics without thermostats."""
    if not isinstance(dynamics, Thermostatted):
        return ()
    part: Any = dynamics
    unit, heat = replace(part, inverse_mass_matrix=1.0), jnp.asarray(s2)
    return np.asarray(unit.at_equilibrium(unit.init(0 * heat, 0 * heat), jnp.asarray(h), heat).thermostat)


def _scale(coordinates: Any, dynamics: Any, z: Sites) -> np.ndarray:
    """L in z = c + L y, where y has unit mass: a matrix or a diagonal."""
    if not isinstance(coordinates, Identity):
        if coordinates.center.size <= MATRIX:
            return np.asarray(coordinates.matrix(), float)
        # the lengths of its rows: a matrix would be too large
        return np.sqrt(np.asarray(coordinates.variances(jnp.ones_like(coordinates.center)), float))
    mass = getattr(dynamics, "inverse_mass_matrix", 1.0)
    if not isinstance(mass, Mapping):
        return np.full(len(raveled(z)), math.sqrt(float(mass)))
    full = {name: np.broadcast_to(np.asarray(mass[name], float), np.shape(x)) for name, x in z.items()}
    return np.sqrt(np.concatenate([full[name].ravel() for name in sorted(full)]))


def _along(coordinates: Any, gradients: np.ndarray) -> np.ndarray:
    """L L^T g for each gradient, which are along axis 0; in double precision."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda part: jnp.asarray(part, float), coordinates)
        both = lambda g: exact.times(exact.pull_back(g))  # noqa: E731
        return np.asarray(lax.map(both, jnp.asarray(gradients, float), batch_size=TOGETHER))


def _modes(y: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Curvatures, and their modes; None: the modes are the coordinates themselves."""
    n, d = y.shape
    variance = np.maximum(y.var(0), 1e-300)
    plain = 1 / variance
    if d <= DENSE and n >= 10 * d:
        sd = np.sqrt(variance)
        x, s = y / sd, (g - g.mean(0)) * sd
        precision = np.linalg.pinv(x.T @ x / n, hermitian=True) @ (x.T @ s / n)
        precision = (precision + precision.T) / 2 / np.outer(sd, sd)
        if np.isfinite(precision).all():
            values, modes = np.linalg.eigh(precision)
            if values.min() > 0:
                return values, modes
    own = (y * g).mean(0) / variance
    return np.where(own > 0, own, plain), None


def _rescaling(L: np.ndarray, modes: np.ndarray | None, inflation: np.ndarray) -> np.ndarray:
    factors = 1 / np.sqrt(np.maximum(1 + inflation, 1e-12))
    if modes is None and L.ndim == 1:
        return factors
    axes = np.eye(len(factors)) if modes is None else modes
    if L.ndim == 1:
        return L[:, None] * (axes * factors) @ axes.T / L
    return L @ (axes * factors) @ axes.T @ np.linalg.inv(L)


def _in_z(L: np.ndarray, modes: np.ndarray | None, curvature: np.ndarray) -> Any:
    """Inflations of modes -> inflations of the variances of z."""
    if modes is None and L.ndim == 1:
        return lambda inflation: inflation
    axes = np.eye(len(curvature)) if modes is None else modes
    axes = L @ axes if L.ndim == 2 else L[:, None] * axes
    weight = axes**2 / curvature
    weight = weight / weight.sum(1, keepdims=True)

    def by_z(inflation):
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(inflation).all(), weight @ np.nan_to_num(inflation, posinf=0), np.inf)

    return by_z
