"""
Write docs/results.md and the table of docs/diagnostics.md from the files in out/: ``make figures experiments results``.

Each of our numbers is read from a ``metrics.json`` that a program of the gallery wrote. The papers' numbers are given
here and in the programs. ``make results ARGS="--only double_well"`` rewrites one section and keeps the others.
"""

import argparse
import datetime
from importlib.metadata import version
import json
import os
from pathlib import Path
import re

DOCS = Path(__file__).resolve().parents[1]


def with_error(mean, error, digits=2):
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


# -- rows: (what, the paper's number, ours) ------------------------------------------------------------------------


def step_size_bias(m):
    for D, limits in m["limits"].items():
        orders = m["orders"][D]
        for name, (limit, _) in limits.items():
            order = f"order {orders[name]['var theta']:.2f}, " if name in orders else ""
            yield f"{name}, {D}", "a curve", f"{order}unstable from h = {limit:.4f}"


def convergence_rates(m):
    expected = {"bias, fixed, ssi": "-2/3", "bias, fixed, SGLD": "-1/2", "MSE, fixed, ssi": "-4/5"}
    for cell, (slope, _) in m["slopes, found and expected"].items():
        quantity, steps, name, gradients = cell.split(", ")
        theory = expected.get(f"{quantity}, fixed, {name}", "-2/3")
        yield f"slope of the {quantity}, {steps} steps, {name}, {gradients}", theory, f"{slope:.3f}"
    for label, slope in m.items():
        if label.startswith("slope of the bias"):
            yield label.removeprefix("slope of the "), "-1/2", f"{slope:.3f}"


def double_well(m):
    chains = m["settings"]["chains"]

    def cell(word, found):
        if found["kl"] is None:
            return f"{word}: all {chains} chains explode"
        exploded = f" ({found['exploded']} of {chains} chains explode and are left out)" if found["exploded"] else ""
        return f"{word} {found['kl']:.1e}, {found['thermostat']:.3f}{exploded}"

    for h in m["ssi"]:
        cells = [cell(word, m[word][h]) for word in ("euler", "ssi", "ADBOBDA")]
        yield f"KL and mean thermostat, h = {h}", "a curve", "; ".join(cells)


def mixture(m):
    for sampler, found in m["samplers"].items():
        ratios = " and ".join(with_error(mode["sd_ratio"], mode["sd_ratio_se"], 3) for mode in found["modes"])
        yield f"{sampler}: sd in each mode over the exact one", "histograms", ratios


def minibatch_bias(m):
    for estimator, points in m["logistic regression: h omega, inflation, standard error, predicted"].items():
        for h, inflation, error, _ in points[-3::2]:
            yield f"inflation of the variance, {estimator}, h ω = {h:g}", "none", with_error(inflation, error, 3)


def logistic_regression(m):
    def cell(row):
        ours = f"{row['failed']} failed" if row["failed"] else with_error(row["accuracy"], row["se"])
        return f"h = {row['h']:g}: {ours}"

    for name, found in m["data"].items():
        for sampler, rows in found["all"].items():
            for D in dict.fromkeys(row["D"] for row in rows):
                what = f"{name}: {sampler}{'' if D is None else f', D = {D:g}'}, accuracy in %"
                yield what, "not reported", "; ".join(cell(row) for row in rows if row["D"] == D)
        for sampler, row in found["chosen"].items():
            paper = f"{row['paper']} %" if row["paper"] else "none"
            setting = "" if row["D"] is None else f"D = {row['D']:g}, "
            what = f"{name}: {sampler}, {setting}h = {row['h']:g}, chosen on validation rows"
            ours = f"{with_error(row['accuracy'], row['se'])} %"
            if row["behind_se"]:  # not of the first, which the others are compared with on the same rows
                ours += f"; less than the first by {with_error(row['behind'], row['behind_se'])}"
            yield what, paper, ours
        yield (
            f"{name}: the mode; standard error of the test",
            "none",
            f"{with_error(found['mode'], found['test_se'])} %",
        )
    yield "a9a: DSVI, HFSGVI", "84.80 %, 84.84 %", "not run"


def gradient_variance(m):
    step = m["settings"]["step_sizes"][0]
    for name, table in m["pass: variance of plain / estimator, standard error"].items():
        for cell, passes in table.items():
            if not cell.endswith(f", {step}"):
                continue  # the other step sizes are much alike
            after = {
                number: with_error(*passes[number], 1) for number in ("2", max(passes, key=int)) if number in passes
            }
            ours = ", ".join(f"{ratio} in pass {number}" for number, ratio in after.items())
            yield f"{name}: variance of plain minibatches over that of {cell} / λ", "a curve", ours


