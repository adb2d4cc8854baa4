"""Values of the data that a run would not show: codes beyond an array, and rows whose energy is not finite."""

from pathlib import Path
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
import pytest

from numpyro_sgmcmc import SGHMC, SGLD
from numpyro_sgmcmc.checks.data_values import _rows_that_are_not_finite, known_values, warn_of_values

N = 300
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3)).astype(np.float32)
Y = rng.normal(size=N).astype(np.float32)
CODES = np.repeat(np.arange(3), N // 3)
WORDS = rng.integers(0, 5, (N, 6))


def started(model, *args, **options):
    SGHMC(model, batch_size=20, step_size=1e-3, friction=10.0).init(random.key(0), 0, None, args, options)


def groups(y, group):
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(effect[group[rows]], 1), obs=y[rows])


def shifted(y, group):
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(effect[group[rows] - 1], 1), obs=y[rows])


def missing(y, group):
    """A negative code means that the group is not known."""
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        known = group[rows] >= 0
        mean = jnp.where(known, effect[jnp.where(group[rows] < 0, 0, group[rows])], 0.0)
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


def three_ways(y, codes):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([3, 3, 5]).to_event(3))
    with numpyro.plate("rows", len(y)) as rows:
        mean = effect[codes[rows, 0], codes[rows][:, 1], codes[rows, 2]]
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])


def bag(y, words):
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(weight[words[rows]].sum(1), 1), obs=y[rows])


def padded(y, words):
    """A word that is not in the vocabulary has the weight 0."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        total = weight.at[words[rows]].get(mode="fill", fill_value=0.0).sum(1)
        numpyro.sample("y", dist.Normal(total, 1), obs=y[rows])


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


def censored(low, y):
    """Bounds may be infinite."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        above = jnp.where(jnp.isfinite(low[rows]), jnp.clip(low[rows], -9, 9), -9)
        numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.maximum(y[rows], above))


def masked(X, y):
    """NaN in the value of a masked site is harmless, and in its parameters makes the gradient NaN."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        known = jnp.isfinite(y[rows]) & jnp.isfinite(X[rows]).all(1)
        with numpyro.handlers.mask(mask=known):
            numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=jnp.where(jnp.isfinite(y[rows]), y[rows], 0.0))


def changed(x, index, value):
    x = np.array(x)
    x[index] = value
    return x


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "model, codes, message",
    [
        (groups, CODES, None),
        (groups, CODES.astype(np.uint8), None),
        (groups, CODES - 3, None),  # all from the end, as in Python
        (shifted, CODES + 1, None),
        (groups, changed(CODES, 250, 3), "argument 2 has values from 0 to 3, and indexes an array with 3 elements"),
        (groups, changed(CODES, 250, -4), "argument 2 has values from -4 to 2"),
        (missing, changed(CODES, 250, -999), None),
        (bag, WORDS, None),
        (bag, changed(WORDS, (250, 4), 5), "argument 2 has values from 0 to 5, and indexes an array with 5 elements"),
        (padded, changed(WORDS, (250, 4), 5), None),
        (three_ways, np.stack([CODES, CODES, WORDS[:, 0]], 1), None),  # 5 values of the last column, 3 of the others
    ],
)
def test_codes_beyond_an_array(model, codes, message, array):
    if message is None:
        return started(model, Y, array(codes))
    with pytest.raises(ValueError, match=message):
        started(model, Y, array(codes))


def test_missing_categories():
    """pandas gives them the code -1, which for JAX is the last category."""
    with pytest.warns(UserWarning, match="argument 2 has negative values, the smallest is -1.* missing category"):
        started(groups, Y, changed(CODES, slice(0, 30), -1))


def normal(y, scale=1.0):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows] / scale)


def test_integers_of_64_bits():
    cents = (3e9 + 2e8 * Y).astype(np.int64)
    with pytest.raises(ValueError, match="argument 1 has integers from .* do not fit into the int32.*astype"):
        started(normal, cents, scale=1e9)
    started(normal, cents // 100, scale=1e7)
    started(lambda y, names: normal(y), Y, cents)  # not used


def test_masked_arrays():
    with pytest.raises(ValueError, match="argument 1 is a masked array of NumPy"):
        started(normal, np.ma.masked_array(Y, Y > 1))


def lag_of_the_minibatch(y):
    phi = numpyro.sample("phi", dist.Normal(0.5, 0.1))
    with numpyro.plate("rows", len(y)) as rows:
        now = y[rows]
        numpyro.sample("y", dist.Normal(phi * jnp.concatenate([jnp.zeros(1), now[:-1]]), 1), obs=now)


def mean_of_the_minibatch(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu + y[rows].mean(), 1), obs=y[rows])


def mean_log_likelihood(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.factor("y", dist.Normal(mu, 1).log_prob(y[rows]) / len(rows))


def scaled_by_the_minibatch(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows, numpyro.handlers.scale(scale=1 / len(rows)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def cox(y):
    b = numpyro.sample("b", dist.Normal(1, 0.1))
    with numpyro.plate("rows", len(y)) as rows:
        risk = b * y[jnp.sort(rows)]
        numpyro.factor("cox", risk - jax.lax.cumlogsumexp(risk))


def in_order(y):
    """The densities of the rows are in another order, and their sum is the same."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[jnp.sort(rows)])


