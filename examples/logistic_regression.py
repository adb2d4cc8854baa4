"""
Bayesian logistic regression from minibatches
=============================================

A million rows, four chains, half a minute on two CPU cores. The rows are simulated, so the coefficients behind them
are known; and with so many rows the posterior is close to a normal law around its mode, so its true width is known as
well, from one Newton search over all rows. The program compares the chains with both, and asserts its claims at the
end.

The same program runs on your own data::

    python examples/logistic_regression.py --data a9a --data-dir folder/with/a9a.npz

where the archive holds ``X`` and ``y``, or ``X_train, y_train, X_test, y_test``. The labels are "class 1 or not".
"""

import argparse
import json
import os
from pathlib import Path
import time
from typing import NamedTuple

os.environ.setdefault("JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS", "1")  # before JAX is imported: no copies of the data

import arviz as az
import datasets
from jax import random
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_sgmcmc import SGHMC, settings, shuffle_rows

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

PRIOR_SD = 3.0


# %%
# The model
# ---------
# An ordinary NumPyro model. Its plate defines the rows, and the kernel chooses the rows of each step. Nothing else is
# given but the size of a minibatch: the warm-up finds coordinates in which the posterior is round, the centre of a
# control variate, the step size and the number of steps of a draw, and checks the draws.


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, PRIOR_SD).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


# %%
# The data
# --------


class Data(NamedTuple):
    X: np.ndarray  # shape=(N, d), the first column is the intercept
    y: np.ndarray  # shape=(N,), 0 or 1
    names: list[str]
    truth: np.ndarray | None = None
    X_test: np.ndarray | None = None
    y_test: np.ndarray | None = None


def simulate(size, dim, seed):
    """Rows with correlated columns of unlike scale, and the coefficients they were drawn from."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((size, dim), dtype=np.float32)
    X[:, 2:] += 0.3 * X[:, 1:-1]
    X[:, 1:] *= np.geomspace(0.5, 2, dim - 1, dtype=np.float32)
    X[:, 0] = 1
    truth = rng.normal(0, 0.5, dim)
    y = rng.random(size) < sigmoid(X @ truth)
    return Data(X, y.astype(np.float32), ["intercept", *(f"x{j}" for j in range(1, dim))], truth)


def load(name, folder, seed):
    """``name``.npz, standardised, with an intercept, its rows in random order."""
    X, y, X_test, y_test = datasets.parts(name, folder)
    X, y = shuffle_rows(random.key(seed), X, y)
    if X_test is None:
        held_out = len(X) // 5
        X, y, X_test, y_test = X[held_out:], y[held_out:], X[:held_out], y[:held_out]
    scaled = datasets.standardiser(X)
    X, X_test = (datasets.with_intercept(scaled(rows)) for rows in (X, X_test))
    y, y_test = (datasets.is_class_one(name, labels) for labels in (y, y_test))
    names = ["intercept", *(f"x{j}" for j in range(1, X.shape[1]))]
    return Data(X, y, names, X_test=X_test, y_test=y_test)


# %%
# The reference
# -------------
# Newton's method finds the mode of the posterior on all rows and the curvature there: the normal approximation with
# which the chains are compared at the end.


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def mode_and_curvature(X, y, weight=1.0, start=None, chunk=100_000):
    """Mode and Hessian of the energy U, each row counted ``weight`` times, in passes over chunks of rows."""
    w = np.zeros(X.shape[1]) if start is None else start
    for _ in range(50):
        gradient, hessian = w / PRIOR_SD**2, np.eye(len(w)) / PRIOR_SD**2
        for first in range(0, len(X), chunk):
            rows = X[first : first + chunk]
            p = sigmoid(rows @ w.astype(np.float32))
            gradient += weight * (rows.T @ (p - y[first : first + chunk]))
            hessian += weight * ((rows.T * (p * (1 - p))) @ rows)
        step = np.linalg.solve(hessian, gradient)
        w = w - step
        if step @ hessian @ step < 1e-4:  # squared distance left, in posterior standard deviations
            break
    return w, hessian


# %%
# The results
# -----------


def summarise(mcmc, data, mode, sd):
    """ArviZ's table, with the truth (or the mode) beside it."""
    # without log_likelihood=False some versions of ArviZ evaluate every row at every draw
    idata = az.from_numpyro(mcmc, coords={"coefficient": data.names}, dims={"w": ["coefficient"]}, log_likelihood=False)
    table = az.summary(idata, var_names=["w"], round_to="none")
    beside = {"mode": mode, "laplace sd": sd} if data.truth is None else {"truth": data.truth, "laplace sd": sd}
    for position, (name, column) in enumerate(beside.items()):
        table.insert(position, name, column)
    return table.astype({column: int for column in table if column.startswith("ess")})


