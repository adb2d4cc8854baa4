"""A model can be debugged: JAX's own switches work on the start and on a transition."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import MSGNHT, SAGA, SGHMC, SGLD, SVRG, ControlVariate

ARGS = (models.ROWS,)
KERNELS = {
    "SGLD": (SGLD, {}),
    "SGHMC": (SGHMC, {}),
    "BAOAB": (SGHMC, {"integrator": "BAOAB"}),
    "MSGNHT": (MSGNHT, {}),
    "SVRG": (SGLD, {"gradient": SVRG()}),
    "SAGA row": (SGLD, {"gradient": SAGA()}),
    "SAGA batch": (SGLD, {"gradient": SAGA("batch")}),
    "ControlVariate": (SGLD, {"gradient": ControlVariate({"mu": 0.5})}),
}
kernels = pytest.mark.parametrize("name", KERNELS)


def make(name, model=models.gaussian):
    kernel_class, options = KERNELS[name]
    return kernel_class(model, step_size=1e-3, batch_size=models.B, steps_per_sample=3, **options)


def moved(kernel, keys=random.key(0), start=None):  # noqa: B008
    start = {"mu": 0.3} if start is None else start
    return kernel.sample(kernel.init(keys, 0, start, ARGS, {}), ARGS, {})


@kernels
@pytest.mark.slow
def test_disable_jit(name):
    kernel = make(name)
    expected = moved(kernel)
    with jax.disable_jit():
        found = moved(kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


@kernels
@pytest.mark.every(8)
def test_debug_nans(name):
    kernel = make(name)
    expected = moved(kernel)
    with jax.debug_nans(True):
        found = moved(kernel)
        many = moved(kernel, random.split(random.key(0), 2), {"mu": jnp.full(2, 0.3)})
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert np.isfinite(many.z["mu"]).all()


def faulty(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("fault", jnp.log(mu - 10))
    with numpyro.plate("N", len(x)) as rows:
        numpyro.sample("obs", dist.Normal(mu, 1), obs=x[rows])


def test_debug_nans_finds_the_line():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        moved(make("SGLD", faulty))


def test_disable_jit_lets_a_model_print(capsys):
    def printing(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(x)) as rows:
            print("rows", np.asarray(rows) if not isinstance(rows, jax.core.Tracer) else "traced")
            numpyro.sample("obs", dist.Normal(mu, 1), obs=jnp.asarray(x)[rows])

    with jax.disable_jit():
        moved(make("SGHMC", printing))
    assert "rows" in capsys.readouterr().out
