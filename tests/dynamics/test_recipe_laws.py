"""
The recipe without sampling: for a dynamics with drift f and diffusion D that leaves pi, E_pi[f . grad phi + D : grad
grad phi] is 0 for every phi. Expectations are by quadrature, f and D are those of the step as shipped.
"""

import itertools

import jax
import jax.numpy as jnp
from laws import drift_and_diffusion, quadrature, stationarity
import numpy as np
import pytest

from numpyro_sgmcmc import LinearMap, Recipe
from numpyro_sgmcmc.dynamics import recipe as module
from numpyro_sgmcmc.dynamics.divergence import divergence
from numpyro_sgmcmc.dynamics.matrices import Layout, Matrix
from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.skew import Skew
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.types import Phase

pytestmark = [pytest.mark.optimised, pytest.mark.usefixtures("x64")]
ZERO = 1e-6


def energy(z):
    """Not symmetric, not Gaussian, and correlated: what hides errors is left out."""
    return (
        z[0] ** 4 / 4
        + z[0] / 2
        + (z[1] ** 2 - 0.6 * z[0] * z[1] + 0.1 * z[1] ** 3 / (1 + z[1] ** 2) if z.size > 1 else 0)
    )


def residual(dynamics, word, phase_of, nodes, weights):
    gradient = lambda z: {"z": jax.grad(energy)(z["z"])}  # noqa: E731
    return stationarity(lambda x: drift_and_diffusion(dynamics, word, phase_of(x), gradient), nodes, weights).max()


def position(x):
    return Phase({"z": x})


def with_momentum(d):
    return lambda x: Phase({"z": x[:d]}, {"z": x[d:]})


def with_auxiliary(d):
    return lambda x: Phase({"z": x[:d]}, {"z": x[d : 2 * d]}, (), {"xi": x[2 * d]})


# -- the dynamics that the package has beside the recipe -----------------------------------------------------------

SKEW = Skew([[0.0, 0.8], [-0.8, 0.0]])
OWN = [
    (Overdamped(0.5, SKEW), "euler"),
    *((Underdamped(1.5, 2.0, SKEW), word) for word in ("euler", "RABOBAR")),
    (NoseHoover(1.5, 1.0, SKEW), "ssi"),
    (Overdamped(), "euler"),
    (Overdamped({"z": np.array([0.5, 2.0])}), "euler"),
    *((Underdamped(1.5, {"z": np.array([0.5, 2.0])}), word) for word in ("euler", "ssi", "BAOAB")),
    *((NoseHoover(1.5, elementwise=elementwise), word) for elementwise in (False, True) for word in ("euler", "ssi")),
]


@pytest.mark.parametrize("dynamics, word", OWN)
@pytest.mark.every(4)
def test_the_dynamics_leave_their_law(dynamics, word):
    common = isinstance(dynamics, NoseHoover) and not dynamics.elementwise
    momenta = 0 if isinstance(dynamics, Overdamped) else 2
    # of the thermostats one is enough where each has its own: in one dimension
    d = 1 if isinstance(dynamics, NoseHoover) and not common else 2
    momenta = min(momenta, d)
    thermostats = int(isinstance(dynamics, NoseHoover))
    nodes, weights = quadrature(energy, momenta, thermostats, (1.5, 1 / d), d, points=31)
    if isinstance(dynamics, Underdamped) and not thermostats:
        inverse_mass = dynamics.inverse_mass_matrix
        inverse_mass = inverse_mass["z"] if isinstance(inverse_mass, dict) else np.full(2, inverse_mass)
        nodes = nodes * np.array([1, 1, *np.sqrt(1 / inverse_mass)])

    def phase_of(x):
        xi = () if not thermostats else x[2 * d] if common else {"z": x[2 * d :]}
        return Phase({"z": x[:d]}, {"z": x[d : 2 * d]} if momenta else (), xi)

    assert residual(dynamics, word, phase_of, nodes, weights) < ZERO


# -- recipes whose D and Q depend on the phase ---------------------------------------------------------------------


def dense(phase):
    a, b = phase.z["z"]
    root = jnp.stack([jnp.stack([1 + 0.3 * jnp.sin(b), 0.2 * a]), jnp.stack([0.1 * b, 1 + 0.2 * jnp.cos(a + b)])])
    return root @ root.T


def diagonal(phase):
    a, b = phase.z["z"]
    return jnp.stack([1 + 0.3 * jnp.sin(a + 2 * b), 1 + b**2 / (1 + a**2)])


