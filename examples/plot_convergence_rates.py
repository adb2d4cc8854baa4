"""
How fast averages converge: order of the integrator against minibatch noise
===========================================================================

The bias and the mean squared error of an average over L steps of a chain fall as powers of L, and the best power
depends on the order of the integrator. Chen, Ding & Carin (2015) show this on a Gaussian model, where both errors can
be computed exactly for any L. The program does so, with full gradients and with minibatches, adds points from chains
that were run, and asserts its claims at the end.
"""

# %%
# The results
# -----------
# There are 1000 observations x_i ~ N(theta, 1) and a prior theta ~ N(0, 1). The test function is phi = theta^2. Chains
# start uniformly on (-2, 2), the default of the package. Fixed steps are h = C L^-alpha, chosen for the number of steps
# L to come; decreasing steps are h_l = C l^-alpha, and the draws are weighted by their step sizes. SGHMC with the
# symmetric splitting ``"ssi"`` is of order K = 2, SGLD is of order K = 1. Theory bounds the bias by O(1 / (L h) + h^K),
# so that alpha = 1 / (K + 1) is best, and the mean squared error (MSE) by O(1 / (L h) + h^2K), so that
# alpha = 1 / (2K + 1) is best. These exponents are drawn thick. The grey band is the range of the paper, L <= 10 000.
#
# **With full gradients the rates of theory hold**: the bias falls as L^-2/3 for SGHMC and as L^-1/2 for SGLD, the MSE
# as L^-4/5 and as L^-2/3, with fixed and with decreasing steps. Two remarks belong to this. The MSE needs many steps
# to show its rate, for until then the start far from the posterior dominates it; chains that start in the posterior
# (thin, dotted) have the rate much earlier. And with decreasing steps at alpha = 1 / (K + 1) the sum of h^(K+1) is a
# sum of 1 / l, so that theory has a factor log L, which the bias of SGLD shows: its slope is less steep than -1/2, even
# from ten to a hundred million steps. The page of :doc:`results </results>` has all slopes.
#
# Within the range of the paper, full gradients do not show the order of the integrator. The h^2 term of ``"ssi"`` is so
# small here that the start rules the bias, and the smaller alpha is, the smaller is the bias. (Where the curve of
# alpha = 0.1 dips, far beyond that range, the bias changes its sign.)
#
# **With independent minibatches of 10 rows no integrator is of order 2.** The error of the gradients adds a variance
# proportional to h, whatever the integrator. The bias cannot fall faster than L^-alpha, the MSE not faster than
# L^-2alpha. At the exponents that are best for order 2 these are L^-1/3 and L^-2/5. SGLD at its own best exponents has
# L^-1/2 and L^-2/3, which are the best rates of SGHMC as well once minibatches make it of order 1.
#
# SGLD is even ahead of SGHMC at every L here, while figure 3 of the paper has SGHMC ahead. This is not for want of
# tuning: with the constants C and the frictions D of the paper's grid, searched at L = 500 as in the paper but with the
# exact law, the smallest bias of SGLD is less than three quarters of the smallest bias of SGHMC. (The program prints
# both.) The model has one dimension and so no bad conditioning, where momentum has little to offer; nothing follows for
# other models.
#
# **The ordering of the exponents that the paper finds at L = 10 000 comes from the minibatch noise.** The paper reports
# that exponents below the best one lead at first and are then overtaken, and explains it by the order of the
# integrator. The curves with minibatches do show this for the bias: at L = 10 000, 1/3 has a smaller bias than 0.1, 0.2
# and 0.7. With full gradients, where the explanation should apply best, 0.1 is ahead of 0.2 and 0.2 of 1/3.
#
# The constant of SGHMC is that of the paper, 0.033 for fixed and 0.045 for decreasing steps, with D = 20. That of SGLD
# is 0.001, the smallest value of the paper's grid, most of which lies beyond the limit of stability of SGLD,
# h = 2 / 1001. Rates do not depend on the constants; which sampler is ahead at a given L does.

from functools import partial
import itertools
import sys

