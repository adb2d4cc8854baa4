"""Common parts of the two programs on networks: arguments, runs, report and picture."""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import datasets
from gallery import expect_refusals, parsed, parser, shown
import matplotlib.pyplot as plt
from networks import Chains, Data, Setting, load, summary
import numpy as np
from tqdm import tqdm

INTEGRATORS = {"ssi": "#0072B2", "euler": "#D55E00"}
MARKERS = "os^Dv"
WORKS = 80.0  # per cent of the test rows, for a run to count as working


def arguments(description, size, lists, network):
    """
    The settings of a run.

    :param size: integer option -> (value with ``--fast``, value without).
    :param lists: option -> likewise, numbers or lists of them.
    :param network: takes the parser, adds what the network needs.
    """
    options = parser(description, **size)
    options.add_argument("--data", nargs="+", metavar="NAME", help="sets NAME.npz (default: mnist if it is found)")
    options.add_argument("--data-dir", metavar="FOLDER", help="where they are")
    options.add_argument("--batch-size", type=int, default=100)
    options.add_argument("--diffusion", type=float, default=5.0, help="D")
    options.add_argument("--step-size", type=float, help="h, halved after half of the epochs")
    options.add_argument("--sweep", type=float, nargs="+", help="step sizes of the short runs")
    options.add_argument("--step-sizes", type=float, nargs="+", help="candidates for h")
    options.add_argument("--diffusions", type=float, nargs="+", help="candidates for D")
    network(options)
    return parsed(options, **size, **lists)


def sets(args):
    """Each set asked for, and the settings with the folder for its picture and numbers."""
    names = args.data
    if names is None:
        names = ["mnist"] if datasets.available("mnist", args.data_dir) else [None]
        if names == [None]:
            print(f"mnist.npz is not at hand, the images are simulated. The data: {datasets.SOURCES['mnist'][0]}.")
    for name in names:
        out = args.out if len(names) == 1 else args.out / name
        yield load(name, args.data_dir, args.rows, args.test_rows, args.seed), Namespace(**{**vars(args), "out": out})


# -- runs -------------------------------------------------------------------------------------------------------------


class Study(NamedTuple):
    data: Data
    curves: Mapping  # (network, integrator) -> runs by the settings of the paper, one for each seed
    sweep: Mapping  # (network, integrator) -> h -> short runs
    tried: Mapping  # (D, h) -> accuracy of the averaged predictions on held-out training rows, or None
    chosen: list  # runs of the first network by the best of these

    @property
    def choice(self):
        return max(self.tried, key=self.tried.get)

    @property
    def lines(self):
        """Name -> runs of full length."""
        (first, _), *_ = self.curves
        diffusion, h = self.choice
        lines = {f"{network}, {integrator}": runs for (network, integrator), runs in self.curves.items()}
        return lines | {f"{first}, D = {diffusion:g}, h = {h:g}": self.chosen}


def study(networks, data, args):
    """
    :param networks: name -> :class:`~networks.Network`. D and h are chosen for the first of them.
    """
    expect_refusals()
    seeds = range(args.seed, args.seed + args.seeds)
    chains = {name: Chains(network, data, args.batch_size) for name, network in networks.items()}
    first, *_ = networks
    candidates = list(product(args.diffusions, args.step_sizes))
    trials = [Setting(args.seed, "ssi", *candidate) for candidate in candidates]
    both = lambda h: [Setting(s, i, args.diffusion, h) for i, s in product(INTEGRATORS, seeds)]  # noqa: E731
    paper = both(args.step_size)
    epochs = len(networks) * len(paper) * (args.epochs + args.sweep_epochs * len(args.sweep))
    epochs += args.choice_epochs * len(trials) * (len(trials) > 1)  # a single one needs no trial
    epochs += args.epochs * args.seeds * (not set(trials) <= set(paper))
    with tqdm(total=epochs, desc=data.name, unit="epoch") as bar:
        tried = dict.fromkeys(candidates)
        if len(candidates) > 1:
            held_out = Chains(networks[first], data.validation(args.held_out, args.seed), args.batch_size)
            runs = held_out.run(trials, args.choice_epochs, bar)
            tried = {candidate: run["averaged"]["accuracy"] for candidate, run in zip(candidates, runs)}
        best = max(tried, key=tried.get)
        wanted = [Setting(seed, "ssi", *best) for seed in seeds]

        curves, sweep = defaultdict(list), defaultdict(lambda: defaultdict(list))
        for name in networks:
            for setting, run in zip(paper, chains[name].run(paper, args.epochs, bar)):
                curves[name, setting.integrator].append(run)
            for h in args.sweep:  # as many chains at once as above, for one compiled program
                for setting, run in zip(both(h), chains[name].run(both(h), args.sweep_epochs, bar, halve=False)):
                    sweep[name, setting.integrator][h].append(run)
        chosen = curves[first, "ssi"] if wanted[0] in paper else chains[first].run(wanted, args.epochs, bar)
    return Study(data, curves, sweep, tried, chosen)


def works(run):
    """Whether the last draw predicts well: dead networks and chains that stand still are finite but do not work."""
    return run["accuracy"][-1] >= WORKS and not run["refused"]


def as_shown(study, args):
    """Whether these are the data and the settings of the page, with ``--fast`` or without."""
    return study.data.name == "mnist" and shown(args)


def check_averaging(study, shown):
    """
    What averaging over draws gives, in every run of full length: a lower NLL for any data, by Jensen's inequality, and
    a higher accuracy where that is claimed.
    """
    for name, runs in study.lines.items():
        for averaged, single in ((run["averaged"], run["single"]) for run in runs):
            higher = averaged["nll"] > single["nll"] + 1e-9  # false where neither is a number
            assert not higher, f"{name}: averaged predictions have a higher NLL"
            if shown:
                assert averaged["accuracy"] > single["accuracy"], f"{name}: averaged predictions are not more accurate"


