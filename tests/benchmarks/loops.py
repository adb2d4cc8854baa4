"""Cost of a step by the loop that carries it: scans, MCMC with and without its bar, a loop in Python."""

from bench import (
    arguments,
    compiling,
    hand_written_sgld,
    random_rows,
    ratio,
    save,
    seconds,
    side_by_side,
    simulated,
    table,
)
import jax
from step import blackjax_scan, blackjax_step, through_mcmc

from numpyro_sgmcmc import WithReplacement

N, B, D = 10**5, 100, 50


def blackjax_python(X, y, B, steps):
    """As its documentation has it: a jitted step in a Python loop."""
    step, start = blackjax_step(X, y, B)
    step = jax.jit(step)

    def fn():
        carry = start
        for _ in range(steps):
            carry = step(carry, X, y)
        return carry

    return fn


def main(args):
    X, y = simulated(N, D)
    # a run through MCMC takes some hundredths of a second before its first step
    many, some = (1000, 100) if args.fast else (100_000, 2_000)
    rows, base = WithReplacement(), "hand-written scan"
    cells = {
        base: (hand_written_sgld(X, y, random_rows(N, B), B, many), many),
        "BlackJAX in a hand-written scan": (blackjax_scan(X, y, B, many), many),
        "MCMC, 100 steps a transition, no bar": (through_mcmc(X, y, B, many, rows), many),
        "MCMC, 100 steps a transition, bar": (through_mcmc(X, y, B, many, rows, bar=True), many),
        "MCMC, 1 step a transition, no bar": (through_mcmc(X, y, B, many, rows, every=1), many),
        "MCMC, 1 step a transition, bar": (through_mcmc(X, y, B, some, rows, bar=True, every=1), some),
        "BlackJAX in its documented Python loop": (blackjax_python(X, y, B, some), some),
    }
    laps = side_by_side({name: fn for name, (fn, _) in cells.items()}, 1 if args.fast else 5)
    numbers = [
        {
            "loop": name,
            "us": seconds(laps, name) / steps * 1e6,
            "ratio": ratio(laps, name, base) * many / steps,
            "compile": compiling(laps, name),
        }
        for name, (_, steps) in cells.items()
    ]
    text = (
        "## The loop around the steps\n\n"
        f"N = {N:.0e}, B = {B}, d = {D}, random rows. Compilation, in the last column, is taken out of the others.\n\n"
        + table(
            ["loop", "µs a step", "ratio", "compile of one run, s"],
            [[n["loop"], f"{n['us']:.1f}", f"{n['ratio']:.2f}", f"{n['compile']:.1f}"] for n in numbers],
        )
    )
    save(args, "loops", text, numbers)


if __name__ == "__main__":
    main(arguments(__doc__).parse_args())
