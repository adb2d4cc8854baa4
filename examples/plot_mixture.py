r"""
Two modes that no chain leaves
==============================

The location of a mixture of two normal distributions has a posterior with two modes. Within each mode, stochastic
gradient Langevin dynamics with the SAGA estimator samples the posterior correctly. It cannot find the weights of the
modes. This is the experiment of Dubey et al. (2016), section 5.4, with many chains instead of one.

The rows are drawn from :math:`\tfrac12 N(\mu, \sigma^2) + \tfrac12 N(\gamma - \mu, \sigma^2)` with
:math:`\mu = -5,\ \gamma = 20,\ \sigma = 5`, so their components are at -5 and 25. Only :math:`\mu` is unknown, with a
flat prior. As :math:`\mu` and :math:`\gamma - \mu` give the same density, the posterior has two modes of exactly equal
weight. They are 30 apart and far narrower than that, and between them the log density falls very low; the program
prints the width and the fall.
"""

from typing import NamedTuple

from gallery import parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from scipy.stats import t as student
from tqdm import tqdm

from numpyro_sgmcmc import SAGA, SGLD, Minibatch, WithoutReplacement

MU, GAMMA, SIGMA = -5.0, 20.0, 5.0
ROWS, BATCH = 20_000, 100
MIDDLE = GAMMA / 2  # between the modes
THIN = 10  # steps from one draw to the next
WARMUP = 0.4  # share of the draws left out
SIZE = {"steps": (10_000, 40_000), "chains": (40, 200)}  # with --fast, without


# %%
# Model and data
# --------------


def model(x):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    components = dist.Normal(jnp.stack([mu, GAMMA - mu]), SIGMA)
    with numpyro.plate("rows", len(x)) as rows:
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), components), obs=x[rows])


