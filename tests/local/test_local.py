"""Latent sites of a row: those that are summed out exactly, and those that are drawn for each minibatch."""

import itertools
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, init_to_value
import pytest

from numpyro_sgmcmc import (
    SAGA,
    SGHMC,
    SGLD,
    SVRG,
    ControlVariate,
    LocalGibbs,
    LocalHMC,
    LocalLangevin,
    gradient_noise,
    summary,
    to_arviz,
)
from numpyro_sgmcmc.potential.potential import ModelPotential

N, B = 12, 3
_rng = np.random.default_rng(5)
Y = np.where(_rng.random(N) < 0.4, -2.0, 1.5) + _rng.normal(size=N)
WORDS = _rng.integers(0, 3, (4, N))
PARALLEL = {"enumerate": "parallel"}


def _globals():
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 1.0]), 1.0).to_event(1))
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    return means, jnp.stack([1 - weight, weight])


def summed(y):
    means, weights = _globals()
    with numpyro.plate("N", len(y)) as rows:
        k = numpyro.sample("k", dist.Categorical(weights), infer=PARALLEL)
        numpyro.deterministic("own", means[k])
        numpyro.sample("y", dist.Normal(means[k], 1), obs=y[rows])


def marginal(y):
    means, weights = _globals()
    with numpyro.plate("N", len(y)) as rows:
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, 1))
        numpyro.sample("y", mixture, obs=y[rows])


def chain(y):
    """Two sites that are summed together: the second depends on the first."""
    means, weights = _globals()
    with numpyro.plate("N", len(y)) as rows:
        a = numpyro.sample("a", dist.Categorical(weights), infer=PARALLEL)
        b = numpyro.sample("b", dist.Bernoulli(0.2 + 0.5 * a), infer=PARALLEL)
        numpyro.sample("y", dist.Normal(means[b] + 0.3 * a, 1), obs=y[rows])


def chain_marginal(y):
    means, weights = _globals()
    a, b = jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 0, 1])
    prob = jnp.where(b == 1, 0.2 + 0.5 * a, 0.8 - 0.5 * a) * weights[a]
    with numpyro.plate("N", len(y)) as rows:
        mixture = dist.MixtureSameFamily(dist.Categorical(prob), dist.Normal(means[b] + 0.3 * a, 1))
        numpyro.sample("y", mixture, obs=y[rows])


def topics(words):
    """A sum for each word of a document, inside a plate of its own."""
    topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    with numpyro.plate("words", len(words), dim=-2), numpyro.plate("docs", words.shape[1], dim=-1) as rows:
        k = numpyro.sample("k", dist.Categorical(jnp.array([0.3, 0.7])), infer=PARALLEL)
        numpyro.sample("w", dist.Categorical(topic[k]), obs=words[:, rows])


def topics_marginal(words):
    topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    with numpyro.plate("words", len(words), dim=-2), numpyro.plate("docs", words.shape[1], dim=-1) as rows:
        numpyro.sample("w", dist.Categorical(jnp.array([0.3, 0.7]) @ topic), obs=words[:, rows])


def causes(words):
    """A sum for each document; its words stand in a plate of their own."""
    topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    with numpyro.plate("docs", words.shape[1], dim=-1) as rows:
        k = numpyro.sample("k", dist.Categorical(jnp.array([0.3, 0.7])), infer=PARALLEL)
        with numpyro.plate("words", len(words), dim=-2):
            numpyro.sample("w", dist.Categorical(topic[k]), obs=words[:, rows])


def causes_marginal(words):
    topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    with numpyro.plate("docs", words.shape[1], dim=-1) as rows:
        of_causes = jnp.log(topic)[:, words[:, rows]].sum(1) + jnp.log(jnp.array([[0.3], [0.7]]))
        numpyro.factor("w", jax.scipy.special.logsumexp(of_causes, 0))


MODELS = [
    (summed, marginal, Y, "N"),
    (chain, chain_marginal, Y, "N"),
    (topics, topics_marginal, WORDS, "docs"),
    (causes, causes_marginal, WORDS, "docs"),
]


