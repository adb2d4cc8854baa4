"""
Blocks of neighbouring rows: unbiased whatever the order of the data, with the variance that NOGIN is given, and used by
default only where their noise is that of scattered rows.
"""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, SGNHT, Minibatch, OnDisk, Reshuffled, Sharded, WithoutReplacement, settings
from numpyro_sgmcmc.gradients.control_variate import Anchor, ControlVariate
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import decided, next_rows, row_weights
from numpyro_sgmcmc.tuning.noise_samples import is_as_quiet
from numpyro_sgmcmc.types import Plate, RowsState

BLOCKS, OPEN = WithoutReplacement(contiguous=True), WithoutReplacement(contiguous=None)
rng = np.random.default_rng(0)


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", x.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


def sorted_rows(size, d=2):
    x = rng.normal(size=(size, d)).astype(np.float32)
    y = (x @ np.linspace(0.2, -0.2, d) + rng.normal(size=size)).astype(np.float32)
    order = np.argsort(x[:, 0])
    return x[order], y[order]


def all_batches(scheme, size, n, keys=4000):
    """Every batch that the scheme draws, with the number of keys that draw it."""
    draw = jax.jit(jax.vmap(lambda key: scheme(key, jnp.uint32(3), size, n)))
    return np.unique(np.asarray(draw(random.split(random.key(0), keys))), axis=0, return_counts=True)


@pytest.mark.parametrize("size, n", [(11, 4), (7, 7), (40, 3)])
def test_all_blocks_are_equally_likely(size, n):
    blocks, counts = all_batches(BLOCKS, size, n)
    expected = (np.arange(size)[:, None] + np.arange(n)) % size
    np.testing.assert_array_equal(blocks[np.argsort(blocks[:, 0])], expected)
    assert ((counts - counts.mean()) ** 2).sum() / counts.mean() < size - 1 + 5 * np.sqrt(2 * (size - 1))


def blocks_of_shares(numbers, n):
    """Batches of n rows from each share, in which each block of a share occurs equally often."""
    first = np.cumsum((0, *numbers))
    starts = range(int(np.lcm.reduce(numbers)))
    shares = [[first[j] + (k + np.arange(n)) % size for j, size in enumerate(numbers)] for k in starts]
    return np.array(shares).reshape(len(starts), -1)