def own(phase):
    return 1 / (1 + phase.z["z"] ** 2)


def scalar(phase):
    return 1 + 0.5 * jnp.tanh(phase.z["z"] @ jnp.array([1.0, -0.5]))


def skew(phase):
    a, b = phase.z["z"]
    q = jnp.sin(a) + 0.3 * b
    return jnp.stack([jnp.stack([0.0, q]), jnp.stack([-q, 0.0])])


def mapped(phase):
    matrix = dense(phase)
    return LinearMap(lambda v: matrix @ v, lambda v: jnp.linalg.cholesky(matrix) @ v)


OF_Z = {
    "scalar": Recipe(D=scalar),
    "own diagonal": Recipe(D=own),
    "diagonal": Recipe(D=diagonal),
    "dense": Recipe(D=dense),
    "linear map": Recipe(D=mapped),
    "skew": Recipe(D=1.0, Q=skew),
    "dense and skew": Recipe(D=dense, Q=skew),
    "block of a site": Recipe(D=lambda phase: {"z": dense(phase)}),
    "scalar of a site": Recipe(D=lambda phase: {"z": scalar(phase)}),
}


@pytest.mark.parametrize("name", OF_Z)
@pytest.mark.every(3)
def test_recipes_of_the_position(name):
    assert residual(OF_Z[name], "euler", position, *quadrature(energy, 0)) < ZERO


@pytest.mark.parametrize(
    "D", [own, lambda phase: jnp.exp(-(phase.z["z"][0] ** 2)), lambda phase: 2 + jnp.sin(phase.z["z"])]
)
def test_recipes_in_one_dimension(D):
    assert residual(Recipe(D=D), "euler", position, *quadrature(energy, 0, d=1)) < ZERO


def half_square(phase):
    return 0.5 * jnp.sum(phase.momentum["z"] ** 2)


def thermostat_energy(d, A):
    return lambda phase: half_square(phase) + d / 2 * (phase.auxiliary["xi"] - A) ** 2


def nose_hoover(d):
    def Q(phase):
        column = phase.momentum["z"][:, None] / d
        return {("momentum", "z"): 1.0, ("momentum", "xi"): column}

    return Recipe(D={"momentum": 1.5}, Q=Q, kinetic=thermostat_energy(d, 1.5), auxiliary={"xi": 1.5})


def riemann(metric, root):
    return Recipe(
        D=lambda phase: {"momentum": metric(phase)},
        Q=lambda phase: {("momentum", "z"): root(phase)},
        kinetic=half_square,
    )


def squared(f):
    return lambda phase: f(phase) ** 2 if f(phase).ndim < 2 else f(phase) @ f(phase).T


OF_MOMENTUM = {
    "hamiltonian": Recipe(Q={("momentum", "z"): 1.0}, kinetic=1.0),
    "SGHMC": Recipe(D={"momentum": 1.5}, Q={("momentum", "z"): 1.0}, kinetic=1.0),
    "SGRHMC, scalar": riemann(squared(scalar), scalar),
    "SGRHMC, diagonal": riemann(squared(diagonal), diagonal),
    "SGRHMC, dense": riemann(squared(dense), dense),
    "noise in both": Recipe(
        D=lambda phase: jnp.eye(4) + 0.3 * jnp.sin(phase.z["z"][0]) * jnp.ones((4, 4)) / 4,
        Q=lambda phase: {("momentum", "z"): diagonal(phase)},
        kinetic=1.0,
    ),
}


@pytest.mark.parametrize("word", ["euler", "E", "AP"])
@pytest.mark.parametrize("name", OF_MOMENTUM)
@pytest.mark.every(16)
def test_recipes_with_a_momentum(name, word):
    nodes, weights = quadrature(energy, 2, points=31)
    assert residual(OF_MOMENTUM[name], word, with_momentum(2), nodes, weights) < ZERO


@pytest.mark.parametrize("word", ["euler", "E"])
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.slow
def test_the_thermostat_as_a_recipe(d, word):
    nodes, weights = quadrature(energy, d, 1, (1.5, 1 / d), d, points=31)
    assert residual(nose_hoover(d), word, with_auxiliary(d), nodes, weights) < ZERO


