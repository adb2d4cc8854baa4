"""What the programs of the gallery share: their arguments, and where pictures and numbers go."""

import argparse
import json
from pathlib import Path
import sys
import time

import matplotlib

matplotlib.use("Agg")
BEGAN = time.perf_counter()


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
    """The arguments given, sizes filled in."""
    args = arguments.parse_args()
    for option, values in size.items():
        if getattr(args, option) is None:
            setattr(args, option, values[0] if args.fast else values[1])
    return args


def save(args, name, figure, metrics):
    """``name``.png and ``metrics.json`` in ``--out``, with the arguments and the seconds since the start."""
    args.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out / f"{name}.png", dpi=120)
    plain = lambda x: str(x) if isinstance(x, Path) else float(x)  # noqa: E731
    metrics = {"settings": vars(args), "seconds": time.perf_counter() - BEGAN, **metrics}
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2, default=plain) + "\n")
    print(f"The picture is {args.out / name}.png, the numbers are in {args.out / 'metrics.json'}.")
