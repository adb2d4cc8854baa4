"""Local values that are kept from visit to visit: the law of a chain that begins at them, and the table itself."""

import itertools
from types import SimpleNamespace

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import (
    SGHMC,
    SGLD,
    ControlVariate,
    LocalFunction,
    LocalGibbs,
    LocalHMC,
    WithoutReplacement,
    corrected,
    couple,
    find_mode,
    kernel_stein_discrepancy,
    score_linearity,
    step_halving,
    summary,
)
from numpyro_sgmcmc.gradients.minibatch import check_visits
from numpyro_sgmcmc.types import Plate

N, B, H, RHO = 6, 2, 0.1, 0.9
Y = jnp.asarray(np.random.default_rng(1).normal(0.5, 1.4, N), jnp.float32)


def effects(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u, 1), obs=y[rows])


def short_chain(rng_key, local_sites, global_sites, rows, y):
    """One move of a chain on the conditional law N((mu + y) / 2, 1/2), of autocorrelation rho."""
    mean = (global_sites["mu"] + y[rows]) / 2
    noise = random.normal(rng_key, mean.shape)
    return {"u": mean + RHO * (local_sites["u"] - mean) + jnp.sqrt((1 - RHO**2) / 2) * noise}


def exact_draw(rng_key, local_sites, global_sites, rows, y):
    mean = (global_sites["mu"] + y[rows]) / 2
    return {"u": mean + 0.5**0.5 * random.normal(rng_key, mean.shape)}


def law(rho, kept, h=H):
    """
    Mean and variance of mu under SGLD in its stationary state. A step is linear in x = (1, mu, u), for each batch S
    with another matrix: E[x x'] is the fixed point of E -> mean over S of A E A' + Q, an eigenvector.
    """
    y, d = np.asarray(Y, float), N + 2
    K = np.zeros((d * d, d * d))
    batches = list(itertools.combinations(range(N), B))
    for S in batches:
        A, Q = np.eye(d), np.zeros((d, d))
        for i in S:
            before = np.eye(d)[i + 2 if kept else 1]  # the kept value, or a draw from N(mu, 1)
            A[i + 2] = rho * before
            A[i + 2, :2] += (1 - rho) * np.array([y[i], 1]) / 2
            Q[i + 2, i + 2] = (1 - rho**2) / 2 + (0 if kept else rho**2)
        step = np.eye(d)  # mu' = mu - h (mu / 100 + N/n sum (mu - u))
        step[1, 1] -= h * (0.01 + N)
        step[1, [i + 2 for i in S]] += h * N / B
        A, Q = step @ A, step @ Q @ step.T
        Q[1, 1] += 2 * h
        K += (np.kron(A, A) + np.outer(Q.ravel(), np.eye(d * d)[0])) / len(batches)
    fixed = np.linalg.solve((K - np.eye(d * d))[1:, 1:], -K[1:, 0])
    moments = np.concatenate([[1.0], fixed]).reshape(d, d)
    return moments[0, 1], moments[1, 1] - moments[0, 1] ** 2


def measured(local, chains=1500, draws=12, burn_in=40):
    """Mean and variance of mu over chains, and the standard error of each. Kept values forget the start slowly."""
    kernel = SGLD(effects, step_size=H, batch_size=B, local=local, rows=WithoutReplacement(), steps_per_sample=15)
    state = kernel.init(random.split(random.key(0), chains), 0, None, (Y,), {})
    step = jax.jit(lambda state: kernel.sample(state, (Y,), {}))
    found = []
    for k in range(burn_in + draws):
        state = step(state)
        found += [np.asarray(state.z["mu"], float)] * (k >= burn_in)
    mu = np.stack(found)
    squares = ((mu - mu.mean()) ** 2).mean(0)
    return mu.mean(), mu.mean(0).std() / chains**0.5, squares.mean(), squares.std() / chains**0.5


