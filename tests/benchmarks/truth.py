"""
The truth for ``answer.py``: long runs of NUTS on all rows, and quadrature for the hierarchies of binary rows.

Writes means and standard deviations to truth.json beside this file, which is kept with the sources. About an hour; run
it again only where a posterior changes.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from posteriors import POSTERIORS, with_all_rows
from scipy.special import log_expit
from scipy.stats import halfnorm, norm

from no_numbers_models import reference  # isort: skip (its folder is on the path now)

PATH = Path(__file__).with_name("truth.json")


def by_nuts(problem, args):
    problem = problem._replace(model=with_all_rows(problem.model))
    found = reference(problem, args.seed, ess=args.ess, seconds=args.seconds)
    return {
        "mean": found.mean.tolist(),
        "sd": found.sd.tolist(),
        "draws": int(found.draws),
        "smallest effective sample size": round(float(found.ess.min())),
        "largest R-hat": round(float(found.r_hat.max()), 4),
        "seconds": round(float(found.seconds)),
    }


def by_quadrature(problem, points=121):
    """
    Moments of mu and tau, where a row of group g is Bernoulli(expit(a_g)) and a_g is N(mu, tau).

    The effects are integrated out over a grid of a; the grid of (mu, tau) covers six standard deviations.
    """
    group, y = problem.args
    rows, ones = np.bincount(group), np.bincount(group, y)
    kinds, groups = np.unique(np.stack([rows, ones]), axis=1, return_counts=True)
    a, step = np.linspace(-10, 10, 2001, retstep=True)
    log_rows = kinds[1][:, None] * log_expit(a) + (kinds[0] - kinds[1])[:, None] * log_expit(-a)
    peak = log_rows.max(1)
    likelihood = np.exp(log_rows - peak[:, None])
    low, high = np.array([-1.5, 0.05]), np.array([0.5, 1.5])
    for _ in range(4):  # each time around the moments of the time before
        mu, tau = (np.linspace(*ends, points) for ends in zip(low, high))
        law = norm.pdf(a[:, None], np.repeat(mu, points), np.tile(tau, points)) * step
        log_density = groups @ np.log(likelihood @ law + 1e-300)
        log_density += (norm.logpdf(mu, 0, 1.5)[:, None] + halfnorm.logpdf(tau)).ravel()
        weight = np.exp(log_density - log_density.max())
        weight = (weight / weight.sum()).reshape(points, points)
        marginals = (mu, weight.sum(1)), (tau, weight.sum(0))
        mean = np.array([x @ p for x, p in marginals])
        sd = np.array([np.sqrt((x - m) ** 2 @ p) for (x, p), m in zip(marginals, mean)])
        low, high = np.maximum(mean - 6 * sd, [-np.inf, 1e-3]), mean + 6 * sd
    return {"mean": mean.tolist(), "sd": sd.tolist(), "points": points**2}


def main(args):
    known = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in args.posteriors:
        problem = POSTERIORS[name]()
        known[name] = by_quadrature(problem) if name.startswith("groups") else by_nuts(problem, args)
        print(name, {k: v for k, v in known[name].items() if len(np.shape(v)) == 0 or len(v) < 3}, flush=True)
        PATH.write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("posteriors", nargs="*", default=list(POSTERIORS))
    parser.add_argument("--ess", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
