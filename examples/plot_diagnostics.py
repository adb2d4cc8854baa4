"""
Which diagnostic detects which fault
====================================

The program plants ten faults in runs of six models, one at a time. The picture shows which lines of ``summary`` turn
red, and whether the fault has moved a mean by 0.3 standard deviations, or a standard deviation by 15 %, and by more
than three standard errors, compared with NUTS on the same data. The program asserts that no such run is called right.
It also makes runs without a fault, ten seeds of each model with given settings and ten with those that the warm-up
finds, and asserts that at least 57 of 60 turn no line red and end without a warning.
"""

# %%
# The results
# -----------
# All runs are SGHMC with plain reshuffled minibatches of a quarter of the rows, in coordinates that are scaled by the
# sds of NUTS, from its mean: right runs, before a fault is planted. The faults are
#
# - a step 4 times too large, batches 10 times too small, a friction of 0.05 and of 50 times the right one;
# - injected noise that is 5 % and 20 % too large;
# - N / n wrong by a factor of 2, so that each row counts twice;
# - a start 50 sds away, with next to no warm-up;
# - a chain that stands still;
# - a row that is not a number.
#
# Where the numbers of a cell are not bold the fault has not moved anything by so much, and a line may be red or not: a
# friction of 50 times the right one makes chains slow, which ``R-hat`` and the effective sample size see, and noise
# that is 5 % too large widens a posterior by 5 %.

import warnings

from gallery import parsed, parser, save, shown
import jax
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, SGMCMC, Minibatch, compare, summary
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.potential.potential import ModelPotential

SIZE = {"num_samples": (300, 500), "models": (1, 6), "faults": (4, 10), "seeds": (1, 10)}
FRICTION = 1.0
STEPS = {"network": (0.005, 240)}  # step size and steps of a draw; its coordinates are correlated, and its noise larger
USUAL = 0.02, 60
N = 2000

# %%
# Six models
# ----------


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("N", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, sigma), obs=y[rows])


