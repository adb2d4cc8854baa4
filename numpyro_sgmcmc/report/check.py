"""A check of a run: it makes a line of a summary, and a part of the warning at the end of the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
from typing import Any, NamedTuple

from numpyro_sgmcmc.utils.significance import graded

UNCERTAIN = 0.15  # a larger standard error is too large for a verdict
ONLY_DOUBTFUL = math.inf  # second bound of a check that calls no run wrong


class Line(NamedTuple):
    """
    A line of a table.

    - **value** - a number, or None.
    - **shown** - the value as it is printed.
    - **bound** - a description of the allowed values; empty if there is no check.
    - **verdict** - ``"ok"``, ``"doubtful"``, ``"wrong"``, or empty.
    - **seen** - what it means if it is not ok.
    - **details** - more numbers, by name.
    - **title** - the first column; empty: the key of the line.
    - **remedy** - what to do if it is not ok.
    - **size** - what a :class:`Check` compares with its bounds: an error of the draws as far as it is certain. NaN
      exceeds them; None has no verdict.
    - **error** - the standard error of ``size``, which may be too large for a verdict.
    - **warns** - whether a run ends with a warning of it, if it is not ok.
    - **explains** - whether the lines after it may follow from it, so that they are not part of the warning.
    """

    value: Any
    shown: str
    bound: str = ""
    verdict: str = ""
    seen: str = ""
    details: Mapping[str, Any] = {}
    title: str = ""
    remedy: str = ""
    size: float | None = None
    error: float = 0.0
    warns: bool = True
    explains: bool = False

    @property
    def failed(self) -> bool:
        """Whether it is doubtful or wrong."""
        return self.verdict in ("doubtful", "wrong")

    @property
    def advice(self) -> str:
        """What was seen, and what to do."""
        return " ".join(f"{sentence}." for sentence in (self.seen, self.remedy) if sentence)


@dataclass(frozen=True)
class Check:
    """
    In ``allowed`` and ``remedy``, ``{0}`` and ``{1}`` are the bounds, and ``{run}`` is what is measured, such as
    :class:`~numpyro_sgmcmc.report.run_checks.Kept`.

    - **title** - of the line.
    - **bounds** - the sizes above which a run is doubtful, wrong.
    - **allowed** - a description of the allowed values.
    - **remedy** - what to do, a sentence without its full stop.
    - **measure** - the numbers of a run -> a line with ``size`` and without a verdict, or None if it does not apply.
      Its name is that of the line.
    """

    title: str
    bounds: tuple[float, float]
    allowed: str
    remedy: str
    measure: Callable[[Any], Line | None]

    def line(self, run: Any) -> Line | None:
        """The line of a run, with its verdict; None if the check does not apply."""
        line = self.measure(run)
        if line is None:
            return None
        allowed, remedy = (text.format(*self.bounds, run=run) for text in (self.allowed, self.remedy))
        verdict = "" if line.size is None else graded(line.size, *self.bounds)
        if verdict == "ok" and not line.error <= UNCERTAIN:
            verdict, remedy = "doubtful", "Use more draws, or larger batches"
            line = line._replace(seen=f"its standard error is {line.error:.2g}, which is too large for a verdict")
        return line._replace(title=self.title, bound=line.bound or allowed, verdict=verdict, remedy=remedy)


class Checks(dict[str, Check]):
    """Name -> check, in the order of their lines."""

    def add(self, title: str, bounds: tuple[float, float], allowed: str, remedy: str) -> Callable:
        """Adds the check with the decorated measure, under its name."""

        def added(measure: Callable[[Any], Line | None]) -> Callable[[Any], Line | None]:
            self[measure.__name__] = Check(title, bounds, allowed, remedy, measure)
            return measure

        return added

    def lines(self, run: Any) -> dict[str, Line]:
        """The lines of the checks that apply to a run."""
        lines = {name: check.line(run) for name, check in self.items()}
        return {name: line for name, line in lines.items() if line is not None}
