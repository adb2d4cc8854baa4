"""HTML of tables is well formed whatever the names are, and long values are short."""

from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from numpyro_sgmcmc import Minibatch
from numpyro_sgmcmc.diagnostics.table import Summary, Table
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.tuning.warm_up import Settings
from numpyro_sgmcmc.utils.html import COLOURS, LENGTH, in_short, table
from numpyro_sgmcmc.utils.wording import inflation, plain

NAME = 'a<b> & "c" </td>'


def texts(html):
    return [cell.text for cell in ElementTree.fromstring(f"<p>{html}</p>").iter("td")]


def test_names_are_escaped():
    assert texts(table([("", NAME)])) == [None, NAME]
    lines = {NAME: Line(1.0, f"at {NAME}", "< 1", "wrong", seen=NAME, remedy=NAME, size=1.0)}
    for found in (Table(NAME, lines, note=NAME), Summary(NAME, lines, by_site={NAME: {"z": 1.0, "verdict": "ok"}})):
        shown = texts(found._repr_html_())
        assert NAME in shown and f"at {NAME}" in shown
    assert texts(Settings(centering={NAME: np.ones(2)})._repr_html_())[-2] == f"{NAME} 1, 1"


def test_settings_are_a_line_each_and_their_mapping_stays():
    """An array is shown by its shape."""
    found = Settings(step_size=0.25, centering={"a": np.zeros(500)}, passes=1612.3)
    assert str(found).split("\n") == [
        "step_size    0.25 (in standardised coordinates)",
        "coordinates  Identity",
        "centering    a 500 numbers from 0 to 0 (1 centred, 0 non-centred)",
        "passes       1612 (over the data, by the search)",
    ]
    assert found["centering"]["a"].shape == (500,) and repr(Settings.known) and repr(found) == str(found)


@pytest.mark.parametrize(
    "x, words",
    [
        (1612.3, "1,610"),
        (-1612.3, "-1,610"),
        (0.01234, "0.0123"),
        (999.7, "1,000"),
        (2.5e9, "2.5e+09"),
        (np.inf, "inf"),
    ],
)
def test_numbers_have_three_digits_and_rarely_an_exponent(x, words):
    assert plain(x) == words


@pytest.mark.parametrize(
    "x, words",
    [
        (0.123, "+12.3%"),
        (-0.0001, "+0.0%"),
        (4.1, "5.1 times too large"),
        (2231.7, "more than 100 times too large"),
        (np.inf, "more than 100 times too large"),
        (np.nan, "+nan%"),
    ],
)
def test_inflations_in_words(x, words):
    assert inflation(x) == words


def test_verdicts_have_colours():
    cells = list(ElementTree.fromstring(table([("right", "wrong", "rightly")])).iter("td"))
    assert [cell.get("style").partition("color:")[2] for cell in cells] == [COLOURS["ok"], COLOURS["wrong"], ""]


class Pair(NamedTuple):
    first: np.ndarray
    second: list


@pytest.mark.parametrize(
    "value, words",
    [
        (0.30000001192092896, "0.3"),
        (np.float32(12345.6), "12,350"),
        (np.array([4, 7]), "4, 7"),
        (np.array(["right", "wrong"]), "right, wrong"),
        (np.arange(6.0).reshape(2, 3), "2 x 3 numbers from 0 to 5"),
        (Pair(np.zeros(9), [1.5, 2]), "Pair: first 9 numbers from 0 to 0; second 0 1.5; second 1 2"),
        ({"a": np.zeros(3), "b": 1}, "a 0, 0, 0; b 1"),
        (Minibatch(), "Minibatch()"),
        ({}, "none"),
        (True, "True"),
    ],
)
def test_values_in_short(value, words):
    assert in_short(value) == words


def test_long_values_end_in_dots():
    shown = in_short(["word"] * 100)
    assert len(shown) <= LENGTH and shown.endswith("...")
