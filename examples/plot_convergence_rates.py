"""
How fast averages converge: order of the integrator against minibatch noise
===========================================================================

The bias and the mean squared error of an average over L steps of a chain fall as powers of L, and the best power
depends on the order of the integrator. Chen, Ding & Carin (2015) show this on a Gaussian model, where both errors can
be computed exactly for any L. The program does so, with full gradients and with minibatches, adds points from chains
that were run, and ends by asserting what it shows.
"""

# %%
# What comes out
# --------------
# There are 1000 observations x_i ~ N(theta, 1) and a prior theta ~ N(0, 1). The test function is phi = theta^2, the
# chains start in the prior. Fixed steps are h = C L^-alpha, chosen for the number of steps L to come; decreasing
# steps are h_l = C l^-alpha, and the draws are weighted by their step sizes. SGHMC with the symmetric splitting
# ``"ssi"`` is of order K = 2, SGLD is of order K = 1. Theory bounds the bias by O(1 / (L h) + h^K), so that
# alpha = 1 / (K + 1) is best, and the mean squared error (MSE) by O(1 / (L h) + h^2K), so that alpha = 1 / (2K + 1) is
# best. The best exponents are drawn thick. The grey band is the range of the paper, up to 10 000 steps.
#
# **With full gradients the rates of theory hold**: the bias falls as L^-2/3 for SGHMC and as L^-1/2 for SGLD, the MSE
# as L^-4/5 and as L^-2/3, with fixed and with decreasing steps. The MSE needs about a million steps to show its rate,
# for until then the start far from the posterior dominates it. Chains that start in the posterior (thin, dotted) have
# the rate much earlier. But within the range of the paper the order of the integrator does not matter: the h^2 term
# of ``"ssi"`` is so small here that the start rules the bias, and the smaller alpha is, the smaller is the bias.
#
# **With independent minibatches of 10 rows no integrator is of order 2.** The error of the gradients adds a variance
# proportional to h, whatever the integrator. The bias cannot fall faster than L^-alpha, the MSE not faster than
# L^-2alpha. For the exponents that are best for order 2 these are L^-1/3 and L^-2/5; SGLD at its own best exponents has
# L^-1/2 and L^-2/3, so that in the long run SGLD converges faster here.
#
# **The ordering of the exponents that the paper finds at L = 10 000 comes from the minibatch noise.** The paper reports
# that exponents below the best one lead at first and are then overtaken, and explains it by the order of the
# integrator. The curves with minibatches do show this ordering at L = 10 000 for the bias: 1/3 has a smaller bias than 0.1, 0.2 and
# 0.7. With full gradients, where the explanation should apply best, 0.1 is ahead of 0.2 and 0.2 of 1/3.
#
# The constant of SGHMC is the one of the paper, 0.033 for fixed and 0.045 for decreasing steps. That of SGLD is 0.001,
# the smallest value of the grid that the paper searched. Most of the rest of that grid lies beyond the limit of
# stability of SGLD, h = 2 / 1001. Rates do not depend on the constants; which sampler is ahead at a given L does.

from functools import partial
import itertools

from gallery import parsed, parser, save
from gaussian_model import BATCH, model, simulate_data, step_matrices
import jax
from jax import lax, random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import init_to_sample
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, SGLD, WithoutReplacement

jax.config.update("jax_enable_x64", True)

KERNELS = {"ssi": partial(SGHMC, model, friction=20.0, integrator="ssi"), "SGLD": partial(SGLD, model)}
CONSTANTS = {
    ("fixed", "ssi"): 0.033,
    ("decreasing", "ssi"): 0.045,
    ("fixed", "SGLD"): 0.001,
    ("decreasing", "SGLD"): 0.001,
}
CURVES = {  # the exponents of the paper's figures; for SGLD the best ones
    "bias": [("ssi", 0.1), ("ssi", 0.2), ("ssi", 1 / 3), ("ssi", 0.7), ("SGLD", 1 / 2)],
    "MSE": [("ssi", 0.1), ("ssi", 0.2), ("ssi", 0.3), ("ssi", 0.4), ("SGLD", 1 / 3)],
}
BEST = {("bias", "ssi"): 1 / 3, ("bias", "SGLD"): 1 / 2, ("MSE", "ssi"): 1 / 5, ("MSE", "SGLD"): 1 / 3}
GRADIENTS = ("full gradients", f"minibatches of {BATCH}")
STEPS = ("fixed", "decreasing")
STARTS = ("prior", "posterior")
FIXED = np.unique(np.geomspace(1e2, 1e8, 31).round())
SIZE = {"replicates": (200, 400), "decreasing_steps": (30_000, 1_000_000)}


