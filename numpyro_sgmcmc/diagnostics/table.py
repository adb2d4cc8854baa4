"""Tables of verdicts: text in a terminal, HTML in a notebook, a mapping for programs."""

from collections.abc import Iterator, Mapping
import html
import textwrap
from typing import Any

from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils.significance import ORDER, worst

WORDS = {"ok": "right", "doubtful": "doubtful", "wrong": "wrong"}  # verdict of a line -> verdict of a run
COLOURS = {"ok": "#009E73", "doubtful": "#E69F00", "wrong": "#D55E00"}
SITES = 20  # maximal number of sites that are printed
WIDTH = 100  # of the text
IN_SHORT = {  # what a summary says of every run: the lines, and how they are shown
    "power": {"power": "{}"},
    "mixing": {"r_hat": "R-hat {}", "ess": "effective draws {}"},
    "draws": {"draws": "{}", "steps": "{} steps of a chain"},
    "cost": {"passes": "{} passes over the data", "gradient_evaluations": "gradient evaluations {}"},
}


class Table(Mapping):
    """
    Line -> a dict of its ``value``, ``bound``, ``verdict``, ``advice`` and further numbers. ``str()`` is a text table.

    - **verdict** - ``"right"``, ``"doubtful"`` or ``"wrong"``: the verdict of the worst line; ``"unchecked"`` if
      none is in doubt, but the run is too short for a verdict.
    - **by_site** - site -> a dict of numbers for its worst coordinate; empty if there is one line per site.

    :param title: title of the table.
    :param lines: key -> :class:`Line`.
    :param note: text after the table.
    :param by_site: site -> a dict of numbers, with a ``verdict``.
    :param bool checked: False if the run is too short for a verdict on what seems right.
    """

    def __init__(
        self,
        title: str,
        lines: Mapping[str, Line],
        note: str = "",
        by_site: Mapping[str, Mapping[str, Any]] | None = None,
        checked: bool = True,
    ):
        self.title, self.lines, self.note, self.checked = title, dict(lines), note, checked
        self.by_site = {site: dict(numbers) for site, numbers in (by_site or {}).items()}

    @property
    def verdict(self) -> str:
        """The verdict of the worst line."""
        found = worst(*(line.verdict for line in self.lines.values()))
        return WORDS[found] if self.checked or found != "ok" else "unchecked"

    def __getitem__(self, key: str) -> dict[str, Any]:
        line = self.lines[key]
        fields = {"value": line.value, "bound": line.bound, "verdict": line.verdict, "advice": line.advice}
        return fields | dict(line.details)

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __str__(self) -> str:
        return self.all()

    def __repr__(self) -> str:
        return str(self)

    def all(self) -> str:
        """The whole table."""
        text = [f"{self.title}: {self.verdict}", "", *_aligned(self._rows)]
        if self.by_site:
            text += ["", *_aligned(self._rows_of_sites)]
        rest = ["", *(f"{name}: {advice}" for name, advice in self.advice)] if self.advice else []
        rest += ["", self.note] if self.note else []
        return "\n".join(text + [_wrapped(line) for line in rest])

    @property
    def advice(self) -> list[tuple[str, str]]:
        """Name and advice of the lines that are not ok."""
        return [(line.title or key, line.advice) for key, line in self.lines.items() if line.failed and line.advice]

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        rows = [(line.title or key, line.shown, line.bound, line.verdict) for key, line in self.lines.items()]
        return [("", "value", "bound", "verdict"), *rows]

    @property
    def _rows_of_sites(self) -> list[tuple[str, ...]]:
        """Rows of the table of sites, the worst sites first, at most ``SITES``."""
        columns = list(next(iter(self.by_site.values())))
        ordered = sorted(self.by_site.items(), key=lambda item: -ORDER.index(item[1]["verdict"]))
        rows = [("site, by its worst coordinate", *columns)]
        for site, numbers in ordered[:SITES]:
            rows.append((site, *(x if isinstance(x, str) else f"{x:.2f}" for x in numbers.values())))
        left = len(ordered) - SITES
        return rows + [(f"{left} more in .by_site", *[""] * len(columns))] * (left > 0)

    def _repr_html_(self) -> str:
        tables = _html(self._rows) + (_html(self._rows_of_sites) if self.by_site else "")
        advice = "".join(f"<li>{html.escape(f'{name}: {advice}')}</li>" for name, advice in self.advice)
        title, note = html.escape(f"{self.title}: {self.verdict}"), html.escape(self.note)
        return f"<b>{title}</b>{tables}<ul>{advice}</ul><p>{note}</p>"


class Summary(Table):
    """
    The checks of a run. ``str()`` says in short what is wrong or doubtful, which errors would have been found, and what
    the run was; :meth:`all` is the whole table.
    """

    def __str__(self) -> str:
        told = [f"{verdict}: {text}" for verdict, text in self._doubts]
        rest = [*_aligned(self._in_short), _wrapped(self.note), "print(summary(...).all()) shows all lines."]
        return "\n".join([f"{self.title}: {self.verdict}", *map(_wrapped, told), *(line for line in rest if line)])

    def _repr_html_(self) -> str:
        told = "".join(f"<tr>{_cell(verdict)}<td>{html.escape(text)}</td></tr>" for verdict, text in self._doubts)
        title = html.escape(f"{self.title}: {self.verdict}")
        shown = f"<b>{title}</b><table>{told}</table>{_html(self._in_short)}"
        return f"{shown}<details><summary>all lines</summary>{super()._repr_html_()}</details>"

    @property
    def _doubts(self) -> list[tuple[str, str]]:
        """Verdict and text of the lines that are not ok, the worst first, and each remedy once."""
        doubts, told = [], set()
        failed = [(key, line) for key, line in self.lines.items() if line.failed]
        for key, line in sorted(failed, key=lambda item: -ORDER.index(item[1].verdict)):
            text = line.advice if line.remedy not in told else f"{line.seen}."
            doubts.append((line.verdict, f"{line.title or key}: {text}"))
            told.add(line.remedy)
        return doubts

    @property
    def _in_short(self) -> list[tuple[str, ...]]:
        rows = []
        for name, shown in IN_SHORT.items():
            parts = [text.format(self.lines[key].shown) for key, text in shown.items() if key in self.lines]
            rows += [(name, "; ".join(parts))] * bool(parts)
        return rows


def _html(rows: list[tuple[str, ...]]) -> str:
    return "<table>" + "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows) + "</table>"


def _cell(text: str) -> str:
    style = f' style="color:{COLOURS[text]}"' if text in COLOURS else ""
    return f"<td{style}>{html.escape(text)}</td>"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def plain(x: float) -> str:
    """The number with three digits, and without an exponent if it has at most seven before its point."""
    return f"{float(f'{x:.3g}'):,.0f}" if 1000 <= x < 1e7 else f"{x:.3g}"
