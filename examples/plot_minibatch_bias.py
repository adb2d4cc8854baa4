"""
The bias from minibatches, and what removes it
==============================================

Minibatches add noise to the gradient, and the noise makes the sampled posterior too wide. With independent minibatches
this error is of order 1 in the step size whatever the integrator, and usually far larger than the error of the
integrator. The program computes it exactly on a Gaussian model. On a logistic regression it measures how much of it
random reshuffling, SAGA, SVRG and control variates remove. It asserts its claims at the end.
"""

# %%
# The results
# -----------
# h is the step size, D the friction of SGHMC, lambda = omega^2 the largest curvature of the potential, m = N / n the
# number of minibatches in an epoch, and s^2 the variance of the gradient estimate. The *inflation* is the relative
# error of the posterior variance; in several dimensions it is the mean of (z - mean)' C^-1 (z - mean) / d, less one,
# where C is the true covariance.
#
# **With independent minibatches every word is of order 1** (left). The inflation is h s^2 / (2 D) for SGHMC and h s^2 /
# 2 for SGLD, to first order in h. ``"euler"`` and ``"ssi"`` have errors of order 2 in the variance with full gradients,
# ``"ABOBA"`` has none on a Gaussian posterior, and with minibatches all three give the same line. For a model that fits
# its data s^2 is about m lambda, so that the inflation is about m h omega / 2 at D = omega: half an epoch, in units of
# 1 / omega.
#
# **Where "only the integrator matters".** Theorem 4 of Chen, Ding & Carin (2015) bounds the bias of the stationary law
# by C h^K for an integrator of order K, and the paper concludes that the minibatches do not affect it asymptotically.
# For K = 1 the order is right, but not the conclusion: the minibatches are most of the constant. For K = 2 and
# independent minibatches the order is wrong as well. The error of the gradient has mean zero, but its square has not;
# it enters each step at order h^2, and so the stationary law at order h. The conclusion does hold with full gradients,
# and where the noise is much smaller than the error of the integrator, or falls fast enough with h. The rest of the
# picture is about these cases.
#
# **Random reshuffling** (right) makes the errors of an epoch sum to zero. On the Gaussian model the share of the
# inflation that is left is (m h omega)^2 / 12 for short epochs, whatever the friction. So at a fixed m what is left
# is of order 3 in h, and an integrator of order 2 keeps its order. The condition is on the epoch: at m h omega = 1 less
# than 10 % is left. An epoch that is long compared with the motion of the chain gives nothing back, and a strong
# friction, which slows the chain down, makes the change more gradual.
#
# **Variance reduction** (middle) does not depend on the epoch in this way. The logistic regression has only 200 rows
# and 2 coefficients, because with more rows nothing could be seen: by theory, what is left falls as 1 / N relative to
# the inflation by plain minibatches. At the largest steps independent minibatches make the variance several times too
# large, and reshuffled ones hardly help, because an epoch is then long. SAGA, SVRG and control variates leave less than
# a twentieth of this inflation, which ``check`` asserts. The page of :doc:`results </results>` has the inflation at
# h omega = 0.1 and 0.4. The noise of SAGA and SVRG shrinks with h, as the gradients they remember are then from places
# nearer to the chain. The noise of control variates does not: they stay at order 1, with a small constant. What is left
# is what the formula gives with the variance of the estimator in question, which ``gradient_noise`` measures (lines).
#
# The price is not in the picture. SVRG and control variates take two minibatch gradients for each step, SVRG a pass
# over the data for each epoch besides, and SAGA a table. Reshuffling costs nothing. The posterior has one mode and the
# chains start in it; for several modes or a start far away nothing follows from this.

from functools import partial

from gallery import parsed, parser, save
from gaussian_model import BATCH, ROWS, model as gaussian, simulate_data, step_matrices
import jax
from jax import lax, random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density
from scipy.linalg import solve_discrete_lyapunov
from tqdm import tqdm

from numpyro_sgmcmc import (
    SAGA,
    SGHMC,
    SGLD,
    SVRG,
    ControlVariate,
    Minibatch,
    Reshuffled,
    WithoutReplacement,
    find_mode,
    gradient_noise,
)

jax.config.update("jax_enable_x64", True)

