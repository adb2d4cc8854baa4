"""What is used of NumPyro and JAX beyond their documented interfaces is still there, and does what it is used for."""

import importlib
import inspect

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer.util import potential_energy
import pytest

NAMES = [
    ("numpyro.contrib.control_flow.scan", "scan_wrapper"),
    ("numpyro.contrib.module", "ParamShape"),
    ("numpyro.infer.gibbs", "GIBBS_SITES_KWARG"),
    ("numpyro.infer.util", "find_valid_initial_params"),
    ("numpyro.primitives", "Messenger"),
    ("numpyro.primitives", "_PYRO_STACK"),
    ("numpyro.util", "is_prng_key"),
    ("numpyro.util", "not_jax_tracer"),
    *(
        ("jax.extend.core.primitives", f"{name}_p")
        for name in (
            "broadcast_in_dim closed_call concatenate convert_element_type copy custom_jvp_call custom_vjp_call "
            "device_put dynamic_slice gather jit lt remat reshape scan select_n slice squeeze transpose".split()
        )
    ),
    ("jax.extend.core", "ClosedJaxpr"),
    ("jax.extend.core", "Jaxpr"),
    ("jax.extend.core", "Literal"),
    ("jax.extend.core", "Primitive"),
    ("jax.extend.core", "jaxpr_as_fun"),
]


@pytest.mark.parametrize("module, name", NAMES, ids=lambda value: value)
def test_the_name_exists(module, name):
    assert hasattr(importlib.import_module(module), name), f"{module} has no {name} any more"


def test_the_search_for_a_start_takes_what_it_is_given():
    from numpyro.infer.util import find_valid_initial_params

    given = {"rng_key", "model", "init_strategy", "model_args", "model_kwargs", "prototype_params"}
    assert given <= set(inspect.signature(find_valid_initial_params).parameters)


def test_an_equation_is_evaluated_for_other_operands():
    from numpyro_sgmcmc.utils.compat import bind

    def evaluated(fn):
        ((eqn,), x) = jax.make_jaxpr(fn)(2.0).jaxpr.eqns, 3.0
        return bind(eqn, x)

    assert evaluated(jnp.sin) == [jnp.sin(3.0)]
    relu = jax.custom_jvp(lambda x: jnp.maximum(x, 0))
    relu.defjvp(lambda x, t: (relu(*x), t[0]))
    assert evaluated(relu) == [3.0]  # one of its parameters is a function


def test_the_site_of_an_error_is_found_in_its_traceback():
    from numpyro_sgmcmc.model.numpyro_internals import sample_code
    from numpyro_sgmcmc.utils.compat import local_in_failing_frame

    with numpyro.handlers.seed(rng_seed=0), pytest.raises(ValueError) as caught, numpyro.plate("N", 3):
        numpyro.sample("label", dist.Normal(jnp.zeros(2), 1))
    assert local_in_failing_frame(caught.value, (sample_code(),), "name") == "label"
    # without the code of `sample`, or without its frame, an error goes without a name
    assert local_in_failing_frame(caught.value, (None,), "name") is None
    assert local_in_failing_frame(ValueError(), (sample_code(),), "name") is None


def in_a_scan(y):
    """Two latents a step, one of them with a support that depends on the other."""

    def step(carry, y):
        low = numpyro.sample("low", dist.Normal(carry, 1))
        high = numpyro.sample("high", dist.TruncatedNormal(0, 1, low=low))
        numpyro.sample("y", dist.Normal(high, 1), obs=y)
        return low, None

    scan(step, 0.0, y)


def test_values_of_all_steps_of_a_scan_are_taken_a_step_at_a_time():
    from numpyro_sgmcmc import SGLD

    y = jnp.asarray(np.random.default_rng(0).normal(size=4))
    potential = SGLD(in_a_scan, step_size=0.1).potential((y,), {})
    z = {name: random.normal(key, (4,)) for name, key in zip(("low", "high"), random.split(random.key(0)))}
    assert potential.prototype.keys() == z.keys()
    expected = float(potential_energy(in_a_scan, (y,), {}, z))
    assert float(potential.estimate(z, {})) == pytest.approx(expected, rel=1e-6)


def test_a_mapped_value_is_known():
    from numpyro_sgmcmc.utils.compat import is_mapped

    seen = []
    jax.jit(jax.vmap(lambda x: seen.append(is_mapped(x))))(jnp.ones(2))
    jax.jit(lambda x: seen.append(is_mapped(x)))(jnp.ones(2))
    assert [*seen, is_mapped(jnp.ones(2))] == [True, False, False]
