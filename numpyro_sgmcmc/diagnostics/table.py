"""Tables of verdicts: text in a terminal, HTML in a notebook, a mapping for programs."""

from collections.abc import Callable, Iterator, Mapping
from html import escape
import textwrap
from typing import Any

from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.utils import html
from numpyro_sgmcmc.utils.significance import ORDER, worst

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
    :param picture: what :meth:`plot` calls with this table, axes and options; None: there is no picture.
    """

    def __init__(
        self,
        title: str,
        lines: Mapping[str, Line],
        note: str = "",
        by_site: Mapping[str, Mapping[str, Any]] | None = None,
        checked: bool = True,
        picture: Callable | None = None,
    ):
        self.title, self.lines, self.note, self.checked, self.picture = title, dict(lines), note, checked, picture
        self.by_site = {site: dict(numbers) for site, numbers in (by_site or {}).items()}

    @property
    def verdict(self) -> str:
        """The verdict of the worst line."""
        of_lines = worst(*(line.verdict for line in self.lines.values()))
        right = "right" if self.checked else "unchecked"
        return right if of_lines == "ok" else of_lines

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
            rows.append((site, *(x if isinstance(x, str) else f"{x:z.2f}" for x in numbers.values())))
        left = len(ordered) - SITES
        return rows + [(f"{left} more in .by_site", *[""] * len(columns))] * (left > 0)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """
        A picture of a :func:`~numpyro_sgmcmc.summary` with the data, or of the result of
        :func:`~numpyro_sgmcmc.step_halving`, :func:`~numpyro_sgmcmc.couple` or :func:`~numpyro_sgmcmc.compare`.
        Matplotlib is an extra: ``pip install "numpyro_sgmcmc[examples]"``.

        :param ax: Matplotlib axes, two for a summary; None: those of a new figure.
        :param options: ``of="mean"`` or ``of="sd"`` for the result of ``step_halving``.
        :return: the axes.
        :raises ImportError: if Matplotlib is not installed.
        :raises ValueError: if there is no picture of this table.
        """
        if self.picture is None:
            raise ValueError(
                f"there is no picture of {self.title!r}. Those of summary, step_halving, couple and compare can be "
                "drawn."
            )
        return self.picture(self, ax, **options)

    def _repr_html_(self) -> str:
        return self._title + self._body

    @property
    def _body(self) -> str:
        """What follows the title, as HTML."""
        note = escape(self.note)
        tables = html.table(self._rows) + (html.table(self._rows_of_sites) if self.by_site else "")
        advice = "".join(f"<li>{escape(f'{name}: {advice}')}</li>" for name, advice in self.advice)
        return f"{tables}{f'<ul>{advice}</ul>' * bool(advice)}{f'<p>{note}</p>' * bool(note)}"

    @property
    def _title(self) -> str:
        return f"<b>{escape(f'{self.title}: {self.verdict}')}</b>"


class Summary(Table):
    """
    The checks of a run. ``str()`` says in short what is wrong or doubtful, which errors would have been found, and what
    the run was; :meth:`all` is the whole table.
    """

    def __str__(self) -> str:
        doubts = [f"{verdict}: {text}" for verdict, text in self._doubts]
        rest = [*_aligned(self._in_short), _wrapped(self.note), "print(summary(...).all()) shows all lines."]
        return "\n".join([f"{self.title}: {self.verdict}", *map(_wrapped, doubts), *(line for line in rest if line)])

    def _repr_html_(self) -> str:
        shown = self._title + (html.table(self._doubts) if self._doubts else "") + html.table(self._in_short)
        return f"{shown}<details><summary>all lines</summary>{self._body}</details>"

    @property
    def _doubts(self) -> list[tuple[str, str]]:
        """Verdict and text of the lines that are not ok, the worst first, and each remedy once."""
        doubts, remedies = [], set()
        failed = [(key, line) for key, line in self.lines.items() if line.failed]
        for key, line in sorted(failed, key=lambda item: -ORDER.index(item[1].verdict)):
            text = line.advice if line.remedy not in remedies else f"{line.seen}."
            doubts.append((line.verdict, f"{line.title or key}: {text}"))
            remedies.add(line.remedy)
        return doubts

    @property
    def _in_short(self) -> list[tuple[str, ...]]:
        rows = []
        for name, shown in IN_SHORT.items():
            parts = [text.format(self.lines[key].shown) for key, text in shown.items() if key in self.lines]
            rows += [(name, "; ".join(parts))] * bool(parts)
        return rows


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
