r"""
Remedies for minibatch noise
============================

The noise of minibatch gradients makes the draws too wide. This program compares seven ways to deal with it, at the same
step size and friction, on three models: nothing; thermostats, which find the friction that balances the noise;
subtraction, which injects less noise by the amount that minibatches add (Ma, Chen & Fox 2015, equation 9), to first
order; NOGIN (Matthews & Weare 2018), which does so exactly for Gaussian noise; random reshuffling; and two estimators
with less noise, control variates and SAGA.

The error is that of the posterior variances, plotted against the number of row gradients.
"""

from gallery import expect_refusals, parsed, parser, save
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from tqdm import tqdm

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGMCMC,
    ControlVariate,
    Minibatch,
    Recipe,
    Reshuffled,
    WithoutReplacement,
    find_mode,
)

N, BATCH, H, FRICTION, STEPS = 1000, 50, 0.005, 100.0, 20
SIZE = {"draws": (100, 600), "chains": (32, 64)}  # with --fast, without

expect_refusals()

# %%
# The models
# ----------


def linear(X, y, group):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", N) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


def logistic(X, y, group):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", N) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def hierarchy(X, y, group):
    spread = numpyro.sample("spread", dist.LogNormal(-1.5, 0.3))
    mean = numpyro.sample("mean", dist.Normal(0, 0.2))
    effects = numpyro.sample("effects", dist.Normal(mean, spread).expand([8]).to_event(1))
    with numpyro.plate("rows", N) as rows:
        numpyro.sample("y", dist.Normal(effects[group[rows]], 1), obs=y[rows])


def simulate(name, seed):
    rng = np.random.default_rng(seed)
    X, group = rng.normal(size=(N, 3)), rng.integers(0, 8, N)
    signal = X @ np.array([0.5, -0.3, 0.1])
    y = {
        "linear": signal + rng.normal(size=N),
        "logistic": (rng.random(N) < 1 / (1 + np.exp(-signal))).astype(int),
        "hierarchy": 0.25 * rng.normal(size=8)[group] + rng.normal(size=N),
    }[name]
    return jnp.asarray(X), jnp.asarray(y), jnp.asarray(group)


# %%
# The answers
# -----------
# All but the row of that name have independent minibatches. Control variates and SAGA evaluate the gradient of a row
# and what is remembered of it; a remembered gradient costs nothing for SAGA, a second evaluation for a control
# variate.

INDEPENDENT = WithoutReplacement()
SGHMC_AS_RECIPE = Recipe(D={"momentum": FRICTION}, Q={("momentum", "z"): 1.0}, kinetic=1.0, gradient_noise="measured")
ANSWERS = ("nothing", "thermostats", "subtraction", "NOGIN", "reshuffling", "control variates", "SAGA")
MODELS = {"linear": linear, "logistic": logistic, "hierarchy": hierarchy}


def kernel_for(answer, model, mode):
    common = {"step_size": H, "batch_size": BATCH, "steps_per_sample": STEPS}
    langevin = common | {"friction": FRICTION, "rows": INDEPENDENT}
    return {
        "nothing": lambda: SGHMC(model, **langevin),
        "thermostats": lambda: MSGNHT(model, diffusion=FRICTION, rows=INDEPENDENT, **common),
        "subtraction": lambda: SGMCMC(model, SGHMC_AS_RECIPE, "euler", Minibatch(), INDEPENDENT, **common),
        "NOGIN": lambda: SGHMC(model, integrator="NOGIN", **langevin),
        "reshuffling": lambda: SGHMC(model, **langevin | {"rows": Reshuffled()}),
        "control variates": lambda: SGHMC(model, gradient=ControlVariate(mode), **langevin),
        "SAGA": lambda: SGHMC(model, gradient=SAGA(), **langevin),
    }[answer]()


def rows_of_a_step(answer):
    return 2 * BATCH if answer == "control variates" else BATCH


def reference(model, data, args):
    """Mean and variance of each number: exact for the linear model, else by NUTS on all rows."""
    if model is linear:
        X, y, _ = (np.asarray(x, float) for x in data)
        covariance = np.linalg.inv(np.eye(X.shape[1]) + X.T @ X)
        return covariance @ X.T @ y, covariance.diagonal()
    mcmc = MCMC(
        NUTS(model), num_warmup=500, num_samples=1500 if args.fast else 5000, num_chains=4, progress_bar=False,
        chain_method="vectorized",
    )  # fmt: skip
    mcmc.run(random.key(args.seed + 1), *data)
    z = flat(mcmc.get_samples())
    return z.mean(0), z.var(0)


def flat(draws):
    return np.concatenate([np.asarray(draws[name], float).reshape(len(draws[name]), -1) for name in sorted(draws)], 1)


def errors(answer, model, data, mode, truth, args):
    """Relative error of the variances so far, root mean square over numbers and chains, against rows evaluated."""
    kernel = kernel_for(answer, model, mode)
    start = {name: jnp.broadcast_to(x, (args.chains, *x.shape)) for name, x in mode.items()}
    if answer == "thermostats":
        start = None  # without it thermostats begin where they balance the noise, which they would take long to find
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=args.draws,
        num_chains=args.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(args.seed), *data, init_params=start)
    draws = mcmc.get_samples(group_by_chain=True)
    z = np.stack([flat({name: x[c] for name, x in draws.items()}) for c in range(args.chains)])
    square = (z - truth[0]) ** 2 / truth[1]
    counts = np.unique(np.geomspace(5, args.draws, 8).astype(int))
    error = [np.sqrt(((square[:, :n].mean(1) - 1) ** 2).mean()) for n in counts]
    return counts * STEPS * rows_of_a_step(answer), np.array(error), square.mean() - 1


# %%
# The picture
# -----------
# One panel for each model. A curve that stops falling has met the bias of its answer.


def draw(results):
    names = list(dict.fromkeys(name for name, _ in results))
    fig, axes = plt.subplots(1, len(names), figsize=(4.3 * len(names), 4.2), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], names):
        for k, answer in enumerate(ANSWERS):
            rows, error, _ = results[name, answer]
            ax.loglog(rows / N, error, "o-", ms=3, color=f"C{k}", label=answer)
        ax.set(title=name, xlabel="passes over the data", ylabel="relative error of the variance")
        ax.spines[["top", "right"]].set_visible(False)
    fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=4, frameon=False, fontsize=8)
    return fig


# %%
# The claims
# ----------
# On the linear model, where all but the noise is exact, doing nothing leaves the variance too large by about h s^2 / 2
# D. Thermostats, subtraction, NOGIN, control variates and SAGA take away more than two thirds of that excess.


def main(args):
    results, metrics = {}, {}
    for name in ("linear",) if args.fast else MODELS:
        data, model = simulate(name, args.seed), MODELS[name]
        mode = find_mode(model, random.key(args.seed + 2), *data, batch_size=BATCH)
        truth = reference(model, data, args)
        for answer in tqdm(ANSWERS, desc=name):
            results[name, answer] = errors(answer, model, data, mode, truth, args)
            rows, error, excess = results[name, answer]
            metrics[f"{name}, {answer}"] = {"excess": excess, "error": error[-1], "rows": float(rows[-1])}
            print(f"{name:10} {answer:18} excess {excess:8.3f}  error {error[-1]:7.3f}")
    save(args, "noise", draw(results), metrics)

    excess = {answer: results["linear", answer][2] for answer in ANSWERS}
    assert excess["nothing"] > 0.2, excess
    for answer in ("thermostats", "subtraction", "NOGIN", "control variates", "SAGA"):
        assert abs(excess[answer]) < excess["nothing"] / 3, excess


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
