"""Of NumPy data one copy is on the device during a run, none while a model is looked at, and none of a file."""

import gc

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, ControlVariate, Reshuffled
from numpyro_sgmcmc.data.arrays import Indexable
from numpyro_sgmcmc.potential.potential import ModelPotential

N = 312_347  # of nothing else, and more than a MiB


def model(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
    numpyro.deterministic("square", mu**2)


@pytest.fixture
def data():
    return np.random.default_rng(0).normal(size=N).astype(np.float32)


@pytest.fixture
def memmap(data, tmp_path):
    data.tofile(tmp_path / "data")
    return np.memmap(tmp_path / "data", dtype=np.float32, mode="r", shape=N)


@pytest.fixture
def copies(monkeypatch):
    """The arrays that have been copied to the device, one entry a copy."""
    made, on_device = [], Indexable.on_device

    def counted(self):
        if self._on_device is None:
            made.append(self.shape)
        return on_device(self)

    monkeypatch.setattr(Indexable, "on_device", counted)
    return made


def on_the_device():
    """Buffers of the size of the data; JAX may wrap a constant of a program in a second array."""
    gc.collect()
    return len({array.unsafe_buffer_pointer() for array in jax.live_arrays() if array.size == N})


def run(data, gradient, progress_bar, **options):
    if gradient == "control variate":
        options["gradient"] = ControlVariate({"mu": jnp.zeros(())})
    kernel = SGHMC(model, step_size=1e-8, batch_size=100, **options)
    mcmc = MCMC(kernel, num_warmup=2, num_samples=5, progress_bar=progress_bar)
    mcmc.run(random.key(0), data)
    return mcmc


ways = pytest.mark.parametrize("gradient, progress_bar", [("minibatch", False), ("control variate", True)])


@ways
@pytest.mark.every(2)
def test_one_copy_is_alive_after_a_run(data, progress_bar, gradient, copies):
    before = on_the_device()
    mcmc = run(data, gradient, progress_bar)
    assert on_the_device() - before == 1
    assert len(copies) == 2  # of the start, which is gone, and of the transitions
    assert mcmc.get_samples().keys() == {"mu", "square"}


@ways
@pytest.mark.every(2)
def test_a_memory_map_is_not_copied(memmap, progress_bar, gradient, copies):
    before = on_the_device()
    mcmc = run(memmap, gradient, progress_bar, rows=Reshuffled(contiguous=True))
    assert on_the_device() == before and copies == []
    assert mcmc.get_samples().keys() == {"mu", "square"}


@pytest.mark.slow
def test_a_start_makes_one_copy_and_keeps_none(data, copies):
    before = on_the_device()
    state = SGHMC(model, step_size=1e-8, batch_size=100).init(random.key(0), 0, None, (data,), {})
    assert copies == [(N,)] and on_the_device() == before and state.z["mu"].shape == ()


def test_what_needs_no_data_copies_none(data, copies):
    potential = ModelPotential.from_model(model, (data,), {}, 100)
    z = {"mu": jnp.ones(())}
    jax.jit(potential.prior)(z), jax.jit(potential.constrain)(z), potential.unconstrain(potential.constrain(z))
    assert copies == []
    rows = {"N": jnp.array([3, 7])}
    eager = potential.per_row(z, rows)
    assert copies == []  # two numbers are copied, not all
    np.testing.assert_array_equal(eager, jax.jit(potential.per_row)(z, rows))
    assert copies == [(N,)]


def test_an_indexed_array_is_that_of_jax():
    plain = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    array, rows = plain.view(Indexable), jnp.array([2, 0])
    for index in (rows, (rows, 1), (slice(None), rows), (rows[:, None], jnp.arange(3)), (..., None, rows)):
        found = array[index]
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, jnp.asarray(plain)[index])
    assert array._on_device is None
    assert isinstance(array[1:], np.ndarray) and array[0, 1] == 1
