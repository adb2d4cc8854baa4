r"""
NUTS, HMCECS and SGHMC on a million rows
========================================

Logistic regression on a million rows of the shape of covertype: ten continuous columns and 44 indicators of area and
soil type, some of them with very few rows. SGHMC with control variates, NUTS and NumPyro's energy conserving
subsampling (HMCECS) are given the same time on the same machine, compilation and adaptation included, and their
posterior means and standard deviations are compared with a long run of HMC as time goes on.

The rows are simulated. Those of covertype itself, 581 012, are taken where scikit-learn has them in its cache or with
``--download``, and any other set by ``--data``. The labels are "class 1 or not".
"""

from functools import partial
import time
from typing import NamedTuple

import datasets
from gallery import parsed, parser, save, shown
import jax
from jax import lax, random
import jax.numpy as jnp
from logistic_regression import PRIOR_SD, mode_and_curvature, sigmoid
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, HMCECS, NUTS
from reference import hmc_draws
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, ControlVariate, Reshuffled, find_mode, shuffle_rows

CONTINUOUS, AREAS, SOILS = 10, 4, 40
APART = 2.0  # units of time between draws of SGHMC
RAREST = 1e-4  # share of the rarest soil type of simulated rows, relative to that of the commonest
SIZE = {  # with --fast, without
    "rows": (10_000, 1_000_000),
    "budget": (1, 100),
    "chains": (16, 4),
    "pace": (1, 4),  # units of time an epoch of SGHMC
    "transitions": (150, 300),
    "truth": (40, 300),
    "mode_steps": (3000, 10_000),
}

# %%
# Model
# -----
# The latent variable is the vector of components of the coefficients along chosen axes, as in the logistic regression
# of this gallery. NUTS with its default settings uses the coefficients themselves. The model declares the size of a
# subsample only for HMCECS.


def model(X, y, axes, subsample_size=None):
    v = numpyro.sample("v", dist.Normal(0, PRIOR_SD).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0], subsample_size=subsample_size):
        rows, labels = numpyro.subsample(X, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=rows @ (axes @ v)), obs=labels)


# %%
# Data
# ----


class Data(NamedTuple):
    name: str
    X: np.ndarray  # in random order, an intercept in front
    y: np.ndarray


def simulate(rows, seed):
    rng = np.random.default_rng(seed)
    X = np.zeros((rows, CONTINUOUS + AREAS + SOILS), np.float32)
    X[:, :CONTINUOUS] = rng.standard_normal((rows, CONTINUOUS))
    X[:, 1:CONTINUOUS] += 0.5 * X[:, : CONTINUOUS - 1]
    share = np.geomspace(1, RAREST, SOILS)
    X[np.arange(rows), CONTINUOUS + rng.choice(AREAS, rows, p=(0.45, 0.05, 0.44, 0.06))] = 1
    X[np.arange(rows), CONTINUOUS + AREAS + rng.choice(SOILS, rows, p=share / share.sum())] = 1
    w = np.concatenate([rng.normal(0, 0.5, CONTINUOUS), rng.normal(0, 1, AREAS + SOILS)])
    y = rng.random(rows) < sigmoid(X @ w - 0.5)
    return Data("simulated", datasets.with_intercept(X), y.astype(np.float32))


def cached(download):
    """Covertype from scikit-learn's cache, or None."""
    try:
        from sklearn.datasets import fetch_covtype

        return fetch_covtype(download_if_missing=download, return_X_y=True)
    except (ImportError, OSError):
        return None


def load(args):
    if args.data is not None:
        name, (X, y, *_) = args.data, datasets.parts(args.data, args.data_dir)
    elif not args.fast and (found := cached(args.download)):
        name, (X, y) = "covertype", found
    else:
        return simulate(args.rows, args.seed)
    X, y = shuffle_rows(random.key(args.seed), np.asarray(X, np.float32), datasets.is_class_one(name, y))
    return Data(name, datasets.with_intercept(datasets.standardiser(X)(X)), y)


# %%
# The truth
# ---------
# The reference is HMC on all rows, in coordinates in which the curvature of the posterior at its mode is the unit
# matrix. The chains start in the normal approximation at the mode. A period is 2 pi units of time, and trajectories of
# a quarter of a period give almost independent draws.


class Truth(NamedTuple):
    draws: np.ndarray  # shape=(draws, chains, coefficients)
    axes: np.ndarray  # of the curvature at the mode, in columns


