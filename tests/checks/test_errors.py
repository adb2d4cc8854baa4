"""Bad input gets one clear error that names the site, plate or argument, before compiling; nothing is lost."""

import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import MCMC, init_to_value
import pandas as pd
import pytest
import scipy.sparse

from numpyro_sgmcmc import (
    MSGNHT,
    SGHMC,
    SGLD,
    SGNHT,
    ControlVariate,
    Minibatch,
    Piecewise,
    Polynomial,
    Tempered,
    find_mode,
    gradient_noise,
    resample,
    settings,
    weighted_summary,
)

N = 12
Y = np.asarray(random.normal(random.key(0), (N,)))


def good(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def unindexed(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def vector(y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(w.sum(), 1), obs=y[rows])


def local_latent(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        b = numpyro.sample("b", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(b, 1), obs=y[rows])


def two_axes(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N, dim=-2) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def discrete_latent(y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(k, 1), obs=y[rows])


def delta_latent(y):
    k = numpyro.sample("k", dist.Delta(0.5))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(k, 1), obs=y[rows])


def without_a_plate(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def without_a_latent(y):
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(0, 1), obs=y[rows])


def two_plates(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("a", N) as a:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[a])
    with numpyro.plate("b", N) as b:
        numpyro.sample("x", dist.Normal(mu, 2), obs=y[b])


def summed_outside(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        log_likelihood = dist.Normal(mu, 1).log_prob(y[rows])
    numpyro.factor("fit", log_likelihood.sum())


def summed_inside(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        numpyro.factor("fit", dist.Normal(mu, 1).log_prob(y[rows]).sum())


def plate_in_scan(y, subsample_size=None):
    mu = numpyro.sample("mu", dist.Normal(0, 10))

    def body(carry, yt):
        with numpyro.plate("N", 3, subsample_size=subsample_size) as rows:
            numpyro.sample("y", dist.Normal(mu, 1), obs=yt[rows])
        return carry, None

    scan(body, 0.0, y.reshape(4, 3))


def declared_in_scan(y):
    plate_in_scan(y, subsample_size=2)


def batch_norm(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    from numpyro.primitives import mutable

    mutable("running", {"mean": jnp.zeros(())})
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


def the_first_rows(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[: len(rows)])


def presliced(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", 1000, subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def start(model, data=Y, init_params=None, kernel=SGLD, **kwargs):
    return kernel(model, **{"step_size": 1e-2, "batch_size": 4} | kwargs).init(
        random.key(0), 0, init_params, (data,), {}
    )


@pytest.mark.parametrize(
    "model, batch_size, message",
    [
        (good, {"M": 3}, "names the plate 'M', but the model has the plates 'N' \\(12 rows\\)"),
        (good, 12, "batch_size=12 for plate 'N' of 12 rows: a minibatch must be smaller"),
        (good, {"N": 20}, "batch_size=20 for plate 'N' of 12 rows: a minibatch must be smaller"),
        (unindexed, 4, "plate 'N' is cut to 4 rows.*must be indexed"),
        (unindexed, 1, "site 'y' in plate 'N'.*not indexed by the plate"),
        (local_latent, 4, "latent site 'b' is inside the minibatched plate 'N'"),
        (local_latent, {"N": 4}, "latent site 'b' is inside the minibatched plate 'N'"),
        (discrete_latent, 4, "latent site 'k' is discrete"),
        (delta_latent, 4, "latent site 'k' has a Delta distribution"),
        (without_a_plate, 4, "batch_size=4, but the model has no plate"),
        (without_a_plate, {"N": 4}, "names the plate 'N', but the model has no plate"),
        (without_a_latent, 4, "no latent sample site"),
        (two_plates, 4, "is ambiguous: the plates 'a', 'b'.*batch_size={'a': 4}"),
        (summed_outside, 4, "needs a plate with observed sites, but none of the plates 'N'"),
        (summed_outside, {"N": 4}, "site 'fit' depends on the rows of the minibatched plate 'N' but is outside"),
        (summed_inside, 4, "factor 'fit' in plate 'N' is one number for the whole minibatch"),
        (plate_in_scan, 2, "plate 'N' is inside `scan`"),
        (plate_in_scan, {"N": 2}, "plate 'N' is inside `scan`"),
        (declared_in_scan, None, "plate 'N' is inside `scan`"),
        (batch_norm, 4, "mutable site 'running'"),
        (the_first_rows, 4, "observed site 'y' is in plate 'N' but is the same for every row"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:20],
)
def test_a_model_that_cannot_be_minibatched_so(model, batch_size, message):
    with pytest.raises(ValueError, match=message):
        start(model, batch_size=batch_size)


def a_label_unindexed(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])
        numpyro.sample("label", dist.Normal(mu * y, 1), obs=y[rows])


def a_label_beside_too_much(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])
        numpyro.sample("label", dist.Normal(mu * y[rows], 1), obs=y)


def a_sum_unindexed(y):
    good(y)
    with numpyro.plate("N", N) as rows:
        numpyro.factor("fit", y[rows] + y)


@pytest.mark.parametrize("model", [a_label_unindexed, a_label_beside_too_much])
def test_a_failure_on_a_minibatch_names_its_site(model):
    with pytest.raises(ValueError, match="the model fails at site 'label' when plate 'N' is cut to 4 rows"):
        start(model)


def test_a_failure_between_sites_names_none():
    with pytest.raises(ValueError, match="the model fails when plate 'N' is cut to 4 rows"):
        start(a_sum_unindexed)


def test_a_column_beside_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"site 'y'.*shape \(4, 4\): dimension -2 also has 4 elements.*\(N, 1\)"):
        start(good, data=Y[:, None])
    start(two_axes, data=np.tile(Y[:, None], (1, 3)))  # an axis of another size, as NumPyro allows


@pytest.mark.parametrize(
    "data, what, remedy",
    [
        (Y.tolist(), "a list", r"np.asarray\(x\)\."),
        (Y.astype(object), "an array of dtype object", "np.asarray.x, float"),
        (np.array(["a"] * N), "an array of dtype <U1", "np.unique"),
        (np.datetime64("2024-01-01") + np.arange(N), "an array of dtype datetime64", "timedelta64.7, 'D'"),
        (pd.Series(Y), "a Series", r"np.asarray\(x\)\."),
        (pd.Series(["a"] * N, dtype="category"), "a Series", "np.unique"),
        (pd.DataFrame({"y": Y, "label": "a"}), "a DataFrame", "columns of numbers"),
        (scipy.sparse.csr_array(Y[:, None]), "a csr_array", "x.toarray"),
    ],
)
def test_data_that_are_no_array_of_numbers(data, what, remedy):
    with pytest.raises(ValueError, match=f"^argument 1 is {what}.* Pass .*{remedy}.*The failure was"):
        start(good, data=data)


def test_a_series_of_codes_that_no_row_indexes():
    def groups(codes):
        with numpyro.plate("groups", 3):
            a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("N", N) as rows:
            numpyro.sample("y", dist.Normal(a[codes], 1), obs=jnp.asarray(Y)[rows])

    with pytest.raises(ValueError, match=r"^argument 1 is a Series.* Pass np.asarray\(x\)\..*IndexError"):
        start(groups, pd.Series(np.arange(N) % 3))


class Loader:
    """A loader of batches, which is neither an array nor a generator."""

    def __iter__(self):
        return iter((Y[:6], Y[6:]))

    def __len__(self):
        return 2


class Rows:
    """A data set of single rows, as those of PyTorch."""

    def __getitem__(self, row):
        return Y[row], Y[row]

    def __len__(self):
        return N


def sized(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])


@pytest.mark.parametrize("model", [good, sized], ids=lambda model: model.__name__)
@pytest.mark.parametrize(
    "data, what",
    [
        ([Y[:6], Y[6:]], "a list of 2 batches"),
        ([(Y[:6], Y[:6]), (Y[6:], Y[6:])], "a list of 2 batches"),
        ((part for part in (Y[:6], Y[6:])), "a generator"),
        (Loader(), "a Loader"),
    ],
    ids=["list", "list of pairs", "generator", "loader"],
)
def test_batches_in_place_of_the_data(data, what, model):
    with pytest.raises(ValueError, match=f"^argument 1 is {what}, .* pass the whole data, as arrays.*OnDisk"):
        start(model, data=data)


def of_a_pair(data):
    _, y = data
    sized(y)


@pytest.mark.parametrize(
    "data, what",
    [
        ([(Y[:4], Y[:4])] * 3, "a list of 3 batches"),
        (Loader(), "a Loader"),
        (Rows(), "a Rows"),
    ],
    ids=["list of pairs", "loader", "data set"],
)
def test_batches_that_the_model_takes_apart(data, what):
    with pytest.raises(ValueError, match=f"^argument 1 is {what}, .* pass the whole data, as arrays.*OnDisk"):
        start(of_a_pair, data=data)


@pytest.mark.parametrize(
    "data, what",
    [
        ((Y.tolist(), Y.tolist()), r"argument 1\[0\] is a list, .* np.asarray"),
        ((Y, Loader()), r"argument 1\[1\] is a Loader, .*OnDisk"),
        ((Y, (part for part in (Y[:6], Y[6:]))), r"argument 1\[1\] is a generator, .*OnDisk"),
    ],
    ids=["lists", "loader", "generator"],
)
def test_data_in_a_tuple(data, what):
    with pytest.raises(ValueError, match=f"^{what}"):
        start(of_a_pair, data=data)


def test_a_package_that_the_model_needs():
    class NeedsAPackage(dist.Normal):
        def log_prob(self, value):
            raise ImportError("no such package")

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", N) as rows:
            numpyro.sample("y", NeedsAPackage(mu, 1), obs=y[rows])

    with pytest.raises(ImportError) as failed:
        start(model)
    assert "The model itself, not the kernel, needs a package that is not installed." in failed.value.__notes__
    assert "The model fails at site 'y'." in failed.value.__notes__


def test_a_prior_that_only_another_package_can_draw():
    """As a truncated Student-t; its density needs no other package."""

    class NotDrawn(dist.Normal):
        def sample(self, key, sample_shape=()):
            raise ImportError("no such package")

    def model(y):
        mu = numpyro.sample("mu", NotDrawn(0, 1))
        with numpyro.plate("N", N) as rows:
            numpyro.sample("y", dist.Normal(mu, 1), obs=y[rows])

    assert list(start(model).z) == ["mu"]


def test_a_full_plate_in_scan_is_fine():
    start(plate_in_scan, batch_size=None)


def test_a_minibatch_handed_in_as_data_is_explained():
    with pytest.raises(ValueError) as error:
        start(presliced, batch_size=None)
    notes = "".join(error.value.__notes__)
    assert "Pass the whole data" in notes and "{'N': 12}" in notes


@pytest.mark.parametrize("n", [0, -3, {"N": 0}])
def test_a_minibatch_of_no_rows(n):
    with pytest.raises(ValueError, match="at least one row"):
        SGLD(good, step_size=0.1, batch_size=n)


@pytest.mark.parametrize("n", [2.5, 4.0, True, "all", {"N": 2.0}])
def test_a_minibatch_that_is_no_number_of_rows(n):
    with pytest.raises(TypeError, match="must be an integer number of rows"):
        SGLD(good, step_size=0.1, batch_size=n)


def test_errors_come_before_anything_is_compiled(programs):
    y = jnp.asarray(Y)
    random.key(0)
    before = len(programs)
    with pytest.raises(ValueError, match="latent site 'b'"):
        SGLD(local_latent, step_size=0.1, batch_size=4).init(random.key_data(random.key(0)), 0, None, (y,), {})
    assert len(programs) - before <= 1  # the key above


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, "much", None])
def test_friction_and_diffusion(value):
    with pytest.raises(ValueError, match="friction=.*finite number, 0 or larger"):
        SGHMC(good, step_size=0.1, friction=value)
    for kernel in (SGNHT, MSGNHT):
        with pytest.raises(ValueError, match="diffusion=.*finite number, 0 or larger"):
            kernel(good, step_size=0.1, diffusion=value)


def test_zero_friction_and_diffusion_are_legal():
    assert SGHMC(good, step_size=0.1, friction=0).friction == 0.0
    assert MSGNHT(good, step_size=0.1, diffusion=0).diffusion == 0.0


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        ({"steps_per_sample": 0}, ValueError, "steps_per_sample=0 must be at least 1"),
        ({"steps_per_sample": 1.5}, TypeError, "steps_per_sample=1.5 must be an integer"),
        ({"gradient": Minibatch}, TypeError, "gradient=.*must be an instance"),
        ({"rows": "reshuffled"}, TypeError, "rows='reshuffled' must be an instance"),
        ({"step_size": 0.0}, ValueError, "step_size=0.0.*positive and finite"),
        ({"step_size": True}, TypeError, "step_size=True is neither"),
        ({"step_size": "1e-2"}, TypeError, "step_size='1e-2' is neither"),
        (
            {"step_size": Polynomial},
            TypeError,
            "must return h for a step index.*missing 2 required positional arguments",
        ),
        ({"friction": "1"}, ValueError, "friction='1'.*finite number"),
        ({"integrator": "aboba"}, ValueError, "no flow 'a'. A word is written in capitals"),
        ({"batch_size": {"N": None}}, TypeError, r"batch_size\['N'\]=None must be an integer number of rows\.$"),
        ({"step_size": lambda i: 0.1 if i < 5 else 0.01}, TypeError, "fails at a traced step index: TracerBool"),
        ({"step_size": lambda i: jnp.ones(3)}, ValueError, r"returns shape \(3,\); it must return one number"),
        ({"init_strategy": "median"}, TypeError, "init_strategy='median' must be a function"),
        ({"inverse_mass_matrix": -1.0}, ValueError, "inverse_mass_matrix must contain positive"),
        ({"inverse_mass_matrix": {"mu": np.nan}}, ValueError, r"inverse_mass_matrix\['mu'\] must contain positive"),
        ({"inverse_mass_matrix": np.ones(3)}, ValueError, "None, a scalar, or a dict"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_argument_is_judged_at_construction(kwargs, error, message):
    with pytest.raises(error, match=message):
        SGHMC(good, **{"step_size": 0.1} | kwargs)


def test_the_model_is_a_callable():
    with pytest.raises(TypeError, match="must be a NumPyro model"):
        SGLD("model", step_size=0.1)


@pytest.mark.parametrize(
    "inverse_mass, message",
    [
        ({"nu": 1.0}, "inverse_mass_matrix names 'nu', but the latent sites of the model are 'mu'"),
        ({}, "no entry for the latent site 'mu'"),
        ({"mu": np.ones(3)}, r"inverse_mass_matrix\['mu'\] has shape \(3,\)"),
    ],
)
def test_an_inverse_mass_that_is_not_like_z(inverse_mass, message):
    with pytest.raises(ValueError, match=message):
        start(good, kernel=SGHMC, inverse_mass_matrix=inverse_mass)


@pytest.mark.parametrize(
    "init_params, message",
    [
        ({"nu": 0.0}, "init_params names 'nu', but the latent sites of the model are 'mu'"),
        ({"mu": np.zeros(3)}, r"init_params\['mu'\] has shape \(3,\)"),
        (np.zeros(3), "must be a dict of unconstrained values"),
    ],
)
def test_init_params_that_do_not_fit(init_params, message):
    with pytest.raises(ValueError, match=message):
        start(good, init_params=init_params)


@pytest.mark.parametrize("chain_method", ["vectorized", "sequential"])
def test_a_start_for_one_chain_given_to_two(chain_method):
    kernel = SGLD(vector, step_size=1e-3, batch_size=10)
    mcmc = MCMC(kernel, num_warmup=1, num_samples=1, num_chains=2, chain_method=chain_method, progress_bar=False)
    with pytest.raises(ValueError, match=r"init_params\['w'\] has shape \(\) for each chain.*jnp.stack"):
        mcmc.run(random.key(0), Y, init_params={"w": np.zeros(2)})


def test_a_list_may_be_a_start():
    assert start(good, init_params={"mu": np.float64(1)}).z["mu"] == 1
    assert start(vector, init_params={"w": [0.0, 1.0]}).z["w"].tolist() == [0.0, 1.0]


def test_a_centre_that_is_not_finite():
    with pytest.raises(ValueError, match=r"ControlVariate\(center\)\['mu'\] must contain finite numbers"):
        start(good, gradient=ControlVariate({"mu": np.nan}))


def test_a_state_of_another_model():
    state = start(good)
    with pytest.raises(ValueError, match=r"unconstrained shapes {'mu': \(\)}, but the model has {'w': \(2,\)}"):
        SGLD(vector, step_size=1e-2, batch_size=4).sample(state, (Y,), {})


def test_what_is_no_state_run_or_key():
    kernel = SGLD(good, step_size=1e-2, batch_size=4)
    for wrong in (None, {"mu": Y}):
        with pytest.raises(TypeError, match="must be a state of the kernel, not .*: give mcmc.last_state"):
            gradient_noise(kernel, wrong, Y)
    for function in (weighted_summary, settings, lambda wrong: resample(wrong, random.key(0))):
        with pytest.raises(TypeError, match="needs a numpyro.infer.MCMC that has run, not SGLD"):
            function(kernel)
    mcmc = MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match="no draws yet"):
        weighted_summary(mcmc)
    tempered = MCMC(Tempered(kernel, [1.0, 2.0]), num_warmup=1, num_samples=1, progress_bar=False)
    tempered.run(random.key(0), Y)
    with pytest.raises(TypeError, match="not TemperedState: .* give mcmc.sampler.kernel and mcmc.last_state.cold"):
        gradient_noise(tempered.sampler, tempered.last_state, Y)
    with pytest.raises(
        TypeError, match="kernel= must be a kernel of numpyro_sgmcmc, such as mcmc.sampler, not Tempered"
    ):
        gradient_noise(tempered.sampler, tempered.last_state.cold, Y)
    assert gradient_noise(tempered.sampler.kernel, tempered.last_state.cold, Y).variance["mu"] > 0
    with pytest.raises(ValueError, match="whose warm-up chose the step size, not Tempered"):
        settings(tempered)
    mcmc.run(random.key(0), Y)
    assert np.isnan(weighted_summary(mcmc)["mu"]["ess"]) and np.isfinite(weighted_summary(mcmc)["mu"]["mean"])
    with pytest.raises(TypeError, match="the second argument is the random key: resample"):
        resample(mcmc, 3)
    with pytest.raises(TypeError, match="the second argument is the random key"):
        find_mode(good, Y)
    with pytest.raises(TypeError, match="must be a NumPyro model"):
        find_mode(kernel, random.key(0), Y)


def test_phases_are_sequences():
    with pytest.raises(TypeError, match="Piecewise: give a sequence"):
        Piecewise(10, (1e-2, 1e-3))


def test_an_integer_start_is_cast():
    assert start(good, init_params={"mu": 1}).z["mu"].dtype == jnp.float32


@pytest.mark.parametrize("name", ["friction", "step_size", "batch_size", "integrator", "steps_per_sample", "dynamics"])
def test_kernels_are_frozen(name):
    with pytest.raises(AttributeError, match=f"SGHMC.{name} is frozen"):
        setattr(SGHMC(good, step_size=0.1), name, 1)


# -- energies that are not finite ----------------------------------------------------------------------------------


def test_data_that_are_not_finite_are_named_by_site():
    with pytest.raises(ValueError, match="the energy of site 'y' is not finite"):
        start(good, data=np.full(N, np.nan))


def test_a_prior_that_is_not_finite_is_named_by_site():
    with pytest.raises(ValueError, match="energy at the start is not finite at site 'mu'"):
        start(good, init_params={"mu": np.inf}, batch_size=None)


def without_a_gradient(y):
    """The derivative of the square root is infinite at 0; jnp.where multiplies it by 0."""
    mu, tau = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("mu", "tau"))
    with numpyro.plate("N", len(y)) as rows:
        numpyro.sample("y", dist.Normal(tau + jnp.where(mu > 9, jnp.sqrt(0 * mu), 0), 1), obs=y[rows])


