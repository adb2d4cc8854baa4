"""
docs/step_sizes.md: how wide SGLD and SGHMC make the posterior of a logistic regression, by step size and friction.

Run ``python docs/scripts/step_sizes.py``; it takes about half an hour on two cores. The rows are simulated: y is 1 with
probability sigmoid(x w), x is standard normal, and so is the prior of w. The chains start in the normal approximation
at the mode, and the warm-up takes them from there to the stationary law of the kernel.
"""

import argparse
import datetime
from functools import partial
from importlib.metadata import version
import itertools
import math
import os
from pathlib import Path
from typing import NamedTuple

os.environ["JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS"] = "1"  # before JAX is imported: no copies of the data

from jax import random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from numpyro_sgmcmc import SGHMC, SGLD, ControlVariate, Reshuffled, WithoutReplacement

DOCS = Path(__file__).resolve().parents[1]
BATCH = 100
ROWS = (Reshuffled(), WithoutReplacement())
CHAINS = 16

PAGE = """\
# Step sizes, measured

Written by [step_sizes.py](scripts/step_sizes.py) on {date} (jax {jax}, numpyro {numpyro}).

A logistic regression with N simulated rows and d coefficients is sampled from minibatches of n = {batch} rows, by
{chains} chains, or by half as many at a friction of 1. The tables give the standard deviation of the draws over that
of the normal approximation at the mode, ± its standard error: 1.00 is right, 2.00 means twice as wide. The same ratio
for NUTS is {nuts}. λ is the largest curvature of U, and ω = sqrt(λ).

## SGLD

Independent minibatches add h s² / 2 to the relative variance, and s² is about N λ / n in the direction of largest
curvature. So an inflation of at most 10 %, 5 % in the standard deviation, needs h ≤ 0.2 n / (N λ). The step size
1 / (10 λ) is small enough only for the full gradient, or for an estimate that is nearly as exact, such as a control
variate. Reshuffled rows cancel much of the noise if an epoch, N / n steps, is short compared with the relaxation of
the chain, 1 / (h λ) steps.

{sgld}
## SGHMC

The step size is h = n / (N ω). Independent minibatches add h s² / (2 γ) to the relative variance, which is about
ω / (2 γ) here in the direction of largest curvature. That is a half at γ = ω. At γ = 1 it grows with the square root
of N.

{sghmc}"""


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


class Problem(NamedTuple):
    X: jnp.ndarray
    y: jnp.ndarray
    mode: np.ndarray
    covariance: np.ndarray  # of the normal approximation at the mode
    curvatures: np.ndarray  # eigenvalues of the Hessian of U there, increasing

    @property
    def epoch(self):
        return len(self.X) // BATCH


def problem(size, dim):
    rng = np.random.default_rng(size + dim)
    X = rng.standard_normal((size, dim)).astype(np.float32)
    truth = np.array([1.0, -2.0, 0.5]) if dim == 3 else rng.normal(0, 0.5, dim)
    y = rng.random(size) < 1 / (1 + np.exp(-X @ truth))
    w = truth
    for _ in range(20):  # Newton's method
        p = 1 / (1 + np.exp(-X @ w))
        hessian = (X.T * (p * (1 - p))) @ X + np.eye(dim)
        w = w - np.linalg.solve(hessian, X.T @ (p - y) + w)
    return Problem(jnp.asarray(X), jnp.asarray(y, X.dtype), w, np.linalg.inv(hessian), np.linalg.eigvalsh(hessian))


