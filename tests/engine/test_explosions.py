"""Chains do not explode: a step to an energy that chance does not allow is refused, and a lost round starts again."""

from dataclasses import replace

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest
from scipy.stats import chi2

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, SGNHT, settings
from numpyro_sgmcmc.engine.tuned import BEYOND, PER_COORDINATE
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Moments, evidence, is_lost
from numpyro_sgmcmc.types import Phase

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TAU = 3.60, 3.21  # mean and sd, from 40 000 draws of NUTS


def schools(y, errors, centred):
    """Eight schools (Rubin 1981)."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    loc, scale = (mu, tau) if centred else (0.0, 1.0)
    effects = numpyro.sample("effects", dist.Normal(loc, scale).expand([8]).to_event(1))
    effects = effects if centred else mu + tau * effects
    with numpyro.plate("schools", 8) as rows:
        numpyro.sample("y", dist.Normal(effects[rows], errors[rows]), obs=y[rows])


@pytest.mark.every(4)
@pytest.mark.filterwarnings("ignore:the draws are")  # with half of the rows some keys are doubtful or wrong
@pytest.mark.parametrize("centred, batch_size, key", [(False, None, 1), (False, 4, 0), (True, None, 0), (True, 4, 1)])
def test_eight_schools(centred, batch_size, key):
    """Without the bound the sd of tau was 1e3 to 1e17 times too large in each of these."""
    mcmc = MCMC(
        SGHMC(schools, batch_size=batch_size),
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(key), EFFECTS, ERRORS, centred)
    tau = np.asarray(mcmc.get_samples()["tau"], float)
    assert abs(tau.mean() - TAU[0]) < TAU[1]
    assert 0.5 < tau.std() / TAU[1] < 2
    if batch_size is None:
        assert settings(mcmc)["verdict"] == "right"


@pytest.mark.parametrize("d", [1, 5, 30, 1000, 100_000])
def test_the_bound_is_beyond_chance(d):
    """Also if the noise of the gradients, as far as the warm-up allows it, heats the momentum by a tenth."""
    bound = PER_COORDINATE * d + BEYOND
    assert chi2.sf(bound, d) < 2e-12
    assert chi2.sf(bound / 1.1, d) < 1e-10


D = 4


def normal():
    numpyro.sample("z", dist.Normal(0, 1).expand([D]).to_event(1))


def quartic():
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (D,)))
    numpyro.factor("energy", -(z**4).sum())
    with numpyro.plate("rows", 2, subsample_size=1) as rows:  # with all rows the steps would pass a Metropolis test
        numpyro.sample("y", dist.Normal(0, 1), obs=jnp.zeros(2)[rows])


def chain_and_state(kernel_class, there=None, h=0.1, model=normal, **options):
    """A potential, a chain and its state, with step size ``h``, in the four coordinates of the model."""
    kernel = kernel_class(model, **options)
    state = kernel.init(random.key(0), 100, None, (), {})
    potential = kernel.potential((), {})
    if not options:
        state = state._replace(settings=replace(state.settings, step_size=jnp.asarray(h)))
    if there is not None:
        there = jnp.full(D, there)
        state = state.with_phase(
            state.phase._replace(z=there), last_finite=jax.tree.map(lambda _: there, state.last_finite)
        )
    return potential, kernel.chain_for(potential), state


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel_class", [SGHMC, SGNHT, MSGNHT, SGLD])
def test_a_step_to_an_impossible_energy_is_refused(kernel_class):
    """The chain stays where it was, with its momentum reversed. A given step size allows all steps."""
    # a step that is too large ends on the other side, far away
    potential, chain, far = chain_and_state(kernel_class, 1e3, h=30.0)
    if chain.integrator.carries_gradient:
        far = chain.refresh(potential, far)
    new = jax.jit(chain.step, static_argnums=0)(potential, far)
    assert new.diverging and new.refused == 1
    np.testing.assert_array_equal(new.phase.z, far.phase.z)
    if kernel_class is not SGLD:
        np.testing.assert_array_equal(new.momentum, -far.momentum)
    potential, chain, state = chain_and_state(kernel_class)
    near = jax.jit(chain.step, static_argnums=0)(potential, state)
    assert not near.diverging and (near.phase.z != state.phase.z).all()

    potential, chain, state = chain_and_state(kernel_class, step_size=0.1)
    new = jax.jit(chain.step, static_argnums=0)(
        potential, state.with_phase(state.phase._replace(z={"z": jnp.full(D, 1e3)}))
    )
    assert not new.diverging


def test_a_chain_comes_back_from_far_away():
    """
    If it fell freely, the square of its momentum would be 160 000, and the bound is 62. If each such step were refused,
    it would take more than 20 000 steps.
    """
    potential, chain, far = chain_and_state(SGHMC, 200.0)
    far = chain.refresh(potential, far)
    end = jax.jit(lambda state: lax.fori_loop(0, 600, lambda _, s: chain.step(potential, s), state))(far)
    assert end.diverging
    assert jnp.linalg.norm(end.phase.z) < 6


def test_a_chain_leaves_a_place_where_every_step_is_refused():
    """
    With U = sum z^4, z = 3.2 and h = 0.3, each coordinate of the momentum after a step is about -10, and the bound on
    the sum of their squares is 62. The steps become shorter there, and have their size again where they are taken.
    """
    potential, chain, state = chain_and_state(SGHMC, 3.2, h=0.3, model=quartic)
    state = chain.refresh(potential, state)
    step = jax.jit(lambda state, _: (new := chain.step(potential, state), (new.step_size, new.refused)))
    end, (sizes, refused) = lax.scan(step, state, length=400)
    assert (refused[:10] == jnp.arange(1, 11)).all() and (sizes[:10] == 0.3).all() and sizes[10] == 0.15
    assert jnp.abs(end.phase.z).max() < 2.5
    assert (refused[-100:] < 10).all() and (sizes[-100:] == 0.3).all()


@pytest.mark.parametrize("phase, possible", [(np.sqrt(62 / 4), True), (np.sqrt(63 / 4), False), (np.nan, False)])
def test_the_bound_counts_the_whole_momentum(phase, possible):
    """3 x 4 + 50 = 62."""

    def model():
        numpyro.sample("z", dist.Normal(0, 1).expand([4]).to_event(1))

    kernel = SGHMC(model)
    chain = kernel.chain_for(kernel.potential((), {}))
    new = Phase(jnp.zeros(4), jnp.full(4, phase))
    assert bool(chain.accepted(jnp.asarray(True), new, new, jnp.asarray(0.1))) == possible


def evidence_of(x):
    moments = Moments.zeros(jnp.zeros((7, *x.shape[1:])))
    sums = jnp.asarray(x, jnp.float32).reshape(BLOCKS, -1, *x.shape[1:])
    blocks = jnp.stack([sums, sums**2, sums, sums**2], 2).sum(1)
    return evidence(moments._replace(draws=jnp.asarray(float(len(x))), blocks=blocks))


def test_what_a_lost_round_is():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4, 3))
    apart = x + np.array([0, 0, 0, 40.0])[:, None]
    assert not is_lost(evidence_of(x))
    assert not is_lost(evidence_of(5 * x + 20))
    assert is_lost(evidence_of(apart))
    assert is_lost(evidence_of(1e4 * x))
    assert is_lost(evidence_of(np.where(x > 2, np.nan, x)))


@pytest.mark.every(2)
@pytest.mark.parametrize("transition", [50, 200])
def test_a_lost_round_starts_again_from_the_normal_approximation(transition):
    """With half of the step size; the centre and the scale are those of the search."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(mu, 1).to_event(1), obs=y[rows])

    y = jnp.zeros((100, 3))
    kernel = SGHMC(model, batch_size=50)
    state = kernel.init(random.split(random.key(0), 4), 400, None, (y,), {})
    chains = kernel.chains_for(kernel.potential((y,), {}))

    @jax.jit
    def after(draws):
        moments = state.warm_up.moments
        sums = draws.reshape(BLOCKS, -1, 4, 3)
        blocks = jnp.stack([sums, sums**2, sums, sums**2], 2).sum(1)
        places = jnp.broadcast_to(draws[0], moments.places.shape)
        moments = moments._replace(draws=jnp.asarray(1.0 * len(draws)), blocks=blocks, places=places)
        warm_up = state.warm_up._replace(moments=moments, transition=jnp.asarray(transition))
        settings = replace(state.settings, step_size=state.warm_up.largest)
        of_chains = state.z, state.phase._replace(z=draws[-1]), state.gradient_state
        return chains.chain.tuner.before(chains.potential, settings, warm_up, *of_chains, random.key(1))

    draws = random.normal(random.key(2), (100, 4, 3))
    settings, warm_up, phase, *_ = after(draws)
    assert warm_up.largest == state.warm_up.largest
    assert (settings.coordinates.center != state.settings.coordinates.center).all()
    settings, warm_up, phase, *_ = after(1e15 * draws)
    assert warm_up.largest == state.warm_up.largest / 2
    np.testing.assert_array_equal(settings.coordinates.center, state.settings.coordinates.center)
    assert jnp.isfinite(phase.z).all() and jnp.abs(phase.z).max() < 6
    assert jnp.isfinite(phase.momentum).all() and jnp.isfinite(settings.noise_variance).all()
