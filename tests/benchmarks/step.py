"""Cost of a step: through MCMC, against the hand-written scan and BlackJAX, over N, B and d."""

import itertools
import json

from bench import (
    H,
    Lap,
    arguments,
    compiling,
    hand_written_sgld,
    in_its_own_process,
    in_transitions,
    lap,
    logistic,
    neighbours,
    random_rows,
    ratio,
    save,
    seconds,
    side_by_side,
    simulated,
    table,
)
import blackjax
from blackjax.sgmcmc.gradients import grad_estimator
import jax
from jax import random
import jax.numpy as jnp
from numpyro.infer import MCMC
from tqdm import tqdm

from numpyro_sgmcmc import SGLD, Reshuffled, WithReplacement

SECONDS = 0.4  # of one lap
LARGEST = 1e8  # N d, 0.4 GB
ROWS = {
    "random": WithReplacement(),
    "reshuffled": Reshuffled(),
    "contiguous": Reshuffled(contiguous=True),
}


def through_mcmc(X, y, B, steps, rows, bar=False, every=100):
    kernel = SGLD(logistic, step_size=H, batch_size=B, steps_per_sample=every, rows=rows)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=steps // every, progress_bar=bar)

    def fn():
        mcmc.run(random.key(3), X, y)
        return mcmc.get_samples()

    return fn


def blackjax_step(X, y, B):
    N, d = X.shape
    logprior = lambda w: -0.5 * w @ w  # noqa: E731

    def loglikelihood(w, row):
        x, y = row
        return y * (x @ w) - jax.nn.softplus(x @ w)

    sgld = blackjax.sgld(grad_estimator(logprior, loglikelihood, N))
    rows = random_rows(N, B)

    def step(carry, X, y):
        w, key = carry
        key, key_rows, key_noise = random.split(key, 3)
        batch = rows(key_rows)
        return sgld.step(key_noise, w, (X[batch], y[batch]), H), key

    return step, (jnp.zeros(d), random.key(4))


def blackjax_scan(X, y, B, steps):
    step, start = blackjax_step(X, y, B)
    loop = jax.jit(lambda start, X, y: in_transitions(lambda carry: step(carry, X, y), start, steps))
    return lambda: loop(start, X, y)


def cell(N, B, d, repeats):
    X, y = simulated(N, d)
    trial = hand_written_sgld(X, y, random_rows(N, B), B, 1000)
    lap(trial)
    steps = max(1000, round(SECONDS / (lap(trial).seconds / 1000), -2))
    steps = int(min(steps, 100_000))
    cells = {
        "hand": hand_written_sgld(X, y, random_rows(N, B), B, steps),
        "hand, neighbours": hand_written_sgld(X, y, neighbours(N, B), B, steps),
        "blackjax": blackjax_scan(X, y, B, steps),
        **{name: through_mcmc(X, y, B, steps, rows) for name, rows in ROWS.items()},
    }
    # what a run costs before its first step is taken out: one of a single transition
    cells["short"] = through_mcmc(X, y, B, 100, ROWS["random"])
    laps = side_by_side(cells, repeats)
    for name in ROWS:
        laps[name] = [
            Lap((whole.seconds - start.seconds) * steps / (steps - 100), whole.compiling)
            for whole, start in zip(laps[name], laps["short"])
        ]
    return {
        "N": N,
        "B": B,
        "d": d,
        "steps": steps,
        "us": seconds(laps, "hand") / steps * 1e6,
        "compile": compiling(laps, "random"),
        "random": ratio(laps, "random", "hand"),
        "reshuffled": ratio(laps, "reshuffled", "hand"),
        "contiguous": ratio(laps, "contiguous", "hand, neighbours"),
        "random / blackjax": ratio(laps, "random", "blackjax"),
        "contiguous / blackjax": ratio(laps, "contiguous", "blackjax"),
    }


def main(args):
    sizes = [(10**4,), (10,), (10,)] if args.fast else [(10**4, 10**5, 10**6, 10**7), (10, 100, 1000), (10, 50, 1000)]
    grid = [(N, B, d) for N, B, d in itertools.product(*sizes) if N * d <= LARGEST]
    repeats = 1 if args.fast else args.repeats
    # each in a process of its own: NumPyro keeps the last eight runs, and their data, alive
    cells = [in_its_own_process(__file__, *size, repeats) for size in tqdm(grid, desc="N, B, d")]
    names = ("random", "reshuffled", "contiguous", "random / blackjax", "contiguous / blackjax")
    text = (
        "## Cost of a step\n\n"
        "SGLD on a logistic regression, 100 steps a transition, through `MCMC` without its bar. Columns 5 to 7: time "
        "over that of the hand-written scan with the same kind of rows (random ones; for contiguous rows a scan over "
        "`(start + arange) % N`); reshuffled rows are compared with the scan over random rows. The last two: over "
        "BlackJAX's kernel in a hand-written scan over random rows. Compilation is in a column of its own, everywhere "
        "else it is taken out.\n\n"
        + table(
            ["N", "B", "d", "hand-written, µs a step", *names, "compile of one `run`, s"],
            [
                [f"{c['N']:.0e}", c["B"], c["d"], f"{c['us']:.2f}"]
                + [f"{c[name]:.2f}" for name in names]
                + [f"{c['compile']:.1f}"]
                for c in cells
            ],
        )
    )
    save(args, "step", text, cells)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", metavar="JSON", help="a single cell: [N, B, d, repeats]")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cell(*json.loads(options.one)), default=float))
    else:
        main(options)
