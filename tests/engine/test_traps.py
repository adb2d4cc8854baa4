"""
The numbered traps of NumPyro's contract with kernels, one test each. A test shows that a trap cannot occur, or raises
a clear error; for a trap in NumPyro itself it shows that the recommended way works.

Numbers 28 (copies of tables by gather and scatter), 29 (``.add`` with duplicate rows) and 30 (``cond`` under a vmap of
the chains) are traps of estimators with tables and anchors; their tests are in ``test_gradients.py``.
"""

from dataclasses import dataclass
import functools
import inspect
import logging
import pickle

import arviz as az
import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import MCMC, Predictive, log_likelihood
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import potential_energy
from numpyro.primitives import mutable
from processes import in_a_fresh_process
import pytest

from numpyro_sgmcmc import SAGA, SGHMC, SGLD, SGMCMC, SVRG, Polynomial, SGMCMCState, WithReplacement

ARGS = (jnp.asarray(models.ROWS),)


def kernel(model=models.gaussian, **options):
    return SGLD(model, **{"step_size": 1e-3, "batch_size": models.B} | options)


def start(kernel, args=ARGS, **kwargs):
    return kernel.init(random.key(0), 0, None, args, kwargs)


def make(kernel, num_samples=4, num_warmup=0, **options):
    return MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **{"progress_bar": False} | options)


def run(kernel, num_samples=4, args=ARGS, extra_fields=(), **options):
    mcmc = make(kernel, num_samples, **options)
    mcmc.run(random.key(1), *args, extra_fields=extra_fields)
    return mcmc


def cost(function, *args):
    """Floating point operations and bytes moved, by the compiler's count."""
    analysis = jax.jit(function).lower(*args).compile().cost_analysis()
    return analysis["flops"], analysis["bytes accessed"]


def epoch(model, batch_size=models.B):
    """Energies over the disjoint batches of one epoch, of a chain that stands still, and where it stands."""
    batches = models.N // batch_size
    sampler = kernel(model, step_size=1e-12, batch_size={"N": batch_size})
    # `init` looks at the first batch of the first epoch, the warm-up at the rest of it
    mcmc = run(sampler, batches, extra_fields=("potential_estimate",), num_warmup=batches - 1)
    return mcmc.get_extra_fields()["potential_estimate"], mcmc.last_state.z


def assert_unbiased(model, batch_size=models.B, whole=None):
    energies, z = epoch(model, batch_size)
    assert energies.std() > 0.1
    whole = model if whole is None else whole
    np.testing.assert_allclose(energies.mean(), potential_energy(whole, ARGS, {}, z), rtol=1e-5)


def test_trap_01_keyword_names_of_init():
    assert list(inspect.signature(SGMCMC.init).parameters) == list(inspect.signature(MCMCKernel.init).parameters)
    kernel().init(random.key(0), num_warmup=0, init_params=None, model_args=ARGS, model_kwargs=None)


def test_trap_02_sample_fn_attribute(monkeypatch):
    starts = []
    init = SGMCMC.init
    monkeypatch.setattr(SGMCMC, "init", lambda *args, **kwargs: starts.append(1) or init(*args, **kwargs))
    mcmc = run(kernel())
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.last_state.rng_key, *ARGS)
    assert len(starts) == 1


def test_trap_03_stale_capture():
    """The trace of the first chain, of the first key, serves the others: each has its own start, rows and noise."""
    keys = random.split(random.key(1), 2)
    both = make(kernel(), num_chains=2, chain_method="sequential", progress_bar=True)
    both.run(keys, *ARGS)
    single = make(kernel(), progress_bar=True)
    for k in (1, 0):  # and the key before it
        single.run(keys[k], *ARGS)
        np.testing.assert_array_equal(single.get_samples()["mu"], both.get_samples(group_by_chain=True)["mu"][k])


def with_param(x):
    shift = numpyro.param("shift", 3.0)
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    numpyro.deterministic("shifted", mu + shift)
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu + shift, 1), obs=x[rows])


@pytest.mark.skipif(jax.local_device_count() < 2, reason="parallel chains need two devices")
def test_trap_04_tracers_left_by_a_parallel_run():
    sampler = kernel(with_param)
    with pytest.warns(UserWarning, match="'shift' is frozen"):
        mcmc = run(sampler, num_chains=2, chain_method="parallel")
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.last_state.rng_key, *ARGS)
    mu = mcmc.get_samples()["mu"]
    assert jnp.isfinite(mu).all()
    z = {"mu": jnp.array(0.5)}
    assert sampler.postprocess_fn(ARGS, {})(z) == {"mu": 0.5, "shifted": 3.5}