@pytest.mark.parametrize("options", [{}, {"step_size": 1e-3, "init_strategy": init_to_value(values={"mu": 0.1})}])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_gradient_that_is_not_finite_at_the_start(options, chains):
    key = random.split(random.key(0), chains) if chains > 1 else random.key(0)
    with pytest.raises(ValueError, match="^the gradient with respect to site 'mu' is not finite at the start"):
        SGLD(without_a_gradient, **options).init(key, 20, None, (Y,), {})


def run(kernel, data=Y, num_samples=60, **kwargs):
    mcmc = MCMC(kernel, num_warmup=0, num_samples=num_samples, progress_bar=False, **kwargs)
    mcmc.run(random.key(1), data)
    jax.effects_barrier()
    return mcmc


def test_a_bad_row_met_later_is_a_refused_step():
    y = Y.copy()
    kernel = SGLD(good, step_size=1e-3, batch_size=1, init_strategy=init_to_value(values={"mu": 0.0}))
    state = kernel.init(random.key(1), 0, None, (Y,), {})
    first = kernel.rows(state.rows_state.rng_key, jnp.array(0), N, 1)
    y[(int(first[0]) + 1) % N] = 1e30  # any row but that of the first batch; its energy is infinite
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one refused step in 12 is no chain that stands still
        mcmc = run(kernel, y, num_samples=10 * N - 1)  # ten epochs, but for the batch that init has used
    diverging = mcmc.get_extra_fields()["diverging"]
    assert int(diverging.sum()) == 10  # once in each epoch
    draws = mcmc.get_samples()["mu"]
    assert jnp.isfinite(draws).all()
    refused = np.flatnonzero(diverging)
    refused = refused[refused >= 2]
    np.testing.assert_array_equal(draws[refused], draws[refused - 2])  # back to where the energy was last known


