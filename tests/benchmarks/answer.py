"""Time to a right answer: one clock, compilation and the search for the mode included."""

from functools import partial
import json
import time

from bench import arguments, kept, save, table
import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import HMCECS, MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoLowRankMultivariateNormal
from posteriors import POSTERIORS, curvature, model
from truth import PATH

from numpyro_sgmcmc import SGHMC, ControlVariate, find_mode

SD, MEAN = 0.05, 0.1  # what is right: median over coordinates of the relative error of the sd, and of the mean in sds
LIMIT = {"NUTS": 1200, "others": 400}  # seconds
BATCH = 1000
STEP_SIZE = 0.1  # of the width of the posterior: control variates leave so little noise that it need not be smaller
PATIENCE = 50  # looks at SVI without a gain of a hundredth


def moments(chunks):
    draws = np.concatenate(chunks)
    return draws.mean(0), draws.std(0, ddof=1)


def through_mcmc(mcmc, run, weights=lambda samples: samples["w"]):
    """Moments of all draws after the warm-up, after every ``num_samples`` more."""
    chunks, key = [], random.key(1)
    while True:
        run(mcmc, key)
        mcmc.post_warmup_state = mcmc.last_state
        key = mcmc.last_state.rng_key if hasattr(mcmc.last_state, "rng_key") else random.split(key)[0]
        chunks.append(np.asarray(weights(mcmc.get_samples()), float))
        yield moments(chunks)


def data(posterior):
    return posterior.X, posterior.y, posterior.prior_sd


def through_numpyro(posterior, kernel, **size):
    yield from through_mcmc(MCMC(kernel, **size), lambda mcmc, key: mcmc.run(key, *data(posterior)))


def along_axes(posterior, kernel, *, num_warmup, num_samples, **options):
    """
    A kernel in coordinates in which the posterior is about one unit wide, from the mode on.

    :param kernel: of the model, the mode and the inverse masses; ``options`` are those of the run.
    """
    found = find_mode(model, random.key(0), *data(posterior), batch_size=BATCH, num_steps=5000, progress_bar=False)
    mass, axes = np.linalg.eigh(np.asarray(curvature(found["w"], posterior), float))
    axes = jnp.asarray(axes, posterior.X.dtype)
    mode = {"v": axes.T @ found["w"]}
    mcmc = MCMC(kernel(partial(model, axes=axes), mode, 1 / mass), num_warmup=num_warmup, num_samples=num_samples)
    run = lambda mcmc, key: mcmc.run(key, *data(posterior), init_params=mode, **options)  # noqa: E731
    yield from through_mcmc(mcmc, run, lambda samples: samples["v"] @ axes.T)


def sghmc(model, mode, inverse_mass):
    """In these coordinates a friction of 1 suits, and draws two units of time apart are almost independent."""
    return SGHMC(
        model,
        step_size=STEP_SIZE,
        friction=1.0,
        batch_size=BATCH,
        steps_per_sample=round(2 / STEP_SIZE),
        gradient=ControlVariate(mode),
        inverse_mass_matrix={"v": inverse_mass},
    )


def nuts(model, mode, inverse_mass):
    del mode
    return NUTS(model, inverse_mass_matrix={("v",): inverse_mass}, adapt_mass_matrix=False)


def hmcecs(model, mode, inverse_mass):
    return HMCECS(nuts(model, mode, inverse_mass), num_blocks=10, proxy=HMCECS.taylor_proxy(mode))


def svi(posterior, guide_class):
    guide = guide_class(model)
    args = data(posterior)
    fit = SVI(model, guide, numpyro.optim.Adam(lambda i: 1e-2 / (1 + i / 2000)), Trace_ELBO(), subsample_size=BATCH)
    state = fit.init(random.key(0), *args)

    @jax.jit
    def more(state, X, y):
        body = lambda _, state: fit.update(state, X, y, posterior.prior_sd)[0]  # noqa: E731
        return lax.fori_loop(0, 1000, body, state)

    while True:
        state = more(state, posterior.X, posterior.y)
        draws = guide.sample_posterior(random.key(2), fit.get_params(state), sample_shape=(4000,))["w"]
        yield moments([np.asarray(draws, float)])