from gallery import parsed, parser, save
from gaussian_model import BATCH, dimension, model, simulate_data, step_matrices
import jax
from jax import lax, random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
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
TUNING_LENGTH = 500
TUNING_GRID = np.arange(0.001, 0.5, 0.002)
CURVES = {  # the exponents of the paper's figures; for SGLD the best ones
    "bias": [("ssi", 0.1), ("ssi", 0.2), ("ssi", 1 / 3), ("ssi", 0.7), ("SGLD", 1 / 2)],
    "MSE": [("ssi", 0.1), ("ssi", 0.2), ("ssi", 0.3), ("ssi", 0.4), ("SGLD", 1 / 3)],
}
BEST = {("bias", "ssi"): 1 / 3, ("bias", "SGLD"): 1 / 2, ("MSE", "ssi"): 1 / 5, ("MSE", "SGLD"): 1 / 3}
GRADIENTS = ("full gradients", f"minibatches of {BATCH}")
STEPS = ("fixed", "decreasing")
STARTS = ("uniform", "posterior")
FIXED = np.unique(np.geomspace(1e2, 1e8, 31).round())
SIZE = {"replicates": (200, 300), "decreasing_steps": (10_000, 1_000_000)}


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
# all the same, because it needs the second moment only; in the MSE the higher cumulants of a sum of 10 rows are left
# out, which are small.


def grid(nodes, weights, other_nodes, other_weights):
    """Nodes and weights in two dimensions."""
    return np.array(list(itertools.product(nodes, other_nodes))), np.outer(weights, other_weights).ravel()


NORMAL = np.array([-np.sqrt(3), 0, np.sqrt(3)]), np.array([1, 4, 1]) / 6  # Gauss-Hermite
UNIFORM = 2 * np.array([-np.sqrt(3 / 5), 0, np.sqrt(3 / 5)]), np.array([5, 8, 5]) / 18  # Gauss-Legendre, on (-2, 2)
NODES, WEIGHTS = grid(*NORMAL, *NORMAL)


def products(A):
    """The matrix that takes the products v_i v_j, i <= j, to those of A v."""
    i, j = np.triu_indices(len(A))
    square = A[i[:, None], i] * A[j[:, None], j]
    return square + (i != j) * A[i[:, None], j] * A[j[:, None], i]


def phi_of_products(d, posterior):
    """theta^2 minus its posterior mean, as coefficients of the products of v = (1, d)."""
    i, j = np.triu_indices(d + 1)
    coefficients = np.zeros(len(i))
    coefficients[(i == 0) & (j == 0)] = -1 / posterior.precision
    coefficients[(i == 0) & (j == 1)] = 2 * posterior.mean
    coefficients[(i == 1) & (j == 1)] = 1
    return coefficients


def steps_of_u(kernel, h, weight, noise, posterior):
    """The matrices T of u' = T u in one step, one for each node of the noise: shape (nodes, len(u), len(u))."""
    M, S, G = step_matrices(kernel, posterior.precision, h)
    noises = jnp.hstack([S, G * jnp.sqrt(noise)])
    phi = phi_of_products(len(M), posterior)

    def one(n):
        A = jnp.block([[jnp.ones((1, 1)), jnp.zeros((1, len(M)))], [(noises @ n)[:, None], M]])
        P = products(A)
        return jnp.block([[P, jnp.zeros((len(P), 1))], [weight * (phi @ P)[None], jnp.ones((1, 1))]])

    return jax.vmap(one)(jnp.asarray(NODES))


def start(d, where, posterior):
    """E u u' for theta uniform on (-2, 2) or from the posterior, and p from its equilibrium; exact, by three nodes."""
    nodes, weights = grid(*(UNIFORM if where == "uniform" else NORMAL), *NORMAL)
    theta = nodes[:, 0] - posterior.mean if where == "uniform" else nodes[:, 0] / np.sqrt(posterior.precision)
    i, j = np.triu_indices(d + 1)
    v = np.column_stack([np.ones(len(nodes)), theta, nodes[:, 1]])[:, : d + 1]
    u = np.column_stack([v[:, i] * v[:, j], np.zeros(len(nodes))])
    return np.einsum("q,qi,qj->ij", weights, u, u)


def errors(uu, total_weight):
    """Bias and mean squared error."""
    return uu[..., 0, -1] / total_weight, uu[..., -1, -1] / total_weight**2


