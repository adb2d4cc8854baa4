"""The rows of a plate are those of its data: wrong lengths are named, lengths that belong so are left alone."""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_sgmcmc import SGLD

N, DIM, B = 12, 3, 4
X = np.asarray(random.normal(random.key(0), (N, DIM)))
Y = np.asarray(random.normal(random.key(1), (N,)))
GROUP = np.arange(N) % 2
GROUP_ON_DEVICE = jnp.asarray(GROUP)


def init(model, *args, batch_size=B, **kwargs):
    return SGLD(model, step_size=1e-3, batch_size=batch_size).init(random.key(0), 0, None, args, kwargs)


def regression(x, y, size=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("rows", len(x) if size is None else size) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


def memmap(array, folder):
    array.tofile(folder / "data")
    return np.memmap(folder / "data", dtype=array.dtype, mode="r", shape=array.shape)


@pytest.mark.parametrize("kind", ["numpy", "jax", "memmap"])
def test_an_argument_with_too_few_rows(kind, tmp_path):
    short = {"numpy": lambda y: y, "jax": jnp.asarray, "memmap": partial(memmap, folder=tmp_path)}[kind](Y[:6])
    x = jnp.asarray(X) if kind == "jax" else X
    with pytest.raises(ValueError, match=r"plate 'rows' has 12 rows, but indexes argument 2 of shape \(6,\).*len\(x\)"):
        init(regression, x, short)
    with pytest.raises(ValueError, match=r"indexes y= of shape \(6,\) with 6 in dimension 0"):
        init(regression, x, y=short)


def test_an_argument_that_is_traced():
    def traced(y):
        init(regression, X, y)

    with pytest.raises(ValueError, match=r"indexes argument 2 of shape \(6,\)"):
        jax.jit(traced)(Y[:6])


def test_a_member_of_an_argument():
    def model(data):
        regression(data["x"], data["y"])

    with pytest.raises(ValueError, match=r"indexes argument 1\['y'\] of shape \(6,\)"):
        init(model, {"x": X, "y": Y[:6]})


def test_an_array_that_is_closed_over():
    short = jnp.asarray(Y[:6])
    with pytest.raises(ValueError, match=r"indexes a closed-over array of shape \(6,\)"):
        init(lambda x: regression(x, short), X)
    with pytest.raises(ValueError, match=r"indexes a closed-over array of shape \(6,\)"):
        init(lambda x: regression(x, jnp.asarray(Y[:6])), X)


@pytest.mark.parametrize(
    "size, rows", [(2 * N, "rows that the array does not have"), (5, "no row of the array from 5")]
)
def test_a_plate_of_another_size(size, rows):
    with pytest.raises(ValueError, match=rf"has {size} rows, but indexes argument 1 of shape \(12, 3\).*{rows}"):
        init(regression, X, Y, size=size)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("batch_size", [{}, None])
@pytest.mark.parametrize(
    "size, rows", [(2 * N, "rows that the array does not have. Give"), (5, r"no row of the array from 5 on.*x\[:5\]")]
)
def test_a_plate_of_another_size_with_all_of_its_rows(size, rows, batch_size, array):
    with pytest.raises(ValueError, match=rf"has {size} rows, but indexes argument 1 of shape \(12, 3\).*{rows}"):
        init(regression, array(X), array(Y), size=size, batch_size=batch_size)


def test_a_plate_of_another_size_whose_batch_size_is_automatic():
    x, y = np.tile(X, (300, 1)), np.tile(Y, 300)
    assert SGLD(regression).potential((x, y), {}).plates["rows"].batch_size == 500
    with pytest.raises(ValueError, match="plate 'rows' has 1200 rows, but indexes argument 1"):
        SGLD(regression).potential((x, y, 1200), {})


def test_a_plate_beside_the_minibatched_one():
    def by_group(x, y, prior_scale):
        with numpyro.plate("groups", 2) as groups:
            w = numpyro.sample("w", dist.Normal(0, prior_scale[groups]))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(w[GROUP_ON_DEVICE[rows]], 1), obs=y[rows])

    init(by_group, X, Y, jnp.ones(2), batch_size={"rows": B})
    for length in (1, 3):
        with pytest.raises(ValueError, match=rf"'groups' has 2 rows, but indexes argument 3 of shape \({length},\)"):
            init(by_group, X, Y, jnp.ones(length), batch_size={"rows": B})


