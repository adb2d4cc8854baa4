"""The host's contract: whatever NumPyro's MCMC offers works, and a given key means the same draws however it is run."""

import functools
import pickle

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
from numpyro.infer import MCMC, init_to_uniform, init_to_value
from processes import in_a_fresh_process
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, Polynomial

EXTRA = ("i", "thermostat", "potential_estimate", "rng_key")
METHODS = {"sequential": "sequential", "vectorized": "vectorized", "parallel": "parallel", "jax.vmap": jax.vmap}
WARMUP, SAMPLES = 2, 4

# A resume is exact to the bit in what users run. Without LLVM's passes two programs of one transition may round apart.
pytestmark = pytest.mark.optimised

needs_two_devices = pytest.mark.skipif(jax.local_device_count() < 2, reason="parallel chains need two devices")
methods = pytest.mark.parametrize(
    "method", [pytest.param(m, marks=needs_two_devices) if m == "parallel" else m for m in METHODS]
)


def thermostat(**options):
    """Every field of the state in use. A given start spares the compilation of the default one."""
    defaults = {"step_size": 1e-2, "batch_size": models.B, "integrator": "BADODAB", "init_strategy": init_to_uniform}
    return MSGNHT(models.gaussian, **defaults | options)


def langevin(model=models.gaussian, **options):
    return SGLD(model, **{"step_size": 1e-3, "batch_size": models.B, "steps_per_sample": 2} | options)


def make(kernel, num_samples=SAMPLES, num_warmup=WARMUP, **options):
    return MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **{"progress_bar": False} | options)


@functools.cache
def run(method, num_chains=2, num_samples=SAMPLES):
    """One run by each method, of the same key."""
    mcmc = make(thermostat(), num_samples, num_chains=num_chains, chain_method=METHODS[method])
    mcmc.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    return mcmc


def draws(mcmc):
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)