@pytest.mark.parametrize("model, truth, data, plate", MODELS)
@pytest.mark.parametrize("size", [B, None])
@pytest.mark.every(3)
def test_a_sum_is_the_marginal(model, truth, data, plate, size):
    """Energy, gradient, and the energies of single rows, on a minibatch and on all rows."""
    batch = None if size is None else {plate: size}
    ours, theirs = (ModelPotential.from_model(f, (data,), {}, batch) for f in (model, truth))
    assert ours.prototype == theirs.prototype
    z = jax.tree.map(lambda s: 0.3 * random.normal(random.key(1), s.shape), ours.prototype)
    rows = {plate: jnp.array([7, 2, 5])} if size else {}
    for a, b in zip(*(jax.tree.leaves(jax.jit(jax.value_and_grad(p.estimate))(z, rows)) for p in (ours, theirs))):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    if size:
        np.testing.assert_allclose(*(jax.jit(p.prior)(z) for p in (ours, theirs)), rtol=1e-6)
        np.testing.assert_allclose(*(jax.jit(p.per_row)(z, rows) for p in (ours, theirs)), rtol=2e-5)


def test_unbiased_over_all_batches():
    """The mean over all minibatches is the gradient on all rows: the factor N/n stands outside of the logarithm."""
    cut, whole = (ModelPotential.from_model(summed, (Y,), {}, batch) for batch in ({"N": B}, None))
    z = jax.tree.map(lambda s: jnp.full(s.shape, 0.4), cut.prototype)
    batches = jnp.array(list(itertools.combinations(range(N), B)))
    gradients = jax.jit(jax.vmap(lambda b: jax.grad(cut.estimate)(z, {"N": b})))(batches)
    mean, exact = jax.tree.map(lambda g: g.mean(0), gradients), jax.jit(jax.grad(whole.estimate))(z, {})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), mean, exact)


CENTER = {"means": jnp.array([-2.0, 1.4]), "weight": jnp.array(0.2)}


@pytest.mark.parametrize(
    "gradient", [SAGA(), SAGA(per="batch"), SVRG(), ControlVariate(CENTER)], ids=lambda g: type(g).__name__
)
@pytest.mark.every(4)
@pytest.mark.slow
def test_chains_are_those_of_the_marginal(gradient):
    """The same keys give the same draws, by every estimator, and no draw has a site of a row in it."""
    kernels = [SGLD(f, step_size=0.01, batch_size=B, gradient=gradient, steps_per_sample=9) for f in (summed, marginal)]
    start = kernels[0].init(random.key(0), 0, CENTER, (Y,), {})  # tables and centres of the sum
    ours, theirs = (jax.jit(lambda s, kernel=kernel: kernel.sample(s, (Y,), {}))(start).z for kernel in kernels)
    assert ours.keys() == {"means", "weight"}
    assert float(jnp.abs(ours["means"] - CENTER["means"]).min()) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, theirs)


@pytest.mark.slow
def test_gradient_noise_is_that_of_the_marginal():
    noises = []
    for model in (summed, marginal):
        kernel = SGLD(model, step_size=0.01, batch_size=B)
        state = kernel.init(random.key(0), 0, CENTER, (Y,), {})
        noises.append(gradient_noise(kernel, state, Y).variance)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), *noises)
    assert noises[0]["weight"] > 0.1


@pytest.mark.slow
def test_all_rows_leave_out_what_is_not_sampled():
    """Without minibatches too, and a deterministic site that depends on a summed one is not a draw."""
    mcmc = MCMC(SGLD(summed, step_size=0.01), num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(random.key(0), Y)
    draws = mcmc.get_samples()
    assert draws.keys() == {"means", "weight"}
    found = to_arviz(mcmc, log_likelihood=True).log_likelihood["y"].values[0]
    weights = np.stack([1 - draws["weight"], draws["weight"]], -1)
    normal = np.exp(-0.5 * (Y[:, None] - np.asarray(draws["means"])[:, None]) ** 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found, np.log((normal * weights[:, None]).sum(-1)), rtol=1e-4)


def test_a_start_where_an_element_is_impossible():
    """A zero-inflated count is impossible at one element of the support, not in the sum."""

    def inflated(y):
        rate = numpyro.sample("rate", dist.LogNormal(0, 1))
        with numpyro.plate("N", len(y)) as rows:
            k = numpyro.sample("k", dist.Bernoulli(0.5), infer=PARALLEL)
            log_prob = jnp.where(k == 1, dist.Poisson(rate).log_prob(y[rows]), jnp.where(y[rows] == 0, 0.0, -jnp.inf))
            numpyro.factor("y", log_prob)

    potential = ModelPotential.from_model(inflated, (WORDS[0],), {}, 4)
    z = potential.initial(random.key(0), potential.some_rows(), None)
    assert jnp.isfinite(potential.estimate(z, potential.some_rows()))


def _with(statement, marked=None):
    marked = dist.Bernoulli(0.5) if marked is None else marked

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(y)) as rows:
            k = numpyro.sample("k", marked, infer=PARALLEL)
            numpyro.sample("y", dist.Normal(mu + jnp.reshape(k, (-1, rows.size))[0], 1), obs=y[rows])
        statement(k)

    return model


