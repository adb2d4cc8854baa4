"""What is computed outside of a transition is compiled anew for every run, and never mistaken for another model's."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from processes import in_a_fresh_process
import pytest

from numpyro_sgmcmc import SGHMC, SGNHT, ControlVariate, find_mode
from numpyro_sgmcmc.potential.centred import centred_potential
from numpyro_sgmcmc.tuning.start import mean_field

SEARCH = {"batch_size": models.B, "num_steps": 2000, "progress_bar": False}


def start(model, *args, key=random.key(0), **options):  # noqa: B008
    return SGHMC(model, step_size=0.1, batch_size=models.B, **options).init(key, 0, None, args, {})


def of_closed_over(level):
    """A model of data that it closes over."""
    data = level + np.asarray(models.ROWS)

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("N", len(data)) as rows:
            numpyro.sample("x", dist.Normal(mu, 1), obs=jnp.asarray(data)[rows])

    return model


def what_is_found(level):
    model = of_closed_over(level)
    center = find_mode(model, random.key(0), **SEARCH)
    state = start(model, gradient=ControlVariate({"mu": jnp.zeros(())}))
    return np.array([center["mu"], state.gradient_state.gradient["mu"], state.potential_estimate])


def check_closed_over_data():
    first, second = what_is_found(0.0), what_is_found(1.0)
    N = len(models.ROWS)
    # the mode and the gradient at 0 are known: those of a normal mean under a N(0, 10) prior
    np.testing.assert_allclose(second[0] - first[0], N / (N + 0.01), rtol=0.01)
    np.testing.assert_allclose(second[1] - first[1], -N, rtol=1e-4)
    assert first[2] != second[2]


@pytest.mark.slow
def test_models_that_differ_in_closed_over_data_alone():
    check_closed_over_data()


def test_models_that_differ_in_closed_over_data_alone_where_constants_are_arguments():
    """JAX reads the variable while it is imported. The text of a program then does not hold its constants."""
    program = "import conftest, test_compiled; test_compiled.check_closed_over_data()"
    in_a_fresh_process(program, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1")


@pytest.mark.filterwarnings("ignore:find_mode has not converged")
@pytest.mark.slow
def test_a_search_is_traced_once_for_all_its_segments():
    traces = []

    def model(x):
        traces.append(1)
        models.gaussian(x)

    def times(steps):
        traces.clear()
        find_mode(model, random.key(0), models.ROWS, **SEARCH | {"num_steps": steps})
        return len(traces)

    assert times(1000) == times(100)


def test_a_changed_global_is_seen():
    scale = [1.0]

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("x", dist.Normal(mu, scale[0]), obs=x[rows])

    first = start(model, models.ROWS).potential_estimate
    scale[0] = 2.0
    assert start(model, models.ROWS).potential_estimate != first


def test_what_a_callback_calls_is_not_mistaken():
    def model(level):
        def with_callback(x):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            shift = jax.pure_callback(lambda: np.float32(level), jax.ShapeDtypeStruct((), jnp.float32))
            with numpyro.plate("N", len(x)) as rows:
                numpyro.sample("x", dist.Normal(mu + jax.lax.stop_gradient(shift), 1), obs=x[rows])

        return with_callback

    energies = [float(start(model(level), models.ROWS).potential_estimate) for level in (0.0, 5.0, 0.0)]
    assert energies[0] == energies[2] != energies[1]


@pytest.mark.parametrize(
    "chosen, options, precision",
    [(None, {}, "highest"), (None, {"step_size": 1e-3}, None), ("tensorfloat32", {}, "tensorfloat32")],
)
def test_precision_of_products(chosen, options, precision):
    """Full where the warm-up divides by small curvatures, which ten bits of a GPU do not show; else as set in JAX."""
    traced = []

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)) as rows:
            traced.append(jax.config.jax_default_matmul_precision)
            numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])

    with jax.default_matmul_precision(chosen):
        kernel = SGHMC(model, batch_size=5, **options)
        state = kernel.init(random.key(0), 20, None, (models.ROWS,), {})
        jax.eval_shape(lambda state: kernel.sample(state, (models.ROWS,), {}), state)
    assert len(traced) > 5 and set(traced) == {precision}


def additive(number):
    """A regression with a site for each coefficient."""

    def model(x, y):
        w = jnp.stack([numpyro.sample(f"w{k}", dist.Normal(0, 1)) for k in range(number)])
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])

    return model, (jnp.ones((100, number)), jnp.zeros(100))


KEEPS_BARRIERS = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="the CPU compiler of jax 0.10 drops barriers"
)


def lines(fn, *args):
    """The length of the compiled program."""
    return jax.jit(fn).lower(*args).compile().as_text().count("\n")


@KEEPS_BARRIERS
@pytest.mark.parametrize("kernel_class", [SGHMC, SGNHT])
def test_a_program_grows_in_proportion_to_the_sites(kernel_class):
    """XLA computes whether all of them are finite once, not once for each site."""

    def of_transition(number):
        model, args = additive(number)
        kernel = kernel_class(model, batch_size=10, step_size=0.1)
        state = kernel.init(random.key(0), 10, {f"w{k}": jnp.zeros(()) for k in range(number)}, args, {})
        return lines(lambda state: kernel.sample(state, args, {}), state)

    assert of_transition(40) < 2.5 * of_transition(20)


def test_so_does_that_of_a_descent():
    def of_descent(number):
        model, args = additive(number)
        potential = SGHMC(model, batch_size=10).potential(args, {})
        z = {name: jnp.zeros(()) for name in potential.prototype}
        return lines(lambda z, key: mean_field(potential, z, key, key), z, random.key(0))

    assert of_descent(40) < 2.5 * of_descent(20)


@KEEPS_BARRIERS
def test_so_does_that_of_sites_that_depend_on_each_other():
    """In centred variables each value is a function of all earlier ones."""

    def of_gradient(number):
        def model():
            q, x = numpyro.sample("q", dist.HalfNormal(1)), 0.0
            for k in range(number):
                x = numpyro.sample(f"x{k}", dist.Normal(x, q))

        potential = SGHMC(model).potential((), {})
        z = {name: jnp.zeros(()) for name in potential.prototype}
        centred = centred_potential(potential, {name: jnp.asarray(0.5) for name in z if name != "q"})
        return lines(jax.grad(lambda z: centred.estimate(z, {}, None)), z)

    assert of_gradient(40) < 2.5 * of_gradient(20)


def init_with_counts_of_trials():
    """Compares row numbers and counts with 0, which is an array of JAX then."""

    def model(trials, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Binomial(trials[rows], logits=a), obs=y[rows])

    trials = jnp.arange(1, 2 * models.B)
    return start(model, trials, trials // 2)


def test_a_constant_may_be_an_array_where_constants_are_arguments():
    program = "import conftest, test_compiled; test_compiled.init_with_counts_of_trials()"
    in_a_fresh_process(program, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="1")
