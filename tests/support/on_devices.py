"""Programs on four devices of one process, and in two: what tests/data/test_sharded.py runs in fresh processes."""

import os
import re
import sys

import jax
from jax import random
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_sgmcmc import SGHMC, SGLD, SVRG, ControlVariate, Reshuffled, Sharded, find_mode, shard_rows

N, B, DIM = 1200, 40, 5
DATA = np.random.default_rng(0)
X = DATA.normal(size=(N, DIM)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, DIM) + DATA.normal(size=N)).astype(np.float32)
CENTER = {"w": np.zeros(DIM, np.float32)}


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


def subsampled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("N", len(x)):
        batch = numpyro.subsample(x, event_dim=1)
        numpyro.sample("y", dist.Normal(batch @ w, 1), obs=numpyro.subsample(y, event_dim=0))


def exact():
    """The posterior's mean and covariance."""
    precision = X.T @ X + np.eye(DIM)
    return np.linalg.solve(precision, X.T @ Y), np.linalg.inv(precision)


def mesh_of(devices=4, axis_type=None):
    kinds = {} if axis_type is None else {"axis_types": (axis_type,)}
    return jax.make_mesh((devices,), ("rows",), devices=jax.devices()[:devices], **kinds)


def run(data, kernel=SGLD, model=model, num_chains=1, num_warmup=3, num_samples=5, steps_per_sample=8, **options):
    if kernel is SGHMC and "step_size" in options:
        options["friction"] = 10.0
    kernel = kernel(model, batch_size=B, **{"steps_per_sample": steps_per_sample} | options)
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(1), *data)
    return np.asarray(mcmc.get_samples()["w"])


def exchanged(kernel, data, chains=None, sharding=None):
    """Bytes of the results of all exchanges between devices in a compiled transition, whose steps are one loop."""
    keys = random.key(0) if chains is None else random.split(random.key(0), chains)
    state = kernel.init(keys, 0, None, data, {})
    if sharding is not None:
        state = jax.tree.map(lambda x: jax.device_put(x, sharding) if jnp.ndim(x) else x, state)
    text = jax.jit(lambda state: kernel.sample(state, data, {})).lower(state).compile().as_text()
    exchange = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    calls = re.findall(rf"= (.*) (?:{exchange})(?:-start)?\(", text)
    shapes = [dims for call in calls for dims in re.findall(r"\w+\[([\d,]*)\]", call)]
    return sum(4 * int(np.prod([int(n) for n in dims.split(",") if n])) for dims in shapes)


def check_draws():
    """On four devices the draws of one device that is given the same scheme."""
    sharded, plain = shard_rows(mesh_of(), X, Y), (jnp.asarray(X), jnp.asarray(Y))
    for name, options in {
        "plain": {},
        "contiguous": {"rows": Reshuffled(contiguous=True)},
        "sghmc": {"kernel": SGHMC},
        "chains": {"num_chains": 3},
        "subsample": {"model": subsampled},
        "control variate": {"gradient": ControlVariate(CENTER)},
        "svrg": {"gradient": SVRG(20)},
    }.items():
        options = {"step_size": 1e-3, **options}
        on_one = options | {"rows": Sharded(options.get("rows", Reshuffled()), 4)}
        np.testing.assert_allclose(run(sharded, **options), run(plain, **on_one), atol=5e-6, err_msg=name)
    fewer = [x[:-3] for x in (X, Y)]  # shares that are not equal
    for name, options in {"plain": {}, "control variate": {"gradient": ControlVariate(CENTER)}}.items():
        there = run(shard_rows(mesh_of(), *fewer), step_size=1e-3, **options)
        again = run([jnp.asarray(x) for x in fewer], step_size=1e-3, rows=Sharded(Reshuffled(), 4), **options)
        np.testing.assert_allclose(there, again, atol=5e-6, err_msg=f"unequal shares, {name}")
        whole = shard_rows(mesh_of(), *(jnp.asarray(x) for x in fewer))
        np.testing.assert_array_equal(run(whole, step_size=1e-3, **options), there)
    explicit = shard_rows(mesh_of(axis_type=jax.sharding.AxisType.Explicit), X, Y)
    np.testing.assert_array_equal(run(explicit, step_size=1e-3), run(sharded, step_size=1e-3))
    found = [
        find_mode(model, random.key(0), *data, batch_size=B, num_steps=500, progress_bar=False)["w"]
        for data in (sharded, plain)
    ]
    np.testing.assert_allclose(*found, atol=1e-4)


GIVEN = {"step_size": 1e-3, "batch_size": B, "steps_per_sample": 4}


def check_exchange():
    """A step exchanges a gradient and its energy, whatever the batch."""
    assert exchanged(SGLD(model, **GIVEN), shard_rows(mesh_of(), X, Y)) <= 3 * 4 * DIM


def check_exchange_of_chains():
    """So do the steps of several chains, those of another estimator, and chains that are spread over devices too."""
    data = shard_rows(mesh_of(), X, Y)
    assert exchanged(SGLD(model, **GIVEN), data, chains=4) <= 4 * 3 * 4 * DIM
    assert exchanged(SGHMC(model, friction=10.0, gradient=ControlVariate(CENTER), **GIVEN), data) <= 3 * 4 * DIM
    mesh = jax.make_mesh((2, 2), ("chains", "rows"))
    data = shard_rows(mesh, X, Y, axis="rows")
    chains = NamedSharding(data[0]._values.sharding.mesh, PartitionSpec("chains"))
    print("exchanged", exchanged(SGLD(model, **GIVEN), data, chains=4, sharding=chains))


def check_posterior():
    """Nothing given, four devices: the exact posterior."""
    mean, cov = exact()
    draws = run(
        shard_rows(mesh_of(), X, Y), SGHMC, num_chains=4, num_warmup=400, num_samples=1000, steps_per_sample=None
    )
    sd = np.sqrt(np.diag(cov))
    assert np.abs(draws.mean(0) - mean).max() < 0.2 * sd.max()
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.15)


def check_process(process, port, folder):
    """One of two processes with one device each: arrays of files, and of what each process has."""
    jax.distributed.initialize(f"localhost:{port}", 2, int(process))
    mesh = jax.make_mesh((2,), ("rows",))
    files = [np.load(os.path.join(folder, name), mmap_mode="r") for name in ("x.npy", "y.npy")]
    sharded = shard_rows(mesh, *files)
    mine = slice(int(process) * N // 2, (int(process) + 1) * N // 2)
    over_rows = NamedSharding(mesh, PartitionSpec("rows"))
    own = shard_rows(mesh, *(jax.make_array_from_process_local_data(over_rows, x[mine]) for x in (X, Y)))
    draws = run(sharded, step_size=1e-3)
    np.testing.assert_array_equal(run(own, step_size=1e-3), draws)
    np.save(os.path.join(folder, f"draws{process}.npy"), draws)
    found = run(sharded, SGHMC, num_chains=4, num_warmup=400, num_samples=500, steps_per_sample=None)
    np.save(os.path.join(folder, f"found{process}.npy"), found)


if __name__ == "__main__":
    globals()[f"check_{sys.argv[1]}"](*sys.argv[2:])
