"""Peak resident memory beyond the data, each run in a process of its own."""

import json
import resource

from bench import arguments, in_its_own_process, logistic, save, table
from tqdm import tqdm

WAYS = {
    "the README's settings (4 chains, bar)": {},
    "1 chain, bar": {"chains": 1},
    "1 chain, no bar": {"chains": 1, "bar": False},
    "4 chains, no bar": {"bar": False},
    "4 chains, jit_model_args=True": {"jit": True},
    "1 chain, contiguous rows": {"chains": 1, "contiguous": True},
    "1 chain, ControlVariate": {"chains": 1, "gradient": "center"},
    "1 chain, SVRG": {"chains": 1, "gradient": "svrg"},
    '1 chain, SAGA("linear")': {"chains": 1, "gradient": "linear"},
    '1 chain, SAGA("row")': {"chains": 1, "gradient": "row"},
}
TABLE = {"linear": lambda N, d: 4 * N, "row": lambda N, d: 4 * N * d}  # bytes, as announced


def peak():
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(N, d, chains=4, bar=True, jit=False, contiguous=False, gradient=None):
    """Memory in this process: before the run, at its peak."""
    import jax
    from jax import random
    import numpy as np
    from numpyro.infer import MCMC

    from numpyro_sgmcmc import SAGA, SGHMC, SVRG, ControlVariate, Minibatch, Reshuffled

    rng = np.random.default_rng(0)
    X = jax.block_until_ready(jax.numpy.asarray(rng.standard_normal((N, d), dtype=np.float32)))
    y = jax.numpy.asarray(rng.integers(0, 2, N).astype(np.float32))
    estimator = {
        None: Minibatch(),
        "center": ControlVariate({"w": np.zeros(d, np.float32)}),
        "svrg": SVRG(),
        "linear": SAGA("linear"),
        "row": SAGA(),
    }[gradient]
    kernel = SGHMC(
        logistic,
        step_size=1e-7,
        friction=100.0,
        batch_size=1000,
        steps_per_sample=100,
        rows=Reshuffled(contiguous),
        gradient=estimator,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=10,
        num_samples=50,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=bar,
        jit_model_args=jit,
    )
    del rng
    before = peak()
    mcmc.run(random.key(0), X, y)
    return {"before": before, "beyond": peak() - before, "data": X.nbytes + y.nbytes}


def main(args):
    d, sizes = 20, (10**4,) if args.fast else (10**5, 10**6, 10**7)
    ways = dict(list(WAYS.items())[:2]) if args.fast else WAYS
    rows, numbers = [], {}
    for name, options in tqdm(ways.items(), desc="ways"):
        cells = []
        for N in sizes:
            found = numbers[f"{name}, N = {N:.0e}"] = in_its_own_process(__file__, N, d, options)
            shown = f"{found['beyond'] / 2**20:.0f} MiB ({found['beyond'] / found['data']:.2f})"
            if options.get("gradient") in TABLE:
                shown += f", table {TABLE[options['gradient']](N, d) / 2**20:.0f} MiB"
            cells.append(shown)
        rows.append([name, *cells])
    text = (
        "## Memory\n\n"
        f"Peak resident memory of a run beyond what the process held before it, d = {d}, B = 1000; in brackets over "
        "the size of the data, which are in memory once before the run. Some of it is the compiler's and does "
        "not grow with the data.\n\n" + table(["run", *(f"N = {N:.0e}" for N in sizes)], rows)
    )
    save(args, "memory", text, numbers)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--one", metavar="JSON", help="a single measurement: [N, d, options]")
    arguments_ = parser.parse_args()
    if arguments_.one:
        N, d, options = json.loads(arguments_.one)
        print(json.dumps(one(N, d, **options)))
    else:
        main(arguments_)
