"""Recipes as kernels: the rows of the slides' table against the kernels that the package has, laws, and refusals."""

import jax
from jax import random
import jax.numpy as jnp
from laws import PRECISION, gaussian, with_noise, z_scores
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest
from scipy.linalg import solve_discrete_lyapunov

from numpyro_sgmcmc import (
    SGHMC,
    SGLD,
    SGMCMC,
    SGNHT,
    SGRHMC,
    SGRLD,
    Energy,
    Fisher,
    LinearMap,
    Recipe,
    Reshuffled,
    WithoutReplacement,
)
from numpyro_sgmcmc.dynamics.metrics import fixed_rows

ALPHA = 4.5
DATA = (models.X, models.COUNTS)
D = models.DIM
START = {"weights": np.array([0.3, -0.2, 0.1])}


def run(kernel, model_args=DATA, steps=4, start=START, **options):
    mcmc = MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, **options)
    mcmc.run(random.key(3), *model_args, init_params=start, extra_fields=("momentum", "auxiliary", "thermostat"))
    return mcmc.get_samples()["weights"], mcmc.get_extra_fields(), mcmc.last_state


# -- the rows of the table, from the same key: step for step the kernels that the package has -----------------------


def half_square(phase):
    return 0.5 * jnp.sum(phase.momentum["weights"] ** 2)


def stacked(*rows):
    return lambda phase: jnp.block([list(row) for row in rows])


I, O = np.eye(D), np.zeros((D, D))  # noqa: E741
CANONICAL = stacked((O, -I), (I, O))


def nose_hoover(phase):
    p, z, o = phase.momentum["weights"][:, None] / D, np.zeros((D, 1)), np.zeros((1, 1))
    return jnp.block([[O, -I, z], [I, O, p], [z.T, -p.T, o]])


def thermostat_energy(phase):
    return half_square(phase) + D / 2 * (phase.auxiliary["xi"] - 1.7) ** 2