def exponents(name):
    return sorted({alpha for curves in CURVES.values() for kernel, alpha in curves if kernel == name})


# %%
# The exact law of an average
# ---------------------------
# With d the deviation of the state (theta, p) from its mean under the posterior, a step is v' = A v for v = (1, d) and
# a random matrix A. So the products v_i v_j move by a random matrix as well, and so does the vector u of these products
# and of the running sum s of w_l (phi_l - posterior mean of phi), as phi is a linear function of the products. The
# matrix E u u' then obeys a recursion of its own, and holds all that is asked for: E s is the bias, E s^2 the mean
# squared error, once divided by the sum of the weights and its square.
#
# The expectation over normal noise of a polynomial of degree 4 is a sum over three nodes for each noise, exactly. With
# full gradients this law is exact. With minibatches the error of the gradients is taken to be normal: the bias is exact
# all the same, because it needs the second moment only; in the MSE the fourth cumulant of a sum of 10 rows is left out,
# about 0.02 of its squared variance.

NODES = np.array(list(itertools.product([-np.sqrt(3), 0, np.sqrt(3)], repeat=2)))
WEIGHTS = np.prod(list(itertools.product([1 / 6, 2 / 3, 1 / 6], repeat=2)), axis=1)


def products(A):
    """The matrix that takes the products v_i v_j, i <= j, to those of A v."""
    i, j = np.triu_indices(len(A))
    square = A[i[:, None], i] * A[j[:, None], j]
    return square + (i != j) * A[i[:, None], j] * A[j[:, None], i]


def test_function(d, posterior):
    """theta^2 minus its posterior mean, as coefficients of the products of v = (1, d)."""
    i, j = np.triu_indices(d + 1)
    coefficients = np.zeros(len(i))
    coefficients[(i == 0) & (j == 0)] = -1 / posterior.precision
    coefficients[(i == 0) & (j == 1)] = 2 * posterior.mean
    coefficients[(i == 1) & (j == 1)] = 1
    return coefficients


def steps_of_u(kernel, h, weight, noise, posterior):
    """The matrices u' = L u of one step, one for each node of the noise: shape (nodes, len(u), len(u))."""
    M, S, G = step_matrices(kernel, posterior.precision, h)
    noises = jnp.hstack([S, G * jnp.sqrt(noise)])
    phi = test_function(len(M), posterior)

    def one(n):
        A = jnp.block([[jnp.ones((1, 1)), jnp.zeros((1, len(M)))], [(noises @ n)[:, None], M]])
        P = products(A)
        return jnp.block([[P, jnp.zeros((len(P), 1))], [weight * (phi @ P)[None], jnp.ones((1, 1))]])

    return jax.vmap(one)(jnp.asarray(NODES))


def start(d, where, posterior):
    """E u u' for theta from the prior or from the posterior, p from its equilibrium."""
    mean, sd = (-posterior.mean, 1.0) if where == "prior" else (0.0, posterior.precision**-0.5)
    i, j = np.triu_indices(d + 1)
    v = np.column_stack([np.ones(len(NODES)), mean + sd * NODES[:, 0], NODES[:, 1]])[:, : d + 1]
    u = np.column_stack([v[:, i] * v[:, j], np.zeros(len(NODES))])
    return np.einsum("q,qi,qj->ij", WEIGHTS, u, u)


def errors(uu, total_weight):
    """Bias and mean squared error."""
    return uu[..., 0, -1] / total_weight, uu[..., -1, -1] / total_weight**2


# %%
# With a fixed step size the recursion is a power of one matrix, which makes 10^8 steps as cheap as 100.


def fixed(name, posterior, noises):
    """(alpha, gradients, start) -> L, bias, MSE."""
    kernel = KERNELS[name](step_size=1.0)

    @jax.jit
    def transition(h, noise):
        L = steps_of_u(kernel, h, 1.0, noise, posterior)
        both = jnp.einsum("q,qij,qkl->ikjl", WEIGHTS, L, L)
        return both.reshape(2 * [L.shape[-1] ** 2])

    found = {}
    d = 1 if name == "SGLD" else 2
    starts = np.stack([start(d, where, posterior) for where in STARTS])
    cells = list(itertools.product(exponents(name), noises.items()))
    for alpha, (gradients, noise) in tqdm(cells, desc=f"{name}, fixed steps"):
        ends = []
        for length in FIXED:
            T = np.asarray(transition(CONSTANTS["fixed", name] * length**-alpha, noise))
            ends.append(np.linalg.matrix_power(T, int(length)) @ starts.reshape(len(starts), -1).T)
        uu = np.stack(ends).transpose(2, 0, 1).reshape(len(starts), len(FIXED), *starts.shape[1:])
        for where, moments in zip(STARTS, uu):
            found[alpha, gradients, where] = FIXED, *errors(moments, FIXED)
    return found


