"""The work of a step, counted by the compiler: no clock, no luck."""

import functools

import jax
from jax import random
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
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
from numpyro_sgmcmc.utils.noise import normal

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


@pytest.mark.parametrize("kernel_class, word", [(SGHMC, "ssi"), (SGHMC, "BAOAB"), (SGNHT, "ssi"), (MSGNHT, "ADBOBDA")])
def test_every_sampler_evaluates_one_gradient_a_step(kernel_class, word):
    """A gradient is 4 B d operations; what else a step does is O(d)."""
    extra = step(kernel_class, integrator=word)[0] - step(SGLD, rows=kernel_class(model, step_size=H).rows)[0]
    assert extra < 0.5 * 4 * B * D


@pytest.mark.parametrize("gradient, gradients", [(CENTER, 2), (SAGA("linear"), 1), (SAGA("batch"), 1)], ids=str)
def test_gradients_of_a_batch_that_a_step_evaluates(gradient, gradients):
    """In units of a step with plain minibatches, which evaluates one."""
    assert round(step(SGLD, gradient=gradient)[0] / step(SGLD)[0]) == gradients


ESTIMATORS = [Minibatch(), CENTER, SVRG(), SAGA("linear", "zeros"), SAGA("batch", "zeros"), SAGA("row", "zeros")]
SCHEMES = [Reshuffled(), Reshuffled(contiguous=True), WithoutReplacement(), WithReplacement()]


@pytest.mark.parametrize("gradient", ESTIMATORS[:1] + ESTIMATORS[3:], ids=str)
def test_a_step_does_the_same_work_whatever_the_size_of_the_data(gradient):
    small, large = (step(SGLD, N, gradient=gradient)[0] for N in (10_000, 1_000_000))
    assert large == pytest.approx(small, rel=0.01)


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
