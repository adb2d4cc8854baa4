"""All kernels take the same options, list them, and refuse names that are not among them."""

import inspect

from jax import random
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import (
    MSGNHT,
    PSGLD,
    SCIR,
    SGHMC,
    SGLD,
    SGMCMC,
    SGNHT,
    SGRHMC,
    SGRLD,
    AdaptiveSGHMC,
    Energy,
    SGBarker,
    WithoutReplacement,
)
from numpyro_sgmcmc.contrib.isokinetic import SGIsokinetic
from numpyro_sgmcmc.engine.options import KernelOptions

KERNELS = (SGLD, SGHMC, SGNHT, MSGNHT, PSGLD, AdaptiveSGHMC, SGRLD, SGRHMC, SGBarker, SGIsokinetic, SCIR)
OWN = {SGRLD: {"metric": Energy(0.1, 10.0)}, SGRHMC: {"metric": Energy(0.1, 10.0)}}
SHARED = KernelOptions.__annotations__.keys()


def test_the_shared_options_are_those_of_the_general_kernel():
    parameters = inspect.signature(SGMCMC).parameters
    assert parameters.keys() - {"model", "dynamics", "integrator", "unknown"} == SHARED


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_lists_all_options(kernel):
    parameters = inspect.signature(kernel).parameters
    defaults = inspect.signature(SGMCMC).parameters
    assert {name: parameters[name].default for name in SHARED} == {name: defaults[name].default for name in SHARED}
    assert all(each.kind is each.KEYWORD_ONLY for name, each in parameters.items() if name != "model")


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_unknown_option_is_refused(kernel):
    with pytest.raises(TypeError, match=rf"{kernel.__name__} has no option stepsize=. Did you mean step_size=\?"):
        kernel(models.gaussian, **OWN.get(kernel, {}), stepsize=1e-3)
    with pytest.raises(TypeError, match=rf"{kernel.__name__} has no option x=. It has .*batch_size"):
        kernel(models.gaussian, **OWN.get(kernel, {}), x=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_settings_and_masses_need_a_search(kernel):
    for name, value in (("settings", {}), ("dense_mass", False)):
        with pytest.raises(ValueError, match=rf"{name}= is used only if the warm-up chooses the step size"):
            kernel(models.gaussian, **OWN.get(kernel, {}), step_size=1e-3, **{name: value})


def test_the_default_rows_are_those_of_the_kernel():
    for kernel in (SGNHT, MSGNHT, SGIsokinetic):
        assert kernel(models.gaussian, step_size=0.1, rows=None).rows == WithoutReplacement()


def test_a_kernel_derived_from_another_lists_the_options_of_both():
    class Reversible(SGHMC):
        def __init__(self, model, *, lengths=(), **options):
            super().__init__(model, integrator="OBABO", **options)
            assert lengths == ()

    assert {"lengths", "friction", "batch_size"} <= inspect.signature(Reversible).parameters.keys()
    with pytest.raises(TypeError, match="Reversible has no option length=. Did you mean lengths="):
        Reversible(models.gaussian, length=3)


def effects(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("N", len(y)) as rows:
        u = numpyro.sample("u", dist.Normal(mu.sum(), 1))
        numpyro.sample("y", dist.Normal(u, 1), obs=y[rows])


def exactly(rng_key, local_sites, global_sites, rows, y):
    mean = (global_sites["mu"].sum(-1) + y[rows]) / 2
    return {"u": mean + 0.5**0.5 * random.normal(rng_key, mean.shape)}


@pytest.mark.parametrize("kernel", (PSGLD, AdaptiveSGHMC, SGBarker, SGIsokinetic))
def test_latents_of_rows_are_drawn_in_every_kernel(kernel):
    mcmc = MCMC(kernel(effects, step_size=1e-3, batch_size=5, local=exactly), num_warmup=4, num_samples=4)
    mcmc.run(random.key(0), np.linspace(0, 1, 20))
    assert mcmc.get_samples()["mu"].shape == (4, 2)
    assert not mcmc.get_extra_fields()["diverging"].any()
