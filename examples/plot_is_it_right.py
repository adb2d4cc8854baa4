"""
Is it right?
============

Stochastic-gradient MCMC has no acceptance test, so a run can look healthy and still sample the wrong distribution. This
tutorial makes one correct run and five that are wrong in typical ways, and shows what each diagnostic reports.
"""

import warnings

from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value

from numpyro_sgmcmc import SGHMC, SGLD, ControlVariate, compare, couple, step_halving, summary

ROWS, DRAWS = 4000, 250

# %%
# A model with two modes
# ----------------------
# The model is a mixture of two normal distributions with known weights, 30 % and 70 %, and unknown means. With
# thousands of rows the posterior is a narrow normal distribution around the true means. It has a second mode, with the
# two means exchanged, whose probability is practically zero. The simulated data drift slightly from the first row to
# the last, as recorded data often do.

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
# The right run sets only the batch size. The wrong runs set more, and badly. Let L be the largest curvature of the
# potential, about 0.7 times the number of rows.
#
# 1. *Step too large*: SGLD with step size 0.7 / L. This multiplies the variance by 1 / (1 - 0.7 / 2) = 1.5.
# 2. *Batch too small*: minibatches of a hundredth of the rows, with neither a control variate nor a thermostat. Their
#    noise makes the posterior too wide.
# 3. *Short warm-up*: a start 40 standard deviations away, a small step size, and only five draws of warm-up.
# 4. *Another mode*: one of the four chains starts in the second mode and stays there.
# 5. *Half of the rows*: a row scheme with a bug never reads the second half of the data.


def first_half(rng_key, t, size, batch_size):
    """A row scheme that should use ``size`` but uses ``size // 2``."""
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


def sample(kernel, start, num_warmup, y):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=DRAWS,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(random.key(0), y, init_params=start)
    return mcmc, [str(w.message) for w in caught]


# %%
# Four questions
# --------------
# * ``summary`` checks identities that hold for draws from every posterior.
# * ``step_halving`` continues the run with half the step size and reports what changes.
# * ``couple`` runs each chain together with one that has exact gradients, and bounds the distance between the two.
# * ``compare`` needs a reference, here NUTS. If you can afford one, there is no better test.

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
# The runs
# --------
# All six runs, and the answers of the four functions. The warnings with which runs end are printed, too.

rng = np.random.default_rng(0)
means = np.where(rng.random(ROWS) < SHARES[0], -2.0, 2.0) + DRIFT * np.linspace(-0.5, 0.5, ROWS)
y = jnp.asarray(means + rng.normal(size=ROWS), jnp.float32)
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

start, runs, told, warned = starts(mode, ROWS), {}, {}, {}
for k, (name, kernel) in enumerate(kernels(mode, ROWS, DRAWS).items()):
    num_warmup = {"right": 2 * DRAWS, "short warm-up": 5}.get(name, 100)
    runs[name], warned[name] = sample(kernel, start[name], num_warmup, y)
    told[name] = ask(runs[name], y, {"mu": reference}, random.fold_in(random.key(3), k))
    print(f"{name}: summary says {told[name]['summary'][0]}", *warned[name], sep="\n    ")

# %%
# The answers
# -----------
# The upper panels show the draws of the second mean, and the posterior by NUTS as a black line. Draws further away than
# five standard deviations are in the outermost bars. The table shows the value of each diagnostic: green where it finds
# nothing certain, orange where it is in doubt, red where it is certain that the run is wrong. The score identities show
# their z-scores; the last three rows are in standard deviations.


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


draw(runs, told, reference)
plt.show()

# %%
# What each diagnostic sees
# -------------------------
# No diagnostic detects every fault:
#
# - R-hat detects chains that differ from each other: the short warm-up and the other mode. It does not detect a bias
#   that all chains share.
# - ``step_halving`` and the predicted inflations detect the step that is too large and the batch that is too small.
#   They do not detect the missing rows, which a smaller step does not bring back.
# - ``couple`` detects errors of the gradient: the small batch and the missing rows. It detects neither the error of the
#   step nor a chain in another mode.
# - The score identities use rows that the run did not choose, so they detect the missing rows.
#
# ``summary`` calls none of the wrong runs right. **Call it after every run.** If its verdict is not "right", its lines
# and the other functions show why. The small batch and the other mode end with a warning even if you do not ask. Two
# faults remain undetected: a mode that no chain has visited, and a model that is not the one you mean.
#
# The program ends by asserting these claims.


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


check(told, warned)
