r"""
A new dynamics in ten lines
===========================

Every symmetric, positive semi-definite :math:`D(x)` and every skew-symmetric :math:`Q(x)` define a sampler (Ma, Chen &
Fox 2015). This program defines two that have no name, on the double well of Ding et al. (2014), and checks the
distributions of their draws.

The potential is :math:`U(\theta) = (\theta + 4)(\theta + 1)(\theta - 1)(\theta - 3) / 14 + 1/2`. The draws should have
the density :math:`\exp(-U)`.
"""

from gallery import expect_refusals, parsed, parser, save
from jax import lax, random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from tqdm import tqdm

from numpyro_sgmcmc import SGMCMC, Recipe

EDGES = np.linspace(-6, 6, 61)  # of the histograms
SIZE = {"draws": (60, 400), "chains": (1500, 4000)}  # with --fast, without

expect_refusals()  # the largest step of the memory is hot, as the picture shows


def potential(theta):
    return (theta + 4) * (theta + 1) * (theta - 1) * (theta - 3) / 14 + 0.5


def model():
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.factor("energy", -potential(theta))


# %%
# A metric
# --------
# The first moves faster where the density is small, and so crosses the barrier between the wells more often. The
# recipe adds the divergence of D by automatic differentiation. Where it is left out, here because JAX is told not to
# differentiate D, the law is known as well, and it is another one: in one dimension :math:`\exp(-U) / D`.


def faster(theta):
    return 0.3 + 0.7 / (1 + jnp.exp(-4 * potential(theta)))


METRIC = Recipe(D=lambda phase: faster(phase.z["theta"]))
LEFT_OUT = Recipe(D=lambda phase: lax.stop_gradient(faster(phase.z["theta"])))

# %%
# A memory
# --------
# In the second neither friction nor noise acts on the momentum. It is coupled to a memory, an auxiliary variable, more
# tightly on the right, and friction and noise act on the memory alone. H is U plus the energy of both. These are the
# ten lines.


def energy(phase):
    return 0.5 * phase.momentum["theta"] ** 2 + 0.5 * phase.auxiliary["memory"] ** 2


def couplings(phase):
    tight = 1.5 + jnp.tanh(phase.z["theta"])
    return {("momentum", "theta"): 1.0, ("momentum", "memory"): tight.reshape(1, 1)}


MEMORY = Recipe(D={"memory": 2.0}, Q=couplings, kinetic=energy, auxiliary={"memory": 0.0})

# %%
# The runs
# --------
# All three are sampled by NumPyro's ``MCMC``, as any kernel is, at a large and at a small step size.

DYNAMICS = {"metric": METRIC, "divergence left out": LEFT_OUT, "memory": MEMORY}
STEPS = (0.2, 0.1, 0.05)
COLORS = {"metric": "#0072B2", "divergence left out": "#D55E00", "memory": "#009E73"}


def sample(recipe, h, args):
    kernel = SGMCMC(model, recipe, "euler", step_size=h, steps_per_sample=round(1 / h))
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=args.draws,
        num_chains=args.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    # the chains start in the law, so that a few draws of each tell whether they stay there
    centers, p = (EDGES[1:] + EDGES[:-1]) / 2, law(lambda t: -potential(t))
    bins = random.choice(random.key(args.seed + 1), len(p), (args.chains,), p=jnp.asarray(p))
    within = 0.1 * random.uniform(random.key(args.seed + 2), bins.shape, minval=-1)
    start = {"theta": jnp.asarray(centers)[bins] + within}
    mcmc.run(random.key(args.seed), init_params=start)
    return np.asarray(mcmc.get_samples()["theta"])


def law(log_density):
    """Probability of each bin."""
    grid = np.linspace(EDGES[0], EDGES[-1], 60 * 50 + 1)
    density = np.exp(np.asarray(log_density(grid), float))
    mass = ((density[1:] + density[:-1]) / 2).reshape(60, 50).sum(1)
    return mass / mass.sum()


def divergence(p, theta):
    """KL(p | histogram)."""
    counts = np.histogram(theta, EDGES)[0] + 0.5
    return float(np.sum(p * np.log(p / (counts / counts.sum()))))


# %%
# The picture
# -----------
# Left and middle: the histograms at the smallest step, and the law of each. Right: the distance from exp(-U).


def draw(results, right, wrong):
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    width = EDGES[1] - EDGES[0]
    for ax, names in zip(axes, (["metric", "divergence left out"], ["memory"])):
        ax.stairs(right / width, EDGES, fill=True, color="0.85", label="exp(-U)")
        for name in names:
            counts = np.histogram(results[name, STEPS[-1]], EDGES, density=True)[0]
            ax.stairs(counts, EDGES, color=COLORS[name], lw=1.5, label=name)
        ax.set(xlabel=r"$\theta$", ylabel="density")
    axes[0].stairs(wrong / width, EDGES, color="black", ls=":", label="exp(-U) / D")
    axes[0].set_title("a metric", loc="left")
    axes[1].set_title("a memory", loc="left")
    for name, color in COLORS.items():
        axes[2].loglog(STEPS, [divergence(right, results[name, h]) for h in STEPS], "o-", color=color, label=name)
    axes[2].set(xlabel="step size h", ylabel="KL(exp(-U) | histogram)")
    axes[2].set_title("distance", loc="left")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return fig


# %%
# The claims
# ----------
# The metric and the memory have the law exp(-U) up to an error of their steps, which for the metric is seen to fall
# with h. Without its divergence the metric's law is exp(-U) / D, at every step size.


def main(args):
    runs = tqdm([(name, h) for name in DYNAMICS for h in STEPS], desc="dynamics and step sizes")
    results = {(name, h): sample(DYNAMICS[name], h, args) for name, h in runs}
    right, wrong = law(lambda t: -potential(t)), law(lambda t: -potential(t) - np.log(faster(t)))
    metrics = {
        f"{name}, h = {h:g}": {"from exp(-U)": divergence(right, theta), "from exp(-U) / D": divergence(wrong, theta)}
        for (name, h), theta in results.items()
    }
    for name, values in metrics.items():
        print(f"{name:32}", *(f"{what}: {value:.5f}" for what, value in values.items()))
    save(args, "recipe", draw(results, right, wrong), metrics)

    smallest = {name: metrics[f"{name}, h = {STEPS[-1]:g}"] for name in DYNAMICS}
    assert smallest["metric"]["from exp(-U)"] < 0.5 * metrics[f"metric, h = {STEPS[0]:g}"]["from exp(-U)"], metrics
    for name in ("metric", "memory"):
        assert smallest[name]["from exp(-U)"] < 0.005, smallest
    assert smallest["divergence left out"]["from exp(-U) / D"] < 0.005, smallest
    assert smallest["divergence left out"]["from exp(-U)"] > 0.012, smallest


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