def pairs(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), dim=-2) as i, numpyro.plate("columns", len(y), dim=-1) as j:
        numpyro.sample("y", dist.Normal(mu * y[i][:, None], 1), obs=y[i][:, None] + y[j])


@pytest.mark.parametrize(
    "model, site",
    [
        (lag_of_the_minibatch, "y"),
        (mean_of_the_minibatch, "y"),
        (cox, "cox"),
        (mean_log_likelihood, "y"),
        (scaled_by_the_minibatch, "y"),
    ],
)
def test_rows_that_depend_on_each_other(model, site):
    with pytest.raises(ValueError, match=f"site '{site}' for a row of plate 'rows' depends on the other rows"):
        SGLD(model, step_size=1e-3, batch_size=21).init(random.key(0), 0, None, (Y,), {})


@pytest.mark.parametrize("model, sizes", [(in_order, 21), (pairs, {"rows": 21, "columns": 20})])
def test_rows_that_do_not_depend_on_each_other(model, sizes):
    SGLD(model, step_size=1e-3, batch_size=sizes).init(random.key(0), 0, None, (Y,), {})


@pytest.mark.parametrize("method", ["parallel", "vectorized", jax.vmap], ids=["parallel", "vectorized", "jax.vmap"])
def test_rows_that_depend_on_each_other_in_a_map_over_chains(method):
    mcmc = MCMC(
        SGLD(lag_of_the_minibatch, step_size=1e-3, batch_size=20),
        num_warmup=1,
        num_samples=1,
        num_chains=2,
        chain_method=method,
        progress_bar=False,
    )
    with pytest.raises(ValueError, match="site 'y' for a row of plate 'rows' depends on the other rows"):
        mcmc.run(random.key(0), Y)


def groups_of_unequal_size(y):
    for k, part in enumerate((y[:200], y[200:])):
        mu = numpyro.sample(f"mu{k}", dist.Normal(0, 1))
        with numpyro.plate("rows", len(part)) as rows:
            numpyro.sample(f"y{k}", dist.Normal(mu, 1), obs=part[rows])


def test_a_plate_with_two_sizes():
    with pytest.raises(ValueError, match="two plates with the name 'rows', one of 200 and one of 100 rows"):
        started(groups_of_unequal_size, jnp.asarray(Y))
    SGLD(groups_of_unequal_size, step_size=1e-3).init(random.key(0), 0, None, (jnp.asarray(Y),), {})  # all rows


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "model, first, y, message",
    [
        (regression, X, changed(Y, [250, 260], np.nan), "argument 2 is not finite in 2 of its 300 rows, .* row 250"),
        (
            regression,
            changed(X, (3, 1), np.inf),
            Y,
            "argument 1 is not finite in 1 of .* row 3. There the energy of si",
        ),
        (censored, np.where(CODES > 0, -np.inf, 0.0), Y, None),
        (masked, X, changed(Y, 250, np.nan), None),
        (masked, changed(X, (250, 1), np.nan), Y, "argument 1 is not finite .* row 250. There the gradient is not"),
    ],
)
def test_rows_that_are_not_finite(model, first, y, message, array):
    """The first minibatch contains none of them, or one."""
    if message is None:
        return started(model, array(first), array(y))
    with pytest.raises(ValueError, match=message):
        started(model, array(first), array(y))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the peak of the memory")
def test_memory_of_the_look_at_all_values():
    """A part of the array at a time: flags for all numbers would take a quarter of the memory of the data."""
    x = jax.block_until_ready(jnp.zeros((2**20, 60)))
    read = lambda field: int(Path("/proc/self/status").read_text().split(field)[1].split()[0]) * 1024  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present memory
    before = read("VmRSS:")
    assert not len(_rows_that_are_not_finite(x))
    assert read("VmHWM:") - before < x.nbytes / 8


