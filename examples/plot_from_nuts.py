"""
From NUTS to SGHMC
==================

The hierarchical regression of NumPyro's tutorials: each patient has an intercept and a slope of his own, drawn from a
common law. Here are the changes that minibatches need, both runs side by side, and when NUTS is the better choice.
"""

import time

from gallery import parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from numpyro_sgmcmc import SGHMC, compare

SIZE = {"patients": (20, 100), "visits": (200, 1000), "draws": (200, 1000)}  # with --fast, without

# %%
# The model
# ---------
# Written for NUTS, it would read ``y`` and not ``y[rows]``. That is the only change: in the plate of the data, every
# array that has a value for each row is indexed by the rows. The plate of the patients stays as it is. Each patient has
# many rows, so the patients' parameters are centred, which is the rounder form of the posterior. With few rows each,
# ``LocScaleReparam(0)`` is better, for NUTS and for minibatches.


def model(patients, patient, week, y):
    mean = numpyro.sample("mean", dist.Normal(0, 10).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(5).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("patients", patients):
        intercept = numpyro.sample("intercept", dist.Normal(mean[0], spread[0]))
        slope = numpyro.sample("slope", dist.Normal(mean[1], spread[1]))
    with numpyro.plate("rows", len(y)) as rows:
        i = patient[rows]
        numpyro.sample("y", dist.Normal(intercept[i] + slope[i] * week[rows], sigma), obs=y[rows])


def simulated(args):
    rng = np.random.default_rng(args.seed)
    patient = rng.permutation(np.repeat(np.arange(args.patients), args.visits))
    week = rng.uniform(-1, 1, len(patient))
    intercept, slope = rng.normal(2, 1, args.patients), rng.normal(-1, 0.5, args.patients)
    y = intercept[patient] + slope[patient] * week + rng.normal(0, 2, len(patient))
    return args.patients, jnp.asarray(patient), jnp.asarray(week, jnp.float32), jnp.asarray(y, jnp.float32)


# %%
# The runs
# --------
# The kernel is all that differs. What works with NUTS works here: ``init_params``, chain methods, ``extra_fields``,
# ``print_summary``, ArviZ. What has no counterpart: ``target_accept_prob``, ``max_tree_depth``, and the divergences of
# a trajectory; ``diverging`` marks draws with a refused step.


def sample(kernel, data, args):
    begin = time.perf_counter()
    mcmc = MCMC(
        kernel,
        num_warmup=args.draws,
        num_samples=args.draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(args.seed), *data)
    for values in mcmc.get_samples().values():
        values.block_until_ready()
    return mcmc, time.perf_counter() - begin


# %%
# The comparison
# --------------
# ``compare`` gives the errors of means, standard deviations and quantiles in units of the reference's standard
# deviation. The picture has each coordinate's mean and an interval of two standard deviations, of both.


def draw(ours, theirs):
    names = ["mean", "spread", "sigma", "intercept"]
    a, b = ({k: np.asarray(v) for k, v in m.get_samples().items()} for m in (ours, theirs))
    flat = lambda s: np.concatenate([s[k].reshape(len(s[k]), -1) for k in names], 1)  # noqa: E731
    a, b = flat(a), flat(b)
    fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for x, shift, color, label in ((b, -0.15, "0.4", "NUTS"), (a, 0.15, "#0072B2", "SGHMC")):
        place = np.arange(x.shape[1]) + shift
        z = (x - b.mean(0)) / b.std(0)
        ax.errorbar(place, z.mean(0), 2 * z.std(0), fmt=".", ms=4, lw=1, color=color, label=label)
    ax.set(xlabel="coordinate", ylabel="sds of NUTS from its mean")
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside upper right", frameon=False, ncol=2)
    return fig


# %%
# When NUTS is the better choice
# ------------------------------
# A transition of NUTS costs some passes over the data, one of ours some minibatches. With few rows a pass costs no
# more than the overhead of a step, and NUTS has no bias: below ten thousand rows or so take NUTS. With a hundred
# thousand rows, as here, the time printed below speaks for minibatches, and the more so the larger the data. Posteriors
# that no linear change of coordinates makes round (horseshoes, centred hierarchies with little data in each group)
# belong to NUTS at every size.


def main(args):
    data = simulated(args)
    ours, seconds = sample(SGHMC(model, batch_size=500), data, args)
    theirs, seconds_nuts = sample(NUTS(model), data, args)
    print(compare(ours, theirs))
    a, b = (np.asarray(m.get_samples()["intercept"]) for m in (ours, theirs))
    metrics = {
        "seconds": seconds,
        "seconds of NUTS": seconds_nuts,
        "rows": len(data[-1]),
        "largest error of a mean, in sds": np.abs((a.mean(0) - b.mean(0)) / b.std(0)).max(),
        "median error of an sd": np.median(np.abs(a.std(0) / b.std(0) - 1)),
    }
    print(metrics)
    save(args, "from_nuts", draw(ours, theirs), metrics)
    if not args.fast:
        assert metrics["largest error of a mean, in sds"] < 0.25, metrics
        assert metrics["median error of an sd"] < 0.06, metrics


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
