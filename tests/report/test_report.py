"""What is wrong with a run is told at its end, once, under every chain method, and costs a compiled call nothing."""

from dataclasses import replace
import pickle
from typing import Any, NamedTuple
import warnings
from xml.etree import ElementTree

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, Gibbs
import pytest

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, WithoutReplacement, settings, summary
from numpyro_sgmcmc.engine import progress_bar
from numpyro_sgmcmc.engine.progress_bar import Bar
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.report_hook import report
from numpyro_sgmcmc.report.run_scores import RunNumbers, ScoreAverages
from numpyro_sgmcmc.report.statistics import beyond_chance, still_falling, sure_error
from numpyro_sgmcmc.types import Plate
from numpyro_sgmcmc.utils import html

METHODS = {"parallel": "parallel", "vectorized": "vectorized", "jax.vmap": jax.vmap, "sequential": "sequential"}
N = 2000
X = np.random.default_rng(0).normal(size=(N, 2))
Y = (np.random.default_rng(1).random(N) < 1 / (1 + np.exp(-X @ np.array([1.0, -1.0])))).astype(float)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])


RIGHT = {"step_size": 1e-2, "friction": 20.0}  # the frequency is about 20


def make(model=logistic, method="vectorized", num_chains=2, num_samples=50, progress_bar=False, **options):
    kernel = SGHMC(model, **RIGHT | {"batch_size": 500, "steps_per_sample": 20} | options)
    method = METHODS.get(method, method)
    return MCMC(
        kernel,
        num_warmup=5,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=method,
        progress_bar=progress_bar,
    )


def told(run):
    """Messages of the kernel, without those of NumPyro and JAX."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    ours = ("refused every step", "kinetic temperature", "other data")
    found = [w for w in caught if any(words in str(w.message) for words in ours)]
    assert all(w.filename == __file__ for w in found), "a warning points to the user's line"
    return [str(w.message) for w in found]


methods = pytest.mark.parametrize("method", METHODS)


@methods
@pytest.mark.every(4)
def test_a_step_beyond_the_stability_limit(method):
    """h omega = 9, where nothing diverges since the gradient of a logistic model is bounded."""
    mcmc = make(method=method, step_size=9 / 20)
    (message,) = told(lambda: mcmc.run(random.key(0), X, Y))
    assert "kinetic temperature" in message and "step_size" in message
    assert not mcmc.get_extra_fields()["diverging"].any()


def test_noise_that_the_friction_cannot_take_up():
    """The temperature is about 16, and single draws are as cold as those of a right run."""
    mcmc = make(batch_size=10, rows=WithoutReplacement(), num_samples=300)
    (message,) = told(lambda: mcmc.run(random.key(0), X, Y))
    assert "kinetic temperature of the run" in message
    assert mcmc.get_extra_fields()["monitor"].temperature.min() < 2


@methods
def test_data_that_are_not_finite(method):
    """The site is named, and the argument too where the position of a chain is known before the map over chains."""
    with pytest.raises(ValueError, match="energy (of site 'y' is not finite|at the start is not finite at site 'y')"):
        make(method=method).run(random.key(0), X, np.full(N, np.nan))


@methods
@pytest.mark.every(4)
def test_a_right_run_says_nothing_and_its_resume_on_rows_that_are_not_finite_does(method):
    """Nothing is wrong at the start, and then every step is refused; a resume with other data says that as well."""
    mcmc = make(method=method)
    assert told(lambda: mcmc.run(random.key(0), X, Y)) == []
    mcmc.post_warmup_state = mcmc.last_state
    before = jax.tree.map(np.asarray, mcmc.last_state.z)
    messages = told(lambda: mcmc.run(mcmc.last_state.rng_key, X, np.where(np.arange(N) % 5, np.nan, Y)))
    (message,) = messages
    assert "2 of 2 chains (0, 1) have refused every step" in message and "other data" in message
    assert (np.asarray(mcmc.last_state.z["w"]) == before["w"]).all()


@pytest.mark.parametrize(
    "num_chains, num_samples, progress_bar", [(1, 50, True), (1, 50, False), (8, 8, True), (8, 8, False), (2, 50, True)]
)
@pytest.mark.slow
def test_with_the_bar_and_without_and_as_many_draws_as_chains(progress_bar, num_chains, num_samples):
    mcmc = make(num_chains=num_chains, num_samples=num_samples, progress_bar=progress_bar, step_size=9 / 20)
    (message,) = told(lambda: mcmc.run(random.key(0), X, Y))
    assert "kinetic temperature" in message
    monitor = mcmc.get_extra_fields(group_by_chain=True)["monitor"]
    assert monitor.refused.shape == (num_chains, num_samples)
    assert told(lambda: jax.tree.map(np.asarray, mcmc.get_extra_fields(group_by_chain=True))) == []


def counts(x, k):
    b = numpyro.sample("b", dist.Normal(0, 5).expand([3]).to_event(1))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("k", dist.Poisson(jnp.exp(x[rows] @ b)), obs=k[rows])


def test_a_chain_that_goes_back_and_forth():
    """Every second step of SGLD begins where the energy is known to be finite, and its success says nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    truth = np.array([1.0, -1.0, 0.5])
    kernel = SGLD(counts, step_size=3e-3, batch_size=20, steps_per_sample=4)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=500, progress_bar=False)
    k = rng.poisson(np.exp(x @ truth)).astype(float)
    (message,) = told(lambda: mcmc.run(random.key(0), x, k, init_params={"b": jnp.asarray(truth, float)}))
    assert "refused every step" in message
    assert mcmc.get_extra_fields()["monitor"].refused.max() >= 100