@pytest.mark.parametrize(
    "local, rho, kept",
    [
        (exact_draw, 0.0, False),
        pytest.param(short_chain, RHO, False, marks=pytest.mark.slow),
        (LocalFunction(short_chain, start="previous"), RHO, True),
    ],
    ids=["exact", "short", "previous"],
)
def test_the_law_of_short_chains_is_known(local, rho, kept):
    """That of the exact marginal gradient too, which differs from those of both short chains by many errors."""
    mean, variance = law(rho, kept)
    found, error, spread, error_of_it = measured(local)
    assert abs(found - mean) < 4.5 * error
    assert abs(spread - variance) < 4.5 * error_of_it
    if rho:
        assert abs(variance - law(0.0, False)[1]) > 9 * error_of_it


def units(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)) as rows:
        h = numpyro.sample("h", dist.Bernoulli(logits=mu).expand([len(rows), 2]).to_event(1))
        numpyro.sample("y", dist.Normal(h.sum(-1) * mu, 1), obs=y[rows])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "model, site, local, shape",
    [
        (units, "h", LocalGibbs(start="previous"), (N, 2)),
        (effects, "u", LocalHMC(0.5, start="previous"), (N,)),
    ],
    ids=["Gibbs", "HMC"],
)
def test_rows_that_were_visited_keep_their_values(model, site, local, shape):
    kernel = SGLD(model, step_size=1e-4, batch_size=B, local=local)
    state = kernel.init(random.key(0), 0, None, (Y,), {})
    assert state.gradient_state.values[site].shape == shape and not state.gradient_state.seen.any()
    step = jax.jit(lambda state: kernel.sample(state, (Y,), {}))
    rows = kernel.rows(state.rows_state.rng_key, state.rows_state.t, N, B)
    new = step(state)
    np.testing.assert_array_equal(new.gradient_state.seen, jnp.zeros(N).at[rows].set(1))
    others = jnp.setdiff1d(jnp.arange(N), rows)
    assert not new.gradient_state.values[site][others].any()
    for _ in range(8):
        new = step(new)
    assert new.gradient_state.seen.all() and jnp.isfinite(new.gradient_state.values[site]).all()


@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.every(2)
def test_the_table_is_written_in_place(chains):
    """The compiled loop needs no room for a second one."""
    kernel = SGLD(effects, step_size=1e-6, batch_size=B, local=LocalHMC(0.5, start="previous"), steps_per_sample=50)
    key, y = random.key(0) if chains is None else random.split(random.key(0), chains), jnp.zeros(100_000)
    state = kernel.init(key, 0, None, (y,), {})
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state.gradient_state))
    run = jax.jit(lambda state: kernel.sample(state, (y,), {}), donate_argnums=0)
    assert run.lower(state).compile().memory_analysis().temp_size_in_bytes < 0.5 * size


def test_chains_have_tables_of_their_own_and_a_refused_step_writes_nothing():
    local = LocalFunction(exact_draw, start="previous")
    kernel = SGLD(effects, step_size=H, batch_size=B, local=local)
    state = kernel.init(random.split(random.key(0), 2), 0, None, (Y,), {})
    step = jax.jit(lambda state, y: kernel.sample(state, (y,), {}))
    for _ in range(8):
        state = step(state, Y)
    tables = state.gradient_state
    assert (tables.values["u"][0] != tables.values["u"][1]).all() and tables.seen.all()
    refused = step(state, jnp.full_like(Y, jnp.nan))
    assert refused.diverging.all()
    jax.tree.map(np.testing.assert_array_equal, refused.gradient_state, tables)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"gradient": ControlVariate({"mu": 0.0})}, "ControlVariate.* cannot store them"),
        ({"step_size": None}, "step_size= is missing"),
        ({"kernel": SGHMC, "friction": 1.0, "integrator": "NOGIN"}, "noise of different steps is independent"),
    ],
)
def test_who_cannot_keep_values_says_so(options, message):
    make = options.pop("kernel", SGHMC if options.get("step_size", 1) is None else SGLD)
    options = {"step_size": 0.01, "batch_size": B, "local": LocalHMC(0.1, start="previous"), **options}
    with pytest.raises(ValueError, match=message):
        make(effects, **options).init(random.key(0), 0, None, (Y,), {})