# %%
# With a fixed step size the recursion is a power of one matrix, which makes 10^8 steps as cheap as 100.


def fixed_law(kernel, posterior):
    """Function of h, L and the variance of the gradient: bias and MSE, each for the starts of ``STARTS``."""
    starts = np.stack([start(dimension(kernel), where, posterior) for where in STARTS])

    @jax.jit
    def transition(h, noise):
        T = steps_of_u(kernel, h, 1.0, noise, posterior)
        return jnp.einsum("q,qij,qkl->ikjl", WEIGHTS, T, T).reshape(2 * [T.shape[-1] ** 2])

    def law(h, length, noise):
        power = np.linalg.matrix_power(np.asarray(transition(h, noise)), int(length))
        return errors((power @ starts.reshape(len(starts), -1).T).T.reshape(starts.shape), length)

    return law


def fixed(name, posterior, noises):
    """(alpha, gradients, start) -> L, bias, MSE."""
    law = fixed_law(KERNELS[name](step_size=1.0), posterior)
    found = {}
    cells = list(itertools.product(exponents(name), noises.items()))
    for alpha, (gradients, noise) in tqdm(cells, desc=f"{name}, fixed steps"):
        laws = [law(CONSTANTS["fixed", name] * length**-alpha, length, noise) for length in FIXED]
        for where, (bias, mse) in zip(STARTS, np.array(laws).transpose(2, 1, 0)):
            found[alpha, gradients, where] = FIXED, bias, mse
    return found


def tuned(posterior):
    """The smallest |bias| on minibatches over the paper's grid: sampler -> |bias|, C."""
    found = {}
    candidates = {f"SGHMC ssi, D = {D:.0f}": ("ssi", {"friction": D}) for D in (10.0, 20.0, 30.0)}
    for label, (name, options) in (candidates | {"SGLD": ("SGLD", {})}).items():
        law = fixed_law(KERNELS[name](step_size=1.0, **options), posterior)
        h = TUNING_GRID * TUNING_LENGTH ** -BEST["bias", name]
        with np.errstate(over="ignore", invalid="ignore"):  # unstable steps
            biases = [abs(law(step, TUNING_LENGTH, posterior.noise)[0][0]) for step in h]
        best = np.nanargmin(biases)
        found[label] = biases[best], TUNING_GRID[best]
    return found


# %%
# With decreasing steps it is a plain loop, for all curves at once.


def decreasing(name, posterior, noises, length):
    """(alpha, gradients, start) -> L, bias, MSE."""
    kernel = KERNELS[name](step_size=1.0)
    ends = np.append((10 ** np.arange(1, np.log10(length) - 0.1, 0.2)).round(), length).astype(int)

    def step(l, uu, total, alpha, noise):
        h = CONSTANTS["decreasing", name] * l**-alpha
        T = steps_of_u(kernel, h, h, noise, posterior)
        # sum over the nodes of weight T uu T', as two products of matrices
        size = T.shape[-1]
        moved = (T.reshape(-1, size) @ uu).reshape(T.shape) * WEIGHTS[:, None, None]
        uu = moved.transpose(1, 0, 2).reshape(size, -1) @ T.transpose(0, 2, 1).reshape(-1, size)
        return uu, total + h

    @jax.jit
    @jax.vmap
    def until(uu, total, alpha, noise, first, end):
        return lax.fori_loop(first, end, lambda l, carry: step(l + 1.0, *carry, alpha, noise), (uu, total))

    cells = list(itertools.product(exponents(name), noises, STARTS))
    alphas, noise = np.array([alpha for alpha, *_ in cells]), np.array([noises[gradients] for _, gradients, _ in cells])
    uu, total = np.stack([start(dimension(kernel), where, posterior) for *_, where in cells]), np.zeros(len(cells))
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
# The kernels of the package, and many replicates of each average. The step size is a schedule whose constant and
# exponent are arguments of the compiled program, so that it is compiled once for all. All points are checked; drawn are
# those whose standard error is below a third of their value.