@pytest.mark.parametrize("kernel", [SGLD, SGHMC, MSGNHT])
def test_an_exploding_chain_keeps_its_last_finite_state_and_is_reported_once(kernel):
    with pytest.warns(UserWarning, match="refused every step, .*smaller step_size than") as caught:
        mcmc = run(kernel(good, step_size=1e30, batch_size=4, steps_per_sample=20))
    assert len([w for w in caught if "refused" in str(w.message)]) == 1
    assert mcmc.get_extra_fields()["diverging"].all()
    state = mcmc.last_state
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((state.z, state.momentum, state.thermostat)))
    assert int(state.i) == 60 * 20 and int(state.refused) > 500  # SGLD is refused at every second step


@pytest.mark.parametrize("chain_method", ["vectorized", jax.vmap])
@pytest.mark.every(2)
def test_chains_that_stand_still_are_reported_together(chain_method):
    kernel = SGHMC(good, step_size=1e30, batch_size=4, steps_per_sample=20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(kernel, num_chains=3, chain_method=chain_method)
    assert [str(w.message)[21:40] for w in caught if "refused" in str(w.message)] == ["3 of 3 chains (0, 1"]


def test_the_state_counts_refusals_under_a_map_of_the_users_own():
    """Three chains at each of two step sizes, one of them absurd."""

    def make(h):
        return SGHMC(good, step_size=lambda i: h, batch_size=4, steps_per_sample=200)

    state = make(1e-3).init(random.split(random.key(0), 3), 0, None, (Y,), {})
    refused = jax.vmap(lambda h: make(h).sample(state, (Y,), {}).refused)(jnp.array([1e-3, 1e30]))
    assert (refused[0] == 0).all() and (refused[1] > 100).all()


@pytest.mark.parametrize("chains", [{}, {"num_chains": 2, "chain_method": "vectorized"}])
def test_an_extra_field_that_does_not_exist(chains):
    mcmc = MCMC(SGLD(good, step_size=1e-3, batch_size=4), num_warmup=1, num_samples=2, progress_bar=False, **chains)
    with pytest.raises(KeyError, match="extra_fields='potential_energy': a state has the fields i, z, .*; potential_e"):
        mcmc.run(random.key(0), Y, extra_fields=("potential_energy",))


def test_what_jax_says_of_an_index_is_explained():
    codes = np.arange(12) % 3
    with pytest.raises(TypeError) as failed:
        SGLD(lambda group: index_by(group.astype(float)), step_size=1e-3, batch_size=4).potential((codes,), {})
    assert any("Pass codes as integers" in line for line in failed.value.__notes__)
    with pytest.raises(ValueError, match="boolean array.* numpyro.handlers.mask"):
        SGLD(lambda group: index_by(group, keep=group > 0), step_size=1e-3, batch_size=4).potential((codes,), {})


def index_by(group, keep=None):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("N", len(group)) as rows:
        if keep is not None:
            rows = rows[jnp.asarray(keep)[rows]]
        numpyro.sample("y", dist.Normal(effect[group[rows]], 1), obs=jnp.zeros(len(rows)))