def draw(draws, data, mode, sd, shown, title):
    """Left: the posterior of each coefficient, seen from the truth. Right: its width against the normal law's."""
    origin, seen_from = (mode, "mode") if data.truth is None else (data.truth, "truth")
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 5.5), width_ratios=(4, 3), layout="constrained")

    rows = np.arange(len(shown))
    z = ((draws - origin) / sd)[:, shown]
    low, lower, upper, high = np.quantile(z, (0.03, 0.25, 0.75, 0.97), axis=0)
    left.axvline(0, color="black", lw=1)
    left.hlines(rows, low, high, color="C0", lw=1.5, label="94 % of the draws")
    left.hlines(rows, lower, upper, color="C0", lw=5, label="50 % of the draws")
    left.plot(((mode - origin) / sd)[shown], rows, "o", mfc="white", mec="C1", ms=5, label="mode, by Newton's method")
    left.set_yticks(rows, [data.names[j] for j in shown])
    left.invert_yaxis()
    left.set_xlabel(f"distance from the {seen_from}, in posterior standard deviations")
    left.set_title(title, loc="left")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=3, frameon=False, fontsize=9)

    z = ((draws - mode) / sd).ravel()
    grid = np.linspace(-4, 4, 200)
    right.hist(z, np.linspace(-4, 4, 41), density=True, color="C0", alpha=0.5, label="draws, all coefficients")
    right.plot(
        grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="C1", lw=2, label="normal approximation at the mode"
    )
    right.set_xlabel("distance from the mode, in its standard deviations")
    right.set_yticks([])
    right.set_title(f"their width: median sd ratio {np.median(draws.std(0) / sd):.3f}", loc="left")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=2, frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    return fig


def main(args):
    data = load(args.data, args.data_dir, args.seed) if args.data else simulate(args.rows, 20, args.seed)
    size, dim = data.X.shape
    batch_size = min(args.batch_size, size // 10)
    print(f"{size:,} rows, {dim} coefficients, minibatches of {batch_size} rows")

    mcmc = MCMC(
        SGHMC(model, batch_size=batch_size),
        num_warmup=args.num_warmup,
        num_samples=args.num_samples,
        num_chains=args.num_chains,
        chain_method="vectorized",
    )
    start = time.perf_counter()
    mcmc.run(random.key(args.seed + 1), jnp.asarray(data.X), jnp.asarray(data.y))
    draws = np.asarray(mcmc.get_samples()["w"], float)
    seconds = time.perf_counter() - start

    mode, hessian = mode_and_curvature(data.X, data.y)
    sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
    table = summarise(mcmc, data, mode, sd)
    shown = np.sort(np.argsort(-np.abs(mode))[:20])
    title = f"All {dim} coefficients" if dim == len(shown) else f"The {len(shown)} largest of {dim} coefficients"
    print(f"\n{title}:")
    print(table.iloc[shown].to_string(float_format="{:.4f}".format))

    ratio, found = draws.std(0) / sd, settings(mcmc)
    metrics = {
        "seconds": round(seconds, 1),
        **{name: found[name] for name in ("step_size", "steps_per_sample", "passes", "verdict")},
        "sd_ratio": {"median": np.median(ratio), "min": ratio.min(), "max": ratio.max()},
        "mean_error": np.median(np.abs(draws.mean(0) - mode) / sd),  # median over coefficients, in posterior sd
        "smallest_ess": int(table["ess_bulk"].min()),
        "largest_r_hat": table["r_hat"].max(),
    }
    print(
        f"\nThe warm-up found a step size of {found['step_size']:.2g} and {found['steps_per_sample']} steps for a "
        f"draw, in {found['passes']:.1f} passes over the data besides its steps; its check says: {found['verdict']}."
    )
    print(
        f"The posterior sd of the chains over that of the normal approximation: median {np.median(ratio):.3f}, "
        f"from {ratio.min():.3f} to {ratio.max():.3f}."
    )
    if data.truth is not None:
        z = np.abs(draws.mean(0) - data.truth) / draws.std(0)
        metrics["truth_z"] = {"largest": z.max(), "share_below_3": np.mean(z < 3)}
        print(f"The truth is at most {z.max():.1f} posterior sd away from the mean of the draws.")
    else:
        predicted = sigmoid(draws @ data.X_test.T.astype(float)).mean(0) > 0.5
        metrics["test_accuracy"] = {
            "posterior": np.mean(predicted == data.y_test),
            "mode": np.mean((data.X_test @ mode > 0) == data.y_test),
            "larger class": max(np.mean(data.y_test), 1 - np.mean(data.y_test)),
        }
        print("Test accuracy: " + ", ".join(f"{name} {x:.2%}" for name, x in metrics["test_accuracy"].items()) + ".")
    print(f"{args.num_chains} chains took {seconds:.1f} s, compilation included.")

    args.out.mkdir(parents=True, exist_ok=True)
    draw(draws, data, mode, sd, shown, title).savefig(args.out / "logistic_regression.png", dpi=120)
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2, default=float) + "\n")
    print(f"The picture is {args.out / 'logistic_regression.png'}, the numbers are in {args.out / 'metrics.json'}.")

    # the claim
    if data.truth is not None:
        tolerance = 0.2 if args.fast else 0.1
        assert abs(metrics["sd_ratio"]["median"] - 1) < tolerance, "the posterior has the wrong width"
        assert z.max() < 5 and np.mean(z < 3) >= 0.9, "the truth is not where the posterior says"
    else:
        accuracy = metrics["test_accuracy"]
        assert accuracy["posterior"] > accuracy["mode"] - 0.01, "the posterior predicts worse than its mode"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[1], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", metavar="NAME", help="sample the posterior given NAME.npz instead of simulated rows")
    parser.add_argument("--data-dir", metavar="FOLDER", help="where NAME.npz is")
    parser.add_argument("--rows", type=int, help="number of simulated rows (default: 1000000)")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--num-warmup", type=int, default=400)
    parser.add_argument("--num-samples", type=int, help="draws of each chain (default: 500)")
    parser.add_argument("--num-chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER", help="for picture and numbers")
    parser.add_argument("--fast", action="store_true", help="a few seconds: fewer rows, fewer draws")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (20_000 if arguments.fast else 1_000_000)
    arguments.num_samples = arguments.num_samples or (200 if arguments.fast else 500)
    main(arguments)
