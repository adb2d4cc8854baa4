"""
Common parts of the two comparisons of Dubey et al. (2016), sections 5.1 and 5.2: test scores against passes through
the data, and the variances of gradient and posterior at a constant step size.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
import time
from typing import Any, NamedTuple

import datasets
from gallery import expect_refusals, parsed, parser, ratio, shown
import jax
from jax import lax, random
import jax.numpy as jnp
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter
import numpy as np
from tqdm import tqdm

from numpyro_sgmcmc import SAGA, SGLD, SVRG, Minibatch, WithoutReplacement, gradient_noise

SIZE = {"folds": (2, 5), "chains": (32, 200)}  # with --fast, without
DRAWS, WINDOWS, LAST = 200, 40, 0.1  # draws looked at in a run, points of a curve, share of a run that gives its score
# step sizes tried, in units of 1 / the largest curvature
FIRST = {"first": ((0.1, 0.3, 0.7, 1.4), (0.003, 0.01, 0.03, 0.1, 0.3, 0.7, 1.4, 2.8, 5.6))}
LOOKS = {  # colours of Okabe & Ito
    "SGLD": ("#D55E00", "--", "s"),
    "SAGA-LD": ("#0072B2", "-", "o"),
    "SVRG-LD": ("#009E73", ":", "^"),
}


class Task(NamedTuple):
    """
    - **model** - its latent site is ``w``, its arguments are X and y.
    - **loss** - (linear predictors, y) -> the loss of each row; smaller is better.
    - **score** - the name of its mean over the test part.
    - **bend** - linear predictors -> second derivative of each row's energy there, largest at 0.
    - **posterior** - (X, y, key) -> mean, covariance, and whether they are exact enough to compare with.
    - **labels** - whether y is "class 1 or another".
    - **budgets** - name -> passes through the data.
    """

    model: Callable
    loss: Callable
    score: str
    bend: Callable
    posterior: Callable
    labels: bool
    budgets: dict


class Sampler(NamedTuple):
    """
    SGLD with an estimator of the gradient, a family of step sizes, and its cost.

    - **schedule** - (settings, steps of the run) -> function of the step index, in units of 1 / lambda.
    - **ways** - the six ways to go on from each first step size that are tried.
    - **passes** - (steps, steps in an epoch) -> passes through the data, a gradient of each row each.
    """

    gradient: Any
    schedule: Callable
    ways: tuple
    passes: Callable


def decreasing(settings, steps):
    """a (b + t)^-exponent, where a makes the first step size equal to the first setting; b is in units of the run."""
    first, b, gamma = settings
    return lambda t: first * (1 + t / (b * steps)) ** -gamma


def two_phases(settings, steps):
    first, ratio, change = settings
    return lambda t: first * jnp.where(t < change * steps, 1.0, ratio)


def samplers(init, fast):
    """SAGA needs one number a row in a linear model; its estimates are those of ``per="row"``."""
    phases = tuple(product((0.03, 0.1, 0.4), (0.2, 0.5)))  # second step size / first, time of the change
    first_pass = init == "full"
    found = {
        "SGLD": Sampler(Minibatch(), decreasing, tuple(product((0.003, 0.03, 0.3), (0.55, 1.0))), lambda t, m: t / m),
        "SAGA-LD": Sampler(SAGA(per="linear", init=init), two_phases, phases, lambda t, m: t / m + first_pass),
        "SVRG-LD": Sampler(SVRG(), two_phases, phases, lambda t, m: 2 * t / m + 1 + (t - 1) // m),
    }
    return {name: found[name] for name in list(found)[: 2 if fast else 3]}


# Arguments and data


def arguments(description, budgets):
    """The arguments of both programs, given and parsed."""
    options = parser(description, **SIZE)
    add = options.add_argument
    add("--data", nargs="+", metavar="NAME", help=f"NAME.npz with X and y; {', '.join(budgets)}, where found")
    add("--data-dir", type=Path, metavar="FOLDER", help="where the data are, if not in a usual place")
    add("--passes", type=float, help=f"through the data, for each sampler; {budgets}, 5 for others")
    add("--batch-size", type=int, default=10)
    add("--spread", type=float, default=1.0, help="sd of the normal law that the starts are drawn from")
    add("--first", type=float, nargs="+", metavar="H", help="step sizes tried, * lambda")
    add("--init", choices=("online", "full", "zeros"), default="online", help="how the table of SAGA is filled")
    add("--step-size", type=float, default=0.1, help="the constant one, / the largest stable")
    return parsed(options, **SIZE, **FIRST)


def simulated(labels, folder):
    """Rows of the number and size of pima or concrete, with correlated columns."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((768 if labels else 1030, 8)) @ rng.standard_normal((8, 8))
    eta = X @ rng.standard_normal(8)
    eta /= eta.std()
    y = rng.random(len(X)) < 1 / (1 + np.exp(-1.5 * eta)) if labels else eta + 0.8 * rng.standard_normal(len(X))
    np.savez(Path(folder) / "simulated.npz", X=X, y=y.astype(float))