def passes(m):
    for name, found in m["data"].items():
        for sampler, s in found["scores"].items():
            noise, until = found["noise"].get(sampler), s["passes until SGLD is matched"]
            ours = with_error(s["score"], s["standard error"], 4)
            if sampler != "SGLD":
                ours += f"; minus that of SGLD {with_error(s['difference from SGLD'], s['standard error of that'], 4)}"
            whose = "its" if sampler == "SGLD" else "SGLD's"
            when = "never" if until is None else f"after {until:.1f} of {s['passes']:.1f} passes"
            ours += f"; {whose} final score {when}"
            ours += f"; settings at an edge of the grid in {s['folds at an edge of the grid']} of {s['folds']} folds"
            if noise and "inflation" in noise:
                ours += f"; inflation {with_error(noise['inflation'], noise['standard error of the inflation'], 3)}"
            if noise and sampler != "SGLD":
                gain = with_error(noise["gain"], noise["standard error of the gain"], 1)
                ours += f"; variance of the gradient {gain} times less"
            yield f"{name} ({found['rows']} rows): {sampler}", "a curve", ours


def ica(m):
    for name, found in m["data"].items():
        for method, r in found["methods"].items():
            what = f"{name}: {method}, test log likelihood of a row below that of NUTS ({found['NUTS']['score']:.3f})"
            chains = m["settings"]["folds"] * m["settings"]["chains"]
            left = f"; {r['chains that left']} of {chains} chains left" * bool(r["chains that left"])
            yield what, "a curve", with_error(*r["last gap"], 4) + left


def covertype_scale(m):
    for sampler, found in m["samplers"].items():
        reached = found["both below 0.1 from"]
        when = f"{reached:.0f} s" if reached < float("inf") else f"not in {found['seconds']:.0f} s"
        errors = f"at the end mean {found['mean error'][0]:.3f} sd, sd {100 * found['sd error'][0]:.1f} %"
        yield f"{m['data']}: {sampler}, median errors below 0.1", "none", f"{when}; {errors}"


def hierarchical(m):
    for rows, found in ((key, value) for key, value in m.items() if key.endswith(" rows")):
        for sampler, run in found.items():
            ours = f"{run['seconds']:.0f} s"
            if "slope" in run:
                ratios = run["intercept"]["sd_ratio"] + run["slope"]["sd_ratio"]
                ours += f"; sd of the effects over that by NUTS {sum(ratios) / len(ratios):.3f}"
            yield f"{rows}: {sampler}", "none", ours


def networks(m):
    for name, kinds in m["mean and standard error"].items():
        cells = [
            f"{score} {with_error(*kinds['averaged'][score], 4 if score == 'nll' else 2)}"
            for score in kinds["averaged"]
        ]
        paper = "a curve" if name.startswith("depth") and "D =" not in name else "not reported"
        yield f"{m['data']}: {name}, averaged predictions", paper, ", ".join(cells)


def network_samplers(m):
    def cell(mean, error, *_):
        return f"{mean:.4f}" if error != error else with_error(mean, error, 4)  # of one split there is no error

    for name, found in m["results"].items():
        less = m["less the deep ensemble"][name]
        score = next(s for s in ("log density", "nll", "total variation") if s in found["deep ensemble"])
        for method, scores in found.items():
            ours = ", ".join(f"{what} {cell(*scores[what])}" for what in scores)
            if method in less:
                ours += f"; {score} less that of the deep ensemble {cell(*less[method])}"
            if method in (more_right := m.get("accuracy less the deep ensemble", {}).get(name, {})):
                ours += f", accuracy {cell(*more_right[method])}"
            count = scores[score][2]
            yield f"{name}: {method}, {count} split{'s' * (count > 1)} or seed{'s' * (count > 1)}", "none", ours


def no_numbers(m):
    problems = m["problems"]
    for name, found in problems.items():
        if "raised" in found:
            yield name, "none", f"raised {found['raised'].splitlines()[0]}"
            continue
        sd, mean = found["sd"], found["mean"]
        ours = f"sd: median error {sd['median']:.3f}, worst {with_error(sd['worst'], sd['worst_se'], 3)}; "
        ours += f"worst mean {with_error(mean['worst'], mean['worst_se'], 3)} sd; "
        ours += f"{found['seconds']:.0f} s, NUTS {found['nuts']['seconds']:.0f} s"
        wrong = max(sd["beyond_monte_carlo"], mean["beyond_monte_carlo"]) > 0.2 or not found["largest_r_hat"] < 1.1
        ours += "; **not right**" * wrong + "; a warning" * bool(found["warnings"])
        yield f"{name}: {found['coordinates']} coordinates, {found['rows']} rows", "none", ours


def without_settings(m):
    """What is neither a setting nor the time."""
    return ((name, found) for name, found in m.items() if name not in ("settings", "seconds"))


