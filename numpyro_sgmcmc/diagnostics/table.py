"""A table of verdicts: text in a terminal, HTML in a notebook, a mapping for programs."""

from collections.abc import Iterator, Mapping
import html
import textwrap
from typing import Any

from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils.significance import ORDER, worst

WORDS = {"ok": "right", "doubtful": "doubtful", "wrong": "wrong"}  # verdict of a line -> verdict of a run
COLOURS = {"ok": "#009E73", "doubtful": "#E69F00", "wrong": "#D55E00"}
SITES = 20  # maximal number of sites that are printed


class Summary(Mapping):
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
        text = [f"{self.title}: {self.verdict}", "", *_aligned(self._rows)]
        if self.by_site:
            text += ["", *_aligned(self._rows_of_sites)]
        rest = ["", *(f"{name}: {advice}" for name, advice in self.advice)] if self.advice else []
        rest += ["", self.note] if self.note else []
        return "\n".join(text + [textwrap.fill(line, 100, subsequent_indent="  ") for line in rest])

    __repr__ = __str__

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


def _html(rows: list[tuple[str, ...]]) -> str:
    style = {verdict: f' style="color:{colour}"' for verdict, colour in COLOURS.items()}
    cells = [[f"<td{style.get(cell, '')}>{html.escape(cell)}</td>" for cell in row] for row in rows]
    return "<table>" + "".join(f"<tr>{''.join(row)}</tr>" for row in cells) + "</table>"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def plain(x: float) -> str:
    """The number with three digits."""
    return f"{x:.3g}"