def assert_close(a, b):
    """Equal up to rounding; integers, keys among them, exactly."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jnp.floating):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)
        else:
            np.testing.assert_array_equal(x, y)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x, y)


# -- chains ---------------------------------------------------------------------------------------------------------


@methods
@pytest.mark.every(2)
def test_a_key_means_the_same_draws_under_every_chain_method(method):
    mcmc = run(method)
    samples, fields = draws(mcmc)
    assert samples["mu"].shape == fields["diverging"].shape == (2, SAMPLES)
    assert (samples["mu"][0] != samples["mu"][1]).all()
    assert_close(draws(mcmc), draws(run("sequential")))
    assert_close(mcmc.last_state, run("sequential").last_state)


@pytest.mark.slow
def test_each_chain_is_a_run_of_its_own_key():
    """Chain k of many is the single chain of the k-th key, whatever the number of chains; one kernel serves both."""
    keys, kernel = random.split(random.key(1), 5), thermostat()
    many = make(kernel, num_chains=5, chain_method="vectorized")
    many.run(keys, models.ROWS, extra_fields=EXTRA)
    single = make(kernel)
    single.run(keys[4], models.ROWS, extra_fields=EXTRA)
    assert_close(draws(single), jax.tree.map(lambda x: x[4:], draws(many)))


@pytest.mark.slow
def test_default_start_of_a_thermostat_is_the_same_for_each_chain():
    """The descent and the balance that precede it contract, so rounding does not grow on the way."""
    kernel = MSGNHT(models.gaussian, step_size=1e-2, batch_size=models.B)
    keys = random.split(random.key(1), 3)
    many = kernel.init(keys, 0, None, (models.ROWS,), {})
    assert_close(kernel.init(keys[2], 0, None, (models.ROWS,), {}), jax.tree.map(lambda x: x[2], many))


def test_raw_and_typed_keys_mean_the_same():
    mcmc = make(thermostat())
    mcmc.run(random.PRNGKey(1), models.ROWS, extra_fields=EXTRA)
    assert_same(draws(mcmc), draws(run("sequential", 1)))


def test_a_resumed_run_compiles_no_transition(programs):
    """MCMC puts its own key into the state: with one of another type, the program would be compiled anew."""
    mcmc, transitions = make(thermostat(), num_chains=2, chain_method="vectorized", progress_bar=True), []
    for seed in (1, 2):
        mcmc.run(random.key(seed), models.ROWS)
        mcmc.post_warmup_state = mcmc.last_state
        transitions.append(sum("_body_fn" in program for program in programs))
    assert transitions == [1, 1]


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.every(2)
def test_a_default_of_other_random_bits(chains):
    """The data of such a key are four numbers, which would be taken for a batch of keys."""
    with jax.default_prng_impl("rbg"):
        mcmc = make(thermostat(), num_chains=chains, chain_method="vectorized")
        mcmc.run(random.key(1), models.ROWS)
        assert mcmc.get_samples(group_by_chain=True)["mu"].shape[:2] == (chains, SAMPLES)


def test_thinning_keeps_every_second_draw_of_the_same_chain():
    thinned = make(thermostat(), thinning=2)
    thinned.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    assert_close(draws(thinned), jax.tree.map(lambda x: x[:, 1::2], draws(run("sequential", 1))))
    assert thinned.get_extra_fields()["i"].tolist() == [WARMUP + 2, WARMUP + 4]


# -- what is collected ----------------------------------------------------------------------------------------------


def test_extra_fields():
    mcmc = make(thermostat())
    mcmc.run(random.key(1), models.ROWS, extra_fields=(*EXTRA, "z.mu", "momentum.mu"))
    samples, fields = mcmc.get_samples(), mcmc.get_extra_fields()
    assert set(fields) == {"diverging", "step_size", "monitor", "z.mu", "momentum.mu", *EXTRA}
    assert_same(fields["z.mu"], samples["mu"])  # the support of mu is the real line
    assert set(fields["thermostat"]) == {"mu"}
    assert fields["thermostat"]["mu"].shape == (SAMPLES,)
    np.testing.assert_allclose(fields["step_size"], 1e-2, rtol=1e-6)
    assert jnp.isfinite(fields["potential_estimate"]).all()
    assert fields["i"].tolist() == [3, 4, 5, 6]
    assert len(np.unique(fields["rng_key"], axis=0)) == SAMPLES


def test_unconstrained_value_of_a_site_and_a_site_left_out():
    kernel = SGLD(models.crossed, step_size=1e-3, batch_size={"rows": 2})
    mcmc = make(kernel)
    mcmc.run(random.key(3), models.TABLE, extra_fields=("z.scale", "~z.mu"))
    assert set(mcmc.get_samples()) == {"scale"}
    fields = mcmc.get_extra_fields()
    np.testing.assert_allclose(mcmc.get_samples()["scale"], jnp.exp(fields["z.scale"]), rtol=1e-6)


def test_draws_hold_constrained_values_and_the_deterministic_sites_outside_the_plate():
    mcmc = make(langevin(models.deterministics))
    mcmc.run(random.key(4), models.ROWS)
    samples = mcmc.get_samples()
    assert set(samples) == {"mu", "twice"}
    assert_same(samples["twice"], 2 * samples["mu"])


@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.every(2)
def test_print_summary(capsys, num_chains):
    mcmc = make(langevin(models.deterministics), num_chains=num_chains, chain_method="vectorized")
    mcmc.run(random.key(4), models.ROWS)
    mcmc.print_summary()
    out = capsys.readouterr().out
    assert "mu" in out and "twice" not in out
    assert f"{np.median(mcmc.get_samples()['mu']):.2f}" in out
    assert "Number of divergences: 0" in out


# -- starts and arguments -------------------------------------------------------------------------------------------


def test_init_params_are_unconstrained_and_may_be_partial():
    kernel = langevin(models.crossed, batch_size={"rows": 2})
    given = kernel.init(random.key(5), 0, {"scale": jnp.array(-1.0)}, (models.TABLE,), {})
    free = kernel.init(random.key(5), 0, None, (models.TABLE,), {})
    assert given.z["scale"] == -1
    assert given.z["mu"] == free.z["mu"]
    assert free.z["scale"] != -1


@methods
@pytest.mark.every(2)
def test_init_params_by_chain(method):
    """With a step size of 1e-12 the chains stay where they were put."""
    starts = {"mu": jnp.array([-3.0, 4.0])}
    mcmc = make(langevin(step_size=1e-12), 2, 0, num_chains=2, chain_method=METHODS[method])
    mcmc.run(random.key(5), models.ROWS, init_params=starts)
    np.testing.assert_allclose(draws(mcmc)[0]["mu"], starts["mu"][:, None].repeat(2, 1), atol=1e-4)


def test_init_params_of_integers():
    state = langevin().init(random.key(5), 0, {"mu": jnp.array(2)}, (models.ROWS,), {})
    assert jnp.issubdtype(state.z["mu"].dtype, jnp.floating)
    assert state.z["mu"] == 2


def test_init_strategy_takes_constrained_values():
    kernel = langevin(models.crossed, batch_size={"rows": 2}, init_strategy=init_to_value(values={"scale": 0.5}))
    state = kernel.init(random.key(5), 0, None, (models.TABLE,), {})
    np.testing.assert_allclose(state.z["scale"], np.log(0.5), rtol=1e-6)


@pytest.mark.parametrize("method", ["vectorized", "sequential"])
@pytest.mark.every(2)
def test_jit_model_args(method):
    mcmc = make(thermostat(), num_chains=2, chain_method=method, jit_model_args=True)
    mcmc.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    assert_close(draws(mcmc), draws(run("sequential")))


def test_new_data_for_the_same_mcmc():
    """Also where they are arguments of what is compiled; the bar spares compilations."""
    tasks = [models.ROWS, -models.ROWS]
    fresh = [make(langevin(), progress_bar=True) for _ in tasks]
    for mcmc, data in zip(fresh, tasks):
        mcmc.run(random.key(6), data)
    assert (draws(fresh[0])[0]["mu"] != draws(fresh[1])[0]["mu"]).all()
    for jit_model_args in (False, True):
        mcmc = make(langevin(), jit_model_args=jit_model_args, progress_bar=True)
        for data, expected in zip(tasks, fresh):
            mcmc.run(random.key(6), data)
            assert_close(draws(mcmc), draws(expected))


def test_model_keywords():
    mcmc, other = make(langevin(models.logistic)), make(langevin(models.logistic))
    mcmc.run(random.key(7), models.X, y=models.COUNTS)
    other.run(random.key(7), models.X, models.COUNTS)
    assert_same(draws(mcmc), draws(other))


@pytest.mark.parametrize("num_chains", [2, 1])
@pytest.mark.every(2)
def test_progress_bar_changes_nothing(capsys, num_chains):
    mcmc = make(thermostat(), num_chains=num_chains, chain_method="vectorized", progress_bar=True)
    mcmc.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    assert f"{WARMUP + SAMPLES}/{WARMUP + SAMPLES}" in capsys.readouterr().err
    assert_close(draws(mcmc), draws(run("sequential", num_chains)))


@needs_two_devices
@pytest.mark.slow
def test_progress_bars_of_parallel_chains(capsys):
    mcmc = make(thermostat(), num_chains=2, chain_method="parallel", progress_bar=True)
    mcmc.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    jax.effects_barrier()
    assert "Running chain 1" in capsys.readouterr().err
    assert_close(draws(mcmc), draws(run("sequential")))


# -- to go on -------------------------------------------------------------------------------------------------------


def test_warmup_then_run_is_one_run():
    parts = make(langevin(step_size=Polynomial(1e-2, 1.0, 0.5)))
    parts.warmup(random.key(8), models.ROWS)
    parts.run(parts.post_warmup_state.rng_key, models.ROWS)
    whole = make(langevin(step_size=Polynomial(1e-2, 1.0, 0.5)))
    whole.run(random.key(8), models.ROWS)
    assert_same(draws(parts), draws(whole))


def test_warmup_can_be_collected():
    mcmc = make(langevin())
    mcmc.warmup(random.key(8), models.ROWS, collect_warmup=True, extra_fields=("i",))
    assert draws(mcmc)[1]["i"].tolist() == [[2, 4]]


def with_rows(a, b):
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), a, b)


@methods
@pytest.mark.every(4)
def test_resume_is_exact(method):
    whole, half = run(method), pickle.loads(pickle.dumps(run(method, num_samples=SAMPLES // 2)))
    first = draws(half)
    half.post_warmup_state = half.last_state
    half.run(half.last_state.rng_key, models.ROWS, extra_fields=EXTRA)
    assert_same(with_rows(first, draws(half)), draws(whole))
    assert_same(half.last_state, whole.last_state)


@methods
def test_resume_across_chain_methods(method):
    half = run("sequential" if method == "vectorized" else "vectorized", num_samples=SAMPLES // 2)
    state = pickle.loads(pickle.dumps(half.last_state))
    other = make(thermostat(), SAMPLES // 2, num_chains=2, chain_method=METHODS[method])
    other.post_warmup_state = state
    other.run(state.rng_key, models.ROWS, extra_fields=EXTRA)
    assert_close(with_rows(draws(half), draws(other)), draws(run("sequential")))


RESUME = """
import conftest, pickle, sys
path = sys.argv[1]
with open(path, "rb") as file:
    mcmc = pickle.load(file)
