"""The work of a step, counted by the compiler: no clock, no luck."""

import functools

import jax
from jax import random
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from processes import in_a_fresh_process
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    ControlVariate,
    Minibatch,
    Reshuffled,
    WithoutReplacement,
    WithReplacement,
)
from numpyro_sgmcmc.gradients.full_pass import BUDGET, CHUNK, chunk_length, full_gradient
from numpyro_sgmcmc.gradients.tables import TABLES
from numpyro_sgmcmc.types import GradientEstimator
from numpyro_sgmcmc.utils.noise import normal

pytestmark = [
    pytest.mark.optimised,
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers count differently"),
]

B, D = 256, 128
H = 1e-6
CENTER = ControlVariate({"w": jnp.zeros(D)})


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("N", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def data(N):
    return jax.ShapeDtypeStruct((N, D), jnp.float32), jax.ShapeDtypeStruct((N,), jnp.float32)


def start(kernel, N):
    return jax.eval_shape(lambda X, y: kernel.init(random.key(0), 0, None, (X, y), {}), *data(N))


def work(fn, *args):
    """Floating-point operations, and bytes read and written, of the compiled program."""
    analysis = jax.jit(fn).lower(*args).compile().cost_analysis()
    return analysis["flops"], analysis["bytes accessed"]


@functools.cache
def step(kernel_class, N=10_000, **options):
    kernel = kernel_class(model, step_size=H, batch_size=B, **options)
    return work(lambda state, X, y: kernel.sample(state, (X, y), {}), start(kernel, N), *data(N))


def by_hand(N=10_000):
    """The same step of SGLD by itself, with our noise: that of JAX is a loop, which the compiler counts once."""

    def one(w, key, X, y):
        key_rows, key_noise = random.split(key)
        rows = random.randint(key_rows, (B,), 0, N)

        def energy(w):
            logits = X[rows] @ w
            return 0.5 * w @ w + N / B * jnp.sum(jax.nn.softplus(logits) - y[rows] * logits)

        return w - H * jax.grad(energy)(w) + jnp.sqrt(2 * H) * normal(key_noise, (D,), jnp.float32)

    w = jax.ShapeDtypeStruct((D,), jnp.float32)
    return work(one, w, jax.eval_shape(lambda: random.key(0)), *data(N))


def test_a_step_does_the_work_of_one_written_by_hand():
    flops, traffic = step(SGLD, rows=WithReplacement())
    flops_by_hand, traffic_by_hand = by_hand()
    assert flops < 1.1 * flops_by_hand
    assert traffic < 1.1 * traffic_by_hand


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel_class", [SGLD, SGHMC, MSGNHT])
def test_what_a_run_tells_of_itself_costs_less_than_a_hundredth_of_a_step(kernel_class):
    """A transition of one step with what is collected of it, and without temperature, energy and monitor."""
    kernel = kernel_class(model, step_size=H, batch_size=B)

    def transition(state, X, y, told):
        new = kernel.sample(state, (X, y), {})
        kept = [getattr(new, name) for name in kernel.default_fields if told or name != "monitor"]
        return (new if told else new._replace(temperature=(), potential_estimate=())), kept

    (flops, traffic), (flops_without, traffic_without) = (
        work(functools.partial(transition, told=told), start(kernel, 10_000), *data(10_000)) for told in (True, False)
    )
    assert flops < 1.01 * flops_without
    assert traffic < 1.01 * traffic_without


@pytest.mark.parametrize(
    "kernel_class, word", [(SGHMC, "ssi"), (SGHMC, "BAOAB"), (SGHMC, "NOGIN"), (SGNHT, "ssi"), (MSGNHT, "ADBOBDA")]
)
@pytest.mark.every(2)
def test_every_sampler_evaluates_one_gradient_a_step(kernel_class, word):
    """A gradient is 4 B d operations; what else a step does is O(d)."""
    rows = kernel_class(model, step_size=H, integrator=word).rows
    extra = step(kernel_class, integrator=word)[0] - step(SGLD, rows=rows)[0]
    assert extra < 0.5 * 4 * B * D


@pytest.mark.every(2)
@pytest.mark.parametrize("gradient, gradients", [(CENTER, 2), (SAGA("linear"), 1), (SAGA("batch"), 1)], ids=str)
def test_gradients_of_a_batch_that_a_step_evaluates(gradient, gradients, monkeypatch):
    """In units of a step with plain minibatches, which evaluates one."""
    # SAGA's pass over its table, one in 16 epochs, is counted by the compiler in each step: see the next test
    monkeypatch.setattr(SAGA, "begin_step", GradientEstimator.begin_step)
    assert round(step.__wrapped__(SGLD, gradient=gradient)[0] / step(SGLD)[0]) == gradients


@pytest.mark.parametrize("per", ["row", "batch", "linear"])
@pytest.mark.every(3)
def test_a_pass_over_a_table_does_less_work_than_an_epoch_of_steps(per, monkeypatch):
    """One in 16 epochs, in as many pieces as an epoch has steps; the compiler counts a piece in each step."""
    counted = step.__wrapped__(SGLD, gradient=SAGA(per))[0]
    monkeypatch.setattr(SAGA, "begin_step", GradientEstimator.begin_step)
    assert 0 < counted - step.__wrapped__(SGLD, gradient=SAGA(per))[0] < 0.5 * step(SGLD)[0]


ESTIMATORS = [Minibatch(), CENTER, SVRG(), SAGA("linear", "zeros"), SAGA("batch", "zeros"), SAGA("row", "zeros")]
SCHEMES = [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement(), WithReplacement()]


@pytest.mark.parametrize("gradient", ESTIMATORS[:1] + ESTIMATORS[3:], ids=str)
@pytest.mark.every(2)
def test_a_step_does_the_same_work_whatever_the_size_of_the_data(gradient):
    # in whole batches: the compiler counts what SAGA does with the rest when it takes its sum anew
    small, large = (step(SGLD, N, gradient=gradient)[0] for N in (40 * B, 4000 * B))
    assert large == pytest.approx(small, rel=0.01)


@pytest.mark.every(4)
@pytest.mark.parametrize("rows", SCHEMES, ids=repr)
def test_the_state_holds_nothing_as_long_as_the_data(rows):
    N = 9973
    for kernel_class in (SGLD, SGHMC, SGNHT, MSGNHT):
        for gradient in ESTIMATORS[:3]:
            kernel = kernel_class(model, step_size=H, batch_size=B, rows=rows, gradient=gradient)
            assert max(leaf.size for leaf in jax.tree.leaves(start(kernel, N))) <= D


@pytest.mark.parametrize("per, size", [("row", 9973 * D), ("batch", (9973 // B + 1) * D), ("linear", 9973)])
def test_a_table_is_as_large_as_announced(per, size):
    state = start(SGLD(model, step_size=H, batch_size=B, gradient=SAGA(per)), 9973)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.gradient_state.table)) == size


# -- chunks of a full pass -------------------------------------------------------------------------------------------


def convnet(images, labels):
    """Two layers of convolutions on images of 28 x 28, and a linear one."""
    first = numpyro.sample("first", dist.Normal(0, 1).expand([3, 3, 1, 16]).to_event(4))
    second = numpyro.sample("second", dist.Normal(0, 1).expand([3, 3, 16, 16]).to_event(4))
    last = numpyro.sample("last", dist.Normal(0, 1).expand([7 * 7 * 16, 10]).to_event(2))
    with numpyro.plate("N", len(images)) as rows:
        x = images[rows]
        for kernel in (first, second):
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x).reshape(len(rows), x.shape[1] // 2, 2, x.shape[2] // 2, 2, 16).mean((2, 4))
        numpyro.sample("y", dist.Categorical(logits=x.reshape(len(rows), -1) @ last), obs=labels[rows])


IMAGES = jax.ShapeDtypeStruct((50_000, 28, 28, 1), jnp.float32), jax.ShapeDtypeStruct((50_000,), jnp.int32)


def full_pass(model, data, chunk_size=None):
    """Bytes of a full gradient beside its arguments and results, by the compiler; and the length of its chunks."""
    kernel = SGLD(model, step_size=H, batch_size=10)
    lengths = []

    def gradient(z, *data):
        potential = kernel.potential(data, {})
        one = lambda rows: jax.grad(potential.estimate)(z, rows)  # noqa: E731
        lengths.append(chunk_length(one, potential.plates, chunk_size))
        return full_gradient(potential, z, random.key(0), chunk_size)

    z = jax.eval_shape(lambda *data: kernel.init(random.key(0), 0, None, data, {}), *data).z
    compiled = jax.jit(gradient).lower(z, *data).compile()
    return compiled.memory_analysis().temp_size_in_bytes, lengths[0]


def test_a_chunk_takes_the_memory_that_is_meant_for_it():
    """As the compiler says, within a factor for what it fuses; 4096 rows would take half a gigabyte."""
    taken, length = full_pass(convnet, IMAGES)
    assert BUDGET / 8 < taken < 1.5 * BUDGET
    assert 1 < length < CHUNK / 8
    much, _ = full_pass(convnet, IMAGES, CHUNK)
    assert much > 7 * BUDGET


def test_rows_that_take_little_are_seen_in_chunks_of_4096():
    taken, length = full_pass(model, data(100_000))
    assert length == CHUNK and taken < BUDGET


@pytest.mark.parametrize("chunk_size", [1, 100])
def test_a_chunk_is_as_long_as_asked_for(chunk_size):
    taken, length = full_pass(convnet, IMAGES, chunk_size)
    assert length == chunk_size and taken < chunk_size * 1_000_000


@pytest.mark.parametrize("per", ["row", "linear"])
def test_a_table_is_filled_in_chunks_that_fit(per):
    """Rows of 4000 numbers: 4096 of their gradients would take as much as all of it."""
    width = 4000
    wide = jax.ShapeDtypeStruct((50_000, width), jnp.float32), jax.ShapeDtypeStruct((50_000,), jnp.float32)

    def regression(X, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([width]).to_event(1))
        with numpyro.plate("N", X.shape[0]) as rows:
            numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])

    kernel = SGLD(regression, step_size=H, batch_size=B)

    def values(X, y, w):
        potential, table = kernel.potential((X, y), {}), TABLES[per](f"SAGA({per})")
        rows = jnp.arange(table.chunk(potential, {"w": w}))
        return table.evaluate(potential, {"w": w}, {"N": rows}).values

    memory = jax.jit(values).lower(*wide, jax.ShapeDtypeStruct((width,), jnp.float32)).compile().memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < 1.5 * BUDGET


START = """
import conftest, jax
from jax import random
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_sgmcmc import SGHMC


def model(group, y):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", 120):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], 1), obs=y[rows])


keys, events = random.split(random.key(1), 4), []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
SGHMC(model, batch_size=100).init(keys, 100, None, (np.arange(480) % 120, np.zeros(480)), {})
assert 0 < events.count("/jax/core/compile/backend_compile_duration") <= 10
"""


def test_the_start_of_a_hierarchy_compiles_ten_programs_at_most():
    """An operation of the model that is evaluated by itself is a program, of 20 ms each: there were a hundred."""
    in_a_fresh_process(START)
