r"""
Sigmoid belief networks
=======================

Images of 0 and 1 with hidden units of their own (Chen et al. 2015, section 5). The kernels sample the weights from
minibatches of 200 images. For these images alone ``local=`` draws the units, by four Gibbs sweeps that begin at the
guess of a recognition network, see belief_networks.py.

The data are the digits of MNIST, binarised by sampling: a pixel is 1 with probability byte / 255. A threshold makes
other data, of a lower entropy, and the paper does not say which it took. So one run is of images by threshold.

The test log likelihood is estimated by annealed importance sampling, and is too low on average. All samplers are
compared on the same test images. The first step size and the number of sweeps were chosen on these images too, which
favours all samplers alike.
"""

import belief_networks as bn
import datasets
from gallery import expect_refusals, parsed, parser, save, shown
import jax
from jax import random
from jax.nn import logsumexp
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, init_to_value
import optax
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, SGLD

BATCH, DRAWS = 200, 10
SCORED = 2, 4, 6, 8, 9, 10  # of the draws; the last three are averaged
SIZE = {"steps": (200, 5000), "images": (50, 200), "temperatures": (50, 800), "seeds": (1, 3)}  # with --fast, without
PAPER = {
    100: {"SGHMC ssi": 103, "SGHMC euler": 105, "SGLD": 126},
    200: {"SGHMC ssi": 98, "SGHMC euler": 100, "SGLD": 110},
}

expect_refusals()  # the start is far from the mode, and the kinetic temperature is high at first

# %%
# The samplers
# ------------
# Four sweeps for each minibatch: with fewer the units depend on what the recognition network has learnt so far. After a
# single one it learns from its own errors, and the weights run away. The steps are large at first and small later: h
# falls to a tenth. :math:`D = 1 / \sqrt h` with the first h, one of the paper's. SGLD has the step size
# :math:`h / D` at which it moves as fast as SGHMC does. They are for 60 000 images, and become larger where there are
# fewer.

STEP, SWEEPS, ROWS = 1e-3, 4, 60_000
SAMPLERS = {"SGHMC ssi": "#009E73", "SGHMC euler": "#D55E00", "SGLD": "#0072B2"}
VARIANTS = {  # (times the step size, sweeps)
    "SGHMC ssi, two sweeps": (1, 2),
    "SGLD, a tenth of the step": (0.1, SWEEPS),
    "SGHMC ssi, half the step": (0.5, SWEEPS),
    "SGHMC euler, half the step": (0.5, SWEEPS),
    "SGLD, half the step": (0.5, SWEEPS),
}


def falling(h, steps):
    """h for 40 % of the steps, then falling to h / 10 at 90 % of them."""
    return optax.linear_schedule(h, h / 10, transition_steps=steps // 2, transition_begin=2 * steps // 5)


def kernel_for(name, units, train, start, args):
    times, sweeps = VARIANTS.get(name, (1, SWEEPS))
    h = times * STEP * np.sqrt(ROWS / len(train))
    D = np.sqrt(len(train) / ROWS / STEP)
    common = {
        "batch_size": BATCH,
        "steps_per_sample": args.steps // DRAWS,
        "local": bn.units_given_images(sweeps),
        "init_strategy": init_to_value(values=start),
    }
    model = bn.belief_network(units, train.shape[1])
    kind, _, integrator = name.partition(",")[0].partition(" ")
    if kind == "SGHMC":
        return SGHMC(model, step_size=falling(h, args.steps), friction=D, integrator=integrator, **common)
    return SGLD(model, step_size=falling(h / D, args.steps), **common)


def sample(name, units, train, seed, args):
    """Networks at equal distances on the way, the last one after ``args.steps`` steps."""
    key_start, key_run = random.split(random.key(seed))
    kernel = kernel_for(name, units, train, bn.start(key_start, train, units), args)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=DRAWS, progress_bar=False)
    mcmc.run(key_run, train)
    return jax.tree.map(lambda x: x[jnp.array(SCORED) - 1], bn.Network.of(mcmc.get_samples()))


# %%
# The score
# ---------


@jax.jit(static_argnames="temperatures")
def log_likelihoods(x, networks, temperatures):
    """Of each image by each network, ``(networks, images)``."""
    of_one = lambda network: bn.annealed_log_likelihood(random.key(1), x, network, temperatures)  # noqa: E731
    return jax.lax.map(of_one, networks)


def scored(networks, test, args):
    """Nats of each image: by each of the scored draws, and by the average of p over the last three."""
    found = log_likelihoods(test.astype(float), networks, args.temperatures)
    late = found[-3:]
    return -np.asarray(found, float), -np.asarray(logsumexp(late, 0) - jnp.log(len(late)), float)


def of_independent_pixels(train, test):
    p = np.clip(np.asarray(train, float).mean(0), 1e-3, 1 - 1e-3)
    return -np.where(np.asarray(test) > 0, np.log(p), np.log1p(-p)).sum(1).mean()


def mean_and_error(x):
    return float(x.mean()), float(x.std(ddof=1) / np.sqrt(len(x)))


