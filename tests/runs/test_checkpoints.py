"""
Runs that go on where they were: with the draws of a run that nothing disturbs, whatever ended the process before.

``python tests/runs/test_checkpoints.py --kills 20`` kills a longer run at random times.
"""

import argparse
from datetime import timedelta
import functools
from importlib.metadata import version
import itertools
import json
import logging
import math
import os
import random as random_times
import signal
import subprocess
import sys
import tempfile
import time

import arviz as az
import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from processes import SEARCH, in_a_fresh_process
import pytest
import xarray as xr
import zarr

from numpyro_sgmcmc import SGHMC, SGLD, Checkpointed, settings, summary
from numpyro_sgmcmc.runs import storage, zarr_arrays

as_users_run = pytest.mark.optimised  # as in test_host.py: beside NumPyro's program, exact to the bit is what users run
WARMUP, SAMPLES, EVERY = 9, 20, 4
EXTRA = ("i", "rng_key")


class Stopped(Exception):
    pass


def langevin(model=models.gaussian, **options):
    return SGLD(model, **{"step_size": 1e-3, "batch_size": models.B, "steps_per_sample": 2} | options)


def make(kernel=None, num_warmup=WARMUP, num_samples=SAMPLES, **options):
    options = {"progress_bar": False} | options
    return MCMC(kernel or langevin(), num_warmup=num_warmup, num_samples=num_samples, **options)


def checkpointed(folder, mcmc=None, hook=None, every=EVERY, seed=1, data=models.ROWS, averages=None):
    mcmc = mcmc or make()
    Checkpointed(mcmc, folder, every=every, hook=hook, averages=averages).run(
        random.key(seed), data, extra_fields=EXTRA
    )
    return mcmc


def stop_at(transition):
    """A hook that ends the run at a checkpoint."""

    def hook(progress):
        if progress.transition == transition:
            raise Stopped

    return hook


def stopped(folder, transition=12, **options):
    """A run that ended there, with two states on disk."""
    with pytest.raises(Stopped):
        checkpointed(folder, hook=stop_at(transition), **options)


def undisturbed(mcmc=None):
    mcmc = mcmc or make()
    mcmc.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    return mcmc


@functools.cache
def whole():
    """A run in pieces that nothing disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        return checkpointed(folder)


def assert_same(a, b, rtol=0.0):
    """``rtol``: of the squared last step that the monitor has, which no step uses."""
    of = lambda mcmc: (mcmc.get_samples(True), mcmc.get_extra_fields(True), mcmc.last_state)  # noqa: E731
    assert jax.tree.structure(of(a)) == jax.tree.structure(of(b))
    for (path, x), y in zip(jax.tree.leaves_with_path(of(a)), jax.tree.leaves(of(b))):
        assert x.dtype == y.dtype
        if rtol and jax.tree_util.keystr(path).endswith(".jump"):
            np.testing.assert_allclose(x, y, rtol=rtol)
        else:
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


# -- the draws --------------------------------------------------------------------------------------------------------

CASES = {
    "one chain": {},
    "vectorized, thinned": {"num_chains": 3, "chain_method": "vectorized", "thinning": 3},
    "sequential": {"num_chains": 2, "chain_method": "sequential"},
    "jax.vmap": {"num_chains": 2, "chain_method": jax.vmap},
}


@as_users_run
@pytest.mark.filterwarnings("ignore:Some donated buffers")  # by NumPyro's own loop, under jax.vmap
@pytest.mark.parametrize("options", CASES.values(), ids=list(CASES))
@pytest.mark.every(4)
def test_a_run_that_was_stopped_has_the_draws_of_one_that_was_not(options, tmp_path):
    """Stopped in the warm-up and after it, and resumed by objects of their own."""
    for transition in (4, 20):
        stopped(tmp_path, transition, mcmc=make(**options))
    # under jax.vmap the last bit of that square depends on the loop around the steps
    rtol = 1e-6 if options.get("chain_method") is jax.vmap else 0.0
    assert_same(checkpointed(tmp_path, make(**options)), undisturbed(make(**options)), rtol)


@pytest.mark.slow
def test_numbers_that_the_warm_up_finds(tmp_path):
    make_tuned = lambda: make(SGHMC(models.gaussian, batch_size=models.B))  # noqa: E731
    stopped(tmp_path / "a", 4, mcmc=make_tuned())
    assert_same(checkpointed(tmp_path / "a", make_tuned()), checkpointed(tmp_path / "b", make_tuned()))


def test_groups_are_looked_for_before_the_start_is_traced(tmp_path):
    """A run in segments traces the start of a chain, and the shape of its coordinates depends on a number."""

    def model(y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("groups", 120):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(a[rows % 120], 1), obs=y[rows])

    mcmc = make(SGHMC(model, batch_size=100), num_warmup=4, num_samples=4)
    y = np.random.default_rng(0).normal(size=480)
    Checkpointed(mcmc, tmp_path, every=4).run(random.key(1), y)
    assert settings(mcmc)["coordinates"].layout.families == ((120, 1),)
    assert mcmc.get_samples()["a"].shape == (4, 120)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="parallel chains need two devices")
@pytest.mark.slow
def test_parallel_chains(tmp_path):
    options = {"num_chains": 2, "chain_method": "parallel"}
    stopped(tmp_path / "a", mcmc=make(**options))
    assert_same(
        checkpointed(tmp_path / "a", make(**options)), checkpointed(tmp_path / "b", make(**options), every=SAMPLES)
    )


@as_users_run
@pytest.mark.slow
def test_keys_of_another_kind(tmp_path):
    """Typed keys, which are not arrays of numbers, are in the state."""
    with jax.default_prng_impl("rbg"):
        key = random.key(1)
        with pytest.raises(Stopped):
            Checkpointed(make(), tmp_path, every=EVERY, hook=stop_at(12)).run(key, models.ROWS)
        resumed, whole = make(), make()
        Checkpointed(resumed, tmp_path, every=EVERY).run(key, models.ROWS)
        whole.run(key, models.ROWS)
        np.testing.assert_array_equal(resumed.get_samples()["mu"], whole.get_samples()["mu"])


def test_a_run_that_has_ended_is_read_again(tmp_path):
    first = checkpointed(tmp_path)
    told = []
    assert_same(checkpointed(tmp_path, hook=told.append), first)
    assert [progress.transition for progress in told] == [WARMUP + SAMPLES]


# -- a process that is killed -----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import conftest
calls = 0
def counted(fn):
    def call(*args):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return fn(*args)
    return call
os.fsync, os.replace = counted(os.fsync), counted(os.replace)
import test_checkpoints
test_checkpoints.checkpointed(sys.argv[1])
"""


