"""A step costs as much as its minibatch: what would cost all rows is an error or a warning at the start."""

from functools import partial
import warnings

from jax import random
from jax.experimental.sparse import BCOO, BCSR
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import SGHMC, SGLD
from numpyro_sgmcmc.checks import before_start

N, P, B = 200, 5, 10
rng = np.random.default_rng(0)
X = (rng.normal(size=(N, P)) * (rng.random((N, P)) < 0.3)).astype(np.float32)
Y = rng.normal(size=N).astype(np.float32)


def weights():
    return numpyro.sample("w", dist.Normal(0, 1).expand([P]).to_event(1))


def regression(X, y):
    w = weights()
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


def all_rows_first(X, y):
    mean = X @ weights()
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mean[rows], 1), obs=y[rows])


def standardised(X, y):
    w, X = weights(), (X - X.mean(0)) / (1 + X.std(0))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


def kept(X, y):
    mean = numpyro.deterministic("mean", X @ weights())
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mean[rows], 1), obs=y[rows])


def potential(model, *args):
    return SGLD(model, step_size=1e-3, batch_size=B).potential(args, {})


def estimate(model, *args):
    return potential(model, *args).estimate({"w": jnp.arange(P) / P}, {"rows": jnp.arange(B) * 7})


@pytest.mark.parametrize("form", [BCOO.fromdense, BCSR.fromdense], ids=["BCOO", "BCSR"])
def test_a_sparse_matrix_whose_rows_are_not_apart(form, programs):
    """It comes before anything is compiled."""
    sparse, w = form(X), estimate(regression, X, Y)
    programs.clear()
    with pytest.raises(ValueError, match="^argument 1 is a sparse .*n_batch=1.*two arrays.*docs/howto.md"):
        SGLD(regression, step_size=1e-3, batch_size=B).init(random.key_data(random.key(0)), 0, None, (sparse, Y), {})
    assert len(programs) <= 1  # the key
    np.testing.assert_allclose(estimate(all_rows_first, sparse, Y), w, rtol=1e-5)  # all rows, in each step


SPARSE = BCOO.fromdense(np.tile(X, (10, 1)))
OF_SPARSE = np.tile(Y, 10)


@pytest.mark.parametrize(
    "model, data, named",
    [
        (regression, (SPARSE, OF_SPARSE), "argument 1"),
        (lambda data: regression(*data), ((SPARSE, OF_SPARSE),), r"argument 1\[0\]"),
        (lambda data: regression(data["X"], data["y"]), ({"X": SPARSE, "y": OF_SPARSE},), r"argument 1\['X'\]"),
        (lambda y: regression(SPARSE, y), (OF_SPARSE,), "SPARSE, over which the model closes,"),
        (handlers.seed(lambda y: regression(SPARSE, y), 0), (OF_SPARSE,), "SPARSE, over which the model closes,"),
        (partial(regression, SPARSE), (OF_SPARSE,), "argument 1, over which the model closes,"),
    ],
    ids=["argument", "in a tuple", "in a dict", "closed over", "in a handler", "partial"],
)
def test_a_sparse_matrix_without_a_batch_size(model, data, named):
    """Neither does the kernel fall back to all rows, which would take the square of their memory."""
    with pytest.raises(ValueError, match=f"^{named} is a sparse"):
        SGHMC(model).potential(data, {})


def test_a_sparse_matrix_that_the_model_does_not_index():
    SGHMC(lambda y: all_rows_first(SPARSE, y), batch_size=B).potential((OF_SPARSE,), {})


