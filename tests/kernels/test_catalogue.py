"""What every cell of ``catalogue.py`` must do."""

import pickle

from catalogue import CATALOGUE
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGMCMC

pytestmark = pytest.mark.parametrize("cell", CATALOGUE, ids=str)


def assert_same(a, b):
    """The same structure, dtypes and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.every(12)
def test_through_mcmc(cell, monkeypatch):
    """
    A run of 3 + 3 transitions, and the same in two halves from its first state: one trace of `sample` in all, the
    second half bit-identical, resumed from a pickle.
    """
    traces, starts = [], []
    sample, init = SGMCMC.sample, SGMCMC.init
    monkeypatch.setattr(SGMCMC, "sample", lambda *args: traces.append(1) or sample(*args))
    monkeypatch.setattr(SGMCMC, "init", lambda *args, **kwargs: starts.append(init(*args, **kwargs)) or starts[-1])
    kernel = cell.make()
    mcmc = MCMC(kernel, num_warmup=3, num_samples=3)  # with its bar: NumPyro then compiles only once

    def run(rng_key):
        mcmc.run(rng_key, *cell.args, extra_fields=("i", "potential_estimate", "rng_key"))
        return mcmc.get_samples(), mcmc.get_extra_fields(), mcmc.last_state

    whole = run(random.key(1))
    mcmc.post_warmup_state = starts[0]
    first = run(starts[0].rng_key)
    mcmc.post_warmup_state = pickle.loads(pickle.dumps(mcmc.last_state))
    second = run(mcmc.last_state.rng_key)

    assert_same(second, whole)
    assert len(traces) == 1
    assert len(starts) == 1
    draws, fields, last = whole
    assert list(fields["i"]) == [kernel.steps_per_sample * k for k in (4, 5, 6)]
    assert not fields["diverging"].any()
    for name in draws:
        values = jnp.concatenate([first[0][name], draws[name]])
        assert jnp.isfinite(values).all()
        assert (values[1:] != values[:-1]).reshape(5, -1).any(1).all(), "a chain that stands still"
    aval = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), starts[0])
    assert aval == jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), last)


@pytest.mark.every(12)
def test_many_chains_and_pickles(cell):
    """
    A transition of several chains maps a state to its like, with the chains first in every leaf, and a kernel from a
    pickle computes the same.
    """
    kernel = cell.make()
    state = jax.eval_shape(lambda keys: kernel.init(keys, 3, None, cell.args, {}), random.split(random.key(3), 2))

    def program(kernel):
        return jax.make_jaxpr(lambda state: kernel.sample(state, cell.args, {}), return_shape=True)(state)

    jaxpr, after = program(kernel)
    assert jax.tree.structure(state) == jax.tree.structure(after)
    for x, y, aval in zip(jax.tree.leaves(state), jax.tree.leaves(after), jaxpr.out_avals):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, aval.weak_type)
        assert x.shape[0] == 2

    clone, _ = program(pickle.loads(pickle.dumps(kernel)))
    assert str(clone) == str(jaxpr)
    for x, y in zip(clone.consts, jaxpr.consts):
        np.testing.assert_array_equal(x, y)
