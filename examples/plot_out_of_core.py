r"""
Data on disk: a file three times the size of the memory
=======================================================

The program samples the posterior of a regression on 72 million rows. They are in a file of 6 GB, and the process may
allocate 2 GB, including the interpreter and the libraries. The posterior is known in closed form.
"""

# %%
# The results
# -----------
# Left: what the process has allocated, over its time, below the limit that the operating system sets
# (``RLIMIT_DATA``) and below the size of the file. Right: the posterior of each coefficient, as its error and its width
# in units of the exact standard deviation. The dashed lines are where they should be.
#
# Nothing but the size of the minibatch and the order of the rows is given. The passes over all rows, with which the
# warm-up finds coordinates and the centre of the control variate, stream the file in chunks; the rows of the steps are
# read ahead by a thread. Most of the time is spent in these passes.

import os
from pathlib import Path
import resource
import tempfile
from threading import Event, Thread
import time

from gallery import parsed, parser, save, shown
from jax import random
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from numpyro_sgmcmc import SGHMC, OnDisk, Reshuffled, settings

SIZE = {"rows": (200_000, 72_000_000), "samples": (200, 500)}
DIM, BATCH, CHAINS = 20, 1000, 2


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(X)) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1), obs=y[rows])


# %%
# The data
# --------
# Written in pieces, which also give the exact posterior: the sums of x x' and x y.


def write(folder, args):
    """The file names, and mean and covariance of the posterior."""
    rng = np.random.default_rng(args.seed)
    truth = rng.normal(size=DIM)
    names = [str(folder / name) for name in ("X.npy", "y.npy")]
    X = np.lib.format.open_memmap(names[0], "w+", np.float32, (args.rows, DIM))
    y = np.lib.format.open_memmap(names[1], "w+", np.float32, (args.rows,))
    precision, shift = np.eye(DIM), np.zeros(DIM)
    for first in range(0, args.rows, 100_000):
        part = slice(first, min(first + 100_000, args.rows))
        x = rng.standard_normal((part.stop - part.start, DIM), np.float32)
        X[part], y[part] = x, (x @ truth + rng.standard_normal(len(x))).astype(np.float32)
        precision += x.T @ x.astype(float)
        shift += x.T @ y[part].astype(float)
    X.flush(), y.flush()
    return names, np.linalg.solve(precision, shift), np.linalg.inv(precision)


def plain_read(names):
    """Rows a second of a process that does nothing but read."""
    X, y = (np.load(name, mmap_mode="r") for name in names)
    began, total = time.perf_counter(), 0.0
    for first in range(0, len(X), 50_000):
        total += float(X[first : first + 50_000].sum() + y[first : first + 50_000].sum())
    return len(X) / (time.perf_counter() - began)


# %%
# Memory
# ------
# What counts is what the process has asked the system for, not the pages of the file that the system keeps while there
# is room for them.


def allocated():
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData")).split()[1])


class Watched:
    """What is allocated while the block runs: seconds and bytes."""

    def __enter__(self):
        self.seconds, self.bytes, self._done = [], [], Event()
        began = time.perf_counter()

        def watch():
            while not self._done.wait(0.1):
                self.seconds.append(time.perf_counter() - began)
                self.bytes.append(allocated())

        self._thread = Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()


def sample(names, args):
    kernel = SGHMC(model, batch_size=BATCH, rows=Reshuffled(contiguous=True))
    mcmc = MCMC(
        kernel,
        num_warmup=args.samples,
        num_samples=args.samples,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(args.seed), *(OnDisk(name) for name in names))
    return mcmc


def picture(watched, limit, size, error, ratio):
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(watched.seconds, np.array(watched.bytes) / 1e9, label="allocated")
    left.axhline(size / 1e9, color="C1", label="the file")
    if limit is not None:
        left.axhline(limit / 1e9, color="C3", ls="--", label="limit")
    left.set(xlabel="seconds", ylabel="GB", title="Memory", ylim=(0, None))
    left.legend(frameon=False)
    right.plot(error, ratio, "o")
    right.axhline(1, color="grey", ls="--", lw=0.8)
    right.axvline(0, color="grey", ls="--", lw=0.8)
    right.set(xlabel="error of the mean, in sds", ylabel="sd, in sds", title="Posterior", xlim=(-1, 1), ylim=(0.7, 1.3))
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return fig


# %%
# The claims
# ----------
# Means within a quarter of a standard deviation, standard deviations within 15 %, and never more memory than the limit.
# What the process allocates beyond the limit would have ended it.


def main(args):
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        names, mean, cov = write(Path(folder), args)
        size = sum(os.path.getsize(name) for name in names)
        limit = size // 3 if args.rows == SIZE["rows"][1] else None  # a third of less would not hold the libraries
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        read = plain_read(names)
        with Watched() as watched:
            mcmc = sample(names, args)
    draws = np.asarray(mcmc.get_samples()["w"], float)
    sd = np.sqrt(np.diag(cov))
    error, ratio = (draws.mean(0) - mean) / sd, draws.std(0) / sd
    found = settings(mcmc)
    steps = CHAINS * args.samples * found["steps_per_sample"]
    seconds = watched.seconds[-1]
    metrics = {
        "file, GB": size / 1e9,
        "allocated at most, GB": max(watched.bytes) / 1e9,
        "limit, GB": None if limit is None else limit / 1e9,
        "largest error of a mean, sds": np.abs(error).max(),
        "standard deviations, smallest and largest ratio": [ratio.min(), ratio.max()],
        "seconds of the run": seconds,
        "passes over the data by the warm-up": found["passes"],
        "rows used by the steps after it": steps * BATCH,
        "rows a second of a plain read": read,
    }
    for name, value in metrics.items():
        print(f"{name}: {value}")
    save(args, "out_of_core", picture(watched, limit, size, error, ratio), metrics)
    assert np.abs(error).max() < 0.25 if shown(args) and not args.fast else np.abs(error).max() < 1, error
    assert abs(ratio - 1).max() < 0.15 if shown(args) and not args.fast else abs(ratio - 1).max() < 0.4, ratio


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--folder", type=Path, help="where the file is made; None: among temporary files")
    main(parsed(arguments, **SIZE))
