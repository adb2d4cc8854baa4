"""
The bias of SGHMC by step size
==============================

A chain with a finite step size has a stationary distribution that differs from the posterior. On the Gaussian model of
Chen, Ding & Carin (2015) both are known exactly, so the bias of an integrator can be computed instead of estimated. The
program plots it for four integrators, three frictions and two kinds of gradient, as in figure 1 of the paper, adds
points from chains, and asserts its claims at the end.
"""

# %%
# The results
# -----------
# There are 1000 observations x_i ~ N(theta, 1) and a prior theta ~ N(0, 1). The test function is theta^2. The
# integrators are
#
# - *explicit Euler*, which updates position and momentum both from the old state; it is written here for comparison
#   and is not part of the package;
# - ``"euler"``, the word EA, which updates the momentum first and moves the position with the new momentum;
# - ``"ssi"``, the word AFBNFA, the symmetric splitting integrator of the paper;
# - ``"ABOBA"``, the default of the package.
#
# **With full gradients** the bias is the error of the integrator alone. Explicit Euler is of order 1. The law of
# (theta, p) under ``"euler"`` is of order 1 as well, but its error is in the momentum: the variance of theta is of
# order 2. ``"ssi"`` is of order 2, with a variance of theta slightly too small; its error is less than a fifth of that
# of ``"euler"`` at small steps. ``"ABOBA"`` has exactly the right variance of theta at every step size at which
# it is stable, which is a property of Gaussian posteriors.
#
# **With independent minibatches of 10 rows** the bias is another one: the error of the gradients adds a variance that
# is proportional to h / D. It is larger than the error of the integrators by orders of magnitude, and it makes all of
# them order 1. Well below their limits of stability ``"euler"``, ``"ssi"`` and ``"ABOBA"`` are almost equal.
#
# **Every integrator becomes unstable** at some step size, the splitting ones included. The limits, dotted in the
# picture, are D / lambda for explicit Euler, (sqrt(D^2 + 4 lambda) - D) / lambda for ``"euler"``, the h with
# h^2 lambda = 4 cosh(D h / 2) for ``"ssi"`` and 2 / sqrt(lambda) for ``"ABOBA"``, with lambda = 1001 the precision of
# the posterior. The paper reports that its Euler integrator has larger biases and explodes quickly, and that this does
# not happen to the splitting integrator. Larger biases with minibatches are what explicit Euler has; ``"euler"``, which
# is the Euler integrator of the authors' poster, has them near its limit only. And ``"ssi"`` explodes as well.
# The page of :doc:`results </results>` has all limits.

from gallery import parsed, parser, save
from gaussian_model import BATCH, model, simulate_data, step_matrices
import jax
from jax import random
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, init_to_value
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, Piecewise, WithoutReplacement

jax.config.update("jax_enable_x64", True)

WORDS = ("euler", "ssi", "ABOBA")
FRICTIONS = (10.0, 20.0, 30.0)
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06)  # at which chains are run, as far as they are stable
TIME = 4.0  # for each of them, in units of h times steps
SIZE = {"num_chains": (256, 1024)}

# %%
# The exact law
# -------------
# A step is linear in the state, the injected noise and the error of the gradient, x' = M x + S n + G e. The stationary
# covariance solves the discrete Lyapunov equation C = M C M' + S S' + s^2 G G', where s^2 is the variance of the
# gradient; zero for full gradients. No more than the second moments enter, so this is exact for minibatches, too. The
# matrices of ``"euler"``, ``"ssi"`` and ``"ABOBA"`` are Jacobians of the step of the package.


def explicit_euler(friction, precision):
    def matrices(h):
        M = np.array([[1, h], [-h * precision, 1 - h * friction]])
        return M, np.array([[0], [np.sqrt(2 * friction * h)]]), np.array([[0], [-h]])

    return matrices


def shipped(word, friction, precision):
    kernel = SGHMC(model, step_size=1.0, friction=friction, integrator=word)
    jacobians = jax.jit(lambda h: step_matrices(kernel, precision, h))
    return lambda h: [np.asarray(J) for J in jacobians(h)]


def schemes(friction, precision):
    """Name of an integrator -> function from h to its matrices."""
    return {
        "explicit Euler": explicit_euler(friction, precision),
        **{word: shipped(word, friction, precision) for word in WORDS},
    }


def radius(matrices, h):
    return np.abs(np.linalg.eigvals(matrices(h)[0])).max()


def covariance(matrices, h, noise):
    """The stationary covariance of (theta, p)."""
    M, S, G = matrices(h)
    return solve_discrete_lyapunov(M, S @ S.T + noise * G @ G.T)


def bias(matrices, h, posterior, noise):
    """Of E theta^2: the mean of theta is right, so it is that of the variance."""
    return covariance(matrices, h, noise)[0, 0] - 1 / posterior.precision