def test_trap_05_typed_key_as_extra_field():
    mcmc = run(kernel(), extra_fields=("rng_key",))
    keys = mcmc.get_extra_fields()["rng_key"]
    assert keys.dtype == jnp.uint32
    np.testing.assert_array_equal(keys[-1], mcmc.last_state.rng_key)


def test_trap_06_nan_in_the_first_state():
    """The buffer is the first state times zero, so it shows through where nothing was collected."""
    mcmc = make(SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B, integrator="BAOAB"), num_warmup=2)
    mcmc.warmup(random.key(0), *ARGS, extra_fields=SGMCMCState._fields)
    collected = mcmc.get_samples(), mcmc.get_extra_fields()
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(collected))


def test_trap_07_numpy_data_and_traced_rows():
    assert isinstance(models.ROWS, np.ndarray)
    ours = run(kernel(), args=(models.ROWS,)).get_samples()["mu"]
    np.testing.assert_array_equal(ours, run(kernel()).get_samples()["mu"])

    def closed():
        models.gaussian(models.ROWS)

    with pytest.raises(ValueError, match="closes over must be jax arrays"):
        start(kernel(closed), ())


@dataclass(frozen=True)
class FirstRows:
    """A scheme of somebody else's, that hands out NumPy arrays."""

    independent = False

    def __call__(self, rng_key, t, size, batch_size):
        return np.arange(batch_size)


def test_trap_08_numpy_rows():
    assert jnp.isfinite(run(kernel(rows=FirstRows())).get_samples()["mu"]).all()


def unindexed(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)):
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x)


@pytest.mark.parametrize("batch_size", [1, 2, models.B])
def test_trap_09_data_that_are_not_indexed(batch_size):
    with pytest.raises(ValueError, match="indexed by"):
        start(kernel(unindexed, batch_size=batch_size))


@pytest.mark.parametrize("batch_size", [models.N, models.N + 1])
@pytest.mark.parametrize("options", [{}, {"rows": WithReplacement()}])
def test_trap_10_batch_as_large_as_the_data(batch_size, options):
    with pytest.raises(ValueError, match=f"batch_size={batch_size} for plate 'N' of 24 rows.*smaller"):
        start(kernel(batch_size=batch_size, **options))


def test_trap_11_arguments_of_the_plate_message():
    """Another number of rows than the model declares: no warning (an error here), and the scale is N/n of the rows."""
    assert_unbiased(models.declared, 4, whole=models.gaussian)


def factor_of_the_batch(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.factor("fit", -0.5 * jnp.sum((x[rows] - mu) ** 2))


def factor_outside(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)) as rows:
        batch = x[rows]
        numpyro.sample("obs", dist.Normal(mu, 1), obs=batch)
    numpyro.factor("fit", -0.5 * jnp.sum((batch - mu) ** 2))


def test_trap_12_factors_in_and_out_of_the_plate():
    with pytest.raises(ValueError, match=r"factor 'fit' in plate 'N' is one number.*shape \(6,\)"):
        start(kernel(factor_of_the_batch))
    with pytest.raises(ValueError, match="site 'fit' depends on the rows of the minibatched plate 'N'.*outside"):
        start(kernel(factor_outside))
    assert_unbiased(models.weighted)  # one factor outside, one a row inside


def test_trap_13_a_scale_of_the_user():
    """
    The plate brings the factor N/n, and a scale of the user multiplies it: without one the mean over the batches is
    the energy that NUTS sees, and with one it is so too.
    """
    assert_unbiased(models.gaussian)
    assert_unbiased(handlers.scale(models.gaussian, scale=0.5))


def local(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)) as rows:
        own = numpyro.sample("own", dist.Normal(mu, 1))
        numpyro.sample("obs", dist.Normal(own, 1), obs=x[rows])


def test_trap_13_a_scale_of_the_user_that_is_the_plates_own():
    def scaled(x, by):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)) as rows, handlers.scale(scale=by or len(x) / len(rows)):
            numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])

    with pytest.warns(UserWarning, match="scales site 'x' by 4, which is N / n .* each row counts 4 times"):
        kernel(scaled).init(random.key(0), 0, None, (*ARGS, models.N / models.B), {})
        with pytest.raises(ValueError, match="In place of len\\(rows\\) write the number of rows of the data"):
            kernel(scaled).init(random.key(0), 0, None, (*ARGS, None), {})
    for by, options in ((3.0, {}), (None, {"batch_size": None})):
        kernel(scaled, **options).init(random.key(0), 0, None, (*ARGS, by), {})  # without a warning


