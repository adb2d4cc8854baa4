"""Cost of a step by row scheme, estimator, sampler and number of chains, in a loop compiled once."""

from bench import (
    H,
    arguments,
    hand_written_sgld,
    logistic,
    random_rows,
    ratio,
    save,
    seconds,
    side_by_side,
    simulated,
    stepping,
    table,
)
import jax
import jax.numpy as jnp

from numpyro_sgmcmc import (
    MSGNHT,
    SAGA,
    SGHMC,
    SGLD,
    SGNHT,
    SGRHMC,
    SGRLD,
    SVRG,
    ControlVariate,
    Minibatch,
    Reshuffled,
    WithoutReplacement,
    WithReplacement,
)

B, D = 100, 50
SCHEMES = {
    "WithReplacement": WithReplacement(),
    "WithoutReplacement": WithoutReplacement(),
    "Reshuffled": Reshuffled(),
    "Reshuffled(contiguous=True)": Reshuffled(contiguous=True),
}
SAMPLERS = {
    "SGLD": (SGLD, {}),
    "SGHMC euler": (SGHMC, {"integrator": "euler"}),
    "SGHMC ssi": (SGHMC, {"integrator": "ssi"}),
    "SGHMC ABOBA": (SGHMC, {}),
    "SGHMC BAOAB": (SGHMC, {"integrator": "BAOAB"}),
    "SGNHT ADBOBDA": (SGNHT, {}),
    "MSGNHT ssi": (MSGNHT, {"integrator": "ssi"}),
    "MSGNHT ADBOBDA": (MSGNHT, {}),
    "SGRLD, a diagonal metric": (SGRLD, {"metric": lambda z: {"w": 1 / (1 + z["w"] ** 2)}}),
    "SGRHMC, a diagonal metric": (SGRHMC, {"metric": lambda z: {"w": 1 / (1 + z["w"] ** 2)}}),
}
CENTER = ControlVariate({"w": jnp.zeros(D)})
WHITENED = {  # the same estimator and rows; without a step size the warm-up finds coordinates z = c + L x
    "ABOBA in z": {"gradient": CENTER},
    "ABOBA in x": {"step_size": None, "gradient": ControlVariate()},
    "NOGIN in x": {"step_size": None, "gradient": ControlVariate(), "integrator": "NOGIN"},
}
CHAINS = (1, 2, 4, 8, 16, 32)


def compare(cells, repeats, steps):
    """Rows of a table: time of a step, and over that of the first."""
    laps = side_by_side(cells, repeats)
    base = next(iter(cells))
    return [{"name": name, "us": seconds(laps, name) / steps * 1e6, "ratio": ratio(laps, name, base)} for name in cells]


def stepper(kernel_class, args, steps, chains=None, **options):
    options = {"step_size": H, "batch_size": B, "steps_per_sample": steps} | options
    return stepping(kernel_class(logistic, **options), args, chains)


def estimators(args, rows, steps):
    center = {"w": jnp.zeros(D)}
    every = {
        "Minibatch()": Minibatch(),
        'SAGA("row")': SAGA(),
        'SAGA("batch")': SAGA("batch"),
        'SAGA("linear")': SAGA("linear"),
        "ControlVariate(center)": ControlVariate(center),
        'ControlVariate(center, "linear")': ControlVariate(center, "linear"),
        "SVRG()": SVRG(),
    }
    return {name: stepper(SGLD, args, steps, gradient=gradient, rows=rows) for name, gradient in every.items()}


def as_table(first, rows):
    return table([first, "µs", "ratio"], [[row["name"], f"{row['us']:.1f}", f"{row['ratio']:.2f}"] for row in rows])


def parts(args):
    """Cost of a step by row scheme, estimator and sampler, with one chain."""
    N, steps, repeats = (10**4, 100, 1) if args.fast else (10**6, 5_000, args.repeats)
    data = simulated(N, D)
    numbers = {"N": N}
    text = "## Cost of a step by its parts\n\n"
    text += f"N = {N:.0e}, B = {B}, d = {D}, SGLD unless said; over the first of each table.\n\n"

    cells = {name: stepper(SGLD, data, steps, rows=rows) for name, rows in SCHEMES.items()}
    numbers["rows"] = compare(cells, repeats, steps)
    text += as_table("rows", numbers["rows"]) + "\n"

    for name in ("Reshuffled", "Reshuffled(contiguous=True)", "WithReplacement"):
        numbers[f"estimators, {name}"] = compare(estimators(data, SCHEMES[name], steps), repeats, steps)
        text += as_table(f"estimator, {name}", numbers[f"estimators, {name}"]) + "\n"
        jax.clear_caches()

    cells = {name: stepper(kernel, data, steps, **options) for name, (kernel, options) in SAMPLERS.items()}
    numbers["samplers"] = compare(cells, repeats, steps)
    text += as_table("sampler", numbers["samplers"]) + "\n"

    cells = {
        name: stepper(SGHMC, data, steps, **{"integrator": "ABOBA", "rows": WithoutReplacement()} | options)
        for name, options in WHITENED.items()
    }
    numbers["coordinates"] = compare(cells, repeats, steps)
    text += as_table("SGHMC with control variates", numbers["coordinates"]) + "\n"
    return text, numbers


def scaling(args, chains):
    """Cost of a step of all chains together."""
    N, steps, repeats = (10**4, 100, 1) if args.fast else (10**5, 2_000, args.repeats)
    data, numbers = simulated(N, D), {}
    text = f"## Scaling of chains\n\nSteps of all vectorized chains together, N = {N:.0e}, B = {B}, d = {D}.\n\n"
    by_hand = {str(c): hand_written_sgld(*data, random_rows(N, B), B, steps, None if c == 1 else c) for c in chains}
    numbers["chains, by hand"] = compare(by_hand, repeats, steps)
    text += as_table("SGLD by hand, random rows: chains", numbers["chains, by hand"]) + "\n"
    for name, (kernel, options) in {
        "SGLD": (SGLD, {}),
        "SGHMC": (SGHMC, {}),
        "MSGNHT": (MSGNHT, {}),
        "SGHMC, contiguous rows": (SGHMC, {"rows": Reshuffled(contiguous=True)}),
        "SGHMC, SVRG": (SGHMC, {"gradient": SVRG()}),
    }.items():
        cells = {str(c): stepper(kernel, data, steps, None if c == 1 else c, **options) for c in chains}
        numbers[f"chains, {name}"] = compare(cells, repeats, steps)
        text += as_table(f"{name}: chains", numbers[f"chains, {name}"]) + "\n"
        jax.clear_caches()
    return text, numbers


def main(args):
    text, numbers = ("", {}) if args.chains else parts(args)
    more, of_chains = scaling(args, args.chains or CHAINS)
    save(args, "kernels", text + more, numbers | of_chains)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--chains", type=int, nargs="+", help="only the scaling of chains, with these numbers")
    main(parser.parse_args())
