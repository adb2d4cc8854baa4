"""
Which diagnostic detects which fault
====================================

The program plants faults in runs of small models, one at a time and with several keys. The table says how many runs a
fault has moved, compared with NUTS on the same data: a mean by 0.3 standard deviations, or a standard deviation by
15 %, and by more than three standard errors. Beside it stands how many runs are told unasked, by the warning at the end
of ``mcmc.run``, and how many by ``summary`` with the data. Runs without a fault must not be told.
"""

# %%
# The results
# -----------
# All runs are SGHMC with plain reshuffled minibatches of a quarter of the rows, in coordinates that are scaled by the
# sds of NUTS, from its mean: right runs, before a fault is planted. The faults are
#
# - of the step: 20 times too large, in a word whose position is not exact;
# - of the noise: batches 10 times too small for the friction, so that their noise is not balanced; a temperature of 1.2
#   and of 1.44;
# - of the gradient: each row counts twice; a tenth of the rows counts four times; the prior is scaled by N / n;
# - of the dynamics: its forces move one mean by 0.3 sd, or widen one sd by 15 %;
# - of the chains: a friction 50 times too large; a start 50 sds away with next to no warm-up; one that stands still;
#   one in another mode;
# - of the data: a row that is not a number.
#
# "Unasked" is what a run tells with ``check=True``, as every run does whose step size the warm-up chooses. "Without
# check" is what a run with a given step size tells by default. The gradient of the check is that of the kernel, so a
# wrong gradient shows only with the data.

import warnings

from gallery import parsed, parser, save, shown
import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_uniform, init_to_value
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, SGMCMC, Minibatch, compare, settings, summary
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.report_hook import report as tell

SIZE = {"num_samples": (300, 800), "models": (1, 3), "faults": (4, 14), "seeds": (1, 5)}
FRICTION = 1.0
# step size and steps of a draw: the hierarchy mixes slowly; the network has correlated coordinates, and larger noise
STEPS = {"hierarchy": (0.05, 60), "network": (0.005, 240)}
USUAL = 0.05, 25
N = 2000

# %%
# The models
# ----------
# The first three are the default.


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