def test_trap_14_latents_in_the_minibatched_plate():
    with pytest.raises(ValueError, match="latent site 'own' is inside the minibatched plate 'N'.*marginalise"):
        start(kernel(local, batch_size={"N": models.B}))


def enumerated(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)) as rows:
        sign = numpyro.sample("sign", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("obs", dist.Normal(mu * (2 * sign - 1), 1), obs=x[rows])


def test_trap_15_enumerated_latents():
    """Summed out, as the mark says; without the mark they are refused."""
    assert start(kernel(enumerated, batch_size={"N": models.B})).z.keys() == {"mu"}
    with pytest.raises(ValueError, match="latent site 'sign' is discrete.*Sum it out"):
        start(kernel(handlers.infer_config(enumerated, lambda site: {"enumerate": None}), batch_size={"N": models.B}))


def randomised(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    shift = random.normal(numpyro.prng_key())
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu + shift, 1), obs=x[rows])


def test_trap_16_prng_key_of_the_model():
    """A fresh one at every step: on all rows and standing still, the energy changes."""
    mcmc = run(kernel(randomised, batch_size=None, step_size=1e-12), extra_fields=("potential_estimate",))
    assert len(np.unique(mcmc.get_extra_fields()["potential_estimate"])) == 4


def running_mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    mutable("statistics", {"mean": jnp.zeros(())})
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def test_trap_17_mutable_and_param_sites():
    with pytest.raises(ValueError, match="mutable site 'statistics'.*never be updated"):
        start(kernel(running_mean))
    with pytest.warns(UserWarning, match="param site 'shift' is frozen.*numpyro.sample"):
        mcmc = run(kernel(with_param))
    samples = mcmc.get_samples()
    np.testing.assert_allclose(samples["shifted"] - samples["mu"], 3, rtol=1e-6)


def plate_in_scan(x, subsample_size=None):
    mu = numpyro.sample("mu", dist.Normal(0, 2))

    def transition(carry, row):
        with numpyro.plate("time", 3, subsample_size=subsample_size):
            numpyro.sample("obs", dist.Normal(mu, 1), obs=row[: subsample_size or 3])
        return carry, None

    scan(transition, 0.0, x.reshape(-1, 3))


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": {"time": 2}}])
def test_trap_18_plate_in_scan(options):
    with pytest.raises(ValueError, match="plate 'time' is inside `scan`.*to_event"):
        start(kernel(plate_in_scan, **options))


def test_trap_18_declared_in_scan():
    with pytest.raises(ValueError, match="is inside `scan`.*to_event"):
        start(kernel(functools.partial(plate_in_scan, subsample_size=2), batch_size=None))


def test_trap_19_views_of_the_model():
    sampler = kernel(models.declared, batch_size=None)
    mcmc = run(sampler)
    density = log_likelihood(sampler.model, mcmc.get_samples(), *ARGS)["obs"]
    assert density.shape == (4, models.N)
    logistic = functools.partial(models.logistic_subsample, subsample_size=models.B)
    predictive = Predictive(kernel(logistic, batch_size=None).model, {"weights": jnp.ones((4, models.DIM))})
    assert predictive(random.key(0), models.X)["obs"].shape == (4, models.N)
    data = az.from_numpyro(mcmc, log_likelihood=False)
    np.testing.assert_allclose(data.observed_data["obs"].values, models.ROWS, rtol=1e-6)


def test_trap_20_log_likelihood_only_where_asked_for():
    """S x N numbers, by default of ArviZ 0.23: its own switch turns it off, and then no likelihood is evaluated."""
    mcmc = run(kernel())
    assert not hasattr(az.from_numpyro(mcmc, log_likelihood=False), "log_likelihood")
    assert az.from_numpyro(mcmc, log_likelihood=True).log_likelihood["obs"].shape == (1, 4, models.N)


def test_trap_21_num_steps_would_become_a_tree_depth():
    assert "num_steps" not in SGMCMCState._fields
    mcmc = run(kernel(), extra_fields=[field for field in SGMCMCState._fields if field != "z"])
    stats = set(az.from_numpyro(mcmc, log_likelihood=False).sample_stats.data_vars)
    assert {"diverging", "step_size", "i"} <= stats
    assert not stats & {"tree_depth", "n_steps", "lp"}