def relative_sd(kernel, p, relaxation, chains=CHAINS):
    """
    Standard deviation of the draws over that of the normal approximation, with its standard error over chains.

    It is the root of the mean over coordinates of the ratio of variances.

    :param kernel: a kernel but for its ``steps_per_sample``.
    :param relaxation: steps in which a chain forgets where it was.
    """
    steps = max(1, round(relaxation / 5))
    while math.gcd(steps, p.epoch) > 1:  # draws from all places of an epoch, not only from its end
        steps += 1
    mcmc = MCMC(
        kernel(steps_per_sample=steps),
        num_warmup=25,
        num_samples=75,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = np.random.default_rng(0).multivariate_normal(p.mode, p.covariance, chains)
    mcmc.run(random.key(0), p.X, p.y, init_params={"w": jnp.asarray(start, p.X.dtype)})
    assert not np.asarray(mcmc.get_extra_fields()["diverging"]).any()
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"], float)
    variances = (((draws - draws.mean((0, 1))) ** 2).mean(1) / np.diag(p.covariance)).mean(1)
    ratio = np.sqrt(variances.mean())
    error = variances.std(ddof=1) / np.sqrt(chains) / (2 * ratio)
    return f"{ratio:.2f} ± {error:.2f}"


def sgld(p):
    """Rows of SGLD's table: the step size, the sds found, and the sd that theory gives with independent batches."""
    stiffest = p.curvatures[-1]
    mode = {"w": jnp.asarray(p.mode, p.X.dtype)}
    unit = 1 / (p.epoch * stiffest)
    for label, h in {"1 / (10 λ)": 0.1 / stiffest, "n / (N λ)": unit, "0.2 n / (N λ)": 0.2 * unit}.items():
        kernel = partial(SGLD, model, step_size=h, batch_size=BATCH)
        relaxation = 1 / (h * p.curvatures[0])
        found = [relative_sd(partial(kernel, rows=rows), p, relaxation) for rows in ROWS]
        found.append(relative_sd(partial(kernel, gradient=ControlVariate(mode)), p, relaxation))
        yield [label, *found, f"{expected_sd(h, p):.2f}"]


def expected_sd(h, p):
    """Of SGLD with independent batches, where the covariance of the gradient is N / n - 1 times the Hessian of U."""
    variances = (1 + h / 2 * (p.epoch - 1) * p.curvatures) / (1 - h / 2 * p.curvatures)
    return np.sqrt(variances.mean())


def sghmc(p):
    """Rows of SGHMC's table: the friction and the sds found at h = n / (N ω)."""
    omega = np.sqrt(p.curvatures[-1])
    h = float(1 / (p.epoch * omega))
    for label, friction in {"1, the default": 1.0, "ω / 10": float(omega / 10), "ω": float(omega)}.items():
        kernel = partial(SGHMC, model, step_size=h, friction=friction, batch_size=BATCH)
        relaxation = max(1 / friction, friction / p.curvatures[0]) / h
        chains = CHAINS if friction > 1 else CHAINS // 2  # which take many steps
        yield [label, *(relative_sd(partial(kernel, rows=rows), p, relaxation, chains) for rows in ROWS)]


def nuts_sd(p):
    """The sd by NUTS over that of the normal approximation, as in :func:`relative_sd`."""
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=4000, progress_bar=False)
    mcmc.run(random.key(0), p.X, p.y, init_params={"w": jnp.asarray(p.mode, p.X.dtype)})
    draws = np.asarray(mcmc.get_samples()["w"], float)
    return np.sqrt((draws.var(0) / np.diag(p.covariance)).mean())


def table(head, rows):
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


def main(args):
    langevin, hamiltonian, nuts = [], [], []
    for size, dim in itertools.product(args.sizes, args.dims):
        p = problem(size, dim)
        which = [f"{size:,}", str(dim)]
        if size <= 10_000:
            nuts.append(f"{nuts_sd(p):.3f} (N = {size:,}, d = {dim})")
        for rows, found in ((langevin, sgld(p)), (hamiltonian, sghmc(p))):
            for row in found:
                rows.append(which + row)
                print(*rows[-1], sep="  ", flush=True)
    page = PAGE.format(
        batch=BATCH,
        chains=CHAINS,
        date=datetime.date.today(),
        jax=version("jax"),
        numpyro=version("numpyro"),
        nuts=" and ".join(nuts),
        sgld=table(["N", "d", "h", "reshuffled", "independent", "control variate", "independent, theory"], langevin),
        sghmc=table(["N", "d", "friction γ", "reshuffled", "independent"], hamiltonian),
    )
    args.page.write_text(page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="numbers of rows")
    parser.add_argument("--dims", type=int, nargs="+", default=[3, 20], help="numbers of coefficients")
    parser.add_argument("--page", type=Path, default=DOCS / "step_sizes.md")
    main(parser.parse_args())
