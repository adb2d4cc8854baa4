"""Parallel tempering: exchanges leave the laws of all replicas, noisy energies or not; modes have their weights."""

import pickle

import jax
from jax import random
import jax.numpy as jnp
from laws import gaussian, z_scores
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import MSGNHT, PSGLD, SAGA, SGHMC, SGLD, SGBarker, Tempered
from numpyro_sgmcmc.contrib import tempered

ALPHA = 4.5
TEMPERATURES = (1.0, 2.0, 4.0)
SHARE = 0.7  # of the mode at 2
SIDES = 0.008 * random.normal(random.key(5), (2000,))
SIDES = SIDES - SIDES.mean()  # the noise of the energies: nothing in all, and no gradient


def energy(z):
    """Two modes, at 2 and -2, of standard deviation 1/2."""
    at = jnp.array([2.0, -2.0])
    parts = jnp.log(jnp.array([SHARE, 1 - SHARE])) - 2 * (z[..., None] - at) ** 2
    return -jax.nn.logsumexp(parts, axis=-1)


def two_modes(sides):
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.factor("W", -energy(z))
    with numpyro.plate("N", len(sides)) as rows:
        numpyro.factor("noise", sides[rows] * jnp.sign(z))


def exact_draws(rng_key, temperatures, chains):
    grid = jnp.linspace(-8, 8, 4001)
    logits = -energy(grid) / jnp.asarray(temperatures)[:, None]
    return grid[random.categorical(rng_key, logits[None], shape=(chains, len(temperatures)))]


def exact_share(temperature=1.0):
    grid = np.linspace(-8, 8, 4001)
    law = np.exp(-np.asarray(energy(jnp.asarray(grid))) / temperature)
    return law[grid > 0].sum() / law.sum()


def shares(rows, chains=4000, transitions=8):
    """
    Of the cold replica on the right, by chain, after exchanges alone: the replicas start in their laws and stand still.

    :param rows: of the minibatches that compare them.
    """
    kernel = Tempered(SGLD(two_modes, step_size=1e-12, batch_size=rows), TEMPERATURES)
    state = kernel.init(random.split(random.key(0), chains), 0, {"z": jnp.zeros(chains)}, (SIDES,), {})
    z = exact_draws(random.key(1), TEMPERATURES, chains)
    state = state._replace(replicas=state.replicas._replace(z={"z": z}, last_finite={"z": z}))

    def body(state, _):
        state = kernel.sample(state, (SIDES,), {})
        return state, state.swapped

    state, swapped = jax.jit(lambda state: jax.lax.scan(body, state, None, length=transitions))(state)
    return np.asarray(state.z["z"] > 0, float), np.nanmean(swapped, (0, 1))


@pytest.mark.every(4)
@pytest.mark.optimised
@pytest.mark.parametrize("rows", [100, None])
def test_exchanges_keep_the_weights_of_the_modes(rows):
    """With 100 rows of 2000 the energy difference of the modes has a standard deviation of 3.1; delta is .5 and .25."""
    right, rates = shares(rows)
    assert abs(z_scores(right, exact_share())) < ALPHA
    assert (rates > 0.2).all()


def noisy_exchange(ratio, sigma, gap=0.8, delta=0.5, n=400_000):
    """Mean probabilities of the exchange and of its reverse, for normal noise of the energies."""
    eta = sigma * random.normal(random.key(3), (n,))
    there, back = (jnp.minimum(1, jnp.exp(ratio(delta, sign * gap + eta, sigma**2))) for sign in (1, -1))
    return there.mean() / back.mean() / np.exp(delta * gap)


@pytest.mark.parametrize("sigma", [0.0, 1.0, 3.0])
def test_the_correction_is_detailed_balance(sigma):
    assert noisy_exchange(tempered.log_exchange, sigma) == pytest.approx(1, abs=0.01)


def test_without_the_correction_it_is_not():
    assert noisy_exchange(lambda delta, difference, _: delta * difference, 3.0) < 0.9


def test_the_variance_of_a_difference_is_known():
    kernel = Tempered(SGLD(two_modes, step_size=1e-3, batch_size=500), TEMPERATURES)
    potential = kernel.kernel.potential((SIDES,), {})
    there, here = ({"z": jnp.asarray(z)} for z in (2.0, -1.0))
    compared = jax.vmap(lambda key: kernel._compared(potential, key, there, here))
    difference, variance = (np.asarray(x) for x in compared(random.split(random.key(4), 4000)))
    exact = float(energy(there["z"]) - energy(here["z"]))
    assert abs(z_scores(difference, exact)) < ALPHA
    assert variance.mean() == pytest.approx(difference.var(), rel=0.1)


@pytest.mark.parametrize("word", ["BAOAB", "ABOBA"])
@pytest.mark.every(2)
def test_a_carried_gradient_is_that_of_the_new_temperature(word):
    kernel = Tempered(SGHMC(gaussian(), step_size=1e-3, integrator=word), TEMPERATURES)
    state = kernel.init(random.key(0), 0, None, (), {})
    sample = jax.jit(lambda state: kernel.sample(state, (), {}))
    for _ in range(6):
        state = sample(state)
        np.testing.assert_allclose(
            state.replicas.gradient_state.beta[state.holder], 1 / np.array(TEMPERATURES), rtol=1e-6
        )
        if word == "BAOAB":
            U = jax.vmap(jax.grad(lambda z: 0.5 * z @ jnp.array([[2.0, 0.6], [0.6, 1.0]]) @ z))(state.replicas.z["z"])
            expected = state.replicas.gradient_state.beta[:, None] * U
            np.testing.assert_allclose(state.replicas.gradient["z"], expected, rtol=1e-4, atol=1e-5)
    assert (state.holder != jnp.arange(3)).any()


