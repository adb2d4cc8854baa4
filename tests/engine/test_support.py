"""Chains stay inside of a hard support, and a refused step never stops them."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, SGNHT

CHAINS = 64


def half_normal():
    z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.factor("wall", jnp.where(z < 0, -jnp.inf, 0.0))


def box():
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.factor("walls", jnp.where((z < 0) | (z > 1), -jnp.inf, 0.0))


DATA = jnp.array([0.4, 1.7, 1.1, 0.2, 1.5])


def uniform(x):
    """The support of the data depends on a latent."""
    theta = numpyro.sample("z", dist.Normal(3, 1))
    numpyro.sample("x", dist.Uniform(0, theta, validate_args=True), obs=x)


def uniform_posterior():
    grid = np.linspace(float(DATA.max()), 10, 200_001)
    density = np.exp(-0.5 * (grid - 3) ** 2) * grid ** -float(len(DATA))
    density /= density.sum()
    mean = grid @ density
    return mean, np.sqrt((grid - mean) ** 2 @ density)


HALF_NORMAL = np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi)
# mean, sd and how far either may be off: a wall costs the words of order 1 in z, E and EA, O(sqrt(h)), others O(h)
CASES = {
    "SGLD": (SGLD, {"step_size": 0.01}, 0.06),
    "ABOBA": (SGHMC, {"step_size": 0.05}, 0.03),
    "BAOAB": (SGHMC, {"step_size": 0.05, "integrator": "BAOAB"}, 0.03),
    "EA": (SGHMC, {"step_size": 0.05, "integrator": "euler"}, 0.04),
    "ABO": (SGHMC, {"step_size": 0.05, "integrator": "ABO"}, 0.04),
    "MSGNHT": (MSGNHT, {"step_size": 0.05}, 0.04),
    "SGNHT": (SGNHT, {"step_size": 0.05, "integrator": "BADODAB"}, 0.04),
}


def draws(model, kernel_class, start, *args, steps_per_sample=20, num_samples=500, **options):
    kernel = kernel_class(model, steps_per_sample=steps_per_sample, **options)
    mcmc = MCMC(
        kernel,
        num_warmup=100,
        num_samples=num_samples,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), *args, init_params={"z": jnp.full(CHAINS, start)})
    return np.asarray(mcmc.get_samples(group_by_chain=True)["z"]), mcmc


def assert_near(z, mean, sd, tolerance):
    assert z.mean() == pytest.approx(mean, abs=tolerance * sd + 4 * sd / np.sqrt(CHAINS * 100))
    assert z.std() == pytest.approx(sd, rel=tolerance + 0.02)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.every(3)
def test_a_wall(case):
    kernel_class, options, tolerance = CASES[case]
    z, mcmc = draws(half_normal, kernel_class, 0.5, **options)
    assert (z >= 0).all()
    assert_near(z, *HALF_NORMAL, tolerance)
    assert mcmc.get_extra_fields()["diverging"].any()


@pytest.mark.parametrize("case", ["SGLD", "ABOBA", "EA"])
@pytest.mark.every(3)
def test_a_wall_at_every_step(case):
    """Each draw is a step, each step may leave the support, and none of the draws does."""
    kernel_class, options, tolerance = CASES[case]
    z, _ = draws(half_normal, kernel_class, 0.5, steps_per_sample=1, num_samples=4000, **options)
    assert (z >= 0).all()
    assert_near(z, *HALF_NORMAL, tolerance)


@pytest.mark.parametrize("case", ["SGLD", "ABOBA", "MSGNHT"])
@pytest.mark.every(2)
def test_a_support_that_depends_on_a_latent(case):
    kernel_class, options, tolerance = CASES[case]
    z, _ = draws(uniform, kernel_class, 3.0, DATA, **options)
    assert (z >= DATA.max()).all()
    assert_near(z, *uniform_posterior(), 2 * tolerance)


@pytest.mark.filterwarnings("ignore:.*the kinetic temperature")  # halved momenta are cold ones
@pytest.mark.parametrize("word", ["ABOBA", "BAOAB", "ABO", "EA"])
@pytest.mark.every(2)
def test_two_walls_closer_than_a_step(word):
    """A refused step reverses the momentum, a second one halves it too: the chain is not caught between the walls."""
    z, mcmc = draws(box, SGHMC, 0.5, step_size=0.7, integrator=word, friction=0.3)
    assert ((z >= 0) & (z <= 1)).all()
    assert mcmc.get_extra_fields()["monitor"].refused.max() < 20
    assert z.std() > 0.15  # of sqrt(1/12) = 0.29
    assert (np.diff(z, axis=1) != 0).mean() > 0.3


def test_the_wall_is_felt_by_a_single_chain_as_by_many():
    """The look at the end of a transition is a choice for each chain."""
    kernel = SGHMC(half_normal, step_size=0.3, steps_per_sample=3)
    keys = random.split(random.key(1), 32)
    many = jax.jit(lambda s: kernel.sample(s, (), {}))(kernel.init(keys, 0, {"z": jnp.full(32, 0.1)}, (), {}))
    single = jax.jit(lambda s: kernel.sample(s, (), {}))
    some = [0, 5, 17, *np.flatnonzero(many.diverging)[:2]]
    for k in some:
        alone = single(kernel.init(keys[k], 0, {"z": jnp.asarray(0.1)}, (), {}))
        np.testing.assert_allclose(alone.z["z"], many.z["z"][k], rtol=1e-5)
        assert alone.diverging == many.diverging[k]