def recipe(m):
    for name, found in without_settings(m):
        yield f"{name}: KL {', KL '.join(found)}", "none", ", ".join(f"{x:.4f}" for x in found.values())


def simplex(m):
    for name, found in without_settings(m):
        ours = f"{found['mean distance']:.4f}, {found['worst']:.4f}"
        yield f"{name}: distance from the law of a category, mean and worst", "none", ours


def lda(m):
    reference = m["perplexity"]["collapsed Gibbs"]
    for name, found in m["perplexity"].items():
        if not found:
            continue
        if float("inf") in found:
            ours = "steps were refused"
        else:
            ours = f"{sum(found) / len(found):.0f} ({', '.join(f'{x:.0f}' for x in found)})"
            if found and len(found) == len(reference):
                ours += f"; {sum(found) / sum(reference):.3f} of the reference"
        yield f"{m['data']}: {name}, perplexity by split", "of another corpus", ours


def out_of_core(m):
    for name, found in without_settings(m):
        if found is None:
            continue
        numbers = found if isinstance(found, list) else [found]
        yield name, "none", ", ".join(f"{x:.3g}" for x in numbers)


def sbn(m):
    for name, found in m["nats"].items():
        paper = "none" if found["paper"] is None else f"{found['paper']}"
        seeds = ", ".join(f"{x:.2f}" for x in found["by seed"])
        if found["paper"] is not None and len(found["by seed"]) < m["settings"]["seeds"]:
            seeds += " (the program was stopped before the others)"
        ours = f"{with_error(*found['last draw'])}, {with_error(*found['average of draws'])}; seeds {seeds}"
        if "minus SGHMC ssi" in found:
            ours += f"; last draw, minus that of SGHMC ssi: {with_error(*found['minus SGHMC ssi'])}"
        yield f"{name}: nats of a test image by the last draw, by three averaged, ± over images", paper, ours
    yield "independent pixels", "none", f"{m['independent pixels']:.1f}"
    bias = m["bias of annealing"]
    yield f"nats less with {bias['temperatures']} temperatures", "none", with_error(*bias["lower by"])


def dpfa(m):
    for name, found in m["perplexity"].items():
        ours = f"{found['last draw']:.0f}, {found['averaged']:.0f}" + ("; steps were refused" * found["refused"])
        yield f"{m['data']}: {name}, perplexity by the last draw, by the second half averaged", "a curve", ours
    yield f"{m['data']}: LDA, collapsed Gibbs sampling", "a curve", f"{m['collapsed Gibbs']:.0f}"


def many_topics(m):
    for name, found in m["perplexity"].items():
        ours = f"{found['perplexity']:.0f}" + ("; steps were refused" * found["refused"])
        yield f"{m['data']}: {name}, perplexity", "of another corpus", ours
    if m.get("runs") != len(m["perplexity"]):
        yield "the program was stopped", "", f"after {len(m['perplexity'])} runs"


def noise(m):
    for name, found in without_settings(m):
        ours = f"{100 * found['excess']:.1f} %; {100 * found['error']:.1f} % after {found['rows']:.1e} rows"
        yield f"{name}: excess of the variances; their error in a chain", "none", ours


def diagnostics(m):
    for name, column in m["table"].items():
        moved = [cell for cells in column.values() for cell in cells if cell and cell["moved"]]
        ways = {"told unasked": "told", "without check": "without", "red with the data": "red"}
        ours = ", ".join(f"{sum(bool(cell[key]) for cell in moved)} {way}" for way, key in ways.items())
        yield f"{name}: runs in which a fault moves a mean or an sd", "none", f"{len(moved)}; {ours}"
    right = [run | {"verdicts": [run["verdict"]]} for column in m["table"].values() for run in column["none"]]
    for kind, runs in (
        ("given", right),
        ("found in the warm-up", [run for of in m["right runs"].values() for run in of]),
    ):
        silent = sum(set(run["verdicts"]) == {"right"} and not run["told"] for run in runs)
        yield f"right runs, numbers {kind}: right, and no warning", "none", f"{silent} of {len(runs)}"