@pytest.mark.parametrize("estimator", [Minibatch(), ControlVariate()], ids=["Minibatch", "ControlVariate"])
@pytest.mark.parametrize("scheme, numbers", [(BLOCKS, (35,)), (Sharded(BLOCKS, 3), (12, 12, 11))], ids=["", "Sharded"])
def test_the_gradient_is_unbiased_whatever_the_order(scheme, numbers, estimator):
    """The mean over all blocks of sorted rows is the gradient of all rows, also if devices have unequal shares."""
    x, y = sorted_rows(35)
    batches = blocks_of_shares(numbers, 6 // len(numbers))
    drawn, _ = all_batches(scheme, 35, 6)
    columns = [slice(j, j + 6 // len(numbers)) for j in range(0, 6, 6 // len(numbers))]
    for of_share in columns:  # what is drawn is what is listed
        np.testing.assert_array_equal(np.unique(drawn[:, of_share], axis=0), np.unique(batches[:, of_share], axis=0))
    with jax.enable_x64(True):
        data = jnp.asarray(x, float), jnp.asarray(y, float)
        potential, whole = (ModelPotential.from_model(linear, data, {}, {"N": n} if n else {}) for n in (6, 0))
        z, c = ({"w": jnp.asarray(value)} for value in ([0.3, -1.0], [0.1, 0.2]))
        full = jax.grad(whole.estimate)
        state = Anchor(c, full(c, {})) if isinstance(estimator, ControlVariate) else ()
        weights = row_weights(scheme, potential.plates)

        def gradient(rows):
            at = potential.using_rows({"N": rows}, weights=weights)
            return estimator.evaluate(at, z, {"N": rows}, state, random.key(0)).gradient["w"]

        gradients = jax.vmap(gradient)(jnp.asarray(batches))
        np.testing.assert_allclose(gradients.mean(0), full(z, {})["w"], atol=1e-6)
        assert np.asarray(gradients).std() > 0.1


def tilted(slopes):
    """z ~ N(0, 1) whatever the rows, whose energies add up to 0: their gradient noise is the same everywhere."""
    z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(slopes)) as rows:
        numpyro.factor("rows", slopes[rows] @ z)


@pytest.mark.parametrize("order", ["sorted", "alternating"])
def test_the_variance_is_what_nogin_is_given(order):
    """
    The variance of the gradient over all N blocks, listed, along the axes of the coordinates that are found: more than
    that of scattered rows where neighbours are alike, and less where they cancel, so that blocks are chosen.
    """
    size, n, probes = 4000, 40, 500
    slopes = rng.normal(size=(size, 2)) * [1.0, 0.5] / np.sqrt(n) / 20
    places = np.arange(size)[:, None]
    slopes += 0.01 * (np.sin(places / 300) if order == "sorted" else (-1.0) ** places)
    slopes = (slopes - slopes.mean(0)).astype(np.float32)
    rows = BLOCKS if order == "sorted" else OPEN
    mcmc = MCMC(
        SGHMC(tilted, batch_size=n, rows=rows, integrator="NOGIN", gradient=Minibatch()),
        num_warmup=1,
        num_samples=1,
        progress_bar=False,
    )
    mcmc.warmup(random.key(0), jnp.asarray(slopes))
    found = jax.device_get(mcmc.last_state.settings)
    assert settings(mcmc)["rows"] == BLOCKS
    noise = size / n * slopes[(places + np.arange(n)) % size].sum(1)
    along = noise @ np.asarray(found.coordinates.scale)
    # the variances are those of 500 samples: 5 standard errors, and less where the noise has light tails
    np.testing.assert_allclose(found.noise_variance, along.var(0), rtol=5 * np.sqrt(2 / probes))
    np.testing.assert_array_equal(mcmc.last_state.noise_variance, found.noise_variance)
    scattered = (size / n) ** 2 * n * (slopes @ np.asarray(found.coordinates.scale)).var(0)
    assert (along.var(0) / scattered).max() > 3 if order == "sorted" else (along.var(0) / scattered).min() < 1 / 3


def noise(variance, samples=1000, key=0):
    """Samples whose coordinates have these variances, and a common scale with heavy tails."""
    normals = np.random.default_rng(key).normal(size=(samples, len(variance))) * np.sqrt(variance)
    return jnp.asarray(normals * np.sqrt(np.random.default_rng(key + 1).chisquare(8, (samples, 1)) / 8))


@pytest.mark.parametrize("d", [1, 2, 50])
def test_equal_noise_is_as_quiet(d):
    """In 300 experiments; the rule allows a tenth more, and what chance explains."""
    quiet = [is_as_quiet(noise(np.ones(d), 500, 4 * k), noise(np.ones(d), 1000, 4 * k + 2)) for k in range(300)]
    assert np.mean(quiet) > 0.98


@pytest.mark.parametrize("ratios", [[2.0], [1.25] * 50, [3.0] + [1.0] * 49, [2.0, *[0.5] * 49]], ids=str)
def test_more_noise_is_not_as_quiet(ratios):
    """Everywhere a little, or in one direction among many."""
    ratios = np.array(ratios)
    loud = [~is_as_quiet(noise(ratios, 500, 4 * k), noise(1 + 0 * ratios, 1000, 4 * k + 2)) for k in range(50)]
    assert np.mean(loud) > 0.9


def test_noise_that_does_not_matter_is_quiet():
    """Such as rounding errors, if a control variate leaves nothing else."""
    assert is_as_quiet(noise(np.full(3, 1e-6)), noise(np.full(3, 1e-9)))


ORDERS = {
    "random": lambda x, y: rng.permutation(len(y)),
    "by a covariate": lambda x, y: np.argsort(x[:, 1]),
    "by y": lambda x, y: np.argsort(y),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.every(3)
def test_blocks_are_chosen_unless_the_rows_are_sorted(order):
    """
    And the posterior is exact for any order: 5 standard errors of 1000 effective draws. The control variate leaves only
    differences of curvatures, which depend on x, so rows in the order of y may be as quiet as random ones.
    """
    x, y = sorted_rows(20_000, d=3)
    of = ORDERS[order](x, y)
    mcmc = MCMC(
        SGHMC(linear, batch_size=100),
        num_warmup=400,
        num_samples=500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), jnp.asarray(x[of]), jnp.asarray(y[of]))
    found = settings(mcmc)
    if order != "by y":
        assert found["rows"] == WithoutReplacement(contiguous=order == "random")
    assert found["verdict"] == "right"
    covariance = np.linalg.inv(x.T.astype(float) @ x + np.eye(3))
    draws = np.asarray(mcmc.get_samples()["w"], float)
    white = (draws - covariance @ (x.T @ y)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert np.abs(white.mean(0)).max() < 5 / np.sqrt(1000)
    assert np.abs(white.var(0) - 1).max() < 5 * np.sqrt(2 / 1000)


@pytest.mark.parametrize("scheme", [OPEN, Reshuffled(contiguous=None), Sharded(OPEN, 2)], ids=repr)
def test_a_choice_gives_the_rows_of_the_scheme_that_is_chosen(scheme):
    """For several plates and chains, and with one condition for all chains, so that only one branch is computed."""
    plates = {"a": Plate(1000, 8), "b": Plate(300, 6)}
    states = RowsState(random.split(random.key(1), 3), jnp.arange(3, dtype=jnp.uint32))

    def draw(scheme, state, contiguous):
        return next_rows(scheme, state, plates, contiguous)[0]

    over_chains = jax.vmap(partial(draw, scheme), (0, None))
    for contiguous in (True, False):
        expected = jax.vmap(lambda state, c=contiguous: draw(decided(scheme, c), state, c))(states)
        found = over_chains(states, jnp.asarray(contiguous))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        jumps = (np.diff(found["a"][:, :4]) % (500 if isinstance(scheme, Sharded) else 1000)) != 1
        assert jumps.any() != contiguous
    equations = jax.make_jaxpr(over_chains)(states, jnp.asarray(True)).eqns
    assert "cond" in {equation.primitive.name for equation in equations}


@pytest.mark.parametrize("kernel", [SGHMC, SGLD, SGNHT])
def test_only_a_warm_up_chooses(kernel):
    assert kernel(linear).rows.contiguous is None
    assert kernel(linear, step_size=0.1).rows.contiguous is False
    with pytest.raises(ValueError, match="contiguous=None.* leaves a choice to the warm-up"):
        kernel(linear, step_size=0.1, rows=OPEN)


@pytest.mark.slow
def test_rows_on_disk_are_chosen_too(tmp_path):
    x, y = sorted_rows(20_000)
    of = rng.permutation(len(y))
    for name, array in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array[of])
    mcmc = MCMC(SGHMC(linear, batch_size=100), num_warmup=1, num_samples=2, progress_bar=False)
    with pytest.warns(UserWarning, match="reads its rows one by one"):
        mcmc.run(random.key(0), OnDisk(tmp_path / "x.npy"), OnDisk(tmp_path / "y.npy"))
    assert settings(mcmc)["rows"] == BLOCKS
