"""What rests on names of NumPyro or JAX that are not promised, or stands in for what they lack. One comment each."""

import sys

PACKAGES = ("numpyro_sgmcmc", "numpyro", "jax", "jaxlib")


def stack_level() -> int:
    """
    The ``stacklevel`` of a warning that points to the user's own line. ``warnings.warn`` can skip files by itself only
    from Python 3.12 on.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