def truth(data, args, chains=16, burn_in=10):
    mode, hessian = mode_and_curvature(data.X, data.y)
    mass, axes = np.linalg.eigh(hessian)
    start = axes.T @ mode + np.random.default_rng(args.seed).standard_normal((chains, len(mode))) / np.sqrt(mass)
    options = {"trajectory_length": np.pi / 2, "num_steps": 3, "adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = HMC(model, inverse_mass_matrix={("v",): jnp.asarray(1 / mass)}, **options)
    arrays = jnp.asarray(data.X), jnp.asarray(data.y), jnp.asarray(axes)
    keys = random.split(random.key(args.seed + 1), chains)
    chain = lambda key, v: hmc_draws(kernel, burn_in, args.truth, key, {"v": v}, *arrays)  # noqa: E731
    draws, told = jax.vmap(chain)(keys, jnp.asarray(start))
    print(f"truth: {args.truth} draws of {chains} chains, accepted {told['accept_prob'].mean():.0%}")
    return Truth(np.asarray(draws["v"]).swapaxes(0, 1) @ axes.T, axes)


# %%
# The samplers
# ------------
# A Newton search on a part of the rows gives axes in which ``find_mode`` finds the mode of all rows. The control
# variates are centred there. They are stored, which costs one number per row. The axes and masses of SGHMC come from
# the curvature at the mode. This takes one more pass over all rows, because a tenth of the rows would tell too little
# about the rarest columns. Control variates leave so little noise that an epoch may last four units of time. Draws are
# two units apart. The measured time includes all of this.
#
# There are two runs of NUTS, one with its default settings and one with the axes, masses and mode of SGHMC, whose cost
# is then included in its time. HMCECS uses them, too, with a second-order Taylor proxy at the mode. The program calls
# the kernels itself instead of using ``MCMC``, so that it can read the clock after each transition.


class Run(NamedTuple):
    seconds: np.ndarray  # shape=(transitions,), since the start
    draws: np.ndarray  # shape=(transitions, chains, coefficients)


def drive(name, kernel, key, start, arrays, began, args, num_warmup=0, least=2):
    """Transitions until the budget is spent, or for SGHMC until there are enough of them."""
    state = kernel.init(key, num_warmup, start, arrays, {})
    state = jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), state)  # else what is compiled is so twice
    sample = jax.jit(kernel.sample)
    axes, seconds, draws = np.asarray(arrays[2]), [], []
    with tqdm(desc=name) as bar:
        while len(draws) < least or seconds[-1] < args.budget:
            state = sample(state, arrays, {})
            draws.append(np.atleast_2d(state.z["v"]) @ axes.T)
            seconds.append(time.perf_counter() - began)
            bar.update()
    return Run(np.array(seconds), np.array(draws))


class Scale(NamedTuple):
    axes: jax.Array
    inverse_mass: jax.Array
    mode: dict
    seconds: float  # that it took


def scale(X, y, args):
    """Axes for the search from a part of the rows, the mode from minibatches, axes and masses from a pass over all."""
    began = time.perf_counter()
    pilot = min(args.pilot, len(X))
    _, curvature = mode_and_curvature(X[:pilot], y[:pilot], weight=len(X) / pilot)
    axes = np.linalg.eigh(curvature)[1]
    arrays = map(partial(jnp.asarray, dtype=X.dtype), (X, y, axes))
    options = {"batch_size": args.batch_size, "num_steps": args.mode_steps, "progress_bar": False}
    mode = axes @ np.asarray(find_mode(model, random.key(args.seed), *arrays, **options)["v"])
    _, curvature = mode_and_curvature(X, y, start=mode)
    mass, axes = np.linalg.eigh(curvature)
    inverse_mass, axes, v = (jnp.asarray(array, X.dtype) for array in (1 / mass, axes, axes.T @ mode))
    return Scale(axes, inverse_mass, {"v": v}, time.perf_counter() - began)


def sghmc(data, known, args, key):
    axes, inverse_mass, mode, seconds = known
    began = time.perf_counter() - seconds
    epoch = len(data.X) // args.batch_size
    kernel = SGHMC(
        model,
        step_size=args.pace / epoch,
        friction=1.0,
        batch_size=args.batch_size,
        steps_per_sample=max(1, round(APART * epoch / args.pace)),
        gradient=ControlVariate(mode, stored="linear"),
        rows=Reshuffled(contiguous=True),
        inverse_mass_matrix={"v": inverse_mass},
    )
    keys = random.split(key, args.chains)
    start = {"v": jnp.tile(mode["v"], (args.chains, 1))}
    arrays = jnp.asarray(data.X), jnp.asarray(data.y), axes
    return drive("SGHMC", kernel, keys, start, arrays, began, args, least=args.transitions)