@pytest.mark.slow
def test_a_short_run_is_not_judged_by_its_temperature():
    """The momentum has hardly moved in these draws, so its mean square says nothing."""
    x = 3 + np.random.default_rng(0).normal(size=1000)
    kernel = SGHMC(models.gaussian, step_size=1e-4, friction=30.0, batch_size=100)
    mcmc = MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
    found = []
    for seed in range(8):
        found += told(lambda seed=seed: mcmc.run(random.key(seed), x, init_params={"mu": jnp.asarray(3.0)}))
    assert found == []


@pytest.fixture(scope="module")
def last_state():
    """Of a right run."""
    mcmc = make()
    mcmc.run(random.key(0), X, Y)
    return mcmc.last_state


@pytest.fixture
def mcmc(last_state):
    """What goes on from it."""
    mcmc = make()
    mcmc.post_warmup_state = last_state
    return mcmc


def test_an_argument_may_be_given_by_name_on_a_resume(mcmc):
    assert told(lambda: mcmc.run(mcmc.post_warmup_state.rng_key, X, y=Y)) == []


def test_a_warm_up_alone_says_nothing():
    assert told(lambda: make(step_size=9 / 20).warmup(random.key(0), X, Y)) == []


def test_an_overdamped_chain_has_no_temperature():
    kernel = SGLD(logistic, step_size=1e-4, batch_size=500)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=20, progress_bar=False)
    assert told(lambda: mcmc.run(random.key(0), X, Y)) == []


def test_a_resume_with_the_same_data_says_nothing(mcmc):
    mcmc.post_warmup_state = pickle.loads(pickle.dumps(mcmc.post_warmup_state))
    assert told(lambda: mcmc.run(mcmc.post_warmup_state.rng_key, X.copy(), jnp.asarray(Y, float))) == []


@pytest.mark.parametrize("changed", [lambda x, y: (x[:-1], y[:-1]), lambda x, y: (x, 1 - y), lambda x, y: (-x, y)])
def test_a_resume_with_other_data(changed, mcmc):
    (message,) = told(lambda: mcmc.run(mcmc.post_warmup_state.rng_key, *changed(X, Y)))
    assert "resumed with other data" in message


def test_the_siblings_of_a_block_are_no_data():
    mcmc = MCMC(
        Gibbs([(SGHMC(two_means, step_size=1e-2, batch_size=5), ["a"]), (SGLD(two_means, step_size=1e-3), ["b"])]),
        num_warmup=1,
        num_samples=3,
        progress_bar=False,
    )
    mcmc.run(random.key(0), jnp.arange(10.0))
    assert [int(block.marks[3]) for block in mcmc.last_state.block_states] == [0, 0]


def two_means(x):
    a, b = (numpyro.sample(name, dist.Normal(0, 1)) for name in "ab")
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.Normal(a + b, 1), obs=x[rows])


class State(NamedTuple):
    i: Any
    marks: Any
    refused: Any


class Found(NamedTuple):
    steps_per_sample: Any


class TunedState(NamedTuple):
    i: Any
    marks: Any
    refused: Any
    settings: Any