def faults(m):
    """The table of docs/diagnostics.md: how often each fault of each model has moved something, and is told."""
    heads = ["fault", "model", *m["columns"].values(), "lines with the data"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for fault in next(iter(m["table"].values())):
        for name, column in m["table"].items():
            cells, counts = column[fault], m["counts"][name][fault]
            if counts is None:
                counted = ["refused at the start", *["-"] * len(m["columns"])]
            else:
                red = [line for cell in cells for line in cell["red"]]
                often = [line for line in dict.fromkeys(red) if 2 * red.count(line) > len(cells)]
                counted = [f"{counts[key]} of {len(cells)}" for key in m["columns"]]
                counted.append(", ".join(m["short names"].get(line, line) for line in often) or "-")
            if cells:
                lines.append(f"| {' | '.join([fault, name, *counted])} |")
    return "\n".join(lines)


def write_faults(folder):
    path, page = folder / "diagnostics" / "metrics.json", DOCS / "diagnostics.md"
    if path.exists():
        head, _, rest = page.read_text().partition("| fault |")
        _, _, tail = rest.partition("\n\n")
        page.write_text(f"{head}{faults(json.loads(path.read_text()))}\n\n{tail}")


PROGRAMS = {
    "step_size_bias": ("Chen et al. (2015), figure 1", step_size_bias),
    "convergence_rates": ("Chen et al. (2015), figures 2 and 3", convergence_rates),
    "double_well": ("Li et al. (2016), figures 1 and 2", double_well),
    "logistic_regression": ("Li et al. (2016), table 2", logistic_regression),
    "lda": ("Li et al. (2016), figure 3 and table 1", lda),
    "sbn": ("Chen et al. (2015), section 5", sbn),
    "dpfa": ("Li et al. (2016), figure 5", dpfa),
    "many_topics": ("Chen et al. (2015), figure 4", many_topics),
    "many_topics_500": ("Chen et al. (2015), figure 4", many_topics),  # --topics 500 --out out/many_topics_500
    "neural_network": ("Li et al. (2016), figure 4", networks),
    "convnet": ("Li et al. (2016), 5.2", networks),
    "regression": ("Dubey et al. (2016), figure 1", passes),
    "classification": ("Dubey et al. (2016), figure 2", passes),
    "gradient_variance": ("Dubey et al. (2016), figure 3", gradient_variance),
    "ica": ("Dubey et al. (2016), section 5.3", ica),
    "mixture": ("Dubey et al. (2016), section 5.4", mixture),
    "minibatch_bias": ("beyond the papers", minibatch_bias),
    "hierarchical": ("beyond the papers", hierarchical),
    "covertype_scale": ("beyond the papers", covertype_scale),
    "recipe": ("Ma, Chen & Fox (2015)", recipe),
    "simplex": ("Patterson & Teh (2013), Baker et al. (2018)", simplex),
    "noise": ("beyond the papers", noise),
    "network_samplers": ("beyond the papers", network_samplers),
    "out_of_core": ("beyond the papers", out_of_core),
    "no_numbers": ("beyond the papers", no_numbers),
    "hierarchies": ("beyond the papers", no_numbers),
    "diagnostics": ("beyond the papers", diagnostics),
}
HIDDEN = ("out", "fast", "data_dir", "data", "as_shown", "samplers", "reference", "references", "problems")


def section(name, source, rows, folder):
    # no link in the heading, which goes into tables of contents
    program = f"plot_{name.removesuffix('_500')}.py"
    head = f"## {name.replace('_', ' ')}: {source}\n\n[{program}](../examples/{program}): "
    path = folder / name / "metrics.json"
    if not path.exists():
        return f"{head}not run.\n"
    metrics = json.loads(path.read_text())
    settings = ", ".join(f"{k} {v}" for k, v in metrics["settings"].items() if k not in HIDDEN and v is not None)
    if metrics["settings"]["fast"]:
        settings += "; a fast run, which shows no more than that the program works"
    lines = ["| | paper | ours |", "| --- | --- | --- |"] + [f"| {' | '.join(row)} |" for row in rows(metrics)]
    date = datetime.date.fromtimestamp(path.stat().st_mtime)
    return f"{head}{metrics['seconds']:.0f} s on {date}; {settings}.\n\n" + "\n".join(lines) + "\n"


def main(args):
    page = DOCS / "results.md"
    written = {name: section(name, *PROGRAMS[name], args.out) for name in args.only or PROGRAMS}
    if args.only:
        head, *old = re.split(r"\n(?=## )", page.read_text())
        kept = dict(zip(map(heading, old), old))
        sections = [head, *(kept | {heading(text): text for text in written.values()}).values()]
    else:
        sections = [introduction(), *written.values()]
    page.write_text("\n".join(sections))
    if "diagnostics" in written:
        write_faults(args.out)


def heading(section):
    return section.partition("\n")[0]


def introduction():
    machine = f"{os.cpu_count()} cores, jax {version('jax')}, numpyro {version('numpyro')}"
    return (
        "# Results\n\n"
        f"The results of `make figures experiments` ({machine}), written by [results.py](scripts/results.py). `±` is a "
        "standard error over seeds, folds or chains. D is the friction or the intensity of the injected noise, as in "
        "the papers; the README calls it γ. Other programs may have run on the machine, so the seconds are upper "
        "bounds. Each program explains what its numbers mean, and what they do not show.\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the programs' output")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help="rewrite these sections only")
    main(parser.parse_args())