mcmc.post_warmup_state = mcmc.last_state
mcmc.run(mcmc.last_state.rng_key, *mcmc._args, extra_fields=("i", "thermostat", "potential_estimate", "rng_key"))
with open(path, "wb") as file:
    pickle.dump((mcmc.get_samples(True), mcmc.get_extra_fields(True), mcmc.last_state), file)
"""


@pytest.mark.parametrize("options", [{"step_size": 0.01, "check": True}, {"batch_size": 20}])
def test_chains_with_checks_of_their_own_share_none(options):
    make = lambda method: MCMC(  # noqa: E731
        SGHMC(models.gaussian, **options),
        num_warmup=5,
        num_samples=5,
        num_chains=2,
        chain_method=method,
        progress_bar=False,
    )
    first, second = make("sequential"), make("vectorized")
    first.run(random.key(0), models.ROWS)
    second.post_warmup_state = first.last_state
    with pytest.raises(ValueError, match="each of these chains has settings or checks of its own"):
        second.run(first.last_state.rng_key, models.ROWS)


def test_resume_in_a_fresh_process(tmp_path):
    whole, half = run("vectorized"), run("vectorized", num_samples=SAMPLES // 2)
    path = tmp_path / "mcmc.pickle"
    path.write_bytes(pickle.dumps(half))
    in_a_fresh_process(RESUME, str(path))
    samples, fields, last_state = pickle.loads(path.read_bytes())
    assert_same((samples, fields), jax.tree.map(lambda x: x[:, SAMPLES // 2 :], draws(whole)))
    assert_same(last_state, whole.last_state)


# -- the kernel -----------------------------------------------------------------------------------------------------


def test_a_run_leaves_no_trace_on_the_kernel():
    kernel = langevin()
    before = dict(vars(kernel))
    make(kernel).run(random.key(10), models.ROWS)
    assert vars(kernel) == before


@pytest.mark.parametrize("name", ["schedule", "batch_size", "dynamics", "model", "steps_per_sample", "anything"])
def test_kernel_attributes_are_frozen(name):
    kernel = SGHMC(models.gaussian, step_size=1e-3, friction=2.0, batch_size=models.B)
    for frozen in (kernel, kernel.wrap_model(functools.partial), pickle.loads(pickle.dumps(kernel))):
        with pytest.raises(AttributeError, match=f"SGHMC.{name} is frozen.*Make a new kernel"):
            setattr(frozen, name, 1)
    with pytest.raises(AttributeError, match="frozen"):
        kernel.friction = 3.0
    assert kernel.friction == 2.0
