r"""
Samplers for networks: ensembles of short chains
================================================

Does it pay to sample at the end of training, rather than to train on? Networks for regression, 50 hidden units and an
unknown noise, and networks for digits, each started from several optimised members. All methods see the same number of
minibatches.
"""

# %%
# What is compared
# ----------------
# ``warm_start`` trains the members at once, on a part of the minibatches, a third for the regressions. For the rest a
# *deep ensemble* goes on training (``warm_start`` with as many steps as all of it, its step size falling all the way),
# and the samplers start one chain at each member, the first part of it as warm-up. ``predict`` averages the predictions
# of all draws of all chains. Scores of regressions are the mean log density of test rows and the root mean squared
# error, in units of the standard deviation of y; of digits accuracy, negative log likelihood (NLL), calibration error,
# and the entropy of the predictions for images that are turned by 90 degrees.
#
# A better score does not mean that a method is nearer to the posterior. A network of 51 weights for three classes is
# small enough for NUTS. The third comparison is how near the others come to its predictions (``small_networks.py``).
#
# ``--data airfoil bike`` takes regression sets by name, ``--digits dense convolutional`` MNIST. For a regression set,
# the standard deviation of the prior, Adam's first step and the step size of the chains are chosen on the validation
# rows of the first split, for the ensemble and for each sampler of ``--tuned`` by itself, and then kept for all splits
# (``regression_ensembles.py``). The simulated rows and the small network have fixed settings. Each choice, split and
# seed is kept in a file of its own, and not run again.
#
# On MNIST the deep ensemble is trained by gradient descent with momentum, whose step falls as a cosine. The chains are
# those of SGHMC with cyclical steps, with a draw at the end of each cycle. Their temperature is so far below 1 that
# they are nearly gradient descent with restarts, and their draws are not draws from the posterior. The steps of both
# were chosen on validation rows, prior, batches and temperature by the predictions of the chains. The other kernels of
# ``--samplers`` run in the same cycles; ``--choose`` tries step sizes and temperatures for each of them on validation
# rows (``digit_kernels.py``). The test images took no part in any choice but that of the step of PSGLD for the
# convolutional network, which the page of measurements explains.
#
# What is asserted
# ----------------
# All scores are on the page of :doc:`results </results>`, and those of the regression sets on the page of
# :doc:`measurements </maintainers/measurements>`.
#
# Of the simulated data, which the program makes by itself (``check``): MSGNHT and adaptive SGHMC predict better than a
# single member that was trained for as long as the ensemble, and no method predicts better than the deep ensemble. From
# starts and ensembles by a slower optimizer it was the other way round, which was no merit of sampling. PSGLD and
# SG-Barker move little in so few steps and stay near their starts.
#
# Of the regression sets, if they are there (``check_regressions``): with settings chosen on validation rows, the mean
# log density of MSGNHT over ten splits is not below that of the deep ensemble on airfoil and concrete, and below it on
# bike and parkinsons.
#
# Of the small network (``check_small``): the total variation distance from NUTS of SGHMC, MSGNHT, adaptive SGHMC and
# SG-Barker is less than half that of the deep ensemble. So the samplers are nearer to the posterior.
#
# Of MNIST, if it is there (``check_digits``): the averaged predictions of cyclical SGHMC reach the accuracy, and for
# the dense network the negative log likelihood, that were aimed at. The deep ensemble reaches them too. On the dense
# network the chains have a lower negative log likelihood than the ensemble, which is asserted of several seeds. They
# average several times as many networks, and that is where they gain: a higher temperature does not improve predictions
# after so few epochs, as the page of measurements shows.

from argparse import Namespace
from functools import partial

import datasets
from digit_comparison import PLANS, check_digits, choices, digits
from gallery import SECONDS, expect_refusals, once, parsed, parser, save, shown
import jax.numpy as jnp
import matplotlib.pyplot as plt
from networks import mean_error
import numpy as np
from regression_ensembles import TUNED, choose_and_test, compare, paired, simulated, simulated_split
from small_networks import compare_with_nuts

X_LABEL = {
    "log density": "log density of test rows",
    "nll": "log density of test images",
    "total variation": "minus the total variation from NUTS",
}


def over(parts):
    """Method -> score -> mean over splits or seeds, standard error, and how many; for the methods that all have."""
    return {
        method: {
            score: (*map(float, mean_error([part[method][score] for part in parts if method in part])), count)
            for score in parts[0][method]
        }
        for method in parts[0]
        for count in [sum(method in part for part in parts)]
    }


def against(parts, score, base="deep ensemble"):
    """Method -> mean of its score less that of the deep ensemble, by split or seed, and standard error."""
    less = lambda method: [part[method][score] - part[base][score] for part in parts if method in part]  # noqa: E731
    return {method: list(map(float, mean_error(less(method)))) for method in parts[0] if method != base}


def judged_by(found):
    """The score that the methods are compared by."""
    return next(score for score in X_LABEL if score in found["deep ensemble"])


def report(name, found):
    print(name)
    for method, scores in found.items():
        cells = [f"{score} {mean:.4f} ({error:.4f}, {n})" for score, (mean, error, n) in scores.items()]
        print(f"  {method:16s} {', '.join(cells)}")


def draw(results):
    figure, axes = plt.subplots(1, len(results), figsize=(1.5 + 4 * len(results), 3.5), squeeze=False)
    for ax, (name, found) in zip(axes[0], results.items()):
        score = judged_by(found)
        sign = 1 if score == "log density" else -1
        values = np.array([sign * scores[score][0] for scores in found.values()])
        errors = np.nan_to_num([scores[score][1] for scores in found.values()])
        ax.errorbar(values, range(len(found)), xerr=errors, fmt="o", capsize=2)
        ax.axvline(sign * found["deep ensemble"][score][0], color="0.3", linestyle=":")
        ax.set_yticks(range(len(found)), list(found))
        ax.set(title=name, xlabel=X_LABEL[score])
        ax.locator_params(axis="x", nbins=5)
        ax.invert_yaxis()
    figure.tight_layout()
    return figure


