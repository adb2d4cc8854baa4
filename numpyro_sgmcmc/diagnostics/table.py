"""A table of verdicts: text in a terminal, HTML in a notebook, a mapping for programs."""

from collections.abc import Iterator, Mapping
import html
import textwrap
from typing import Any, NamedTuple

from numpyro_sgmcmc.utils.significance import ORDER, worst

WORDS = {"ok": "right", "doubtful": "doubtful", "wrong": "wrong"}  # verdict of a line -> verdict of a run
SITES = 20  # maximal number of sites that are printed


class Line(NamedTuple):
    """
    - **name** - name of the check.
    - **value** - a number, or None.
    - **shown** - the value as it is printed.
    - **bound** - a description of the allowed values; empty if there is no check.
    - **verdict** - ``"ok"``, ``"doubtful"``, ``"wrong"``, or empty.
    - **advice** - what to do if it is not ok.
    - **details** - more numbers, by name.
    """

    name: str
    value: Any
    shown: str
    bound: str = ""
    verdict: str = ""
    advice: str = ""
    details: Mapping[str, Any] = {}


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
        self.checked = checked
        self.title, self._lines, self.note = title, dict(lines), note
        self.by_site = {site: dict(numbers) for site, numbers in (by_site or {}).items()}

    @property
    def lines(self) -> dict[str, Line]:
        """Key -> line."""
        return self._lines

    @property
    def verdict(self) -> str:
        """The verdict of the worst line."""
        found = worst(*(line.verdict for line in self._lines.values()))
        return WORDS[found] if self.checked or found != "ok" else "unchecked"

    def __getitem__(self, key: str) -> dict[str, Any]:
        line = self._lines[key]
        fields = {"value": line.value, "bound": line.bound, "verdict": line.verdict, "advice": line.advice}
        return fields | dict(line.details)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __str__(self) -> str:
        rows = [("", "value", "bound", "verdict")]
        rows += [(line.name, line.shown, line.bound, line.verdict) for line in self._lines.values()]
        text = [f"{self.title}: {self.verdict}", "", *_aligned(rows)]
        if self.by_site:
            text += ["", *_aligned(self._rows_of_sites())]
        text += [""] * bool(self.advice) + [_wrapped(f"{name}: {advice}") for name, advice in self.advice]
        text += ["", _wrapped(self.note)] if self.note else []
        return "\n".join(text)

    __repr__ = __str__

    @property
    def advice(self) -> list[tuple[str, str]]:
        """Name and advice of the lines that are not ok."""
        return [
            (line.name, line.advice)
            for line in self._lines.values()
            if line.advice and line.verdict in ("doubtful", "wrong")
        ]

    def _rows_of_sites(self) -> list[tuple[str, ...]]:
        """Rows of the table of sites, the worst sites first, at most ``SITES``."""
        columns = list(next(iter(self.by_site.values())))
        ordered = sorted(self.by_site.items(), key=lambda item: -ORDER.index(item[1]["verdict"]))
        rows = [("site, by its worst coordinate", *columns)]
        rows += [(site, *map(_cell, numbers.values())) for site, numbers in ordered[:SITES]]
        left = len(ordered) - SITES
        return rows + [(f"{left} more in .by_site", *[""] * len(columns))] * (left > 0)

    def _repr_html_(self) -> str:
        colours = {"ok": "#009E73", "doubtful": "#E69F00", "wrong": "#D55E00", "": "inherit"}
        head = "<tr><th></th><th>value</th><th>bound</th><th>verdict</th></tr>"
        body = "".join(
            f"<tr><td>{html.escape(line.name)}</td><td>{html.escape(line.shown)}</td>"
            f"<td>{html.escape(line.bound)}</td>"
            f'<td style="color:{colours[line.verdict]}">{html.escape(line.verdict)}</td></tr>'
            for line in self._lines.values()
        )
        sites = ""
        if self.by_site:
            head_of_sites, *rows = [
                "".join(f"<td>{html.escape(cell)}</td>" for cell in r) for r in self._rows_of_sites()
            ]
            sites = f"<table><tr>{head_of_sites}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
        told = "".join(f"<li>{html.escape(name)}: {html.escape(advice)}</li>" for name, advice in self.advice)
        told = f"<ul>{told}</ul>" if told else ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        title = f"<b>{html.escape(self.title)}: {self.verdict}</b>"
        return f"{title}<table>{head}{body}</table>{sites}{told}{note}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.2f}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ")


def plain(x: float) -> str:
    """The number with three digits."""
    return f"{x:.3g}"
