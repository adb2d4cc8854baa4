"""
Default settings on 55 models
=============================

How well does ``MCMC(SGHMC(model, batch_size=...), num_warmup=1000, num_samples=1000, num_chains=4)`` work on models for
which it was not made? The warm-up chooses the coordinates, the step size and everything else. For each model the draws
are compared with NUTS on all rows: the mean and the standard deviation of every coordinate, and the time. The models
and their data are in ``no_numbers_models.py``.
"""

from pathlib import Path
import time
import warnings

from gallery import parsed, parser, save, shown
import jax
from jax import random
import matplotlib.pyplot as plt
from no_numbers_models import PROBLEMS, flat, moments, read, reference, rows, size, write
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc import SGHMC, settings

FAST = ("linear_mean_50", "bernoulli_300")
SIZE = {  # with --fast, without
    "num_warmup": (200, 1000),
    "num_samples": (200, 1000),
    "num_chains": (4, 4),
}
NUTS_FAST = {"warmup": 200, "samples": 300, "ess": 0}
WRONG = 0.2  # error of a standard deviation or, in standard deviations, of a mean: more is not the posterior
MONTE_CARLO = 4  # standard errors that are allowed for
APART = 1.1  # an R-hat from which chains are not together, so that their Monte Carlo errors excuse nothing


# %%
# The line
# --------


