"""Samplers on images of digits: the settings of the comparison, how they were chosen, and what is asserted of it."""

from functools import partial
from types import SimpleNamespace

from digit_ensembles import Ensembles, Plan, digit_scores, methods
from digit_kernels import GRID, QUIET, Setting
from gallery import once
from networks import load
import numpy as np
from plot_convnet import convolutional
from plot_neural_network import dense

HELD_OUT = 10_000  # training rows on which settings are chosen

# The rates of SGHMC, of its cycles and of the deep ensembles were chosen on the held-out rows by another program
# (docs/maintainers/measurements.md), those of the other kernels by `choices`. There PSGLD's step for the convolutional
# network was .01, but with several chains it is not stable.
PLANS = {
    "dense": Plan(
        members=4,
        start=5,
        chain=15,
        cycle=5,
        burn=5,
        batch=100,
        learning_rate=1e-3,
        momentum_rate=0.15,
        decay=0.1,
        spread=20.0,
        settings={
            "SGHMC": Setting(0.05, 0.02),
            "cyclical SGHMC": Setting(0.15, 1e-3),
            "descent in cycles": Setting(0.15, QUIET),
            "MSGNHT ssi": Setting(0.1, 1e-3),
            "adaptive SGHMC": Setting(1e-3, 1e-3),
            "PSGLD": Setting(1e-3, 1e-3),
            "SG-Barker": Setting(1e-4, 0.02),
        },
    ),
    "convolutional": Plan(
        members=4,
        start=4,
        chain=8,
        cycle=4,
        burn=3,
        batch=50,
        learning_rate=3e-3,
        momentum_rate=0.1,
        decay=0.1,
        spread=10.0,
        settings={
            "SGHMC": Setting(0.05, 0.02),
            "cyclical SGHMC": Setting(0.1, 1e-3),
            "descent in cycles": Setting(0.1, QUIET),
            "MSGNHT ssi": Setting(0.1, 0.02),
            "adaptive SGHMC": Setting(0.01, 0.02),
            "PSGLD": Setting(0.003, 1e-3),
            "SG-Barker": Setting(1e-5, 0.02),
        },
    ),
}

NETWORKS = {
    "dense": lambda data: dense(data, 2, SimpleNamespace(units=400, activation="relu")),
    "convolutional": lambda data: convolutional(data, SimpleNamespace(kernel=5, channels=(16, 32))),
}


def choices(args):
    """Name -> kernel -> the settings of ``GRID`` and the scores of each on held-out rows, of one chain."""
    data = load("mnist", args.data_dir).validation(HELD_OUT, args.seed)
    found = {}
    for name in args.choose:
        ensembles = Ensembles(NETWORKS[name](data), data, PLANS[name]._replace(members=1))
        found[name] = {}
        for kernel, settings in GRID.items():
            tried = found[name][kernel] = []
            for k, setting in enumerate(settings):
                scores = partial(ensembles.chain_scores, kernel, setting, args.seed)
                tried.append(once(args, f"held-out-{name}-{kernel.replace(' ', '-')}", k, scores))
                print(name, kernel, setting, tried[-1], flush=True)
            best = min(range(len(settings)), key=lambda k: tried[k]["nll"])
            print(f"{name}: {kernel}, chosen {settings[best]}", flush=True)
    return found


def digits(args):
    """Name -> what each seed has found."""
    data = load("mnist", args.data_dir)
    found = {}
    for name in args.digits:
        ensembles = Ensembles(NETWORKS[name](data), data, PLANS[name])
        found[f"mnist {name}"] = []
        for seed in range(args.seed, args.seed + args.seeds):
            part = {}
            for method, run in methods(ensembles, args.samplers).items():
                scores = partial(digit_scores, ensembles, run, seed)
                part[method] = once(args, f"mnist-{name}-{method.replace(' ', '-')}", seed, scores)
                print(name, seed, method, part[method]["averaged"], flush=True)
            one = {"one member": part["deep ensemble"]["one"]}
            found[f"mnist {name}"].append(one | {method: scores["averaged"] for method, scores in part.items()})
    return found


SEVERAL = 4  # seeds for a comparison with the deep ensemble
# what averaged predictions are to reach: accuracy in per cent, negative log likelihood
TARGETS = {"mnist dense": (98.6, 0.045), "mnist convolutional": (99.2, np.inf)}


def check_digits(results, less):
    """
    Of the means over the seeds.

    :param less: name -> method -> its negative log likelihood less that of the deep ensemble, and standard error.
    """
    scores = results.get("mnist dense", {}).get("cyclical SGHMC")
    if scores and scores["nll"][2] >= SEVERAL:
        mean, error = less["mnist dense"]["cyclical SGHMC"]
        assert mean + 2 * error < 0
    for name in TARGETS.keys() & results.keys():
        if "cyclical SGHMC" in results[name]:
            scores, (accuracy, nll) = results[name]["cyclical SGHMC"], TARGETS[name]
            assert scores["accuracy"][0] >= accuracy and scores["nll"][0] <= nll, name
