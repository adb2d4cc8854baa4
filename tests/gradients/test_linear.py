"""The linear predictor: found in the trace of a model, or given as a site or a function; what is none is refused."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import SAGA, SGLD, ControlVariate

pytestmark = pytest.mark.usefixtures("x64")

ARGS = (models.X, models.COUNTS)
CLASSES = 4


def make(gradient, model, batch_size=models.B):
    return SGLD(model, step_size=3e-3, batch_size=batch_size, gradient=gradient)


def started(kernel, args=ARGS):
    return kernel.init(random.key(0), 0, None, args, {})


def aged(gradient, model, args=ARGS, **options):
    kernel = make(gradient, model, **options)
    run = jax.jit(lambda state: jax.lax.fori_loop(0, 17, lambda _, s: kernel.sample(s, args, {}), state))
    return run(started(kernel, args))


def weights_site():
    return numpyro.sample("weights", dist.Normal(0, 1).expand([models.DIM]).to_event(1))


def logistic(x, y):
    weights = weights_site()
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", x[rows] @ weights)
        numpyro.sample("obs", dist.Bernoulli(logits=eta), obs=y[rows])


def categorical(x, y, classes=CLASSES):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([models.DIM, classes]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 1).expand([classes]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", x[rows] @ weights + bias)
        numpyro.sample("obs", dist.Categorical(logits=eta), obs=y[rows])


def groups(x, y):
    """An intercept, effects of groups and a coefficient, by ``subsample``."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    effects = numpyro.sample("effects", dist.Normal(0, 1).expand([4]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("N", len(x), subsample_size=None):
        batch = numpyro.subsample(x, event_dim=1)
        group = jnp.floor(jnp.abs(batch[:, 0]) * 10).astype(int) % 4
        eta = numpyro.deterministic("eta", intercept + effects[group] + slope * batch[:, 1])
        numpyro.sample("obs", dist.Poisson(jnp.exp(eta)), obs=numpyro.subsample(y, event_dim=0))


def agree(states):
    for name, z in states[0].z.items():
        for other in states[1:]:
            np.testing.assert_allclose(z, other.z[name], rtol=1e-9, err_msg=name)


# -- the search ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model, shape", [(categorical, (models.N, CLASSES)), (groups, (models.N,))])
@pytest.mark.every(2)
def test_the_linear_predictor_is_found(model, shape):
    states = [aged(SAGA(per), model) for per in ("row", "linear")]
    assert states[1].gradient_state.table.shape == shape
    agree(states)


@pytest.mark.parametrize("batch_size", [1, CLASSES, models.DIM])
@pytest.mark.slow
def test_a_batch_as_long_as_another_axis(batch_size):
    """No axis is taken for that of the rows because of its length."""
    agree([aged(SAGA(per), categorical, batch_size=batch_size) for per in ("row", "linear")])


@pytest.mark.slow
def test_as_many_rows_in_the_data_as_classes():
    """23 rows and 23 classes, in passes of 23 rows and batches of 5."""
    args = models.X[:23], np.arange(23)
    model = lambda x, y: categorical(x, y, classes=23)  # noqa: E731
    agree([aged(SAGA(per), model, args, batch_size=5) for per in ("row", "linear")])


