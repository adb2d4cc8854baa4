"""Time to a right answer: each sampler in a process of its own, compilation and every search included."""

import json
from pathlib import Path
import subprocess
import sys
import time

from bench import arguments, kept, save, table
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size
from posteriors import POSTERIORS
from samplers import SAMPLERS
from truth import PATH

SD, MEAN = 0.05, 0.1  # right: relative error of every sd, and error of every mean in sds
TIMES, LEAST = 1.5, 45  # times the first sampler's time, and no less than so many seconds
START = 20  # seconds in which a process imports its modules
FITS = "SVI, AutoMultivariateNormal", "SVI, AutoLowRankMultivariateNormal", "Laplace", "BlackJAX Pathfinder"
PATIENCE = 30  # looks at a fit without a gain of a hundredth
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.png"


def errors(draws, truth):
    """The largest errors of the moments of draws of shape ``(chains, draws, d)``."""
    mean, sd = (np.asarray(truth[key]) for key in ("mean", "sd"))
    x = draws.reshape(-1, draws.shape[-1])
    return float(np.abs(x.std(0, ddof=1) / sd - 1).max()), float((np.abs(x.mean(0) - mean) / sd).max())


def distance(at):
    """At most 1 where an answer is right."""
    return max(at["sd"] / SD, at["mean"] / MEAN)


def one(name, label):
    """Errors against time, printed as JSON, until they are small or no longer improve."""
    problem, is_fit = POSTERIORS[name](), label in FITS
    problem = problem._replace(args=tuple(map(jnp.asarray, problem.args)))
    truth = json.loads(PATH.read_text())[name]
    begin, parts, best, since, first = time.perf_counter(), [], np.inf, 0, None
    try:
        for draws, passes in SAMPLERS[label](problem):
            seconds = time.perf_counter() - begin
            parts = [np.asarray(draws, float)] if is_fit else [*parts, np.asarray(draws, float)]
            sd, mean = errors(np.concatenate(parts, 1), truth)
            if not best <= 1:
                print(json.dumps({"seconds": seconds, "passes": passes, "sd": sd, "mean": mean}), flush=True)
            now = distance({"sd": sd, "mean": mean})
            was_right, (best, since) = best <= 1, (now, 0) if now < 0.99 * best else (best, since + 1)
            first = first or seconds
            if was_right and not is_fit:
                ess = effective_sample_size(np.concatenate(parts[1:], 1)).min() / (seconds - first)
                print(json.dumps({"ess a second": float(ess)}), flush=True)
            if was_right or is_fit and (best <= 1 or since > PATIENCE):
                break
    except Exception as error:  # a peer that fails is a row of the table, not the end of the benchmark
        print(json.dumps({"failed": f"{type(error).__name__}: {error}".splitlines()[0][:60]}), flush=True)


