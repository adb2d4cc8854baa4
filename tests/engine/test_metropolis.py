"""The Metropolis test of self-tuned steps with all rows: by quadrature, and in its place in a run."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest
from scipy.stats import norm

from numpyro_sgmcmc import SGHMC
from numpyro_sgmcmc.dynamics.splitting import Splitting
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.engine import chain, metropolis
from numpyro_sgmcmc.tuning.pilot import Moments
from numpyro_sgmcmc.tuning.warm_up import WarmUp
from numpyro_sgmcmc.types import Evaluation, Phase
from numpyro_sgmcmc.utils import noise

H = 1.2  # far too large for z^4 / 4: without the test a step multiplies some of the moments by several


def energy(z):
    return z**4 / 4


@pytest.fixture(scope="module", params=["BAGAB", "BAOAB", "OBABO"])
def step(request):
    """
    A step from each position, momentum and noise of a grid: weights of the grid, old and new phase, and W. It has 64
    bits.
    """
    word, dynamics = request.param, Underdamped(1.0)
    normal = np.linspace(-5, 5, 41)
    # the last axes: one number of noise, or two
    axes = np.meshgrid(np.linspace(-3, 3, 81), *[normal] * (2 + (word == "OBABO")), indexing="ij")
    z, p, *n = (axis.ravel() for axis in axes)
    weights = np.exp(-energy(z) - (p**2 + sum(x**2 for x in n)) / 2)

    def one(z, p, *n):
        numbers = iter(n)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(noise, "normal_like", lambda key, like: {"z": next(numbers)})
            old = Phase({"z": z}, {"z": p}, noise_variance={"z": jnp.zeros_like(z)})
            at = lambda z: Evaluation(energy(z["z"]), jax.grad(lambda z: energy(z["z"]))(z), ())  # noqa: E731
            first = at(old.z)
            new, _, (last,), around_noise = Splitting(word, dynamics.flows).observed_step(
                dynamics, old, first.gradient, jnp.asarray(H), at, random.key(0)
            )
        return old, new, metropolis.work(dynamics, old, new, around_noise, first.energy, last.energy)

    with jax.enable_x64(True):
        old, new, work = jax.jit(jax.vmap(one))(*map(jnp.asarray, (z, p, *n)))
        back = jax.vmap(dynamics.reverse)(old, jnp.ones(z.shape))
        parts = jax.tree.map(np.asarray, ((old, new, back), work))
    return weights / weights.sum(), *parts


def expectation(weights, values):
    return (weights * values).sum()


FUNCTIONS = {
    "z^2": lambda phase: phase.z["z"] ** 2,
    "z^4": lambda phase: phase.z["z"] ** 4,
    "p^2": lambda phase: phase.momentum["z"] ** 2,
    "p^2 z^2": lambda phase: (phase.momentum["z"] * phase.z["z"]) ** 2,
    "p z": lambda phase: phase.momentum["z"] * phase.z["z"],
    "p^3 z": lambda phase: phase.momentum["z"] ** 3 * phase.z["z"],
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_step_keeps_its_distribution(step, function):
    """Accepted with min(1, exp(-W)), reversed otherwise: to the accuracy of the grid."""
    weights, (old, new, back), work = step
    f, chance = FUNCTIONS[function], np.exp(-np.maximum(work, 0))
    after = chance * f(new) + (1 - chance) * f(back)
    assert expectation(weights, after) == pytest.approx(expectation(weights, f(old)), abs=5e-3)


def test_without_the_test_it_would_not(step):
    weights, (old, new, _), _ = step
    moved = [abs(expectation(weights, f(new) - f(old))) for f in FUNCTIONS.values()]
    assert max(moved) > 0.5


def test_the_chance_of_a_step():
    keys, work = random.split(random.key(0), 20_000), jnp.array([-1.0, 0.5, 2.0, jnp.nan])
    passes = jax.vmap(jax.vmap(metropolis.passes, (0, None, None)), (None, None, 0))
    share = np.asarray(passes(work, jnp.zeros(()), keys).mean(0))
    np.testing.assert_allclose(share, [1, np.exp(-0.5), np.exp(-2), 0], atol=4 * np.sqrt(0.25 / len(keys)))
    np.testing.assert_allclose(metropolis.acceptance(work, jnp.zeros(())), [1, np.exp(-0.5), np.exp(-2), 0], rtol=1e-5)
    assert passes(work, jnp.asarray(1e7), keys).all(), "an energy of 1e7 has rounding errors of 1"
    assert (metropolis.acceptance(work, jnp.asarray(1e7)) == 1).all()


def normal():
    numpyro.sample("z", dist.Normal(0, 1).expand([3]).to_event(1))


def run(kernel, *args, **options):
    mcmc = MCMC(kernel, num_warmup=40, num_samples=20, progress_bar=False, **options)
    mcmc.run(random.key(0), *args, extra_fields=("potential_estimate",))
    return mcmc


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["vectorized", "sequential"])
def test_energies_are_those_of_the_draws(method):
    """Also at the positions to which the warm-up has moved the chains."""
    fields = run(SGHMC(normal), num_chains=2, chain_method=method)
    z, energies = fields.get_samples()["z"], fields.get_extra_fields()["potential_estimate"]
    np.testing.assert_allclose(energies, -dist.Normal(0, 1).log_prob(z).sum(-1), rtol=1e-4)


CHAINS = {"chain_method": "vectorized", "progress_bar": False}


@pytest.mark.parametrize("chains", [1, 2])
def test_the_acceptance_is_the_mean_over_the_steps_of_a_draw(chains, monkeypatch):
    monkeypatch.setattr(chain, "acceptance", lambda work, _: jnp.full_like(work, 0.25))
    kernel = SGHMC(normal, steps_per_sample=5)
    mcmc = MCMC(kernel, num_warmup=40, num_samples=3, num_chains=chains, **CHAINS)
    mcmc.run(random.key(0), extra_fields=("accept_prob",))
    np.testing.assert_allclose(mcmc.get_extra_fields()["accept_prob"], 0.25)


def test_the_step_size_at_which_enough_steps_pass():
    sigma = lambda share: -2 * norm.ppf(share / 2)  # noqa: E731
    moments = Moments.zeros(jnp.zeros((2, 1, 1)))._replace(draws=jnp.array(100.0))
    round_with = WarmUp(*[jnp.zeros(())] * len(WarmUp._fields))._replace(moments=moments)._replace
    for share in (0.3, 0.6, 0.85):
        h = round_with(rejected=jnp.array(100 * (1 - share))).reach_of_test(jnp.array(0.3))
        np.testing.assert_allclose((h / 0.3) ** 3, sigma(0.97) / sigma(share), rtol=1e-3)
    assert round_with(rejected=jnp.array(10.0)).reach_of_test(jnp.array(0.3)) == jnp.inf
    # with short steps it is the time between two rejections that counts
    assert round_with(rejected=jnp.array(1.9)).reach_of_test(jnp.array(0.02)) == jnp.inf
    h = round_with(rejected=jnp.array(4.0)).reach_of_test(jnp.array(0.02))
    np.testing.assert_allclose((h / 0.02) ** 3, sigma(0.99) / sigma(0.96), rtol=1e-3)
    np.testing.assert_allclose(round_with(rejected=jnp.array(100.0)).reach_of_test(jnp.array(0.3)), 0.3 / 4, rtol=0.02)


@pytest.mark.parametrize("accepted, halved", [(0.99, False), (0.95, True)])
def test_steps_that_pass_are_not_halved_because_of_their_draws(accepted, halved, monkeypatch):
    """Their size does not make draws wrong. On a9a with a wide prior a draw took twice as many steps."""
    monkeypatch.setattr(chain, "acceptance", lambda work, _: jnp.full_like(work, accepted))
    monkeypatch.setattr(WarmUp, "is_too_large", lambda *_: jnp.ones((), bool))
    mcmc = MCMC(SGHMC(normal), num_warmup=400, num_samples=1, **CHAINS)
    mcmc.warmup(random.key(0), collect_warmup=True, extra_fields=("step_size",))
    h = mcmc.get_extra_fields()["step_size"]
    assert (h[-1] < h[20]) == halved


@pytest.mark.parametrize("chains", [1, 2])
def test_steps_that_seldom_pass_become_smaller_after_each_round(chains, monkeypatch):
    monkeypatch.setattr(chain, "acceptance", lambda work, _: jnp.full_like(work, 0.5))
    mcmc = MCMC(SGHMC(normal), num_warmup=400, num_samples=1, num_chains=chains, **CHAINS)
    mcmc.warmup(random.key(0), collect_warmup=True, extra_fields=("step_size",))
    h = mcmc.get_extra_fields(group_by_chain=True)["step_size"][0]
    rounds = [20, 75, 150, 250, 350]  # a step in each, which end at 50, 100, 200 and 300
    expected = [h[20]]
    for _ in rounds[1:]:
        aim = min(0.03, expected[-1] / 2)
        ratio = norm.ppf((1 - aim) / 2) / norm.ppf(0.5 / 2)
        expected.append(expected[-1] * max(ratio, 0.25**3) ** (1 / 3))
    np.testing.assert_allclose(h[np.array(rounds)], expected, rtol=1e-3)


def test_a_rejected_step_reverses_the_chain(monkeypatch):
    monkeypatch.setattr(chain, "passes", lambda work, *_: jnp.zeros(work.shape, bool))
    mcmc = run(SGHMC(normal))
    z, energies = mcmc.get_samples()["z"], mcmc.get_extra_fields()["potential_estimate"]
    assert (z == z[0]).all()
    np.testing.assert_allclose(energies, -dist.Normal(0, 1).log_prob(z).sum(-1), rtol=1e-4)  # where the warm-up put it
    assert not mcmc.get_extra_fields(group_by_chain=False)["diverging"].any()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "kernel, args",
    [
        (SGHMC(models.gaussian, batch_size=models.B), (models.ROWS,)),
        (SGHMC(models.gaussian, batch_size={}, integrator="ABOBA"), (models.ROWS,)),
        (SGHMC(models.gaussian, batch_size={}, step_size=1e-3, integrator="BAOAB"), (models.ROWS,)),
    ],
    ids=["minibatches", "a word that does not evaluate its end", "a given step size"],
)
def test_other_steps_are_not_tested(kernel, args, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(chain, "passes", refuse)
    run(kernel, *args)
