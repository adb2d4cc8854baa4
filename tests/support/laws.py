"""
Judges of a sampler's law. None of them depends on luck.

- :func:`affine_step`, :func:`stationary_covariance`: on a Gaussian target a step is affine in state and noise, so its
  Jacobian, taken of the kernel as shipped, gives the stationary law exactly.
- :func:`local_errors`: the one-step law against the exact flow, E f = exp(h L) f + O(h^(K+1)) (Chen, Ding & Carin 2015,
  Definition 1), by Gauss-Hermite quadrature over the noise and automatic differentiation of the generator L.
- :func:`minibatch_maps`, :func:`law_of_independent_batches`, :func:`epoch_maps`: the same with minibatches, whose
  batches are all listed: the law under independent batches, and over reshuffled epochs.
- :func:`order`: the slope of log error against log h.
"""

from dataclasses import dataclass
import itertools

import jax
from jax import lax, random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.linalg import solve_discrete_lyapunov

from numpyro_sgmcmc.dynamics.splitting import named
from numpyro_sgmcmc.types import Phase
from numpyro_sgmcmc.utils import noise

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
    monkeypatch.setattr(noise, "normal_like", lambda key, tree: next(supply))


def draws(kernel):
    return sum(letter in "NOEG" for letter in kernel.integrator.word)


def affine_step(kernel, monkeypatch, state=None):
    """
    Jacobians of one ``kernel.sample`` with respect to (z, p) and to the noise.

    :param state: any state of the kernel, to save an ``init``.
    :return: M, S with x' = M x + S n.
    """
    state = kernel.init(random.key(0), 0, None, (), {}) if state is None else state
    zero = jnp.zeros_like(state.z["z"])
    d, second_order = zero.size, state.momentum != ()
    gradient = jax.grad(lambda z: kernel.potential((), {}).estimate({"z": z}, {}))

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
    tests = tests if "A" in kernel.dynamics.flows else [tests[0], lambda x: x[0] ** 2, lambda x: jnp.sin(x[0])]
    has_thermostat = "D" in kernel.dynamics.flows
    has_momentum = "A" in kernel.dynamics.flows

    def moved(h, noise):
        with_noise(monkeypatch, list(noise))
        z, p, xi = jnp.asarray(x0)
        phase = Phase(z, p if has_momentum else (), xi if has_thermostat else ())
        evaluate = lambda z: _Gradient(jax.grad(potential)(z))  # noqa: E731
        carried = jax.grad(potential)(z) if kernel.integrator.carries_gradient else ()
        phase, *_ = kernel.integrator.step(kernel.dynamics, phase, carried, h, evaluate, random.key(0))
        return jnp.stack([jnp.zeros(()) if isinstance(part, tuple) else part for part in phase[:3]])

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


# -- without sampling ----------------------------------------------------------------------------------------------


def drift_and_diffusion(dynamics, word, phase, gradient):
    """
    f and D of the step as shipped, with which X_h = x + f h + sqrt(2 D h) n for small h, raveled.

    :param gradient: z -> gradient of U.
    """
    h = 1e-10
    flat, unravel = ravel_pytree((phase.z, phase.momentum, phase.thermostat, phase.auxiliary))
    splitting = named(word, dynamics)
    flows = [splitting.flows[letter] for letter in splitting.word]
    shared = any(flow.shares_noise for flow in flows)
    count = 1 if shared else sum(flow.needs_noise for flow in flows)
    one, unravel_noise = ravel_pytree(dynamics.noise_like(phase) if shared else phase.z)
    evaluate = lambda z: _Gradient(gradient(z))  # noqa: E731
    carried = gradient(phase.z) if splitting.carries_gradient else ()

    def moved(h, noises):
        with pytest.MonkeyPatch.context() as patch:
            with_noise(patch, [unravel_noise(n) for n in noises])
            new, *_ = splitting.step(dynamics, phase, carried, h, evaluate, random.key(0))
        return ravel_pytree((new.z, new.momentum, new.thermostat, new.auxiliary))[0]

    still = jnp.zeros((count, one.size))
    _, f = jax.jvp(lambda h: moved(h, still), (jnp.asarray(h),), (jnp.ones(()),))
    J = jax.jacobian(lambda n: moved(jnp.asarray(h), n))(still).reshape(flat.size, -1)
    return f, J @ J.T / (2 * h)


def quadrature(energy, momenta, thermostats=0, thermostat=(0.0, 1.0), d=2, points=61, width=5.0):
    """
    Nodes and weights of exp(-U) times the normal laws of momenta and thermostats: the trapezoidal rule in z, Gauss and
    Hermite's in the others. Shapes ``(k, d + momenta + thermostats)`` and ``(k,)``.

    :param thermostat: mean and variance of the thermostats.
    """
    line = np.linspace(-width, width, points)
    z = np.stack(np.meshgrid(*d * [line], indexing="ij"), -1).reshape(-1, d)
    mass = np.exp(-jax.vmap(energy)(z))
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    mean, variance = thermostat
    axes = momenta * [nodes] + thermostats * [mean + np.sqrt(variance) * nodes]
    if axes:
        others = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
        of_others = np.prod(np.stack(np.meshgrid(*len(axes) * [weights], indexing="ij"), -1).reshape(-1, len(axes)), 1)
        z = np.concatenate([np.repeat(z, len(others), 0), np.tile(others, (len(z), 1))], 1)
        mass = np.outer(mass, of_others).ravel()
    keep = mass > 1e-10 * mass.max()
    return z[keep], mass[keep] / mass.sum()


