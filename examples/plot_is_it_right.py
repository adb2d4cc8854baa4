"""
Is it right?
============

Stochastic-gradient MCMC has no acceptance test, so a run can look healthy and sample another distribution. Here is one
run that is right, five that are wrong in the usual ways, and what each diagnostic says of them.
"""

import warnings

from gallery import parsed, parser, save, shown
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value

from numpyro_sgmcmc import SGHMC, SGLD, ControlVariate, compare, couple, step_halving, summary

SIZE = {"rows": (4000, 10_000), "draws": (250, 500)}  # with --fast, without

# %%
# A model with two modes
# ----------------------
# A mixture of two normal distributions with known shares, 30 % and 70 %, and unknown means. With thousands of rows the
# posterior is a narrow normal distribution around the true means. It has a second mode, with the two means exchanged,
# whose probability is practically zero. The simulated data drift a little from the first row to the last, as recordings
# do.

SHARES = jnp.array([0.3, 0.7])
DRIFT = 0.2  # of the data, from the first row to the last


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)) as rows:
        means = jnp.broadcast_to(mu, (*rows.shape, 2))
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(SHARES), dist.Normal(means, 1)), obs=y[rows])


# %%
# One right run and five wrong ones
# ---------------------------------
# The right run gives the kernel nothing but a batch size. The wrong ones give it a number or a function too many. Their
# step sizes are stated in units of the largest curvature of the energy, L, about 0.7 times the number of rows.
#
# 1. *Step too large*: SGLD with h L = 0.7. Its variance is too large by a factor of 1 / (1 - h L / 2).
# 2. *Batch too small*: plain minibatches of a hundredth of the rows, with neither a control variate nor a thermostat.
#    Their noise heats the chains.
# 3. *Short warm-up*: a start 40 standard deviations away, a cautious step, and only five draws of warm-up.
# 4. *Another mode*: one of the four chains starts in the second mode, and stays there.
# 5. *Half of the rows*: a row scheme with a bug never reads the second half of the data.


