r"""
Thermostats on a double well
============================

Gradient noise of unknown size, step sizes from 0.001 to 0.3, and three ways to discretise the same thermostat: how far
is the distribution of the draws from the true one? This is the experiment of Li et al. (2016), figures 1 and 2.

The potential is :math:`U(\theta) = (\theta + 4)(\theta + 1)(\theta - 1)(\theta - 3) / 14 + 1/2`. Each gradient carries
noise, :math:`h \tilde g = h U'(\theta) + N(0, 2 B h)` with B = 1, and no other noise is injected. A Nosé-Hoover
thermostat :math:`\xi` is a friction that adapts until the kinetic energy is what it should be. In continuous time the
density of :math:`\theta` is then :math:`\exp(-U)`, and the mean of :math:`\xi` is B.
"""

from typing import NamedTuple

from gallery import expect_refusals, parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from tqdm import tqdm

from numpyro_sgmcmc import MSGNHT

B = 1.0
THIN = 10  # steps from one kept state to the next
EDGES = np.linspace(-6, 6, 121)  # of the histograms
SIZE = {"steps": (20_000, 1_000_000), "chains": (64, 64)}  # with --fast, without

expect_refusals()  # exploded chains are counted below


# %%
# The model
# ---------
# A potential enters a NumPyro model by ``numpyro.factor``. The noise of the gradient is a term that is linear in
# ``theta``, with a key that is new at every step.


def potential(theta):
    return (theta + 4) * (theta + 1) * (theta - 1) * (theta - 3) / 14 + 0.5


def model(noise_sd):
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    noise = noise_sd * random.normal(numpyro.prng_key())
    numpyro.factor("energy", -(potential(theta) + noise * theta))


# %%
# The three integrators
# ---------------------
# ``euler`` and ``ssi`` are the integrators of the paper, of order 1 and 2; ``ADBOBDA`` is the default of the kernel, of
# order 2 as well. The first two use the noisy gradient of a step in one kick, the third in two half kicks, with the
# friction between them.
#
# All chains start at ``theta`` = 0 with thermostats at 0. As a start is given, the kernel does not search for one. All
# integrators and step sizes have the same keys, so the same standard normal noise. If a step of a chain is not finite,
# the kernel refuses it and sets the field ``diverging``. Here such a chain counts as exploded: it has failed, and none
# of its states is used. At a step size at which only some chains explode, the numbers are those of the others.

WORDS = {
    "euler": {"color": "#D55E00", "marker": "o", "ls": "--", "ms": 5},
    "ssi": {"color": "#0072B2", "marker": "s", "ls": "-", "ms": 5},
    "ADBOBDA": {"color": "#009E73", "marker": "^", "ls": ":", "ms": 5},
}


class Result(NamedTuple):
    exploded: int  # chains
    kl: float | None  # KL(true | histogram) of the finite chains; None if there is none
    thermostat: float | None  # mean of their thermostats
    thermostat_se: float | None
    path: np.ndarray  # theta of the first finite chain, from its start
    thermostat_path: np.ndarray


