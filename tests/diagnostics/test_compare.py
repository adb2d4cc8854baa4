"""``compare``, ``score_linearity`` and ``corrected``: against laws that are known."""

import warnings

import arviz as az
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value
import pytest

from numpyro_sgmcmc import SGHMC, SGLD, Polynomial, WithoutReplacement, compare, corrected, score_linearity
from numpyro_sgmcmc.contrib.linearity import held_out

X = models.ROWS.astype(np.float32)
MEAN, VARIANCE = models.gaussian_posterior(X)


def normal(shift=0.0, scale=1.0, seed=0, chains=4, draws=1000):
    return {"w": shift + scale * np.random.default_rng(seed).normal(size=(chains, draws, 2))}


def test_errors_of_independent_draws_are_what_they_are():
    """Over 60 pairs of the same law: z-scores of unit width, none of them red."""
    found = [compare(normal(seed=k), normal(seed=1000 + k)) for k in range(60)]
    assert {one.verdict for one in found} == {"right"}
    for key in ("mean", "sd", "5%", "50%", "95%"):
        z = np.array([one["w"][key] / one["w"][f"{key}_error"] for one in found])
        assert 0.75 < z.std() < 1.2, (key, z.std())


@pytest.mark.parametrize(
    "shift, scale, key", [(0.4, 1.0, "mean"), (0.0, 1.2, "sd"), (0.0, 0.8, "sd"), (0.0, 1.6, "95%")]
)
def test_what_is_off(shift, scale, key):
    found = compare(normal(shift, scale), normal(seed=1))
    exact = {"mean": shift, "sd": scale - 1, "95%": 1.645 * (scale - 1)}[key]
    assert found.verdict == "wrong"
    np.testing.assert_allclose(found["w"][key], exact, atol=4 * found["w"][f"{key}_error"].max())


@pytest.mark.parametrize("few_of", ["idata", "reference"])
def test_too_few_draws_for_a_verdict(few_of):
    rng = np.random.default_rng(2)
    many, few = {"mu": rng.normal(size=(4, 1000))}, {"mu": rng.normal(size=(2, 10))}
    found = compare(*((few, many) if few_of == "idata" else (many, few)))
    assert found.verdict == "doubtful"
    assert f"too large for a verdict: {few_of} has only" in found["mu"]["advice"]
    assert compare(many, {"mu": rng.normal(size=(4, 100))}).verdict == "right"


@pytest.mark.parametrize("side", ["idata", "reference"])
def test_chains_that_have_not_mixed(side):
    """Two of them in another mode: the squares of all chains are alike, so the error of the sd is small."""
    mixed = normal()
    apart = {"w": mixed["w"] + np.array([-3.0, -3.0, 3.0, 3.0])[:, None, None]}
    found = compare(*((apart, mixed) if side == "idata" else (mixed, apart)))
    assert found.verdict == ("wrong" if side == "idata" else "doubtful")
    if side == "reference":
        assert "the chains of reference have not mixed (R-hat" in found["w"]["advice"]
    found = compare(apart, apart)
    assert found.verdict == "doubtful" and "have not mixed" in found["w"]["advice"]


def test_draws_that_are_not_grouped_by_chain():
    """Vectors without chains look like chains of few draws; the table says how many there are."""
    with pytest.raises(
        ValueError, match=r"sites of reference have different numbers .*'v' \(4000, 9\), 'w' \(4000, 12"
    ):
        compare({"v": np.zeros((4, 9)), "w": np.zeros((4, 9))}, {"v": np.zeros((4000, 9)), "w": np.zeros((4000, 12))})
    assert "idata: 4 x 1000 draws; reference: 4000 x 12 draws." in str(
        compare({"w": normal()["w"][..., 0]}, {"w": normal(chains=4000, draws=12)["w"][..., 0]})
    )


def test_what_may_be_compared():
    """The same draws as a dict, as ArviZ keeps them, and in the MCMC object; the unit is that of the reference."""
    mcmc = run(SGLD(models.gaussian, step_size=0.2 * VARIANCE, steps_per_sample=5), num_samples=50)
    idata = az.from_numpyro(mcmc, log_likelihood=False)
    draws = mcmc.get_samples(group_by_chain=True)
    for one in (idata, mcmc, draws):
        found = compare(one, idata)
        assert found["mu"]["mean"] == found["mu"]["sd"] == found["mu"]["5%"] == 0
    wide = compare(normal(scale=10.0), normal())
    assert abs(wide["w"]["sd"] - 9).max() < 0.5
    assert "Only on one side: v, w" in str(
        compare({**normal(), "x": np.zeros((4, 10))}, {"x": np.zeros((4, 10)), "v": np.zeros((2, 9))})
    )
    with pytest.raises(ValueError, match="none in common"):
        compare(normal(), draws)
    with pytest.raises(ValueError, match="shape"):
        compare(normal(), {"w": np.zeros((4, 100))})
    with pytest.raises(TypeError, match="reference= must be an MCMC.*not int"):
        compare(normal(), 3)
    with pytest.raises(ValueError, match="no draws yet"):
        compare(normal(), MCMC(NUTS(models.gaussian), num_warmup=1, num_samples=1))


