"""
A hierarchical model and its scales
===================================

A regression with an intercept and a slope for each of 50 groups of very different sizes, on a hundred thousand rows.
The scales of the effects and of the noise are constrained sites with priors of their own. SGHMC on minibatches, with
gradient noise reduced by control variates or by SAGA, is compared with NUTS on all rows: the draws, and the time. A
second model has a scale that the data hardly determine, and minibatches fail on it. The program asserts its claims at
the end.
"""

from argparse import Namespace
from functools import partial
import time

from gallery import parsed, parser, save, shown
import jax
from jax import lax, random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy
from reference import hmc_draws
from tqdm import tqdm

from numpyro_sgmcmc import SAGA, SGHMC, ControlVariate, Minibatch, find_mode, gradient_noise

GROUPS, DAYS = 50, 40
SMALL = 0.3  # scale of the days' effects, in units of the standard error of a day's mean
SCALES = ("tau", "omega", "sigma")
SIZE = {  # with --fast, without
    "rows": (2000, 100_000),
    "large": (0, 1_000_000),
    "batch_size": (500, 1000),
    "mode_steps": (2000, 5000),
    "num_chains": (1, 8),
    "num_warmup": (40, 50),
    "num_samples": (300, 500),
    "nuts_warmup": (150, 300),
    "nuts_samples": (250, 1000),
}


# %%
# Model and data
# --------------
# The effects of the groups are latent sites like any other, and the group of a row is part of the data. Only the rows
# are minibatched. As most groups have many rows, their effects are well determined, and the centred form below is the
# right one.


def model(x, group, y):
    centre = numpyro.sample("centre", dist.Normal(0, 5).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    omega = numpyro.sample("omega", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))
    with numpyro.plate("groups", GROUPS):
        intercept = numpyro.sample("intercept", dist.Normal(centre[0], tau))
        slope = numpyro.sample("slope", dist.Normal(centre[1], omega))
    with numpyro.plate("rows", len(y)) as rows:
        g = group[rows]
        numpyro.sample("y", dist.Normal(intercept[g] + slope[g] * x[rows], sigma), obs=y[rows])


def simulate(seed, size):
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.ones(GROUPS)) + 0.002
    group = rng.choice(GROUPS, size, p=share / share.sum())
    x = rng.standard_normal(size)
    intercept, slope = rng.normal(1.0, 0.5, GROUPS), rng.normal(-0.3, 0.2, GROUPS)
    y = rng.normal(intercept[group] + slope[group] * x, 0.8)
    return jnp.asarray(x, jnp.float32), jnp.asarray(group, jnp.int32), jnp.asarray(y, jnp.float32)


# %%
# SGHMC
# -----
# ``find_mode`` gives the start and the centre of the control variates, the diagonal of the Hessian there the mass. Then
# the posterior is about one unit wide in each coordinate, moves on a scale of one unit of time at friction 1, and one
# step size does for all sites.


def curvature(z, data):
    """Diagonal of the Hessian of U over all rows, one product with the Hessian after another."""
    flat, unravel = ravel_pytree(z)
    gradient = jax.grad(lambda v: potential_energy(model, data, {}, unravel(v)))
    diagonal = jax.jit(lambda: lax.map(lambda e: e @ jax.jvp(gradient, (flat,), (e,))[1], jnp.eye(len(flat))))
    return unravel(diagonal())


def prepare(data, args):
    """Mode, inverse mass, and the seconds that they took."""
    begin = time.perf_counter()
    mode = find_mode(
        model, random.key(args.seed), *data, batch_size=args.batch_size, num_steps=args.mode_steps, progress_bar=False
    )
    inverse_mass = {name: 1 / np.asarray(c) for name, c in curvature(mode, data).items()}
    return mode, inverse_mass, time.perf_counter() - begin