def first_half(rng_key, t, size, batch_size):
    """A row scheme that should say ``size`` and says ``size // 2``."""
    return random.randint(random.fold_in(rng_key, t), (batch_size,), 0, size // 2)


RUNS = ("right", "step too large", "batch too small", "short warm-up", "another mode", "half of the rows")


def kernels(mode, rows, draws):
    L = 0.7 * rows
    right = {
        "step_size": 0.1 / L**0.5,
        "friction": L**0.5,
        "batch_size": rows // 20,
        "steps_per_sample": 60,
        "gradient": ControlVariate(mode),
    }
    return {
        "right": SGHMC(model, batch_size=rows // 20),
        "step too large": SGLD(
            model, step_size=0.7 / L, batch_size=rows // 20, steps_per_sample=10, gradient=ControlVariate(mode)
        ),
        "batch too small": SGHMC(model, **right | {"gradient": None, "batch_size": rows // 100}),
        "short warm-up": SGHMC(model, **right | {"step_size": 0.003 / L**0.5, "steps_per_sample": 5000 // draws}),
        "another mode": SGHMC(model, **right | {"gradient": None, "batch_size": rows // 2}),
        "half of the rows": SGHMC(
            model, **right | {"gradient": None, "batch_size": rows // 4, "step_size": 0.03 / L**0.5, "rows": first_half}
        ),
    }


def starts(mode, rows):
    """Where the four chains of each run start."""
    four = jnp.broadcast_to(mode["mu"], (4, 2))
    exchanged = jnp.where(jnp.arange(4)[:, None] == 0, four[:, ::-1], four)
    far = {"short warm-up": four + 50 / rows**0.5, "another mode": exchanged}
    return {name: {"mu": far.get(name, four)} for name in RUNS}


def sample(kernel, start, num_warmup, y, args):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=args.draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(random.key(args.seed), y, init_params=start)
    return mcmc, [str(w.message) for w in caught]


# %%
# Four questions
# --------------
# ``summary`` asks whether the draws are those of the posterior, by identities that hold for every posterior.
# ``step_halving`` goes on with half of the step and looks for a change. ``couple`` runs each chain beside one with
# exact gradients and bounds the distance between them. ``compare`` needs a reference, here NUTS. Where that is
# affordable there is no better test.

SHOWN = {
    "r_hat": "R-hat",
    "kinetic_temperature": "kinetic temperature",
    "score": "E[dU/dz] = 0",
    "virial": "E[(z - m) dU/dz] = 1",
    "inflation_by_noise": "inflation by noise",
    "inflation_by_step": "inflation by step",
}


def ask(mcmc, y, reference, key):
    """Name of a diagnostic -> (verdict, number), and the verdict of ``summary``."""
    table = summary(mcmc, y)
    told = {}
    for line, name in SHOWN.items():
        told[name] = (table[line]["verdict"], table[line]["value"]) if line in table else ("", None)
    told["summary"] = (table.verdict, None)
    found = step_halving(mcmc, key, y)
    told["step_halving"] = (found.verdict, found["mu"]["bias"])
    found = couple(mcmc, key, y, num_samples=100)
    told["couple"] = (found.verdict, np.max(found.bound["mu"]))
    found = compare(mcmc, reference)
    error = max(np.abs(found["mu"]["mean"]).max(), np.abs(found["mu"]["sd"]).max())
    told["compare with NUTS"] = (found.verdict, error)
    return told


# %%
# What they say
# -------------
# The upper panels show the draws of the second mean and, as a line, the posterior by NUTS; draws further away than five
# standard deviations are in the last bar. The table has the number that each diagnostic gives: green where it finds
# nothing that is certain, orange where it doubts, red where it is certain. The identities of the score are given by
# their z-scores, the last three rows in standard deviations.
#
# No diagnostic sees every fault:
#
# - R-hat sees chains that differ from each other, in the short warm-up and in the other mode. It does not see a bias
#   that all chains share.
# - ``step_halving`` and the predicted inflations see the step that is too large and the batch that is too small. They
#   do not see the missing rows, which no smaller step brings back.
# - ``couple`` sees errors of the gradient: the small batch and the missing rows. It does not see the error of the step,
#   nor a chain in another mode.
# - The identities of the score are computed with rows that the run has not chosen, so they see the missing rows.
#
# ``summary`` calls none of the wrong runs right. Call it after every run. If its verdict is not "right", its lines and
# the other functions show why. The small batch and the other mode also end with a warning, without being asked. What
# remains unseen is a mode that no chain has visited, and a model that is not the one you mean.


COLOURS = {"ok": "#D9F0E5", "right": "#D9F0E5", "doubtful": "#FBE7C2", "wrong": "#F6CDB8", "": "white"}


def draw(runs, told, reference):
    ref = reference[..., 1].ravel()
    fig = plt.figure(figsize=(12, 6.5), layout="constrained")
    top, bottom = fig.subfigures(2, 1, height_ratios=(2, 3))
    grid = np.linspace(-5, 5, 200)
    for ax, (name, mcmc) in zip(top.subplots(1, len(runs)), runs.items()):
        z = (np.asarray(mcmc.get_samples()["mu"])[:, 1] - ref.mean()) / ref.std()
        ax.hist(np.clip(z, -5, 5), 40, range=(-5, 5), density=True, color="#0072B2", alpha=0.6)
        ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="black", lw=1)
        ax.set(title=name, yticks=[], xlabel="sds of the posterior")
        ax.spines[["top", "right", "left"]].set_visible(False)
    ax = bottom.subplots()
    rows = list(told["right"])
    for i, row in enumerate(rows):
        for j, name in enumerate(told):
            verdict, value = told[name][row]
            ax.add_patch(plt.Rectangle((j, i), 1, 1, fc=COLOURS[verdict], ec="white"))
            text = verdict or "-" if value is None else f"{round(value, 2) + 0.0:.2f}"
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center")
    ax.set(xlim=(0, len(told)), ylim=(len(rows), 0))
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.set_xticks(np.arange(len(told)) + 0.5, list(told))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return fig


# %%
# The program
# -----------


def main(args):
    rng = np.random.default_rng(args.seed)
    means = np.where(rng.random(args.rows) < SHARES[0], -2.0, 2.0) + DRIFT * np.linspace(-0.5, 0.5, args.rows)
    y = jnp.asarray(means + rng.normal(size=args.rows), jnp.float32)
    nuts = MCMC(
        NUTS(model, init_strategy=init_to_value(values={"mu": jnp.array([-2.0, 2.0])})),
        num_warmup=300,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    nuts.run(random.key(2), y)
    reference = np.asarray(nuts.get_samples(group_by_chain=True)["mu"])
    mode = {"mu": jnp.asarray(reference.mean((0, 1)))}
    start, runs, told, warned = starts(mode, args.rows), {}, {}, {}
    for k, (name, kernel) in enumerate(kernels(mode, args.rows, args.draws).items()):
        num_warmup = {"right": 2 * args.draws, "short warm-up": 5}.get(name, 100)
        runs[name], warned[name] = sample(kernel, start[name], num_warmup, y, args)
        told[name] = ask(runs[name], y, {"mu": reference}, random.fold_in(random.key(3), k))
        print(name, *(f"  {line}: {verdict} {value or ''}" for line, (verdict, value) in told[name].items()), sep="\n")
        print(*warned[name], sep="\n")
    metrics = {name: {line: list(said) for line, said in lines.items()} for name, lines in told.items()}
    save(args, "is_it_right", draw(runs, told, reference), {"told": metrics, "warnings": warned})
    if shown(args):
        check(told, warned)


# %%
# The claims
# ----------


def check(told, warned):
    red = {name: {line for line, (verdict, _) in lines.items() if verdict == "wrong"} for name, lines in told.items()}
    doubted = {line for line, (verdict, _) in told["right"].items() if verdict not in ("ok", "right", "")}
    assert not doubted and not warned["right"], f"the right run is called {doubted}, {warned['right']}"
    for name in RUNS[1:]:
        assert told[name]["summary"][0] != "right", f"summary calls {name} right"
        assert "compare with NUTS" in red[name], f"{name} is near the draws of NUTS"
    assert {name for name in RUNS if "step_halving" in red[name]} == {"step too large", "batch too small"}, red
    assert {name for name in RUNS if "couple" in red[name]} == {"batch too small", "half of the rows"}, red
    assert {name for name in RUNS if told[name]["R-hat"][0] != "ok"} == {"short warm-up", "another mode"}, red
    assert "inflation by step" in red["step too large"] and "kinetic temperature" in red["batch too small"], red
    assert "E[dU/dz] = 0" in red["half of the rows"], red
    assert warned["batch too small"] and warned["another mode"], warned


if __name__ == "__main__":
    main(parsed(parser(__doc__, **SIZE), **SIZE))