WORDS = ("euler", "ssi", "ABOBA")
D = 20.0  # friction of the first panel
FRICTIONS = (0.5, 2.0, 8.0)  # of the third panel, in units of omega
EPOCHS = (2.0, 4.0, 8.0, 16.0, 32.0)  # lengths at which reshuffled chains are run, in units of 1 / omega
N, SMALL_BATCH = 200, 8  # of the logistic regression
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)  # h there, in units of 1 / omega
BLOCK = 33  # steps between two looks at the noise, which thus come at all 25 positions in an epoch
FAST = ("independent", "SAGA")  # what --fast runs
REDUCED = ("SAGA", "SVRG", "control variates")
WHITE = ("independent", *REDUCED)  # estimators whose noise is predicted as white
SIZE = {"num_chains": (100, 600), "num_blocks": (16, 120)}

# %%
# The exact law on the Gaussian model
# -----------------------------------
# A step is linear, x' = M x + S n + G e with injected noise n and the error e of the gradient. The second moments of
# the stationary law follow from those of n and e. For independent minibatches they solve a discrete Lyapunov equation.
# In one epoch of reshuffled ones the errors e have variance s^2 and covariances -s^2 / (m - 1), so that they sum to
# zero, and they are independent of those of other epochs; the equation is then one for a whole epoch.


def relative_variance(M, S, G, noise, precision):
    """Of theta at stationarity, in units of the posterior's; ``noise`` is s^2 of independent minibatches."""
    return solve_discrete_lyapunov(M, S @ S.T + noise * G @ G.T)[0, 0] * precision


def reshuffled_variance(M, S, G, noise, precision, m):
    """The same for reshuffled minibatches, the mean over the m positions in an epoch."""
    powers = [np.eye(len(M))]
    for _ in range(m):
        powers.append(powers[-1] @ M)
    powers = np.array(powers)
    S, G = powers[:m] @ S, powers[:m] @ G
    b = G.cumsum(0)
    bridge = (G @ G.transpose(0, 2, 1)).cumsum(0) - b @ b.transpose(0, 2, 1) / m
    added = (S @ S.transpose(0, 2, 1)).cumsum(0) + noise * m / (m - 1) * bridge
    start = solve_discrete_lyapunov(powers[m], added[-1])
    return (powers[1:] @ start @ powers[1:].transpose(0, 2, 1) + added)[:, 0, 0].mean() * precision


def matrices(kernel, precision):
    jacobians = jax.jit(lambda h: step_matrices(kernel, precision, h))
    return lambda h: [np.asarray(J) for J in jacobians(h)]


def slope(h, values):
    return np.polyfit(np.log(h), np.log(np.abs(values)), 1)[0]


def words_law(posterior):
    """First panel: (word, gradients) -> h, error of the relative variance."""
    found = {}
    for word in WORDS:
        step = matrices(SGHMC(gaussian, step_size=1.0, friction=D, integrator=word), posterior.precision)
        h = np.geomspace(1e-5, 0.04, 40)
        for gradients, noise in (("full gradients", 0.0), ("minibatches", posterior.noise)):
            found[word, gradients] = (
                h,
                np.array([relative_variance(*step(x), noise, posterior.precision) - 1 for x in h]),
            )
    return found


def sgld_law(posterior):
    """Step sizes; error of the relative variance with full gradients, and with independent minibatches."""
    step = matrices(SGLD(gaussian, step_size=1.0), posterior.precision)
    h = np.geomspace(1e-7, 1e-5, 5)
    laws = [
        [relative_variance(*step(x), noise, posterior.precision) - 1 for noise in (0.0, posterior.noise)] for x in h
    ]
    return h, *np.array(laws).T


def epochs_law(posterior):
    """Third panel: D / omega -> epoch length in units of 1 / omega, inflation if independent, if reshuffled."""
    omega, m = np.sqrt(posterior.precision), ROWS // BATCH
    epochs = np.union1d(np.geomspace(0.03, 100, 40), EPOCHS)
    found = {}
    for ratio in FRICTIONS:
        step = matrices(SGHMC(gaussian, step_size=1.0, friction=ratio * omega), posterior.precision)
        both = []
        for h in epochs / m / omega:
            law = (*step(h), posterior.noise, posterior.precision)
            both.append((relative_variance(*law) - 1, reshuffled_variance(*law, m) - 1))
        found[ratio] = epochs, *np.array(both).T
    return found


# %%
# Chains
# ------
# The chains start in the true posterior and visit the step sizes from small to large. The first quarter of the time at
# each is left out. They are independent, so their spread gives the standard error. Estimators that reduce the variance
# get independent rows: what they do is then not mixed up with what reshuffling does.


