"""Peak resident memory beyond the data, each run in a process of its own."""

import json
from pathlib import Path

from bench import arguments, in_its_own_process, kept, logistic, save, table
from tqdm import tqdm

WAYS = {
    "the README's settings (4 chains, bar, data as arguments)": {},
    "4 chains, no bar": {"bar": False},
    "4 chains, JAX's defaults": {"constants": True},
    "4 chains, JAX's defaults, jit_model_args=True": {"constants": True, "jit": True},
    "4 chains, JAX's defaults, jit_model_args=True, no bar": {"constants": True, "jit": True, "bar": False},
    "1 chain": {"chains": 1},
    "1 chain, contiguous rows": {"chains": 1, "contiguous": True},
    "1 chain, ControlVariate": {"chains": 1, "gradient": "center"},
    "1 chain, SVRG": {"chains": 1, "gradient": "svrg"},
    '1 chain, SAGA("linear")': {"chains": 1, "gradient": "linear"},
    '1 chain, SAGA("linear"), no bar': {"chains": 1, "gradient": "linear", "bar": False},
    '1 chain, SAGA("row")': {"chains": 1, "gradient": "row"},
    '1 chain, SAGA("row"), no bar': {"chains": 1, "gradient": "row", "bar": False},
}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TABLE = {"linear": lambda N, d: 4 * N, "row": lambda N, d: 4 * N * d}  # bytes, as announced


def resident(which):
    """Bytes: VmRSS now, VmHWM at most since :func:`forget_peak`. Linux only."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def forget_peak():
    CLEAR.write_text("5")


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
    forget_peak()
    before = resident("VmRSS")
    mcmc.run(random.key(0), X, y)
    return {"before": before, "beyond": resident("VmHWM") - before, "data": X.nbytes + y.nbytes}


def shown(found, N, d, gradient):
    text = f"{found['beyond'] / 2**20:.0f} MiB ({found['beyond'] / found['data']:.2f})"
    return f"{text}, table {TABLE[gradient](N, d) / 2**20:.0f} MiB" if gradient in TABLE else text


def main(args):
    d, sizes = 20, (10**4,) if args.fast else (10**5, 10**6, 10**7)
    ways = dict(list(WAYS.items())[:2]) if args.fast else WAYS
    numbers = kept(args, "memory")
    for name, options in tqdm([way for way in ways.items() if args.only in way[0]], desc="ways"):
        options = dict(options)
        environment = {"JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "0" if options.pop("constants", False) else "1"}
        for N in sizes:
            numbers[f"{name}, N = {N:.0e}"] = in_its_own_process(__file__, N, d, options, **environment)
    rows = [
        [name, *(shown(numbers[f"{name}, N = {N:.0e}"], N, d, options.get("gradient")) for N in sizes)]
        for name, options in ways.items()
        if f"{name}, N = {sizes[0]:.0e}" in numbers
    ]
    text = (
        "## Memory\n\n"
        f"Peak resident memory of a run beyond what the process held before it, d = {d}, B = 1000; in brackets over "
        "the size of the data, which are in memory once before the run. Some of it is the compiler's and does "
        "not grow with the data. Data as arguments: `JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1`, without which JAX makes "
        "constants of them. With the bar NumPyro holds a state twice, and SAGA's table is in the state.\n\n"
        + table(["run", *(f"N = {N:.0e}" for N in sizes)], rows)
    )
    save(args, "memory", text, numbers)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name contains it, the others kept")
    parser.add_argument("--one", metavar="JSON", help="a single measurement: [N, d, options]")
    arguments_ = parser.parse_args()
    if arguments_.one:
        N, d, options = json.loads(arguments_.one)
        print(json.dumps(one(N, d, **options)))
    else:
        main(arguments_)
