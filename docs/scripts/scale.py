"""
docs/scale.md: what limits a step, and what a run costs as the data and the number of machines grow.

Run ``python docs/scripts/scale.py``; it takes a minute. It measures this machine. The page states the nominal rates of
the others. All other numbers follow from these by the equations on the page.
"""

import datetime
import os
from pathlib import Path
import re
import tempfile
import time

os.environ["JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS"] = "1"  # before JAX is imported: no copies of the data

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from numpyro_sgmcmc import SGLD, OnDisk, Reshuffled

DOCS = Path(__file__).resolve().parents[1]
ROWS, DIM, BATCH, STEPS = 2_000_000, 20, 1000, 1000


def passes_of_the_warm_up():
    """Of plot_out_of_core.py, from results.md."""
    results = (DOCS / "results.md").read_text()
    (passes,) = re.findall(r"\| passes over the data by the warm-up \| none \| (\S+) \|", results)
    return float(f"{float(passes):.2g}")


# nominal: bytes a second of disk and memory, operations a second, bytes a second and seconds of an exchange
MACHINES = {
    "laptop, SATA disk": (5e8, 3e10, 1e11, 1e8, 1e-4),
    "server, NVMe disk": (5e9, 2e11, 2e12, 3e9, 2e-5),
    "GPU, data in its memory": (4.8e12, 4.8e12, 3e13, 5e10, 1e-5),
    "GPU, NVMe disk": (5e9, 4.8e12, 3e13, 5e10, 1e-5),
}

PAGE = """\
# Scale

Written by [scale.py](scripts/scale.py) on {date} (jax {jax}). Measured times are those of two cores; all other rates
are nominal.

## What limits a step

A step on n rows of d columns reads 4 n (d + 1) bytes. In a generalised linear model it takes about 8 n d
operations. With D devices, each device reads and processes its n / D rows, and the devices exchange 4 (d + 1)
bytes. The rows of the next steps are read while the device computes. So a step takes

    max(disk, memory, compute) + exchange,    where disk = 4 n (d + 1) / (D r_disk), and so on.

The nominal rates are

{rates}

The next table names the largest term and gives the time of a step in microseconds. A single device exchanges
nothing.

{bounds}

At d = 20 almost all of the time of an exchange is latency. Eight hosts therefore gain little or nothing at n =
1000, and much at n = 100,000 rows from disk.

Measured with N = {rows:,}, d = {dim}, n = {batch}, {steps} steps per transition, contiguous rows and the file in
the page cache: a step takes {memory:.0f} µs with the data in memory and {disk:.0f} µs with the data on disk.
Reading the file without sampling runs at {read:.1f} GB/s.

## How the cost of a run grows with N

Take coordinates in which the posterior is round, with standard deviations of 1. There the noise of a minibatch
gradient has the variance

    s² = N / n          with plain minibatches,
    s² = k / n          with a control variate at the mode.

The number k measures how far the model is from linear over the posterior. It does not depend on N, because the
posterior narrows in proportion to N^(-1/2). Noise of variance s² increases the variance of the posterior by the
fraction h s² / 2 for SGLD, and by h s² / (2 γ) for SGHMC.

* **Plain minibatches** need a step size h of the order n / N. An independent draw takes 1 / h steps of n rows,
  which is a fixed number of passes over the data, whatever n is.
* **With control variates** neither h nor the cost of a draw depends on N. What grows with N is the warm-up, which
  makes passes over the data: for the search, for the centre, and each time the centre moves. There are {passes}
  of them in [plot_out_of_core.py](../examples/plot_out_of_core.py).

| N | rows for 400 draws, plain | rows for 400 draws, control variate | rows for its passes |
| --- | --- | --- | --- |
{growth}

The table allows an inflation of {inflation:.0%}, with γ = 1, k = {k:.0f} and n = {batch}. The next table adds the
times of the passes and of the draws, with control variates, d = {dim}, and an NVMe disk of {nvme:.0f} GB/s on
each host.

| hosts | N = 1e9 | N = 1e12 |
| --- | --- | --- |
{hosts}

## What additional machines are good for

* **Control variates come first.** At N = 1e9 and n = {batch} they reduce the number of rows by a factor of
  {saved:,.0f}. No number of machines does that.
* **More chains** exchange nothing within a step. After the warm-up, twice as many chains give the same number of
  draws in half the time, but each chain needs its own warm-up. Use them where the draws take most of the time:
  with control variates, as long as the passes are short.
* **Larger batches**, spread over devices, allow a proportionally larger h as long as the noise limits h. With
  plain minibatches it always does. With control variates the dynamics limit h at about {h_most}, so batches of
  more than n = {useful:.0f} rows gain nothing.
* **Rows spread over hosts** ([large_data.md](large_data.md)) divide the time of the passes by the number of
  hosts. They also make room for data that do not fit on one host.
"""


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bound(machine, d, n, devices=1):
    """The largest part of a step, and the microseconds of it all."""
    disk, memory, compute, link, latency = MACHINES[machine]
    parts = {"disk": 4 * n * (d + 1) / disk, "memory": 4 * n * (d + 1) / memory, "compute": 8 * n * d / compute}
    if disk == memory:
        del parts["disk"]
    exchange = (4 * (d + 1) / link + latency) if devices > 1 else 0.0
    name = max(parts, key=lambda part: parts[part])
    largest = parts[name] / devices
    return "exchange" if exchange > largest else name, 1e6 * (largest + exchange)


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