FULL = {"num_warmup": 500, "num_samples": 50}  # for a kernel that has to find its masses
SHORT = {"num_warmup": 50, "num_samples": 20}
SAMPLERS = {
    "SGHMC, nothing given": lambda posterior: through_numpyro(
        posterior, SGHMC(model), num_warmup=400, num_samples=100, num_chains=4, chain_method="vectorized"
    ),
    "SGHMC, control variate": lambda posterior: along_axes(posterior, sghmc, num_warmup=20, num_samples=50),
    "NUTS": lambda posterior: through_numpyro(posterior, NUTS(model), **FULL),
    "NUTS, dense_mass=True": lambda posterior: through_numpyro(posterior, NUTS(model, dense_mass=True), **FULL),
    "NUTS along our axes": lambda posterior: along_axes(posterior, nuts, **SHORT),
    "HMCECS along our axes, Taylor proxy": lambda posterior: along_axes(
        posterior, hmcecs, **SHORT, subsample_size=BATCH
    ),
    "SVI, AutoDiagonalNormal": lambda posterior: svi(posterior, AutoDiagonalNormal),
    "SVI, AutoLowRankMultivariateNormal": lambda posterior: svi(posterior, AutoLowRankMultivariateNormal),
}


def distance(at):
    """1 where an answer begins to be right."""
    return max(at["sd"] / SD, at["mean"] / MEAN)


def follow(sampler, posterior, truth, limit, patience):
    """Errors against time until they are small, no longer improve, or until the limit."""
    mean, sd = (np.asarray(truth[key]) for key in ("mean", "sd"))
    begin, path, best, since = time.perf_counter(), [], np.inf, 0
    try:
        for found_mean, found_sd in sampler(posterior):
            at = {
                "seconds": time.perf_counter() - begin,
                "sd": float(np.median(np.abs(found_sd / sd - 1))),
                "mean": float(np.median(np.abs(found_mean - mean) / sd)),
            }
            path.append(at)
            best, since = (distance(at), 0) if distance(at) < 0.99 * best else (best, since + 1)
            if distance(at) < 1 or at["seconds"] > limit or since > patience:
                break
    except Exception as error:  # a peer that fails is a row of the table, not the end of the benchmark
        return {"path": path, "failed": f"{type(error).__name__}: {error}"[:300]}
    return {"path": path}


def row(label, found):
    if not found["path"]:
        return [label, "fails", found["failed"], "", ""]
    last, best = found["path"][-1], min(found["path"], key=distance)
    when = f"{last['seconds']:.1f}" if distance(last) < 1 else f"not in {last['seconds']:.0f}"
    return [label, when, f"{best['sd']:.3f}", f"{best['mean']:.3f}", f"{best['seconds']:.1f}"]


def main(args):
    truths = json.loads(PATH.read_text())
    for name in args.posteriors:
        posterior, numbers = POSTERIORS[name](), kept(args, f"answer_{name}")
        for label, sampler in SAMPLERS.items():
            if args.only not in label:
                continue
            limit = 20 if args.fast else LIMIT["NUTS" if label.startswith("NUTS") else "others"]
            patience = PATIENCE if label.startswith("SVI") else np.inf
            numbers[label] = follow(sampler, posterior, truths[name], limit, patience)
            print(*row(label, numbers[label]), flush=True)
            jax.clear_caches()
        head = (
            f"## Time to a right answer: {name}\n\n{POSTERIORS[name].__doc__} "
            "Seconds until the median over coordinates of the relative error of the posterior sd is below 5 % and "
            "that of the error of the mean below 0.1 sd, against a long NUTS run in whitened coordinates (`truth.py`); "
            "compilation and the search for the mode are included. Beside it the errors at the best moment. SVI is "
            "ended when it no longer improves.\n\n"
        )
        rows = [row(label, found) for label, found in numbers.items()]
        columns = ["sampler", "s", "error of sd", "of mean", "best at, s"]
        save(args, f"answer_{name}", head + table(columns, rows), numbers)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--posteriors", nargs="+", default=list(POSTERIORS))
    parser.add_argument("--only", default="", metavar="TEXT", help="samplers whose name contains it, the others kept")
    main(parser.parse_args())