def nuts(data, known, args, key):
    del known
    began = time.perf_counter()
    arrays = jnp.asarray(data.X), jnp.asarray(data.y), jnp.eye(data.X.shape[1])
    return drive("NUTS", NUTS(model), key, None, arrays, began, args, args.num_warmup)


def scaled_nuts(data, known, args, key):
    axes, inverse_mass, mode, seconds = known
    began = time.perf_counter() - seconds
    kernel = NUTS(model, inverse_mass_matrix={("v",): inverse_mass}, adapt_mass_matrix=False)
    arrays = jnp.asarray(data.X), jnp.asarray(data.y), axes
    return drive("NUTS, scaled", kernel, key, mode, arrays, began, args, args.num_warmup)


def hmcecs(data, known, args, key):
    axes, inverse_mass, mode, seconds = known
    began = time.perf_counter() - seconds
    subsampled = partial(model, subsample_size=args.batch_size)
    inner = NUTS(subsampled, inverse_mass_matrix={("v",): inverse_mass}, adapt_mass_matrix=False)
    kernel = HMCECS(inner, num_blocks=args.blocks, proxy=HMCECS.taylor_proxy(mode))
    arrays = jnp.asarray(data.X), jnp.asarray(data.y), axes
    return drive("HMCECS", kernel, key, mode, arrays, began, args, args.num_warmup)


SAMPLERS = {
    "SGHMC": (sghmc, "#0072B2", "-"),
    "NUTS": (nuts, "#D55E00", (0, (5, 1.5))),
    "NUTS, scaled": (scaled_nuts, "#E69F00", "-."),
    "HMCECS": (hmcecs, "#009E73", (0, (1.5, 1))),
}
FAST = ("SGHMC",)  # what --fast runs

# %%
# The results
# -----------
# At each time a sampler is assessed by all of its draws so far except the first quarter. Draws of the warm-up are
# included, because otherwise there would be no results during the warm-up.
#
# The first two panels show errors of the components along the axes of the curvature at the mode. These components are
# nearly independent of each other, while the coefficients are not. The intercept and the two sets of indicators, each
# of which adds up to one, leave two directions that only the prior determines. Most coefficients depend on these
# directions, so a median over coefficients would hardly be more than a single number. The right panel shows the
# coefficients.


def errors(draws, reference):
    """Of each component: the mean, in posterior standard deviations, and the standard deviation, relative."""
    draws, reference = (x.reshape(-1, x.shape[-1]) for x in (draws, reference))
    sd = reference.std(0)
    return np.abs(draws.mean(0) - reference.mean(0)) / sd, np.abs(draws.std(0) / sd - 1)


