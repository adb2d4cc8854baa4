r"""
Samplers for networks: ensembles of short chains
================================================

A small network for regression with 50 hidden units and unknown noise, started from several training runs. Is it better
to sample at the end of training than to train on? All methods see the same number of minibatches.
"""

# %%
# What is compared
# ----------------
# ``warm_start`` trains the members at once, on a third of the minibatches. For the other two thirds a *deep ensemble*
# goes on training (``warm_start`` with three times the steps, its step size falling all the way), and the samplers
# start one chain at each member, the first half of it as warm-up. ``predict`` averages the predictions of all draws of
# all chains. Scores are the mean log density of test rows and the root mean squared error, in units of the standard
# deviation of y.
#
# What is asserted
# ----------------
# Of the simulated data, which the program makes without ``--data``: SGHMC, with and without cycles, and adaptive SGHMC
# predict better than a single member that was trained for as long as the ensemble. Nothing is asserted against the deep
# ensemble: it depends on the data and on the optimizer, here Adam as it comes. With the simulated data these samplers
# have a log density of -0.03 to -0.05 and the deep ensemble -0.19 (``--seed 0``); on one split of airfoil, with batches
# of 100 rows, SGHMC had -0.40, adaptive SGHMC -0.40, cyclical SGHMC -0.36 and the deep ensemble -0.39, which is level.
# First-order samplers (PSGLD, SG-Barker) move little in so few steps and stay near their starts: SG-Barker, whose jumps
# the noisiest coordinate limits, gains next to nothing.

import datasets
from gallery import expect_refusals, parsed, parser, save, shown
import jax
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_sgmcmc import PSGLD, SGHMC, AdaptiveSGHMC, Cyclical, SGBarker, predict, warm_start

HIDDEN, BATCH = 50, 50


def model(X, y=None):
    d = X.shape[1]
    inner = numpyro.sample("inner", dist.Normal().expand([d, HIDDEN]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal().expand([HIDDEN]).to_event(1))
    outer = numpyro.sample("outer", dist.Normal().expand([HIDDEN]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(-1, 1))
    with numpyro.plate("rows", len(X)) as rows:
        mean = jax.nn.relu(X[rows] @ inner / np.sqrt(d) + bias) @ outer / np.sqrt(HIDDEN)
        numpyro.sample("y", dist.Normal(mean, sd), obs=None if y is None else y[rows])


def simulated(seed, rows=1500):
    """Two waves and a product in five columns, under noise of sd 0.3; the last third tests."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, size=(rows, 5)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(3 * X[:, 3]) + 0.3 * rng.normal(size=rows)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    cut = 2 * rows // 3
    return X[:cut], y[:cut], X[cut:], y[cut:]


def samplers(steps, draws):
    """Names and kernels; ``steps`` of a draw, as many ``draws`` as there will be."""
    common = {"batch_size": BATCH, "steps_per_sample": steps}
    cycles = Cyclical(4e-3, draws // 2 * steps, exploration=0.4)
    return {
        "SGHMC": SGHMC(model, step_size=2e-3, friction=20.0, **common),
        "cyclical SGHMC": SGHMC(model, step_size=cycles, friction=20.0, **common),
        "adaptive SGHMC": AdaptiveSGHMC(model, step_size=1e-2, friction=5.0, **common),
        "PSGLD": PSGLD(model, step_size=1e-3, **common),
        "SG-Barker": SGBarker(model, step_size=1e-5, **common),
    }


def scores(found, y):
    error = np.sqrt(np.mean((found.mean["y"] - np.asarray(y)) ** 2))
    return {"log density": float(found.log_density["y"].mean()), "error": float(error)}


def compare(X, y, X_test, y_test, args, seed):
    """Scores of each method on one split."""
    key_start, key_chains = random.split(random.key(seed))
    options = {"members": args.members, "batch_size": BATCH, "progress_bar": False}

    def trained(num_steps):
        return warm_start(model, key_start, X, y, num_steps=num_steps, **options)

    def of(z):
        draws = {name: jnp.exp(x) if name == "sd" else x for name, x in z.items()}
        return scores(predict((model, draws), X_test, y_test), y_test)

    starts, ensemble = trained(args.steps), trained(3 * args.steps)
    single = of(jax.tree.map(lambda x: x[:1], ensemble))
    found = {"one member": single, "starts": of(starts), "deep ensemble": of(ensemble)}
    draws = args.steps // args.steps_per_draw  # of the warm-up, and as many that are kept
    for name, kernel in samplers(args.steps_per_draw, draws).items():
        chains = {"num_chains": args.members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=draws, num_samples=draws, **chains)
        mcmc.run(key_chains, X, y, init_params=starts, extra_fields=("i",))
        found[name] = scores(predict(mcmc, X_test, y_test), y_test)
    return found


def report(name, found):
    print(name)
    for method, score in found.items():
        print(f"  {method:16s} log density {score['log density']:7.3f}   error {score['error']:.3f}")


def draw(results):
    figure, axes = plt.subplots(1, len(results), figsize=(1.5 + 4 * len(results), 3.5), squeeze=False, sharey=True)
    for ax, (name, found) in zip(axes[0], results.items()):
        values = [score["log density"] for score in found.values()]
        ax.barh(list(found), np.array(values) - min(values) + 0.02, left=min(values) - 0.02)
        ax.axvline(found["deep ensemble"]["log density"], color="0.3", linestyle=":")
        ax.set(title=name, xlabel="log density of test rows")
    axes[0, 0].invert_yaxis()
    figure.tight_layout()
    return figure


def check(found):
    for name in ("SGHMC", "cyclical SGHMC", "adaptive SGHMC"):
        assert found[name]["log density"] > found["one member"]["log density"], name
    assert all(np.isfinite(score["log density"]) for score in found.values())


def main(args):
    expect_refusals()  # and of chains that do not mix, which are each to stay in a mode of its own
    data = {"simulated": simulated(args.seed)} if not args.data else {}
    for name in args.data:
        (split,) = datasets.folds(name, args.data_dir, number=1, seed=args.seed)
        data[name] = split.X, split.y, split.X_test, split.y_test
    results = {}
    for name, parts in data.items():
        results[name] = compare(*map(jnp.asarray, parts), args, args.seed)
        report(name, results[name])
    flat = {
        f"{name}, {method}, {what}": score[what]
        for name, found in results.items()
        for method, score in found.items()
        for what in score
    }
    save(args, "network_samplers", draw(results), flat)
    if not args.data and not args.fast and shown(args):
        check(results["simulated"])


if __name__ == "__main__":
    sizes = {"members": (2, 8), "steps": (200, 5000), "steps_per_draw": (20, 50)}
    arguments = parser(__doc__, **sizes)
    arguments.add_argument("--data", nargs="*", default=[], metavar="NAME", help="regression sets, such as airfoil")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where they are")
    main(parsed(arguments, **sizes))
