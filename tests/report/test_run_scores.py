"""The identities of the score at the draws of a run."""

from dataclasses import replace
import warnings

import jax
from jax import random
import jax.numpy as jnp
import models
import numpy as np
from numpyro.infer import MCMC
import pytest
from scipy.stats import norm

from numpyro_sgmcmc import SGHMC, SGLD, Minibatch, Polynomial, WithoutReplacement, settings, summary
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.report_hook import report
from numpyro_sgmcmc.report.run_scores import FEW, RunNumbers, RunScores, ScoreAverages
from numpyro_sgmcmc.report.run_verdict import Power, RunVerdict
from numpyro_sgmcmc.utils.significance import FALSE_ALARMS

LAYOUT = ScoreAverages((("mu", 1), ("theta", 20)), frozenset(["theta"]))
D = LAYOUT.coordinates


def scores_of(z, g):
    """Those of draws and gradients of shape ``(draws, chains, d)``, whose covariance is the identity."""

    def add(scores, draw):
        return scores.add(LAYOUT, *draw, jnp.ones(D))._replace(draws=scores.draws + 1), None

    start = RunScores.zeros(LAYOUT, z.shape[1], z.dtype, learns=False)
    return jax.lax.scan(add, start, (z, g))[0]


@jax.jit
def seen(z, g):
    return RunNumbers(*scores_of(z, g).numbers)


def exact(key, runs=(), draws=250):
    """Draws of N(0, I) and their gradients with the noise of minibatches."""
    key_z, key_noise = random.split(key)
    z = random.normal(key_z, (*runs, draws, 4, D))
    return z, z + 0.5 * random.normal(key_noise, z.shape)


def verdict(numbers):
    return RunVerdict.from_numbers(RunNumbers(*(np.full((1, 1), part) for part in numbers)))


def test_the_levels_add_up_to_the_level_of_a_run():
    limits = LAYOUT.limits()
    levels = 2 * norm.sf(limits)
    assert levels.sum() == pytest.approx(FALSE_ALARMS)
    of_mu = levels[[0, D]].sum()
    assert of_mu == pytest.approx(FALSE_ALARMS / 2)  # whatever the number of effects
    assert LAYOUT.is_global().tolist() == [True] + [False] * 20


def test_right_runs_are_right():
    """300 runs of independent draws: none exceeds its limit with an error that matters."""
    z, g = exact(random.key(0), (300,))
    numbers = jax.vmap(seen)(z, g)
    assert float((numbers.score > 1).mean()) < 0.02
    assert (np.asarray(numbers.gradients) == 4 * 249).all()
    assert verdict(jax.tree.map(lambda x: x[0], numbers)).decides


def test_the_averages_have_no_bias():
    """A c with a share of the draw itself would make the second identity too small by log(n) / 4 n."""
    means = jax.vmap(lambda z, g: scores_of(z, g).means.estimates().mean)(*exact(random.key(2), (300,)))
    of_runs = np.asarray(means)[:, [0, D, -1]]  # both identities of mu, and the second over the effects
    assert (np.abs(of_runs.mean(0)) < 4.5 * of_runs.std(0) / 300**0.5).all()