def check_steps(study):
    """The smallest step size works in every run, the largest in none."""
    for (network, integrator), found in study.sweep.items():
        small, large = min(found), max(found)
        name = f"{network}, {integrator}"
        assert all(map(works, found[small])), f"{name}: not every run works at h = {small:g}"
        assert not any(map(works, found[large])), f"{name}: a run works at h = {large:g}"


# -- report -----------------------------------------------------------------------------------------------------------


def report(study, args):
    print("Test part, mean and standard error over seeds; second half: of the epochs")
    print(f"{'':36}{'accuracy %':>15}{'NLL':>18}{'ECE %':>15}")
    for name, runs in study.lines.items():
        print(f"{name}, mean square of the weights {np.mean([run['mean_square'] for run in runs]):.3f}")
        for kind, scores in summary(runs).items():
            (a, a_se), (n, n_se), (c, c_se) = scores.values()
            label = {"single": "a draw of the second half", "averaged": "averaged over these draws"}[kind]
            print(f"    {label:32}{a:8.2f} ({a_se:.2f}) {n:9.4f} ({n_se:.4f}) {c:8.2f} ({c_se:.2f})")
    print(f"Runs of {args.seeds} that work, with {WORKS:g} % right or more at the end of epoch {args.sweep_epochs}")
    print(f"{'h':>32}" + "".join(f"{h:>9g}" for h in args.sweep))
    for (network, integrator), found in study.sweep.items():
        counts = [sum(map(works, runs)) for runs in found.values()]
        print(f"{f'{network}, {integrator}':>32}" + "".join(f"{count:9}" for count in counts))


def metrics(study):
    return {
        "data": study.data.name,
        "rows": (len(study.data.y), len(study.data.y_test)),
        "mean and standard error": {name: summary(runs) for name, runs in study.lines.items()},
        "accuracy on held-out rows": {f"D = {d:g}, h = {h:g}": a for (d, h), a in study.tried.items()},
        "runs": study.lines,
        "short runs": {
            f"{network}, {integrator}": {f"{h:g}": runs for h, runs in found.items()}
            for (network, integrator), found in study.sweep.items()
        },
    }


# -- picture ----------------------------------------------------------------------------------------------------------


def draw(study, args):
    networks = list(dict.fromkeys(network for network, _ in study.curves))
    columns = len(networks) + 1
    fig, axes = plt.subplots(2, columns, figsize=(4.3 * columns, 7), layout="constrained", squeeze=False)
    for column, network in zip(axes.T, networks):
        draw_curves(column, {name: study.curves[network, name] for name in INTEGRATORS})
        column[0].set_title(network, loc="left")
    draw_sweep(axes[0, -1], networks, study.sweep, args)
    draw_averaged(axes[1, -1], study.lines)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    shown = [handle for ax in (axes[0, 0], *axes[:, -1]) for handle in ax.get_legend_handles_labels()[0]]
    fig.legend(handles=shown, loc="outside lower center", ncol=len(shown), frameon=False)
    return fig


def draw_curves(axes, runs):
    """One thin line for each seed, a thick one for their mean."""
    for ax, key in zip(axes, ("accuracy", "train_nll")):
        for name, color in INTEGRATORS.items():
            values = np.array([run[key] for run in runs[name]])
            epochs = np.arange(1, values.shape[1] + 1)
            ax.plot(epochs, values.T, color=color, lw=0.6, alpha=0.5)
            ax.plot(epochs, values.mean(0), color=color, lw=1.8, ls="-" if name == "ssi" else "--", label=name)
        ax.set(xlabel="epoch")
    top, bottom = axes
    top.set(ylabel="test accuracy of a draw, %")
    bottom.set(ylabel="training NLL of a draw")


def draw_sweep(ax, networks, sweep, args):
    for (network, integrator), found in sweep.items():
        marker, side = MARKERS[networks.index(network) % len(MARKERS)], {"ssi": 1 / 1.07, "euler": 1.07}[integrator]
        look = {"color": INTEGRATORS[integrator], "mfc": "none", "ls": "", "marker": marker, "ms": 6}
        for h, runs in found.items():
            ax.plot([h * side] * len(runs), [run["accuracy"][-1] for run in runs], **look)
    for network, marker in zip(networks, MARKERS):
        ax.plot([], [], color="grey", mfc="none", ls="", marker=marker, label=network)
    ax.set(xscale="log", ylim=(0, 102), xlabel="constant step size h")
    ax.set(ylabel=f"test accuracy after epoch {args.sweep_epochs}, %")
    ax.set_xticks(args.sweep, [np.format_float_scientific(h, trim="-", exp_digits=1) for h in args.sweep], fontsize=9)
    ax.set_xticks([], minor=True)
    ax.set_title("each mark is a draw of one run", loc="left")


def draw_averaged(ax, lines):
    for y, runs in enumerate(lines.values()):
        looks = (("o", "grey", "a draw"), ("D", "black", "averaged"))
        for scores, (marker, color, label) in zip(summary(runs).values(), looks):
            mean, error = scores["accuracy"]
            ax.errorbar(mean, y, xerr=error, fmt=marker, color=color, ms=5, capsize=2, label=None if y else label)
    names = [name.replace(", D", ",\nD") for name in lines]
    ax.set_yticks(range(len(lines)), names, fontsize=9)
    ax.set(xlabel="test accuracy with its standard error, %", ylim=(len(lines) - 0.5, -0.5))
    ax.locator_params(axis="x", nbins=5)