def test_the_bar_tells_of_the_state_before(monkeypatch):
    clock = iter(range(100))  # a second from look to look
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: next(clock))
    at = lambda steps, *refused: State(jnp.uint32([steps] * 2), jnp.zeros((2, 4), jnp.uint32), jnp.array(refused))  # noqa: E731
    bar, stuck, well = Bar(), at(0, 100, 3), at(0, 0, 0)
    jax.block_until_ready((stuck, well))
    assert [bar(x) for x in (well, stuck, stuck, well, well)] == ["", "", *["1 of 2 chains stand still"] * 2, ""]
    pickle.loads(pickle.dumps(bar))


def test_the_bar_tells_of_rows(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: clock[0])

    def shown(bar, steps, wraps=0, seconds=1.0):
        clock[0] += seconds
        state = State(jnp.uint32(steps), jnp.uint32([wraps, 0, 0, 0]), jnp.int32(0))
        return bar(jax.block_until_ready(state))

    bar = Bar()
    bar.begin({"a": Plate(10, 10), "rows": Plate(1000, 100)})
    assert [shown(bar, steps) for steps in (0, 20, 50)] == ["", "", "2,000 rows, 2 passes, 2,000 rows/s"]
    assert shown(bar, 90, seconds=0.1) == "2,000 rows, 2 passes, 2,000 rows/s"  # too soon
    assert shown(bar, 0, seconds=2.0) == "9,000 rows, 9 passes, 3,330 rows/s"  # 70 steps in 2.1 s
    assert shown(bar, 10) == ""  # another chain
    shown(bar, 5, wraps=1)
    assert shown(bar, 6, wraps=1) == f"{(2**32 + 5) * 100:.3g} rows, {(2**32 + 5) / 10:.3g} passes, 4.29e+11 rows/s"
    rest = jnp.zeros(4, jnp.uint32), jnp.int32(0), Found(jnp.int32(7))
    tuned = [TunedState(jnp.uint32(i), *rest) for i in (0, 20, 40)]
    bar.begin({}, "searching")  # a model without plates, and a kernel that has chosen its steps
    assert bar(jax.block_until_ready(tuned[0])) == "searching"
    for state in tuned:
        clock[0] += 1
        text = bar(jax.block_until_ready(state))
    assert text == "7 steps per draw"
    bar = Bar()
    bar.begin({})
    assert [shown(bar, steps) for steps in (0, 20, 50)] == [""] * 3


def test_a_kernel_tells_its_bar_of_the_plate():
    state = make().sampler.init(random.key(0), 0, None, (X, Y), {})
    sampler = make().sampler
    assert sampler.get_diagnostics_str(state) == ""
    sampler.init(random.key(0), 0, None, (X, Y), {})
    assert sampler.bar._plate == Plate(len(X), sampler.batch_size)


@pytest.mark.parametrize("kernel_class", [SGLD, SGHMC, MSGNHT])
def test_a_compiled_transition_calls_no_python(kernel_class):
    """An effect would take JAX's slow path at every call."""
    kernel = kernel_class(models.gaussian, step_size=1e-3, batch_size=models.B, steps_per_sample=5)
    state = jax.eval_shape(lambda: kernel.init(random.key(0), 0, {"mu": 0.0}, (models.ROWS,), {}))
    jaxpr = jax.make_jaxpr(lambda state: kernel.sample(state, (models.ROWS,), {}))(state)
    assert not jaxpr.effects
    assert "callback" not in str(jaxpr)


class Untold(SGHMC):
    """A kernel that collects nothing to tell of."""

    default_fields = ("z", "diverging", "step_size")


def test_what_is_told_takes_no_compilation(programs):
    """Programs that the compiler is handed in a run, of a process that has run one before."""
    counts = {}
    for kernel_class in (Untold, SGHMC, Untold, SGHMC):
        kernel = kernel_class(models.gaussian, step_size=1e-3, batch_size=models.B, steps_per_sample=5)
        mcmc = MCMC(kernel, num_warmup=5, num_samples=20, num_chains=2, chain_method="vectorized", progress_bar=False)
        programs.clear()
        mcmc.run(random.key(0), models.ROWS)
        mcmc.get_extra_fields(group_by_chain=True)
        counts[kernel_class] = len(programs)
    assert 0 < counts[SGHMC] == counts[Untold]


