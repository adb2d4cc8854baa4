"""A constant skew matrix: the exact law of linear steps, what it gains, what is refused."""

from jax import random
import jax.numpy as jnp
from laws import affine_step, gaussian, order, stationary_covariance
import numpy as np
import pytest
from scipy.linalg import expm

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD
from numpyro_sgmcmc.dynamics.skew import Skew

pytestmark = pytest.mark.usefixtures("x64")

PRECISION = np.array([[1.0, 0.5], [0.5, 2.0]])
Q = np.array([[0.0, 1.5], [-1.5, 0.0]])
STEPS = (0.08, 0.04, 0.02)


@pytest.mark.parametrize(
    "make, K",
    [
        (lambda h: SGLD(gaussian(PRECISION), step_size=h, skew=Q), 1),
        (lambda h: SGLD(gaussian(PRECISION), step_size=h, skew=Q, inverse_mass_matrix=0.5), 1),
        (lambda h: SGHMC(gaussian(PRECISION), step_size=h, skew=Q), 2),
        (lambda h: SGHMC(gaussian(PRECISION), step_size=h, skew=Q, integrator="ssi", inverse_mass_matrix=2.0), 2),
        (lambda h: SGHMC(gaussian(PRECISION), step_size=h, skew=Q, integrator="euler"), 1),
    ],
)
@pytest.mark.every(3)
def test_the_law_is_that_without_a_skew_matrix(make, K, monkeypatch):
    def error(h):
        kernel = make(h)
        covariance = stationary_covariance(*affine_step(kernel, monkeypatch))
        target = np.eye(len(covariance)) / kernel.dynamics.inverse_mass_matrix
        target[:2, :2] = np.linalg.inv(PRECISION)
        return np.abs(covariance - target).max()

    assert order([error(h) for h in STEPS], STEPS) == pytest.approx(K, abs=0.15)


@pytest.mark.parametrize("mass", [None, 2.0])
def test_the_momentum_is_turned_by_the_exact_flow(mass):
    matrix = np.array([[0.0, 1.0, -2.0], [-1.0, 0.0, 0.3], [2.0, -0.3, 0.0]])
    kernel = SGHMC(gaussian(np.eye(3)), step_size=0.1, skew=matrix, inverse_mass_matrix=mass)
    p = np.array([0.3, -1.0, 2.0])
    phase = kernel.init(random.key(0), 0, {"z": p}, (), {}).phase._replace(momentum={"z": jnp.asarray(p)})
    turned = kernel.dynamics.R(phase, jnp.asarray(0.7)).momentum["z"]
    np.testing.assert_allclose(turned, expm(-0.7 * (mass or 1) * matrix) @ p, atol=1e-12)


def test_the_slow_direction_becomes_faster(monkeypatch):
    """Overdamped: the largest eigenvalue of a step leaves 1 by eight times as much, at the same error of the law."""
    precision = np.diag([1.0, 100.0])

    def step(h, q):
        M, S = affine_step(SGLD(gaussian(precision), step_size=h, skew=q * Q / 1.5), monkeypatch)
        error = np.abs(stationary_covariance(M, S) @ precision - np.eye(2)).max()
        return 1 - np.abs(np.linalg.eigvals(M)).max(), error

    plain, skewed = step(1e-3, 0.0), step(2e-4, 5.0)
    assert skewed[0] > 8 * plain[0]
    assert skewed[1] < 1.05 * plain[1]


@pytest.mark.parametrize(
    "kernel, options, message",
    [
        (SGLD, {"skew": np.ones((2, 2)), "step_size": 0.1}, r"skew\[0, 0\] = 1, but skew\[0, 0\] = 1"),
        (SGLD, {"skew": np.zeros((2, 3)), "step_size": 0.1}, r"has shape \(2, 3\)"),
        (SGLD, {"skew": np.nan * Q, "step_size": 0.1}, "must contain finite numbers"),
        (SGHMC, {"skew": Q}, "Give a step_size"),
        (MSGNHT, {"skew": Q, "step_size": 0.1, "inverse_mass_matrix": {"z": [1.0, 2.0]}}, "as a number"),
        (SGHMC, {"skew": Q, "step_size": 0.1, "integrator": "ABOBA"}, "rotation of the momentum 'R' is missing"),
        (SGHMC, {"step_size": 0.1, "integrator": "RABOBAR"}, "no flow 'R'"),
    ],
)
def test_what_is_no_skew_matrix_is_refused(kernel, options, message):
    with pytest.raises(ValueError, match=message):
        kernel(gaussian(), **options)


def test_a_matrix_over_other_coordinates_is_refused():
    kernel = MSGNHT(gaussian(), step_size=0.1, skew=np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"has 2 coordinates, those of \['z'\]"):
        kernel.init(random.key(0), 0, None, (), {})


def test_a_gradient_is_multiplied_by_site():
    z = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    matrix = np.array([[0.0, 1.0, -2.0], [-1.0, 0.0, 0.3], [2.0, -0.3, 0.0]])
    times = Skew(matrix).times(z)
    np.testing.assert_allclose([*times["a"], times["b"]], matrix @ [1, 2, 3])