def test_a_sparse_matrix_by_rows():
    np.testing.assert_allclose(
        estimate(regression, BCOO.fromdense(X, n_batch=1), Y), estimate(regression, X, Y), rtol=1e-5
    )


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "model, few, warned",
    [
        (regression, 0, {"numpy": False, "jax": False}),
        (all_rows_first, 0, {"numpy": True, "jax": True}),
        (all_rows_first, N * P, {"numpy": False, "jax": False}),
        (standardised, 0, {"numpy": False, "jax": True}),  # NumPy computes it while the model is traced
    ],
)
def test_data_that_are_used_before_they_are_indexed(model, few, warned, array, monkeypatch):
    monkeypatch.setattr(before_start, "FEW", few)
    found = potential(model, array(X), array(Y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before_start.warn_of_costs(found)
    assert bool(caught) == warned["numpy" if array is np.asarray else "jax"]
    if caught:
        assert "of shape (200, 5), in every step, and not only with the 10 of 200 rows" in str(caught[0].message)


def test_the_warning_comes_before_a_start_is_looked_for():
    """It would take minutes if each gradient used all rows; this one has no finite energy."""

    def process_at_all_rows(X, y):
        values = jnp.sin(X * jnp.arange(1, 1 + P)) @ weights()
        numpyro.factor("never", -jnp.inf)
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(values[rows], 1), obs=y[rows])

    x = np.linspace(0, 1, 30_000)
    with pytest.warns(UserWarning, match="computes with all of"), pytest.raises(ValueError, match="not finite"):
        SGHMC(process_at_all_rows).init(random.key(0), 10, None, (x[:, None], np.cos(x)), {})


def test_a_deterministic_site_of_all_rows():
    kernel = SGLD(kept, step_size=1e-3, batch_size=B)
    with pytest.warns(
        UserWarning, match="deterministic site 'mean' has a number for each of the 200 rows of plate 'rows'"
    ):
        kernel.init(random.key(0), 0, None, (X, Y), {})


def test_other_deterministic_sites():
    def model(X, y):
        w = weights()
        numpyro.deterministic("norm", jnp.linalg.norm(w))
        with numpyro.plate("groups", N):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
            numpyro.deterministic("twice", 2 * effect)
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(numpyro.deterministic("mean", X[rows] @ w), 1), obs=y[rows])

    SGLD(model, step_size=1e-3, batch_size=B).init(random.key(0), 0, None, (X, Y), {})


ROWS, LEVELS = 1100, 10  # more than twice the automatic batch size


def data_without_an_index(group, y):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([LEVELS]).to_event(1))
    with numpyro.plate("rows", ROWS):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def two_plates_of_one_name(group, y):
    with numpyro.plate("rows", LEVELS):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("rows", ROWS) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], 1), obs=y[rows])


def data_without_a_plate(group, y):
    with numpyro.plate("groups", LEVELS):
        a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def data_of_a_scan(group, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    scan(lambda last, y: (numpyro.sample("y", dist.Normal(mu * last, 1), obs=y), None), 0.0, y)


def data_in_their_plate(group, y):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([LEVELS]).to_event(1))
    with numpyro.plate("rows", ROWS) as rows:
        numpyro.sample("y", dist.Normal(a[group[rows]], 1), obs=y[rows])


def warnings_of(kernel, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before_start.warn_before_run(kernel.potential(args, {}), kernel.rows)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    "model, reason",
    [
        (data_without_an_index, "site 'y' when plate 'rows' is cut to 500 rows. Every array with a row"),
        (two_plates_of_one_name, "two plates with the name 'rows', one of 10 and one of 1100 rows"),
        (data_without_a_plate, "site 'y' has 1100 rows outside of a plate. If they are independent"),
        (data_of_a_scan, ""),
        (data_in_their_plate, ""),
    ],
)
def test_many_rows_without_minibatches(model, reason):
    """A user who gives no batch size expects minibatches, and learns why there are none, unless they were left out."""
    data = np.arange(ROWS) % LEVELS, np.resize(Y, ROWS)
    told = warnings_of(SGHMC(model), *data)
    assert len(told) == bool(reason) and all(reason in each and "give batch_size={}" in each for each in told)
    assert warnings_of(SGHMC(model, batch_size={}), *data) == []
    few = [x[:LEVELS] for x in data]
    if model is data_without_a_plate:
        assert warnings_of(SGHMC(model), *few) == []


def test_two_plates_of_one_name_for_a_minibatch():
    data = np.arange(ROWS) % LEVELS, np.resize(Y, ROWS)
    with pytest.raises(ValueError, match="two plates with the name 'rows', one of 10 and one of 1100 rows"):
        SGHMC(two_plates_of_one_name, batch_size=100).potential(data, {})