def told_of_doubts(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [
        str(w.message) for w in caught if str(w.message).startswith(("the draws are doubtful", "the draws are wrong"))
    ]


def at(w, num_chains=2):
    return {"w": jnp.broadcast_to(jnp.asarray(w, jnp.float32), (num_chains, 2))}


NEAR = [1.0, -1.0]


@pytest.mark.optimised
@pytest.mark.slow
def test_a_temperature_that_is_a_little_off():
    """By minibatch noise, h s^2 / (2 D): too little for a factor of 2, and certain."""
    options = {"batch_size": 100, "rows": WithoutReplacement(), "num_samples": 2000, "step_size": 4e-3}
    mcmc = make(**options)
    (message,) = told_of_doubts(lambda: mcmc.run(random.key(0), X, Y, init_params=at(NEAR)))
    assert "kinetic temperature is 1." in message and "a smaller step_size" in message
    quiet = make(**options | {"batch_size": 1500})
    assert told_of_doubts(lambda: quiet.run(random.key(0), X, Y, init_params=at(NEAR))) == []


@pytest.mark.optimised
@pytest.mark.parametrize("inverse_mass, batched", [(None, True), (None, False), (2.0, True)])
def test_the_squared_step_of_langevin_dynamics(inverse_mass, batched):
    """1 + h E[g^2] / 2, where the variance of the draws is 1 / (1 - h / 2) of the right one: at h U'' = .5, 4 / 3."""
    precision = models.PRIOR_SD**-2 + models.N
    options = {"steps_per_sample": 5, "inverse_mass_matrix": inverse_mass}
    kernel = SGLD(models.gaussian, step_size=0.5 / precision, **options)
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=2000,
        num_chains=4 if batched else 1,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), models.ROWS)
    jump = np.asarray(mcmc.get_extra_fields()["monitor"].jump)
    if inverse_mass is not None:
        assert not jump.any()
        return
    assert abs(jump.mean() - 4 / 3) < 4 * (4 / 3) * np.sqrt(2 / jump.size)


@pytest.mark.optimised
def test_langevin_dynamics_of_noisy_minibatches():
    """h s^2 / 2 is about 4, and nothing else tells: there is no momentum. Ten times smaller the rows undo it."""
    told_by = {}
    for h in (2e-3, 1e-4):
        kernel = SGLD(logistic, step_size=h, batch_size=100, steps_per_sample=round(0.02 / h))
        mcmc = MCMC(kernel, num_warmup=20, num_samples=300, num_chains=2, chain_method="vectorized", progress_bar=False)
        told_by[h] = told_of_doubts(lambda mcmc=mcmc: mcmc.run(random.key(0), X, Y, init_params=at(NEAR)))
    (message,) = told_by[2e-3]
    assert "squared steps" in message and "a smaller step_size" in message
    assert told_by[1e-4] == []


def test_temperatures_beyond_chance():
    """Draws that are all the same say the least; a thousandth of them may be taken for wrong, and none was."""
    rng = np.random.default_rng(0)
    for chains, d in ((1, 1), (4, 1), (4, 10)):
        for T in rng.chisquare(d, (4000, chains)) / d:
            assert not beyond_chance(np.repeat(T[:, None], 50, 1), d, 0.1)
    decay = 1 + 300 * np.exp(-np.arange(500) / 50)  # on the way from a distant start
    assert sure_error(decay[None]) == np.inf and beyond_chance(decay[None], 4, 0.1)
    assert beyond_chance(np.full((4, 9), 0.05), 20, 0.1) and not beyond_chance(np.full((1, 9), 0.05), 1, 0.1)
    assert beyond_chance(np.full((1, 9), np.inf), 1, 0.1)


@pytest.mark.optimised
def test_a_temperature_that_falls_all_the_time():
    """From a start 200 sds away by small steps: no standard error is known, and the mean is certain all the same."""
    kernel = SGHMC(logistic, step_size=5e-4, friction=5.0, steps_per_sample=10)
    mcmc = MCMC(kernel, num_warmup=2, num_samples=60, num_chains=4, chain_method="vectorized", progress_bar=False)
    (message,) = told_of_doubts(lambda: mcmc.run(random.key(0), X, Y, init_params=at([9.0, -9.0], 4)))
    assert "kinetic temperature" in message and "num_warmup" in message


