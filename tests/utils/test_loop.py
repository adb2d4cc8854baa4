"""Which loops over steps stay as XLA makes them, seen in what is traced and compiled."""

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import MSGNHT, SAGA, SGHMC, SGLD, SVRG, ControlVariate, Reshuffled, WithReplacement
from numpyro_sgmcmc.utils.workarounds.loop import LARGE, one_kernel_on_one_core, repeat, widest

pytestmark = [
    pytest.mark.optimised,
    pytest.mark.filterwarnings("ignore:the model computes with all of"),  # it does so on purpose
]

CALLS = int(one_kernel_on_one_core())  # a call is wanted there alone

N, D = 100_000, 50
SMALL, LARGER = LARGE // (2 * D), 2 * LARGE // D  # rows


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    X = 2 * X  # of all rows at each step, if XLA did not see that it is the same
    with numpyro.plate("N", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def transition(kernel_class, batch_size, chains=1, **options):
    """A transition of twenty steps and the shapes of its arguments."""
    kernel = kernel_class(model, step_size=1e-6, batch_size=batch_size, steps_per_sample=20, **options)
    data = jax.ShapeDtypeStruct((N, D), jnp.float32), jax.ShapeDtypeStruct((N,), jnp.float32)
    key = random.PRNGKey(0) if chains == 1 else random.split(random.PRNGKey(0), chains)
    state = jax.eval_shape(lambda key, *data: kernel.init(key, 0, None, data, {}), key, *data)
    return lambda state, X, y: kernel.sample(state, (X, y), {}), (state, *data)


def sorts(fn, args):
    return str(jax.make_jaxpr(fn)(*args)).count(" sort[")


@pytest.mark.parametrize("rows", [Reshuffled(), Reshuffled(contiguous=True), WithReplacement()], ids=str)
@pytest.mark.parametrize("kernel_class", [SGLD, SGHMC, MSGNHT])
def test_large_steps_get_a_call_and_small_ones_do_not(kernel_class, rows):
    assert sorts(*transition(kernel_class, SMALL, rows=rows)) == 0
    assert sorts(*transition(kernel_class, LARGER, rows=rows)) == CALLS


def test_chains_count():
    assert sorts(*transition(SGLD, SMALL, chains=2)) == 0
    assert sorts(*transition(SGLD, SMALL, chains=8)) == CALLS


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize(
    "gradient",
    [SVRG(100), ControlVariate({"w": jnp.zeros(D)}), SAGA("batch"), SAGA("linear"), SAGA("row")],
    ids=lambda gradient: type(gradient).__name__ + getattr(gradient, "per", ""),
)
def test_passes_over_the_data_and_tables_do_not_count(gradient, chains):
    """What is as long as the data is neither written nor read at every step."""
    assert sorts(*transition(SGLD, SMALL // 2, chains, gradient=gradient)) == 0


def test_only_a_loop_without_a_call_is_one_kernel():
    """
    On jax 0.12 a loop over small steps is. Should this fail on a later one, XLA may leave the loop as it is, and
    ``loop.py`` is not needed.
    """

    def is_one_kernel(batch_size):
        fn, args = transition(SGLD, batch_size)
        lines = jax.jit(fn).lower(*args).compile().as_text().splitlines()
        # the loop over steps is the one that carries the data
        return any("xla_cpu_small_call" in line and f"f32[{N},{D}]" in line for line in lines)

    assert is_one_kernel(SMALL) == (jax.__version_info__ >= (0, 12))
    assert not is_one_kernel(LARGER)


@pytest.mark.parametrize("size", [8, 2 * LARGE])
@pytest.mark.parametrize("times", [1, 2, 7])
def test_repeats(size, times):
    """Also of a tree, and where what the step closes over is traced."""

    def step(scale, state):
        return {"x": state["x"] + scale * state["n"], "n": state["n"] + 1}

    start = {"x": jnp.zeros(size), "n": jnp.int32(1)}
    run = jax.jit(lambda scale: repeat(lambda state: step(scale, state), start, times))
    expected = start
    for _ in range(times):
        expected = step(3.0, expected)
    jax.tree.map(np.testing.assert_array_equal, run(3.0), expected)
    mapped = jax.vmap(lambda scale: repeat(lambda state: step(scale, state), start, times))(jnp.array([3.0, 0.0]))
    assert jnp.array_equal(mapped["x"][0], expected["x"]) and not mapped["x"][1].any()


def test_the_widest_array_of_a_step():
    rest = jnp.ones(500)

    def step(x):  # 3 numbers
        x = jax.jit(lambda x: jnp.outer(x, x))(x).sum(0)  # 9, in a function of its own
        x = x + jnp.outer(rest, rest).sum()  # the same at every step
        x = lax.cond(x[0] > 0, lambda x: x + jnp.outer(rest, x[0] * rest).sum(), lambda x: x, x)  # a branch
        jax.debug.callback(lambda x: None, x)  # nothing
        return x

    assert widest(jax.make_jaxpr(step)(jnp.zeros(3)).jaxpr) == 9
