"""How much memory there is, for those who ask for much of it by name."""

import logging
import os

import jax

logger = logging.getLogger("numpyro_sgmcmc")


def limit() -> int | None:
    """Bytes of memory on the default device; None where nobody says."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        return None  # no POSIX
    try:
        with open("/sys/fs/cgroup/memory.max") as file:  # of a container
            limits.append(int(file.read()))
    except (OSError, ValueError):
        pass  # no container, or "max"
    return min(limits)


def announce(what: str, size: int, share: float, alternatives: str) -> None:
    """
    Log what is about to be taken.

    :param int size: bytes.
    :param float share: of all memory, at most this.
    :raises ValueError: it would be more.
    """
    available = limit()
    if available is not None and size > share * available:
        raise ValueError(
            f"{what} would take {size} bytes ({size / 1e9:.3g} GB), more than memory={share} of the {available} bytes "
            f"there are. {alternatives}"
        )
    logger.info("%s takes %d bytes.", what, size)
