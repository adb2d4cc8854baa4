r"""
Sparse probabilities on the simplex
===================================

Most probabilities of a topic's words are nearly zero. Gradients fail there, because the step of a Langevin sampler is
larger than the numbers that it moves. This program samples a sparse Dirichlet posterior from minibatches in three ways
and compares the draws with the exact marginal distributions, as Patterson & Teh (2013) and Baker, Fearnhead, Fox &
Nemeth (2018) do.

There are 10 categories, with a prior of 0.1 for each, and 1000 rows, of which 990 are in three categories and 7 are
empty or nearly so. A minibatch has 100 rows.
"""

from gallery import expect_refusals, parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from scipy import stats
from tqdm import tqdm

from numpyro_sgmcmc import MSGNHT, SCIR, SGRLD, ExpandedMean

COUNTS = np.array([700, 200, 90, 6, 3, 1, 0, 0, 0, 0])
PRIOR, BATCH = 0.1, 100
SIZE = {"draws": (40, 200), "chains": (100, 1000)}  # with --fast, without

expect_refusals()  # large steps are refused near 0, as the picture shows

# %%
# The models
# ----------
# SCIR and SGRLD know the simplex: a site with a Dirichlet prior is enough. A thermostat needs real numbers: there the
# probabilities are the softmax of the logarithms of independent Gamma numbers, which is the same prior.


def dirichlet(x):
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(len(COUNTS), PRIOR)))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.Categorical(p), obs=x[rows])


def softmax(x):
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (len(COUNTS),)))
    numpyro.factor("prior", (PRIOR * z - jnp.exp(z)).sum())
    log_p = z - jnp.log(jnp.exp(z).sum())
    numpyro.deterministic("p", jnp.exp(log_p))
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.Categorical(logits=log_p), obs=x[rows])


# %%
# The samplers
# ------------
# Each has a range of step sizes. SGRLD is given the number of counts, so that its theta has the scale of those of
# SCIR. For SCIR and SGRLD h is in units of the relaxation of theta, for the thermostat the square of h is comparable
# with it. All take the same number of gradients, and start at the mean.

SAMPLERS = {
    "SCIR": (SCIR, dirichlet, {}, (0.3, 0.1, 0.03)),
    "SGRLD, expanded mean": (SGRLD, dirichlet, {"metric": ExpandedMean({"p": COUNTS.sum()})}, (0.3, 0.1, 0.03)),
    "softmax, MSGNHT": (MSGNHT, softmax, {"diffusion": 1.0}, (0.1, 0.03, 0.01)),
}
COLORS = dict(zip(SAMPLERS, ("#0072B2", "#D55E00", "#009E73")))


def sample(name, h, x, args):
    kind, model, options, _ = SAMPLERS[name]
    kernel = kind(model, step_size=h, batch_size=BATCH, steps_per_sample=5, **options)
    mcmc = MCMC(
        kernel,
        num_warmup=args.draws,
        num_samples=args.draws,
        num_chains=args.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    theta = np.tile(PRIOR + COUNTS, (args.chains, 1))
    site = "z" if model is softmax else "p"
    start = theta * PRIOR * len(COUNTS) / theta.sum(1, keepdims=True) if model is softmax else theta
    start = jnp.asarray(start if kind is SGRLD else np.log(start), jnp.float32)
    mcmc.run(random.key(args.seed), jnp.asarray(x), init_params={site: start})
    return np.asarray(mcmc.get_samples()["p"], float)


def distances(p):
    """Kolmogorov's distance of each component from its exact law."""
    total = PRIOR + COUNTS
    laws = (stats.beta(a, total.sum() - a) for a in total)
    ranks = (np.arange(len(p)) + 0.5) / len(p)
    # below the smallest floating point number draws are that number, and the law has a step there
    worst = []
    for law, x in zip(laws, p.T):
        x = np.sort(x)
        worst.append(np.abs(law.cdf(x) - ranks)[x > 1e-37].max())
    return np.array(worst)


# %%
# The picture
# -----------
# Left: the mean distance over the components against the step size. Right: that of each component, at the best step
# size of each sampler.


def draw(results):
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name, color in COLORS.items():
        steps = [h for n, h in results if n == name]
        axes[0].loglog(steps, [results[name, h].mean() for h in steps], "o-", color=color, label=name)
        best = min(steps, key=lambda h: results[name, h].mean())
        axes[1].semilogy(results[name, best], "o", color=color, label=f"{name}, h = {best:g}")
    axes[0].set(xlabel="step size h", ylabel="mean distance", title="error against the step size")
    axes[1].set(xlabel="category", ylabel="distance", title="error of each category, at the best step size")
    axes[1].set_xticks(range(len(COUNTS)), COUNTS)
    axes[1].set_xlabel("category, by its count")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return fig


# %%
# The claims
# ----------
# At its best step size SCIR is nearer to the exact law than the others, and it is better than SGRLD at each step size
# that both have.


def main(args):
    x = np.repeat(np.arange(len(COUNTS)), COUNTS)
    runs = tqdm([(name, h) for name in SAMPLERS for h in SAMPLERS[name][-1]], desc="samplers and step sizes")
    results = {(name, h): distances(sample(name, h, x, args)) for name, h in runs}
    metrics = {f"{name}, h = {h:g}": {"mean distance": d.mean(), "worst": d.max()} for (name, h), d in results.items()}
    for name, values in metrics.items():
        print(f"{name:32}", *(f"{what}: {value:.4f}" for what, value in values.items()))
    save(args, "simplex", draw(results), metrics)

    best = {name: min(d.mean() for (n, _), d in results.items() if n == name) for name in SAMPLERS}
    assert best["SCIR"] < 0.7 * min(best["SGRLD, expanded mean"], best["softmax, MSGNHT"]), best
    for h in (0.3, 0.1, 0.03):
        assert results["SCIR", h].mean() < results["SGRLD, expanded mean", h].mean(), h


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
