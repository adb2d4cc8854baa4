"""
The truth for ``answer.py``: long NUTS runs on all rows, in coordinates whitened by mode and curvature.

Writes posterior means and standard deviations to truth.json beside this file, which is kept with the sources. About a
quarter of an hour; run it again only where a data set changes.
"""

import argparse
import json
from pathlib import Path
import sys

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from posteriors import POSTERIORS, curvature, potential
from scipy.optimize import minimize

PATH = Path(__file__).with_name("truth.json")


def find(posterior, num_warmup, num_samples, seed):
    energy = jax.jit(lambda w: potential(w, posterior))
    value_and_grad = jax.jit(jax.value_and_grad(energy))

    def on_host(w):
        value, gradient = value_and_grad(jnp.asarray(w, jnp.float32))
        return float(value), np.asarray(gradient, float)

    mode = minimize(on_host, np.zeros(posterior.X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    mode = jnp.asarray(mode, jnp.float32)
    root = jnp.asarray(np.linalg.inv(np.linalg.cholesky(np.asarray(curvature(mode, posterior), float))).T, jnp.float32)
    at_mode = energy(mode)  # taken away, as the energy is large against its changes in single precision
    kernel = NUTS(potential_fn=lambda u: energy(mode + root @ u) - at_mode)
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples)
    mcmc.run(random.key(seed), init_params=jnp.zeros_like(mode))
    draws = np.asarray(mode + mcmc.get_samples() @ root.T, float)
    ess = effective_sample_size(draws[None]), effective_sample_size((draws[None] - draws.mean(0)) ** 2)
    return {
        "mean": draws.mean(0).tolist(),
        "sd": draws.std(0, ddof=1).tolist(),
        "draws": num_samples,
        "smallest effective sample size": float(min(e.min() for e in ess)),
    }


def main(args):
    known = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in args.posteriors:
        known[name] = find(POSTERIORS[name](), 300, args.num_samples, args.seed)
        print(name, {k: v for k, v in known[name].items() if not isinstance(v, list)})
        PATH.write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("posteriors", nargs="*", default=list(POSTERIORS))
    parser.add_argument("--num-samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
    sys.exit()