@pytest.mark.optimised
@methods
@pytest.mark.every(4)
def test_chains_that_never_mixed(method):
    """Of a posterior with two modes, a chain in each."""
    kernel = SGHMC(two_modes, step_size=0.1, friction=1.0, steps_per_sample=10)
    mcmc = MCMC(
        kernel,
        num_warmup=10,
        num_samples=200,
        num_chains=2,
        chain_method=METHODS[method],
        progress_bar=False,
    )
    (message,) = told_of_doubts(lambda: mcmc.run(random.key(0), init_params={"z": jnp.array([-20.0, 20.0])}))
    assert "do not mix" in message and "num_warmup" in message
    assert told_of_doubts(lambda: mcmc.run(random.key(0), init_params={"z": jnp.array([20.0, 20.0])})) == []


@pytest.mark.optimised
def test_chains_that_are_tuned_one_by_one_and_never_mixed():
    """Each has coordinates of its own, around 0, in which they cannot be told apart."""
    mcmc = MCMC(
        SGHMC(two_modes), num_warmup=40, num_samples=100, num_chains=2, chain_method="sequential", progress_bar=False
    )
    (message,) = told_of_doubts(lambda: mcmc.run(random.key(0), init_params={"z": jnp.array([-20.0, 20.0])}))
    assert "do not mix" in message


def two_modes():
    mixture = dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(jnp.array([-20.0, 20.0]), 1.0))
    numpyro.sample("z", mixture)


@pytest.mark.optimised
def test_a_start_far_from_the_mode():
    kernel = SGLD(logistic, step_size=3e-5, batch_size=500)
    mcmc = MCMC(kernel, num_warmup=5, num_samples=2000, progress_bar=False)
    (message,) = told_of_doubts(lambda: mcmc.run(random.key(0), X, Y, init_params={"w": jnp.array([-6.0, 6.0])}))
    assert "still falling" in message and "num_warmup" in message
    assert told_of_doubts(lambda: mcmc.run(random.key(0), X, Y, init_params={"w": jnp.array(NEAR)})) == []


def test_a_first_draw_that_is_far_away():
    """As of a start 50 sds away that is forgotten within three draws; and a row that is seen in one draw of fifty."""
    rng = np.random.default_rng(0)
    energy = rng.normal(size=(4, 500))
    assert not still_falling(energy)
    assert still_falling(energy + 50 * np.exp(-np.arange(500.0)))
    rare = energy + 50 * (np.arange(500) % 50 == 0)
    assert not still_falling(rare)


@pytest.mark.slow
def test_an_inflation_that_the_warm_up_predicts():
    """What the monitor of a tuned state says, and what is made of it."""
    mcmc = make(step_size=None, friction=1.0, steps_per_sample=None, num_samples=10)
    mcmc.run(random.key(0), X, Y)
    monitor = mcmc.get_extra_fields(group_by_chain=True)["monitor"]
    assert (np.asarray(monitor.inflation) == np.asarray(mcmc.last_state.settings.predicted_inflation)).all()
    averages = mcmc.last_state.averages
    assert told_of_doubts(lambda: report(monitor, averages, 1)) == []
    (message,) = told_of_doubts(lambda: report(monitor._replace(inflation=0 * monitor.energy + 0.2), averages, 1))
    assert "by 20%" in message and "batch_size" in message


@pytest.mark.parametrize("num_steps, advice", [(0.0, "a smaller step_size"), (4.0, "a larger num_warmup")])
def test_the_surest_signs_come_first(num_steps, advice):
    """All signs in one warning, and no advice to change a step size that the warm-up has chosen."""
    zeros = np.zeros((2, 400))
    monitor = Monitor(
        (),
        refused=(np.arange(400) % 4 > 0) + zeros,
        diverging=zeros > 0,
        temperature=1.66 + 0.1 * np.random.default_rng(0).normal(size=zeros.shape),
        step_size=zeros + 0.3,
        data_changed=zeros > 0,
        **dict.fromkeys(["energy", "place", "jump", "passes", "share", "virial", "r_hat", *RunNumbers._fields], zeros),
        num_steps=zeros + num_steps,
        noise=zeros + 0.1,
        inflation=zeros + 0.2,
        gradient=zeros + 9,
    )
    (message,) = told_of_doubts(lambda: report(monitor, ScoreAverages((("z", 3),)), 1))
    signs = "75.0% end with one", "temperature is 1.6", "by 20%", "E[dU] is 9 standard errors"
    places = [message.index(sign) for sign in signs]
    assert places == sorted(places) and advice in message
    assert ("smaller step_size" in message) == (num_steps == 0)


