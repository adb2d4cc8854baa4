"""
From NUTS to SGHMC
==================

This tutorial samples a hierarchical regression, as in NumPyro's tutorials, with NUTS and with minibatches. It shows
what you have to change in the model, that both samplers agree, and when NUTS is the better choice.
"""

import time

import jax
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from numpyro_sgmcmc import SGHMC, compare, summary

# %%
# The model
# ---------
# Each patient has an intercept and a slope. The only change from a model written for NUTS is that every array with one
# value per row is indexed by the rows of its plate: ``y[rows]`` instead of ``y``. The plate of the patients stays as it
# is. NUTS accepts this form, too.
#
# Each patient has many rows, so the intercepts and slopes are centred. With few rows per patient the non-centred form,
# ``LocScaleReparam(0)``, is better for both samplers.

PATIENTS = 20


def model(patient, week, y):
    mean = numpyro.sample("mean", dist.Normal(0, 10).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(5).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("patients", PATIENTS):
        intercept = numpyro.sample("intercept", dist.Normal(mean[0], spread[0]))
        slope = numpyro.sample("slope", dist.Normal(mean[1], spread[1]))
    with numpyro.plate("rows", len(y)) as rows:
        i = patient[rows]
        numpyro.sample("y", dist.Normal(intercept[i] + slope[i] * week[rows], sigma), obs=y[rows])


def simulate(visits, seed=0):
    """``visits`` rows for each patient, in random order."""
    rng = np.random.default_rng(seed)
    patient = rng.permutation(np.repeat(np.arange(PATIENTS), visits))
    week = rng.uniform(-1, 1, len(patient))
    intercept, slope = rng.normal(2, 1, PATIENTS), rng.normal(-1, 0.5, PATIENTS)
    y = intercept[patient] + slope[patient] * week + rng.normal(0, 2, len(patient))
    return jnp.asarray(patient), jnp.asarray(week, jnp.float32), jnp.asarray(y, jnp.float32)


# %%
# Two runs
# --------
# The kernel is the only difference. Everything else that works with NUTS works here: ``init_params``, chain methods,
# ``extra_fields``, ``print_summary``, ArviZ. ``target_accept_prob`` and ``max_tree_depth`` have no counterpart, and
# ``diverging`` marks draws with a refused step. We run both samplers on 2,000 rows and on 40,000.


def sample(kernel, data):
    begin = time.perf_counter()
    mcmc = MCMC(kernel, num_warmup=500, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(1), *data)
    jax.block_until_ready(mcmc.get_samples())
    return mcmc, time.perf_counter() - begin


runs, seconds = {}, {}
for rows in (2_000, 40_000):
    data = simulate(rows // PATIENTS)
    for name, kernel in (("NUTS", NUTS(model)), ("SGHMC", SGHMC(model, batch_size=500))):
        runs[name, rows], seconds[name, rows] = sample(kernel, data)
        print(f"{rows:>6} rows, {name:>5}: {seconds[name, rows]:5.1f} s, compilation included")

# %%
# Both samplers agree
# -------------------
# ``compare`` returns the differences of means, standard deviations and quantiles, in units of the standard deviations
# of NUTS. ``summary`` checks a run without a reference.

ours, theirs = runs["SGHMC", 40_000], runs["NUTS", 40_000]
print(compare(ours, theirs))
verdict = summary(ours, *data).verdict
print("verdict of summary:", verdict)

# %%
# The picture shows the mean and an interval of two standard deviations for each coordinate, relative to NUTS. All
# blue intervals should coincide with the grey ones, which extend from -2 to 2.


def flat(mcmc):
    draws = mcmc.get_samples()
    return np.concatenate([np.asarray(draws[name]).reshape(2000, -1) for name in SITES], 1)


SITES = ["mean", "spread", "sigma", "intercept", "slope"]
reference = flat(theirs)
fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
for mcmc, shift, color, label in ((theirs, -0.15, "0.5", "NUTS"), (ours, 0.15, "#0072B2", "SGHMC")):
    z = (flat(mcmc) - reference.mean(0)) / reference.std(0)
    place = np.arange(z.shape[1]) + shift
    ax.errorbar(place, z.mean(0), 2 * z.std(0), fmt=".", ms=4, lw=1, color=color, label=label)
ticks = [0.5, 2.5, 4, 5 + PATIENTS / 2, 5 + 3 * PATIENTS / 2]
ax.set_xticks(ticks, ["mean", "spread", "sigma", "intercepts", "slopes"], rotation=90)
ax.set(ylabel="sds of NUTS from its mean")
ax.spines[["top", "right"]].set_visible(False)
fig.legend(loc="outside upper right", frameon=False, ncol=2)
plt.show()

error = np.abs((flat(ours).mean(0) - reference.mean(0)) / reference.std(0))
ratio = flat(ours).std(0) / reference.std(0)
print(f"largest error of a mean: {error.max():.2f} sd; sds, ours over theirs: {ratio.min():.2f} to {ratio.max():.2f}")
assert error.max() < 0.4 and abs(np.median(ratio) - 1) < 0.06

# %%
# When NUTS is the better choice
# ------------------------------
# The cost of a gradient of NUTS is proportional to the number of rows, while a step of SGHMC sees 500 rows at any size.
# At the sizes above most of the time of both is compilation, so NUTS is at no disadvantage.
# :doc:`plot_hierarchical` runs a similar model on more rows, and the page of :doc:`results </results>` has its times on
# two cores: at 100,000 rows both take about as long, and at a million rows NUTS takes many times as long.
#
# * **With fewer than about ten thousand rows, use NUTS.** It is fast enough and has no bias.
# * **For posteriors with a hard geometry, use NUTS at every size.** No linear change of coordinates makes a horseshoe,
#   or a centred hierarchy with few rows per group, close to normal. :doc:`plot_no_numbers` compares 55 models with
#   NUTS.
# * **Otherwise use minibatches.** Their advantage grows in proportion to the data.