def with_all_rows(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def with_a_column_of_means(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM, 1]).to_event(2))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


def without_a_plate(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


@pytest.mark.parametrize(
    "model, y",
    [(regression, Y[:, None]), (with_all_rows, Y[:, None]), (without_a_plate, Y[:, None]), (with_a_column_of_means, Y)],
)
def test_a_column_and_a_vector_with_all_rows(model, y):
    """Each value with each mean: N^2 terms, and no error from NumPyro."""
    with pytest.raises(ValueError, match=r"site 'y' has a log density of shape \(12, 12\).*column of shape \(N, 1\)"):
        init(model, X, y, batch_size=None)


def test_values_that_are_repeated_on_purpose():
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]).to_event(1))
        numpyro.sample("each", dist.Normal(0, scale[:, None]).expand([2, N]), obs=jnp.stack([y, y]))
        numpyro.sample("one", dist.Normal(0, scale), obs=0.5)
        with numpyro.plate("two", 2, dim=-2), numpyro.plate("rows", N, dim=-1):
            numpyro.sample("table", dist.Normal(0, scale[:, None]), obs=y)

    init(model, Y, batch_size=None)


def in_each_way_of_indexing(y, how):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    table = jnp.stack([y, y], 1)
    with numpyro.plate("rows", N) as rows:
        obs = {
            "take": lambda: jnp.take(y, rows, axis=0),
            "second dimension": lambda: table.T[:, rows][0],
            "two indices": lambda: table[rows, 1],
            "column of indices": lambda: table[rows[:, None], jnp.arange(2)][:, 0],
            "mode": lambda: y.at[rows].get(mode="clip"),
            "vmap": lambda: jax.vmap(lambda row: y[row])(rows),
            "map": lambda: jax.lax.map(lambda row: y[row], rows),
            "jit": lambda: jax.jit(lambda y, rows: y[rows])(y, rows),
            "checkpoint": lambda: jax.checkpoint(lambda rows: y[rows])(rows),
            "cast": lambda: y[rows.astype(jnp.uint32)],
            "slices": lambda: jnp.concatenate([jax.lax.dynamic_slice(y, (rows[k],), (1,)) for k in range(len(rows))]),
        }[how]()
        numpyro.sample("y", dist.Normal(mu, 1), obs=obs)


WAYS = (
    "take", "second dimension", "two indices", "column of indices", "mode", "vmap", "map", "jit", "checkpoint", "cast",
    "slices",
)  # fmt: skip


@pytest.mark.parametrize("how", WAYS)
def test_each_way_of_indexing(how):
    model = partial(in_each_way_of_indexing, how=how)
    SGLD(model, step_size=1e-3, batch_size=B).potential((jnp.asarray(Y),), {})
    with pytest.raises(ValueError, match="plate 'rows' has 12 rows, but indexes .* of shape .*6"):
        SGLD(model, step_size=1e-3, batch_size=B).potential((jnp.asarray(Y[:6]),), {})


# -- lengths that differ, as they should ---------------------------------------------------------------------------