ROWS = {
    "overdamped": (SGLD, {"inverse_mass_matrix": 0.5}, Recipe(D=lambda phase: 0.5)),
    "overdamped, diagonal": (
        SGLD,
        {"inverse_mass_matrix": {"weights": [1.0, 2, 3]}},
        Recipe(D=lambda phase: {"weights": jnp.array([1.0, 2, 3])}),
    ),
    "Hamiltonian": (SGHMC, {"friction": 0.0, "integrator": "euler"}, Recipe(Q=CANONICAL, kinetic=half_square)),
    "SGHMC": (
        SGHMC,
        {"friction": 1.7, "integrator": "euler"},
        Recipe(D=stacked((O, O), (O, 1.7 * I)), Q=CANONICAL, kinetic=half_square),
    ),
    "SGHMC, blocks": (
        SGHMC,
        {"friction": 1.7, "integrator": "euler", "inverse_mass_matrix": 2.0},
        Recipe(D={"momentum": 1.7 / 2}, Q={("momentum", "z"): 1.0}, kinetic=2.0),
    ),
    "SGNHT": (
        SGNHT,
        {"diffusion": 1.7, "integrator": "euler"},
        Recipe(D={"momentum": 1.7}, Q=nose_hoover, kinetic=thermostat_energy, auxiliary={"xi": 1.7}),
    ),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.every(4)
def test_the_rows_of_the_table(row):
    kernel, options, recipe = ROWS[row]
    common = {"step_size": 0.02, "batch_size": models.B, "rows": Reshuffled(), "steps_per_sample": 2}
    with jax.enable_x64(True):
        draws, fields, _ = run(kernel(models.logistic, **common, **options))
        ours, own, _ = run(SGMCMC(models.logistic, recipe, "euler", **common))
    np.testing.assert_allclose(ours, draws, rtol=1e-12)
    if "momentum" in own and own["momentum"] != ():
        np.testing.assert_allclose(own["momentum"]["weights"], fields["momentum"]["weights"], rtol=1e-12)
    if row == "SGNHT":
        np.testing.assert_allclose(own["auxiliary"]["xi"], fields["thermostat"], rtol=1e-12)


def test_a_step_evaluates_one_gradient():
    kernels = (SGMCMC(models.logistic, recipe, "euler", step_size=1.0) for *_, recipe in ROWS.values())
    assert [kernel.integrator.gradients_per_step for kernel in kernels] == [1] * len(ROWS)


def test_riemannian_kernels_with_a_constant_metric_are_those_without():
    common = {"step_size": 0.02, "batch_size": models.B}
    metric = lambda z: jnp.array([1.0, 2.0, 0.5])  # noqa: E731
    with jax.enable_x64(True):
        draws, *_ = run(SGLD(models.logistic, inverse_mass_matrix={"weights": [1.0, 2.0, 0.5]}, **common))
        ours, *_ = run(SGRLD(models.logistic, metric=metric, **common))
        np.testing.assert_allclose(ours, draws, rtol=1e-12)
        # in p / R instead of p
        options = {"friction": 2.6, "inverse_mass_matrix": 2.0, "integrator": "euler"}
        draws, *_ = run(SGHMC(models.logistic, **options, **common))
        ours, *_ = run(SGRHMC(models.logistic, metric=lambda z: jnp.asarray(2.0), friction=1.3, **common))
        np.testing.assert_allclose(ours, draws, rtol=1e-12)


# -- a dynamics that the package has never seen ----------------------------------------------------------------------


def chains(kernel, args, start, draws=400, count=256):
    """Time averages of z and z^2 for each chain, after half of the draws."""
    state = kernel.init(random.split(random.key(7), count), 0, start, args, {})

    @jax.jit
    def means(state):
        def body(state, _):
            state = kernel.sample(state, args, {})
            z = jnp.concatenate([x.reshape(count, -1) for x in jax.tree.leaves(state.z)], 1)
            return state, (z, z * z, state.diverging.any())

        _, (z, square, diverging) = jax.lax.scan(body, state, None, length=draws)
        return z[draws // 2 :].mean(0), square[draws // 2 :].mean(0), diverging.any()

    mean, square, diverging = means(state)
    assert not diverging
    return np.asarray(mean, float), np.asarray(square, float)


@pytest.mark.optimised
@pytest.mark.slow
def test_a_dynamics_with_colored_noise_and_a_turning_momentum():
    """
    Generalised Langevin: noise enters an auxiliary variable alone, whose coupling to the momentum depends on z;
    besides, a metric that depends on z moves the position itself.
    """

    def Q(phase):
        coupling = 1 + 0.3 * jnp.tanh(phase.z["z"])
        return {("momentum", "z"): 1.0, ("momentum", "memory"): -jnp.diag(coupling)}

    def kinetic(phase):
        return 0.5 * jnp.sum(phase.momentum["z"] ** 2) + 0.5 * jnp.sum(phase.auxiliary["memory"] ** 2)

    recipe = Recipe(
        D=lambda phase: {"z": 0.3 / (1 + phase.z["z"] ** 2), "memory": 1.0},
        Q=Q,
        kinetic=kinetic,
        auxiliary={"memory": np.zeros(2)},
    )
    moments = []
    for h, steps in ((0.02, 10), (0.01, 20)):
        kernel = SGMCMC(gaussian(), recipe, "euler", step_size=h, steps_per_sample=steps)
        moments.append(chains(kernel, (), {"z": jnp.zeros((256, 2))}, 1000))
    # the step is of order 1: twice the halved step less the whole one is of order 2
    mean, square = (2 * fine - coarse for coarse, fine in zip(*moments))
    assert np.abs(z_scores(mean, np.zeros(2))).max() < ALPHA
    assert np.abs(z_scores(square, np.diag(np.linalg.inv(PRECISION)))).max() < ALPHA


# -- noise of the gradient taken out ---------------------------------------------------------------------------------


def noisy_law(kernel, s, monkeypatch):
    """Stationary covariance of z and p where the gradient is P z + s e, e standard normal."""
    d = len(PRECISION)
    word, dynamics = kernel.integrator, kernel.dynamics
    has_momentum = "P" in dynamics.flows

    def step(x, n, e):
        phase = kernel.dynamics.init({"z": x[:d]}, {"z": jnp.zeros(d)})
        phase = phase._replace(momentum={"z": x[d:]}) if has_momentum else phase
        with_noise(monkeypatch, [({"z": n[d:]}, {"z": n[:d]}, ()) if has_momentum else {"z": n}])
        evaluate = lambda z: type("E", (), {"gradient": {"z": PRECISION @ z["z"] + s * e}})  # noqa: E731
        new, *_ = word.step(dynamics, phase, (), jnp.asarray(0.1), evaluate, random.key(0))
        return jnp.concatenate([new.z["z"], new.momentum["z"]]) if has_momentum else new.z["z"]

    size = 2 * d if has_momentum else d
    M, S, G = jax.jacobian(step, (0, 1, 2))(jnp.zeros(size), jnp.zeros(size), jnp.zeros(d))
    monkeypatch.undo()
    return solve_discrete_lyapunov(np.asarray(M), np.asarray(S @ S.T + G @ G.T))


S = np.array([1.5, 0.7])
DENSE = np.array([[1.0, 0.3], [0.3, 0.8]])
SUBTRACT = {
    "scalar": {"D": 1.0},
    "diagonal": {"D": np.array([1.0, 0.5])},
    "block": {"D": {"z": np.array([1.0, 0.5])}},
    "dense": {"D": DENSE},
    "skew": {"D": DENSE, "Q": np.array([[0.0, 0.4], [-0.4, 0.0]])},
    "linear map": {"D": lambda phase: LinearMap(lambda v: DENSE @ v, lambda v: np.linalg.cholesky(DENSE) @ v)},
    "SGHMC": {"D": {"momentum": 1.5}, "Q": {("momentum", "z"): 1.0}, "kinetic": 1.0},
    "SGHMC, coupled": {"D": {"momentum": 1.5}, "Q": {("momentum", "z"): np.array([0.7, 1.2])}, "kinetic": 1.0},
    "SGHMC, dense": {"D": {"momentum": DENSE}, "Q": {("momentum", "z"): DENSE}, "kinetic": 1.0},
}


@pytest.mark.parametrize("name", SUBTRACT)
@pytest.mark.every(3)
def test_noise_of_the_gradient_is_taken_out(name, monkeypatch):
    """The step then has the law of the same step with full gradients, exactly: its covariance is 2 D h in all."""
    with jax.enable_x64(True):
        parts = SUBTRACT[name]
        kernel = lambda **noise: SGMCMC(gaussian(), Recipe(**parts, **noise), "euler", step_size=0.1)  # noqa: E731
        quiet = noisy_law(kernel(), np.zeros(2), monkeypatch)
        ours = noisy_law(kernel(gradient_noise={"z": S**2}), S, monkeypatch)
        np.testing.assert_allclose(ours, quiet, rtol=1e-9, atol=1e-12)
        moving = noisy_law(kernel(gradient_noise=lambda phase: {"z": jnp.asarray(S**2)}), S, monkeypatch)
        np.testing.assert_allclose(moving, quiet, rtol=1e-9, atol=1e-12)
        assert np.abs(noisy_law(kernel(), S, monkeypatch) - quiet).max() > 1e-2  # left in


def test_the_noise_is_measured_at_the_start():
    recipe = Recipe(D=1.0, gradient_noise="measured")
    kernel = SGMCMC(models.gaussian, recipe, "euler", step_size=1e-3, batch_size=models.B)
    assert kernel.rows == WithoutReplacement()
    state = kernel.init(random.key(0), 0, {"mu": 0.5}, (models.ROWS,), {})
    exact = models.N**2 / models.B * (1 - models.B / models.N) * models.ROWS.var(ddof=1)
    assert float(state.noise_variance["mu"]) == pytest.approx(exact, rel=0.4)  # 300 batches, five standard errors
    assert float(kernel.sample(state, (models.ROWS,), {}).z["mu"]) != 0.5


# -- a constant skew matrix ------------------------------------------------------------------------------------------


def test_a_constant_skew_matrix_leaves_the_law_to_first_order(monkeypatch):
    """And makes the slow direction faster: the largest eigenvalue of the step leaves 1 by more than twice as much."""
    precision = np.diag([1.0, 10.0])

    def law(h, q):
        kernel = SGRLD(
            gaussian(precision), metric=lambda z: jnp.ones(()), skew=np.array([[0, q], [-q, 0]]), step_size=h
        )
        M = np.eye(2) - h * (np.eye(2) + np.array([[0, q], [-q, 0]])) @ precision
        state = kernel.init(random.key(0), 0, {"z": np.array([0.5, -0.3])}, (), {})
        with_noise(monkeypatch, [{"z": jnp.zeros(2)}])
        np.testing.assert_allclose(kernel.sample(state, (), {}).z["z"], M @ state.z["z"], rtol=1e-5)
        monkeypatch.undo()
        covariance = solve_discrete_lyapunov(M, 2 * h * np.eye(2))
        return np.abs(covariance @ precision - np.eye(2)).max(), np.abs(np.linalg.eigvals(M)).max()

    errors = [law(h, 1.0)[0] for h in (0.02, 0.01, 0.005)]
    assert np.log2(errors[1] / errors[2]) == pytest.approx(1, abs=0.1)
    assert 1 - law(0.01, 1.0)[1] > 2 * (1 - law(0.01, 0.0)[1])


# -- metrics of the model --------------------------------------------------------------------------------------------


def test_the_fisher_metric_is_that_of_the_rows():
    kernel = SGRLD(models.logistic, metric=Fisher(rows=7, prior=0.5), step_size=1e-3, batch_size=models.B)
    potential = kernel.potential(DATA, {})
    metric = kernel.dynamics.bind(potential).D.metric
    z = {"weights": jnp.asarray(START["weights"])}
    rows = np.asarray(fixed_rows(potential, 7)["N"])
    X, y = models.X[rows], models.COUNTS[rows]
    gradients = X * (1 / (1 + np.exp(-X @ START["weights"])) - y)[:, None]
    exact = 1 / (0.5 + models.N / 7 * (gradients**2).sum(0))
    np.testing.assert_allclose(metric(z)["weights"], exact, rtol=1e-5)


def test_the_energy_metric_is_that_of_the_energy():
    kernel = SGRHMC(models.logistic, metric=Energy(2.0, 1.0, rows=7), step_size=1e-3, batch_size=models.B)
    potential = kernel.potential(DATA, {})
    z = {"weights": jnp.asarray(START["weights"])}
    exact = 2 * np.sqrt(potential.estimate(z, fixed_rows(potential, 7)) + 1)
    np.testing.assert_allclose(kernel.dynamics.bind(potential).D.metric(z), exact, rtol=1e-6)


METRICS = {
    "fisher": Fisher(rows=12),
    "energy": Energy(0.02, 20.0, rows=12),
    "diagonal": lambda z: 0.05 / (1 + z["weights"] ** 2),
    "dense": lambda z: 0.05 * (jnp.eye(D) + jnp.outer(z["weights"], z["weights"]) / (1 + jnp.sum(z["weights"] ** 2))),
}


@pytest.fixture(scope="module")
def posterior():
    """Mean and second moment of the logistic regression's posterior, by importance sampling from a wide normal."""
    rng = np.random.default_rng(0)
    w = 0.8 * rng.standard_normal((400_000, D))
    logits = w @ models.X.T
    log_weight = (models.COUNTS * logits - np.logaddexp(0, logits)).sum(1) - 0.5 * (w**2).sum(1) * (1 - 1 / 0.64)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    return weight @ w, weight @ w**2


@pytest.mark.optimised
@pytest.mark.parametrize("kernel", [SGRLD, SGRHMC])
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.slow
def test_the_kernels_leave_the_posterior(kernel, name, posterior):
    h, options = (0.05, {}) if kernel is SGRLD else (0.1, {"friction": 5.0})
    kernel = kernel(models.logistic, metric=METRICS[name], step_size=h, steps_per_sample=20, **options, **batch(name))
    start = {"weights": jnp.broadcast_to(posterior[0], (256, D))}
    mean, square = chains(kernel, DATA, start, 300)
    tolerance = 0.02  # the error of the step and of the exact moments, besides that of the chains
    assert np.abs(mean.mean(0) - posterior[0]).max() < tolerance
    assert np.abs(square.mean(0) - posterior[1]).max() < tolerance


def batch(name):
    return {"batch_size": models.N - 1} if name == "fisher" else {}


# -- what is refused ---------------------------------------------------------------------------------------------------

z1, z2 = r"z\['weights'\]\[1\]", r"z\['weights'\]\[2\]"
REFUSED = {
    "not symmetric": (Recipe(D=np.eye(3) + np.eye(3, k=1) * [0, 0, 0.1]), f"D is not symmetric.*{z1}, {z2}"),
    "negative": (Recipe(D=lambda phase: jnp.array([1.0, -1, 1])), f"D is not positive semi-definite.*{z1} is -1"),
    "indefinite": (Recipe(D=np.eye(3) + 2 * np.eye(3, k=1) + 2 * np.eye(3, k=-1)), "negative eigenvalue"),
    "not finite": (Recipe(D=lambda phase: jnp.array([1.0, jnp.nan, 1])), f"D is not finite.*{z1}"),
    "not skew": (Recipe(D=1.0, Q=np.eye(3, k=1) + np.eye(3, k=-1)), "Q is not skew"),
    "not skew, scalar": (Recipe(D=1.0, Q=1.0), "Q is not skew"),
    "shape": (Recipe(D=np.eye(4)), r"D has shape \(4, 4\)"),
    "momentum": (Recipe(D=np.eye(6)), "give kinetic="),
    "name": (Recipe(D={"weight": 1.0}), "D has a block for 'weight'; the variables are 'weights', 'z'"),
    "twice": (Recipe(D={"weights": 1.0, "z": 2.0}), "twice"),
    "too much noise": (Recipe(D=1.0, gradient_noise=1e6), "gradient_noise= is larger than"),
    "no factor": (Recipe(D=lambda phase: LinearMap(lambda v: v)), "LinearMap without a factor"),
    "linear map": (
        Recipe(D=1.0, Q=lambda phase: LinearMap(lambda v: v)),
        "Q is not skew",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_that_is_refused(name):
    recipe, message = REFUSED[name]
    kernel = SGMCMC(models.logistic, recipe, "euler", step_size=0.01, batch_size=models.B)
    with pytest.raises(ValueError, match=message):
        kernel.init(random.key(0), 0, START, DATA, {})


def test_a_site_with_the_name_of_a_part():
    """``{"z": ...}`` would silently be all sites."""

    def model():
        numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("a", dist.Normal(0, 1))

    kernel = SGMCMC(model, Recipe(D={"z": 1.0}), "euler", step_size=0.01)
    with pytest.raises(ValueError, match="D has a block for 'z', which is the name of a site and of a part"):
        kernel.init(random.key(0), 0, None, (), {})


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"Q": {("momentum", "z"): 1.0}}, None),
        ({"Q": lambda phase: LinearMap(lambda v: jnp.roll(v, 1))}, "Q is not skew .* a product with"),
        ({"D": lambda phase: LinearMap(lambda v: -v, lambda v: v)}, "D is not positive"),
    ],
)
def test_a_large_matrix_is_looked_at_by_products(wrong, message):
    """Its entries would not fit into memory."""
    n = 100_000

    def model():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (n,)))
        numpyro.factor("U", -0.5 * z @ z)

    recipe = Recipe(**{"D": {"momentum": 1.0}, "kinetic": 1.0} | wrong)
    kernel = SGMCMC(model, recipe, "euler", step_size=0.01)
    start = {"z": np.zeros(n)}
    if message is None:
        state = kernel.init(random.key(0), 0, start, (), {})
        assert not kernel.sample(state, (), {}).diverging
    else:
        with pytest.raises(ValueError, match=message):
            kernel.init(random.key(0), 0, start, (), {})


