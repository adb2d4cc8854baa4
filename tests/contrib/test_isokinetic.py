"""The isokinetic sampler: a momentum of length 1, order 2 in h, and the bias of noise that differs by coordinate."""

import jax
from jax import random
import jax.numpy as jnp
from laws import gaussian, order, z_scores
import models
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard
from test_nogin import noisy

from numpyro_sgmcmc import Polynomial
from numpyro_sgmcmc.contrib.isokinetic import Isokinetic, SGIsokinetic
from numpyro_sgmcmc.dynamics.splitting import Splitting
from numpyro_sgmcmc.types import Evaluation, Phase
from numpyro_sgmcmc.utils import noise

ALPHA = 4.5
INVERSE_MASS = np.array([0.5, 2.0, 1.0])


# -- one step --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_a_turn_solves_its_equation():
    rng = np.random.default_rng(0)
    u, g, h, d = rng.normal(size=3), 5 * rng.normal(size=3), 0.3, 3
    u /= np.linalg.norm(u)
    y = np.sqrt(INVERSE_MASS) * g

    def equation(_, u):
        return -np.sqrt(d) / (d - 1) * (y - u * (u @ y))

    exact = solve_ivp(equation, (0, h), u, rtol=1e-10, atol=1e-12).y[:, -1]
    dynamics = Isokinetic(1.0, {"z": INVERSE_MASS})
    phase = dynamics.B(Phase({"z": jnp.zeros(3)}, {"z": jnp.asarray(u)}), jnp.asarray(h), {"z": jnp.asarray(g)})
    np.testing.assert_allclose(phase.momentum["z"], exact, rtol=1e-8)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e15])
def test_u_keeps_its_length_whatever_the_gradient(size):
    dynamics, h = Isokinetic(2.0), jnp.asarray(0.1)
    start = {"a": jnp.zeros((2, 3)), "b": jnp.ones(4)}
    phase = dynamics.init(start, noise.normal_like(random.key(0), start))
    gradient = jax.tree.map(lambda n: size * n, noise.normal_like(random.key(1), start))

    def step(phase, key):
        phase = dynamics.A(dynamics.O(dynamics.B(phase, h, gradient), h, key), h)
        return phase, sum(jnp.sum(u**2) for u in phase.momentum.values())

    last, lengths = jax.lax.scan(step, phase, random.split(random.key(2), 500))
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)
    moved = dynamics.A(last, h).z
    distance = sum(jnp.sum((moved[name] - last.z[name]) ** 2) for name in moved)
    np.testing.assert_allclose(distance, 10 * 0.1**2, rtol=1e-4)  # h^2 d


@pytest.mark.usefixtures("x64")
def test_its_noise_leaves_the_uniform_law_and_forgets_at_the_rate_of_the_friction(monkeypatch):
    angles = 2 * np.pi * np.arange(24) / 24
    start = np.stack([np.cos(angles), np.sin(angles)], 1)
    noises = np.concatenate([r * start for r in (0.3, 1.0, 2.0)])  # like the normal law the same in all directions

    def turned(u, n):
        monkeypatch.setattr(noise, "normal_like", lambda key, tree: {"z": n})
        return Isokinetic(0.8).O(Phase({"z": u}, {"z": u}), jnp.asarray(0.3), random.key(0)).momentum["z"]

    each = jax.vmap(lambda u: jax.vmap(lambda n: turned(u, n))(jnp.asarray(noises)))(jnp.asarray(start))
    # from a law that is uniform on 24 angles: moments up to order 4, averaged over the noise
    for power, exact in (((2, 0), 1 / 2), ((1, 1), 0), ((4, 0), 3 / 8), ((2, 2), 1 / 8)):
        moment = (each[..., 0] ** power[0] * each[..., 1] ** power[1]).mean()
        assert float(moment) == pytest.approx(exact, abs=1e-12)
    monkeypatch.undo()
    many = {"z": jnp.zeros(4000)}
    phase = Isokinetic(0.8).init(many, noise.normal_like(random.key(1), many))
    after = Isokinetic(0.8).O(phase, jnp.asarray(0.3), random.key(2))
    assert float(phase.momentum["z"] @ after.momentum["z"]) == pytest.approx(np.exp(-0.24), abs=0.05)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("word", ["ABOBA", "BAOAB"])
