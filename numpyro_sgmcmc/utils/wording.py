"""Numbers as people read them."""

import math

MOST = 100.0  # the size of a ratio whose digits say no more


def plain(x: float, digits: int = 3) -> str:
    """The number with so many digits, and without an exponent if it has at most seven before its point."""
    rounded = float(f"{x:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < 1e7 else f"{x:.{digits}g}"


def ratio(x: float) -> str:
    """A number that should be 1, with two digits, as far as they matter."""
    return f"more than {MOST:.0f}" if x > MOST else plain(x, 2)


def inflation(x: float) -> str:
    """A relative error of a variance: in per cent, or as a factor if it is large."""
    return f"{x:+z.1%}" if math.isnan(x) or abs(x) <= 1 else f"{ratio(1 + x)} times too large"
