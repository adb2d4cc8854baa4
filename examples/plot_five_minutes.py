"""
Five minutes
============

This tutorial goes from installation to a checked posterior: install the package, write a model, sample it, check the
draws, and draw one picture. It assumes that you know NumPyro, but not stochastic-gradient MCMC.

Install the package in a checkout with ``pip install ".[examples]"``.
"""

import arviz as az
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, Predictive

from numpyro_sgmcmc import SGHMC, settings, summary

# %%
# A model with a plate
# --------------------
# Every NumPyro model works if its data stand in a plate. The plate returns row numbers, and the model uses them to
# index its data: ``X[rows]`` and ``y[rows]``. The kernel chooses the rows of each step, and the plate rescales the
# likelihood from the rows of the minibatch to all rows.


def model(X, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=None if y is None else y[rows])


# %%
# Here are 100,000 rows, simulated with known coefficients.

truth = jnp.array([0.5, -1.0, 2.0])
key_X, key_y, key_chains, key_new = random.split(random.key(0), 4)
X = random.normal(key_X, (100_000, 3))
y = X @ truth + 3 * random.normal(key_y, (100_000,))

# %%
# Sampling
# --------
# ``MCMC`` is NumPyro's. The kernel needs only a batch size. The warm-up finds the step size, the coordinates and the
# number of steps per draw.

mcmc = MCMC(
    SGHMC(model, batch_size=500),
    num_warmup=500,
    num_samples=500,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(key_chains, X, y)
mcmc.print_summary()

# %%
# ``settings`` returns what the warm-up found. ``passes`` is the number of times that it went through the data.

found = settings(mcmc)
print(f"step size {found['step_size']:.2f}, {found['steps_per_sample']} steps per draw")
print(f"{found['passes']:.0f} passes over the data in the search, verdict of the check: {found['verdict']}")

# %%
# Checking the draws
# ------------------
# R-hat and the effective sample size, in the table above, show that the chains move and agree with each other. They do
# not show that the chains agree with the posterior, because a stochastic-gradient sampler has no acceptance test.
# ``summary`` checks that. It says what is wrong or doubtful, and which errors would have been found. For most of its
# lines the value for draws from the posterior is known, and each has a verdict; ``all`` shows them.

table = summary(mcmc, X, y)
print(table)
print(table.all())
assert table.verdict == "right"

# %%
# The posterior
# -------------
# The draws are in NumPyro's and ArviZ's usual form. Each panel shows the posterior of one coefficient. The dashed line
# is the true value, and the black curve is the exact posterior given the mean of ``sigma``. The histogram should follow
# the curve.

idata = az.from_numpyro(mcmc, log_likelihood=False)
w = idata.posterior["w"].values.reshape(-1, 3)
mean = np.asarray(jnp.linalg.solve(X.T @ X, X.T @ y))
sd = np.sqrt(np.diag(np.linalg.inv(np.asarray(X.T @ X)))) * float(idata.posterior["sigma"].mean())

fig, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
for j, ax in enumerate(axes):
    grid = mean[j] + sd[j] * np.linspace(-4, 4, 200)
    ax.hist(w[:, j], 40, density=True, color="#0072B2", alpha=0.6)
    ax.plot(grid, np.exp(-(((grid - mean[j]) / sd[j]) ** 2) / 2) / (sd[j] * np.sqrt(2 * np.pi)), color="black")
    ax.axvline(truth[j], color="black", ls="--")
    ax.set(xlabel=f"w[{j}]", yticks=[])
    ax.locator_params(axis="x", nbins=5)
    ax.spines[["top", "right", "left"]].set_visible(False)
plt.show()

assert np.abs((w.mean(0) - mean) / sd).max() < 0.3
assert np.abs(w.std(0) / sd - 1).max() < 0.15

# %%
# Predictions
# -----------
# ``Predictive`` works as usual: here for the first five rows, with one prediction per draw.

new = Predictive(model, mcmc.get_samples())(key_new, X[:5])["y"]
print(new.shape, new.mean(0))

# %%
# What next?
# ----------
# If you know NUTS, read the next tutorial, :doc:`From NUTS to SGHMC <plot_from_nuts>`. For a model of your own, the
# pages *Choosing* and *How-to guides* say which kernel to use and have a program for most kinds of models. If a run
# ends with a warning, :doc:`Is it right? <plot_is_it_right>` explains what the checks mean.
