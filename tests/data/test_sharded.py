"""Rows that are spread over devices. What needs several devices runs in processes of its own, see on_devices.py."""

import os
import socket
import subprocess
import sys

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import on_devices
from processes import SEARCH, SUPPORT, in_a_fresh_process
import pytest

from numpyro_sgmcmc import SAGA, SGLD, Reshuffled, Sharded, WithoutReplacement, shard_rows
from numpyro_sgmcmc.gradients.full_pass import full_gradient
from numpyro_sgmcmc.rows.schemes import row_weights
from numpyro_sgmcmc.rows.shares import Shares

SEVERAL = {"JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1", "JAX_PLATFORMS": "cpu"}
FOUR = SEVERAL | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@pytest.fixture
def data_as_arguments():
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    yield
    jax.config.update("jax_use_simplified_jaxpr_constants", before)


@pytest.mark.parametrize("scheme", [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement()], ids=repr)
def test_each_device_gets_rows_of_its_own(scheme):
    rows = np.stack([Sharded(scheme, 3)(random.key(0), t, 60, 12) for t in range(5)])
    assert (rows.reshape(5, 3, 4) // 20 == np.arange(3)[:, None]).all()
    if not scheme.independent:
        assert (np.sort(rows.ravel()) == np.arange(60)).all()  # an epoch
    shares = rows.reshape(5, 3, 4) % 20
    assert (shares[:, 0] != shares[:, 1]).any() and (shares[:, 1] != shares[:, 2]).any()
    of_one = scheme(random.fold_in(random.key(0), 1), jnp.uint32(3), 20, 4)
    assert (shares[3, 1] == of_one).all()
    assert Sharded(scheme, 3).independent == scheme.independent
    assert Sharded(scheme, 3).distinct == scheme.distinct


def test_batches_that_cannot_be_shared():
    with pytest.raises(ValueError, match="batches of 13 rows cannot be shared equally by 3 devices"):
        Sharded(Reshuffled(), 3)(random.key(0), 0, 60, 13)


@pytest.mark.parametrize("size, devices", [(7, 2), (8, 3), (11, 4), (12, 3)])
def test_shares_of_any_size(size, devices):
    shares = Shares(size, devices)
    owner = np.repeat(np.arange(devices), shares.numbers)
    assert len(owner) == size and max(shares.numbers) - min(shares.numbers) <= 1
    places = np.asarray(shares.locate(np.arange(size)))
    assert (places // shares.longest == owner).all()
    filled = np.asarray(shares.rows(np.arange(shares.longest)))
    assert (filled.ravel()[places] == np.arange(size)).all()


@pytest.mark.parametrize("model", [on_devices.model, on_devices.subsampled])
def test_the_mean_over_all_batches_of_unequal_shares_is_the_full_gradient(model):
    """In 12 steps each of 4 rows is seen 3 times and each of 3 rows 4 times."""
    scheme, data = Sharded(Reshuffled(), 2), (jnp.asarray(on_devices.X[:7]), jnp.asarray(on_devices.Y[:7]))
    kernel = SGLD(model, step_size=1e-3, batch_size=2, rows=scheme)
    potential = kernel.potential(data, {})
    z = {"w": jnp.linspace(-1, 2, on_devices.DIM)}

    def gradient(t):
        rows = {"N": scheme(random.key(3), t, 7, 2)}
        weighted = potential.using_rows(rows, weights=row_weights(scheme, potential.plates))
        return jax.grad(weighted.estimate)(z, rows)

    mean = jax.tree.map(lambda x: x.mean(0), jax.vmap(gradient)(jnp.arange(12)))
    exact = full_gradient(potential, z, random.key(0))
    np.testing.assert_allclose(mean["w"], exact["w"], rtol=1e-5)


def test_steps_from_unequal_shares_are_weighted():
    """SGLD on a mean: what a step adds to z is the weighted gradient and the noise of the step."""

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1e6))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])

    def moved(x):
        kernel = SGLD(model, step_size=1e-3, batch_size=2, rows=Sharded(Reshuffled(), 2))
        state = kernel.init(random.key(0), 0, {"mu": 0.0}, (x,), {})
        return float(kernel.sample(state, (x,), {}).z["mu"] - kernel.sample(state, (0 * x,), {}).z["mu"])

    # of a batch of one row each, those of 4 rows count 4 and those of 3 rows count 3
    assert moved(jnp.array([1.0, 1, 1, 1, 0, 0, 0])) == pytest.approx(4e-3, rel=1e-4)
    assert moved(jnp.array([0.0, 0, 0, 0, 1, 1, 1])) == pytest.approx(3e-3, rel=1e-4)