@pytest.mark.slow
@as_users_run
@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_kill_9_between_any_two_steps_of_a_checkpoint(tmp_path):
    """At calls that put something on disk: in the first state, in the warm-up, and after it."""
    for call, transition in (14, []), (23, [4]), (58, [12]):
        with pytest.raises(subprocess.CalledProcessError) as killed:
            in_a_fresh_process(KILLED, str(tmp_path), str(call))
        assert killed.value.returncode == -signal.SIGKILL
        assert [int(path.stem[6:]) for path in sorted(tmp_path.glob("state-*.npz"))[-1:]] == transition
    assert_same(checkpointed(tmp_path), undisturbed())


def test_what_is_behind_the_last_state_is_cut_off(tmp_path):
    """Draws that were written and are counted by no state."""
    stopped(tmp_path, 16)
    path = tmp_path / "draws/posterior/mu/c/0/0"
    data = bytearray(path.read_bytes())
    data[7 * 4 :] = b"7" * (len(data) - 7 * 4)  # behind the draws of 16 transitions
    path.write_bytes(data)
    assert_same(checkpointed(tmp_path), whole())


# -- on disk ----------------------------------------------------------------------------------------------------------


def test_draws_can_be_opened_while_the_run_goes_on(tmp_path):
    """By ArviZ, and by Zarr itself."""
    seen = []

    def hook(progress):
        with xr.open_datatree(tmp_path / "draws", engine="zarr", consolidated=False) as tree:
            mu = tree["posterior/mu"]
            assert mu.dims == ("draw", "chain") and mu.shape == (progress.draws, 2)
            seen.append(np.array(mu))
            if progress.draws > 4 and not version("arviz").startswith("0."):  # ArviZ 1 reads such a tree itself
                table = az.summary(tree, var_names=["mu"], round_to="none")
                assert float(table["mean"]["mu"]) == pytest.approx(float(mu.mean()))

    options = {"num_chains": 2, "chain_method": "sequential"}
    mcmc = checkpointed(tmp_path, make(**options), hook=hook)
    assert len(seen) == 1 + -(-(WARMUP + SAMPLES) // EVERY)
    for mu in seen:
        np.testing.assert_array_equal(mu.T, mcmc.get_samples(True)["mu"][:, : len(mu)])


@pytest.mark.parametrize(
    "shape, dtype", [((2,), "bool"), ((1, 3, 2), "float32"), ((1,), "uint32"), ((2, 0), "int32"), ((2,), "complex64")]
)
def test_arrays_that_grow(shape, dtype, tmp_path, monkeypatch):
    """In chunks of three rows or less, as Zarr reads them."""
    monkeypatch.setattr(zarr_arrays, "CHUNK", 3 * math.prod(shape) * np.dtype(dtype).itemsize)
    values = np.random.default_rng(0).integers(0, 2, (11, *shape)).astype(dtype)
    array = zarr_arrays.GrowingArray(tmp_path / "x", shape, dtype)
    array.open(0)
    for first, last in itertools.pairwise((0, 2, 3, 8, 8, 9)):
        array.append(values[first:last])
        array.sync()
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[:], values[:last])
    array.append(0 * values[:2])  # which no state counts
    array.close()
    array = zarr_arrays.GrowingArray(tmp_path / "x", shape, dtype)
    array.check(9)
    if math.prod(shape):
        with pytest.raises(ValueError, match="x has fewer than its 13 draws"):
            array.check(13)
    array.open(9)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[:], values[:9])
    array.append(values[9:])
    array.close()
    np.testing.assert_array_equal(array.read(), values)