def sample(word, h, args):
    kernel = MSGNHT(model, step_size=h, diffusion=0.0, integrator=word, steps_per_sample=THIN)
    mcmc = MCMC(
        kernel,
        num_warmup=0,
        num_samples=args.steps // THIN,
        num_chains=args.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = {"theta": jnp.zeros(args.chains)}
    mcmc.run(random.key(args.seed), np.sqrt(2 * B / h), init_params=start, extra_fields=("thermostat",))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    theta = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    return summarise(theta, np.asarray(fields["thermostat"]["theta"]), np.asarray(fields["diverging"]).any(1))


def summarise(theta, thermostat, exploded):
    """The summary of a run. All arguments have an axis of chains; the first two have an axis of draws after it."""
    finite = np.flatnonzero(~exploded)
    if not len(finite):
        return Result(len(exploded), None, None, None, theta[0, :0], thermostat[0, :0])
    means = thermostat[finite].mean(1, dtype=float)
    first = slice(100_000 // THIN)
    return Result(
        exploded=int(exploded.sum()),
        kl=divergence(theta[finite]),
        thermostat=means.mean(),
        thermostat_se=means.std(ddof=1) / np.sqrt(len(means)),
        path=theta[finite[0], first].copy(),
        thermostat_path=thermostat[finite[0], first].copy(),
    )


# %%
# The distance from the true law
# ------------------------------
# The Kullback-Leibler divergence from the true law to the histogram of all draws. Half a count is added to each bin, so
# that an empty bin of tiny probability does not make it infinite.


def true_law(points=100):
    """Probability of each bin, by the midpoint rule."""
    width = (EDGES[1] - EDGES[0]) / points
    density = np.exp(-potential(EDGES[0] + width * (np.arange((len(EDGES) - 1) * points) + 0.5)))
    law = density.reshape(-1, points).sum(1)
    return law / law.sum()


def divergence(theta):
    counts = np.histogram(theta, EDGES)[0] + 0.5
    law = true_law()
    return float(np.sum(law * np.log(law / (counts / counts.sum()))))


# %%
# The picture
# -----------
# Left: distance and mean thermostat against the step size. Middle and right: one chain at the smallest and one at a
# large step size, as in figure 2 of the paper.


def draw(results, args):
    fig, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    steps = sorted({h for _, h in results})
    against_step_size(*axes[:, 0], results, args)
    single_chain(*axes[:, 1], results, steps[0])
    single_chain(*axes[:, 2], results, 0.2)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
    fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncol=len(handles), frameon=False)
    return fig


def against_step_size(above, below, results, args):
    for word in dict.fromkeys(word for word, _ in results):
        rows = [(h, r) for (w, h), r in results.items() if w == word and r.kl is not None]
        steps = [h for h, _ in rows]
        above.semilogy(steps, [r.kl for _, r in rows], label=word, **WORDS[word])
        below.plot(steps, [r.thermostat for _, r in rows], label=word, **WORDS[word])
    below.axhline(B, color="black", lw=1, zorder=0)

    failed = {h: r.exploded for (word, h), r in results.items() if word == "euler" and r.exploded}
    place = {"transform": above.get_xaxis_transform(), "clip_on": False}
    label = f"exploded chains of euler, of {args.chains}"
    above.plot(list(failed), [1.1] * len(failed), "x", color="black", label=label, **place)
    for h, count in failed.items():
        above.text(h, 1.03, count, ha="center", va="center", fontsize=9, **place)

    above.set_title("distance from the true law", loc="left", pad=26)
    above.set(xlabel="step size h", ylabel="KL(true | histogram)")
    below.set(xlabel="step size h", ylabel=r"mean of the thermostat $\xi$")


def single_chain(above, below, results, h):
    grid = np.linspace(-6, 6, 500)
    density = np.exp(-potential(grid))
    above.fill_between(grid, density / density.sum() / (grid[1] - grid[0]), color="0.85", label="true law")
    for word in ("ssi", "euler"):
        result, color, ls = results[word, h], WORDS[word]["color"], WORDS[word]["ls"]
        above.stairs(np.histogram(result.path, EDGES, density=True)[0], EDGES, color=color, ls=ls, lw=1.5)
        kept = np.arange(1, len(result.thermostat_path) + 1)
        below.plot(THIN * kept / 1000, np.cumsum(result.thermostat_path) / kept, color=color, ls=ls, lw=1.5)
    below.axhline(B, color="black", lw=1, zorder=0, label="theory")
    above.set_title(f"one chain, h = {h:g}, its first {THIN * kept[-1]:,} steps", loc="left", pad=26)
    above.set(xlabel=r"$\theta$", ylabel="density", xlim=(-6, 6))
    below.set(xlabel="step, in thousands", ylabel=r"mean of $\xi$ so far", ylim=(0.5, 1.5))


# %%
# The claims
# ----------
# From h = 0.05 on the law of ``ssi`` is nearer to the true one than that of ``euler``, and from 0.1 on so is its mean
# thermostat. From 0.25 on chains of ``euler`` explode, and none of ``ssi`` or ``ADBOBDA`` does up to 0.3. From 0.2 on
# ``ssi`` is more exact than ``ADBOBDA``: where all the noise comes with the gradient, one kick is better than two.
#
# At small step sizes no integrator is claimed to be better: the error of the discretisation is smaller than that of a
# finite run. With the same noise ``euler`` and ``ssi`` give nearly the same draws at h = 0.001, so the difference that
# figure 2 of the paper shows there is not one between the integrators.


def check(results, args):
    for word, h in results:
        assert word == "euler" or not results[word, h].exploded, f"chains of {word} exploded at h = {h}"
    for h in {h for _, h in results}:
        euler, ssi, default = (results.get((word, h)) for word in ("euler", "ssi", "ADBOBDA"))
        if h >= 0.25:
            assert euler.exploded > args.chains / 2, f"only {euler.exploded} chains of euler exploded at h = {h}"
        if h >= 0.05 and euler.kl is not None:
            assert ssi.kl < euler.kl, f"KL at h = {h}: ssi {ssi.kl}, euler {euler.kl}"
        if h >= 0.1 and euler.kl is not None:
            assert abs(ssi.thermostat - B) < abs(euler.thermostat - B), f"thermostats at h = {h}: {ssi}, {euler}"
        if h >= 0.2 and default is not None:
            assert ssi.kl < default.kl, f"KL at h = {h}: ssi {ssi.kl}, ADBOBDA {default.kl}"
        if h <= 0.001:
            assert abs(ssi.kl - euler.kl) < 0.2 * ssi.kl, f"KL at h = {h}: ssi {ssi.kl}, euler {euler.kl}"


def main(args):
    words = ("euler", "ssi") if args.fast else WORDS
    steps = (0.2, 0.3) if args.fast else (0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
    runs = tqdm([(word, h) for h in steps for word in words], desc="integrators and step sizes")
    results = {(word, h): sample(word, h, args) for word, h in runs}

    metrics = {}
    print(f"{'word':8} {'h':>6} {'exploded':>9} {'KL':>9} {'thermostat':>11} {'its se':>8}")
    for (word, h), r in results.items():
        metrics.setdefault(word, {})[f"{h:g}"] = {
            "exploded": r.exploded,
            "kl": r.kl,
            "thermostat": r.thermostat,
            "thermostat_se": r.thermostat_se,
        }
        numbers = "" if r.kl is None else f"{r.kl:9.5f} {r.thermostat:11.4f} {r.thermostat_se:8.4f}"
        print(f"{word:8} {h:6g} {r.exploded:9} {numbers}")
    save(args, "double_well", draw(results, args), metrics)
    check(results, args)


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
