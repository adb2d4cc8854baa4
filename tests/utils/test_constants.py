"""The data of a model are one constant in the program of a run, not one in each loop that reads them."""

import re

import jax
from jax import lax, random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from processes import in_a_fresh_process

from numpyro_sgmcmc import SGHMC, SVRG
from numpyro_sgmcmc.utils.workarounds.constants import LEAST

ROWS = LEAST // 4 + 1  # of float32: more than a MiB


def program(kernel, x, transitions=3):
    """The program of some transitions that closes over the data, as NumPyro's does, and its first argument."""
    state = kernel.init(random.key(0), 10, None, (x,), {})
    run = jax.jit(lambda state: lax.fori_loop(0, transitions, lambda _, s: kernel.sample(s, (x,), {}), state))
    return run.lower(state).compile(), state


def check_one_constant():
    """SVRG visits all rows in a loop of its own."""
    x = np.random.default_rng(0).normal(size=ROWS).astype(np.float32)
    kernel = SGHMC(models.gaussian, step_size=1e-4, batch_size=8, gradient=SVRG(), steps_per_sample=3)
    for data in (x, jnp.asarray(x)):
        text = program(kernel, data)[0].as_text()
        assert len(re.findall(rf"f32\[{ROWS}\]\S* constant\(", text)) == 1


def test_the_data_are_one_constant():
    """JAX reads the variable while it is imported. With 1, the data are no constants."""
    program = "import conftest, test_constants; test_constants.check_one_constant()"
    in_a_fresh_process(program, JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS="0")


def test_a_model_may_use_the_values_of_large_data():
    """NumPy functions of a JAX array need its values, so there it stays as it is."""
    labels = jnp.arange(ROWS, dtype=jnp.int32) % 3

    def model(labels):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([len(np.unique(labels))]).to_event(1))
        with numpyro.plate("N", ROWS) as rows:
            numpyro.sample("obs", dist.Normal(mu[labels[rows]], 1), obs=1.0 * labels[rows])

    run, state = program(SGHMC(model, step_size=1e-4, batch_size=8), labels)
    assert np.isfinite(run(state).z["mu"]).all()