def curve(seconds, draws, reference, points=40):
    """Time, median error of the mean, median error of the standard deviation."""
    ends = np.unique(np.geomspace(2, len(draws), points).astype(int))
    return [(seconds[end - 1], *(np.median(e) for e in errors(draws[end // 4 : end], reference))) for end in ends]


def first_below(points, mean=0.1, sd=0.1):
    """Seconds from which on both errors stay below; infinite where they do not."""
    seconds, mean_error, sd_error = np.array(points).T
    above = np.flatnonzero((mean_error >= mean) | (sd_error >= sd))
    return seconds[0] if not len(above) else seconds[above[-1] + 1] if above[-1] + 1 < len(seconds) else np.inf


def report(runs, truth):
    reference = truth.draws @ truth.axes
    between = [np.median(e) for e in errors(reference[:, ::2], reference[:, 1::2])]
    metrics = {"one half of the chains of the truth against the other": between, "samplers": {}}
    print(
        f"\nHalf of the chains of the truth and the other half: means {between[0]:.3f} sd apart, sd {between[1]:.1%}."
    )
    print(
        f"{'':14}{'transitions':>12}{'seconds':>9}{'mean error':>12}{'largest':>9}{'sd error':>10}{'largest':>9}",
        end="",
    )
    print(f"{'both < 0.1 from':>18}")
    for name, run in runs.items():
        draws = run.draws @ truth.axes
        points = curve(run.seconds, draws, reference)
        mean_error, sd_error = errors(draws[len(draws) // 4 :], reference)
        reached = first_below(points)
        metrics["samplers"][name] = {
            "transitions": len(run.draws),
            "seconds": run.seconds[-1],
            "first transition": run.seconds[0],
            "mean error": [np.median(mean_error), mean_error.max()],
            "sd error": [np.median(sd_error), sd_error.max()],
            "both below 0.1 from": reached,
            "curve: seconds, mean error, sd error": points,
        }
        print(
            f"{name:14}{len(run.draws):12}{run.seconds[-1]:9.1f}{np.median(mean_error):12.3f}{mean_error.max():9.3f}"
            f"{np.median(sd_error):10.3f}{sd_error.max():9.3f}{reached:16.1f} s"
        )
    return metrics


# %%
# The picture
# -----------


def draw(runs, metrics, truth, data):
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    count = np.maximum((data.X != 0).sum(0), 1)
    for name, run in runs.items():
        _, colour, line = SAMPLERS[name]
        seconds, mean, sd = np.array(metrics["samplers"][name]["curve: seconds, mean error, sd error"]).T
        left.semilogy(seconds, mean, color=colour, ls=line, lw=2, label=name)
        middle.semilogy(seconds, sd, color=colour, ls=line, lw=2)
        _, error = errors(run.draws[len(run.draws) // 4 :], truth.draws)
        right.loglog(count, np.maximum(error, 1e-3), "o", ms=4, color=colour, alpha=0.7)
    left.set(xlabel="seconds since the start", ylabel="|error of the mean| / sd, median")
    middle.set(xlabel="seconds since the start", ylabel="|relative error of the sd|, median")
    right.set(xlabel="rows in which the column is not zero", ylabel="|relative error of the sd| at the end")
    for axes in (left, middle):
        axes.axhline(0.1, color="black", lw=0.8, ls=":")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    left.set_title(f"{data.name}, {len(data.X):,} rows, {data.X.shape[1]} coefficients", loc="left")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=len(runs), frameon=False)
    return figure


# %%
# What is claimed
# ---------------
# Within its budget, or within 300 transitions where the budget is too short on a slow machine, SGHMC estimates the
# posterior means to within a tenth of a standard deviation and the standard deviations to within 5 % (medians over the
# components). The right panel includes columns with very few rows, whose posteriors are wide and far from normal.
# Nothing is asserted about the order of the samplers in time, which depends on the machine, or about other data than
# the simulated rows. The table and the picture show the results.


def check(metrics, args):
    if metrics["data"] != "simulated" or not shown(args):
        return
    found = metrics["samplers"]["SGHMC"]
    mean, sd = found["mean error"][0], found["sd error"][0]
    assert mean < (0.2 if args.fast else 0.1), f"SGHMC: the means are off by {mean:.3f} sd"
    assert sd < (0.1 if args.fast else 0.05), f"SGHMC: the standard deviations are off by {sd:.1%}"


def main(args):
    data = load(args)
    args.batch_size = min(args.batch_size, len(data.X) // 10)
    print(f"{data.name}: {len(data.X):,} rows, {data.X.shape[1]} coefficients, {data.y.mean():.1%} of class 1")
    reference = truth(data, args)
    keys = random.split(random.key(args.seed + 2), len(SAMPLERS))
    known = scale(data.X, data.y, args)
    print(f"axes, masses and mode: {known.seconds:.1f} s")
    chosen = zip(keys, FAST if args.fast else SAMPLERS)
    runs = {name: SAMPLERS[name][0](data, known, args, key) for key, name in chosen}
    metrics = {"data": data.name, **report(runs, reference)}
    save(args, "covertype_scale", draw(runs, metrics, reference, data), metrics)
    check(metrics, args)


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--data", metavar="NAME", help="NAME.npz in place of covertype")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where NAME.npz is")
    arguments.add_argument("--download", action="store_true", help="let scikit-learn fetch covertype")
    arguments.add_argument("--batch-size", type=int, default=1000)
    arguments.add_argument("--pilot", type=int, default=100_000, help="rows of the Newton search")
    arguments.add_argument("--num-warmup", type=int, default=100, help="of NUTS and HMCECS")
    arguments.add_argument("--blocks", type=int, default=10, help="of the subsample of HMCECS")
    main(parsed(arguments, **SIZE))