@pytest.mark.parametrize(
    "model, message",
    [
        (_with(lambda k: numpyro.factor("f", k.sum())), "'f' depends on 'k', which is summed out"),
        (_with(lambda k: None, dist.Poisson(2.0)), "'k' has a Poisson distribution"),
        (_with(lambda k: None, dist.Categorical(jnp.ones(5000) / 5000)), r"'k' has 5000\^1 values"),
        (_with(lambda k: None, dist.Bernoulli(0.5).expand([12]).to_event(1)), r"'k' has 2\^12 values"),
    ],
)
@pytest.mark.parametrize("size", [B, None])
def test_refused(model, message, size):
    with pytest.raises(ValueError, match=message):
        ModelPotential.from_model(model, (Y,), {}, size)


def test_linear_predictors_refuse():
    kernel = SGLD(summed, step_size=0.01, batch_size=B, gradient=SAGA(per="linear"))
    with pytest.raises(ValueError, match="linear"):
        kernel.init(random.key(0), 0, None, (Y,), {})


# -- drawn for each minibatch --------------------------------------------------------------------------------------

EFFECTS = 0.5 + np.random.default_rng(1).normal(size=N) + np.random.default_rng(2).normal(size=N)


def effects(y):
    """y_i ~ N(u_i, 1), u_i ~ N(mu, 1): the posterior and the noise of mu's gradient are known."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u, 1), obs=y[rows])


def exactly(rng_key, local_sites, global_sites, rows, y):
    mean = (global_sites["mu"] + y[rows]) / 2
    return {"u": mean + 0.5**0.5 * random.normal(rng_key, local_sites["u"].shape)}


def gradients(local, model=effects, data=EFFECTS, mu=0.3, count=4000):
    """dU / d mu by many minibatches, with the keys of the local draws independent."""
    kernel = SGLD(model, step_size=0.01, batch_size=B, local=local)
    potential = kernel.potential((jnp.asarray(data),), {})

    def one(key):
        key_rows, key_local = random.split(key)
        rows = {"N": random.choice(key_rows, N, (B,), replace=False)}
        return jax.grad(potential.estimate)({"mu": jnp.asarray(mu)}, rows, key_local)["mu"]

    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=100))(random.split(random.key(0), count)))


@pytest.mark.parametrize(
    "local",
    [exactly, LocalHMC(step_size=0.5, num_steps=3, moves=5), LocalLangevin(step_size=0.8, moves=15)],
    ids=["function", "HMC", "Langevin"],
)
def test_the_gradient_and_its_noise_are_those_of_the_conditional_law(local):
    """Fisher's identity, and Var = rows + local draws: N^2/n (Var_i(y_i - mu) / 4 (1 - n/N) + 1/2)."""
    found = gradients(local)
    mean = 0.3 / 100 + np.sum(0.3 - EFFECTS) / 2
    variance = N**2 / B * ((1 - B / N) * np.var(EFFECTS / 2, ddof=1) + 0.5)
    error = np.sqrt(variance / len(found))
    assert abs(found.mean() - mean) < 4.5 * error
    assert found.var() == pytest.approx(variance, rel=4.5 * np.sqrt(2 / len(found)))


def test_the_noise_that_a_kernel_measures_has_that_of_the_local_draws():
    """``gradient_noise``, and what NOGIN measures at its start; without the draws it would be half of it."""
    kernel = SGHMC(effects, step_size=0.01, batch_size=B, local=exactly, integrator="NOGIN")
    state = kernel.init(random.key(3), 0, {"mu": 0.3}, (jnp.asarray(EFFECTS),), {})
    count = 2000
    found = gradient_noise(kernel, state, jnp.asarray(EFFECTS), num_batches=count)
    rows = N**2 / B * (1 - B / N) * np.var(EFFECTS / 2, ddof=1)
    variance = rows + N**2 / B * 0.5
    assert float(found.variance["mu"]) == pytest.approx(variance, rel=4.5 * np.sqrt(2 / count))
    assert float(state.noise_variance["mu"]) == pytest.approx(variance, rel=4.5 * np.sqrt(2 / 300))
    assert rows < 0.6 * variance