# %%
# With decreasing steps it is a plain loop, for all curves at once.


def decreasing(name, posterior, noises, length):
    """(alpha, gradients, start) -> L, bias, MSE."""
    kernel = KERNELS[name](step_size=1.0)
    ends = np.append((10 ** np.arange(1, np.log10(length) - 0.1, 0.2)).round(), length).astype(int)

    def step(l, uu, total, alpha, noise):
        h = CONSTANTS["decreasing", name] * l**-alpha
        L = steps_of_u(kernel, h, h, noise, posterior)
        # sum over the nodes of weight L uu L', as two products of matrices
        size = L.shape[-1]
        moved = (L.reshape(-1, size) @ uu).reshape(L.shape) * WEIGHTS[:, None, None]
        uu = moved.transpose(1, 0, 2).reshape(size, -1) @ L.transpose(0, 2, 1).reshape(-1, size)
        return uu, total + h

    @jax.jit
    @jax.vmap
    def until(uu, total, alpha, noise, first, end):
        return lax.fori_loop(first, end, lambda l, carry: step(l + 1.0, *carry, alpha, noise), (uu, total))

    d = 1 if name == "SGLD" else 2
    cells = list(itertools.product(exponents(name), noises, STARTS))
    alphas, noise = np.array([alpha for alpha, *_ in cells]), np.array([noises[gradients] for _, gradients, _ in cells])
    uu, total = np.stack([start(d, where, posterior) for *_, where in cells]), np.zeros(len(cells))
    found = []
    with tqdm(total=length, desc=f"{name}, decreasing steps", unit="steps") as bar:
        for first, end in itertools.pairwise([0, *ends]):
            uu, total = until(uu, total, alphas, noise, np.full(len(cells), first), np.full(len(cells), end))
            found.append(errors(np.asarray(uu), np.asarray(total)))
            bar.update(int(end - first))
    bias, mse = np.array(found).transpose(1, 2, 0)
    return {cell: (ends, bias[c], mse[c]) for c, cell in enumerate(cells)}


# %%
# Chains
# ------
# The kernels of the package, run from the prior; many replicates of each average. The step size is handed in as a
# schedule whose constant and exponent are arguments of the compiled program, so that it is compiled once for all.


def simulated(rng_key, name, gradients, lengths, replicates, x, posterior):
    """(steps, alpha, L) -> errors of the average in each replicate."""
    batch_size = None if gradients == "full gradients" else BATCH
    make = partial(KERNELS[name], batch_size=batch_size, rows=WithoutReplacement(), init_strategy=init_to_sample())

    def replicate(rng_key, a, gamma, length):
        kernel = make(step_size=lambda i: a * (1.0 + i) ** -gamma)

        def step(_, carry):
            state, phi, total = carry
            state = kernel.sample(state, (x,), {})
            return state, phi + state.step_size * state.z["theta"] ** 2, total + state.step_size

        state = make(step_size=1.0).init(rng_key, 0, None, (x,), {})
        _, phi, total = lax.fori_loop(0, length, step, (state, 0.0, 0.0))
        return phi / total

    over_replicates = jax.vmap(replicate, in_axes=(0, None, None, None))
    averages = jax.jit(jax.vmap(over_replicates, in_axes=(0, 0, 0, None)))
    cells = list(itertools.product(STEPS, exponents(name)))
    truth = posterior.mean**2 + 1 / posterior.precision
    found = {}
    for length, key in zip(tqdm(lengths, desc=f"{name}, {gradients}, chains"), random.split(rng_key, len(lengths))):
        C = np.array([CONSTANTS[steps, name] for steps, _ in cells])
        alpha = np.array([alpha for _, alpha in cells])
        is_fixed = np.array([steps == "fixed" for steps, _ in cells])
        a, gamma = np.where(is_fixed, C * length**-alpha, C), np.where(is_fixed, 0.0, alpha)
        keys = random.split(key, (len(cells), replicates))
        for (steps, exponent), values in zip(cells, np.asarray(averages(keys, a, gamma, length)) - truth):
            found[steps, exponent, length] = values
    return found