def follow(name, label, limit):
    """The same in a process of its own, which is ended at the limit."""
    command = ["timeout", str(limit + START), sys.executable, __file__, "--one", name, label]
    printed = subprocess.run(command, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    out = {"path": [line for line in lines if "seconds" in line and line["seconds"] <= limit], "limit": limit}
    for line in lines:
        out |= line if "seconds" not in line else {}
    return out


def row(label, found):
    if not found["path"]:
        return [label, found.get("failed") or f"not in {found['limit']:.0f}", "", "", "", ""]
    last, best = found["path"][-1], min(found["path"], key=distance)
    right = distance(last) <= 1
    speed = found.get("ess a second")
    return [
        label,
        f"{last['seconds']:.1f}" if right else f"not in {found['limit']:.0f}",
        f"{last['passes']:.0f}" if right and last["passes"] == last["passes"] else "",
        f"{best['sd']:.3f}",
        f"{best['mean']:.3f}",
        f"{speed:.3g}" if speed else "",
    ]


def ranking(numbers):
    """The samplers that are right, the fastest first, as a sentence."""
    right = {label: found["path"][-1] for label, found in numbers.items() if found["path"]}
    right = {label: last["seconds"] for label, last in right.items() if distance(last) <= 1}
    order = [f"{label} ({right[label]:.0f} s)" for label in sorted(right, key=right.get)]
    return f"Right, the fastest first: {', '.join(order) or 'none'}.\n"


def picture(results):
    """Error against seconds, a panel for each posterior."""
    import matplotlib.pyplot as plt

    colours = dict(zip(SAMPLERS, plt.get_cmap("tab20").colors[::2] + ("black",)))
    across = min(4, len(results))
    down = -(-len(results) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(max(11, 3.3 * across), 1 + 3 * down), squeeze=False, layout="constrained"
    )
    for axes, (name, numbers) in zip(panels.flat, results.items()):
        for label, found in numbers.items():
            x, y = ([f(at) for at in found["path"]] for f in (lambda at: at["seconds"], distance))
            best = np.minimum.accumulate(y) if label in FITS else y
            wide = 2.5 if label == next(iter(SAMPLERS)) else 1
            axes.plot(x, best, "-o", ms=3, lw=wide, color=colours[label], label=label, zorder=2 + wide)
        axes.axhline(1, color="0.6", lw=0.8)
        axes.set(xscale="log", yscale="log", title=name, ylim=(0.1, 100))
    for axes in panels.flat[len(results) :]:
        axes.axis("off")
    for axes in panels[:, 0]:
        axes.set_ylabel("worst error / allowed error")
    for axes in panels[-1]:
        axes.set_xlabel("seconds")
    handles = [plt.Line2D([], [], color=colour, label=label) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncol=3, frameon=False)
    return figure


COLUMNS = ["sampler", "s", "passes", "error of sd", "of mean", "effective draws / s"]
HEAD = (
    "## Time to a right answer\n\n![](benchmarks.png)\n\n"
    "Seconds, compilation and every search included, until every mean is within 0.1 sd of the truth and every sd "
    "within 5 %; gradients until then, in passes over the data; the largest errors at the best moment; effective draws "
    "a second after the warm-up (the smallest over coordinates). The truth is a long run of NUTS on all rows, or "
    f"quadrature (`truth.py`). A sampler is ended at {TIMES} times the time of the first line, at least after "
    "{least:g} s; a fit also when it no longer improves. Peers are used as their documentation says, with all rows "
    "taken without a copy; NUTS and MCLMC with one chain, which uses both cores. The warm-up of NUTS is counted as so "
    "many of its draws.\n\n"
)


def main(args):
    results = {}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "answer.md").write_text(HEAD.format(least=args.least))  # before those of the posteriors on the page
    for name in args.posteriors:
        numbers = kept(args, f"answer_{name}")
        for label in SAMPLERS:
            if args.only and not any(text in label for text in args.only):
                continue
            first = numbers.get(next(iter(SAMPLERS)), {}).get("path") or [{"seconds": 120}]
            limit = 20 if args.fast else max(TIMES * first[-1]["seconds"], args.least)
            numbers[label] = follow(name, label, limit)
            rows = [row(label, numbers[label]) for label in SAMPLERS if label in numbers]
            text = f"### {name}\n\n{POSTERIORS[name].__doc__}\n\n" + table(COLUMNS, rows) + "\n" + ranking(numbers)
            save(args, f"answer_{name}", text, numbers)
        results[name] = numbers
    picture(results).savefig(args.out / "answer.png" if args.fast else PICTURE, dpi=110)


if __name__ == "__main__":
    parser, truth = arguments(__doc__), json.loads(PATH.read_text())
    known = [name for name in POSTERIORS if name in truth]
    parser.add_argument("--posteriors", nargs="+", choices=known, default=known, help="those with a truth")
    parser.add_argument("--one", nargs=2, metavar=("POSTERIOR", "SAMPLER"))
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="TEXT", help="samplers whose name contains one of these"
    )
    parser.add_argument("--least", type=float, default=LEAST, help="seconds that each sampler has at least")
    arguments_given = parser.parse_args()
    if arguments_given.one:
        one(*arguments_given.one)
    else:
        main(arguments_given)