@pytest.mark.parametrize("local", [LocalGibbs(), LocalHMC(0.5), LocalLangevin(0.5)])
def test_a_plate_beside_that_of_the_local_sites(local):
    """Its rows are in the loop over the moves, where nothing that is drawn depends on them."""

    def beside(y, x):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("N", len(y)) as rows:
            if isinstance(local, LocalGibbs):
                u = numpyro.sample("u", dist.Bernoulli(0.5))
            else:
                u = numpyro.sample("u", dist.Normal(mu, 1))
            numpyro.sample("y", dist.Normal(mu + u, 1), obs=y[rows])
        with numpyro.plate("M", len(x)) as rows:
            numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])

    kernel = SGLD(beside, step_size=0.01, batch_size={"N": B, "M": B}, local=local)
    state = kernel.init(random.key(0), 0, None, (jnp.asarray(EFFECTS), jnp.arange(20.0)), {})
    assert np.isfinite(state.potential_estimate)


def test_too_few_moves_are_seen():
    """The planted fault of the test before: one tiny move from the prior is not the conditional law."""
    found = gradients(LocalLangevin(step_size=0.01, moves=1))
    mean = 0.3 / 100 + np.sum(0.3 - EFFECTS) / 2
    assert abs(found.mean() - mean) > 10 * found.std() / np.sqrt(len(found))


def bounded(y):
    """u_i ~ Uniform(0, a): the support of a local site depends on a global one."""
    a = numpyro.sample("mu", dist.LogNormal(1, 0.3))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Uniform(0, a))
        numpyro.sample("y", dist.Normal(u, 0.5), obs=y[rows])


def test_a_support_that_depends_on_a_global_site():
    y, z = np.abs(EFFECTS), 1.2
    a = np.exp(z)

    def draw(rng_key, local_sites, global_sites, rows, y):
        u = random.truncated_normal(rng_key, -2 * y[rows], 2 * (global_sites["mu"] - y[rows]))
        return {"u": jnp.clip(y[rows] + 0.5 * u, 1e-4, global_sites["mu"] - 1e-4)}

    def energy(z):
        cdf = jax.scipy.stats.norm.cdf
        mass = cdf(2 * (jnp.exp(z) - y)) - cdf(-2 * y)
        return -dist.Normal(1, 0.3).log_prob(z) - jnp.sum(jnp.log(mass) - z)

    found = gradients(draw, bounded, y, z)
    assert abs(found.mean() - jax.jit(jax.grad(energy))(jnp.log(a))) < 4.5 * found.std() / np.sqrt(len(found))