def points_of(runs, laws):
    """What is drawn and checked of the replicates: estimate, standard error and exact value of bias and MSE."""
    points = []
    for (name, gradients), found in runs.items():
        for (steps, alpha, length), values in found.items():
            for quantity, exact_column, sample in (("bias", 1, values), ("MSE", 2, values**2)):
                if (name, alpha) in CURVES[quantity]:
                    curve = laws[steps, name][alpha, gradients, "prior"]
                    points.append(
                        {
                            "quantity": quantity,
                            "steps": steps,
                            "gradients": gradients,
                            "kernel": name,
                            "alpha": alpha,
                            "L": length,
                            "estimate": sample.mean(),
                            "error": sample.std(ddof=1) / np.sqrt(len(sample)),
                            "exact": curve[exact_column][np.flatnonzero(curve[0] == length)[0]],
                        }
                    )
    return points


# %%
# The picture
# -----------

COLOURS = {0.1: "#56B4E9", 0.2: "#0072B2", 0.3: "#009E73", 1 / 3: "#009E73", 0.4: "#CC79A7", 0.7: "#CC79A7"}
NAMES = {1 / 3: "1/3", 1 / 2: "1/2"}


def style(quantity, name, alpha):
    thick = BEST[quantity, name] == alpha
    label = f"{'SGHMC ssi' if name == 'ssi' else 'SGLD'}, α = {NAMES.get(alpha, alpha)}{' (best)' if thick else ''}"
    colour = "black" if name == "SGLD" else COLOURS[alpha]
    return {"color": colour, "lw": 3 if thick else 1.5, "ls": (0, (4, 1.5)) if name == "SGLD" else "-", "label": label}


def draw(laws, points):
    figure = plt.figure(figsize=(15, 8), layout="constrained")
    for part, quantity in zip(figure.subfigures(1, 2), CURVES):
        panels = part.subplots(2, 2, sharex="col", sharey=True)
        for (row, gradients), (column, steps) in itertools.product(enumerate(GRADIENTS), enumerate(STEPS)):
            axes = panels[row, column]
            axes.axvspan(1, 1e4, color="black", alpha=0.06, lw=0)
            for name, alpha in CURVES[quantity]:
                look = style(quantity, name, alpha)
                L, *values = laws[steps, name][alpha, gradients, "prior"]
                axes.loglog(L, np.abs(values[quantity == "MSE"]), **look)
                if quantity == "MSE" and alpha == BEST[quantity, name] and gradients == "full gradients":
                    L, _, mse = laws[steps, name][alpha, gradients, "posterior"]
                    axes.loglog(L, mse, color=look["color"], lw=1.2, ls=":")
            for p in points:
                shown = (p["quantity"], p["gradients"], p["steps"]) == (quantity, gradients, steps)
                if shown and p["error"] < abs(p["estimate"]) / 3:
                    colour = style(quantity, p["kernel"], p["alpha"])["color"]
                    axes.errorbar(p["L"], abs(p["estimate"]), p["error"], fmt="o", ms=4.5, color=colour, mec="white")
            axes.set_title(f"{steps} steps, {gradients}", loc="left", fontsize=10.5)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            L, *_ = laws[steps, "ssi"][0.1, gradients, "prior"]
            axes.set_xlim(L[0], L[-1])
        panels[0, 0].set_ylim((1e-7, 1) if quantity == "bias" else (1e-12, 1))
        for axes in panels[:, 0]:
            axes.set_ylabel(
                r"$|$bias$|$ of the average of $\theta^2$" if quantity == "bias" else "its mean squared error"
            )
        for axes in panels[1]:
            axes.set_xlabel("number of steps L")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        if quantity == "bias":
            handles.append(plt.Line2D([], [], color="grey", marker="o", ls="", ms=4.5))
            labels.append("chains, with standard errors")
        else:
            handles.append(plt.Line2D([], [], color="grey", lw=1.2, ls=":"))
            labels.append("started in the posterior")
        part.legend(handles, labels, loc="outside lower center", ncol=3, frameon=False, fontsize=9.5)
    return figure


# %%
# The claims
# ----------
# Slopes are fitted over the last two decades of the fixed steps, L = 10^6 to 10^8, and over the last decade of the
# decreasing steps. The MSE with decreasing steps is fitted for chains that start in the posterior, the others for
# chains that start in the prior.