def summary(runs):
    """
    Mean and standard error over the test images, of the means over seeds. Differences are from SGHMC ssi with as many
    units, image by image and seed by seed.
    """
    table = {}
    for (data, units, name), by_seed in runs.items():
        last, averaged = (np.array(x) for x in zip(*((draws[-1], mean) for draws, mean in by_seed)))
        table[f"{data}, {units} units, {name}"] = found = {
            "seeds": len(by_seed),
            "last draw": mean_and_error(last.mean(0)),
            "by seed": last.mean(1).tolist(),
            "average of draws": mean_and_error(averaged.mean(0)),
            "paper": PAPER.get(units, {}).get(name) if data == "sampled" else None,
        }
        ssi = runs[data, units, "SGHMC ssi"]
        if name != "SGHMC ssi":
            pairs = [draws[-1] - other[-1] for (draws, _), (other, _) in zip(by_seed, ssi)]  # the seeds of both
            found["minus SGHMC ssi"] = mean_and_error(np.mean(pairs, 0))
    return table


# %%
# The picture
# -----------
# Nats of a test image against the number of steps, by the draw at that step. Dotted: the paper's figures.


def draw(runs, args):
    sizes = sorted({units for _, units, _ in runs})
    fig, axes = plt.subplots(1, len(sizes), figsize=(5.5 * len(sizes), 4), layout="constrained", squeeze=False)
    steps = args.steps // DRAWS * np.array(SCORED)
    for units, ax in zip(sizes, axes[0]):
        for name, color in SAMPLERS.items():
            if ("sampled", units, name) not in runs:
                continue
            nats = np.mean([draws.mean(1) for draws, _ in runs["sampled", units, name]], 0)
            ax.plot(steps, nats, "o-", ms=3, color=color, label=name)
            if name in PAPER.get(units, {}) and not args.fast:
                ax.axhline(PAPER[units][name], color=color, ls=":", lw=1)
        ax.set(xlabel="steps", ylabel="nats of a test image", title=f"{units} hidden units")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return fig


# %%
# The runs
# --------
# The picture and the numbers are written after each run, so that a long program can be stopped.


def simulated(units=10, pixels=64, images=2000):
    """Images of a network with large weights."""
    keys = random.split(random.key(0), 4)
    W = 3 * random.normal(keys[0], (units, pixels))
    h = random.bernoulli(keys[1], 0.3, (images, units))
    x = random.bernoulli(keys[2], jax.nn.sigmoid(h @ W - 1)).astype(jnp.uint8)
    return x[:-500], x[-500:]


def digits(args, threshold=None):
    X, _, X_test, _ = datasets.parts(args.data or "mnist", args.data_dir)
    chosen = np.random.default_rng(0).permutation(len(X_test))[: args.images]
    flat = [x.reshape(len(x), -1) for x in (X, X_test[chosen])]
    return [bn.binarised(x, seed, threshold) for seed, x in enumerate(flat)]


def main(args):
    is_real = not args.fast and (args.data or datasets.available("mnist", args.data_dir))
    data = {"sampled": digits(args) if is_real else simulated()}
    cells = [("sampled", units, name) for units in (args.units if is_real else [10]) for name in SAMPLERS]
    once = []  # with the first seed alone
    if is_real:
        data["threshold"] = digits(args, 127)
        once = [("threshold", args.units[0], "SGHMC ssi"), *(("sampled", args.units[0], name) for name in VARIANTS)]
    else:
        cells = [cell for cell in cells if cell[2] != "SGHMC euler"]
    train, test = data["sampled"]
    test = test[: args.images]
    metrics = {"data": "mnist" if is_real else "simulated", "independent pixels": of_independent_pixels(train, test)}
    runs = {}
    plan = [(seed, cell) for seed in range(args.seed, args.seed + args.seeds) for cell in cells]
    plan += [(args.seed, cell) for cell in once]
    plan.sort(key=lambda step: step[1][1])  # small networks first
    for seed, cell in tqdm(plan):
        kind, units, name = cell
        networks = sample(name, units, data[kind][0], seed, args)
        runs.setdefault(cell, []).append(scored(networks, data[kind][1][: args.images], args))
        if "bias of annealing" not in metrics:
            last = jax.tree.map(lambda x: x[-1:], networks)
            fine = -log_likelihoods(test.astype(float), last, 4 * args.temperatures)
            gained = np.asarray(runs[cell][0][0][-1] - fine[0], float)
            metrics["bias of annealing"] = {"temperatures": 4 * args.temperatures, "lower by": mean_and_error(gained)}
        metrics["nats"] = summary(runs)
        plt.close("all")  # the picture of fewer runs
        save(args, "sbn", draw(runs, args), metrics)
    for what, found in metrics["nats"].items():
        print(f"{what:45}", *(f"{x:8.2f}" for x in found["last draw"] + found["average of draws"]))

    ssi = [np.mean([draws[-1].mean() for draws, _ in runs[cell]]) for cell in cells if cell[2] == "SGHMC ssi"]
    if not is_real:
        assert ssi[0] < 0.95 * metrics["independent pixels"], metrics
    elif shown(args):
        assert max(ssi) < 0.55 * metrics["independent pixels"], metrics


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--units", type=int, nargs="+", default=[100, 200])
    arguments.add_argument("--data", metavar="NAME", help="NAME.npz of bytes; mnist if it is found, else simulated")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where it is")
    main(parsed(arguments, **SIZE))