def test_trap_22_postprocess_at_every_iteration():
    """It costs the same at a hundred times the rows."""
    costs = []
    for size in (1_000, 100_000):
        postprocess = kernel(models.deterministics).postprocess_fn((jnp.zeros(size),), {})
        costs.append(cost(postprocess, {"mu": jnp.array(0.5)}))
    assert costs[0] == costs[1]


CALLS = []


def counted(x):
    """A deterministic site in the plate that tells when it is evaluated."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", len(x)) as rows:
        batch = x[rows]
        shape = jax.ShapeDtypeStruct(batch.shape, batch.dtype)
        seen = jax.pure_callback(lambda v: CALLS.append(1) or v, shape, batch, vmap_method="expand_dims")
        numpyro.deterministic("seen", seen)
        numpyro.sample("obs", dist.Normal(mu, 1), obs=batch)


def test_trap_23_eager_first_postprocess():
    """Neither the one eager call nor the loop evaluates a site that nobody gets."""
    CALLS.clear()
    run(kernel(counted))
    jax.effects_barrier()
    assert not CALLS
    log_likelihood(kernel(counted).model, {"mu": jnp.zeros(1)}, *ARGS)
    jax.effects_barrier()
    assert CALLS, "the counter counts"


def test_trap_24_deterministic_sites_as_long_as_the_data():
    samples = run(kernel(models.deterministics)).get_samples()
    assert {name: draws.shape for name, draws in samples.items()} == {"mu": (4,), "twice": (4,)}


def test_trap_25_a_compilation_for_each_sequential_chain(caplog):
    """The host compiles its loop for every chain, but not for those of `vectorized`, the recommended way."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        run(kernel(), num_chains=4, chain_method="vectorized")
    assert sum("Finished XLA compilation of jit(_fori_collect_loop)" in line for line in caplog.messages) == 1


def test_trap_26_cost_of_the_bar(monkeypatch):
    """One iteration of the bar is `steps_per_sample` steps, and shows no number that would have to be waited for."""
    shown = []
    diagnostics = SGMCMC.get_diagnostics_str
    monkeypatch.setattr(SGMCMC, "get_diagnostics_str", lambda *args: shown.append(diagnostics(*args)) or shown[-1])
    mcmc = run(kernel(steps_per_sample=50), progress_bar=True)
    assert mcmc.last_state.i == 200
    assert len(shown) == 4 and shown[0] == ""


def test_trap_27_state_that_is_copied_at_every_iteration():
    """A state does not grow with the data."""
    sampler = SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B, integrator="BAOAB")
    rows = (jax.ShapeDtypeStruct((size,), "float32") for size in (100, 10**8))
    small, large = (jax.eval_shape(lambda x: start(sampler, (x,)), x) for x in rows)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), small) == jax.tree.map(lambda x: (x.shape, x.dtype), large)


def test_trap_31_data_as_constants_of_the_program():
    """As arguments, which `jit_model_args=True` makes them, they are no part of the program."""
    sampler = kernel()
    state = start(sampler)
    step = jax.jit(lambda state, x: sampler.sample(state, (x,), {}))
    programs = [step.lower(state, jnp.ones(size)).as_text() for size in (1_000, 100_000)]
    assert abs(len(programs[1]) - len(programs[0])) < 1_000
    as_constants = run(sampler).get_samples()["mu"]
    np.testing.assert_allclose(run(sampler, jit_model_args=True).get_samples()["mu"], as_constants, rtol=1e-5)


def draws_by_several():
    samplers = (kernel(), True), (kernel(gradient=SVRG()), False), (kernel(gradient=SAGA()), False)
    return [np.asarray(run(s, progress_bar=bar).get_samples()["mu"]) for s, bar in samplers]