def seconds_of_a_step(data):
    kernel = SGLD(model, step_size=1e-8, batch_size=BATCH, steps_per_sample=STEPS, rows=Reshuffled(contiguous=True))
    state = kernel.init(random.PRNGKey(0), 0, None, data, {})
    sample = jax.jit(lambda state: kernel.sample(state, data, {}))
    state = jax.block_until_ready(sample(state))
    times = []
    for _ in range(15):
        began = time.perf_counter()
        state = jax.block_until_ready(sample(state))
        times.append((time.perf_counter() - began) / STEPS)
    return float(np.median(times))


def measured():
    """Seconds of a step from memory and from disk, and bytes a second of a plain read."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, DIM), np.float32)
    y = X.sum(1)
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, name) for name in ("X.npy", "y.npy")]
        for name, values in zip(names, (X, y)):
            np.save(name, values)
        steps = [seconds_of_a_step(data) for data in ((jnp.asarray(X), jnp.asarray(y)), tuple(map(OnDisk, names)))]
        began = time.perf_counter()
        np.load(names[0])
        return *steps, X.nbytes / (time.perf_counter() - began)


def words(number):
    if number < 1000:
        return f"{number:.2g}" if number < 100 else f"{number:.0f}"
    digits, exponent = f"{number:.1e}".split("e+")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def duration(seconds):
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def main():
    memory, disk, read = measured()
    draws, inflation, k, passes, h_most = 400, 0.02, 100.0, passes_of_the_warm_up(), 0.3
    step_of = lambda s2: min(h_most, 2 * inflation / s2)  # noqa: E731, SGHMC at a friction of 1
    rows_of = lambda s2: draws / step_of(s2) * BATCH  # noqa: E731
    sizes = [10.0**e for e in (6, 8, 9, 10, 12)]
    growth = [(words(N), words(rows_of(N / BATCH)), words(rows_of(k / BATCH)), words(passes * N)) for N in sizes]
    rate, link, latency = (MACHINES["server, NVMe disk"][part] for part in (0, 3, 4))

    def run(N, hosts):
        reads = passes * N * 4 * (DIM + 1) / (rate * hosts)
        steps = rows_of(k / BATCH) / BATCH
        step = max(disk / hosts, 4 * BATCH * (DIM + 1) / (rate * hosts))
        return reads + steps * (step + (4 * (DIM + 1) / link + latency) * (hosts > 1))

    bounds = [
        (name, words(d), words(n), *(f"{part}, {words(us)}" for part, us in (bound(name, d, n), bound(name, d, n, 8))))
        for name in MACHINES
        for d, n in ((20, 1000), (20, 100_000), (1000, 1000))
    ]
    page = PAGE.format(
        date=datetime.date.today(),
        jax=jax.__version__,
        rates=table(
            ["", "disk, GB/s", "memory, GB/s", "compute, 1e9/s", "link, GB/s", "latency, µs"],
            [(name, *(words(x / 1e9) for x in rates[:4]), words(1e6 * rates[4])) for name, rates in MACHINES.items()],
        ),
        bounds=table(["", "d", "n", "one device", "eight devices"], bounds),
        rows=ROWS,
        dim=DIM,
        batch=BATCH,
        steps=STEPS,
        memory=1e6 * memory,
        disk=1e6 * disk,
        read=read / 1e9,
        passes=passes,
        growth="\n".join(f"| {' | '.join(row)} |" for row in growth),
        inflation=inflation,
        k=k,
        nvme=rate / 1e9,
        hosts="\n".join(
            f"| {hosts} | {duration(run(1e9, hosts))} | {duration(run(1e12, hosts))} |" for hosts in (1, 8, 64, 1024)
        ),
        h_most=h_most,
        useful=k * h_most / (2 * inflation),
        saved=float(f"{rows_of(1e9 / BATCH) / (rows_of(k / BATCH) + passes * 1e9):.1g}"),
    )
    (DOCS / "scale.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