def units(y):
    """Two binary units and a binary cause of theirs."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)) as rows:
        cause = numpyro.sample("cause", dist.Bernoulli(0.3))
        logits = mu + jnp.stack([cause, -1.0 * cause], -1)
        h = numpyro.sample("h", dist.Bernoulli(logits=logits).to_event(1))
        numpyro.sample("y", dist.Normal(h.sum(-1) * mu, 1), obs=y[rows])


@pytest.mark.slow
def test_gibbs_sweeps_draw_from_the_conditional_law():
    """Against the exact gradient of the marginal; a single sweep from the prior is seen not to be enough."""

    def energy(mu):
        terms = []
        for cause, a, b in itertools.product((0, 1), repeat=3):
            prior = dist.Bernoulli(0.3).log_prob(cause)
            prior += dist.Bernoulli(logits=mu + cause).log_prob(a) + dist.Bernoulli(logits=mu - cause).log_prob(b)
            terms.append(prior + dist.Normal((a + b) * mu, 1).log_prob(EFFECTS))
        return -dist.Normal(0, 1).log_prob(mu) - jax.scipy.special.logsumexp(jnp.stack(terms), 0).sum()

    exact = jax.jit(jax.grad(energy))(2.0)
    error = {}
    for sweeps in (1, 20):
        found = gradients(LocalGibbs(sweeps), units, EFFECTS, 2.0, 2000)
        error[sweeps] = abs(found.mean() - exact) * np.sqrt(len(found)) / found.std()
    assert error[20] < 4.5


@pytest.mark.slow
def test_probabilistic_pca():
    """Two-dimensional factors of four numbers, by LocalHMC: the gradient is that of the marginal normal law."""
    X = jnp.asarray(np.random.default_rng(3).normal(size=(N, 4)) @ np.diag([2.0, 1.5, 1.0, 1.0]), jnp.float32)

    def factors(x):
        W = numpyro.sample("W", dist.Normal(0, 1).expand([2, 4]).to_event(2))
        with numpyro.plate("N", len(x)) as rows:
            u = numpyro.sample("u", dist.Normal(0, 1).expand([2]).to_event(1))
            numpyro.sample("x", dist.Normal(u @ W, 1).to_event(1), obs=x[rows])

    def energy(W):
        law = dist.MultivariateNormal(jnp.zeros(4), jnp.eye(4) + W.T @ W)
        return 0.5 * jnp.sum(W**2) - law.log_prob(X).sum()

    W = jnp.array([[0.5, -0.3, 0.4, 0.1], [-0.2, 0.6, 0.1, 0.5]])
    kernel = SGLD(factors, step_size=0.01, batch_size=B, local=LocalHMC(step_size=0.5, num_steps=3, moves=6))
    potential = kernel.potential((X,), {})

    def one(key):
        key_rows, key_local = random.split(key)
        rows = {"N": random.choice(key_rows, N, (B,), replace=False)}
        return jax.grad(potential.estimate)({"W": W}, rows, key_local)["W"]

    found = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=100))(random.split(random.key(0), 3000))
    error = found.std(0) / np.sqrt(len(found))
    assert jnp.abs((found.mean(0) - jax.grad(energy)(W)) / error).max() < 4.5
    prior = random.normal(random.key(1), (3000, N, 2))  # the planted fault: factors from the prior
    wrong = W - jnp.einsum("snk,snd->kd", prior, X - prior @ W) / 3000
    assert jnp.abs((wrong - jax.grad(energy)(W)) / error).max() > 20


def test_a_posterior_through_mcmc():
    """Tuned and not, the draws are of the global site alone, with the law of the marginal and its predicted width."""
    y = np.tile(EFFECTS, 40)
    kernel = SGHMC(effects, batch_size=60, local=exactly)
    mcmc = MCMC(kernel, num_warmup=400, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(0), jnp.asarray(y))
    mu = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    sd = (len(y) / 2 + 0.01) ** -0.5
    assert mcmc.get_samples().keys() == {"mu"}
    assert abs(mu.mean() - y.mean()) < 0.3 * sd
    assert mu.std() / sd == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "LocalGibbs.. if it is discrete, local=LocalHMC"),
        ({"local": exactly, "gradient": ControlVariate({"mu": 0.0})}, "ControlVariate.. does not work with local="),
        ({"local": exactly, "gradient": SVRG()}, "SVRG.. does not work with local="),
        ({"local": exactly, "gradient": SAGA()}, "does not work with local="),
        ({"local": LocalGibbs()}, "'u' is continuous"),
        ({"local": lambda key, local, *_: {}}, r"a value for each of the sites \['u'\]"),
        ({"local": lambda key, local, *_: {"u": 0.0}}, r"'u' with shape \(\)"),
        ({"local": exactly, "batch_size": None}, "Give batch_size=.* leave local= out"),
        ({"local": exactly, "batch_size": N}, "Use at most 11. For all of the data leave local= and batch_size= out"),
        ({"local": exactly, "init_params": {"mu": 0.0, "u": np.zeros(N)}}, "names 'u', .* Local sites are drawn for"),
        (
            {"local": exactly, "init_strategy": init_to_value(values={"u": np.zeros(N)})},
            "init_to_value names 'u', .* Lo",
        ),
        ({"local": lambda key, local, sites, rows: {"u": rows}}, r"called as fn\(rng_key, local_sites"),
        ({"local": lambda key, local, *_: {"u": np.zeros(B, np.float32)}}, "NumPy array for 'u'"),
        ({"local": lambda key, local, *_: {"u": local["u"] * np.nan}}, r"'y and u \(drawn by local=\)'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    init_params = options.get("init_params")
    options = {"batch_size": B, **{name: x for name, x in options.items() if name != "init_params"}}
    with pytest.raises(ValueError, match=message):
        SGLD(effects, step_size=0.01, **options).init(random.key(0), 0, init_params, (EFFECTS,), {})


def test_data_that_are_missing_are_named():
    with pytest.raises(ValueError, match=r"energy of site 'y and u \(drawn by local=\)' is not finite"):
        kernel = SGLD(effects, step_size=0.01, batch_size=B, local=LocalHMC(0.5))
        kernel.init(random.key(0), 0, None, (EFFECTS * np.nan,), {})


def outside(y):
    """The local site of a user who has forgotten the plate."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    u = numpyro.sample("u", dist.Normal(mu, 1).expand([len(y)]))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(u[rows], 1), obs=y[rows])


def two_plates(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("a", 4, dim=-2) as a, numpyro.plate("b", 3, dim=-1) as b:
        u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u, 1), obs=y.reshape(4, 3)[a[:, None], b])


def sum_first(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer=PARALLEL)
        u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u + k, 1), obs=y[rows])