def slope(L, values, decades):
    late = L >= 0.99 * L[-1] / 10**decades
    return np.polyfit(np.log(L[late]), np.log(np.abs(values[late])), 1)[0]


def slopes(laws):
    """(quantity, steps, kernel, gradients) -> slope found at the best exponent of theory."""
    found = {}
    for (quantity, name), steps, gradients in itertools.product(BEST, STEPS, GRADIENTS):
        where = "posterior" if (quantity, steps) == ("MSE", "decreasing") else "prior"
        L, bias, mse = laws[steps, name][BEST[quantity, name], gradients, where]
        values = bias if quantity == "bias" else mse
        found[quantity, steps, name, gradients] = slope(L, values, decades=2 if steps == "fixed" else 1)
    return found


def expected(quantity, name, gradients):
    """With full gradients the rate of theory, with minibatches the rate of the bias of the gradient noise."""
    order = 1 if name == "SGLD" or gradients != "full gradients" else 2
    alpha = BEST[quantity, name]
    return -min(1 - alpha, order * alpha) if quantity == "bias" else -min(1 - alpha, 2 * order * alpha)


def bias_at(laws, steps, gradients, length):
    """Exponent -> |bias| of SGHMC at a length."""
    at = {}
    for name, alpha in CURVES["bias"]:
        if name == "ssi":
            L, bias, _ = laws[steps, name][alpha, gradients, "prior"]
            at[alpha] = np.abs(bias[np.flatnonzero(L == length)[0]])
    return at


def check(laws, points, found, fast):
    for (quantity, steps, name, gradients), rate in found.items():
        if steps == "fixed" or not fast:  # with --fast the decreasing steps are too few
            theory = expected(quantity, name, gradients)
            assert abs(rate - theory) < 0.05, f"{quantity}, {steps}, {name}, {gradients}: {rate:.2f}, not {theory:.2f}"
    full, minibatches = GRADIENTS
    for steps in STEPS:
        at = bias_at(laws, steps, minibatches, 10_000)
        assert min(at, key=at.get) == 1 / 3, f"minibatches, {steps} steps: alpha = 1/3 is not the best at L = 10 000"
        at = bias_at(laws, steps, full, 10_000)
        assert list(at.values()) == sorted(at.values()), f"full gradients, {steps} steps: smaller alpha is not better"
    z = np.array([abs(p["estimate"] - p["exact"]) / p["error"] for p in points])
    assert np.sum(z > 3) <= max(1, len(z) // 20) and z.max() < 4.5, (
        f"chains do not follow the law: z up to {z.max():.1f}"
    )


# %%
# The program
# -----------


def main(args):
    x, posterior = simulate_data(args.seed)
    noises = dict(zip(GRADIENTS, (0.0, posterior.noise)))
    laws = {}
    for name in KERNELS:
        laws["fixed", name] = fixed(name, posterior, noises)
        laws["decreasing", name] = decreasing(name, posterior, noises, args.decreasing_steps)

    lengths = (100, 1000) if args.fast else (100, 1000, 10_000)
    pairs = list(itertools.product(("ssi",) if args.fast else KERNELS, GRADIENTS))
    runs = {
        (name, gradients): simulated(key, name, gradients, lengths, args.replicates, x, posterior)
        for key, (name, gradients) in zip(random.split(random.key(args.seed), len(pairs)), pairs)
    }
    points, found = points_of(runs, laws), slopes(laws)

    print("Slopes at the best exponents of theory, and what is expected:")
    for (quantity, steps, name, gradients), rate in found.items():
        print(
            f"  {quantity:4}  {steps:10}  {name:4}  {gradients:17} {rate:6.2f} {expected(quantity, name, gradients):6.2f}"
        )
    print("|bias| of SGHMC at L = 10 000:")
    for steps, gradients in itertools.product(STEPS, GRADIENTS):
        at = bias_at(laws, steps, gradients, 10_000)
        print(f"  {steps:10}  {gradients:17} " + ", ".join(f"α = {alpha:.2f}: {b:.2e}" for alpha, b in at.items()))
    metrics = {
        "posterior": posterior._asdict(),
        "slopes": {", ".join(cell): rate for cell, rate in found.items()},
        "bias at 10 000 steps": {
            f"{steps}, {gradients}": bias_at(laws, steps, gradients, 10_000)
            for steps, gradients in itertools.product(STEPS, GRADIENTS)
        },
        "chains": points,
    }
    save(args, "convergence_rates", draw(laws, points), metrics)
    check(laws, points, found, args.fast)


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
