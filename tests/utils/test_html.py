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

NAME = 'a<b> & "c" </td>'


def texts(html):
    return [cell.text for cell in ElementTree.fromstring(f"<p>{html}</p>").iter("td")]


def test_names_are_escaped():
    assert texts(table([("", NAME)])) == [None, NAME]
    lines = {NAME: Line(1.0, f"at {NAME}", "< 1", "wrong", seen=NAME, remedy=NAME, size=1.0)}
    for found in (Table(NAME, lines, note=NAME), Summary(NAME, lines, by_site={NAME: {"z": 1.0, "verdict": "ok"}})):
        shown = texts(found._repr_html_())
        assert NAME in shown and f"at {NAME}" in shown
    assert texts(Settings(centering={NAME: np.ones(2)})._repr_html_())[-1] == f"{NAME} 1, 1"


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
        (np.float32(12345.6), "1.235e+04"),
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