def inner_plate(y):
    """The observed site is outside one of the plates of the local site, so it would not be part of its conditional."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y), dim=-1) as rows:
        with numpyro.plate("K", 3, dim=-2):
            u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u.sum(-2), 1), obs=y[rows])


@pytest.mark.parametrize(
    "model, size, message",
    [
        (inner_plate, B, "site 'y' depends on 'u', which is drawn by local=, but is outside its plates"),
        (outside, B, "no latent site in plate 'N': 'mu', 'u' are outside. Move the latent sites"),
        (two_plates, B, "ambiguous: the plates 'a', 'b'"),
        (two_plates, {"a": 2, "b": 3}, r"Leave 'b' out for all of its rows: batch_size=\{'a': 2\}"),
        (two_plates, {"c": 2}, "names the plate 'c', but the model has"),
        (sum_first, B, "'u' follows the site 'k', which is summed out.* put it before 'k'"),
    ],
)
def test_models_that_local_refuses(model, size, message):
    with pytest.raises(ValueError, match=message):
        kernel = SGLD(model, step_size=0.01, batch_size=size, local=LocalHMC(0.5))
        kernel.init(random.key(0), 0, None, (EFFECTS,), {})


@pytest.mark.parametrize(
    "site, values, error",
    [
        (dist.Exponential(1.0), -1.0, r"'y and u \(drawn by local=\)'"),
        (dist.Beta(2.0, 2.0), 1.5, r"'y and u \(drawn by local=\)'"),
        (dist.Uniform(0.0, 2.0), 2.5, r"'y and u \(drawn by local=\)'"),
        (dist.Normal(0.0, 2.0), jnp.inf, r"'y and u \(drawn by local=\)'"),
        (dist.Bernoulli(0.5), 2, r"'y and u \(drawn by local=\)'"),
        (dist.Bernoulli(0.5), 1.0, "'u' as float32. The site is discrete"),
        (dist.Exponential(1.0).mask(False), -1.0, None),
        (dist.Gamma(0.01, 1.0), 0.0, None),  # rounded to the boundary
        (dist.Bernoulli(0.5), 1, None),
    ],
)
def test_values_out_of_the_support(site, values, error):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("N", len(y)) as rows:
            u = numpyro.sample("u", site)
            numpyro.sample("y", dist.Normal(mu + u, 1), obs=y[rows])

    kernel = SGLD(model, step_size=0.01, batch_size=B, local=lambda key, local, *_: {"u": jnp.full(B, values)})
    if error is None:
        kernel.init(random.key(0), 0, None, (EFFECTS,), {})
        return
    with pytest.raises(ValueError, match=error):
        kernel.init(random.key(0), 0, None, (EFFECTS,), {})


@pytest.mark.parametrize("local", [LocalHMC(0.3), lambda key, local, *_: local])
def test_a_local_site_with_an_improper_prior(local):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("N", len(y)) as rows:
            u = numpyro.sample("u", dist.ImproperUniform(dist.constraints.real, (), ()))
            numpyro.sample("y", dist.Normal(mu + u, 1), obs=y[rows])

    kernel = SGLD(model, step_size=0.01, batch_size=B, local=local)
    with pytest.raises(
        ValueError, match="local site 'u' has a distribution that cannot be sampled.*Give it a proper prior"
    ):
        kernel.init(random.key(0), 0, None, (EFFECTS,), {})


def test_arguments_of_local():
    with pytest.raises(ValueError, match="must be a function"):
        SGLD(effects, step_size=0.01, batch_size=B, local=3)
    with pytest.raises(ValueError, match="step_size=-1"):
        LocalHMC(-1)
    with pytest.raises(ValueError, match="LocalHMC\\(step_size='a'\\): step_size must be a positive"):
        LocalHMC("a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'h' is discrete|'cause' is discrete"):
        SGLD(units, step_size=0.01, batch_size=B, local=LocalHMC(0.1)).init(random.key(0), 0, None, (EFFECTS,), {})
    with pytest.raises(ValueError, match="there is no latent site in"):
        SGLD(marginal, step_size=0.01, batch_size=B, local=exactly).init(random.key(0), 0, None, (Y,), {})


# -- a site that is summed out, and one that is drawn ------------------------------------------------------------------


def drawn_and_summed(y):
    """y_i ~ N(u_i + 2 k_i, 1): k_i is summed out, and u_i ~ N(mu, 1) drawn given y alone."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Normal(mu, 1))
        k = numpyro.sample("k", dist.Bernoulli(0.3), infer=PARALLEL)
        numpyro.sample("y", dist.Normal(u + 2 * k, 1), obs=y[rows])