def splits(name, args, labels):
    with TemporaryDirectory() as folder:
        if name == "simulated":
            simulated(labels, folder)
        folder = folder if name == "simulated" else args.data_dir
        return list(datasets.folds(name, folder, number=args.folds, seed=args.seed, labels=labels))


def names(args, default):
    """Those asked for; else those of ``default`` that are found, only one of them with --fast; else simulated."""
    if args.data:
        return args.data
    found = [name for name in default if datasets.available(name, args.data_dir)]
    for name in default:
        if name not in found and not args.fast:
            print(f"{name}.npz is not at hand; the data: {datasets.SOURCES[name][0]}")
    return found[: 1 if args.fast else None] or ["simulated"]


# Step sizes


def curvature(task, X, w):
    """The potential's at ``w``, with a standard normal prior."""
    X = X.astype(float)
    return (X.T * task.bend(X @ w)) @ X + np.eye(X.shape[1])


def unit_step(task, X):
    """1 / lambda, the largest curvature anywhere."""
    return 1 / np.linalg.eigvalsh(curvature(task, X, np.zeros(X.shape[1])))[-1]


def stable_step(task, X, w, batch_size):
    """
    The largest step at which minibatches leave a squared distance finite, near ``w``: 2 H - h (H^2 + M) must be
    positive, where H is the curvature and M the mean square of what minibatches add to it. Few long rows make it small.
    """
    H, X = curvature(task, X, w), X.astype(float)
    M = len(X) / batch_size * (X.T * (task.bend(X @ w) ** 2 * (X**2).sum(1))) @ X
    L = np.linalg.cholesky(H)
    inverse = np.linalg.inv(L)
    return 2 / np.linalg.eigvalsh(L.T @ L + inverse @ M @ inverse.T)[-1]


