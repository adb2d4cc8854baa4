"""
Every word with every estimator, row schemes and step sizes in turn: a few steps of the kernel against the equations
written out in NumPy (``written_out.py``). The other tests of laws look at the parts; this one at how they are put
together in each cell of the product.
"""

import functools
import itertools

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import written_out

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    Constant,
    ControlVariate,
    Cyclical,
    Minibatch,
    Piecewise,
    Polynomial,
    Reshuffled,
    WithoutReplacement,
    WithReplacement,
)
from numpyro_sgmcmc.utils import noise

N, B, STEPS = 11, 3, 6  # no whole number of batches, two epochs
RNG = np.random.default_rng(0)
X = np.hstack([np.ones((N, 1)), RNG.normal(size=(N, 2))])
Y = (RNG.random(N) < 0.5).astype(float)
ARGS = X[:, 1:], Y
START = {"a": np.array(0.3), "w": np.array([-0.5, 1.2])}
CENTER = {"a": np.array(0.1), "w": np.array([0.2, -0.4])}
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
NOISES = RNG.normal(size=(3, 3))
MOMENTUM = np.array([0.4, -1.1, 0.6])
THERMOSTATS = np.array([1.2, 0.7, -0.1])
MASS = np.array([2.0, 0.5, 0.8])
S2 = np.array([30.0, 5.0, 400.0])  # of the gradient's noise, for the word that wants to know it
D = 1.7


def vector(z):
    return np.concatenate([np.reshape(z["a"], 1), z["w"]])


def dictionary(x):
    return {"a": jnp.asarray(x[0]), "w": jnp.asarray(x[1:])}


def model(x, y):
    a = numpyro.sample("a", dist.Normal(0, 2))
    w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=a + x[rows] @ w), obs=y[rows])


WORDS = [
    *((SGLD, word) for word in ["E"]),
    *((SGHMC, word) for word in ["EA", "AFBNFA", "ABOBA", "BAOAB", "ABGBA"]),
    *((SGNHT, word) for word in ["AED", "ADFBNFDA", "BADODAB"]),
    *((MSGNHT, word) for word in ["AED", "ADFBNFDA", "ADBOBDA"]),
]
ESTIMATORS = {
    "Minibatch": (Minibatch(), written_out.Plain, {}),
    "ControlVariate": (ControlVariate(CENTER), written_out.Anchored, {"center": vector(CENTER)}),
    "ControlVariate-row": (ControlVariate(CENTER, "row"), written_out.Anchored, {"center": vector(CENTER)}),
    "SVRG": (SVRG(2), written_out.Anchored, {"m": 2}),
    "SAGA-row": (SAGA(), written_out.Table, {}),
    "SAGA-row-online": (SAGA("row", "online"), written_out.Table, {"init": "online"}),
    "SAGA-batch-zeros": (SAGA("batch", "zeros"), written_out.Table, {"init": "zeros", "batch": B}),
    "SAGA-linear": (SAGA("linear"), written_out.Table, {}),
}
ROWS = [Reshuffled(), WithoutReplacement(), Reshuffled(contiguous=True), WithReplacement()]
STEP_SIZES = [Constant(0.1), Polynomial(0.2, 1.0, 0.5), Piecewise((2,), (0.2, 0.1)), Cyclical(0.2, 4)]
CELLS = [
    pytest.param(k, e, name, id=f"{kernel_class.__name__}-{word}-{name}")
    for (k, (kernel_class, word)), (e, name) in itertools.product(enumerate(WORDS), enumerate(ESTIMATORS))
]


@functools.cache
def after_init(name):
    """What an estimator knows at the start, and the state of the row scheme."""
    kernel = SGHMC(model, step_size=0.1, batch_size=B, gradient=ESTIMATORS[name][0])
    return jax.jit(lambda key: kernel.init(key, 0, START, ARGS, {}))(random.key(0))


@functools.cache
def batches_of(rows, key):
    """Those of the first steps, for the key of a row scheme's state."""
    key = jnp.asarray(key, jnp.uint32)
    return jax.jit(jax.vmap(lambda t: rows(key, t, N, B)))(jnp.arange(STEPS + 1)).tolist()


@pytest.mark.every(14)
@pytest.mark.parametrize("k, e, name", CELLS)
def test_a_cell_moves_by_its_equations(k, e, name, monkeypatch):
    kernel_class, word = WORDS[k]
    gradient, reference, options = ESTIMATORS[name]
    step_size = STEP_SIZES[(k + e + e // 4) % 4]
    mass = MASS if k % 2 else np.ones(3)
    independent = "G" in word
    rows = ROWS[1::2][e % 2] if independent else ROWS[(k + e) % 4]
    parts = {"integrator": word, "gradient": gradient, "rows": rows, "step_size": step_size}
    parts |= {SGLD: {}, SGHMC: {"friction": D}}.get(kernel_class, {"diffusion": D})
    if k % 2:
        parts["inverse_mass_matrix"] = dictionary(1 / mass)
    with jax.enable_x64(True):
        kernel = kernel_class(model, batch_size=B, steps_per_sample=STEPS, **parts)
        start = after_init(name)
        batches = batches_of(kernel.rows, tuple(start.rows_state.rng_key.tolist()))
        steps = [float(step_size(i)) for i in range(STEPS)]

        estimator = reference(written_out.Regression(X, Y), vector(START), **options)
        p = None if kernel_class is SGLD else MOMENTUM
        xi = {SGNHT: 1.2, MSGNHT: THERMOSTATS}.get(kernel_class)
        carried = estimator.gradient(vector(START), batches[0]) if kernel.integrator.carries_gradient else None
        state = start._replace(
            momentum=() if p is None else dictionary(p),
            thermostat=dictionary(xi) if kernel_class is MSGNHT else () if xi is None else jnp.asarray(xi),
            noise_variance=dictionary(S2) if independent else (),
            gradient=() if carried is None else dictionary(carried),
            last_finite=start.z if kernel.integrator.evaluates_start else (),
        )
        supply = itertools.cycle(NOISES[: sum(letter in "NOEG" for letter in word)])
        monkeypatch.setattr(noise, "normal_like", lambda key, tree: dictionary(next(supply)))
        # six steps of a toy: what takes time is the compiler
        moved = jax.jit(lambda state: kernel.sample(state, ARGS, {}), compiler_options=QUICKLY)(state)

    constants = {"D": D, "mass": mass, "common": kernel_class is SGNHT, "s2": S2}
    z, p, xi = written_out.run(estimator, word, steps, batches[1:], NOISES, vector(START), p, xi, carried, **constants)
    np.testing.assert_allclose(vector(moved.z), z, rtol=1e-9)
    if p is not None:
        np.testing.assert_allclose(vector(moved.momentum), p, rtol=1e-9)
    if xi is not None:
        ours = moved.thermostat if kernel_class is SGNHT else vector(moved.thermostat)
        np.testing.assert_allclose(ours, xi, rtol=1e-9)
