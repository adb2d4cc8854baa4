"""Common parts of the programs of the gallery: their arguments, and saving pictures and numbers."""

import argparse
import json
from pathlib import Path
import sys
import time
import warnings

import matplotlib
import numpy as np

matplotlib.use("Agg")
BEGAN = time.perf_counter()
SECONDS = []  # of each part that `once` has run or read
FREE = ("out", "fast", "seed", "data", "data_dir", "download", "references")  # are no settings


def parser(description, **size):
    """
    An argument parser with ``--fast``, ``--seed`` and ``--out``.

    :param description: the docstring of the program.
    :param size: name of an integer option -> (value with ``--fast``, value without).
    """
    name = Path(sys.argv[0]).stem.removeprefix("plot_")
    about = "".join(description.split("\n\n")[1:2])  # sphinx-gallery runs programs without their docstring
    arguments = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--fast", action="store_true", help="a few seconds, for a test")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("out") / name, metavar="FOLDER", help="picture and numbers")
    for option, (fast, full) in size.items():
        arguments.add_argument(f"--{option.replace('_', '-')}", type=int, help=f"{full}, with --fast {fast}")
    return arguments


def parsed(arguments, **size):
    """The given arguments with the sizes filled in, and ``as_shown``: whether the settings are those of the page."""
    args = arguments.parse_args()
    usual = {option: arguments.get_default(option) for option in vars(args) if option not in FREE}
    usual |= {option: values[not args.fast] for option, values in size.items()}
    for option in size:
        if getattr(args, option) is None:
            setattr(args, option, usual[option])
    args.as_shown = all(as_tuple(getattr(args, option)) == as_tuple(value) for option, value in usual.items())
    return args


def as_tuple(value):
    return tuple(value) if isinstance(value, list) else value


def shown(args):
    """Whether the claims of the page apply to these settings; prints a note if they do not."""
    if not args.as_shown:
        print("Nothing is asserted of other settings than those of the page.")
    return args.as_shown


def once(args, name, number, run):
    """
    What ``run()`` has found for a part of a long program, such as a split or a seed, from its file if there is one. The
    seconds that it took are added to ``SECONDS``. The name must contain every setting that the part depends on, unless
    each of them has its own ``--out``.
    """
    path = args.out / "parts" / f"{name}-{number}.json"
    if not path.exists() or args.fast:
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        found = run()
        path.write_text(json.dumps({"seconds": time.perf_counter() - began, "found": found}, indent=1))
    part = json.loads(path.read_text())
    SECONDS.append(part["seconds"])
    return part["found"]


def expect_refusals():
    """Suppress the warning about chains that stand still, for programs that try too large step sizes on purpose."""
    warnings.filterwarnings("ignore", "the draws are")


def ratio(a, b):
    """Ratio of the means over chains, and its standard error; chains with the same noise are compared in pairs."""
    r = a.mean() / b.mean()
    return float(r), float((a - r * b).std(ddof=1) / np.sqrt(len(a)) / abs(b.mean()))


def save(args, name, figure, metrics):
    """``name``.png and ``metrics.json`` in ``--out``, with the arguments and the seconds since the start."""
    args.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out / f"{name}.png", dpi=120)
    plain = lambda x: str(x) if isinstance(x, Path) else float(x)  # noqa: E731
    metrics = {"settings": vars(args), "seconds": time.perf_counter() - BEGAN, **metrics}
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2, default=plain) + "\n")
    print(f"The picture is {args.out / name}.png, the numbers are in {args.out / 'metrics.json'}.")