def sghmc(model, data, start, args, *, step_size, gradient, inverse_mass, apart=2.0):
    """Draws by chain, predicted inflation of the variances and the seconds; ``apart`` units of time between draws."""
    begin = time.perf_counter()
    kernel = SGHMC(
        model,
        step_size=step_size,
        friction=args.friction,
        batch_size=args.batch_size,
        gradient=gradient,
        inverse_mass_matrix=inverse_mass,
        steps_per_sample=round(apart / step_size),
    )
    mcmc = MCMC(
        kernel,
        num_warmup=args.num_warmup,
        num_samples=args.num_samples,
        num_chains=args.num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    if args.num_chains > 1:
        start = {name: jnp.broadcast_to(z, (args.num_chains, *jnp.shape(z))) for name, z in start.items()}
    mcmc.run(random.key(args.seed + 1), *data, init_params=start)
    draws = {name: np.asarray(z, float) for name, z in mcmc.get_samples(group_by_chain=True).items()}
    seconds = time.perf_counter() - begin
    refused = int(mcmc.get_extra_fields()["diverging"].sum())
    if args.fast or args.batch_size is None:
        return draws, None, refused, seconds
    noise = gradient_noise(kernel, mcmc.last_state, *data).inflation
    return draws, {name: np.mean(v, 0) for name, v in noise.items()}, refused, seconds


def nuts(model, data, args):
    begin = time.perf_counter()
    key = random.key(args.seed + 2)
    draws, told = hmc_draws(NUTS(model), args.nuts_warmup, args.nuts_samples, key, None, *data)
    draws = {name: np.asarray(z, float)[None] for name, z in draws.items()}
    return draws, float(told["num_steps"].mean()), int(told["diverging"].sum()), time.perf_counter() - begin


# %%
# The comparison
# --------------
# For each coordinate: how far the means are apart, in posterior standard deviations by NUTS, and the ratio of the
# standard deviations. The errors are those of both runs together, by their effective sample sizes.


def moments(x):
    """Mean and sd with their standard errors, shape=(chains, draws, ...)."""
    mean, sd = x.mean((0, 1)), x.std((0, 1))
    z2 = ((x - mean) / sd) ** 2
    mean_se = sd / np.sqrt(effective_sample_size(x))
    sd_se = sd * z2.std((0, 1)) / np.sqrt(effective_sample_size(z2)) / 2
    return mean, sd, mean_se, sd_se


def compare(draws, reference):
    """Site -> mean off and its error, ratio of the sd and its error; each an array with an entry a coordinate."""
    found = {}
    for name, x in draws.items():
        mean, sd, mean_se, sd_se = moments(x)
        true_mean, true_sd, true_mean_se, true_sd_se = moments(reference[name])
        ratio = sd / true_sd
        errors = np.hypot(mean_se, true_mean_se) / true_sd, ratio * np.hypot(sd_se / sd, true_sd_se / true_sd)
        found[name] = tuple(map(np.atleast_1d, ((mean - true_mean) / true_sd, errors[0], ratio, errors[1])))
    return found


# %%
# A scale that the data hardly determine
# --------------------------------------
# The second model has an effect for each of 40 days whose true scale is a third of the standard error of a day's mean.
# The data do not exclude that it is 0. In the centred form the effects must be the smaller the smaller their scale,
# which makes a funnel; in the other form they are a scale times standard normal variables, and there is none. The
# gradients come from SAGA, whose tables follow the chain and need no mode: that of the centred form is the pit at scale
# 0, that of the other lies at far too large a scale.


FORMS = {  # label -> whether centred, and what samples
    "NUTS, non-centred": (False, "NUTS"),
    "NUTS, centred": (True, "NUTS"),
    "SAGA, non-centred": (False, "SAGA"),
    "SAGA, centred": (True, "SAGA"),
    "all rows, non-centred": (False, "all rows"),
}


def daily(day, y, *, centred):
    omega = numpyro.sample("omega", dist.HalfNormal(0.1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))
    with numpyro.plate("days", DAYS):
        effect = numpyro.sample("effect", dist.Normal(0, omega if centred else 1))
    effect = effect if centred else omega * effect
    with numpyro.plate("rows", len(y)) as rows:
        numpyro.sample("y", dist.Normal(effect[day[rows]], sigma), obs=y[rows])


def simulate_daily(seed, size):
    rng = np.random.default_rng((seed, 1))
    day = rng.integers(DAYS, size=size)
    y = rng.normal(rng.normal(0, SMALL * np.sqrt(DAYS / size), DAYS)[day], 1)
    return jnp.asarray(day, jnp.int32), jnp.asarray(y, jnp.float32)


def funnel(args):
    """Label -> draws of the scale by chain, in units of the standard error of a day's mean; refused steps, seconds."""
    data = simulate_daily(args.seed, args.rows)
    error = np.sqrt(DAYS / args.rows)
    start = {"effect": jnp.zeros(DAYS), "omega": jnp.log(error), "sigma": jnp.zeros(())}
    inverse_mass = {"omega": 0.25, "sigma": 0.5 / args.rows}
    masses = {True: {**inverse_mass, "effect": error**2}, False: {**inverse_mass, "effect": 1.0}}
    all_rows = Namespace(**{**vars(args), "batch_size": None, "num_chains": 2})
    found = {}
    for label, (centred, how) in tqdm(FORMS.items(), desc="a scale hardly determined"):
        form = partial(daily, centred=centred)
        options = {"step_size": args.step_size, "inverse_mass": masses[centred]}
        if how == "NUTS":
            run = nuts(form, data, args)
        elif how == "all rows":
            run = sghmc(form, data, start, all_rows, gradient=Minibatch(), **options)
        else:
            run = sghmc(form, data, start, args, gradient=SAGA(per="batch"), **options)
        found[label] = run[0]["omega"] / error, run[2], run[3]
    return found


def study(rows, args, *, only=None):
    """NUTS and SGHMC on the first model: label -> draws, seconds and the comparison with NUTS."""
    data = simulate(args.seed, rows)
    draws, leapfrogs, divergences, seconds = nuts(model, data, args)
    found = {"NUTS": {"draws": draws, "seconds": seconds, "leapfrogs": leapfrogs, "refused": divergences}}
    mode, inverse_mass, preparation = prepare(data, args)
    variants = {
        "control variates": (ControlVariate(mode), args.step_size),
        "SAGA": (SAGA(per="batch"), args.step_size),
        "plain": (Minibatch(), args.step_size),
        "plain, small steps": (Minibatch(), args.small_step_size),
    }
    for label in tqdm(only or variants, desc=f"{rows} rows"):
        gradient, h = variants[label]
        draws, predicted, refused, seconds = sghmc(
            model, data, mode, args, step_size=h, gradient=gradient, inverse_mass=inverse_mass
        )
        found[label] = {
            "draws": draws,
            "seconds": preparation + seconds,
            "refused": refused,
            "predicted": predicted,
            "step size": h,
            "compared": compare(draws, found["NUTS"]["draws"]),
        }
    return data, found


# %%
# The picture
# -----------

COLOURS = {  # of Okabe & Ito, which colour-blind readers can tell apart
    "NUTS": "0.55",
    "control variates": "#0072B2",
    "SAGA": "#009E73",
    "plain": "#D55E00",
    "plain, small steps": "#E69F00",
}


def draw(data, found, large, scale, args):
    figure, (top, bottom) = plt.subplots(2, 3, figsize=(13.5, 8), layout="constrained")
    for axes, name in zip(top, SCALES):
        draw_density(axes, {label: run["draws"][name] for label, run in found.items()})
        axes.set_title(
            {"tau": "scale of the intercepts", "omega": "scale of the slopes", "sigma": "noise"}[name], loc="left"
        )
    draw_widths(bottom[0], np.bincount(data[1], minlength=GROUPS), found)
    if scale:
        draw_funnel(bottom[1], scale)
    draw_clock(bottom[2], {args.rows: found, args.large: large} if large else {args.rows: found})
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if not scale:
        bottom[1].set_axis_off()
    handles, labels = top[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=len(labels), frameon=False)
    return figure


def draw_density(axes, draws):
    mean, sd = draws["NUTS"].mean(), draws["NUTS"].std()
    edges = mean + sd * np.linspace(-4.5, 4.5, 46)
    for label, x in draws.items():
        heights = np.histogram(x, edges)[0] / x.size / np.diff(edges)
        look = {"fill": True, "alpha": 0.4} if label == "NUTS" else {"lw": 1.5}
        axes.stairs(heights, edges, color=COLOURS[label], label=label, **look)
    axes.set(yticks=[], xlim=edges[[0, -1]])
    axes.locator_params(axis="x", nbins=5)


def draw_widths(axes, sizes, found):
    for label, run in found.items():
        if label != "NUTS":
            ratios = [run["compared"][name][2] for name in ("intercept", "slope")]
            axes.plot(np.tile(sizes, 2), np.concatenate(ratios), "o", ms=3.5, alpha=0.7, color=COLOURS[label])
    axes.axhline(1, color="black", lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="rows of the group", ylabel="posterior sd / that of NUTS")
    low, high = axes.get_ylim()
    ticks = [tick for tick in (0.8, 0.9, 1, 1.2, 1.5, 2, 3) if low < tick < high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_title("intercepts and slopes of the groups", loc="left")


FORM_LOOKS = (
    {"color": "0.55", "fill": True, "alpha": 0.4},
    {"color": "black", "lw": 1.2, "ls": "--"},
    {"color": "#009E73", "lw": 1.5},
    {"color": "#CC79A7", "lw": 1.5, "ls": "--"},
    {"color": "#0072B2", "lw": 1.5},
)


def draw_funnel(axes, scale):
    edges = np.linspace(-3, 0.5, 51)
    for (label, (x, *_)), look in zip(scale.items(), FORM_LOOKS):
        heights = np.histogram(np.log10(x), edges)[0]
        axes.stairs(heights / x.size / np.diff(edges), edges, label=label, **look)
    axes.set(yticks=[], xlim=edges[[0, -1]], xlabel="log10 of the scale / the standard error of a day's mean")
    axes.set_title("a scale hardly determined", loc="left")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def draw_clock(axes, by_rows):
    bars = [(rows, label, run["seconds"]) for rows, found in by_rows.items() for label, run in found.items()]
    for k, (_, label, seconds) in enumerate(bars):
        axes.barh(k, seconds, color=COLOURS[label], alpha=0.4 if label == "NUTS" else 1)
        axes.text(seconds, k, f" {seconds:.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [f"{label}\n{rows:,} rows" for rows, label, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds, compilation included")
    axes.set_title("the clock", loc="left")


def report(rows, found):
    run = found["NUTS"]
    print(f"{rows} rows, NUTS: {run['leapfrogs']:.0f} gradients a draw, {run['seconds']:.1f} s")
    for label, run in found.items():
        if label == "NUTS":
            continue
        print(f"{rows} rows, {label}, h = {run['step size']:g}: {run['seconds']:.1f} s, {run['refused']} refused")
        for name, (off, off_se, ratio, ratio_se) in run["compared"].items():
            print(
                f"  {name:9} mean off / sd {np.sqrt((off**2).mean()):6.3f} ({off_se.mean():.3f})   sd / sd "
                f"{ratio.mean():6.3f} ({ratio_se.mean():.3f}), largest {ratio.max():.3f}"
                + (f"   predicted {np.sqrt(1 + run['predicted'][name]).mean():.3f}" if run["predicted"] else "")
            )


def numbers(found):
    """What goes into metrics.json."""
    keep = ("seconds", "step size", "refused", "leapfrogs")
    out = {label: {key: run[key] for key in keep if key in run} for label, run in found.items()}
    for label, run in found.items():
        for name, (off, off_se, ratio, ratio_se) in run.get("compared", {}).items():
            out[label][name] = {
                "mean_off": list(off),
                "mean_off_se": list(off_se),
                "sd_ratio": list(ratio),
                "sd_ratio_se": list(ratio_se),
            }
    return out


# %%
# What is claimed, and what is not
# --------------------------------
# **The posterior.** With control variates at the mode, all means and standard deviations are those of NUTS to within
# the errors of the two runs. With SAGA the effects of the groups are a little too wide: its tables are up to an epoch
# old, which is ten units of time, and remember gradients of an independent draw. Plain minibatches at the same step
# size make them much too wide. At a tenth of the step size an epoch lasts one unit of time, reshuffling works, and the
# effects are right. ``check`` asserts all of this. The page of :doc:`results </results>` has the ratios of the standard
# deviations. The error does not stay with the effects: the printed table shows that with plain minibatches the scales
# of the slopes and of the noise are off as well.
#
# **The time.** The page of results has the times; nothing is asserted about them. On 100 000 rows NUTS and SGHMC take
# about as long, and most of the time of SGHMC is compilation. On a million rows NUTS takes many times as long. SGHMC
# with minibatches of the same size takes no longer than before, and ``check`` asserts that it is as good: the noise
# that control variates leave depends on how many rows of a group are in a minibatch, not on how many there are.
#
# **A scale hardly determined.** Here SGHMC with minibatches fails in both forms, and R-hat hardly shows it. The program
# prints quantiles of the scale, and R-hat. In the non-centred form the gradient with respect to the scale has a noise
# that grows with the scale, and a chain spends its time where this noise is small: the median of the scale is far too
# small. SAGA does not help, nor would control variates, for the gradient of a row is its residual times effect times
# scale, and what they take away is this product at another place. With all rows the same chain is right. ``check``
# asserts that the median is less than half of that by NUTS with SAGA, and within a factor of two of it with all rows.
# In the centred form the scale itself has no minibatch noise, but the chain does not get into the neck of the funnel,
# and small scales are missing; there NUTS goes wrong too, though less. Such a scale is better sampled from all rows, by
# NUTS in the non-centred form.


def check_posterior(label, run, room):
    """At four standard errors: with a hundred coordinates, a few are at three."""
    assert run["refused"] == 0, f"{label} refused steps"
    for name, (off, off_se, ratio, ratio_se) in run["compared"].items():
        worst = (np.abs(off) - 4 * off_se).max(), (np.abs(ratio - 1) - 4 * ratio_se).max()
        assert max(worst) < room, f"{label}, {name}: not the posterior by NUTS, {worst}"


def check(found, large, scale):
    for runs in filter(None, (found, large)):
        check_posterior("control variates", runs["control variates"], 0.05)
    if "plain" in found:
        check_posterior("SAGA", found["SAGA"], 0.15)
        effects = {
            label: np.median([run["compared"][name][2] for name in ("intercept", "slope")])
            for label, run in found.items()
            if label != "NUTS"
        }
        assert abs(effects["control variates"] - 1) < 0.05, f"control variates: the effects are not right, {effects}"
        assert abs(effects["plain, small steps"] - 1) < 0.1, f"plain, small steps: not right, {effects}"
        assert 1.02 < effects["SAGA"] < 1.2, f"SAGA: the effects are not a little too wide, {effects}"
        assert effects["plain"] > 1.5, f"plain minibatches at large steps are not too wide, {effects}"
    if scale:
        median = {label: np.median(x) for label, (x, *_) in scale.items()}
        share = {label: m / median["NUTS, non-centred"] for label, m in median.items()}
        assert share["SAGA, non-centred"] < 0.5, f"non-centred, minibatches: the scale is not too small, {share}"
        assert 0.5 < share["all rows, non-centred"] < 2, f"non-centred, all rows: not the scale by NUTS, {share}"


def main(args):
    if args.fast:  # most of the time is compilation then
        jax.config.update("jax_disable_most_optimizations", True)
    data, found = study(args.rows, args, only=["control variates"] if args.fast else None)
    scale = None if args.fast else funnel(args)
    large = study(args.large, args, only=["control variates"])[1] if args.large else None
    report(args.rows, found)
    if large:
        report(args.large, large)
    metrics = {f"{args.rows} rows": numbers(found)}
    if large:
        metrics[f"{args.large} rows"] = numbers(large)
    if scale:
        metrics["scale"] = {}
        for label, (x, refused, seconds) in scale.items():
            quantiles = np.quantile(x, (0.05, 0.25, 0.5, 0.75, 0.95))
            r_hat = float(split_gelman_rubin(np.log(x)))
            metrics["scale"][label] = dict(quantiles=list(quantiles), r_hat=r_hat, refused=refused, seconds=seconds)
            print(f"{label}: quantiles {np.round(quantiles, 3)}, R-hat {r_hat:.3f}, {refused} refused, {seconds:.1f} s")
    save(args, "hierarchical", draw(data, found, large, scale, args), metrics)
    if shown(args):
        check(found, large, scale)


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--friction", type=float, default=1.0)
    arguments.add_argument("--step-size", type=float, default=0.1)
    arguments.add_argument("--small-step-size", type=float, default=0.01, help="for plain minibatches, a second run")
    main(parsed(arguments, **SIZE))
