r"""
The stationary variance of a kernel on a normal posterior, with the effects of step size and minibatch noise.

With :math:`\nabla U(y) = \lambda y` and gradient noise of variance :math:`s^2` a step of a word is affine,

.. math:: u' = M u + B n + G e, \qquad \Sigma = M \Sigma M^T + B B^T + s^2 G G^T,

where u consists of the position, the momentum if there is one, and the gradient if it is carried to the next step. M,
B and G are computed by the kernel's own code. The inflation is :math:`\lambda \Sigma_{yy} - 1`.

For independent batches e is white noise. Within an epoch of E reshuffled batches the errors sum to zero,
:math:`\mathrm{Cov}(e_t, e_{t'}) = s^2 \frac{E}{E - 1} (\delta_{tt'} - 1/E)`, so the variance that they add is

.. math:: \frac{E}{E-1} \left(\Sigma_{white} - \Sigma_{epoch} / E\right),

where :math:`\Sigma_{epoch}` is the variance for noise that is constant within an epoch and independent between epochs,
averaged over the steps of an epoch.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Dynamics, Evaluation, Integrator
from numpyro_sgmcmc.utils import noise

TRIES = 8  # steps per draw of noise from which B is found by least squares
PLACES = 16  # number of steps of an epoch over which the variance is averaged


class Law(NamedTuple):
    """Arrays by mode, shape ``(d,)``."""

    step: np.ndarray  # relative error of the variance without gradient noise
    noise: np.ndarray  # variance that gradient noise adds, relative to that of the posterior
    radius: np.ndarray  # spectral radius of M: the step is stable if it is below 1


def linear_law(
    dynamics: Dynamics,
    integrator: Integrator,
    h: float,
    curvature: np.ndarray,
    variance: np.ndarray,
    *,
    thermostat: Any = (),
    known: np.ndarray | None = None,
    epoch: float = 1.0,
) -> Law:
    """
    :param h: step size, for unit mass.
    :param curvature: :math:`\\lambda > 0` of each mode, shape ``(d,)``.
    :param variance: variance s^2 of the gradient noise of each mode, shape ``(d,)``.
    :param thermostat: the mean of the thermostat, or of each; ``()`` for a dynamics without thermostats.
    :param known: the variance that the word subtracts (NOGIN), like ``variance``.
    :param epoch: batches per epoch of reshuffled rows; 1: independent batches.
    """
    with jax.enable_x64(True):
        maps = _maps(dynamics, integrator, h, np.asarray(curvature, float), thermostat, known)
    M, B, G = (np.nan_to_num(np.asarray(x, float), nan=1e30, posinf=1e30, neginf=-1e30) for x in maps)
    radius = np.abs(np.linalg.eigvals(M)).max(-1)
    injected = np.einsum("dik,djk->dij", B, B)
    added = np.einsum("di,dj->dij", G, G)
    stable = radius < 1 - 1e-9
    safe = np.where(stable[:, None, None], M, 0.0)
    alone, white = (_stationary(safe, q)[:, 0, 0] for q in (injected, added))
    if epoch >= 2:
        white = epoch / (epoch - 1) * (white - _of_epochs(safe, G, round(epoch)) / epoch)
    infinite = lambda x: np.where(stable, x, np.inf)  # noqa: E731
    return Law(infinite(curvature * alone - 1), infinite(curvature * variance * np.maximum(white, 0)), radius)


class _Frozen:
    """A dynamics with constant thermostats: only their mean matters here."""

    def __init__(self, dynamics: Any):
        self.dynamics = dynamics

    def __getattr__(self, name: str) -> Any:
        flow = getattr(self.dynamics, name)
        if name not in self.dynamics.flows:
            return flow
        return lambda phase, *inputs: flow(phase, *inputs)._replace(thermostat=phase.thermostat)


def _maps(dynamics: Any, integrator: Any, h: float, curvature: np.ndarray, thermostat: Any, known: Any) -> tuple:
    """M, B and G, shapes ``(d, m, m)``, ``(d, m, draws)`` and ``(d, m)``."""
    d = len(curvature)
    zero, lam = jnp.zeros(d), jnp.asarray(curvature, float)
    if getattr(dynamics, "inverse_mass_matrix", None) is not None:
        dynamics = replace(dynamics, inverse_mass_matrix=1.0)
    dynamics = _Frozen(dynamics)
    start = dynamics.init(zero, zero)
    if not isinstance(start.thermostat, tuple):
        start = start._replace(thermostat=jnp.full_like(start.thermostat, thermostat))
    if integrator.needs_variance:
        start = start._replace(noise_variance=jnp.zeros(d) if known is None else jnp.asarray(known, float))
    second = not isinstance(start.momentum, tuple)
    carries = integrator.carries_gradient

    def step(u, e, key):
        phase = start._replace(z=u[0], momentum=u[1] if second else ())
        evaluate = lambda z: Evaluation(jnp.zeros(()), lam * z + e, ())  # noqa: E731
        new, gradient, _ = integrator.step(dynamics, phase, u[-1] if carries else (), jnp.asarray(h), evaluate, key)
        return jnp.stack([new.z, *([new.momentum] if second else []), *([gradient] if carries else [])])

    m = 1 + second + carries
    rest, key = jnp.zeros((m, d)), random.key(0)
    _, linear = jax.linearize(lambda u, e: step(u, e, key), rest, zero)
    M = jnp.moveaxis(jnp.stack([linear(rest.at[k].set(1.0), zero) for k in range(m)], 1), -1, 0)
    G = linear(rest, jnp.ones(d)).T
    draws = sum(integrator.flows[letter].needs_noise for letter in integrator.word)
    keys = random.split(key, TRIES * draws)
    tried = jnp.stack([step(rest, zero, k) for k in keys])  # the effect of the noise alone
    each = [[k] if draws == 1 else list(random.split(k, draws)) for k in keys]
    used = jnp.stack([jnp.stack([noise.normal_like(k, zero) for k in row]) for row in each])
    B = jax.vmap(lambda a, b: jnp.linalg.lstsq(a, b)[0].T, (2, 2))(used, tried)
    return M, B, G


def _stationary(M: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """S = M S M^T + Q, for each mode."""
    d, m, _ = M.shape
    kronecker = np.einsum("dij,dkl->dikjl", M, M).reshape(d, m * m, m * m)
    return np.linalg.solve(np.eye(m * m) - kronecker, Q.reshape(d, m * m, 1)).reshape(d, m, m)


def _of_epochs(M: np.ndarray, G: np.ndarray, epoch: int) -> np.ndarray:
    """The variance from unit noise that is constant within an epoch, averaged over the steps of an epoch."""
    identity = np.eye(M.shape[-1])

    def after(steps):
        power = np.linalg.matrix_power(M, steps)
        return power, np.linalg.solve(identity - M, (identity - power) @ G[..., None])

    power, response = after(epoch)
    at_start = _stationary(power, response @ response.swapaxes(-1, -2))
    places = np.unique(np.linspace(1, epoch, min(PLACES, epoch)).round().astype(int))
    total = 0.0
    for place in places:
        power, response = after(int(place))
        total = total + (power @ at_start @ power.swapaxes(-1, -2) + response @ response.swapaxes(-1, -2))[:, 0, 0]
    return np.asarray(total) / len(places)
