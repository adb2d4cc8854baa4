"""The kernels as blocks of ``numpyro.infer.Gibbs``: ``batch_size=`` on the kernel, siblings in the arguments."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, CustomGibbs, DiscreteGibbs, Gibbs
import pytest

from numpyro_sgmcmc import SAGA, SGHMC, SGLD

SHAPE, RATE, MEAN, K = models.precision_posterior(models.ROWS)


def draw_mu(rng_key, gibbs_sites, hmc_sites):
    """``mu`` given ``tau``, exactly."""
    return {"mu": MEAN + random.normal(rng_key) / jnp.sqrt(K * hmc_sites["tau"])}


def two_blocks(**options):
    options = {"step_size": 0.05, "friction": 5.0, "integrator": "BAOAB", "steps_per_sample": 5} | options
    return Gibbs([(SGHMC(models.precision, **options), ["tau"]), (CustomGibbs(draw_mu), ["mu"])])


def run(kernel, num_samples, num_warmup=0, num_chains=1, **options):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=jax.vmap,
        progress_bar=False,
    )
    mcmc.run(random.key(0), jnp.asarray(models.ROWS), **options)
    return mcmc


def conditional_gradient(tau, mu, x):
    """dU / d log tau given ``mu``: U = b tau - a log tau."""
    a = 3 + (len(x) + 1) / 2
    b = 3 + 0.5 * (np.sum((x - mu[..., None]) ** 2, -1) + mu**2)
    return b * tau - a


@pytest.mark.parametrize(("batch_size", "bias"), [(None, 0.0), (12, 0.05)])
@pytest.mark.slow
def test_a_block_samples_the_posterior(batch_size, bias):
    """
    128 chains as replicates: mean and variance of ``log tau``, and of ``mu``, within 5 standard errors of the exact
    marginals; with minibatches within ``bias`` standard deviations more, for their noise widens the draws by
    h s^2 / (2 D) = 3 % if independent, by less if reshuffled.
    """
    mcmc = run(two_blocks(batch_size=batch_size), 100, 20, num_chains=128)
    samples = mcmc.get_samples(group_by_chain=True)
    exact = np.random.default_rng(1).gamma(SHAPE, 1 / RATE, 1_000_000)
    sd = np.std(np.log(exact))
    truths = {
        "log tau": (np.log(samples["tau"]), np.mean(np.log(exact)), sd**2),
        "mu": (np.asarray(samples["mu"]), MEAN, RATE / (SHAPE - 1) / K),
    }
    for name, (values, mean, variance) in truths.items():
        for what, replicates, truth, scale in (
            ("mean", values.mean(1), mean, np.sqrt(variance)),
            ("variance", ((values - mean) ** 2).mean(1), variance, variance),
        ):
            estimate, error = replicates.mean(), replicates.std(ddof=1) / np.sqrt(len(replicates))
            assert error < 0.04 * scale
            assert abs(estimate - truth) < 5 * error + bias * scale, (
                f"{what} of {name}: {estimate:.4f} +- {error:.4f}, exactly {truth:.4f}"
            )


@pytest.mark.optimised
@pytest.mark.slow
def test_a_block_finds_its_numbers():
    """
    Nothing given but the batch size. The coordinates are those of the siblings' values in the warm-up, and that is
    enough: the parts of a long chain as replicates, within 5 standard errors and 5 hundredths.
    """
    kernel = two_blocks(batch_size=12, step_size=None, friction=1.0, integrator=None, steps_per_sample=None)
    tau = run(kernel, 6400, 400).get_samples()["tau"]
    exact = np.log(np.random.default_rng(1).gamma(SHAPE, 1 / RATE, 1_000_000))
    found = (np.log(np.asarray(tau, float)).reshape(32, 200) - exact.mean()) / exact.std()
    for replicates, truth in ((found.mean(1), 0), ((found**2).mean(1), 1)):
        error = replicates.std(ddof=1) / np.sqrt(32)
        assert error < 0.05
        assert abs(replicates.mean() - truth) < 5 * error + 0.05


@pytest.mark.slow
def test_carried_gradient_is_refreshed():
    """After each sweep the gradient that BAOAB starts with is the one at ``tau`` under the newest ``mu``."""
    fields = ("z.tau", "block_states.0.gradient.tau")
    mcmc = run(two_blocks(), 5, num_chains=2, extra_fields=fields)
    tau, mu = (np.asarray(mcmc.get_samples()[name]) for name in ("tau", "mu"))
    carried = mcmc.get_extra_fields()["block_states.0.gradient.tau"]
    np.testing.assert_allclose(carried, conditional_gradient(tau, mu, models.ROWS), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.log(tau), mcmc.get_extra_fields()["z.tau"], rtol=1e-5, atol=1e-6)


def test_refresh_looks_at_the_coming_batch():
    """Its mean over the batches of an epoch is the full gradient: unbiased."""
    kernel = two_blocks(batch_size=models.B).blocks[0][0]
    kwargs = {"_gibbs_sites": {"mu": jnp.array(0.3)}}
    args = (jnp.asarray(models.ROWS),)
    state = kernel.init(random.key(1), 0, {"tau": jnp.array(1.5)}, args, kwargs)
    # batches 4 to 7 are the second epoch
    epoch = [state._replace(rows_state=state.rows_state._replace(t=jnp.array(4 + k))) for k in range(4)]
    refresh = jax.jit(lambda state: kernel.refresh(state, args, kwargs))
    gradients = [refresh(s).gradient["tau"] for s in epoch]
    assert np.std(gradients) > 0.1
    expected = conditional_gradient(np.array(1.5), np.array(0.3), models.ROWS)
    np.testing.assert_allclose(np.mean(gradients), expected, rtol=1e-4)


def warped(x):
    """The sibling ``rate`` is part of the design."""
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    rate = numpyro.sample("rate", dist.Normal(1, 1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(slope * jnp.sin(rate * jnp.arange(models.N)[rows]), 1), obs=x[rows])


def move_rate(rng_key, gibbs_sites, hmc_sites):
    return {"rate": gibbs_sites["rate"] + random.normal(rng_key)}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.slow
def test_a_sum_of_slopes_is_refreshed(place):
    """After each sweep SAGA's sum is that of the stored slopes times the newest design, wherever its block stands."""
    ours = SGLD(warped, step_size=1e-2, batch_size=models.B, gradient=SAGA("linear"), steps_per_sample=3)
    blocks = [(CustomGibbs(move_rate), ["rate"])]
    blocks.insert(place, (ours, ["slope"]))
    state = f"block_states.{place}.gradient_state"
    mcmc = run(Gibbs(blocks), 6, extra_fields=(f"{state}.total.slope", f"{state}.table"))
    design = np.sin(np.asarray(mcmc.get_samples()["rate"])[:, None] * np.arange(models.N))
    fields = mcmc.get_extra_fields()
    # the predictor found is obs - mean or mean: the sign of the slopes cancels
    spread = np.abs((fields[f"{state}.table"] * design).sum(1))
    np.testing.assert_allclose(np.abs(fields[f"{state}.total.slope"]), spread, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_init_params_of_a_block_are_constrained():
    mcmc = run(two_blocks(step_size=1e-9), 2, init_params={"tau": jnp.array(2.5)})
    np.testing.assert_allclose(mcmc.get_samples()["tau"], 2.5, rtol=1e-4)


@pytest.mark.slow
def test_stands_beside_other_kernels_on_the_same_model():
    ours, theirs = SGLD(models.precision, step_size=1e-3, batch_size=models.B), NUTS(models.precision)
    Gibbs([(ours, ["tau"]), (theirs, None)])
    mcmc = run(Gibbs([(theirs, ["mu"]), (ours, None)]), 3)
    assert set(mcmc.get_samples()) == {"tau", "mu"}
    assert len(np.unique(mcmc.get_samples()["tau"])) == 3


def shifted(x):
    """A discrete latent, which a kernel alone refuses."""
    mu = numpyro.sample("mu", dist.HalfNormal(2))
    sign = numpyro.sample("sign", dist.Bernoulli(0.5))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(jnp.where(sign, mu, -mu), 5), obs=x[rows])


def test_discrete_sibling():
    """The way out that the refusal of discrete latents names."""
    ours = SGLD(shifted, step_size=0.05, batch_size=models.B)
    with pytest.raises(ValueError, match="'sign' is discrete.*numpyro.infer.Gibbs"):
        run(ours, 1)
    mcmc = run(Gibbs([(ours, ["mu"]), (DiscreteGibbs(shifted), None)]), 50)
    samples = mcmc.get_samples()
    assert (samples["mu"] > 0).all() and len(np.unique(samples["mu"])) == 50
    assert set(np.unique(samples["sign"])) == {0, 1}


def test_refuses_a_declared_subsample_size():
    kernel = Gibbs([(SGLD(models.declared, step_size=1e-3), None)])
    with pytest.raises(
        ValueError, match="plate 'N' declares subsample_size=6.*Gibbs use all rows.*batch_size={'N': 6}"
    ):
        run(kernel, 1)


def test_refuses_a_kernel_on_another_model():
    ours, theirs = SGLD(models.gaussian, step_size=1e-3), NUTS(models.precision)
    with pytest.raises(ValueError, match="must share the same model"):
        Gibbs([(ours, ["mu"]), (theirs, ["tau"])])
