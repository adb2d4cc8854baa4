"""Programs are compiled once, and never mistaken for each other."""

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import SGHMC, find_mode, programs


@pytest.fixture
def compilations(monkeypatch):
    """A list that grows with every program compiled."""
    count = []
    compile_ = jax.stages.Lowered.compile
    monkeypatch.setattr(programs, "_kept", type(programs._kept)())
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda *args, **kwargs: count.append(1) or compile_(*args, **kwargs)
    )
    return count


def start(model, *args, key=random.key(0)):  # noqa: B008
    return SGHMC(model, step_size=0.1, batch_size=models.B).init(key, 0, None, args, {})


def test_a_second_start_of_the_same_shapes_is_not_compiled(compilations):
    first = start(models.gaussian, models.ROWS)
    second = start(models.gaussian, 2 * models.ROWS, key=random.key(1))  # another kernel, other values
    assert len(compilations) == 1
    assert first.potential_estimate != second.potential_estimate
    start(models.gaussian, models.ROWS[:-1])
    assert len(compilations) == 2
    start(models.gaussian, models.ROWS, key=random.split(random.key(0), 2))
    assert len(compilations) == 3


def test_nor_is_a_second_search_for_the_mode(compilations):
    options = {"batch_size": models.B, "num_steps": 500, "progress_bar": False}
    find_mode(models.gaussian, random.key(0), models.ROWS, **options)
    first = len(compilations)
    find_mode(models.gaussian, random.key(1), models.ROWS, **options)
    assert len(compilations) == first > 0


def test_names_of_sites_make_another_program():
    def named(name):
        def model(x):
            mu = numpyro.sample(name, dist.Normal(0, 1))
            with numpyro.plate("N", len(x)) as rows:
                numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])

        return model

    for name in ("mu", "theta"):
        mode = find_mode(
            named(name), random.key(0), models.ROWS, batch_size=models.B, num_steps=500, progress_bar=False
        )
        assert set(mode) == set(start(named(name), models.ROWS).z) == {name}
    SGHMC(models.gaussian, step_size=0.1, batch_size=models.B).init(random.key(0), 0, {}, (models.ROWS,), {})


def test_a_search_is_lowered_once_for_all_its_segments(monkeypatch):
    count = []
    lower = jax.stages.Traced.lower
    monkeypatch.setattr(jax.stages.Traced, "lower", lambda *args: count.append(1) or lower(*args))
    find_mode(models.gaussian, random.key(0), models.ROWS, batch_size=models.B, num_steps=500, progress_bar=False)
    assert len(count) == 3  # the start, the descent, the look at where it has ended


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


def test_few_programs_are_kept(compilations, monkeypatch):
    monkeypatch.setattr(programs, "KEPT", 2)
    for rows in range(models.B + 1, models.B + 5):
        start(models.gaussian, models.ROWS[:rows])
    assert len(programs._kept) == 2