def test_a_model_with_a_product_of_latents_has_none():
    def scaled(x, y):
        weights, size = weights_site(), numpyro.sample("size", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("obs", dist.Normal(x[rows] @ (size * weights), 1), obs=y[rows])

    with pytest.raises(ValueError, match="only through a linear predictor"):
        started(make(SAGA("linear"), scaled))


BENDS = {
    "relu": jax.nn.relu,
    "max": lambda w: jnp.maximum(w, 0),
    "where": lambda w: jnp.where(w > 0, w, 0),
    "abs": jnp.abs,
    "floor": jnp.floor,
    "exp": jnp.exp,
    "square": lambda w: w * w,
    "divisor": lambda w: 1 / w,
    "sort": jnp.sort,
}


@pytest.mark.parametrize("bend", BENDS.values(), ids=BENDS)
def test_what_bends_the_latents_is_not_affine(bend):
    def bent(x, y):
        weights = weights_site()
        with numpyro.plate("N", len(x)) as rows:
            numpyro.sample("obs", dist.Bernoulli(logits=x[rows] @ bend(weights)), obs=y[rows])

    with pytest.raises(ValueError, match="only through a linear predictor"):
        started(make(SAGA("linear"), bent))


# -- given by name, or by a function --------------------------------------------------------------------------------


WITH_ZEROS = models.X * (np.arange(models.N) != 3)[:, None]  # a row whose predictor does not depend on the weights


def product(latents, rows):
    return jnp.asarray(WITH_ZEROS)[rows] @ latents["weights"]


@pytest.mark.parametrize("model", [logistic, categorical, groups])
@pytest.mark.slow
def test_a_site_gives_the_chain_of_the_table_of_rows(model):
    agree([aged(gradient, model) for gradient in (SAGA("row"), SAGA("linear", predictor="eta"))])


@pytest.mark.parametrize(
    "model, predictor",
    [(logistic, product), (categorical, lambda latents, rows: product(latents, rows) + latents["bias"])],
    ids=["a number a row", "several"],
)
@pytest.mark.slow
def test_a_function_gives_the_chain_of_the_table_of_rows(model, predictor):
    args = WITH_ZEROS, models.COUNTS
    agree([aged(gradient, model, args) for gradient in (SAGA("row"), SAGA("linear", predictor=predictor))])


@pytest.mark.slow
def test_stored_control_variates_take_a_predictor():
    center = {"weights": np.array([0.3, -0.2, 0.5])}
    gradients = [ControlVariate(center), *(ControlVariate(center, "linear", predictor=p) for p in (None, "eta"))]
    agree([aged(gradient, logistic) for gradient in gradients])


def unused(x, y):
    """Goes on with a value of its own in place of that of the site."""
    weights = weights_site()
    with numpyro.plate("N", len(x)) as rows:
        eta = x[rows] @ weights
        numpyro.deterministic("eta", eta)
        numpyro.sample("obs", dist.Bernoulli(logits=eta), obs=y[rows])


def unknown_scale(x, y):
    weights, scale = weights_site(), numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", x[rows] @ weights)
        numpyro.sample("obs", dist.Normal(eta, scale), obs=y[rows])


def bent(x, y):
    weights = weights_site()
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", x[rows] @ jax.nn.relu(weights))
        numpyro.sample("obs", dist.Bernoulli(logits=eta), obs=y[rows])


def constrained(x, y):
    """Affine in the constrained weights, not in the unconstrained."""
    weights = numpyro.sample("weights", dist.HalfNormal(1).expand([models.DIM]).to_event(1))
    with numpyro.plate("N", len(x)) as rows:
        eta = numpyro.deterministic("eta", x[rows] @ weights)
        numpyro.sample("obs", dist.Bernoulli(logits=eta), obs=y[rows])


def another(latents, rows):
    return jnp.asarray(models.X)[rows, 0] * latents["weights"][0]


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize(
    "model, predictor, message",
    [
        (logistic, "mu", "no deterministic site 'mu' for predictor=.*numpyro.deterministic\\('mu'"),
        (logistic, "weights", "no deterministic site 'weights'"),
        (unused, "eta", "do not depend on the latents 'weights' through predictor='eta' alone.*that numpyro.determ"),
        (unknown_scale, "eta", "'weights', 'scale' through predictor='eta' alone.*as a scale.*'batch' or 'row'"),
        (logistic, another, "through predictor=<function another.* alone"),
        (bent, "eta", "predictor='eta' is not affine in the unconstrained latents 'weights'.*'batch' or 'row'"),
        (constrained, "eta", "predictor='eta' is not affine"),
    ],
)
def test_what_is_no_linear_predictor_is_refused(model, predictor, message, precision):
    with jax.enable_x64(precision == "double"):
        with pytest.raises(ValueError, match=f"SAGA\\(per='linear'\\): .*{message}"):
            started(make(SAGA("linear", predictor=predictor), model))


@pytest.mark.parametrize("scale, offset", [(1.0, 0.0), (1e4, 0.0), (1.0, 1e4), (1e-4, 0.0)])
def test_a_right_predictor_passes_in_single_precision(scale, offset):
    """Whatever the units of the data: large ones must not overflow, an offset must not hide or make a difference."""

    def poisson(x, y):
        weights = weights_site()
        with numpyro.plate("N", len(x)) as rows:
            eta = numpyro.deterministic("eta", scale * x[rows] @ weights + offset)
            numpyro.sample("obs", dist.Poisson(jnp.exp(eta - offset)), obs=y[rows])

    with jax.enable_x64(False):
        kernel = make(SAGA("linear", predictor="eta"), poisson)
        kernel.gradient.check(kernel.potential(ARGS, {}), 1)