def square(X, y):
    """Two modes, which differ by the sign of ``a``."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("N", len(X)) as rows:
        numpyro.sample("y", dist.Normal(a**2 * X[rows, 0] + b * X[rows, 1], 1.0), obs=y[rows])


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
    if name in ("regression", "square"):
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
    "square": square,
    "logistic": logistic,
    "poisson": poisson,
    "mixture": mixture,
    "network": network,
}

NUTS_STARTS = {"square": {"a": 0.7, "b": -0.5}}  # of a mode
GLOBAL = {"hierarchy": "mu"}  # the site of a fault of one coordinate; otherwise the first one

# %%
# The faults
# ----------


class Hot(Underdamped):
    """Injects noise of a temperature that is too high."""

    times = 1.0

    def O(self, phase, h, noise):
        return super().O(phase, h, jax.tree.map(lambda n: self.times**0.5 * n, noise))


class Hot12(Hot):
    times = 1.2


class Hot144(Hot):
    times = 1.44


class Forced(Underdamped):
    """Adds a linear force, whose matrix and offset are class variables."""

    matrix, offset = np.zeros((1, 1)), np.zeros(1)

    def B(self, phase, h, gradient):
        z, unravel = ravel_pytree(phase.z)
        g, _ = ravel_pytree(gradient)
        return super().B(phase, h, unravel(g + self.matrix @ z + self.offset))


class Trapped(Underdamped):
    """Moves no more from a place that is 5 sds away."""

    place = np.zeros(1)

    def A(self, phase, h):
        z, _ = ravel_pytree(phase.z)
        moved = super().A(phase, h)
        return moved._replace(z=jax.tree.map(lambda new, old: jnp.where(z[0] > self.place, old, new), moved.z, phase.z))


class TwiceTheRows(Minibatch):
    """As where a model scales its likelihood by N / n itself, and N is wrong by 2."""

    rows, prior = 2.0, 1.0

    def evaluate(self, potential, z, rows, gradient_state, rng_key):
        found = super().evaluate(potential, z, rows, gradient_state, rng_key)
        of_prior = jax.grad(potential.prior)(z, rng_key)
        both = lambda g, p: self.rows * (g - p) + self.prior * p  # noqa: E731
        return found._replace(gradient=jax.tree.map(both, found.gradient, of_prior))


class ScaledPrior(TwiceTheRows):
    """As where a loop over batches scales the whole log density by N / n."""

    rows, prior = 1.0, 4.0


class HeavyRows(Minibatch):
    """The first tenth of the rows counts four times."""

    def evaluate(self, potential, z, rows, gradient_state, rng_key):
        weights = {"N": jnp.where(rows["N"] < N // 10, 4.0, 1.0)}
        return super().evaluate(potential.using_rows(rows, weights=weights), z, rows, gradient_state, rng_key)


FAULTS = {
    "none": {},
    "step x 20": {"step": 20.0, "word": "OBABO"},
    "batch / 10, its noise not balanced": {"batch": 0.1},
    "temperature 1.2": {"dynamics": Hot12},
    "temperature 1.44": {"dynamics": Hot144},
    "N / n x 2": {"gradient": TwiceTheRows()},
    "a tenth of the rows counts 4 times": {"gradient": HeavyRows()},
    "prior scaled by N / n": {"gradient": ScaledPrior()},
    "a mean moved by 0.3 sd": {"mean": 0.3},
    "an sd 15 % too large": {"sd": 1.15},
    "friction x 50": {"friction": 50.0},
    "start 50 sds away, warm-up of 2 draws": {"start": 50.0, "num_warmup": 2},
    "a chain stands still": {"still": 6.0},
    "a chain in another mode": {"mode": -1.0},
    "a bad row": {"bad": True},
}


def forced(reference, where, mean, sd):
    """
    The force under which a normal law z ~ N(m, S) becomes that of m + T (z - m) + d e, where T widens coordinate e.
    """
    flat, S = reference["flat"], np.cov(reference["flat"].T)
    precision, e = np.linalg.inv(S), np.eye(len(S))[where]
    back = np.diag(1 - (1 - 1 / sd) * e)
    wide = back @ precision @ back
    center = flat.mean(0) + mean * np.sqrt(S[where, where]) * e
    offset = precision @ flat.mean(0) - wide @ center
    parts = {"matrix": wide - precision, "offset": offset}
    return type("Planted", (Forced,), {name: part.astype(np.float32) for name, part in parts.items()})


def given(model, reference, fault):
    """A kernel whose numbers are all given, right but for the fault."""
    step_size, steps = STEPS.get(model.__name__, USUAL)
    dynamics = fault.get("dynamics", Underdamped)
    if "mean" in fault or "sd" in fault:
        where = reference["sites"].index(GLOBAL.get(model.__name__, reference["sites"][0]))
        dynamics = forced(reference, where, fault.get("mean", 0.0), fault.get("sd", 1.0))
    if "still" in fault:
        first = reference["flat"][:, 0]
        dynamics = type("Planted", (Trapped,), {"place": float(first.mean() + 5 * first.std())})
    return SGMCMC(
        model,
        dynamics(FRICTION * fault.get("friction", 1.0), {name: sd**2 for name, sd in reference["sd"].items()}),
        fault.get("word", "ABOBA"),
        fault.get("gradient"),
        step_size=step_size * fault.get("step", 1.0),
        batch_size=round(N / 4 * fault.get("batch", 1.0)),
        steps_per_sample=steps,
        check=True,
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


def start(reference, key, fault):
    """Four draws of the reference's normal law, so many sds away, or one of them."""
    mean, sd = reference["mean"], reference["sd"]
    keys = dict(zip(mean, random.split(key, len(mean))))
    far = fault.get("start", 0.0) + jnp.array([fault.get("still", 0.0), 0, 0, 0])
    sign = jnp.array([fault.get("mode", 1.0), 1, 1, 1])
    found = {}
    for name in mean:
        of_chain = (4, *[1] * mean[name].ndim)
        normal = random.normal(keys[name], (4, *mean[name].shape)) * (fault.get("still") is None)
        found[name] = mean[name] + sd[name] * (normal + far.reshape(of_chain))
        found[name] = found[name] * (sign.reshape(of_chain) if name == "a" else 1)
    return found


