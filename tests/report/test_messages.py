"""What is said at the end of a run: in four lines, with the place and the size of an error, and one thing to do."""

import re
import warnings

import numpy as np
import pytest

from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.report.report_hook import LENGTH, report
from numpyro_sgmcmc.report.run_checks import CHECKS, SEVERAL_MODES
from numpyro_sgmcmc.report.run_scores import ScoreAverages

CHAINS, DRAWS = 2, 400
AVERAGES = ScoreAverages((("mu", 1), ("tau", 1), ("theta", 20)))  # the means are the series 0 to 21
ZEROS, TIMES = np.zeros((CHAINS, DRAWS)), np.arange(DRAWS)
GIVEN, TUNED, ALL_ROWS = "a given step size", "self-tuned with minibatches", "self-tuned with all rows"


def monitor(kind, **changed):
    """Of a right run, but for what has changed."""
    rng, tuned = np.random.default_rng(0), kind != GIVEN
    right = dict.fromkeys(Monitor._fields, ZEROS)
    right |= {"chain": (), "refused": ZEROS.astype(int), "diverging": ZEROS > 0, "data_changed": ZEROS > 0}
    right |= {"temperature": 1 + 0.1 * rng.normal(size=ZEROS.shape), "place": rng.normal(size=ZEROS.shape)}
    right |= {"step_size": ZEROS + 0.3, "num_steps": ZEROS + 4.0 * tuned, "noise": ZEROS + 0.1 * (kind == TUNED)}
    right |= {"gradient": ZEROS + tuned, "virial": ZEROS + tuned, "r_hat": ZEROS + tuned}
    right |= {"gradients": ZEROS + 400, "error": ZEROS + 0.05, "score": ZEROS + 0.3, "least_shift": ZEROS + 0.1}
    return Monitor(**right | changed)


def identity(series, size):
    return {"series": ZEROS + series, "size": ZEROS + size, "score": ZEROS + 3}


FAILED_WARM_UP = {"least_shift": ZEROS + 0.4}  # so that the draws do not decide
REFUSALS = ZEROS.astype(int) + (TIMES % 4 > 0)
NOISE = 0.1 * np.random.default_rng(1).normal(size=ZEROS.shape)
NOISE -= NOISE.mean()
FAULTS = {  # what has changed, the check that tells it, and words of the warning
    "other data": ({"data_changed": ZEROS < 1}, "data", "other data"),
    "stuck": ({"refused": ZEROS.astype(int) + 200}, "refused", "2 of 2 chains (0, 1) have refused every step"),
    "refused": ({"refused": REFUSALS}, "refused", "75.0% end with one"),
    "hot": ({"temperature": 4.4 + NOISE}, "kinetic_temperature", "temperature of the run is 4.4 instead of 1"),
    "not finite": ({"temperature": ZEROS + np.inf}, "kinetic_temperature", "temperature of the run is not finite"),
    "warm": ({"temperature": 1.4 + NOISE}, "kinetic_temperature", "temperature is 1.4 +- 0.0"),
    "cold": ({"temperature": 0.8 + NOISE}, "kinetic_temperature", "temperature is 0.8"),
    "long": ({"jump": 5 + NOISE}, "squared_steps", "5 times those of the injected noise"),
    "noisy": ({"inflation": ZEROS + 0.2}, "tuned_inflation", "by 20%"),
    "very noisy": ({"inflation": ZEROS + 5.1}, "tuned_inflation", "more than doubles a variance"),
    "failed": ({"virial": ZEROS + 20} | FAILED_WARM_UP, "warm_up", "E[(z - m) dU] is 20 standard errors from 1"),
    "no score": ({"gradient": ZEROS + np.nan} | FAILED_WARM_UP, "warm_up", "E[dU] is not a number"),
    "apart in the warm-up": ({"r_hat": ZEROS + 1.4} | FAILED_WARM_UP, "warm_up", "R-hat is 1.4"),
    "mean": (identity(1, -0.21), "run_scores", "the mean of tau is off by -0.21 +- 0.05 sd"),
    "far": (identity(3, 2.1), "run_scores", "element 1 of theta does not fit the gradients at the draws"),
    "wide": (identity(22, 0.35), "run_scores", "the variance of mu is off by +35% +- 5%"),
    "far too wide": (
        identity(22, 5.1),
        "run_scores",
        "mu does not fit the gradients at the draws (6.1 +- 0.05",
    ),
    "narrow effects": (
        identity(44, -0.13),
        "run_scores",
        "elements of theta is off by -13% +- 5%",
    ),
    "absurd": (identity(22, 2231.7), "run_scores", "(more than 100 +- 0.05 instead of 1)"),
    "no gradients": (identity(0, np.nan), "run_scores", "gradients at the draws are not finite"),
    "falls": ({"energy": 1e5 * np.exp(-TIMES) + NOISE}, "energy", "still falling"),
    "apart": ({"place": 100 * np.arange(CHAINS)[:, None] + NOISE}, "r_hat", "do not mix"),
}
UNWARNED = {"step_size", "ess", "spread"}  # of a summary only
BY_WARM_UP = {"tuned_inflation", "warm_up"}  # not of a run with a given step size