def logistic(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("N", len(X)) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def poisson(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("N", len(X)) as rows:
        numpyro.sample("y", dist.Poisson(jnp.exp(X[rows] @ w)), obs=y[rows])


def hierarchy(X, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    group = numpyro.sample("group", dist.Normal(0, 1).expand([8]).to_event(1))
    with numpyro.plate("N", len(X)) as rows:
        which = X[rows, 0].astype(int)
        numpyro.sample("y", dist.Normal(mu + tau * group[which], 3.0), obs=y[rows])


def ordered(scale):
    """Two normal numbers, the smaller one first: exchangeable parts of a model are then told apart."""
    return dist.TransformedDistribution(dist.Normal(0, scale).expand([2]), dist.transforms.OrderedTransform())


def mixture(X, y):
    del X
    mu = numpyro.sample("mu", ordered(3.0))
    share = numpyro.sample("share", dist.Beta(2, 2))
    parts = dist.Categorical(probs=jnp.stack([share, 1 - share]))
    with numpyro.plate("N", len(y)) as rows:
        components = dist.Normal(jnp.broadcast_to(mu, (*rows.shape, 2)), 1.0)
        numpyro.sample("y", dist.MixtureSameFamily(parts, components), obs=y[rows])


def network(X, y):
    """Two hidden units of positive weights."""
    w = numpyro.sample("w", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
    b = numpyro.sample("b", ordered(1.0))
    v = numpyro.sample("v", dist.LogNormal(0, 0.5).expand([2]).to_event(1))
    with numpyro.plate("N", len(X)) as rows:
        hidden = jnp.tanh(2 * (X[rows, :1] * w - b))
        numpyro.sample("y", dist.Normal(hidden @ v, 0.5), obs=y[rows])


def data(name, rng):
    X = rng.normal(size=(N, 3)) @ np.array([[1, 0.5, 0], [0, 0.8, 0], [0, 0, 1]])
    linear = X @ np.array([0.5, -0.5, 0.3])
    if name == "regression":
        y = linear + rng.normal(size=N)
    elif name == "logistic":
        y = (rng.random(N) < 1 / (1 + np.exp(-linear))).astype(float)
    elif name == "poisson":
        y = rng.poisson(np.exp(linear)).astype(float)
    elif name == "hierarchy":
        X = np.arange(N)[:, None] % 8 + 0.0
        y = 1 + rng.normal(size=8)[X[:, 0].astype(int)] + 3 * rng.normal(size=N)
    elif name == "mixture":
        y = np.where(rng.random(N) < 0.3, -1.5, 1.5) + rng.normal(size=N)
    else:
        y = np.tanh(2 * (X[:, 0] + 1)) + np.tanh(2 * (X[:, 0] - 1)) + 0.5 * rng.normal(size=N)
    return X.astype(np.float32), y.astype(np.float32)


MODELS = {
    "regression": regression,
    "hierarchy": hierarchy,
    "logistic": logistic,
    "poisson": poisson,
    "mixture": mixture,
    "network": network,
}

# %%
# Ten faults
# ----------


class Loud(Underdamped):
    """Injects noise that is a share too large."""

    share = 0.0

    def O(self, phase, h, noise):
        return super().O(phase, h, jax.tree.map(lambda n: (1 + self.share) * n, noise))


class Loud5(Loud):
    share = 0.05


class Loud20(Loud):
    share = 0.2


class TwiceTheRows(Minibatch):
    """As where a model scales its likelihood by N / n itself, and N is wrong by 2."""

    def evaluate(self, potential, z, rows, gradient_state, rng_key):
        found = super().evaluate(potential, z, rows, gradient_state, rng_key)
        prior = jax.grad(potential.prior)(z, rng_key)
        return found._replace(gradient=jax.tree.map(lambda g, p: 2 * g - p, found.gradient, prior))


FAULTS = {
    "none": {},
    "step x 4": {"step": 4.0},
    "batch / 10": {"batch": 0.1},
    "friction / 20": {"friction": 0.05},
    "friction x 50": {"friction": 50.0},
    "noise + 5 %": {"dynamics": Loud5},
    "noise + 20 %": {"dynamics": Loud20},
    "N / n x 2": {"gradient": TwiceTheRows()},
    "start 50 sds away": {"start": 50.0, "num_warmup": 2},
    "a chain stands still": {"still": True},
    "a bad row": {"bad": True},
}


def given(model, sd, fault):
    """A kernel whose numbers are all given, right but for the fault."""
    step_size, steps = STEPS.get(model.__name__, USUAL)
    dynamics = fault.get("dynamics", Underdamped)(
        FRICTION * fault.get("friction", 1.0), {name: value**2 for name, value in sd.items()}
    )
    return SGMCMC(
        model,
        dynamics,
        "ABOBA",
        fault.get("gradient"),
        step_size=step_size * fault.get("step", 1.0),
        batch_size=round(N / 4 * fault.get("batch", 1.0)),
        steps_per_sample=steps,
    )


def four_chains(kernel, num_warmup, num_samples):
    return MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )


def start(reference, key, far=0.0):
    """Four draws of the reference's normal law, so many sds away."""
    mean, sd = reference["mean"], reference["sd"]
    keys = dict(zip(mean, random.split(key, len(mean))))
    return {name: mean[name] + sd[name] * (random.normal(keys[name], (4, *mean[name].shape)) + far) for name in mean}


def told(go, *args, **kwargs):
    """What a run ends with, in a sentence each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go(*args, **kwargs)
    return [str(w.message).split(".")[0] for w in caught]


def run(model, X, y, reference, args, fault, key):
    """The summary, what was said unasked, and the errors against the reference; None where the start was refused."""
    kernel = given(model, reference["sd"], fault)
    mcmc = four_chains(kernel, fault.get("num_warmup", 100), args.num_samples)
    key_start, key = random.split(key)
    if fault.get("bad"):
        y = jnp.where(jnp.arange(N) == N // 2, jnp.nan, y)
    try:
        said = told(mcmc.run, key, X, y, init_params=start(reference, key_start, fault.get("start", 0.0)))
    except ValueError:
        return None
    if fault.get("still"):
        for name, x in mcmc._states["z"].items():
            mcmc._states["z"][name] = x.at[0].set(x[0, 0])
    errors = compare(mcmc, reference["draws"])
    found = summary(mcmc, X, y)
    return (
        found,
        said,
        {
            key: max(float(np.nanmax(np.abs(line[key]), initial=0)) for line in errors.values())
            for key in ("mean", "sd")
        },
    )


def known_to(found):
    """Three standard errors of the worst mean and sd, in sds: what so few draws cannot tell from a fault."""
    errors = {"mean": found.get("score", {}), "sd": found.get("virial", {})}
    errors = {key: float(line.get("effect_error", 0.0)) for key, line in errors.items()}
    return {"mean": 3 * errors["mean"], "sd": 1.5 * errors["sd"]}  # an sd is off by half as much as its variance


def right_runs(model, X, y, reference, args, key):
    """Kind of the numbers -> for each seed the red lines, and what was said."""
    kernels = {
        "given": (given(model, reference["sd"], {}), 100),
        "found in the warm-up": (SGHMC(model, batch_size=N // 4), 500),
    }
    outcomes = {}
    for kind, (kernel, num_warmup) in kernels.items():
        mcmc = four_chains(kernel, num_warmup, args.num_samples)
        outcomes[kind] = []
        for seed in range(args.seeds):
            key_start, key_run = random.split(random.fold_in(key, seed))
            where = {"init_params": start(reference, key_start)} if kind == "given" else {}
            said = told(mcmc.run, key_run, X, y, **where)
            outcomes[kind].append({"red": red_lines(summary(mcmc, X, y)), "told": said})
    return outcomes


def red_lines(found):
    return {key: line.verdict for key, line in found.lines.items() if line.verdict in ("doubtful", "wrong")}


def by_nuts(model, X, y, key):
    """Draws, and mean and sd of the unconstrained values."""
    mcmc = MCMC(
        NUTS(model), num_warmup=500, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(key, X, y)
    potential = ModelPotential.from_model(model, (X, y), {}, None)
    z = jax.jit(jax.vmap(potential.unconstrain))(mcmc.get_samples())
    draws = {name: np.asarray(x) for name, x in mcmc.get_samples(group_by_chain=True).items()}
    moments = {of.__name__: {name: np.asarray(of(x, 0)) for name, x in z.items()} for of in (np.mean, np.std)}
    return {"draws": draws, "mean": moments["mean"], "sd": moments["std"]}


# %%
# The picture
# -----------

SHORT = {
    "refused": "refused",
    "kinetic_temperature": "T",
    "r_hat": "R-hat",
    "ess": "ESS",
    "score": "E dU",
    "virial": "E z dU",
    "configurational_temperature": "T conf",
    "inflation_by_noise": "noise",
    "inflation_by_step": "step",
    "stability": "stable",
}


def errors_of(cell):
    if max(cell["mean"], cell["sd"]) > 100:
        return "far off"
    return f"mean {cell['mean']:.2f}, sd {cell['sd']:.0%}"


def draw(table):
    names = list(table)
    figure, axes = plt.subplots(figsize=(2.6 * len(names) + 2, 8), layout="constrained")
    colours = {"right": "#D9F0E5", "doubtful": "#FBE7C2", "wrong": "#F6CDB8", "refused": "#F6CDB8"}
    for column, name in enumerate(names):
        for row, (_, cell) in enumerate(table[name].items()):
            axes.add_patch(plt.Rectangle((column, row), 1, 1, color=colours[cell["verdict"]]))
            moved = errors_of(cell) if "mean" in cell else "refused at the start"
            weight = "bold" if cell.get("moved") else "normal"
            axes.text(column + 0.5, row + 0.3, moved, ha="center", va="center", fontsize=8, weight=weight)
            red = [SHORT.get(key, key) for key in cell["red"]]
            axes.text(
                column + 0.5,
                row + 0.68,
                ", ".join(red[:4]) + (" ..." if len(red) > 4 else ""),
                ha="center",
                va="center",
                fontsize=7,
            )
    axes.set_xlim(0, len(names))
    faults = list(table[names[0]])
    axes.set_ylim(len(faults), 0)
    axes.set_xticks(np.arange(len(names)) + 0.5, names)
    axes.set_yticks(np.arange(len(faults)) + 0.5, faults)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    return figure


# %%
# The program
# -----------


def main(args):
    table, right = {}, {}
    names = list(MODELS)[: args.models]
    faults = list(FAULTS)[: args.faults + 1]
    progress = tqdm(total=len(names) * (len(faults) + 1), desc="runs")
    for k, name in enumerate(names):
        X, y = map(jnp.asarray, data(name, np.random.default_rng([args.seed, k])))
        key = random.fold_in(random.key(args.seed), k)
        reference = by_nuts(MODELS[name], X, y, key)
        table[name] = {}
        for f, fault in enumerate(faults):
            outcome = run(MODELS[name], X, y, reference, args, FAULTS[fault], random.fold_in(key, f))
            progress.update()
            if outcome is None:
                table[name][fault] = {"verdict": "refused", "red": [], "told": ["not finite at the start"]}
                continue
            found, said, errors = outcome
            known = known_to(found)
            moved = not (errors["mean"] <= 0.3 + known["mean"] and errors["sd"] <= 0.15 + known["sd"])
            red = red_lines(found)
            table[name][fault] = {"verdict": found.verdict, "red": red, "told": said, "moved": moved, **errors}
        right[name] = right_runs(MODELS[name], X, y, reference, args, random.fold_in(key, 1000))
        progress.update()
        jax.clear_caches()  # programs of six models are more than a process can map
    report(table, right)
    save(args, "diagnostics", draw(table), {"table": table, "right runs": right, "short names": SHORT})
    if shown(args):
        check(table, right)


def silent(right, kind):
    """Right runs of a kind, over all models: those that turn nothing red and end without a word, and all."""
    runs = [outcome for kinds in right.values() for outcome in kinds[kind]]
    return sum(not outcome["red"] and not outcome["told"] for outcome in runs), len(runs)


def report(table, right):
    for name, column in table.items():
        print(name)
        for fault, cell in column.items():
            moved = f"mean {cell['mean']:.2f} sd {cell['sd']:.0%}" if "mean" in cell else ""
            red = ", ".join(SHORT.get(key, key) for key in cell["red"])
            told = " | told" if cell["told"] else ""
            print(f"  {fault:22} {cell['verdict']:9} {moved:22} {'MOVED' if cell.get('moved') else '':6} {red}{told}")
        for kind, outcomes in right[name].items():
            loud = [outcome for outcome in outcomes if outcome["red"] or outcome["told"]]
            print(f"  right runs, numbers {kind}: {len(loud)} of {len(outcomes)} are not silent", *loud)


# %%
# The claims
# ----------


def check(table, right):
    for kind in next(iter(right.values())):
        quiet, every = silent(right, kind)
        assert quiet >= 0.95 * every, f"numbers {kind}: {quiet} of {every} right runs are silent"
    for name, column in table.items():
        assert column["none"]["verdict"] == "right", f"{name}: a right run is called {column['none']}"
        assert not column["none"]["told"], f"{name}: a right run ends with {column['none']['told']}"
        for fault, cell in column.items():
            assert not cell.get("moved") or cell["red"], f"{name}, {fault}: nothing turned red"


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