def run(kernel, *args, num_samples=1000, num_chains=4, num_warmup=100, seed=0):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(random.key(seed), *(args or (X,)))
    return mcmc


# -- score_linearity ------------------------------------------------------------------------------------------------


def test_r2_is_that_without_the_noise():
    """A linear score plus a part that is not: the noise of both gradients drops out."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 2000, 2))
    g = np.stack([2 * z[..., 0] + z[..., 1], z[..., 1] + (z[..., 1] ** 2 - 1) / np.sqrt(2)], -1)
    noisy = [g + 3 * rng.normal(size=g.shape) for _ in range(2)]
    np.testing.assert_allclose(held_out(z, g, g), [1.0, 0.5], atol=0.04)
    np.testing.assert_allclose(held_out(z, *noisy), [1.0, 0.5], atol=0.12)


def funnel(x):
    del x
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([3]).to_event(1))


@pytest.mark.optimised
@pytest.mark.slow
def test_a_funnel_is_not_linear_and_a_normal_law_is():
    straight = run(SGHMC(models.gaussian, step_size=0.1, friction=3.0, batch_size=models.B, steps_per_sample=10))
    assert score_linearity(straight)["mu"]["value"] > 0.99
    start = init_to_value(values={"v": 0.0, "x": jnp.zeros(3)})
    bent = run(SGHMC(funnel, step_size=0.02, friction=1.0, steps_per_sample=20, init_strategy=start))
    found = score_linearity(bent)
    assert found.verdict == "wrong", str(found)
    few = run(SGHMC(models.gaussian, step_size=0.1), num_samples=10, num_chains=1)
    with pytest.raises(ValueError, match="it needs 12"):
        score_linearity(few)


# -- corrected ------------------------------------------------------------------------------------------------------


@pytest.mark.optimised
@pytest.mark.parametrize("kernel", ["step", "noise"])
@pytest.mark.slow
def test_a_known_inflation_is_taken_back(kernel):
    kernels = {
        "step": SGLD(models.gaussian, step_size=VARIANCE, steps_per_sample=4),
        "noise": SGLD(
            models.gaussian, step_size=0.1 * VARIANCE, batch_size=1, rows=WithoutReplacement(), steps_per_sample=20
        ),
    }
    mcmc = run(kernels[kernel])
    before = mcmc.get_samples(group_by_chain=True)["mu"]
    found = corrected(mcmc, X)
    inflated = np.asarray(before).var() / VARIANCE - 1
    assert inflated > 0.5
    assert abs(found["mu"].var() / VARIANCE - 1) < 0.12, (inflated, found["mu"].var() / VARIANCE)
    np.testing.assert_allclose(found["mu"].mean(), np.asarray(before).mean(), atol=1e-5)
    assert "predicted inflation" in found.done and dict(found).keys() == {"mu"}
    assert found.factors["mu"] == pytest.approx(found["mu"].std() / np.asarray(before).std(), rel=1e-4)


@pytest.mark.optimised
@pytest.mark.slow
def test_the_sandwich_of_a_wrong_variance():
    """Rows of variance 4 under a model of variance 1: the mean of N rows has variance 4 / N, not 1 / N."""
    x = (2 * np.random.default_rng(0).normal(size=400)).astype(np.float32)
    mcmc = run(SGHMC(models.gaussian, step_size=0.02, friction=20.0, steps_per_sample=10, batch_size=200), x)
    found = corrected(mcmc, x, covariance="sandwich")
    assert abs(found["mu"].std() / np.sqrt(x.var() / 400) - 1) < 0.05
    assert "not that of the posterior" in found.done
    assert abs(corrected(mcmc, x)["mu"].std() / np.sqrt(1 / 400) - 1) < 0.1


def test_what_is_refused():
    mcmc = run(SGHMC(models.gaussian, step_size=0.1, friction=3.0), num_samples=20)
    with pytest.raises(ValueError, match="exactly one minibatched plate"):
        corrected(mcmc, covariance="sandwich")
    with pytest.raises(ValueError, match="covariance='robust' must be one of"):
        corrected(mcmc, covariance="robust")
    falling = run(SGLD(models.gaussian, step_size=Polynomial(1e-2, 1.0, 0.5)), num_samples=20)
    with pytest.raises(ValueError, match="the step size changes during the run"):
        corrected(falling, X)