@pytest.mark.optimised
@pytest.mark.slow
def test_chains_that_start_in_one_mode_reach_the_weights_of_both():
    chains = 64
    kernel = SGLD(two_modes, step_size=5e-3, batch_size=1000, steps_per_sample=10)
    alone, together = (
        MCMC(k, num_warmup=500, num_samples=1000, num_chains=chains, chain_method="vectorized", progress_bar=False)
        for k in (kernel, Tempered(kernel, (1.0, 2.0, 4.0, 8.0)))
    )
    shares = []
    for mcmc in (alone, together):
        mcmc.run(random.key(2), SIDES, init_params={"z": jnp.full(chains, -2.0)})
        shares.append(np.asarray(mcmc.get_samples(group_by_chain=True)["z"] > 0, float).mean(1))
    assert abs(z_scores(shares[1], exact_share())) < ALPHA
    assert shares[0].mean() < exact_share() - 0.1


@pytest.mark.parametrize("method", ["vectorized", "sequential", "parallel"])
@pytest.mark.every(3)
@pytest.mark.slow
def test_it_runs_under_mcmc(method):
    kernel = Tempered(SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B, gradient=SAGA()), (1.0, 2.0))
    mcmc = MCMC(kernel, num_warmup=2, num_samples=4, num_chains=2, chain_method=method, progress_bar=False)
    mcmc.run(random.key(0), models.ROWS, extra_fields=("swapped",))
    assert mcmc.get_samples(group_by_chain=True)["mu"].shape[:2] == (2, 4)
    swapped = mcmc.get_extra_fields(group_by_chain=True)["swapped"]
    assert swapped.shape == (2, 4, 1)
    np.testing.assert_array_equal(np.isnan(swapped[..., 0]), [[False, True, False, True]] * 2)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, models.ROWS)
    assert int(np.ravel(mcmc.last_state.t)[0]) == 10


def test_the_replicas_use_the_key_of_a_run():
    """NumPyro gives a run that starts from a state its key, and another key gives other noise in each replica."""
    kernel = Tempered(SGLD(models.gaussian, step_size=1e-3, batch_size=models.B), (1.0, 2.0, 4.0))
    state = kernel.init(random.key(0), 0, None, (models.ROWS,), {})
    sample = jax.jit(lambda key: kernel.sample(state._replace(rng_key=key), (models.ROWS,), {}).replicas.z["mu"])
    one, same, other = (sample(random.key_data(random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all() and len(set(np.asarray(one - state.replicas.z["mu"]).tolist())) == 3


@pytest.mark.slow
@pytest.mark.optimised
def test_a_resume_from_a_pickle_is_exact():
    kernel = Tempered(SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B), (1.0, 2.0))
    mcmc = MCMC(kernel, num_warmup=2, num_samples=4, progress_bar=False)
    mcmc.run(random.key(0), models.ROWS)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, models.ROWS)
    resumed = MCMC(pickle.loads(pickle.dumps(kernel)), num_warmup=2, num_samples=4, progress_bar=False)
    resumed.post_warmup_state = pickle.loads(pickle.dumps(mcmc.post_warmup_state))
    resumed.run(resumed.post_warmup_state.rng_key, models.ROWS)
    np.testing.assert_array_equal(resumed.get_samples()["mu"], mcmc.get_samples()["mu"])
    assert len(set(np.asarray(mcmc.get_samples()["mu"]).tolist())) == 4


def test_what_it_refuses():
    fine = SGLD(gaussian(), step_size=0.1)
    with pytest.raises(ValueError, match="must start at 1 and increase"):
        Tempered(fine, [2.0, 4.0])
    with pytest.raises(ValueError, match="must start at 1 and increase"):
        Tempered(fine, [1.0, 3.0, 2.0])
    with pytest.raises(ValueError, match="must be finite"):
        Tempered(fine, [1.0, np.inf])
    with pytest.raises(ValueError, match=r"Tempered\(SGLD\(...\)\) needs a step size"):
        Tempered(SGLD(models.gaussian), TEMPERATURES)
    for kernel in (MSGNHT, PSGLD, SGBarker):
        with pytest.raises(ValueError, match=f"does not work with {kernel.__name__}"):
            Tempered(kernel(gaussian(), step_size=0.1), TEMPERATURES)
    with pytest.raises(ValueError, match="does not work with SGHMC and integrator"):
        Tempered(SGHMC(models.gaussian, step_size=0.1, integrator="NOGIN"), TEMPERATURES)
    with pytest.raises(ValueError, match="takes a kernel"):
        Tempered(gaussian(), TEMPERATURES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="swap_batch_size=1"):
        Tempered(fine, TEMPERATURES, swap_batch_size=1)
    crossed = Tempered(SGLD(models.crossed, step_size=1e-3, batch_size={"rows": 2, "columns": 4}), TEMPERATURES)
    with pytest.raises(ValueError, match="several minibatched plates"):
        crossed.init(random.key(0), 0, None, (models.TABLE,), {})