def test_every_check_is_told():
    assert {check for _, check, _ in FAULTS.values()} == CHECKS.keys() - UNWARNED


def told(kind, **changed):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report(monitor(kind, **changed), AVERAGES, CHAINS)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_number_has_an_exponent_or_digits_that_say_nothing(fault):
    (message,) = told(TUNED, **FAULTS[fault][0])
    assert not re.search(r"\de[+-]\d|\d{5}", message), message


@pytest.mark.parametrize("kind", [GIVEN, TUNED, ALL_ROWS])
def test_nothing_is_said_of_a_right_run(kind):
    assert told(kind) == []


@pytest.mark.parametrize("kind", [GIVEN, TUNED, ALL_ROWS])
@pytest.mark.parametrize("fault", FAULTS)
def test_four_lines_with_one_thing_to_do(fault, kind):
    changed, check, words = FAULTS[fault]
    if kind == GIVEN and check in BY_WARM_UP:
        return
    (message,) = told(kind, **changed)
    assert words in message and message.startswith(("the draws are doubtful: ", "the draws are wrong: "))
    assert len(message) <= LENGTH and message.count(" Use a ") + message.count("Start a new run") == 1
    # nothing that the user has not set, and nothing about data, which are finite
    assert "data" not in message or fault == "other data"
    if kind != GIVEN:
        assert not any(option in message for option in ("step_size", "steps_per_sample", "friction"))
    if kind == ALL_ROWS:
        assert "batch_size" not in message


def test_of_many_signs_the_others_are_named_as_far_as_there_is_room():
    changed = {}
    for fault in ("refused", "warm", "noisy", "mean"):
        changed |= FAULTS[fault][0]
    (message,) = told(TUNED, **changed)
    places = [message.index(words) for words in ("75.0% end with one", "temperature is 1.4", "by 20%")]
    assert places == sorted(places) and message.count(" Use a ") == 1
    assert "the mean of tau is off" in message and len(message) <= LENGTH
    changed |= FAULTS["stuck"][0] | FAULTS["other data"][0]
    (message,) = told(GIVEN, **changed)
    assert "other data" in message.partition("Start a new run")[0] and "refused every step" in message


def test_chains_on_their_way_need_more_warm_up():
    """Not smaller steps, which would take longer to arrive."""
    for kind in (GIVEN, TUNED):
        hot = {"temperature": 500.0 + TIMES + NOISE, "energy": 3000 - 5.0 * TIMES + NOISE}
        (message,) = told(kind, **hot)
        assert "temperature" in message and "num_warmup" in message and "smaller" not in message
        (message,) = told(kind, **identity(1, 0.5), energy=1e5 * np.exp(-TIMES) + NOISE)
        assert "the mean of tau" in message and "num_warmup" in message and "smaller" not in message


def test_remedies_are_about_what_was_set():
    for use in (Remedies(True, False, True), Remedies(True, True, True), Remedies(True)):
        texts = [use.accurate, use.less_noise, use.stable, SEVERAL_MODES, use.hot(4.4), use.hot(0.4)]
        assert not any("step_size" in text or "friction" in text for text in texts)
        assert any("batch_size" in text for text in texts) == use.noisy
    assert Remedies(True, True, True).accurate == "a larger batch_size" != Remedies(True).accurate
    costly = Remedies(True, passes=21.0)
    for use in (
        costly.less_noise,
        costly.conclusive(3),
        costly.conclusive(1000),
        costly._replace(inflated=True).accurate,
    ):
        assert use == "all rows, batch_size={}, because a draw takes 21 passes over the data as it is"
    assert costly._replace(noisy=False).conclusive(3) == "a larger num_samples"
    assert Remedies(False).stable == Remedies(False).accurate == "a smaller step_size"


@pytest.mark.parametrize("kind, doubtful", [(GIVEN, False), (TUNED, True), (ALL_ROWS, False)])
def test_a_few_steps_beyond_chance_are_told_of_chosen_steps_and_minibatches(kind, doubtful):
    """A step size that is given may be refused for a support, and a step of all rows is exact."""
    messages = told(kind, diverging=(TIMES % 100 == 0) | (ZEROS > 0))
    assert len(messages) == doubtful
    assert all("1.0% of the draws have a refused step" in text and "batch_size" in text for text in messages)