def test_rows_of_one_device(data_as_arguments):
    """A mesh of one device: the draws of plain arrays."""
    sharded = shard_rows(on_devices.mesh_of(1), on_devices.X, on_devices.Y)
    plain = jnp.asarray(on_devices.X), jnp.asarray(on_devices.Y)
    np.testing.assert_allclose(
        on_devices.run(sharded, step_size=1e-3), on_devices.run(plain, step_size=1e-3), atol=5e-6
    )


def test_lookups(data_as_arguments):
    x = np.arange(24.0, dtype=np.float32).reshape(12, 2)
    rows = np.array([3, 0, 11])
    sharded = shard_rows(on_devices.mesh_of(1), x)
    assert sharded.shape == (12, 2) and len(sharded) == 12 and sharded.dtype == jnp.float32
    np.testing.assert_array_equal(sharded[rows], x[rows])
    np.testing.assert_array_equal(sharded[rows, 1:], x[rows, 1:])
    np.testing.assert_array_equal(sharded.using_rows([rows], True)[rows], x[rows])
    misplaced = np.array([12, 1, 2])  # of a device that there is not
    assert jnp.isnan(sharded.using_rows([misplaced], True)[misplaced][0]).all()
    with pytest.raises(TypeError, match="the model asks for all of ShardedRows.*spread over devices"):
        np.mean(sharded)


def test_what_shard_rows_refuses(data_as_arguments):
    mesh = jax.make_mesh((1, 2), ("chains", "rows"), devices=jax.devices()[:2])
    with pytest.raises(ValueError, match="the mesh has the axes 'chains', 'rows'. Name one"):
        shard_rows(mesh, on_devices.X)
    with pytest.raises(ValueError, match="1 rows cannot be distributed over 2 devices along 'rows'"):
        shard_rows(mesh, on_devices.X[:1], axis="rows")
    with pytest.raises(ValueError, match=r"the same number of rows, got shapes \(1200, 5\), \(7,\)"):
        shard_rows(mesh, on_devices.X, on_devices.Y[:7], axis="rows")
    jax.config.update("jax_use_simplified_jaxpr_constants", False)
    with pytest.raises(ValueError, match="JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1"):
        shard_rows(mesh, on_devices.X, axis="rows")


def test_what_a_kernel_refuses(data_as_arguments):
    mesh = on_devices.mesh_of(2)
    data = shard_rows(mesh, on_devices.X, on_devices.Y)

    def init(data=data, **options):
        SGLD(on_devices.model, step_size=1e-3, **{"batch_size": 40} | options).init(random.key(0), 0, None, data, {})

    with pytest.raises(ValueError, match="distributed over 2 devices. Leave Sharded out"):
        init(rows=Sharded(Reshuffled(), 3))
    with pytest.raises(ValueError, match="Use a batch_size that is a multiple of 2"):
        init(batch_size=41)
    with pytest.raises(ValueError, match="SAGA.*spread over 2 devices"):
        init(gradient=SAGA())
    with pytest.raises(ValueError, match="SAGA.*takes no rows=Sharded"):
        SGLD(on_devices.model, step_size=1e-3, batch_size=40, rows=Sharded(Reshuffled(), 2), gradient=SAGA())
    table = shard_rows(mesh, models.TABLE)
    crossed = SGLD(models.crossed, step_size=1e-3, batch_size={"rows": 2, "columns": 4})
    with pytest.raises(ValueError, match="'rows' and 'columns' are all minibatched.*Minibatch only that one"):
        crossed.init(random.key(0), 0, None, (table,), {})
    with pytest.raises(ValueError, match="are not distributed over the same number of devices"):
        init(data=(data[0], shard_rows(on_devices.mesh_of(1), on_devices.Y)))


@pytest.mark.parametrize("check", ["exchange", "exchange_of_chains", "draws", "posterior"])
@pytest.mark.every(4)
def test_four_devices(check):
    in_a_fresh_process(f"import on_devices; on_devices.check_{check}()", **FOUR)


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Rows from files, the same draws in both processes, the exact posterior."""
    np.save(tmp_path / "x.npy", on_devices.X)
    np.save(tmp_path / "y.npy", on_devices.Y)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | SEVERAL | {"PYTHONPATH": SEARCH}
    command = [sys.executable, str(SUPPORT / "on_devices.py"), "process"]
    processes = [
        subprocess.Popen([*command, str(k), str(port), str(tmp_path)], env=environment | {"XLA_FLAGS": ""})
        for k in range(2)
    ]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    for what in ("draws", "found"):
        first, second = (np.load(tmp_path / f"{what}{k}.npy") for k in range(2))
        np.testing.assert_array_equal(first, second)
    mean, cov = on_devices.exact()
    sd = np.sqrt(np.diag(cov))
    assert (np.abs(first.mean(0) - mean) < 0.2 * sd).all()
    np.testing.assert_allclose(first.std(0), sd, rtol=0.15)