def stability_limit(matrices):
    """The first h at which the step does not contract: on a grid, then by halving the interval."""
    grid = np.geomspace(1e-3, 1.0, 100)
    first = np.argmax([radius(matrices, h) > 1 for h in grid])
    stable, unstable = grid[first - 1], grid[first]
    for _ in range(30):
        middle = (stable + unstable) / 2
        stable, unstable = (stable, middle) if radius(matrices, middle) > 1 else (middle, unstable)
    return unstable


def stability_theory(friction, precision):
    """The h at which an eigenvalue of M reaches the unit circle, by hand."""
    D, curvature = friction, precision
    return {
        "explicit Euler": D / curvature,
        "euler": (np.sqrt(D**2 + 4 * curvature) - D) / curvature,
        "ssi": brentq(lambda h: h**2 * curvature - 4 * np.cosh(D * h / 2), 0, 2.5 / np.sqrt(curvature) + D / curvature),
        "ABOBA": 2 / np.sqrt(curvature),
    }


def orders(matrices, precision):
    """Slopes of log |error| against log h at small h, with full gradients: of var theta, and of the joint law."""
    scale = np.sqrt([precision, 1.0])  # in these units the posterior of (theta, p) is the standard normal law

    def errors(h):
        error = covariance(matrices, h, noise=0.0) * np.outer(scale, scale) - np.eye(2)
        return np.array([abs(error[0, 0]), np.linalg.norm(error)])

    h = 1e-4
    return np.log2(errors(h) / errors(h / 2))


# %%
# Chains
# ------
# One run visits all step sizes, from small to large, by a piecewise constant schedule. The last of them is 5 % beyond
# the limit of stability, for 300 steps. The first half of the time at each step size is left out. The term
# 2 m (theta - m) of theta^2, where m is the posterior mean, has expectation zero; leaving it out makes the estimates
# more precise. The chains are independent, so their spread gives the standard error.