def told(go, *args, **kwargs):
    """What a run ends with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go(*args, **kwargs)
    return [str(w.message) for w in caught if str(w.message).startswith("the draws are")]


def run(mcmc, X, y, reference, fault, key):
    """The summary, what is told with and without the check, and the errors; None where the start was refused."""
    key_start, key = random.split(key)
    if fault.get("bad"):
        y = jnp.where(jnp.arange(N) == N // 2, jnp.nan, y)
    try:
        said = told(mcmc.run, key, X, y, init_params=start(reference, key_start, fault))
    except ValueError:
        return None
    monitor = mcmc.get_extra_fields(group_by_chain=True)["monitor"]
    without = told(tell, monitor._replace(gradients=0 * monitor.gradients), mcmc.last_state.averages, 4)
    found = summary(mcmc, X, y)
    errors = compare(mcmc, reference["draws"])
    errors = {
        key: max(float(np.nanmax(np.abs(line[key]), initial=0)) for line in errors.values()) for key in ("mean", "sd")
    }
    known = known_to(found)
    moved = not (errors["mean"] <= 0.3 + known["mean"] and errors["sd"] <= 0.15 + known["sd"])
    return {
        "verdict": found.verdict,
        "red": red_lines(found),
        "told": said,
        "without": without,
        "moved": moved,
    } | errors


def known_to(found):
    """Three standard errors of the worst mean and sd, in sds: what so few draws cannot tell from a fault."""
    errors = {"mean": found.get("score", {}), "sd": found.get("virial", {})}
    errors = {key: float(line.get("effect_error", 0.0)) for key, line in errors.items()}
    # an sd is off by half as much as its variance; the error of a broken run is not known, and is no excuse
    return {"mean": min(3 * errors["mean"], 0.3), "sd": min(1.5 * errors["sd"], 0.15)}


def right_runs(model, X, y, args, key):
    """For each seed of a run with numbers that the warm-up finds, the red lines, and what was said."""
    outcomes = []
    mcmc = four_chains(SGHMC(model, batch_size=N // 4), 500, args.num_samples)
    for seed in range(args.seeds):
        said = told(mcmc.run, random.fold_in(key, seed), X, y)
        verdicts = [settings(mcmc)["verdict"], (found := summary(mcmc, X, y)).verdict]
        outcomes.append({"red": red_lines(found), "told": said, "verdicts": verdicts})
    return outcomes


def red_lines(found):
    return {key: line.verdict for key, line in found.lines.items() if line.verdict in ("doubtful", "wrong")}


def by_nuts(model, X, y, key):
    """Draws, and the unconstrained values, their mean and sd."""
    values = NUTS_STARTS.get(model.__name__)
    strategy = init_to_value(values=values) if values else init_to_uniform
    mcmc = MCMC(
        NUTS(model, init_strategy=strategy),
        num_warmup=500,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, X, y)
    potential = ModelPotential.from_model(model, (X, y), {}, None)
    z = jax.jit(jax.vmap(potential.unconstrain))(mcmc.get_samples())
    draws = {name: np.asarray(x) for name, x in mcmc.get_samples(group_by_chain=True).items()}
    moments = {of.__name__: {name: np.asarray(of(x, 0)) for name, x in z.items()} for of in (np.mean, np.std)}
    flat = np.concatenate([np.asarray(z[name]).reshape(4000, -1) for name in sorted(z)], 1)
    sites = [name for name in sorted(z) for _ in range(z[name][0].size)]
    return {"draws": draws, "mean": moments["mean"], "sd": moments["std"], "flat": flat, "sites": sites}


# %%
# The picture
# -----------

SHORT = {
    "refused": "refused",
    "kinetic_temperature": "T",
    "run_scores": "E during the run",
    "r_hat": "R-hat",
    "ess": "ESS",
    "spread": "widths",
    "score": "E dU",
    "virial": "E z dU",
    "configurational_temperature": "T conf",
    "inflation_by_noise": "noise",
    "inflation_by_step": "step",
    "stability": "stable",
}
COUNTED = {"moved": "moved", "told": "unasked", "without": "without check", "seen": "with the data"}


def counted(cells):
    """Of the runs of a fault, how many it has moved and how many are told in which way; None: refused at the start."""
    run = [cell | {"seen": cell["verdict"] in ("doubtful", "wrong")} for cell in cells if cell]
    return {key: sum(bool(cell[key]) for cell in run) for key in COUNTED} if run else None


def draw(table):
    names = list(table)
    figure, axes = plt.subplots(figsize=(3.4 * len(names) + 2, 8), layout="constrained")
    for column, name in enumerate(names):
        for row, (_, cells) in enumerate(table[name].items()):
            found, n = counted(cells), len(cells)
            text = "not planted" if not n else "refused at the start" if found is None else ""
            colour = "#D9F0E5"
            if found:
                missed = found["moved"] - min(found["seen"], found["told"])
                colour = "#F6CDB8" if missed > 0 else colour
                text = ", ".join(f"{word} {found[key]}" for key, word in COUNTED.items()) + f" of {n}"
            axes.add_patch(plt.Rectangle((column, row), 1, 1, fc=colour if cells else "white", ec="white"))
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
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
    jax.config.update("jax_compilation_cache_dir", str(args.out / "compiled"))  # a summary is compiled anew each time
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    table, right = {}, {}
    names = list(MODELS)[: args.models]
    faults = list(FAULTS)[: args.faults + 1]
    progress = tqdm(total=len(names) * (len(faults) + 1), desc="runs")
    for k, name in enumerate(names):
        X, y = map(jnp.asarray, data(name, np.random.default_rng([args.seed, k])))
        key, model = random.fold_in(random.key(args.seed), k), MODELS[name]
        reference = by_nuts(model, X, y, key)
        table[name] = {}
        for f, fault in enumerate(faults):
            of = FAULTS[fault]
            mcmc = four_chains(given(model, reference, of), of.get("num_warmup", 100), args.num_samples)
            planted = fault == "none" or ("mode" in of) == (name == "square")  # a model of two modes, for one fault
            keys = random.split(random.fold_in(key, f), args.seeds * planted)
            table[name][fault] = [run(mcmc, X, y, reference, of, key) for key in keys]
            progress.update()
            jax.clear_caches()  # programs of so many kernels are more than a process can map
        right[name] = right_runs(model, X, y, args, random.fold_in(key, 1000))
        progress.update()
    report(table, right)
    counts = {name: {fault: counted(cells) for fault, cells in column.items()} for name, column in table.items()}
    numbers = {"table": table, "counts": counts, "right runs": right, "short names": SHORT, "columns": COUNTED}
    save(args, "diagnostics", draw(table), numbers)
    if shown(args):
        check(table, right)


def report(table, right):
    for name, column in table.items():
        print(name)
        for fault, cells in column.items():
            for cell in cells:
                moved = f"mean {cell['mean']:.2f} sd {cell['sd']:.0%}" if cell else ""
                red = ", ".join(SHORT.get(key, key) for key in cell["red"]) if cell else "refused at the start"
                told = f" | told: {cell['told'][0]}" if cell and cell["told"] else ""
                print(f"  {fault:38} {moved:22} {'MOVED' if cell and cell['moved'] else '':6} {red}{told}")
        for outcome in right[name]:
            print("  a right run, numbers found in the warm-up:", outcome)


# %%
# The claims
# ----------


def check(table, right):
    for name, column in table.items():
        for cell in column["none"]:
            assert cell["verdict"] == "right" and not cell["told"], f"{name}: a right run is called {cell}"
        for outcome in right[name]:
            assert outcome["verdicts"] == ["right", "right"] and not outcome["told"], f"{name}: {outcome}"
        for fault, cells in column.items():
            missed = [cell for cell in cells if cell and cell["moved"] and not cell["red"]]
            assert not missed, f"{name}, {fault}: nothing turned red in {missed}"


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    main(parsed(arguments, **SIZE))
