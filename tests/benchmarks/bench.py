"""What the benchmarks share: clocks side by side, the model, the limit, tables."""

import argparse
import json
import os
from pathlib import Path
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

os.environ.setdefault("JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS", "1")  # as docs/large_data.md recommends

import jax
from jax import lax, random
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

H = 1e-6  # step size where only its cost matters


class Lap(NamedTuple):
    seconds: float  # compilation taken out
    compiling: float


_compiling: list[tuple[float, float]] = []  # beginning and end, as JAX itself reports them


def _on_event(event, duration, **kwargs):
    if event.startswith("/jax/core/compile/"):
        now = time.perf_counter()
        _compiling.append((now - duration, now))


jax.monitoring.register_event_duration_secs_listener(_on_event)


def lap(fn):
    """One call of ``fn``, until its arrays are there."""
    _compiling.clear()
    begin = time.perf_counter()
    jax.block_until_ready(fn())
    whole = time.perf_counter() - begin
    # traces are nested in each other: the length of the union of the intervals
    compiling, reached = 0.0, begin
    for first, last in sorted(_compiling):
        compiling += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return Lap(whole - compiling, compiling)


def side_by_side(cells, repeats=5):
    """Calls in strict alternation, after one of each: name -> laps."""
    for fn in cells.values():
        lap(fn)
    laps = {name: [] for name in cells}
    for _ in range(repeats):
        for name, fn in cells.items():
            laps[name].append(lap(fn))
    return laps


def ratio(laps, name, base):
    """Median over the rounds of one time over the other."""
    return statistics.median(a.seconds / b.seconds for a, b in zip(laps[name], laps[base]))


def seconds(laps, name):
    return statistics.median(lap.seconds for lap in laps[name])


def compiling(laps, name):
    return statistics.median(lap.compiling for lap in laps[name])


def table(header, rows):
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


# -- the model -----------------------------------------------------------------------------------------------------


def logistic(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("N", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


def simulated(N, d, seed=0):
    keys = random.split(random.key(seed), 3)
    X = random.normal(keys[0], (N, d))
    w = 0.5 * random.normal(keys[1], (d,)) / d**0.5
    return X, (random.uniform(keys[2], (N,)) < jax.nn.sigmoid(X @ w)).astype(jnp.float32)


def random_rows(N, B):
    return lambda key: random.randint(key, (B,), 0, N)


def neighbours(N, B):
    return lambda key: (random.randint(key, (), 0, N) + jnp.arange(B)) % N


def in_transitions(step, carry, steps, every=100):
    """A scan over ``steps`` steps that keeps the position after each ``every``, as a run through MCMC does."""

    def transition(carry, _):
        carry, _ = lax.scan(lambda c, _: (step(c), None), carry, None, length=every)
        return carry, carry[0]

    return lax.scan(transition, carry, None, length=steps // every)


def hand_written_sgld(X, y, rows, B, steps, chains=None):
    """The limit: stochastic gradient Langevin dynamics in a scan, with no library around it; chains by ``vmap``."""
    N, d = X.shape

    @jax.jit
    def loop(key, X, y):
        def step(carry):
            w, key = carry
            key, key_rows, key_noise = random.split(key, 3)
            batch = rows(key_rows)

            def energy(w):
                logits = X[batch] @ w
                return 0.5 * w @ w + N / B * jnp.sum(jax.nn.softplus(logits) - y[batch] * logits)

            return w - H * jax.grad(energy)(w) + jnp.sqrt(2 * H) * random.normal(key_noise, (d,)), key

        if chains is None:
            return in_transitions(step, (jnp.zeros(d), key), steps)
        return in_transitions(jax.vmap(step), (jnp.zeros((chains, d)), random.split(key, chains)), steps)

    return lambda: loop(random.key(1), X, y)


def stepping(kernel, args, chains=None, start=None):
    """A function that goes on by one transition, compiled once: the cost of a kernel without its host."""
    key = random.key(2) if chains is None else random.split(random.key(2), chains)
    state = [kernel.init(key, 0, start, args, {})]
    go_on = jax.jit(lambda state, args: kernel.sample(state, args, {}), donate_argnums=0)

    def fn():
        state[0] = go_on(state[0], args)
        return state[0].z

    return fn


# -- the programs --------------------------------------------------------------------------------------------------


def in_its_own_process(program, *cell, **environment):
    """What ``program --one`` prints for a cell, as JSON."""
    command = [sys.executable, program, "--one", json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise RuntimeError(f"{program} fails at {cell}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def arguments(description):
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("--fast", action="store_true", help="small sizes: shows that the program runs")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), metavar="FOLDER")
    return parser


def kept(args, name):
    """The numbers of an earlier run, where ``--only`` a part of it is run again."""
    path = args.out / f"{name}.json"
    return json.loads(path.read_text()) if args.only and path.exists() else {}


def save(args, name, text, numbers):
    """A page of Markdown and its numbers, for ``report.py``."""
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.md").write_text(text)
    (args.out / f"{name}.json").write_text(json.dumps(numbers, indent=1, default=float) + "\n")
    print(text)