@pytest.mark.optimised
@pytest.mark.parametrize("runs", [4, 20])
@pytest.mark.every(2)
def test_right_runs_end_without_a_warning(runs):
    """Two chains a run, each with keys of its own; the false alarms of any of the lines would add up."""
    mcmc = make(num_samples=300, batch_size=1000)
    found = []
    for seed in range(runs):
        found += told_of_doubts(lambda seed=seed: mcmc.run(random.key(seed), X, Y, init_params=at(NEAR)))
    assert found == []


@pytest.fixture(scope="module")
def chosen():
    """A right run of a kernel that has chosen its settings."""
    kernel = SGHMC(models.gaussian, batch_size=models.B)
    mcmc = MCMC(kernel, num_warmup=400, num_samples=200, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(0), models.ROWS)
    return mcmc


def hot(monitor):
    """As of eight schools in the centred form, whose chains stood at 1e11."""
    return {"temperature": 4.4 * monitor.temperature}


WRONG = {
    "hot": (hot, "wrong", "the kinetic temperature is"),
    "not finite": (
        lambda m: {"temperature": np.full_like(m.temperature, np.inf)},
        "wrong",
        "temperature of the run is not finite",
    ),
    "stuck": (lambda m: {"refused": np.full_like(m.refused, 200)}, "wrong", "have refused every step"),
    "refused": (lambda m: {"refused": 0 * m.refused + (np.arange(200) % 4 > 0)}, "wrong", "75.0% end with one"),
    "seldom refused": (lambda m: {"diverging": m.diverging | (np.arange(200) % 10 == 0)}, "doubtful", "10.0% of the"),
    "apart": (lambda m: {"place": m.place + 100 * np.arange(2)[:, None]}, "wrong", "do not mix"),
    "falls": (lambda m: {"energy": m.energy + 1e5 * np.exp(-np.arange(200.0))}, "doubtful", "still falling"),
    "failed": (lambda m: {"virial": np.full_like(m.virial, 20.0)}, "doubtful", "E[(z - m) dU] is 20 standard"),
    "no scores": (lambda m: {"gradient": np.full_like(m.gradient, np.nan)}, "doubtful", "E[dU] is not a number"),
    "noisy": (lambda m: {"inflation": np.full_like(m.inflation, np.nan)}, "wrong", "more than doubles a variance"),
    "other data": (lambda m: {"data_changed": m.data_changed | True}, "doubtful", "other data"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_no_function_calls_right_what_another_calls_wrong(fault, chosen, monkeypatch):
    change, verdict, words = WRONG[fault]
    states, right = chosen._states, chosen._states["monitor"]
    assert settings(chosen)["verdict"] == "right" and summary(chosen).verdict == "right", str(summary(chosen))
    changed = change(right)
    monkeypatch.setattr(chosen, "_states", states | {"monitor": right._replace(**changed)})
    state = chosen.last_state
    if changed.keys() <= {"gradient", "virial"}:
        scores = state.settings.scores._replace(**{name: jnp.asarray(x[0, -1]) for name, x in changed.items()})
        monkeypatch.setattr(chosen, "_last_state", state._replace(settings=replace(state.settings, scores=scores)))
    assert settings(chosen)["verdict"] == summary(chosen).verdict == verdict, str(summary(chosen))
    told = told_of_doubts(lambda: report(chosen._states["monitor"], chosen.last_state.averages, 2))
    assert [message.startswith(f"the draws are {verdict}: ") and words in message for message in told] == [True] * bool(
        words
    )


def test_settings_in_a_notebook(chosen):
    table = ElementTree.fromstring(settings(chosen)._repr_html_())
    shown = {row[0].text: row[1].text for row in table.iter("tr")}
    assert shown["steps_per_sample"] == "4" and shown["verdict"] == "right" and shown.keys() == settings(chosen).keys()
    assert shown["coordinates"].startswith("Coordinates: center ") and max(map(len, shown.values())) <= html.LENGTH


def test_settings_of_a_warm_up_alone():
    mcmc = MCMC(SGHMC(models.gaussian, batch_size=models.B), num_warmup=40, num_samples=20, progress_bar=False)
    mcmc.warmup(random.key(0), models.ROWS)
    assert settings(mcmc)["verdict"] == "unchecked"
