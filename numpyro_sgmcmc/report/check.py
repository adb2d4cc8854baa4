"""A check of a run: it makes a line of a summary, and a part of the warning at the end of the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpyro_sgmcmc.utils.significance import graded
from numpyro_sgmcmc.utils.wording import plain

UNCERTAIN = 0.15  # a larger standard error is too large for a verdict


class Line(NamedTuple):
    """A line of a table, and a part of a warning."""

    value: Any  # a number, or None
    shown: str  # the value as it is printed
    bound: str = ""  # a description of the allowed values; empty if there is no check
    verdict: str = ""  # "ok", "doubtful", "wrong", or empty
    seen: str = ""  # what it means if it is not ok
    details: Mapping[str, Any] = {}  # more numbers, by name
    title: str = ""  # the first column; empty: the key of the line
    remedy: str = ""  # what to do if it is not ok
    size: float = 0.0  # what a check compares with its bounds: an error of the draws as far as it is certain
    error: float = 0.0  # the standard error of the size, which may be too large for a verdict
    warns: bool = True  # whether a run that is not ok ends with a warning of it
    explains: bool = False  # whether the lines after it may follow from it, and are not part of the warning

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
    """A measure, its bounds and a remedy. In its texts, ``{0}`` is the first bound, ``{run}`` what is measured."""

    title: str
    bounds: tuple[float, float]  # the sizes above which a run is doubtful, wrong (infinite: never); NaN exceeds them
    allowed: str  # a description of the bounds
    remedy: str  # what to do, a sentence without its full stop, unless the measure has found a better one
    measure: Callable[[Any], Line | None]  # a line with a size and without a verdict; None if the check does not apply

    def line(self, run: Any) -> Line | None:
        """The line of a run, with its verdict; None if the check does not apply."""
        line = self.measure(run)
        if line is None:
            return None
        bound, remedy = (text.format(*self.bounds, run=run) for text in (line.bound or self.allowed, self.remedy))
        verdict, seen = graded(line.size, *self.bounds) if bound else "", line.seen
        if verdict == "ok" and not line.error <= UNCERTAIN:
            verdict, remedy = "doubtful", "Use a larger num_samples"
            seen = f"its standard error of {plain(line.error, 2)} is too large for a verdict"
        return line._replace(title=self.title, bound=bound, verdict=verdict, seen=seen, remedy=line.remedy or remedy)


class Checks(dict[str, Check]):
    """Name -> check, in the order of their lines."""

    def add(self, title: str, bounds: tuple[float, float], allowed: str, remedy: str) -> Callable:
        """Adds the check with the decorated measure, under its name."""
        return lambda measure: self.setdefault(measure.__name__, Check(title, bounds, allowed, remedy, measure)).measure

    def lines(self, run: Any) -> dict[str, Line]:
        """The lines of the checks that apply to a run."""
        lines = {name: check.line(run) for name, check in self.items()}
        return {name: line for name, line in lines.items() if line is not None}