def test_a_kinetic_energy_that_depends_on_the_position():
    """H = U(z) + (z p)^2 / 2 ... in one dimension, with the normalisation of p in K."""

    def kinetic(phase):
        mass = 1 + phase.z["z"] ** 2 / 4
        return jnp.sum(phase.momentum["z"] ** 2 / (2 * mass) + 0.5 * jnp.log(mass))

    recipe = Recipe(D={"momentum": 0.7}, Q={("momentum", "z"): 1.0}, kinetic=kinetic)
    nodes, weights = quadrature(energy, 1, d=1)
    nodes = np.stack([nodes[:, 0], nodes[:, 1] * np.sqrt(1 + nodes[:, 0] ** 2 / 4)], 1)
    assert residual(recipe, "euler", with_momentum(1), nodes, weights) < ZERO


# -- what must fail ------------------------------------------------------------------------------------------------

WRONG = {
    "left out": lambda J: 0 * jnp.einsum("ijj->i", J),
    "by x_i, the misprint": lambda J: jnp.einsum("iji->i", J),
    "by x_j of the transposed": lambda J: jnp.einsum("jij->i", J),
    "by x_i of the transposed": lambda J: jnp.einsum("jii->i", J),
    "by x_i of the trace": lambda J: jnp.einsum("jji->i", J),
    "by x_j of the diagonal": lambda J: jnp.einsum("iij->i", J),
    "of the wrong sign": lambda J: -jnp.einsum("ijj->i", J),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.every(6)
def test_a_wrong_index_is_seen(wrong, monkeypatch):
    """With J[i, j, k] = dA_ij / dx_k: the right one is the sum of J[i, j, j], and no other leaves the law."""
    right = lambda J: jnp.einsum("ijj->i", J)  # noqa: E731

    def residual_of(contraction):
        jacobian = lambda at, x, *_: contraction(jax.jacfwd(lambda x: at(x).dense())(x))  # noqa: E731
        monkeypatch.setattr(module, "divergence", jacobian)
        return residual(OF_Z["dense and skew"], "euler", position, *quadrature(energy, 0))

    assert residual_of(right) < ZERO
    assert residual_of(WRONG[wrong]) > 1e-3


@pytest.mark.parametrize("name", [name for name in OF_Z])
@pytest.mark.every(3)
def test_a_divergence_left_out_is_seen(name, monkeypatch):
    monkeypatch.setattr(module, "divergence", lambda at, x, *_: jnp.zeros_like(x))
    assert residual(OF_Z[name], "euler", position, *quadrature(energy, 0)) > 1e-3


def test_a_divergence_left_out_leaves_pi_over_D():
    """In one dimension, exactly: a planted fault whose law is known."""
    D = lambda z: 1 + z**2  # noqa: E731
    without = lambda z: energy(z) + jnp.log(D(z[0]))  # noqa: E731

    def step(x):
        f, diffusion = drift_and_diffusion(
            Recipe(D=lambda phase: D(phase.z["z"])), "euler", position(x), lambda z: {"z": jax.grad(energy)(z["z"])}
        )
        return f - jax.grad(lambda x: D(x[0]))(x), diffusion

    assert stationarity(step, *quadrature(without, 0, d=1)).max() < ZERO
    assert stationarity(step, *quadrature(energy, 0, d=1)).max() > 1e-3


# -- the estimate of the divergence --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["diagonal", "dense", "dense and skew", "linear map", "scalar", "own diagonal"])
def test_the_estimate_is_unbiased_over_the_signs(name):
    recipe, x = OF_Z[name], jnp.array([0.4, -1.3])
    phase, layout = position(x), Layout(position(x))
    for what, of, sign in (("D", recipe.D, 1), ("Q", recipe.Q, -1)):
        if callable(of):
            at = lambda x, of=of, what=what, sign=sign: Matrix(what, of(layout.unravel(x, phase)), layout, sign)  # noqa: E731
            exact = jnp.einsum("ijj->i", jax.jacfwd(lambda x: at(x).dense())(x))  # noqa: B023
            signs = jnp.array(list(itertools.product([-1.0, 1.0], repeat=2)))
            estimates = jnp.stack([divergence(at, x, v, False) for v in signs])
            np.testing.assert_allclose(estimates.mean(0), exact, atol=1e-12)
            np.testing.assert_allclose(divergence(at, x, signs[0], True), exact, atol=1e-12)
            if name in ("scalar", "own diagonal"):  # exact whatever the signs
                np.testing.assert_allclose(estimates, jnp.broadcast_to(exact, estimates.shape), atol=1e-12)
            elif name != "dense and skew":
                assert jnp.abs(estimates - exact).max() > 1e-3