def simulated(rng_key, name, gradients, lengths, replicates, x, posterior):
    """(steps, alpha, L) -> errors of the average in each replicate."""
    batch_size = None if gradients == "full gradients" else BATCH
    make = partial(KERNELS[name], batch_size=batch_size, rows=WithoutReplacement())

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
    C = np.array([CONSTANTS[steps, name] for steps, _ in cells])
    alpha = np.array([alpha for _, alpha in cells])
    is_fixed = np.array([steps == "fixed" for steps, _ in cells])
    found = {}
    for length, key in zip(tqdm(lengths, desc=f"{name}, {gradients}, chains"), random.split(rng_key, len(lengths))):
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
                    curve = laws[steps, name][alpha, gradients, "uniform"]
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
    sampler = "SGHMC ssi" if name == "ssi" else "SGLD"
    label = f"{sampler}, α = {NAMES.get(alpha, alpha)}{' (best in theory)' if thick else ''}"
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
                L, *values = laws[steps, name][alpha, gradients, "uniform"]
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
            L, *_ = laws[steps, "ssi"][0.1, gradients, "uniform"]
            axes.set_xlim(L[0], L[-1])
        panels[0, 0].set_ylim((1e-7, 1) if quantity == "bias" else (1e-11, 1))
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
# Slopes are fitted over the last decade, L = 10^7 to 10^8 for fixed steps, 10^5 to 10^6 for decreasing ones. The MSE
# with decreasing steps is fitted for chains that start in the posterior, all others for chains that do not. With
# minibatches the slopes have not yet reached their limits, so the tolerance is larger.


def slope(L, values):
    late = L > 0.099 * L[-1]
    return np.polyfit(np.log(L[late]), np.log(np.abs(values[late])), 1)[0]


def slopes(laws):
    """(quantity, steps, kernel, gradients) -> slope found, slope expected; at the best exponent of theory."""
    found = {}
    for (quantity, name), steps, gradients in itertools.product(BEST, STEPS, GRADIENTS):
        where = "posterior" if (quantity, steps) == ("MSE", "decreasing") else "uniform"
        L, bias, mse = laws[steps, name][BEST[quantity, name], gradients, where]
        theory = rate(quantity, name, gradients)
        if (quantity, steps, name) == ("bias", "decreasing", "SGLD"):
            theory += slope(L, np.log(L))  # the factor log L
        found[quantity, steps, name, gradients] = slope(L, bias if quantity == "bias" else mse), theory
    return found


def far_slope(posterior, ends=(10**7, 10**8)):
    """Of the bias of SGLD with decreasing steps and full gradients, far beyond the picture; from the posterior."""
    C, precision = CONSTANTS["decreasing", "SGLD"], posterior.precision

    def step(k, carry):
        variance, total, weights = carry
        h = C * (k + 1.0) ** -BEST["bias", "SGLD"]
        variance = (1 - h * precision) ** 2 * variance + 2 * h
        return variance, total + h * (variance - 1 / precision), weights + h

    carry, biases = (jnp.array(1 / precision), jnp.zeros(()), jnp.zeros(())), []
    for first, last in zip((0, *ends), ends):
        carry = lax.fori_loop(first, last, step, carry)
        biases.append(float(carry[1] / carry[2]))
    return np.log(biases[1] / biases[0]) / np.log(ends[1] / ends[0])


def rate(quantity, name, gradients):
    """The power of L by theory, where minibatches make every integrator one of order 1."""
    order = 2 if name == "ssi" and gradients == "full gradients" else 1
    alpha = BEST[quantity, name]
    return -min(1 - alpha, (order if quantity == "bias" else 2 * order) * alpha)


def bias_at(laws, steps, gradients, length):
    """Exponent -> |bias| of SGHMC at a length."""
    at = {}
    for name, alpha in CURVES["bias"]:
        if name == "ssi":
            L, bias, _ = laws[steps, name][alpha, gradients, "uniform"]
            at[alpha] = np.abs(bias[np.flatnonzero(L == length)[0]])
    return at