def simulated(rng_key, word, friction, x, posterior, limit, num_chains):
    """Step sizes, bias and its standard error at each; and by what factor theta grows beyond the limit."""
    steps = [h for h in STEPS if h < 0.95 * limit] + [0.95 * limit]
    lengths = [round(TIME / h) for h in steps]
    ends = np.cumsum(lengths)
    kernel = SGHMC(
        model,
        step_size=Piecewise(tuple(map(int, ends)), (*steps, 1.05 * limit)),
        friction=friction,
        batch_size=BATCH,
        integrator=word,
        rows=WithoutReplacement(),
        init_strategy=init_to_value(values={"theta": posterior.mean}),
    )
    mcmc = MCMC(
        kernel,
        num_warmup=0,
        num_samples=int(ends[-1]) + 300,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(rng_key, x)
    deviation = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"]) - posterior.mean
    found = []
    for end, length in zip(ends, lengths):
        averages = (deviation[:, end - length // 2 : end] ** 2).mean(1) - 1 / posterior.precision
        found.append((averages.mean(), averages.std(ddof=1) / np.sqrt(len(averages))))
    growth = np.abs(deviation[:, -1]).max() / np.abs(deviation[:, ends[-1] - 1]).max()
    return {"h": steps, "bias": [b for b, _ in found], "error": [e for _, e in found], "growth": growth}


# %%
# The picture
# -----------

STYLES = {  # colours of Okabe & Ito, which colour-blind readers can tell apart
    "explicit Euler": {"color": "#999999", "ls": (0, (5, 1.5))},
    "euler": {"color": "#D55E00", "ls": "-"},
    "ssi": {"color": "#0072B2", "ls": "-"},
    "ABOBA": {"color": "#009E73", "ls": (0, (3, 1.5))},
}
LABELS = {
    "explicit Euler": "explicit Euler",
    "euler": '"euler" (EA)',
    "ssi": '"ssi" (AFBNFA)',
    "ABOBA": '"ABOBA" (exact with full gradients)',
}


def draw(curves, limits, points):
    figure, panels = plt.subplots(2, 3, figsize=(12, 7.6), sharex=True, sharey="row", layout="constrained")
    for row, gradients in zip(panels, ("full gradients", f"minibatches of {BATCH}")):
        for axes, D in zip(row, FRICTIONS):
            for name, style in STYLES.items():
                h, b = curves[gradients, D, name]
                if not (gradients == "full gradients" and name == "ABOBA"):
                    axes.loglog(h, np.abs(b), lw=2, label=LABELS[name], **style)
                axes.axvline(limits[D][name], color=style["color"], lw=1.2, ls=":")
                if gradients != "full gradients" and (D, name) in points:
                    p = points[D, name]
                    axes.errorbar(p["h"], p["bias"], p["error"], fmt="o", ms=4.5, color=style["color"], mec="white")
            axes.set_title(f"{gradients}, D = {D:.0f}", loc="left", fontsize=11)
            axes.set_xlim(5e-4, 0.12)
            axes.set_xticks([1e-3, 1e-2, 1e-1], ["0.001", "0.01", "0.1"])
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylim(1e-9, 1e-1)
    panels[1, 0].set_ylim(4e-4, 4)
    for axes in panels[:, 0]:
        axes.set_ylabel(r"$|$bias of E $\theta^2|$")
    for axes in panels[1]:
        axes.set_xlabel("step size h")
    handles, labels = panels[1, 0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="black", lw=1.2, ls=":"))
    handles.append(plt.Line2D([], [], color="black", marker="o", ls="", ms=4.5))
    labels += ["limit of stability", "chains, with standard errors"]
    figure.legend(handles, labels, loc="outside lower center", ncol=6, frameon=False, fontsize=9.5)
    return figure


# %%
# The program
# -----------


def main(args):
    x, posterior = simulate_data(args.seed)
    noises = {"full gradients": 0.0, f"minibatches of {BATCH}": posterior.noise}
    curves, limits, theory, order, points = {}, {}, {}, {}, {}
    for D in FRICTIONS:
        scheme = schemes(D, posterior.precision)
        limits[D] = {name: stability_limit(matrices) for name, matrices in scheme.items()}
        theory[D] = stability_theory(D, posterior.precision)
        order[D] = {name: orders(matrices, posterior.precision) for name, matrices in scheme.items()}
        for name, matrices in scheme.items():
            h = np.geomspace(5e-4, 0.999 * limits[D][name], 60)
            for gradients, noise in noises.items():
                curves[gradients, D, name] = h, np.array([bias(matrices, step, posterior, noise) for step in h])

    runs = [(20.0, "euler")] if args.fast else [(D, word) for D in FRICTIONS for word in WORDS]
    keys = random.split(random.key(args.seed), len(runs))
    for (D, word), key in zip(tqdm(runs, desc="chains"), keys):
        p = simulated(key, word, D, x, posterior, limits[D][word], args.num_chains)
        matrices = schemes(D, posterior.precision)[word]
        p["exact"] = [bias(matrices, h, posterior, posterior.noise) for h in p["h"]]
        p["z"] = [(b - exact) / e for b, exact, e in zip(p["bias"], p["exact"], p["error"])]
        points[D, word] = p

    metrics = {
        "posterior": posterior._asdict(),
        "limits": {f"D = {D:.0f}": {name: [limits[D][name], theory[D][name]] for name in STYLES} for D in FRICTIONS},
        "orders": {
            f"D = {D:.0f}": {
                name: dict(zip(("var theta", "joint"), order[D][name])) for name in STYLES if name != "ABOBA"
            }
            for D in FRICTIONS
        },
        "chains": {f"D = {D:.0f}, {word}": p for (D, word), p in points.items()},
    }
    report(metrics)
    save(args, "step_size_bias", draw(curves, limits, points), metrics)
    check(curves, limits, theory, order, points, posterior)


def report(metrics):
    print("First unstable step size, and by theory:")
    for D, limits in metrics["limits"].items():
        print(f"  {D}: " + ", ".join(f"{name} {found:.4f} ({known:.4f})" for name, (found, known) in limits.items()))
    print("Chains on minibatches: step size, bias, standard error, exact bias")
    for name, p in metrics["chains"].items():
        print(f"  {name}")
        for h, b, e, exact in zip(p["h"], p["bias"], p["error"], p["exact"]):
            print(f"    {h:.4f}  {b:.4e}  {e:.1e}  {exact:.4e}")


# %%
# The claims
# ----------


def check(curves, limits, theory, order, points, posterior):
    for D in FRICTIONS:
        for name in STYLES:
            assert abs(limits[D][name] / theory[D][name] - 1) < 0.01, (
                f"D = {D}: the limit of {name} is not the theory's"
            )
        assert np.allclose(order[D]["explicit Euler"], [1, 1], atol=0.1), "explicit Euler is not of order 1"
        assert np.allclose(order[D]["euler"], [2, 1], atol=0.05), "euler: order 2 in var theta, 1 in the joint law"
        assert np.allclose(order[D]["ssi"], [2, 2], atol=0.05), "ssi is not of order 2"
        assert np.all(curves["full gradients", D, "ssi"][1] < 0), "ssi: the variance of theta is not too small"
        ssi, euler = (abs(curves["full gradients", D, word][1][0]) for word in ("ssi", "euler"))
        assert ssi < 0.2 * euler, f"D = {D}: the error of ssi is not less than a fifth of that of euler"
        exact = np.abs(curves["full gradients", D, "ABOBA"][1]).max() * posterior.precision
        assert exact < 1e-8, "ABOBA is not exact with full gradients"
        for word in WORDS:
            h, b = curves[f"minibatches of {BATCH}", D, word]
            slope = np.log(b[1] / b[0]) / np.log(h[1] / h[0])
            assert abs(slope - 1) < 0.05, f"{word} is not of order 1 with minibatches"

    z = np.abs([z for p in points.values() for z in p["z"]])
    assert np.sum(z > 3) <= max(1, len(z) // 20) and z.max() < 4.5, (
        f"chains do not follow the exact law: z up to {z.max():.1f}"
    )
    assert all(p["growth"] > 100 for p in points.values()), "a chain beyond the limit of stability does not grow"


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
