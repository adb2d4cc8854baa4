"""
All benchmarks, each in a process of its own, and docs/benchmarks.md of what they found: ``make bench``.

About an hour on two quiet cores; ``--fast`` shows in a few minutes that all of it runs, and writes no page.
"""

import argparse
import datetime
from importlib.metadata import version
import os
from pathlib import Path
import platform
import subprocess
import sys

HERE = Path(__file__).resolve().parent
PROGRAMS = ("step", "loops", "kernels", "network", "workarounds", "memory", "answer")
ALSO = ("sgmcmcjax_peer",)  # run by hand, in an environment of its own


def machine():
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("jax", "numpyro", "blackjax", "optax", "numpyro_sgmcmc")
    )
    return f"{os.cpu_count()} cores of {cpu}; Python {platform.python_version()}, {packages}."


def main(args):
    for program in () if args.page else args.programs:
        command = [sys.executable, HERE / f"{program}.py", "--out", args.out, *(["--fast"] if args.fast else [])]
        # bars on, as they are for a user, but not on this screen
        subprocess.run(command, check=True, stderr=None if args.verbose else subprocess.DEVNULL)
    if args.fast:
        return
    pages = [path.read_text() for program in PROGRAMS + ALSO for path in sorted(args.out.glob(f"{program}*.md"))]
    how = "report.py --page" if args.page else "make bench"
    head = (
        "# Benchmarks\n\n"
        f"Written by `{how}` on {datetime.date.today()}: {machine()}\n\n"
        "Ratios are medians over rounds in which the competitors take turns, in one process. The programs are in "
        "[tests/benchmarks](../tests/benchmarks/report.py).\n\n"
    )
    (HERE.parents[1] / "docs" / "benchmarks.md").write_text(head + "\n".join(pages))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page of what was found before")
    parser.add_argument("--verbose", action="store_true", help="show progress bars and warnings")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    main(parser.parse_args())