@pytest.mark.slow
def test_one_site_drawn_and_one_summed():
    """The gradient is that of the marginal of both, 0.7 N(mu, 2) + 0.3 N(mu + 2, 2)."""

    def energy(mu):
        terms = jnp.stack(
            [jnp.log(p) + dist.Normal(mu + 2 * k, 2**0.5).log_prob(EFFECTS) for k, p in ((0, 0.7), (1, 0.3))]
        )
        return -dist.Normal(0, 10).log_prob(mu) - jax.scipy.special.logsumexp(terms, 0).sum()

    exact = jax.jit(jax.grad(energy))(0.3)
    error = {}
    for moves in (1, 20):
        found = gradients(LocalHMC(0.4, num_steps=3, moves=moves), drawn_and_summed)
        error[moves] = abs(found.mean() - exact) * np.sqrt(len(found)) / found.std()
    assert error[20] < 4.5


# -- the moves that are accepted -----------------------------------------------------------------------------------

MANY = np.tile(EFFECTS, 40).astype(np.float32)


def simulated_moves(h, num_steps, moves, mu, count=100_000):
    """
    Whether leapfrog trajectories on the conditional distribution N((mu + y) / 2, 1 / 2) are accepted, shape (moves,
    count), written out for rows and values of mu at random, with starts at the prior.
    """
    rng = np.random.default_rng(4)
    mu, y = rng.choice(mu, count), rng.choice(MANY, count)
    u, accepted = mu + rng.normal(size=count), []
    for _ in range(moves):
        new, p = u, rng.normal(size=count)
        before = (new - (mu + y) / 2) ** 2 + p**2 / 2
        for _ in range(num_steps):
            p = p - h * (new - (mu + y) / 2)
            new = new + h * p
            p = p - h * (new - (mu + y) / 2)
        accepted.append(np.log(rng.random(count)) < before - (new - (mu + y) / 2) ** 2 - p**2 / 2)
        u = np.where(accepted[-1], new, u)
    return np.stack(accepted)


def run_of_effects(local, num_samples=50, model=effects):
    kernel = SGLD(model, step_size=2e-4, batch_size=60, local=local, steps_per_sample=5)
    mcmc = MCMC(kernel, num_warmup=20, num_samples=num_samples, progress_bar=False)
    mcmc.run(random.key(0), jnp.asarray(MANY), init_params={"mu": jnp.asarray(0.4)})
    return mcmc


@pytest.mark.parametrize(
    "local, verdict",
    [
        (LocalHMC(0.5), "ok"),
        (LocalLangevin(1.2, moves=1), "doubtful"),
        (LocalHMC(1.45, num_steps=6, moves=1), "wrong"),
    ],
    ids=["right", "few", "large"],
)
@pytest.mark.every(3)
def test_summary_has_the_rows_whose_moves_are_all_rejected(local, verdict):
    """The shares of accepted moves, and of rows without any, are those of moves that are written out here."""
    mcmc = run_of_effects(local)
    line = summary(mcmc, jnp.asarray(MANY))["local_moves"]
    mu = np.asarray(mcmc.get_samples()["mu"])
    moves = simulated_moves(local.step_size, local.num_steps, local.moves, mu)
    still = ~moves.any(0)
    allowed = 4.5 * np.hypot(line["error"], still.std() / len(still) ** 0.5) + 1e-3
    assert line["value"] == pytest.approx(still.mean(), abs=allowed)
    assert line["acceptance"] == pytest.approx(moves.mean(), abs=0.02)
    assert line["verdict"] == verdict, line


@pytest.mark.parametrize(
    "start, verdicts",
    [
        ("previous", {1.2: "ok", 60.0: "wrong"}),
        (lambda key, local, sites, rows, y: {"u": (sites["mu"] + y[rows]) / 2}, {0.9: "ok", 60.0: "wrong"}),
    ],
    ids=["previous", "function"],
)
@pytest.mark.slow
def test_summary_of_moves_that_start_elsewhere(start, verdicts):
    """One move that is sometimes rejected is enough for stored values, and does no harm to a good start."""
    for step_size, verdict in verdicts.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* rejects nearly all of its moves")
            mcmc = run_of_effects(LocalLangevin(step_size, moves=1, start=start))
        line = summary(mcmc, jnp.asarray(MANY))["local_moves"]
        assert line["verdict"] == verdict, line


def test_no_line_without_moves():
    assert "local_moves" not in summary(run_of_effects(exactly), jnp.asarray(MANY))


@pytest.mark.parametrize("chains", [None, 2])
def test_a_start_that_rejects_everything_is_told(chains):
    """Right settings do not warn: in the other tests a warning is an error."""
    key = random.key(0) if chains is None else random.split(random.key(0), chains)
    kernel = SGLD(effects, step_size=1e-4, batch_size=B, local=LocalLangevin(30.0, moves=1))
    with pytest.warns(
        UserWarning, match=r"LocalLangevin\(step_size=30.0\) rejects nearly all .* of the local site 'u'"
    ):
        kernel.init(key, 0, None, (jnp.asarray(MANY),), {})
    kernel = SGLD(effects, step_size=1e-4, batch_size=1, local=LocalLangevin(1.8, moves=1))  # 1 of 4 is accepted
    kernel.init(key, 0, None, (jnp.asarray(MANY),), {})