def test_arrays_without_elements():
    def model(y, x, later):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", dist.Normal(mu + x[rows].sum(1), 1), obs=y[rows])
        numpyro.sample("later", dist.Poisson(jnp.exp(mu)).expand([0]).to_event(1), obs=later)

    started(model, Y, np.zeros((N, 0), np.float32), np.zeros(0, np.int32))


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "law, values, wrong",
    [
        (lambda w: dist.Categorical(logits=w), CODES, 0),
        (lambda w: dist.Categorical(logits=w), CODES + 1, 100),
        (lambda w: dist.Categorical(logits=w), changed(CODES, [7, 250], -1), 2),
        (lambda w: dist.Bernoulli(logits=w[0]), 2.0 * (Y > 0) - 1, (Y <= 0).sum()),
        (lambda w: dist.Poisson(jnp.exp(w[0])), changed(CODES, 250, -1), 1),
        (lambda w: dist.Normal(w[0], 1), Y, 0),
        (lambda w: dist.LogNormal(w[0], 1), changed(np.abs(Y), 5, 0.0), 1),
        (lambda w: dist.Bernoulli(logits=w[0]), np.where(Y > 0, 1.0, np.nan), 0),
        (lambda w: dist.Uniform(0, jnp.exp(w[0])), np.abs(Y), 0),  # a bound that moves
        (lambda w: dist.Gamma(jnp.exp(w[0]), 1).mask(w[0] > -9), Y, 0),
    ],
)
def test_values_outside_the_support(law, values, wrong, array, monkeypatch):
    """They may have a finite density, and then the run would not show them."""

    def model(y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", len(y)) as rows:
            numpyro.sample("y", law(w), obs=y[rows])

    monkeypatch.setattr("numpyro_sgmcmc.checks.data_values.CHUNK", 70)
    potential = SGLD(model, step_size=1e-3, batch_size=20).potential((array(values),), {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_values(potential, known_values((array(values),), {}))
    assert len(caught) == (wrong > 0)
    if wrong:
        assert "site 'y' observes values of argument 1 that are outside" in str(caught[0].message)
        assert f"in {wrong} of 300 rows; the first is row" in str(caught[0].message)
        assert ("Labels of K classes" in str(caught[0].message)) == law(jnp.zeros(3)).support.is_discrete


def test_the_name_of_a_keyword():
    with pytest.raises(ValueError, match="y= is not finite in 1 of its 300 rows"):
        started(regression, X, y=changed(Y, 250, np.nan))


def test_chunks(monkeypatch):
    """Rows are looked at in chunks, and counted over all of them."""
    monkeypatch.setattr("numpyro_sgmcmc.checks.data_values.CHUNK", 7)
    with pytest.raises(ValueError, match="argument 1 is not finite in 3 of its 300 rows, the first is row 49"):
        started(regression, changed(X, ([49, 50, 299], 1), np.nan), Y)


def test_what_the_model_was_run_with():
    """An error of the user's model names the arguments, their dtypes and shapes."""
    with pytest.raises(TypeError) as caught:
        started(regression, Y, X)
    (note,) = (note for note in caught.value.__notes__ if note.startswith("numpyro_sgmcmc"))
    assert note == "numpyro_sgmcmc ran the model with argument 1: float32 (300,), argument 2: float32 (300, 3)."


def test_a_list_of_numpy_numbers():
    with pytest.raises(ValueError, match="argument 1 is a list, .* np.asarray"):
        started(regression, list(Y), Y)


def test_codes_of_type_float():
    def model(group, y):
        effect = numpyro.sample("effect", dist.Normal(0, 1).expand([3]))
        with numpyro.plate("N", len(y)) as rows:
            numpyro.sample("y", dist.Normal(effect[group[rows]], 1), obs=y[rows])

    with pytest.raises(ValueError, match="of type float, perhaps argument 1 or argument 2. Pass x.astype"):
        started(model, np.arange(300.0) // 100, Y)


def test_data_that_were_not_passed():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", N) as rows:
            numpyro.sample("y", dist.Normal(mu, 1), obs=None if y is None else y[rows])

    with pytest.raises(ValueError, match="If 'y' should be data: obs= is None; pass the data"):
        started(model)
    with pytest.warns(
        UserWarning, match="no observed site, and its argument 'y' is None: the draws are those of the prior"
    ):
        SGHMC(model).init(random.key(0), 10, None, (), {})


def test_data_that_are_not_observed():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1).expand([len(y)]))

    with pytest.warns(UserWarning, match="no observed site, although it has arrays .* obs=y"):
        SGHMC(model).init(random.key(0), 10, None, (Y[:5],), {})


def test_a_plate_with_a_size_that_is_not_an_integer():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y) / 2) as rows:
            numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])

    with pytest.raises(ValueError, match="plate 'rows' has the size 150.0, which must be an integer"):
        started(model, Y)


def test_data_in_the_place_of_the_key():
    with pytest.raises(TypeError, match=r"first argument of mcmc.run is the random key.* shape \(300, 3\)"):
        MCMC(SGHMC(regression), num_warmup=1, num_samples=1, progress_bar=False).run(X, Y)


def test_all_rows():
    """``{}`` names no plate, and then none is minibatched, in a kernel that chooses its settings too."""
    kernel = SGHMC(regression, batch_size={})
    assert kernel.potential((np.tile(X, (10, 1)), np.tile(Y, 10)), {}).plates == {}
    assert SGHMC(regression).potential((np.tile(X, (10, 1)), np.tile(Y, 10)), {}).plates["rows"].batch_size == 500


def test_all_rows_in_place_of_the_declared_ones():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y), subsample_size=20):
            batch = numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(mu, 1), obs=batch)

    sizes = {
        name: SGLD(model, step_size=1e-3, batch_size=size).potential((Y,), {}).plates
        for name, size in (("declared", None), ("chosen", 30), ("all", {}))
    }
    assert sizes["declared"]["rows"].batch_size == 20 and sizes["chosen"]["rows"].batch_size == 30
    assert sizes["all"] == {}