def simulate(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(np.where(rng.random(ROWS) < 0.5, MU, GAMMA - MU), SIGMA)


# %%
# The truth
# ---------
# One parameter, so the posterior is known by quadrature. Each mode lies within a few standard deviations of the value
# that the rows were drawn with, or of its mirror image, and a grid around it holds all of its mass.


class Mode(NamedTuple):
    grid: np.ndarray
    density: np.ndarray
    mean: float
    sd: float


def log_density(x, mu):
    """Log posterior density at each of the points ``mu``, up to one constant."""
    return np.array(
        [np.logaddexp(-0.5 * ((x - m) / SIGMA) ** 2, -0.5 * ((x - GAMMA + m) / SIGMA) ** 2).sum() for m in mu]
    )


def quadrature(x, centre):
    grid = centre + 10 * SIGMA / np.sqrt(len(x)) * np.linspace(-1, 1, 401)
    log = log_density(x, grid)
    share = np.exp(log - log.max())
    share /= share.sum()
    mean = share @ grid
    return Mode(grid, share / (grid[1] - grid[0]), mean, np.sqrt(share @ (grid - mean) ** 2))


# %%
# The chains
# ----------
# They start on an even grid over (-50, 50), so that 60 of 100 start nearer to the mode at -5. Minibatches are
# independent of each other, as in the paper. The gradient from a plain minibatch of n of the N rows then has the
# variance :math:`s^2 \approx N^2 / (n \sigma^2)`, and this widens each mode by a factor :math:`1 + h s^2 / 2` in
# variance. At the step size where SAGA samples well this factor is far from 1. A third run has a step size that is 50
# times smaller; there the factor is close to 1, and the chains are that much slower. The page of
# :doc:`results </results>` has the width of the modes in the three runs.

SAMPLERS = {
    "SAGA, h = 5e-5": (SAGA(), 5e-5, {"color": "#0072B2", "ls": "-"}),
    "plain, h = 5e-5": (Minibatch(), 5e-5, {"color": "#D55E00", "ls": "--"}),
    "plain, h = 1e-6": (Minibatch(), 1e-6, {"color": "#009E73", "ls": ":"}),
}


def starts(chains):
    return -50 + 100 * (np.arange(chains) + 0.5) / chains


def sample(gradient, h, x, args):
    """Draws of all chains from their first on, shape=(chains, draws)."""
    kernel = SGLD(
        model,
        step_size=h,
        batch_size=BATCH,
        gradient=gradient,
        rows=WithoutReplacement(),
        steps_per_sample=THIN,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=0,
        num_samples=args.steps // THIN,
        num_chains=args.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    init = {"mu": jnp.asarray(starts(args.chains), jnp.float32)}
    mcmc.run(random.key(args.seed), jnp.asarray(x, jnp.float32), init_params=init)
    return np.asarray(mcmc.get_samples(group_by_chain=True)["mu"], float)


# %%
# What comes out
# --------------
# Mean and standard deviation within each mode, in units of the standard deviation by quadrature. The chains are
# replicates of each other, which gives the standard errors.


def compare(draws, mode):
    """:param draws: those of the chains in this mode, shape=(chains, draws)."""
    z = (draws - mode.mean) / mode.sd
    means, squares = z.mean(1), (z**2).mean(1)
    sd = np.sqrt(squares.mean() - means.mean() ** 2)
    root = np.sqrt(len(z))
    return {
        "chains": len(z),
        "mean_off": means.mean(),
        "mean_off_se": means.std(ddof=1) / root,
        "sd_ratio": sd,
        "sd_ratio_se": squares.std(ddof=1) / root / (2 * sd),
    }


def report(draws, modes, right):
    """
    Numbers for each sampler and mode.

    :param right: which chains start on the right of the middle.
    """
    metrics = {}
    print(f"{'sampler':16} {'mode':>7} {'chains':>7} {'mean off / sd':>18} {'sd / sd':>18}")
    for name, z in draws.items():
        crossed = ((z > MIDDLE) != right[:, None]).any(1).sum()
        metrics[name] = {"crossed": int(crossed), "share_right": (z[:, -1] > MIDDLE).mean(), "modes": []}
        for side, mode in zip((~right, right), modes):
            r = compare(z[side, int(WARMUP * z.shape[1]) :], mode)
            metrics[name]["modes"].append(r)
            print(
                f"{name:16} {mode.mean:7.3f} {r['chains']:7} {r['mean_off']:9.4f} ({r['mean_off_se']:.4f}) "
                f"{r['sd_ratio']:9.4f} ({r['sd_ratio_se']:.4f})"
            )
    return metrics


# %%
# The picture
# -----------
# Left: where the chains go from their starts. Middle and right: what they draw in the two modes, each chain's first
# part left out.


def draw(draws, modes):
    fig, (left, *others) = plt.subplots(1, 3, figsize=(13.5, 4.6), layout="constrained")
    paths(left, draws["SAGA, h = 5e-5"])
    for ax, mode in zip(others, modes):
        densities(ax, draws, mode)
    for ax in (left, *others):
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = others[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower right", ncol=len(labels), frameon=False)
    return fig


def paths(ax, draws, kept=30):
    chains = len(draws)
    begin = starts(chains)
    right = begin > MIDDLE
    for chain in range(0, chains, max(1, chains // 40)):
        path = np.append(begin[chain], draws[chain, :kept])
        ax.plot(THIN * np.arange(kept + 1), path, color="#CC79A7" if right[chain] else "#56B4E9", lw=0.8)
    ax.axhline(MIDDLE, color="black", lw=1, ls="--")
    for centre, beyond in ((MU, np.less), (GAMMA - MU, np.greater)):
        share = {
            "starts": beyond(begin, MIDDLE).mean(),
            "chains": beyond(draws[:, -1], MIDDLE).mean(),
            "posterior": 0.5,
        }
        text = "\n".join(f"{value:.0%} of the {name}" for name, value in share.items())
        ax.text(1.02, centre, text, transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    ax.set(xlabel="step", ylabel=r"$\mu$", xlim=(0, THIN * kept))
    ax.set_title("from the starts into the modes", loc="left")


def densities(ax, draws, mode):
    ax.fill_between(mode.grid, mode.density, color="0.85", label="posterior, by quadrature")
    edges = mode.mean + mode.sd * np.linspace(-6, 6, 81)
    for name, z in draws.items():
        inside = z[(z[:, -1] > MIDDLE) == (mode.mean > MIDDLE), int(WARMUP * z.shape[1]) :]
        heights = np.histogram(inside, edges)[0] / inside.size / np.diff(edges)
        ax.stairs(heights, edges, label=name, lw=1.5, **SAMPLERS[name][2])
    ax.set(xlabel=r"$\mu$", xlim=edges[[0, -1]], yticks=[])
    ax.locator_params(axis="x", nbins=5)
    ax.spines["left"].set_visible(False)
    ax.set_title(f"within the mode at {mode.mean:.2f}", loc="left")


# %%
# What is claimed, and what is not
# --------------------------------
# Within each mode, mean and standard deviation of the SAGA chains are those of the posterior, to within 5 % of its
# standard deviation and the error of a finite run. Plain minibatches of the same size at the same step size are much
# too wide.
#
# No chain crosses from one mode to the other. So the share of the chains in a mode is the share of the starts on its
# side, here 60 and 40 %, while the posterior has 50 and 50 %. Starts spread symmetrically around the middle would have
# given 50 and 50 %, with an optimiser in place of the sampler as well. Two modes of the right weight in a picture are
# therefore no evidence that a sampler has found the weights, and a single chain sees one mode only.


def check(samplers, share_right, alpha=1e-4):
    """All comparisons of SAGA with the truth hold together with probability 1 - alpha if it is within the 5 %."""
    for name, metrics in samplers.items():
        assert metrics["crossed"] == 0, f"{metrics['crossed']} chains of {name} crossed"
        assert metrics["share_right"] == share_right, f"{name}: the shares of the modes are not those of the starts"
    modes = samplers["SAGA, h = 5e-5"]["modes"]
    for r in modes:
        errors = student.ppf(1 - alpha / (4 * len(modes)), r["chains"] - 1)
        assert abs(r["mean_off"]) < 0.05 + errors * r["mean_off_se"], f"the mean of the SAGA chains is off: {r}"
        assert abs(r["sd_ratio"] - 1) < 0.05 + errors * r["sd_ratio_se"], f"the width of the SAGA chains is off: {r}"
    for r in samplers["plain, h = 5e-5"]["modes"]:
        assert r["sd_ratio"] > 1.5, f"plain minibatches are not too wide: {r}"


def main(args):
    x = simulate(args.seed)
    modes = [quadrature(x, centre) for centre in (MU, GAMMA - MU)]
    top, bottom = log_density(x, [modes[0].mean, MIDDLE])
    print(
        f"modes at {modes[0].mean:.3f} and {modes[1].mean:.3f}, sd {modes[0].sd:.4f}, {top - bottom:,.0f} nats between"
    )

    names = list(SAMPLERS)[: 2 if args.fast else 3]
    draws = {name: sample(*SAMPLERS[name][:2], x, args) for name in tqdm(names, desc="samplers")}
    right = starts(args.chains) > MIDDLE
    samplers = report(draws, modes, right)
    metrics = {"barrier": top - bottom, "sd": modes[0].sd, "starts_right": right.mean(), "samplers": samplers}
    save(args, "mixture", draw(draws, modes), metrics)
    check(samplers, right.mean())


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
