"""
Five minutes
============

Install the package (``pip install .`` in a checkout), write the smallest model, sample it, see whether the draws are
right, and draw one picture.
"""

import arviz as az
from gallery import parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_sgmcmc import SGHMC, settings, summary

SIZE = {"rows": (20_000, 200_000), "draws": (250, 500)}  # with --fast, without
TRUTH = np.array([0.5, -1.0, 2.0])

# %%
# A model with a plate
# --------------------
# Any NumPyro model whose data stand in a plate. The plate hands out the numbers of the rows, and the model looks its
# data up by them: ``X[rows]`` and ``y[rows]``. That is all that minibatches need. The kernel chooses the rows, and the
# plate rescales the likelihood.


def model(X, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=None if y is None else y[rows])


# %%
# Sampling
# --------
# ``MCMC`` is NumPyro's. Of the kernel nothing has to be said but the rows of a batch, and not even that: the warm-up
# finds the step size and all the rest. ``settings`` returns what it found.


def sample(X, y, args):
    kernel = SGHMC(model, batch_size=500)
    mcmc = MCMC(
        kernel,
        num_warmup=2 * args.draws,
        num_samples=args.draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(args.seed), X, y)
    mcmc.print_summary()
    found = settings(mcmc)
    print("\n".join(f"{name}: {found[name]}" for name in ("step_size", "steps_per_sample", "passes", "verdict")))
    return mcmc


# %%
# Is it right?
# ------------
# R-hat and the effective sample size, in the table above, show that the chains agree and move. They do not show whether
# what they agree on is the posterior. ``summary`` does: each of its lines has a value that is known for draws of the
# posterior, and a verdict.


def check(mcmc, X, y):
    table = summary(mcmc, X, y)
    print(table)
    return table.verdict


# %%
# The picture
# -----------
# The draws in ArviZ's form, as of any other run. The posterior of each coefficient lies around its true value.


def draw(mcmc):
    idata = az.from_numpyro(mcmc, log_likelihood=False)
    w = idata.posterior["w"].values.reshape(-1, len(TRUTH))
    fig, axes = plt.subplots(1, len(TRUTH), figsize=(9, 2.6), layout="constrained")
    for j, ax in enumerate(axes):
        ax.hist(w[:, j], 40, density=True, color="#0072B2")
        ax.axvline(TRUTH[j], color="black", ls="--")
        ax.set(xlabel=f"w[{j}]", yticks=[])
        ax.spines[["top", "right", "left"]].set_visible(False)
    return fig


def main(args):
    key_X, key_y = random.split(random.key(args.seed + 1))
    X = random.normal(key_X, (args.rows, len(TRUTH)))
    y = X @ jnp.asarray(TRUTH) + 3 * random.normal(key_y, (args.rows,))
    mcmc = sample(X, y, args)
    verdict = check(mcmc, X, y)
    w = np.asarray(mcmc.get_samples()["w"])
    exact = jnp.linalg.solve(X.T @ X, X.T @ y)
    sd = 3 * np.sqrt(np.diag(np.linalg.inv(np.asarray(X.T @ X, float))))
    metrics = {
        "verdict": verdict,
        "mean, in sds from least squares": np.abs((w.mean(0) - np.asarray(exact)) / sd).max(),
        "sd over that of least squares": list(w.std(0) / sd),
    }
    save(args, "five_minutes", draw(mcmc), metrics)
    assert verdict == "right", verdict
    assert metrics["mean, in sds from least squares"] < 0.3, metrics
    assert np.abs(np.asarray(metrics["sd over that of least squares"]) - 1).max() < 0.15, metrics


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