def small(args):
    """What each seed has found of the network that NUTS samples too."""
    names = args.kernels or (["SGHMC"] if args.fast else [])
    run = partial(compare_with_nuts, args.members, args.small_steps, args.nuts_draws, names)
    seeds = range(args.seed, args.seed + args.seeds)
    return [once(args, "small", seed, partial(run, seed)) for seed in seeds]


def check_small(found):
    """Of the means over the seeds."""
    distance = {name: scores["total variation"][0] for name, scores in found.items()}
    for name in ("SGHMC", "MSGNHT ssi", "adaptive SGHMC", "SG-Barker"):
        assert distance["NUTS"] < distance[name] < 0.5 * distance["deep ensemble"], name


def check(found):
    log_density = {name: score["log density"] for name, score in found.items()}
    assert all(map(np.isfinite, log_density.values()))
    for name in ("MSGNHT ssi", "adaptive SGHMC"):
        assert log_density[name] > log_density["one member"], name
    assert max(log_density, key=lambda name: log_density[name]) == "deep ensemble"


# whether chains are not below the deep ensemble, in the mean over the splits
NOT_BELOW = {"airfoil": True, "bike": False, "concrete": True, "parkinsons": False}


def check_regressions(less):
    for name in NOT_BELOW.keys() & less.keys():
        assert (less[name]["MSGNHT ssi"]["mean"] >= 0) == NOT_BELOW[name], name


def regressions(args):
    """Name -> what each split has found; name -> the choices; name -> differences from the deep ensemble."""
    args = Namespace(**vars(args) | {"steps": args.data_steps})
    found, chosen, less = {}, {}, {}
    for name, splits in regression_splits(args).items():
        keep = lambda what, number, run, name=name: once(args, f"{name}-{what}", number, run)  # noqa: E731
        found[name], chosen[name] = choose_and_test(splits, args, keep)
        sizes = len(splits[0].y), len(splits[0].y_test)
        less[name] = {method: paired(found[name], method, sizes) for method in args.tuned}
        report_choice(name, chosen[name], less[name])
    return found, chosen, less


def report_choice(name, chosen, less):
    for method, choice in chosen.items():
        print(f"{name}: {method}, chosen {choice['chosen']}", flush=True)
    for method, found in less.items():
        ahead = sum(x >= 0 for x in found["each"])
        print(
            f"{name}: {method} less the deep ensemble {found['mean']:+.4f} ({found['error']:.4f}; splits overlap: "
            f"{found['error over splits']:.4f}), not below it on {ahead} of {len(found['each'])} splits",
            flush=True,
        )


def regression_splits(args):
    """Name -> splits; with --fast, without data, simulated rows in their place."""
    if args.fast and not args.data:
        return {"simulated, chosen": [simulated_split(args.seed)]}
    return {name: list(datasets.folds(name, args.data_dir, number=args.splits, seed=args.seed)) for name in args.data}


def main(args):
    expect_refusals()  # and of chains that do not mix, which are each to stay in a mode of its own
    rows = map(jnp.asarray, simulated(args.seed))
    simulation = once(args, "simulated", args.seed, lambda: compare(*rows, args, args.seed))
    tested, chosen, less = regressions(args)
    parts = {
        "simulated": [simulation],
        **tested,
        "small": small(args),
        **(digits(args) if args.digits else {}),
    }
    held_out = choices(args) if args.choose else {}
    results = {name: over(found) for name, found in parts.items()}
    for name, found in results.items():
        report(name, found)
    better = {name: against(found, judged_by(found[0])) for name, found in parts.items()}
    more_right = {name: against(parts[name], "accuracy") for name in parts if name.startswith("mnist")}
    print("less the deep ensemble:", better, "accuracy:", more_right)
    save(
        args,
        "network_samplers",
        draw(results),
        {
            "seconds": sum(SECONDS),
            "results": results,
            "less the deep ensemble": better,
            "accuracy less the deep ensemble": more_right,
            "chosen on validation rows": chosen,
            "digits on held-out rows": held_out,
            "paired differences": less,
        },
    )
    if not args.fast:
        check_digits(results, better)
    if not args.fast and shown(args):
        check(simulation)
        check_small(results["small"])
        check_regressions(less)


if __name__ == "__main__":
    sizes = {"members": (2, 8), "steps": (200, 3000), "steps_per_draw": (20, 150), "splits": (1, 10), "seeds": (1, 2)}
    sizes |= {"data_steps": (200, 10_000), "small_steps": (400, 6000), "nuts_draws": (20, 300)}
    arguments = parser(__doc__, **sizes)
    arguments.add_argument("--data", nargs="*", default=[], metavar="NAME", help="regression sets, such as airfoil")
    arguments.add_argument("--digits", nargs="*", default=[], choices=list(PLANS), help="networks for MNIST")
    arguments.add_argument("--choose", nargs="*", default=[], choices=list(PLANS), help="networks to try settings on")
    arguments.add_argument("--samplers", nargs="+", default=["cyclical SGHMC"], metavar="NAME", help="of digits")
    arguments.add_argument("--kernels", nargs="*", default=[], metavar="NAME", help="of the simulated rows; none: all")
    arguments.add_argument("--tuned", nargs="+", default=["MSGNHT ssi"], choices=TUNED, help="of regression sets")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where the data are")
    main(parsed(arguments, **sizes))