def run(rng_key, make, steps, start, mean, covariance, num_blocks, *data):
    """Inflation at each step size, its standard error, and the inflation predicted from the noise on the way."""
    (z,) = start.values()
    num_chains = len(z)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T

    @jax.jit
    def visit(state, h):
        kernel = make(step_size=lambda i: h)

        def step(_, carry):
            state, total = carry
            state = kernel.sample(state, data, {})
            (z,) = state.z.values()
            return state, total + (((z.reshape(num_chains, -1) - mean) @ whiten) ** 2).mean(1)

        def block(state, _):
            state, total = lax.fori_loop(0, BLOCK, step, (state, jnp.zeros(num_chains)))
            if not kernel.batch_size:
                return state, (total / BLOCK - 1, 0.0)
            (predicted,) = gradient_noise(kernel, state, *data, num_batches=4).inflation.values()
            return state, (total / BLOCK - 1, predicted.mean())

        state, (chains, predicted) = lax.scan(block, state, length=num_blocks)
        return state, chains[num_blocks // 4 :].mean(0), predicted[num_blocks // 4 :].mean()

    state = make(step_size=1.0).init(random.split(rng_key, num_chains), 0, start, data, {})
    found = []
    for h in steps:
        state, chains, predicted = visit(state, h)
        found.append((float(chains.mean()), float(chains.std(ddof=1) / np.sqrt(num_chains)), float(predicted)))
    return found


# %%
# The logistic regression
# -----------------------
# Two coefficients, so that mean and covariance of the posterior are known by quadrature.


def logistic(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def logistic_data(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 2))
    y = rng.random(N) < 1 / (1 + np.exp(-X @ [1.0, -0.5]))
    return jnp.asarray(X), jnp.asarray(y, float)


def quadrature(mode, hessian, data):
    """Mean and covariance of the posterior, by a grid of 161 x 161 points out to 8 standard deviations."""
    t = np.linspace(-8, 8, 161)
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    w = mode + np.stack(np.meshgrid(t, t), -1).reshape(-1, 2) @ root.T
    logp = np.asarray(jax.jit(jax.vmap(lambda w: log_density(logistic, data, {}, {"w": w})[0]))(w))
    p = np.exp(logp - logp.max())
    p /= p.sum()
    mean = p @ w
    return mean, (w - mean).T @ ((w - mean) * p[:, None])


def estimators(mode):
    """Label -> estimator and rows."""
    fresh = WithoutReplacement()
    return {
        "independent": {"gradient": Minibatch(), "rows": fresh},
        "reshuffled": {"gradient": Minibatch(), "rows": Reshuffled()},
        "SAGA": {"gradient": SAGA(), "rows": fresh},
        "SVRG": {"gradient": SVRG(), "rows": fresh},
        "control variates": {"gradient": ControlVariate(mode), "rows": fresh},
        "full gradients": {},
    }


def compare(rng_key, args):
    """Second panel: estimator -> h omega, inflation, standard error, prediction."""
    data = logistic_data(args.seed)
    key_mode, key_start, *keys = random.split(rng_key, 8)
    mode = find_mode(logistic, key_mode, *data, batch_size=SMALL_BATCH, num_steps=2000, progress_bar=False)
    hessian = -np.asarray(jax.jit(jax.hessian(lambda w: log_density(logistic, data, {}, {"w": w})[0]))(mode["w"]))
    mean, covariance = quadrature(np.asarray(mode["w"]), hessian, data)
    omega = np.sqrt(np.linalg.eigvalsh(hessian)[-1])
    start = {"w": random.multivariate_normal(key_start, mean, covariance, (args.num_chains,))}
    steps = STEPS[2::2] if args.fast else STEPS
    chosen = {label: options for label, options in estimators(mode).items() if label in FAST or not args.fast}
    found = {}
    for key, (label, options) in zip(keys, tqdm(chosen.items(), desc="logistic regression")):
        batch_size = None if label == "full gradients" else SMALL_BATCH
        make = partial(SGHMC, logistic, friction=float(omega), batch_size=batch_size, **options)
        runs = run(key, make, np.array(steps) / omega, start, mean, covariance, args.num_blocks, *data)
        found[label] = [(h, *result) for h, result in zip(steps, runs)]
    return found


def reshuffled_chains(rng_key, x, posterior, args):
    """Third panel, chains at D = 2 omega: epoch length in units of 1 / omega, inflation, standard error."""
    omega, m = np.sqrt(posterior.precision), ROWS // BATCH
    make = partial(SGHMC, gaussian, friction=float(2 * omega), batch_size=BATCH, rows=Reshuffled())
    key_start, key = random.split(rng_key)
    start = {"theta": posterior.mean + random.normal(key_start, (2 * args.num_chains,)) / omega}
    covariance = np.array([[1 / posterior.precision]])
    runs = run(key, make, np.array(EPOCHS) / m / omega, start, posterior.mean, covariance, args.num_blocks, x)
    return [(epoch, *result) for epoch, result in zip(EPOCHS, runs)]


# %%
# The picture
# -----------

COLOURS = {  # of Okabe & Ito, which colour-blind readers can tell apart
    "independent": "#D55E00",
    "reshuffled": "#0072B2",
    "SAGA": "#009E73",
    "SVRG": "#CC79A7",
    "control variates": "#E69F00",
    "full gradients": "black",
}
MARKERS = dict(zip(COLOURS, "osD^vx"))
DODGE = dict(zip(COLOURS, 1.05 ** np.array([0, 0, -2, -1, 1, 2])))  # so that points do not hide each other


def draw_words(axes, words, noise):
    for word, colour, width in zip(WORDS, ("#D55E00", "#0072B2", "#009E73"), (6, 3.5, 1.5)):
        axes.loglog(*words[word, "minibatches"], color=colour, lw=width, label=f'"{word}", independent minibatches')
        h, error = words[word, "full gradients"]
        if word != "ABOBA":
            axes.loglog(h, np.abs(error), color=colour, ls=(0, (5, 2)), lw=2, label=f'"{word}", full gradients')
    axes.loglog(h, h * noise / (2 * D), color="black", lw=1.3, ls=":", label="$h s^2 / (2 D)$")
    axes.set(ylim=(1e-9, 1e5), xlabel="step size h", ylabel="|relative error of the variance|")
    axes.set_title(f"Gaussian mean, exact, D = {D:.0f}", loc="left", fontsize=11)


def draw_estimators(axes, estimators):
    for label, points in estimators.items():
        h, estimate, error, predicted = np.array(points).T
        look = {"color": COLOURS[label], "fmt": MARKERS[label], "ms": 6, "label": label, "capsize": 2}
        axes.errorbar(h * DODGE[label], estimate, error, **look)
        if label in WHITE:
            axes.plot(h, predicted, color=COLOURS[label], lw=1.3)
    axes.plot([], [], color="grey", lw=1.3, label="predicted, $h s^2 / (2 D)$")
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.05, linscale=1.2)
    ticks = (-0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks(STEPS, [f"{h:g}" for h in STEPS])
    axes.set_xticks([], minor=True)
    axes.set(ylim=(-0.045, 150), xlabel="step size, h ω", ylabel="relative error of the variance")
    axes.set_title(f"logistic regression, ABOBA, D = ω, m = {N // SMALL_BATCH}", loc="left", fontsize=11)


def draw_epochs(axes, epochs, chains):
    for ratio, colour, line in zip(FRICTIONS, ("#0072B2", "#D55E00", "#009E73"), ("-", (0, (5, 1.5)), (0, (1.5, 1)))):
        x, independent, reshuffled = epochs[ratio]
        axes.loglog(x, reshuffled / independent, color=colour, ls=line, lw=2.2, label=f"D = {ratio:g} ω, exact")
    if chains:
        x, estimate, error, predicted = np.array(chains).T
        look = {"color": "#D55E00", "fmt": "o", "ms": 7, "capsize": 2, "mec": "white"}
        axes.errorbar(x, estimate / predicted, error / predicted, label="D = 2 ω, chains", **look)
    x = np.array([0.03, 3.4])
    axes.loglog(x, x**2 / 12, color="black", lw=1.3, ls=":", label="$(m h ω)^2 / 12$")
    axes.set(ylim=(5e-5, 2), xlabel="length of an epoch, m h ω", ylabel="share of the inflation that is left")
    axes.set_title(f"Gaussian mean, reshuffled, ABOBA, m = {ROWS // BATCH}", loc="left", fontsize=11)


def draw(words, estimators, epochs, chains, noise):
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5.4), layout="constrained")
    draw_words(left, words, noise)
    draw_estimators(middle, estimators)
    draw_epochs(right, epochs, chains)
    for axes in (left, middle, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=9, loc="upper left")
    middle.legend(frameon=False, fontsize=9, loc="upper left", ncol=2)
    right.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


