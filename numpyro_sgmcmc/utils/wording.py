"""Numbers as people read them."""


def plain(x: float) -> str:
    """The number with three digits, and without an exponent if it has at most seven before its point."""
    return f"{float(f'{x:.3g}'):,.0f}" if 1000 <= x < 1e7 else f"{x:.3g}"