# -- memory of the starts --------------------------------------------------------------------------------------------


def turned(h, num_steps, moves):
    """The slope of the end of leapfrog trajectories on a variance of 1 / 2 on their start, if all are accepted."""
    return np.cos(num_steps * np.arccos(1 - h**2)) ** moves


def over_relaxed(rng_key, local_sites, global_sites, rows, y):
    """Keeps N((mu + y) / 2, 1 / 2), and the slope of the result on local_sites is -0.8."""
    mean = (global_sites["mu"] + y[rows]) / 2
    return {"u": mean - 0.8 * (local_sites["u"] - mean) + 0.6 * 0.5**0.5 * random.normal(rng_key, mean.shape)}


MEMORIES = {
    "right": (LocalHMC(0.3, num_steps=4), turned(0.3, 4, 5), 0.0, "ok"),
    "function": (exactly, 0.0, 0.0, "ok"),
    "small": (LocalHMC(0.02), turned(0.02, 3, 5), None, "wrong"),
    "half_a_period": (LocalHMC(0.1, num_steps=22, moves=3), turned(0.1, 22, 3), None, "wrong"),
    # starts N(mu, 1), so ends have the variance .8^2 + .6^2 / 2
    "over_relaxed": (over_relaxed, -0.8, 0.64 / 0.82, "wrong"),
    "few": (LocalHMC(0.25, num_steps=4, moves=1), turned(0.25, 4, 1), None, "doubtful"),
}


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.every(3)
def test_memory_of_the_starts_is_that_of_the_law(name):
    """A step that is far too small, and a trajectory of half a period, accept everything."""
    local, slope, share, verdict = MEMORIES[name]
    found = summary(run_of_effects(local), jnp.asarray(MANY))
    line = found["local_memory"]
    assert line["value"] == pytest.approx(slope, abs=4.5 * line["error"] + 0.01)
    assert line["error"] < 0.03 and line["where"] == "u"
    if share is not None:  # that of the line is at the lower bound of the slope
        assert share - 0.15 < line["share"] <= share + 0.01
    assert line["verdict"] == verdict, line
    if verdict != "ok":
        assert name == "over_relaxed" or found["local_moves"]["verdict"] == "ok"
        assert "depend on where they start" in line["advice"]


@pytest.mark.parametrize("step_size, verdict", [(0.02, "wrong"), (0.5, "ok")])
@pytest.mark.every(2)
def test_memory_of_stored_values(step_size, verdict):
    """One move per visit is enough, if it moves: a run visits each row 43.75 times."""
    mcmc = run_of_effects(LocalLangevin(step_size, moves=1, start="previous"))
    line = summary(mcmc, jnp.asarray(MANY))["local_memory"]
    assert line["value"] == pytest.approx((1 - step_size**2) ** 43.75, abs=4.5 * line["error"] + 0.01)
    assert line["verdict"] == verdict, line


def test_no_memory_of_starts_that_a_function_returns():
    """They may be good, as the exact ones are here, and then no move is needed."""
    start = LocalHMC(0.02, start=lambda key, local, sites, rows, y: exactly(key, local, sites, rows, y))
    assert "local_memory" not in summary(run_of_effects(start), jnp.asarray(MANY))


def coupled(y):
    """Two units of each row that are nearly equal, so that sweeps over single units forget their start slowly."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Bernoulli(0.5 * jnp.ones(2)).to_event(1))
        numpyro.factor("equal", COUPLING * (u[:, 0] == u[:, 1]))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


COUPLING = 2.0


@pytest.mark.parametrize("sweeps, verdict", [(1, "wrong"), (5, "ok")])
@pytest.mark.every(2)
def test_memory_of_gibbs_sweeps(sweeps, verdict):
    """
    The first unit is drawn given the second, then the second given the first, each equal to it with probability p. So a
    sweep multiplies the mean of the second unit by (2 p - 1)^2.
    """
    line = summary(run_of_effects(LocalGibbs(sweeps=sweeps), model=coupled), jnp.asarray(MANY))["local_memory"]
    kept = np.tanh(COUPLING / 2)
    assert line["value"] == pytest.approx(kept ** (2 * sweeps), abs=4.5 * line["error"] + 0.01), line
    assert line["verdict"] == verdict, line