def stationarity(step, nodes, weights, seed=0, tests=4):
    """
    E_pi[f . grad phi + D : grad grad phi] for random polynomials phi of degree 3, relative to the mean of the absolute
    value: 0 for a dynamics that leaves pi.

    :param step: x -> f, D.
    """
    n = nodes.shape[1]
    rng = np.random.default_rng(seed)
    powers = np.array([a for a in itertools.product(range(4), repeat=n) if 0 < sum(a) <= 3])
    coefficients = rng.normal(size=(tests, len(powers)))

    def phis(x):
        table = jnp.stack([jnp.ones_like(x), x, x * x, x * x * x])  # a power of 0 has no second derivative
        return jnp.asarray(coefficients) @ jnp.prod(table[powers, np.arange(n)], 1)

    @jax.jit
    def generated(x):
        f, D = step(x)
        return jax.jacfwd(phis)(x) @ f + jnp.einsum("kij,ij->k", jax.jacfwd(jax.jacfwd(phis))(x), D)

    values = np.asarray(lax.map(generated, jnp.asarray(nodes), batch_size=4096))
    return np.abs(weights @ values) / (weights @ np.abs(values))


# -- minibatches ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """A row scheme that hands out the batches of a list, so that a test says which rows come at step t."""

    batches: tuple
    independent = True
    distinct = True

    def __call__(self, rng_key, t, size, batch_size):
        return jnp.asarray(self.batches, jnp.int32)[t]


def minibatch_maps(kernel, args, monkeypatch, **parts):
    """
    The step as shipped, x' = M x + c + S n for each batch of the kernel's :class:`Listed` rows, where the potential is
    quadratic. x is all that the next step depends on: position, momentum, and what the estimator remembers.

    :param parts: of the state, in place of those that ``init`` found.
    :return: M, c, S with the batches along axis 0, and the x at which the kernel starts.
    """
    state = kernel.init(random.key(0), 0, None, args, {})._replace(**parts)
    moving = lambda s: (s.z, s.momentum, s.gradient_state)  # noqa: E731
    start, unravel = ravel_pytree(moving(state))
    d = ravel_pytree(state.z)[0].size
    batches = len(getattr(kernel.rows, "scheme", kernel.rows).batches)

    def step(x, n, t):
        with_noise(monkeypatch, [jax.tree.unflatten(jax.tree.structure(state.z), [block]) for block in n])
        z, momentum, gradient_state = unravel(x)
        rows_state = state.rows_state._replace(t=t)
        i = jnp.int32(0)  # SVRG renews its anchor by a step of its own in these laws
        moved = kernel.sample(
            state._replace(z=z, momentum=momentum, gradient_state=gradient_state, rows_state=rows_state, i=i), args, {}
        )
        return ravel_pytree(moving(moved))[0]

    # affine, so that differences are exact; one at a time, as a single chain steps
    k, noises = start.size, draws(kernel) * d
    points = jnp.eye(k + noises + 1)[:, 1:]  # the origin and the unit vectors
    run = jax.jit(lambda t: lax.map(lambda xn: step(xn[:k], xn[k:].reshape(-1, d), t), points))
    moved = np.stack([run(t) for t in range(batches)])
    monkeypatch.undo()
    c = moved[:, 0]
    columns = (moved[:, 1:] - c[:, None]).transpose(0, 2, 1)
    return columns[:, :, :k], c, columns[:, :, k:], np.asarray(start)


def law_of_independent_batches(M, c, Q, x):
    """
    Mean and covariance of x' = M_b x + c_b + noise of covariance Q_b, with b uniform and independent at every step, a
    million steps after the start at x: the recursion of the first two moments, squared over and over. (What is
    conserved, the point of a control variate for one, stays what it was.)
    """
    k = len(x) + 1
    A = np.zeros((len(M), k, k))
    A[:, 0, 0], A[:, 1:, 0], A[:, 1:, 1:] = 1, c, M
    # of the second moments of (1, x), the first of which is 1
    step = np.einsum("bij,bkl->ikjl", A, A).reshape(k * k, k * k) / len(A)
    step.reshape(k, k, k * k)[1:, 1:, 0] += Q.mean(0)
    for _ in range(20):
        step = step @ step
        assert np.abs(step).max() < 1e12, "the second moments grow"
    start = np.concatenate([[1], x])
    moments = (step @ np.outer(start, start).ravel()).reshape(k, k)
    return moments[1:, 0], moments[1:, 1:] - np.outer(moments[1:, 0], moments[1:, 0])


def epoch_maps(M, c, Q, orders):
    """The maps of whole epochs: the batches of each order composed, one after the other."""
    composed = []
    for order_ in orders:
        A, b, P = np.eye(M.shape[1]), np.zeros(M.shape[1]), np.zeros(M.shape[1:])
        for batch in order_:
            A, b, P = M[batch] @ A, M[batch] @ b + c[batch], M[batch] @ P @ M[batch].T + Q[batch]
        composed.append((A, b, P))
    return tuple(np.stack(part) for part in zip(*composed))
