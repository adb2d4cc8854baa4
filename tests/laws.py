"""
Judges of a sampler's law. None of them depends on luck.

- :func:`affine_step`, :func:`stationary_covariance`: on a Gaussian target a step is affine in state and noise, so its
  Jacobian, taken of the kernel as shipped, gives the stationary law exactly.
- :func:`local_errors`: the one-step law against the exact flow, E f = exp(h L) f + O(h^(K+1)) (Chen, Ding & Carin 2015,
  Definition 1), by Gauss-Hermite quadrature over the noise and automatic differentiation of the generator L.
- :func:`order`: the slope of log error against log h.
"""

import itertools

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.linalg import solve_discrete_lyapunov

from numpyro_sgmcmc import trees
from numpyro_sgmcmc.base import Phase

PRECISION = np.array([[2.0, 0.6], [0.6, 1.0]])  # correlated: a symmetric target hides sign errors


def gaussian(precision=PRECISION):
    """A model whose potential is z'Pz/2 and nothing else."""

    def model():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (len(precision),)))
        numpyro.factor("U", -0.5 * z @ jnp.asarray(precision, z.dtype) @ z)

    return model


def with_noise(monkeypatch, noises):
    """Hand in the noise of a step: one tree for each draw, in order."""
    supply = iter(noises)
    monkeypatch.setattr(trees, "normal_like", lambda key, tree: next(supply))


def draws(kernel):
    return sum(letter in "NOE" for letter in kernel.integrator.word)


def affine_step(kernel, monkeypatch, state=None):
    """
    Jacobians of one ``kernel.sample`` with respect to (z, p) and to the noise.

    :param state: any state of the kernel, to save an ``init``.
    :return: M, S with x' = M x + S n.
    """
    state = kernel.init(random.key(0), 0, None, (), {}) if state is None else state
    zero = jnp.zeros_like(state.z["z"])
    d, second_order = zero.size, state.momentum != ()
    gradient = jax.grad(lambda z: kernel._potential((), {}).estimate({"z": z}, {}))

    def step(x, n):
        with_noise(monkeypatch, [{"z": block} for block in n])
        z = x[:d]
        moved = kernel.sample(
            state._replace(
                z={"z": z},
                momentum={"z": x[d:]} if second_order else (),
                gradient={"z": gradient(z)} if kernel.integrator.carries_gradient else (),
            ),
            (),
            {},
        )
        return jnp.concatenate([moved.z["z"], moved.momentum["z"]]) if second_order else moved.z["z"]

    x = jnp.zeros(2 * d if second_order else d)
    n = jnp.zeros((draws(kernel), d))
    M, S = jax.jit(jax.jacobian(step, argnums=(0, 1)))(x, n)
    monkeypatch.undo()
    return np.asarray(M), np.asarray(S).reshape(len(x), -1)


def stationary_covariance(M, S):
    """Sigma = M Sigma M' + S S'."""
    assert np.abs(np.linalg.eigvals(M)).max() < 1, "the step is unstable"
    return solve_discrete_lyapunov(M, S @ S.T)


def order(errors, steps):
    """Slope of log error against log h between neighbours, the last of them (the smallest steps)."""
    return float(np.log(errors[-2] / errors[-1]) / np.log(steps[-2] / steps[-1]))


def generator(dynamics, potential):
    """
    L of the SDE in one dimension, f -> L f, for phases (z, p, xi) as a vector; unused coordinates stay 0.

    Written from the SDE, not from the flows: z' = p, p' = -U' - r p + sqrt(2 D) W', xi' = p^2 - 1 with r = xi or D,
    or z' = -U' + sqrt(2) W'.
    """
    gradient = jax.grad(potential)
    name = type(dynamics).__name__

    def L(f):
        def Lf(x):
            z, p, xi = x
            df, d2f = jax.grad(f)(x), jnp.diag(jax.hessian(f)(x))
            if name == "Overdamped":
                return -gradient(z) * df[0] + d2f[0]
            D = dynamics.noise
            rate, dxi = (xi, p * p - 1) if name == "NoseHoover" else (D, 0.0)
            return p * df[0] + (-gradient(z) - rate * p) * df[1] + D * d2f[1] + dxi * df[2]

        return Lf

    return L


def local_errors(kernel, potential, monkeypatch, steps, x0):
    """
    max over test functions of |E f(X_h) - sum_{k<=2} h^k L^k f / k!| for each h: O(h^2) for K = 1, O(h^3) for K = 2.
    """
    tests = [
        lambda x: x[0],
        lambda x: x[1],
        lambda x: x[0] ** 2 * x[1],
        lambda x: x[1] ** 2,
        lambda x: x[2] * x[1] ** 2,
        lambda x: jnp.sin(x[0]) * x[1] ** 2,
    ]
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    count = draws(kernel)
    grid = np.array(list(itertools.product(nodes, repeat=count)))
    mass = np.prod(list(itertools.product(weights / weights.sum(), repeat=count)), axis=1)
    tests = tests if kernel.dynamics.flows != "E" else [tests[0], lambda x: x[0] ** 2, lambda x: jnp.sin(x[0])]
    has_thermostat = "D" in kernel.dynamics.flows
    has_momentum = kernel.dynamics.flows != "E"

    def moved(h, noise):
        with_noise(monkeypatch, list(noise))
        z, p, xi = jnp.asarray(x0)
        phase = Phase(z, p if has_momentum else (), xi if has_thermostat else ())
        evaluate = lambda z: _Gradient(jax.grad(potential)(z))  # noqa: E731
        carried = jax.grad(potential)(z) if kernel.integrator.carries_gradient else ()
        phase, *_ = kernel.integrator.step(kernel.dynamics, phase, carried, h, evaluate, random.key(0))
        return jnp.stack([jnp.zeros(()) if isinstance(part, tuple) else part for part in phase])

    L = generator(kernel.dynamics, potential)
    x = jnp.asarray(x0) * jnp.array([1.0, has_momentum, has_thermostat])

    @jax.jit
    def worst(h):
        ends = jax.vmap(lambda n: moved(h, n))(jnp.asarray(grid))
        exact = [f(x) + h * L(f)(x) + h**2 / 2 * L(L(f))(x) for f in tests]
        mean = [jnp.asarray(mass) @ jax.vmap(f)(ends) for f in tests]
        return jnp.max(jnp.abs(jnp.stack(mean) - jnp.stack(exact)))

    errors = np.array([worst(h) for h in steps])
    monkeypatch.undo()
    return errors


class _Gradient:
    def __init__(self, gradient):
        self.gradient = gradient


def z_scores(estimates, truth):
    """Distance of the mean of replicates (axis 0, one a chain) from the truth, in standard errors."""
    estimates = np.asarray(estimates, float)
    error = estimates.std(0, ddof=1) / np.sqrt(len(estimates))
    return (estimates.mean(0) - np.asarray(truth)) / error