@pytest.mark.every(2)
def test_a_step_from_the_law_misses_it_by_the_third_order(word, monkeypatch):
    """So that long runs miss it by the second: U of a quartic and of correlated coordinates, two of them, by grids."""

    def energy(z):
        return z[0] ** 4 / 4 + z[0] / 2 + z[1] ** 2 + z[0] * z[1] / 2

    grid = np.linspace(-4.5, 4.5, 56)
    angles = 2 * np.pi * (np.arange(24) + 0.5) / 24
    turns = 2 * np.pi * np.arange(16) / 16
    noises = 1.4 * np.stack([np.cos(turns), np.sin(turns)], 1)  # like the normal law the same in all directions
    z1, z2, angle = (part.ravel() for part in np.meshgrid(grid, grid, angles))
    z, u = np.stack([z1, z2], 1), np.stack([np.cos(angle), np.sin(angle)], 1)
    density = np.exp(-jax.vmap(energy)(z))
    density = density / density.sum()
    dynamics, gradient = Isokinetic(1.0), jax.grad(energy)
    splitting = Splitting(word, dynamics.flows)

    def moved(z, u, n, h):
        monkeypatch.setattr(noise, "normal_like", lambda key, tree: {"z": n})
        at = lambda z: Evaluation(jnp.zeros(()), {"z": gradient(z["z"])}, ())  # noqa: E731
        first = {"z": gradient(z)}
        phase, *_ = splitting.step(dynamics, Phase({"z": z}, {"z": u}), first, h, at, random.key(0))
        return jnp.concatenate([phase.z["z"], phase.momentum["z"]])

    def tests(x):
        # those that are odd in u too: of even ones the third order is small, as ABA run backwards is ABA with -u
        return jnp.stack([x[0], x[0] ** 2, x[1] ** 2, x[0] * x[2], jnp.sin(x[1]) * x[3], x[0] ** 2 * x[1] * x[3]])

    @jax.jit
    def drift(h):
        over_noise = lambda z, u: jax.vmap(lambda n: tests(moved(z, u, n, h)))(noises).mean(0)  # noqa: E731
        before = jax.vmap(lambda z, u: tests(jnp.concatenate([z, u])))(z, u)
        return density @ (jax.vmap(over_noise)(z, u) - before)

    steps = (0.05, 0.025)
    errors = [float(np.abs(drift(h)).max()) for h in steps]
    assert errors[0] < 1e-3
    assert order(errors, steps) == pytest.approx(3, abs=0.15)


# -- noise of the gradient -------------------------------------------------------------------------------------------

D, STEP, FRICTION = 31, 0.05, 1.0
HEAT = np.where(np.arange(D) < 16, 0.2, 1.8)  # x of each coordinate


def variances(kernel, slopes, chains=64, steps=1500):
    """Mean square of each coordinate in each chain, from a start in the law without noise."""
    start = {"z": random.normal(random.key(8), (chains, D))}
    state = kernel.init(random.split(random.key(7), chains), 0, start, (slopes,), {})

    def body(carry, _):
        state = kernel.sample(carry[0], (slopes,), {})
        return (state, carry[1] + state.z["z"] ** 2), None

    def run(state):
        state = jax.lax.fori_loop(0, 200, lambda _, s: kernel.sample(s, (slopes,), {}), state)
        return jax.lax.scan(body, (state, jnp.zeros((chains, D))), None, length=steps)[0][1] / steps

    return np.asarray(jax.jit(run)(state))


@pytest.mark.slow
@pytest.mark.optimised
def test_noise_that_differs_by_coordinate_heats_one_and_cools_the_other_unless_the_mass_is_its_own():
    signs = hadamard(32)[:, 1:].astype(np.float32)  # of the rows: uncorrelated, with mean 0
    s = np.sqrt(2 * HEAT / STEP)
    options = {"step_size": STEP, "friction": FRICTION, "batch_size": 1}
    found = {}
    for mass in (None, "noise"):
        kernel = SGIsokinetic(noisy(np.eye(D)), inverse_mass_matrix=mass, **options)
        found[mass] = variances(kernel, signs * s / 32)
    quiet, loud = (found[None][:, part].mean(1) for part in (HEAT < 1, HEAT > 1))
    relative = Isokinetic(FRICTION).inflation(Phase({}), jnp.asarray(STEP), {"z": jnp.asarray(s**2)})["z"]
    # to first order in h and 1 / d
    assert quiet.mean() - 1 == pytest.approx(float(relative[0]), rel=0.2)
    assert loud.mean() - 1 == pytest.approx(float(relative[-1]), rel=0.2)
    assert abs(z_scores(quiet, 1)) > 3 * ALPHA
    both = [found["noise"][:, part].mean(1) for part in (HEAT < 1, HEAT > 1)]
    for each in both:
        assert abs(each.mean() - 1) < 0.1 * np.abs(relative).min() + ALPHA * each.std() / np.sqrt(len(each))


# -- what it refuses, and what else looks at it ----------------------------------------------------------------------


def test_what_it_refuses():
    with pytest.raises(ValueError, match="step_size= is missing"):
        SGIsokinetic(gaussian())
    with pytest.raises(ValueError, match="step_size= is missing"):
        SGIsokinetic(gaussian(), step_size=Polynomial(None, 1.0, 0.5))
    with pytest.raises(ValueError, match="inverse_mass_matrix must"):
        SGIsokinetic(gaussian(), step_size=0.1, inverse_mass_matrix="gradient")
    with pytest.raises(ValueError, match="a single latent coordinate"):
        SGIsokinetic(models.gaussian, step_size=0.1).init(random.key(0), 0, None, (models.ROWS,), {})


def test_a_refused_step_turns_u_around():
    phase = Phase({"z": jnp.zeros(2)}, {"z": jnp.array([0.6, -0.8])})
    turned = Isokinetic(1.0).reverse(phase, jnp.asarray(0.5)).momentum["z"]
    np.testing.assert_allclose(turned, [-0.6, 0.8])