def test_a_damaged_state_is_skipped_for_the_one_before(tmp_path):
    stopped(tmp_path, 20)
    before, last = sorted(tmp_path.glob("state-*.npz"))
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 255
    last.write_bytes(data)
    begun = []
    with pytest.warns(UserWarning, match=f"{last.name} is damaged"):
        mcmc = checkpointed(tmp_path, hook=begun.append)
    assert begun[0].transition == 16
    assert_same(mcmc, whole())


def test_missing_draws_take_the_run_back(tmp_path):
    stopped(tmp_path, 20)
    path = tmp_path / "draws/posterior/mu/c/0/0"
    os.truncate(path, 11 * 4 - 1)
    with pytest.warns(UserWarning, match="mu has fewer than its 11 draws"):
        assert_same(checkpointed(tmp_path), whole())


def test_no_state_that_can_be_read(tmp_path):
    stopped(tmp_path, 20)
    for path in tmp_path.glob("state-*.npz"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match="no checkpoint in .* can be read"):
        checkpointed(tmp_path)


def test_a_state_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "state-000000000001.npz"
    np.savez(path, numbers=np.array([1, 0]), leaf0=np.array([print], object))
    with pytest.warns(UserWarning, match="allow_pickle"), pytest.raises(ValueError, match="no checkpoint"):
        storage.load(tmp_path, 1, lambda draws: None)


# -- what is refused --------------------------------------------------------------------------------------------------


def wider(x):
    """:func:`models.gaussian` with another number in it."""
    return models.gaussian(1.01 * x)


