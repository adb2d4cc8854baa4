"""HTML for notebooks: tables of texts, and values in a few words."""

from collections.abc import Iterable, Sequence
import html
import textwrap
from typing import Any

import jax
import numpy as np

from numpyro_sgmcmc.utils.wording import plain

COLOURS = {"ok": "#009E73", "doubtful": "#E69F00", "wrong": "#D55E00"}  # by verdict, from the palette of Okabe & Ito
FEW = 4  # maximal number of elements of an array that are written out
LENGTH = 120  # of a value in a few words


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; verdicts are coloured."""
    lines = ("".join(map(_cell, row)) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(text: str) -> str:
    colour = COLOURS.get("ok" if text == "right" else text)
    style = "text-align:left" + f";color:{colour}" * bool(colour)  # notebooks align cells to the right
    return f'<td style="{style}">{html.escape(text)}</td>'


def in_short(value: Any) -> str:
    """A value in a few words: numbers with four digits, larger arrays by shape and range, pytrees by their leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(value)
    if [path for path, _ in leaves] == [()]:
        text = _leaf(value)
    else:
        names = [jax.tree_util.keystr(path, simple=True, separator=" ") for path, _ in leaves]
        text = "; ".join(f"{name} {_leaf(leaf)}" for name, (_, leaf) in zip(names, leaves))
        text = text if isinstance(value, dict | list) else f"{type(value).__name__}: {text}".removesuffix(": ")
    return textwrap.shorten(text or "none", LENGTH, placeholder=" ...")


def _leaf(value: Any) -> str:
    array = np.asarray(value)
    numeric = array.dtype.kind in "fiu"
    if array.size > FEW and numeric:
        size = " x ".join(map(str, array.shape))
        return f"{size} numbers from {plain(array.min(), 4)} to {plain(array.max(), 4)}"
    return ", ".join(plain(x, 4) if numeric else str(x) for x in array.ravel())