def later(value, start):
    """One value at the start of a chain, another elsewhere."""
    first = START["weights"].astype("f4")[0]
    return lambda phase: jnp.where(phase.z["weights"][0] == first, start, value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"D": later(np.eye(D) + 0.1 * np.eye(D, k=1), np.eye(D))},
        {"D": later(-np.ones(D), np.ones(D))},
        {"D": later(-np.eye(D), np.eye(D))},
        {"D": later(np.eye(D) + 2 * (np.eye(D, k=1) + np.eye(D, k=-1)), np.eye(D))},
        {"D": 1.0, "Q": later(np.eye(D), np.zeros((D, D)))},
    ],
)
def test_a_matrix_that_goes_wrong_under_way_refuses_the_step(wrong):
    kernel = SGMCMC(models.logistic, Recipe(**wrong), "euler", step_size=0.01, batch_size=models.B)
    state = kernel.init(random.key(0), 0, START, DATA, {})
    state = kernel.sample(state, DATA, {})
    assert not state.diverging
    assert kernel.sample(state, DATA, {}).diverging


def test_arguments():
    for options, message in [
        ({}, "moves nothing"),
        ({"D": 1.0, "auxiliary": {"a": 0.0}}, "kinetic= is not"),
        ({"D": 1.0, "kinetic": -1.0}, "kinetic=-1.0 must be"),
        ({"D": 1.0, "kinetic": 1.0, "auxiliary": {"a": 0.0}}, "energy of both"),
        ({"D": 1.0, "exact": 3}, "exact=3"),
        ({"D": 1.0, "gradient_noise": "known"}, "'measured'"),
        ({"Q": 1.0, "gradient_noise": 1.0}, "without D="),
    ]:
        with pytest.raises(ValueError, match=message):
            Recipe(**options)
    with pytest.raises(ValueError, match="step_size= is missing"):
        SGMCMC(models.logistic, Recipe(D=1.0), "euler")
    with pytest.raises(TypeError, match="metric=2.0 must be a function"):
        SGRLD(models.logistic, metric=2.0, step_size=0.1)
    with pytest.raises(ValueError, match="Energy\\(rows\\)=0"):
        Energy(rows=0)
    with pytest.raises(ValueError, match="offset must be a finite number"):
        Energy(offset=float("nan"))
    with pytest.raises(ValueError, match="Fisher"):
        SGRLD(models.logistic, metric=Fisher(), step_size=0.1).init(random.key(0), 0, START, DATA, {})