def autoregression(y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("t", len(y) - 1) as t:
        numpyro.sample("y", dist.Normal(a * y[t], 1), obs=y[t + 1])


def next_of_another(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("t", len(y) - 1) as t:
        numpyro.sample("y", dist.Normal(a * x[t, 0], 1), obs=y[t + 1])


def clipped(y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("t", len(y) - 2) as t:
        numpyro.sample("y", dist.Normal(a * y[jnp.where(t > 3, t - 3, 0)], 1), obs=y[t])


def windows(y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("t", len(y) - 3) as t:
        window = jax.vmap(lambda k: jax.lax.dynamic_slice(jnp.asarray(y), (k,), (3,)))(t)
        numpyro.sample("y", dist.Normal(a * window.mean(1), 1), obs=y[t + 3])


def groups(y, group):
    with numpyro.plate("groups", 2):
        alpha = numpyro.sample("alpha", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(alpha[group[rows]], 1), obs=y[rows])


def subsampled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("rows", len(x)):
        batch, labels = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(batch @ w, 1), obs=labels)


def of_rows(y):
    """A coordinate a row, outside of the plate."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([len(y)]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(b[rows], 1), obs=y[rows])


@pytest.mark.parametrize(
    "model, args",
    [
        (autoregression, (Y,)), (autoregression, (jnp.asarray(Y),)), (next_of_another, (X, Y)), (clipped, (Y,)),
        (windows, (Y,)), (groups, (Y, GROUP)), (subsampled, (X, Y)), (of_rows, (Y,)), (regression, (X, Y)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_what_is_legitimate_is_left_alone(model, args):
    init(model, *args)


def test_subsample_names_its_plate_itself():
    with pytest.raises(ValueError, match="numpyro.plate\\(rows, 12, .*invalid shape of numpyro.subsample"):
        init(subsampled, X, Y[:6])


# -- one log density a row -----------------------------------------------------------------------------------------


def rows_in_the_event(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1).to_event(1), obs=y[rows])


def process(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", len(x)) as rows:
        covariance = scale * x[rows] @ x[rows].T + jnp.eye(len(rows))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(rows)), covariance), obs=y[rows])


@pytest.mark.parametrize("model", [rows_in_the_event, process], ids=lambda model: model.__name__)
@pytest.mark.parametrize("batch_size", [1, B])
def test_an_event_of_rows_is_refused(model, batch_size):
    with pytest.raises(ValueError, match="site 'y' in plate 'rows' has one log density for the whole minibatch"):
        init(model, X, Y, batch_size=batch_size)


def vectors_in_the_event(x, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])
        numpyro.sample("y", dist.Normal(y[rows] * mu[0], 1).to_event(0), obs=y[rows])
        with numpyro.handlers.mask(mask=(y > 0)[rows]):
            numpyro.factor("penalty", -(mu[1] ** 2))  # one number, but counted where the mask says


@pytest.mark.parametrize("batch_size", [1, DIM, B])
def test_an_event_within_a_row_is_fine(batch_size):
    init(vectors_in_the_event, X, Y, batch_size=batch_size)


def test_what_a_model_computes_may_be_longer_than_the_plate():
    """A forecast, or a row of padding; data that are too long are refused."""

    def forecast(x, y):
        drift = numpyro.sample("drift", dist.Normal(0, 1).expand([N + 3]).to_event(1))
        level = jnp.cumsum(drift)
        with numpyro.plate("rows", N) as rows:
            numpyro.sample("y", dist.Normal(level[rows], 1), obs=jnp.asarray(y)[rows])

    init(forecast, X, Y)
    with pytest.raises(ValueError, match=r"write x\[:5\]\[rows\]"):
        init(regression, X, Y, size=5)


@pytest.mark.parametrize("names", [np.array(["a", "b"] * (N // 2)), np.array(["2020-01-01"] * N, "datetime64[D]")])
def test_strings_and_dates_among_the_arguments(names):
    def model(x, y, names):
        assert len(np.unique(names)) <= 2
        regression(x, y)

    kernel = SGLD(lambda x, y: model(x, y, names), step_size=0.1, batch_size=4)
    by_argument = SGLD(model, step_size=0.1, batch_size=4)
    state = by_argument.init(random.key(0), 0, None, (X, Y, names), {})
    assert state.potential_estimate == kernel.init(random.key(0), 0, None, (X, Y), {}).potential_estimate


def test_an_array_made_by_numpy_of_an_argument():
    def model(x, y):
        with_ones = np.column_stack([np.ones(len(x)), x])
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        with numpyro.plate("rows", len(x)) as rows:
            numpyro.sample("y", dist.Normal(with_ones[rows] @ w, 1), obs=y[rows])

    assert np.isfinite(SGLD(model, step_size=0.1, batch_size=4).init(random.key(0), 0, None, (X, Y), {}).z["w"]).all()