OTHERS = {
    "data": {"data": models.ROWS + 1},
    "model": {"mcmc": lambda: make(langevin(wider))},
    "kernel": {"mcmc": lambda: make(langevin(step_size=1.01e-3))},
    "batch_size": {"mcmc": lambda: make(langevin(batch_size=3))},
    "rng_key": {"seed": 2},
    "num_samples": {"mcmc": lambda: make(num_samples=SAMPLES + 1)},
    "thinning": {"mcmc": lambda: make(thinning=2)},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    stopped(folder, 4)
    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_by_name(name, begun):
    options = {key: value() if key == "mcmc" else value for key, value in OTHERS[name].items()}
    with pytest.raises(ValueError, match=f"^{name}: .*give another folder"):
        checkpointed(begun, **options)


def test_another_version_is_refused_by_name(begun, monkeypatch):
    path = begun / "run.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | {"jax": "0.0.1"}))
    with pytest.raises(ValueError, match=f"^jax: is {jax.__version__!r}, not '0.0.1'"):
        checkpointed(begun)
    path.write_text(text)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"every": 0}, ValueError, "every=0 must be at least 1"),
        ({"every": 0.5}, TypeError, "every=0.5 must be an integer"),
        ({"every": timedelta()}, ValueError, "every=0:00:00 must be above 0"),
        ({"every": 1, "hook": 3}, TypeError, "hook=3 must be a function"),
    ],
)
def test_arguments(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        Checkpointed(make(), tmp_path, **options)


def test_other_kernels_and_runs_that_go_on(tmp_path):
    with pytest.raises(TypeError, match="not NUTS"):
        Checkpointed(make(NUTS(models.gaussian)), tmp_path, every=1)
    mcmc = make()
    mcmc.post_warmup_state = 1
    with pytest.raises(ValueError, match="post_warmup_state is set"):
        Checkpointed(mcmc, tmp_path, every=1)


# -- averages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [CASES["one chain"], CASES["vectorized, thinned"], CASES["sequential"]], ids=str)
@pytest.mark.every(3)
def test_averages_in_place_of_draws(options, tmp_path):
    """Stopped and resumed, they are those of the draws."""
    function = lambda draw: {"mu": draw["mu"], "both": jnp.stack([draw["mu"], draw["mu"] ** 2])}  # noqa: E731
    for transition in (4, 20):
        stopped(tmp_path, transition, mcmc=make(**options), averages=function)
    mcmc = make(**options)
    run = Checkpointed(mcmc, tmp_path, every=EVERY, averages=function)
    run.run(random.key(1), models.ROWS, extra_fields=EXTRA)
    mu = np.asarray(undisturbed(make(**options)).get_samples(True)["mu"], float)
    assert run.averages.count == mu.shape[1]
    np.testing.assert_allclose(run.averages.mean["mu"], mu.mean(1), rtol=1e-5)
    np.testing.assert_allclose(run.averages.variance["mu"], mu.var(1, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(run.averages.mean["both"][:, 1], (mu**2).mean(1), rtol=1e-5)
    assert mcmc.get_samples() == {} and "monitor" in mcmc.get_extra_fields()
    with pytest.raises(ValueError, match="the run has kept averages and no draws"):
        summary(mcmc, models.ROWS)
    assert not list((tmp_path / "draws/posterior").glob("mu*"))


def test_averages_that_were_not_asked_for(tmp_path):
    with pytest.raises(ValueError, match="give Checkpointed averages=dict"):
        Checkpointed(make(), tmp_path, every=EVERY).averages  # noqa: B018
    with pytest.raises(TypeError, match="averages=3 must be a function of a draw"):
        Checkpointed(make(), tmp_path, every=EVERY, averages=3)


# -- the price --------------------------------------------------------------------------------------------------------


def test_minutes(tmp_path, caplog):
    """Pieces of any length are the same program, and the draws do not depend on them."""
    caplog.set_level(logging.INFO, "numpyro_sgmcmc")
    told = []
    mcmc = checkpointed(tmp_path, every=timedelta(microseconds=1), hook=told.append)
    steps = [progress.transition * mcmc.sampler.steps_per_sample for progress in told]
    assert [progress.rows for progress in told] == [models.B * n for n in steps]
    assert told[-1].passes == pytest.approx(models.B * steps[-1] / len(models.ROWS))
    assert told[-1].rows_per_second == pytest.approx(told[-1].rows / told[-1].seconds)
    assert [progress.transition for progress in told] == list(range(WARMUP + SAMPLES + 1))
    assert f"{WARMUP + SAMPLES} of {WARMUP + SAMPLES} transitions, {SAMPLES} draws" in caplog.text
    assert_same(mcmc, whole())


def test_no_segment_is_compiled_again(tmp_path):
    traces = []

    def model(x):
        traces.append(0)
        models.gaussian(x)

    counts = []
    checkpointed(tmp_path, make(langevin(model)), hook=lambda progress: counts.append(len(traces)))
    assert len(set(counts[1:])) == 1


def main(kills):
    """A child that is killed at random times until it has ended, and the draws beside those of a whole run."""
    program = (
        "import conftest, sys, test_checkpoints as t\n"
        "t.checkpointed(sys.argv[1], t.make(num_warmup=2000, num_samples=1000000), every=500)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": SEARCH}
        killed, waited = 0, 0
        while killed < kills:
            child = subprocess.Popen([sys.executable, "-c", program, folder], env=environment)
            waited = random_times.uniform(5, 7)
            time.sleep(waited)
            if child.poll() is not None:
                break
            child.kill()
            child.wait()
            killed += 1
            print(f"killed after {waited:.1f} s:", sorted(os.listdir(folder))[-2:], flush=True)
        long = {"num_warmup": 2000, "num_samples": 1000000}
        assert_same(checkpointed(folder, make(**long), every=500), undisturbed(make(**long)))
        print(f"killed {killed} times: the draws are those of a whole run")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    main(parser.parse_args().kills)
