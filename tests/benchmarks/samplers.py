"""
The samplers that ``answer.py`` compares, each as its users would call it.

Each is a generator. After the warm-up it yields draws of the compared coordinates, shape ``(chains, draws, d)``, and
the passes over the data so far. A fit yields draws of the fitted law alone, again and again as it goes on.
"""

from functools import partial

import blackjax
from blackjax.mcmc.adjusted_mclmc import rescale
import jax
from jax import lax, random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from numpyro import optim
from numpyro.infer import HMCECS, MCMC, NUTS, SVI, Trace_ELBO, autoguide
from numpyro.infer.util import initialize_model
import optax
from posteriors import BATCH, Subsample, with_all_rows

from numpyro_sgmcmc import SGHMC, find_mode, settings

from no_numbers_models import flat, rows  # isort: skip (its folder is on the path now)

LARGE = 2000  # coordinates of which a matrix is not made
GRADIENTS = 2  # of a step of the McLachlan integrator


def coordinates(problem, draws):
    return flat(draws, problem.sites)[1]


# -- NumPyro -------------------------------------------------------------------------------------------------------


def through_mcmc(problem, mcmc, passes, extra_fields=(), **options):
    """Draws of a run that is continued again and again; ``passes`` says what the first run or another has cost."""
    key, spent, first = random.key(1), 0.0, True
    while True:
        mcmc.run(key, *problem.args, extra_fields=extra_fields, **options)
        spent += passes(mcmc, first)
        yield coordinates(problem, mcmc.get_samples(group_by_chain=True)), spent
        mcmc.post_warmup_state = mcmc.last_state
        key, options, first = random.split(key)[0], {}, False


def sghmc(problem):
    """The line of README.md."""
    kernel = SGHMC(problem.model, batch_size=problem.batch_size)
    plate = kernel.potential(problem.args, {}).plates["rows"]
    mcmc = MCMC(
        kernel,
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
    )

    def passes(mcmc, first):
        chosen, transitions = settings(mcmc), 2000 if first else 1000
        each_row = chosen["gradient"].gradients_per_row(mcmc.last_state.gradient_state)
        share = each_row * plate.batch_size / plate.size if chosen["batch_size"] else 1.0
        return 4 * transitions * chosen["steps_per_sample"] * share + first * chosen["passes"]

    yield from through_mcmc(problem, mcmc, passes)


def nuts(problem, dense_mass=False):
    if dense_mass:
        refuse_large(problem)
    kernel = NUTS(with_all_rows(problem.model), dense_mass=dense_mass)
    mcmc = MCMC(kernel, num_warmup=500, num_samples=50)

    def passes(mcmc, first):
        # the warm-up is not counted by NumPyro: at least as much for each of its transitions
        draws = mcmc.get_extra_fields()["num_steps"]
        return float(draws.sum()) + first * 500 * float(draws.mean())

    yield from through_mcmc(problem, mcmc, passes, extra_fields=("num_steps",))


def hmcecs(problem):
    """With a Taylor proxy around the mode."""
    refuse_large(problem)
    mode = find_mode(problem.model, random.key(0), *problem.args, batch_size=BATCH, num_steps=5000, progress_bar=False)
    model = Subsample(problem.model, BATCH)
    mcmc = MCMC(HMCECS(NUTS(model), num_blocks=10, proxy=HMCECS.taylor_proxy(mode)), num_warmup=500, num_samples=50)
    yield from through_mcmc(problem, mcmc, lambda mcmc, first: float("nan"))


def svi(problem, guide_class, large=True):
    """Adam on minibatches; the rate decays."""
    if not large:
        refuse_large(problem)
    guide = guide_class(problem.model)
    fit = SVI(
        Subsample(problem.model, BATCH),
        Subsample(guide, BATCH),
        optim.Adam(lambda step: 1e-2 / (1 + step / 2000)),
        Trace_ELBO(),
    )
    state, spent = fit.init(random.key(0), *problem.args), 0.0

    @jax.jit
    def more(state, *args):
        return lax.fori_loop(0, 1000, lambda _, state: fit.update(state, *args)[0], state)

    while True:
        state = more(state, *problem.args)
        spent += 1000 * BATCH / rows(problem)
        draws = guide.sample_posterior(random.key(2), fit.get_params(state), sample_shape=(1, 4000))
        yield coordinates(problem, draws), spent


# -- BlackJAX ------------------------------------------------------------------------------------------------------


class Target:
    """The log density of a model on all rows, of a vector, and the way back to the sites."""

    def __init__(self, problem):
        self.problem, self.model = problem, with_all_rows(problem.model)
        self.args = problem.args
        info = initialize_model(random.key(0), self.model, model_args=self.args)
        self.start, self.unravel = ravel_pytree(info.param_info.z)
        self.energy, self.constrained = info.potential_fn, info.postprocess_fn

    def log_density(self, v):
        return -self.energy(self.unravel(v))

    def starts(self, chains):
        keys = random.split(random.key(3), chains)
        info = initialize_model(keys, self.model, model_args=self.args)
        return jax.vmap(lambda z: ravel_pytree(z)[0])(info.param_info.z)

    def coordinates(self, positions):
        """Of positions of shape ``(chains, draws, d)``."""
        return coordinates(self.problem, jax.vmap(jax.vmap(lambda v: self.constrained(self.unravel(v))))(positions))