def check(laws, points, found, best, fast):
    full, minibatches = GRADIENTS
    for (quantity, steps, name, gradients), (fitted, theory) in found.items():
        if steps == "fixed" or not fast:  # with --fast the decreasing steps are too few
            message = f"{quantity}, {steps} steps, {name}, {gradients}: {fitted:.2f} in place of {theory:.2f}"
            assert abs(fitted - theory) < (0.05 if gradients == full else 0.1), message
    for steps in STEPS:
        at = bias_at(laws, steps, minibatches, 10_000)
        assert min(at, key=at.get) == 1 / 3, f"minibatches, {steps} steps: alpha = 1/3 is not the best at L = 10 000"
        at = bias_at(laws, steps, full, 10_000)
        assert list(at.values()) == sorted(at.values()), f"full gradients, {steps} steps: smaller alpha is not better"
        for quantity, value in (("bias", 1), ("MSE", 2)):
            sgld, ssi = (laws[steps, name][BEST[quantity, name], minibatches, "uniform"] for name in ("SGLD", "ssi"))
            assert np.all(np.abs(sgld[value]) < np.abs(ssi[value])), f"minibatches: SGLD is not ahead, {quantity}"
    sghmc = min(bias for sampler, (bias, _) in best.items() if sampler != "SGLD")
    assert best["SGLD"][0] < 0.75 * sghmc, "minibatches: tuned SGLD is not ahead of tuned SGHMC"
    z = np.array([abs(p["estimate"] - p["exact"]) / p["error"] for p in points])
    assert np.sum(z > 3) <= max(1, len(z) // 20) and z.max() < 4.5, (
        f"chains do not follow the law: z up to {z.max():.1f}"
    )


# %%
# The program
# -----------


def main(args):
    if args.decreasing_steps < 10_000:
        sys.exit("--decreasing-steps: the claims are about 10 000 steps and more.")
    x, posterior = simulate_data(args.seed)
    noises = dict(zip(GRADIENTS, (0.0, posterior.noise)))
    laws = {}
    for name in KERNELS:
        laws["fixed", name] = fixed(name, posterior, noises)
        laws["decreasing", name] = decreasing(name, posterior, noises, args.decreasing_steps)

    lengths = (100, 1000) if args.fast else (100, 1000, 10_000)
    pairs = [("ssi", GRADIENTS[1])] if args.fast else list(itertools.product(KERNELS, GRADIENTS))
    runs = {
        (name, gradients): simulated(key, name, gradients, lengths, args.replicates, x, posterior)
        for key, (name, gradients) in zip(random.split(random.key(args.seed), len(pairs)), pairs)
    }
    points, found, best = points_of(runs, laws), slopes(laws), tuned(posterior)
    far = None if args.fast else far_slope(posterior)

    print("Slopes at the best exponents of theory, and what is expected:")
    for (quantity, steps, name, gradients), (fitted, theory) in found.items():
        print(f"  {quantity:4}  {steps:10}  {name:4}  {gradients:17} {fitted:6.2f} {theory:6.2f}")
    print(f"Smallest |bias| on minibatches at L = {TUNING_LENGTH}, over the grid of the paper:")
    print("  " + "; ".join(f"{sampler}: {bias:.4f} at C = {C:.3f}" for sampler, (bias, C) in best.items()))
    print("|bias| of SGHMC at L = 10 000:")
    for steps, gradients in itertools.product(STEPS, GRADIENTS):
        at = bias_at(laws, steps, gradients, 10_000)
        print(f"  {steps:10}  {gradients:17} " + ", ".join(f"α = {alpha:.2f}: {b:.2e}" for alpha, b in at.items()))
    metrics = {
        "posterior": posterior._asdict(),
        "slopes, found and expected": {", ".join(cell): pair for cell, pair in found.items()},
        "smallest bias over the grid, and C": best,
        "bias at 10 000 steps": {
            f"{steps}, {gradients}": bias_at(laws, steps, gradients, 10_000)
            for steps, gradients in itertools.product(STEPS, GRADIENTS)
        },
        "chains": points,
    }
    if far is not None:
        metrics["slope of the bias, decreasing, SGLD, full gradients, from 1e7 to 1e8 steps"] = far
    save(args, "convergence_rates", draw(laws, points), metrics)
    check(laws, points, found, best, args.fast)
    assert far is None or abs(far + 0.5) < 0.05, f"bias, decreasing steps, SGLD: the slope goes to {far:.3f}"


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