# %%
# The claims
# ----------
# A comparison with chains is made at 4 standard errors; there are about 30 of them. Predictions are of the first order
# in the inflation and come from a finite number of batches, for which they are given 10 %, and 15 % above an inflation
# of one.


def check(words, estimators, epochs, chains, posterior):
    for word in WORDS:
        h, error = words[word, "minibatches"]
        assert abs(slope(h[:8], error[:8]) - 1) < 0.01, f"{word} is not of order 1 with independent minibatches"
        small = h < 1e-3
        ratio = error[small] / (h[small] * posterior.noise / (2 * D))
        assert np.abs(ratio - 1).max() < 0.01, f"{word}: the inflation is not h s^2 / (2 D)"
        h, error = words[word, "full gradients"]
        if word == "ABOBA":
            assert np.abs(error).max() < 1e-8, "ABOBA is not exact with full gradients"
        else:
            assert abs(slope(h[:8], error[:8]) - 2) < 0.01, f"{word} is not of order 2 with full gradients"
    h, full, minibatches = sgld_law(posterior)
    assert np.allclose(full / (h * posterior.precision / 2), 1, atol=0.01), "SGLD, full gradients: not h lambda / 2"
    assert np.allclose((minibatches - full) / (h * posterior.noise / 2), 1, atol=0.01), "SGLD: not h s^2 / 2"

    for ratio, (x, independent, reshuffled) in epochs.items():
        left = reshuffled / independent
        assert abs(left[0] / (x[0] ** 2 / 12) - 1) < 0.1, f"D = {ratio} omega: not (m h omega)^2 / 12 of it is left"
        assert abs(slope(x[:5], reshuffled[:5]) - 3) < 0.15, f"D = {ratio} omega: reshuffled is not of order 3"
        assert left[x < 1].max() < 0.1 < 0.9 < left[-1], f"D = {ratio} omega: short epochs do not help, or long ones do"
    x, _, exact = epochs[2.0]
    for epoch, estimate, error, _ in chains:
        z = (estimate - np.interp(epoch, x, exact)) / error
        assert abs(z) < 4, f"reshuffled chains do not follow the exact law at m h omega = {epoch}: z = {z:.1f}"

    plain = {h: estimate for h, estimate, *_ in estimators["independent"]}
    m = N // SMALL_BATCH
    for label, points in estimators.items():
        for h, estimate, error, predicted in points:
            if label in WHITE:
                room = 4 * error + (0.1 if predicted < 1 else 0.15) * predicted
                assert abs(estimate - predicted) < room, f"{label}, h omega = {h}: the inflation is not the predicted"
            if label in REDUCED and plain[h] > 0.45:
                assert abs(estimate) < 0.05 * plain[h] + 4 * error, f"{label}, h omega = {h}: more than 5 % is left"
            if label == "reshuffled" and m * h <= 1:
                assert abs(estimate) < 0.1 * plain[h] + 4 * error, f"reshuffled, h omega = {h}: more than 10 % is left"
            if label == "reshuffled" and m * h >= 4:
                assert estimate > 0.4 * plain[h], f"reshuffled, h omega = {h}: a long epoch gives most of it back"
            if label == "full gradients":
                assert abs(estimate) < 4 * error + 0.01, f"full gradients, h omega = {h}: the variance is not right"

    for label in REDUCED if "SVRG" in estimators else ():
        noise = {h: predicted / h for h, *_, predicted in estimators[label]}
        share = noise[0.05] / noise[0.4]
        right = abs(share - 1) < 0.2 if label == "control variates" else share < 0.5
        assert right, f"{label}: from h omega = 0.4 to 0.05 the variance of the gradient falls to {share:.2f} of it"