def run(problem, args):
    """Draws of the coordinates, what the warm-up found, the warnings, and the seconds."""
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc = MCMC(
            SGHMC(problem.model, batch_size=problem.batch_size),
            num_warmup=args.num_warmup,
            num_samples=args.num_samples,
            num_chains=args.num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(random.key(args.seed), *problem.args)
        names, draws = flat(mcmc.get_samples(group_by_chain=True), problem.sites)
    seconds = time.perf_counter() - begin
    said = dict.fromkeys(str(w.message).strip() for w in caught if issubclass(w.category, UserWarning))
    chosen = settings(mcmc)
    found = {
        "settings": {key: plain(value) for key, value in chosen.items()},
        "centering": {
            site: np.round(np.asarray(share, float), 3).tolist() for site, share in chosen["centering"].items()
        },
        "warnings": list(said),
        "refused": int(mcmc.get_extra_fields()["diverging"].sum()),
        "seconds": seconds,
    }
    return names, draws, found


def plain(value):
    """A setting as it can stand in a JSON file: numbers and strings as they are, of anything else what it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [plain(x) for x in value] if not hasattr(value, "_fields") else type(value).__name__
    if np.size(value) == 1 and np.asarray(value).dtype.kind in "fiu":
        return np.asarray(value).item()
    return f"array of shape {np.shape(value)}" if hasattr(value, "shape") else type(value).__name__


# %%
# The comparison
# --------------
# Each error has a Monte Carlo error of its own, of both runs together. Draws are wrong if the mean or the standard
# deviation of a coordinate is off by more than a fifth after four Monte Carlo errors are allowed for, or if the chains
# have not come together. Who runs the line learns of it from a warning or from R-hat, or not at all.


def compare(names, draws, true):
    """Errors of the means, in posterior sd, and relative errors of the sds; both with their Monte Carlo errors."""
    place = {name: k for k, name in enumerate(names)}
    x = draws[:, :, [place[name] for name in true.names]]
    with np.errstate(all="ignore"):  # a chain that stands still
        mean, sd, mean_se, sd_se, ess, r_hat = moments(x)
    ratio = sd / true.sd
    sd_error = ratio * np.hypot(sd_se / sd, true.sd_se / true.sd)
    return {
        "mean": (mean - true.mean) / true.sd,
        "mean_se": np.hypot(mean_se, true.mean_se) / true.sd,
        "sd": ratio - 1,
        "sd_se": sd_error,
        "ess": ess,
        "r_hat": r_hat,
    }


def summary(errors):
    """Numbers for the table; the worst coordinate with its Monte Carlo error."""
    out = {}
    for what in ("sd", "mean"):
        error = np.where(np.isfinite(errors[what]), np.abs(errors[what]), np.inf)
        se = np.nan_to_num(errors[f"{what}_se"])
        worst = int(np.argmax(error))
        beyond = np.maximum(error - MONTE_CARLO * se, 0)
        out[what] = {
            "median": np.median(error),
            "worst": error[worst],
            "worst_se": se[worst],
            "worst_coordinate": worst,
            "beyond_monte_carlo": beyond.max(),
        }
    out["smallest_ess"], out["largest_r_hat"] = np.min(errors["ess"]), np.max(errors["r_hat"])
    return out


def is_apart(found):
    return not found["largest_r_hat"] < APART  # NaN of a chain that stands still


def is_wrong(found):
    if "raised" in found or is_apart(found):
        return True
    return max(found[what]["beyond_monte_carlo"] for what in ("sd", "mean")) > WRONG


def is_told(found):
    return "raised" in found or bool(found["warnings"]) or is_apart(found)


# %%
# All of them
# -----------


def study(problem, args):
    """What goes into metrics.json, and the errors of all coordinates."""
    path = args.references / f"{problem.name}.npz"
    if not path.exists():
        write(path, reference(problem, args.seed, **(NUTS_FAST if args.fast else {})))
    true = read(path)
    found = {
        "rows": rows(problem),
        "coordinates": len(true.names),
        "batch_size": problem.batch_size,
        "note": problem.note,
        "nuts": {
            "seconds": float(true.seconds),
            "smallest_ess": true.ess.min(),
            "largest_r_hat": true.r_hat.max(),
            "divergences": int(true.divergences),
        },
    }
    try:
        names, draws, told = run(problem, args)
    except Exception as error:  # a line that fails is a result too; `check` does not let it pass
        return found | {"raised": f"{type(error).__name__}: {error}"}, None
    errors = compare(names, draws, true)
    found |= told | summary(errors)
    for what in ("sd", "mean"):
        found[what]["worst_coordinate"] = str(true.names[found[what]["worst_coordinate"]])
    return found, errors


HEAD = (
    f"{'':29}{'d':>4}{'rows':>8} | {'sd: median':>10} {'worst':>16} | {'mean: median':>12} {'worst':>16} |"
    f"{'ESS':>7}{'R-hat':>7} |{'seconds':>8}{'NUTS':>6}{'passes':>8} |  h, steps a draw"
)


def line(name, found):
    head = f"{name:29}{found['coordinates']:4d}{found['rows']:8d} | "
    if "raised" in found:
        return head + "RAISED " + found["raised"].splitlines()[0][:100]
    sd, mean, told = found["sd"], found["mean"], found["settings"]
    number = lambda key, form: form.format(told[key]) if isinstance(told.get(key), float | int) else "?"  # noqa: E731
    return (
        head + f"{sd['median']:10.3f} {sd['worst']:8.3f} ({sd['worst_se']:.3f}) | {mean['median']:12.3f} "
        f"{mean['worst']:8.3f} ({mean['worst_se']:.3f}) |{found['smallest_ess']:7.0f}{found['largest_r_hat']:7.3f} |"
        f"{found['seconds']:8.1f}{found['nuts']['seconds']:6.0f}{number('passes', '{:.0f}'):>8} |  "
        f"{number('step_size', '{:.3g}')}, {number('steps_per_sample', '{:.0f}')}"
        + "".join(f", {told[key]}" for key in ("gradient", "coordinates") if isinstance(told.get(key), str))
        + (f", refused {found['refused']}" if found["refused"] else "")
        + (" WRONG" if is_wrong(found) and is_told(found) else " WRONG, SILENTLY" if is_wrong(found) else "")
        + "".join("\n    warns: " + " ".join(text.split())[:200] for text in found["warnings"])
    )


# %%
# The picture
# -----------

RIGHT, WARNED, SILENT = "#0072B2", "#E69F00", "#D55E00"  # of Okabe & Ito, which colour-blind readers can tell apart


def draw(results):
    height = 1.8 + 0.2 * len(results)
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, height), sharey=True, width_ratios=(3, 3, 2), layout="constrained"
    )
    for k, (found, errors) in enumerate(results.values()):
        colour = RIGHT if not is_wrong(found) else WARNED if is_told(found) else SILENT
        if errors is not None:
            for axes, what in ((left, "sd"), (middle, "mean")):
                x = np.nan_to_num(errors[what], posinf=9.0, neginf=-9.0).clip(-9, 9)
                axes.plot(x, np.full(len(x), k), "|", ms=7, mew=1, color=colour, alpha=0.5)
            right.plot(found["seconds"], k, "o", ms=5, color=colour)
        else:
            left.text(0, k, "raised an error", va="center", ha="center", color=SILENT, fontsize=8)
        right.plot(found["nuts"]["seconds"], k, "o", ms=5, mfc="white", mec="0.4")
    for axes, what in ((left, "sd / sd of NUTS - 1"), (middle, "mean - mean of NUTS, in sds")):
        axes.axvspan(-WRONG, WRONG, color="0.93", lw=0)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_xscale("symlog", linthresh=0.2, linscale=1.5)
        ticks = [-5, -1, -0.2, -0.1, 0, 0.1, 0.2, 1, 5]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_xlabel(what)
        axes.set_xlim(-10, 10)
    right.set(xscale="log", xlabel="seconds (white: NUTS)")
    low, high = right.get_xlim()
    right.set_xlim(min(low, 9), max(high, 110))
    right.set_xticks(
        ticks := [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if min(low, 9) <= tick <= max(high, 110)], ticks
    )
    right.set_xticks([], minor=True)
    left.set_yticks(range(len(results)), results, fontsize=8)
    left.set_ylim(len(results) - 0.5, -0.5)
    for axes in (left, middle, right):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
        axes.grid(axis="y", lw=0.3, color="0.85")
        axes.set_axisbelow(True)
    labels = {RIGHT: "right", WARNED: "wrong, and a warning or R-hat says so", SILENT: "wrong, and nothing says so"}
    handles = [plt.Line2D([], [], marker="o", ls="", color=colour, label=label) for colour, label in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncol=3, frameon=False)
    return figure


# %%
# What is claimed
# ---------------
# That no line raises an error, and that no draws are wrong without a warning or an R-hat that says so.


def check(results):
    raised = {name: found["raised"] for name, (found, _) in results.items() if "raised" in found}
    assert not raised, f"errors: {raised}"
    silent = [name for name, (found, _) in results.items() if is_wrong(found) and not is_told(found)]
    assert not silent, f"wrong, and nothing says so: {silent}"


def studies(problems, names, args):
    """Name -> what :func:`study` returns for some of the problems; prints a line for each."""
    if args.fast:  # most of the time is compilation then
        jax.config.update("jax_disable_most_optimizations", True)
    args.references = args.references or args.out / "references"
    print(HEAD)
    results = {}
    for name in names:
        results[name] = study(problems[name](), args)
        print(line(name, results[name][0]), flush=True)
        jax.clear_caches()  # nothing compiled for one problem serves another
    return results


def main(args):
    results = studies(PROBLEMS, args.problems or (FAST if args.fast else sorted(PROBLEMS, key=size)), args)
    wrong = [name for name, (found, _) in results.items() if is_wrong(found)]
    print(f"{len(results) - len(wrong)} of {len(results)} right" + (f"; not {', '.join(wrong)}." if wrong else "."))
    save(args, "no_numbers", draw(results), {"problems": {name: found for name, (found, _) in results.items()}})
    if shown(args):
        check(results)


def arguments(doc, problems):
    """The arguments of a program that runs some problems."""
    options = parser(doc, **SIZE)
    options.add_argument("--problems", nargs="+", choices=problems, metavar="NAME", help="all by default")
    options.add_argument(
        "--references", type=Path, metavar="FOLDER", help="of NUTS, made where missing; OUT/references"
    )
    return parsed(options, **SIZE)


if __name__ == "__main__":
    main(arguments(__doc__, PROBLEMS))