# Test scores against passes


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def run(model, sampler, batch_size, steps, thin, key, start, settings, unit, *data):
    """
    All candidates, from the same start, with the same minibatches and the same noise.

    :param settings: shape=(candidates, 3).
    :param unit: 1 / lambda.
    :return: draws, shape=(candidates, steps // thin, coordinates); the key of the minibatches, shape=(candidates, 2).
    """

    def chain(settings):
        schedule = sampler.schedule(settings, steps)
        kernel = SGLD(
            model,
            step_size=lambda t: unit * schedule(t),
            batch_size=batch_size,
            gradient=sampler.gradient,
            rows=WithoutReplacement(),
            steps_per_sample=thin,
        )

        def advance(state, _):
            state = kernel.sample(state, data, {})
            return state, state.z["w"]

        state, draws = lax.scan(advance, kernel.init(key, 0, {"w": start}, data, {}), length=steps // thin)
        return draws, state.rows_state.rng_key

    return lax.map(chain, settings)


@partial(jax.jit, static_argnums=0)
def losses(loss, draws, X, y):
    """The mean loss of each draw, one chain after the other; shape=(chains, draws)."""
    return lax.map(lambda z: loss(z @ X.T, y).mean(-1), draws)


class Curves(NamedTuple):
    """
    - **passes** - at which the draws were made.
    - **test** - mean loss of each draw on the test part, shape=(folds, draws).
    - **chosen** - settings, one triple a fold.
    - **at_edge** - in how many folds these are at an edge of the grid: first step or its fastest decrease.
    - **sizes** - of the training and the test part.
    """

    passes: np.ndarray
    test: np.ndarray
    chosen: list
    at_edge: int
    sizes: tuple

    def error(self, values):
        """Standard error of a mean over the folds."""
        return datasets.error_over_splits(values, *self.sizes)


def compare(task, folds, budget, args, tick):
    """Sampler -> :class:`Curves`, with the settings that end with the best score on the validation part of the fold."""
    size, d = folds[0].X.shape
    m = size / args.batch_size
    found, rows = {}, {}
    for name, sampler in samplers(args.init, args.fast).items():
        steps = int(np.searchsorted(sampler.passes(np.arange(1, int(budget * m) + 2), m), budget, side="right"))
        if not steps:
            continue  # not even the first pass of SVRG is within the budget
        thin = max(1, steps // DRAWS)
        candidates = [(first, *way) for first, way in product(args.first, sampler.ways)]
        curves, chosen = [], []
        for fold, split in enumerate(folds):
            key_start, key = random.split(random.fold_in(random.key(args.seed), fold))
            start = args.spread * random.normal(key_start, (d,))
            size_of_run = args.batch_size, steps, thin
            unit = unit_step(task, split.X)
            settings = jnp.array(candidates)
            draws, key_rows = run(task.model, sampler, *size_of_run, key, start, settings, unit, split.X, split.y)
            assert np.array_equal(rows.setdefault(fold, key_rows), key_rows), "the samplers saw different minibatches"
            valid = last(np.asarray(losses(task.loss, draws, split.X_valid, split.y_valid)))
            best = np.argmin(np.where(np.isfinite(valid), valid, np.inf))
            test = losses(task.loss, draws[best : best + 1], split.X_test, split.y_test)
            curves.append(np.asarray(test, float)[0])
            chosen.append(candidates[best])
            tick()
        passes = sampler.passes(thin * np.arange(1, len(curves[0]) + 1), m)
        fastest = min(way[0] for way in sampler.ways)
        at_edge = sum(first in (min(args.first), max(args.first)) or way == fastest for first, way, _ in chosen)
        found[name] = Curves(passes, np.array(curves), chosen, at_edge, (size, len(folds[0].X_test)))
    return found


def last(curves):
    """The score of a run: the mean over its last tenth."""
    return curves[..., -max(1, int(LAST * curves.shape[-1])) :].mean(-1)


def windows(passes, test):
    """Points of a curve: where each window ends, in passes, and means over the draws in it, shape=(folds, windows)."""
    parts = np.array_split(np.arange(len(passes)), min(WINDOWS, len(passes)))
    return np.array([passes[part[-1]] for part in parts]), np.stack([test[:, part].mean(1) for part in parts], 1)


def standard_error(values):
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full_like(values[0], np.nan)


def first_at(passes, test, score):
    """Passes until the mean over folds is ``score`` or less for the first time; None: never."""
    passes, test = windows(passes, test)
    there = test.mean(0) <= score
    return float(passes[np.argmax(there)]) if there.any() else None


def summary(found):
    target = last(found["SGLD"].test)
    numbers = {}
    for name, curves in found.items():
        passes, test, score = curves.passes, curves.test, last(curves.test)
        numbers[name] = {
            "score": score.mean(),
            "standard error": curves.error(score),
            "difference from SGLD": (score - target).mean(),
            "standard error of that": curves.error(score - target),
            "passes": passes[-1],
            "passes until SGLD is matched": first_at(passes, test, target.mean()),
            "folds that match it": sum(first_at(passes, t[None], s) is not None for t, s in zip(test, target)),
            "folds": len(test),
            "settings": curves.chosen,
            "folds at an edge of the grid": curves.at_edge,
        }
    return numbers


# Variances at a constant step size


class Noise(NamedTuple):
    """
    - **inflation** - (z - mean)' C^-1 (z - mean) / d - 1, for each chain the mean over time.
    - **variance** - of the gradient estimate, the sum over coordinates, for each chain.
    """

    inflation: np.ndarray
    variance: np.ndarray


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def at_constant_step(model, gradient, batch_size, blocks, length, key, h, starts, mean, whiten, *data):
    """
    Chains that start in the posterior; the first half of their time is left out.

    :param whiten: such that the covariance of (z - mean) @ whiten is 1 in the posterior.
    """
    kernel = SGLD(model, step_size=lambda t: h, batch_size=batch_size, gradient=gradient, rows=WithoutReplacement())
    chains = len(starts)

    def step(_, carry):
        state, total = carry
        state = kernel.sample(state, data, {})
        return state, total + (((state.z["w"] - mean) @ whiten) ** 2).mean(1)

    def block(state, _):
        state, total = lax.fori_loop(0, length, step, (state, jnp.zeros(chains)))
        noise = gradient_noise(kernel, state, *data, num_batches=4)
        return state, Noise(total / length - 1, noise.variance["w"].sum(1))

    _, noise = lax.scan(block, kernel.init(random.split(key, chains), 0, {"w": starts}, data, {}), length=blocks)
    return jax.tree.map(lambda x: x[blocks // 2 :].mean(0), noise)


def measure(task, split, args, tick):
    """Sampler -> :class:`Noise`; the inflation of full gradients; whether the posterior is exact enough for these."""
    key_posterior, key_start, key = random.split(random.key(args.seed), 3)
    mean, covariance, exact = task.posterior(split.X, split.y, key_posterior)
    root = np.linalg.cholesky(covariance)
    starts = mean + random.normal(key_start, (args.chains, len(mean))) @ root.T
    epoch = max(1, len(split.X) // args.batch_size)
    length = max(1, epoch // 7)  # so that several looks fall into an epoch
    blocks = -(-max(4 * epoch, 3000) // length)
    h = args.step_size * stable_step(task, split.X, mean, args.batch_size)
    found = {}
    for name, sampler in samplers("full", args.fast).items():
        size_of_run = args.batch_size, blocks, length
        whiten = np.linalg.inv(root).T
        data = split.X, split.y
        noise = at_constant_step(task.model, sampler.gradient, *size_of_run, key, h, starts, mean, whiten, *data)
        found[name] = Noise(*(np.asarray(x, float) for x in noise))
        tick()
    half = h / np.linalg.eigvalsh(covariance) / 2
    return found, (half / (1 - half)).mean(), exact  # a Gaussian of curvature k has variance 1 / (k (1 - h k / 2))


def gains(noises, full, exact):
    """Statistics of the samplers. The inflation of full gradients is subtracted from that of SGLD."""
    plain = noises["SGLD"]
    found = {}
    for name, (inflation, variance) in noises.items():
        gain, error = ratio(plain.variance, variance)
        found[name] = {"variance of the gradient": variance.mean(), "gain": gain, "standard error of the gain": error}
        if exact:
            left, error = ratio(inflation - full, plain.inflation - full)
            found[name] |= {
                "inflation": inflation.mean(),
                "standard error of the inflation": standard_error(inflation),
                "left of that of SGLD": left,
                "standard error of what is left": error,
                "less than SGLD by": (plain.inflation - inflation).mean(),
                "standard error of that": standard_error(plain.inflation - inflation),
                "inflation by full gradients": full,
            }
    return found


# Both


def study(task, args):
    """Name -> number of rows, curves, their summary, and the gains at a constant step size."""
    expect_refusals()
    chosen = names(args, task.budgets)
    found = {}
    per_set = len(samplers(args.init, args.fast)) * (args.folds + 1)
    with tqdm(total=len(chosen) * per_set, desc="runs") as bar:
        for name in chosen:
            bar.set_postfix_str(name)
            begun = time.monotonic()
            folds = splits(name, args, task.labels)
            curves = compare(task, folds, args.passes or task.budgets.get(name, 5.0), args, bar.update)
            noise = gains(*measure(task, folds[0], args, bar.update))
            seconds = time.monotonic() - begun
            rows = len(folds[0].X)
            found[name] = {
                "rows": rows,
                "curves": curves,
                "scores": summary(curves),
                "noise": noise,
                "seconds": seconds,
            }
    return found


def metrics(results):
    numbers = {name: {key: value for key, value in r.items() if key != "curves"} for name, r in results.items()}
    return {"data": numbers}


def report(results, score):
    print(
        f"{score} at the end (standard error over folds), less SGLD's, passes until SGLD's score is reached, folds",
        end="",
    )
    print(", folds whose setting is at an edge of the grid")
    for name, r in results.items():
        for sampler, s in r["scores"].items():
            until = s["passes until SGLD is matched"]
            print(
                f"{name:22}{r['rows']:6} {sampler:8}{s['score']:8.4f} ({s['standard error']:.4f})"
                f"{s['difference from SGLD']:9.4f} ({s['standard error of that']:.4f})"
                f"{'never' if until is None else format(until, '.2f'):>8} of {s['passes']:.2f}"
                f"{s['folds that match it']:4} of {s['folds']}{s['folds at an edge of the grid']:4}"
            )
    print("At a constant step size: variance of the gradient, its gain, relative error of the posterior variance")
    for name, r in results.items():
        for sampler, n in r["noise"].items():
            line = f"{n['variance of the gradient']:11.4g}{n['gain']:8.2f} ({n['standard error of the gain']:.2f})"
            if "inflation" in n:
                line += f"{n['inflation']:9.4f} ({n['standard error of the inflation']:.4f}), "
                line += f"full gradients {n['inflation by full gradients']:.4f}"
                line += f"{n['left of that of SGLD']:9.4f} ({n['standard error of what is left']:.4f}) left"
            print(f"{name:22}{sampler:8}{line}")


# Picture


def draw(results, score):
    """A panel for each set of data, and two for the variances."""
    number = len(results) + 2
    rows = 1 if number <= 3 else 2
    columns = -(-number // rows)
    size = (4.2 * columns, 0.5 + 3.5 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    *panels, inflation, gain = grid.flat[:number]
    for ax, (name, r) in zip(panels, results.items()):
        draw_curves(ax, r["curves"])
        ax.set(xlabel="passes through the data", ylabel=score)
        ax.set_title(f"{name}, {r['rows']} rows", loc="left", fontsize=11)
    draw_points(inflation, results, "inflation", "standard error of the inflation")
    inflation.set_yscale("symlog", linthresh=0.1)
    inflation.set_title("relative error of the posterior variance", loc="left", fontsize=11)
    draw_points(gain, results, "gain", "standard error of the gain")
    gain.set(yscale="log", ylabel="SGLD's / sampler's")
    gain.set_title("variance of the gradient", loc="left", fontsize=11)
    for ax in (*panels, gain, inflation):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
        ax.margins(y=0.1)
        ax.yaxis.set_major_formatter("{x:g}")
    for ax in (*panels, gain):
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_minor_formatter(NullFormatter())
    for ax in grid.flat[number:]:
        ax.remove()
    legend = panels[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncol=len(legend[0]), frameon=False, fontsize=12)
    return figure


def draw_curves(ax, curves):
    lowest = np.inf
    for name, found in curves.items():
        x, points = windows(found.passes, found.test)
        mean, error = points.mean(0), found.error(points)
        lowest = min(lowest, mean.min())
        color, line, marker = LOOKS[name]
        ax.plot(x, mean, color=color, ls=line, lw=2, marker=marker, markevery=0.2, label=name)
        ax.fill_between(x, mean - error, mean + error, color=color, alpha=0.2, lw=0)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.8 * lowest)  # not where a band may end


def draw_points(ax, results, value, error):
    shown = {name: r["noise"] for name, r in results.items() if value in r["noise"]["SGLD"]}
    for k, (sampler, (color, _, marker)) in enumerate(LOOKS.items()):
        numbers = [[noise.get(sampler, {}).get(key, np.nan) for noise in shown.values()] for key in (value, error)]
        x = np.arange(len(shown)) + 0.2 * (k - 1)
        ax.errorbar(x, *numbers, fmt=marker, color=color, ms=7, capsize=2)
    ax.set_xticks(range(len(shown)), [name.replace("_", "\n") for name in shown])
    ax.set_xlim(-0.5, len(shown) - 0.5)
    ax.axhline(1.0 if value == "gain" else 0.0, color="black", lw=0.8)


# Claims


def check(results, args, least=4.0):
    """
    At a constant step size variance reduction does what it is made for: with SAGA and SVRG the variance of the gradient
    is at most 1 / ``least`` of SGLD's, and so is what minibatches add to the variance of the posterior. At four
    standard errors, for the data that the program was written with, and for those of the numbers that are known well
    enough: where a few rows of great length carry most of the variance, it is known only roughly.
    """
    if not shown(args):
        return
    for name, r in results.items():
        if name not in datasets.SOURCES and name != "simulated":
            print(f"{name}: nothing is asserted of data that the program was not written with.")
            continue
        plain = r["noise"]["SGLD"]
        for sampler, n in ((sampler, n) for sampler, n in r["noise"].items() if sampler != "SGLD"):
            gain, error = n["gain"], n["standard error of the gain"]
            if gain > 10 * error:
                message = f"{name}, {sampler}: the variance of the gradient is only {gain:.1f} ({error:.1f}) times less"
                assert gain - 4 * error > least, message
            else:
                print(f"{name}, {sampler}: the gain in the variance is {gain:.1f} ({error:.1f}), and not asserted.")
            clear = "inflation" in n and plain["inflation"] > 20 * plain["standard error of the inflation"]
            if clear or ("inflation" in n and not args.fast):  # few chains show only clear differences
                error = 4 * n["standard error of that"]
                assert n["less than SGLD by"] > error, f"{name}, {sampler}: the posterior is no narrower than SGLD's"
            if clear:
                left, error = n["left of that of SGLD"], n["standard error of what is left"]
                message = f"{name}, {sampler}: {left:.3f} ({error:.3f}) of SGLD's inflation are left"
                assert left + 4 * error < 1 / least, message