FAULTS = {
    "mean": (lambda z: z.at[..., 0].add(0.3), ("mean", "mu"), 0.3),
    "variance": (lambda z: z.at[..., 0].multiply(1.3), ("variance", "mu"), 0.69),
    "effects": (lambda z: z.at[..., 1:].multiply(1.06), ("variances", "theta"), 0.124),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_with_its_size_and_its_place(fault):
    change, where, size = FAULTS[fault]
    z = change(exact(random.key(1))[0])
    numbers = seen(z, z)
    assert LAYOUT.name(int(numbers.series)) == where and verdict(numbers).verdict in ("doubtful", "wrong")
    assert abs(float(numbers.size) - size) < 5 * float(numbers.error) + 0.1 * size


def test_a_mean_is_seen_through_strong_correlations():
    """With S from the warm-up, an error along the axis of least curvature."""
    averages = ScoreAverages((("z", 2),))
    root = jnp.array([[1.0, 0.0], [0.999, 0.0447]])
    x = random.normal(random.key(2), (1000, 4, 2))
    precision = jnp.linalg.inv(root @ root.T)

    def run(learns):
        scores = RunScores.zeros(averages, 4, jnp.float32, learns=True)
        if learns:
            scores = jax.lax.scan(lambda s, z: (s.learn(z), None), scores, x[:500] @ root.T)[0]

        def add(scores, z):
            g = (z - root @ jnp.array([0.4, 0.0])) @ precision
            return scores.add(averages, z, *scores.times(g, jnp.ones(2)))._replace(draws=scores.draws + 1), None

        return RunNumbers(*jax.lax.scan(add, scores, x[500:] @ root.T)[0].numbers)

    numbers = jax.jit(run, static_argnums=0)(True)
    assert averages.name(int(numbers.series))[0] == "mean" and abs(float(numbers.size) + 0.4) < 0.1
    np.testing.assert_allclose(numbers.least_shift, 0.1, atol=0.03)


def test_nothing_is_said_of_few_gradients_and_all_of_those_that_are_not_finite():
    z, g = exact(random.key(3), draws=FEW // 4)
    assert verdict(seen(z, g)).verdict == ""
    z, g = exact(random.key(3), draws=30)
    numbers = verdict(seen(z, g.at[20, 0, 3].set(jnp.nan)))
    assert numbers.verdict == "wrong" and "not finite" in numbers.words(LAYOUT)
    short = verdict(seen(z, g))
    assert short.verdict == "ok" and not short.decides and 1 < short.power.needed < 100


def test_chains_that_run_one_by_one_count_together():
    numbers = RunNumbers(*(np.full((4, 9), x) for x in (100.0, 3.0, 0.05, 0.02, 0.5, 0.2, 0.4)))
    numbers = numbers._replace(gradients=numbers.gradients + np.arange(4)[:, None])
    found = RunVerdict.from_numbers(numbers)
    assert found.numbers.least_shift == pytest.approx(0.1) and found.numbers.least_inflation == pytest.approx(0.2)


KERNELS = {
    "given": lambda **options: SGHMC(
        models.gaussian,
        batch_size=models.B,
        step_size=1e-2,
        friction=3.0,
        steps_per_sample=5,
        **{"check": True} | options,
    ),
    "self-tuned": lambda **options: SGHMC(models.gaussian, batch_size=models.B, **options),
}


def run(kernel, num_samples=200, num_warmup=100, chains=2, **options):
    mcmc = MCMC(
        kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=chains, progress_bar=False, **options
    )
    mcmc.run(random.key(0), models.ROWS)
    return mcmc


@pytest.mark.parametrize("kind", KERNELS)
def test_draws_do_not_depend_on_the_check(kind):
    with_check, without = (run(KERNELS[kind](check=check), chain_method="vectorized") for check in (True, False))
    assert without.last_state.scores == () and float(with_check.last_state.scores.numbers[0]) > 0
    for name, draws in without.get_samples().items():
        np.testing.assert_array_equal(with_check.get_samples()[name], draws)


class Counting(Minibatch):
    """Counts its evaluations, also those of compiled programs."""

    evaluations = 0

    def evaluate(self, *args):
        def count():
            Counting.evaluations += 1

        jax.debug.callback(count)
        return super().evaluate(*args)


@pytest.mark.parametrize("steps", [1, 8, 50])
def test_the_check_costs_a_twentieth_of_the_gradients(steps):
    options = {"step_size": 1e-2, "friction": 3.0, "batch_size": models.B, "steps_per_sample": steps}
    counts = []
    for check in (True, False):
        Counting.evaluations = 0
        kernel = SGHMC(models.gaussian, gradient=Counting(), check=check, **options)
        mcmc = run(kernel, num_samples=60, num_warmup=20, chains=1)
        jax.effects_barrier()
        counts.append(Counting.evaluations)
        if check:
            assert float(mcmc.last_state.scores.numbers[0]) > 0
    assert 0 < counts[0] - counts[1] <= 0.05 * counts[1] + 1


def test_a_gradient_that_a_step_has_evaluated_is_used():
    word = SGHMC(
        models.gaussian,
        batch_size=models.B,
        gradient=Counting(),
        check=True,
        step_size=1e-2,
        friction=3.0,
        integrator="BAOAB",
        rows=WithoutReplacement(),
        steps_per_sample=8,
    )
    counts = []
    for check in (True, False):
        Counting.evaluations = 0
        mcmc = run(word if check else word.replace(chain=replace(word.chain, checked=False)), 60, 20, 1)
        jax.effects_barrier()
        counts.append(Counting.evaluations)
        if check:
            assert float(mcmc.last_state.scores.numbers[0]) == 60
    assert counts[0] == counts[1]


def test_runs_that_cannot_be_checked_say_nothing():
    for step_size in (Polynomial(1e-2, 1.0, 0.5), 1e-2):
        kernel = SGLD(models.gaussian, batch_size=models.B, step_size=step_size, check=True)
        state = kernel.init(random.key(0), 0, None, (models.ROWS,), {})
        assert (state.scores == ()) == (step_size != 1e-2)


def test_the_draws_decide_when_they_are_enough(monkeypatch):
    """A warm-up whose check has failed, and draws that are right: the run is right."""
    kernel = KERNELS["self-tuned"]()
    mcmc = run(kernel, num_samples=800, num_warmup=400, chains=4, chain_method="vectorized")
    state = mcmc.last_state
    failed = state.settings.scores._replace(virial=jnp.float32(20.0))
    monkeypatch.setattr(mcmc, "_last_state", state._replace(settings=replace(state.settings, scores=failed)))
    monitor = mcmc._states["monitor"]
    monitor = monitor._replace(virial=np.full_like(monitor.virial, 20.0))
    monkeypatch.setattr(mcmc, "_states", mcmc._states | {"monitor": monitor})
    assert RunVerdict.from_numbers(RunNumbers(*(getattr(monitor, name) for name in RunNumbers._fields))).decides
    assert settings(mcmc)["verdict"] == "right"
    line = summary(mcmc).lines["run_scores"]
    assert line.verdict == "ok" and "would have been found" in line.shown
    few = monitor._replace(least_inflation=np.full_like(monitor.virial, 0.5))
    monkeypatch.setattr(mcmc, "_states", mcmc._states | {"monitor": few})
    assert settings(mcmc)["verdict"] == "doubtful"
    assert "draws of each chain" in summary(mcmc).lines["run_scores"].shown


@pytest.mark.parametrize("of_warm_up", ["right", "unchecked"])
@pytest.mark.parametrize("shift", [0.0, 0.12, 0.3, 0.302, 0.55, 0.602, 0.61, 3.0, np.inf, np.nan])
def test_the_verdict_and_the_stated_power_agree(shift, of_warm_up):
    """A run that is right states what would have been found, at most .3 sd, or .6 sd beside a check of the warm-up."""
    for power in (Power(shift, 0.1), Power(0.1, shift)):
        found = RunVerdict(RunNumbers(*[0.0] * 7), "ok", power).after(of_warm_up)
        words = power.words(of_warm_up == "right", 500)
        assert (found == "right") == ("would have been found" in words) == ("too few draws" not in words)
        assert (found == "right") == (shift <= (0.6 if of_warm_up == "right" else 0.3))
        assert ("warm-up" in words) == (found == "right" and shift > 0.3)
    assert RunVerdict(RunNumbers(*[0.0] * 7), "ok", Power(shift, 0.1)).after("doubtful") != "right" or shift <= 0.3


@pytest.mark.parametrize(
    "least, draws, refused, warned",
    [
        (0.2, 300, 0, False),
        (0.7, 300, 0, True),
        (0.7, 200, 0, False),
        (0.2, 300, 0.1, False),
        (0.7, 300, 0.1, True),
        (9.0, 300, 0, True),
    ],
)
def test_a_long_run_that_is_not_checked_says_so(least, draws, refused, warned):
    """
    1200 draws of four chains; 800 are too few to expect a verdict. Refused steps of all rows are no warning. Nobody is
    asked for 900 times the draws.
    """
    numbers = {name: np.zeros((4, draws)) for name in Monitor._fields} | {
        "step_size": np.full((4, draws), 0.1),
        "temperature": np.full((4, draws), np.nan),
        "num_steps": np.ones((4, draws)),
        "noise": np.full((4, draws), float(not refused)),
        "diverging": np.arange(draws) < refused * np.ones((4, 1)) * draws,
        "gradients": np.full((4, draws), 100.0),
        "least_shift": np.full((4, draws), 0.1),
        "least_inflation": np.full((4, draws), least),
        "gradient": np.full((4, draws), 1.0),
        "r_hat": np.full((4, draws), 1.0),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report(Monitor(**numbers), ScoreAverages((("z", 1),)), 1)
    texts = [str(warning.message) for warning in caught]
    assert [text.startswith("the draws are unchecked: too few draws") for text in texts] == [True] * warned
    remedy = "num_samples" if refused else "num_samples, or a larger batch_size"
    remedy = "num_warmup, or reparametrise the model" if least > 5 else remedy
    assert all(text.endswith(f"Use a larger {remedy}.") for text in texts)


def test_draws_that_are_needed_have_no_exponent():
    assert Power(0.61, 0.1).words(True, 500).endswith("it needs about 2,100 draws of each chain")
    assert (
        Power(3e3, 0.1)
        .words(True, 500)
        .endswith("too few draws for a verdict; it needs about 5e+10 draws of each chain")
    )


def test_what_one_of_two_checks_finds_is_found():
    assert Power(0.2, 0.5).or_by(Power(0.4, 0.1)) == (0.2, 0.1) and Power().or_by(Power(0.4, 0.1)) == (0.4, 0.1)


def test_the_state_is_a_small_multiple_of_the_coordinates():
    averages = ScoreAverages((("z", 1000),))
    scores = RunScores.zeros(averages, 4, jnp.float32, learns=True)
    assert sum(leaf.size for leaf in jax.tree.leaves(scores)) < 20 * 1000