def test_other_refusals():
    with pytest.raises(ValueError, match="find_mode keeps no values"):
        find_mode(effects, random.key(0), Y, batch_size=B, local=LocalHMC(0.1, start="previous"))
    with pytest.raises(ValueError, match=r"LocalGibbs\(start='last'\)"):
        LocalGibbs(start="last")
    with pytest.raises(ValueError, match="LocalFunction"):
        LocalFunction(exact_draw, start=exact_draw)
    spread = SimpleNamespace(plates={"N": Plate(N, B)}, devices=2)
    with pytest.raises(ValueError, match="distributed over 2 devices"):
        check_visits(spread, 1)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "other, data, message",
    [
        (LocalHMC(0.5, start="previous"), Y[:4], "local values for 6 rows, but plate 'N' has 4"),
        (LocalHMC(0.5, start="previous"), jnp.tile(Y, 2), "local values for 6 rows, but plate 'N' has 12"),
        (LocalHMC(0.5), Y, "has none: it comes from a kernel without"),
    ],
)
def test_a_table_of_other_rows_is_refused(other, data, message):
    state = SGLD(effects, step_size=H, batch_size=B, local=other).init(random.key(0), 0, None, (Y,), {})
    kernel = SGLD(effects, step_size=H, batch_size=B, local=LocalHMC(0.5, start="previous"))
    with pytest.raises(ValueError, match=message):
        kernel.sample(state, (data,), {})


def test_diagnostics_that_need_the_local_values_of_each_draw():
    """From the prior, one move would give another gradient than the run had."""
    local = LocalFunction(short_chain, start="previous")
    kernel = SGLD(effects, step_size=0.02, batch_size=B, local=local, steps_per_sample=5)
    mcmc = MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
    mcmc.run(random.key(0), Y)
    found = summary(mcmc, Y)
    assert "score" not in found and "r_hat" in found and "there are no score identities" in str(found)
    assert step_halving(mcmc, random.key(1), Y, num_samples=20)["mu"]["verdict"] in ("ok", "doubtful")
    with pytest.raises(ValueError, match="a partner with another gradient cannot continue"):
        couple(mcmc, random.key(1), Y)
    for function in (kernel_stein_discrepancy, score_linearity, corrected):
        with pytest.raises(ValueError, match="the local values that belong to a draw are not kept"):
            function(mcmc, Y)


def table(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("a", 4, dim=-2) as a, numpyro.plate("b", 6, dim=-1) as b:
        u = numpyro.sample("u", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(u, 1), obs=y[a[:, None], b])


def test_one_minibatched_plate():
    """With another that is whole the table has a row for each element of the minibatched one."""
    local, y = LocalHMC(0.1, start="previous"), jnp.ones((4, 6))
    kernel = SGLD(table, step_size=1e-3, batch_size={"b": 2}, local=local)
    state = kernel.init(random.key(0), 0, None, (y,), {})
    new = jax.jit(lambda state: kernel.sample(state, (y,), {}))(state)
    assert state.gradient_state.values["u"].shape == (6, 4)
    assert (new.gradient_state.values["u"] != 0).all(1).sum() == 2
    with pytest.raises(ValueError, match="one minibatched plate, not 'a' and 'b'"):
        both = SGLD(table, step_size=1e-3, batch_size={"a": 2, "b": 2}, local=local)
        both.init(random.key(0), 0, None, (y,), {})


# -- coordinates ---------------------------------------------------------------------------------------------------


def shares(y):
    """A latent point of the simplex whose prior is sparse: many of its numbers are 0 in single precision."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)) as rows:
        s = numpyro.sample("s", dist.Dirichlet(jnp.full(300, 0.01)))
        numpyro.sample("y", dist.Normal(mu * s[..., 0], 1), obs=y[rows])


@pytest.mark.parametrize("start", ["previous", None])
@pytest.mark.every(2)
def test_sparse_shares_that_a_function_draws(start):
    """They never leave the simplex for unconstrained coordinates, in which such numbers are not finite."""

    def draw(rng_key, local_sites, global_sites, rows, y):
        assert local_sites["s"].shape == (B, 300)
        return {"s": random.dirichlet(rng_key, jnp.full(300, 0.01), (B,))}

    kernel = SGLD(shares, step_size=1e-3, batch_size=B, local=LocalFunction(draw, start), steps_per_sample=20)
    state = kernel.init(random.key(0), 0, None, (Y,), {})
    state = jax.jit(lambda state: kernel.sample(state, (Y,), {}))(state)
    assert not state.diverging and jnp.isfinite(state.potential_estimate)