@pytest.mark.slow
def test_trap_31_data_as_arguments_by_the_environment(tmp_path):
    """What docs/large_data.md recommends; JAX reads the variable while it is imported."""
    path = tmp_path / "draws.npy"
    program = f"import conftest, numpy, test_traps; numpy.save({str(path)!r}, test_traps.draws_by_several())"
    in_a_fresh_process(program, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1")
    np.testing.assert_allclose(np.load(path), draws_by_several(), rtol=1e-5)


def sized(x, size):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    with numpyro.plate("N", size) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def test_trap_32_ints_among_jitted_arguments():
    bound = run(kernel(functools.partial(sized, size=models.N)), jit_model_args=True)
    np.testing.assert_allclose(bound.get_samples()["mu"], run(kernel()).get_samples()["mu"], rtol=1e-5)
    with pytest.raises(ValueError, match="jit_model_args.*functools.partial"):
        run(kernel(sized), args=(*ARGS, models.N), jit_model_args=True)


def test_trap_33_objects_that_the_host_retains():
    """NumPyro keeps its last eight samplers alive; ours hold no data, draws or programs."""
    sampler = kernel()
    before = pickle.dumps(sampler)
    mcmc = run(sampler)
    assert pickle.dumps(sampler) == before
    assert not [leaf for leaf in jax.tree.leaves(vars(sampler)) if isinstance(leaf, jax.Array | np.ndarray)]
    mcmc.transfer_states_to_host()
    assert isinstance(mcmc.get_samples()["mu"], np.ndarray)


def test_trap_34_init_on_resume(monkeypatch):
    """Nothing is computed only to be thrown away, also by a kernel that has never been initialised."""
    state = run(kernel()).last_state
    monkeypatch.setattr(SGMCMC, "init", lambda *args, **kwargs: pytest.fail("init was called"))
    for sampler in (kernel(), pickle.loads(pickle.dumps(kernel()))):
        mcmc = make(sampler)
        mcmc.post_warmup_state = state
        mcmc.run(state.rng_key, *ARGS)
        assert mcmc.last_state.i == 8


def test_trap_35_schedules_go_on_after_a_resume():
    schedule = Polynomial(1e-2, 1.0, 0.5)
    mcmc = run(kernel(step_size=schedule))
    sizes = list(mcmc.get_extra_fields()["step_size"])
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.last_state.rng_key, *ARGS)
    sizes += list(mcmc.get_extra_fields()["step_size"])
    np.testing.assert_allclose(sizes, [schedule(i) for i in range(8)], rtol=1e-6)


def test_trap_36_the_same_key_again():
    """The noise of a step depends on its index too, and the rows are the chain's own: nothing is replayed."""
    mcmc = make(kernel(step_size=1e-8), 5, 5)  # h g is nothing beside sqrt(2 h) n
    key = random.key(3)
    mcmc.warmup(key, *ARGS, collect_warmup=True)
    paths = [mcmc.get_samples()["mu"]]
    for _ in range(2):
        mcmc.run(key, *ARGS)
        paths.append(mcmc.get_samples()["mu"])
        mcmc.post_warmup_state = mcmc.last_state
    steps = [np.diff(path) / np.sqrt(2e-8) for path in paths]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (abs(steps[a] - steps[b]) > 0.01).all()


def test_trap_37_a_batch_of_one_key():
    one = run(kernel())
    mcmc = make(kernel())
    mcmc.run(random.key(1)[None], *ARGS)
    assert mcmc.get_samples()["mu"].shape == (4,)
    np.testing.assert_array_equal(mcmc.get_samples()["mu"], one.get_samples()["mu"])
    state = kernel().init(random.key(1)[None], 0, {"mu": jnp.array(0.25)}, ARGS, {})
    assert state.z["mu"] == 0.25 and state.i.shape == ()
    one.post_warmup_state = one.last_state
    with pytest.raises(ValueError, match="one chain, but its rng_key has shape.*last_state.rng_key"):
        one.run(random.PRNGKey(1)[None], *ARGS)


def test_trap_38_draw_of_the_plate(monkeypatch):
    """NumPyro's own, O(N), is never asked for."""
    monkeypatch.setattr("numpyro.primitives._subsample_fn", lambda *args, **kwargs: pytest.fail("the plate drew rows"))
    mcmc = run(kernel(models.declared, batch_size=None))
    az.from_numpyro(mcmc, log_likelihood=True)
    run(kernel(models.logistic), args=(models.X, models.COUNTS))


def test_trap_39_work_of_a_step_is_linear_in_the_batch():
    x, y = jnp.ones((1_000, models.DIM)), jnp.ones(1_000)

    def flops(batch_size):
        sampler = kernel(models.logistic, batch_size=batch_size)
        state = jax.eval_shape(lambda: start(sampler, (x, y)))
        return cost(lambda state: sampler.sample(state, (x, y), {}), state)[0]

    at = {batch_size: flops(batch_size) for batch_size in (64, 128, 256)}
    assert 0 < at[256] - at[128] < 2.2 * (at[128] - at[64])


def test_trap_40_hyperparameters_changed_on_the_kernel():
    sampler = SGHMC(models.gaussian, step_size=1e-3, batch_size=models.B)
    for name in ("step_size", "schedule", "friction", "dynamics", "batch_size", "rows", "gradient", "_model"):
        with pytest.raises(AttributeError, match=f"SGHMC.{name} is frozen: NumPyro compiles a kernel once"):
            setattr(sampler, name, None)