# %%
# The program
# -----------


def main(args):
    x, posterior = simulate_data(args.seed)
    words, epochs = words_law(posterior), epochs_law(posterior)
    key_logistic, key_gaussian = random.split(random.key(args.seed))
    estimators = compare(key_logistic, args)
    chains = [] if args.fast else reshuffled_chains(key_gaussian, x, posterior, args)
    report(estimators, epochs, chains)
    metrics = {
        "posterior of the Gaussian mean": posterior._asdict(),
        "logistic regression: h omega, inflation, standard error, predicted": estimators,
        "reshuffled Gaussian: m h omega, inflation, standard error, predicted if independent": chains,
    }
    save(args, "minibatch_bias", draw(words, estimators, epochs, chains, posterior.noise), metrics)
    check(words, estimators, epochs, chains, posterior)


def report(estimators, epochs, chains):
    print("Logistic regression: h omega, relative error of the variance, standard error, prediction for white noise")
    for label, points in estimators.items():
        print(f"  {label}")
        for row in points:
            print("    " + "  ".join(f"{value:8.4f}" for value in row))
    if not chains:
        return
    print("Reshuffled Gaussian, chains: m h omega, inflation, standard error, prediction for white noise; exact")
    epoch, _, exact = epochs[2.0]
    for row in chains:
        print("    " + "  ".join(f"{value:8.4f}" for value in (*row, np.interp(row[0], epoch, exact))))


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