def repeated(target, step, state, draws, spent, key=4):
    """Draws of a compiled loop; ``step`` also returns how many gradients it took."""

    @jax.jit
    def more(key, state):
        return lax.scan(lambda state, key: step(key, state), state, random.split(key, draws))

    key = random.key(key)
    while True:
        key, now = random.split(key)
        state, (positions, gradients) = more(now, state)
        spent += float(gradients.sum())
        positions = positions if positions.ndim == 3 else positions[:, None]
        yield target.coordinates(positions.swapaxes(0, 1)), spent


def mclmc(problem):
    """With BlackJAX's tuning, for a run of 10 000 steps."""
    target, steps = Target(problem), 10_000
    kernel = blackjax.mclmc.build_kernel()
    state = blackjax.mclmc.init(target.start, target.log_density, random.key(1))
    state, chosen, tuning = jax.jit(
        lambda state: blackjax.mclmc_find_L_and_step_size(kernel, steps, state, random.key(2), target.log_density)
    )(state)

    def step(key, state):
        state, _ = kernel(
            key, state, target.log_density, chosen.inverse_mass_matrix, L=chosen.L, step_size=chosen.step_size
        )
        return state, (state.position, jnp.asarray(GRADIENTS))

    yield from repeated(target, step, state, 1000, GRADIENTS * float(tuning))


def adjusted_mclmc(problem):
    """With BlackJAX's tuning, for a run of 2000 draws."""
    target, draws = Target(problem), 2000
    number = lambda key, mean: jnp.ceil(random.uniform(key) * rescale(mean)).astype(int)  # noqa: E731
    kernel = blackjax.adjusted_mclmc_dynamic.build_kernel(integration_steps_fn=number)
    state = blackjax.adjusted_mclmc_dynamic.init(target.start, target.log_density, random.key(1))
    state, chosen, tuning = jax.jit(
        lambda state: blackjax.adjusted_mclmc_find_L_and_step_size(
            kernel, target.log_density, draws, state, random.key(2), target=0.9
        )
    )(state)

    def step(key, state):
        state, info = kernel(
            key,
            state,
            target.log_density,
            chosen.step_size,
            inverse_mass_matrix=chosen.inverse_mass_matrix,
            integration_steps_params=(chosen.L / chosen.step_size,),
        )
        return state, (state.position, GRADIENTS * info.num_integration_steps)

    yield from repeated(target, step, state, 200, GRADIENTS * float(tuning))


def chees(problem, chains=16):
    """ChEES-HMC with a diagonal mass matrix."""
    target = Target(problem)
    warmup = blackjax.chees_adaptation(target.log_density, chains, mass_matrix_estimation="diagonal")
    run = partial(warmup.run, random.key(2), target.starts(chains), 0.01, optax.adam(0.02), 500)
    (state, chosen), info = run()
    kernel = blackjax.dynamic_hmc.build_kernel(
        integration_steps_fn=chosen["integration_steps_fn"], next_random_arg_fn=chosen["next_random_arg_fn"]
    )

    def one(key, state):
        return kernel(
            key,
            state,
            target.log_density,
            chosen["step_size"],
            chosen["inverse_mass_matrix"],
            integration_steps_params=chosen["integration_steps_params"],
        )

    def step(key, state):
        state, info = jax.vmap(one)(random.split(key, chains), state)
        return state, (state.position, info.num_integration_steps.sum())

    yield from repeated(target, step, state, 20, float(info.info.num_integration_steps.sum()))


def pathfinder(problem):
    """BlackJAX's Pathfinder, with its own numbers."""
    target = Target(problem)
    state, info = jax.jit(lambda v: blackjax.vi.pathfinder.approximate(random.key(1), target.log_density, v))(
        target.start
    )
    draws, _ = blackjax.vi.pathfinder.sample(random.key(2), state, 4000)
    yield target.coordinates(draws[None]), float("nan")


def laplace(problem):
    """The mode by Adam on minibatches, and the curvature there."""
    yield from svi(problem, autoguide.AutoLaplaceApproximation, large=False)


def refuse_large(problem):
    if len(Target(problem).start) > LARGE:
        raise ValueError(f"more than {LARGE} coordinates")


SAMPLERS = {
    "SGHMC(model, batch_size=...)": sghmc,
    "NUTS": nuts,
    "NUTS, dense_mass=True": partial(nuts, dense_mass=True),
    "BlackJAX MCLMC": mclmc,
    "BlackJAX adjusted MCLMC": adjusted_mclmc,
    "BlackJAX ChEES-HMC, 16 chains": chees,
    "BlackJAX Pathfinder": pathfinder,
    "HMCECS, Taylor proxy": hmcecs,
    "SVI, AutoMultivariateNormal": partial(svi, guide_class=autoguide.AutoMultivariateNormal, large=False),
    "SVI, AutoLowRankMultivariateNormal": partial(svi, guide_class=autoguide.AutoLowRankMultivariateNormal),
    "Laplace": laplace,
}
