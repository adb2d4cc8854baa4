r"""
``summary(mcmc, *data)``: what a run says about itself, line by line, each against a stated bound.

From what is kept alone, in O(draws): how far the chains mixed, the steps that were refused, the kinetic temperature

.. math:: T = E[p^T M^{-1} p] / d,

which is 1 for a right sampler, and what the warm-up has found. With the data, from one fresh minibatch a draw: the
identities of the score (:mod:`~numpyro_sgmcmc.diagnostics.scores`), the configurational temperature
:math:`E[(z - m) \cdot \nabla U] / d`, which is 1 too, and the inflation of the variance that step size and minibatches
predict (:mod:`~numpyro_sgmcmc.diagnostics.predicted`).

A line is red only where a deviation is certain and matters: its z-score exceeds a quantile of Student's t for the worst
of all coordinates, and the mean is off by more than 0.1 sd, or a variance by more than 10 %. R-hat and the effective
sample size tell whether chains have mixed, and nothing about bias.
"""

from typing import Any

from jax import random
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import Draws, checked_run, key_of, latent_draws, unconstrained_draws
from numpyro_sgmcmc.diagnostics.monte_carlo import bound, effective, r_hat, standard_error
from numpyro_sgmcmc.diagnostics.predicted import epoch_of, gradient_pairs, predicted
from numpyro_sgmcmc.diagnostics.scores import Gradients, gradients, identities
from numpyro_sgmcmc.diagnostics.table import Line, Summary, graded, plain
from numpyro_sgmcmc.kernels.report import STUCK
from numpyro_sgmcmc.kernels.settings import settings
from numpyro_sgmcmc.kernels.sgmcmc import SGMCMC
from numpyro_sgmcmc.kernels.state import Marks, SGMCMCState
from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.tuning.tuner import Tuning
from numpyro_sgmcmc.types import Thermostatted

MEAN = 0.1, 0.3  # in posterior sds: doubtful, wrong
VARIANCE = 0.1, 0.3  # relative
UNCERTAIN = 0.15  # a standard error of these that shows too little
MIXED, APART = 1.1, 1.5  # R-hat
FEW = 100  # effective draws
SMALLER = "a smaller step_size, larger batches, or gradient=ControlVariate(find_mode(...))"


def summary(
    mcmc: MCMC, *model_args: Any, max_draws: int = 4000, seconds: float | None = None, **model_kwargs: Any
) -> Summary:
    r"""
    A table of what a run says about itself, each line ``ok``, ``doubtful`` or ``wrong`` against a stated bound.

    With the data it estimates :math:`E[\partial_j U] = 0` and :math:`E[(z - m)_j \partial_j U] = 1` from one fresh
    minibatch a draw, all rows where the plates have at most 2000, and predicts the inflation of the variance by
    minibatch noise and by the step size. This takes one pass over the data, and two minibatches a draw.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param model_args: arguments of the model, as they were given to ``mcmc.run``; none: only what the run has kept is
        looked at.
    :param int max_draws: draws at which gradients are evaluated, over all chains, evenly thinned.
    :param seconds: that the run took, for the gradient evaluations a second; NumPyro keeps no times.
    :param model_kwargs: keyword arguments of the model.
    :return: a mapping from the name of a line to a dict with ``value``, ``bound``, ``verdict``, ``advice`` and more;
        ``.verdict`` is ``"right"``, ``"doubtful"`` or ``"wrong"``, ``str()`` a table.
    :raises TypeError: not an MCMC with a kernel of this package.
    :raises ValueError: no run yet; fewer than 8 draws of each chain.

    **References:**

    1. *Measuring Sample Quality with Stein's Method*, J. Gorham, L. Mackey (2015), section 2: the identities
    2. *Configurational temperature*, H. H. Rugh (1997); B. D. Butler et al. (1998), equation 7

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, summary
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> def run(step_size):
        ...     kernel = SGLD(model, step_size=step_size, batch_size=500, steps_per_sample=20)
        ...     mcmc = MCMC(kernel, num_warmup=50, num_samples=1000, progress_bar=False)
        ...     mcmc.run(random.key(1), x)
        ...     return mcmc
        >>> summary(run(5e-5), x).verdict, summary(run(1e-3), x).verdict
        ('right', 'wrong')
    """
    kernel, state = checked_run(mcmc, "summary")
    lines = _cost(mcmc, kernel, state, seconds)
    if not model_args and not model_kwargs and _takes_arguments(mcmc):
        values = {name: x.reshape(*x.shape[:2], -1) for name, x in latent_draws(mcmc).items()}
        z = np.concatenate([values[name] for name in sorted(values)], -1)
        names = [name for name in sorted(values) for _ in range(values[name].shape[-1])]
        lines |= _kept(mcmc, kernel, state, z, names)
        note = (
            "These lines cannot see every bias: summary(mcmc, *model_args), with the data, adds the identities of the "
            "score."
        )
        return Summary("The run", lines, note)
    draws = unconstrained_draws(mcmc, model_args, model_kwargs, max_draws, "summary")
    lines |= _kept(mcmc, kernel, state, draws.z, list(draws.names))
    key_scores, key_pairs = random.split(key_of(state))
    found = gradients(kernel, draws, model_args, model_kwargs, key_scores)
    lines |= _scores(draws, found)
    if np.isfinite(found.values).all():
        pairs = gradient_pairs(kernel, state, draws, model_args, model_kwargs, key_pairs)
        potential = ModelPotential.of(kernel._model, model_args, model_kwargs, kernel._batch_size)
        lines |= _predictions(kernel, state, draws, found, pairs, epoch_of(kernel, potential))
    return Summary("The run", lines)


def _takes_arguments(mcmc: MCMC) -> bool:
    """Whether the run was given any, so that none here means that the data are left out."""
    return bool(mcmc._args or mcmc._kwargs)


# -- what a run has cost ---------------------------------------------------------------------------------------------


def _cost(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState, seconds: float | None) -> dict[str, Line]:
    chains = mcmc.num_chains
    kept = next(iter(latent_draws(mcmc).values())).shape[1]
    wraps = np.asarray(Marks.of(state.marks).wraps, float)
    steps = float((np.asarray(state.i, float) + 2.0**32 * wraps).max())
    h = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["step_size"], float).reshape(chains, -1)
    last = h[:, -1].mean()
    varies = not np.allclose(h, last)
    lines = {
        "draws": Line("draws", chains * kept, f"{chains} x {kept}"),
        "steps": Line("steps of a chain, warm-up included", steps, plain(steps)),
        "step_size": Line("step size", last, plain(last) + (", at the end" if varies else "")),
    }
    each = getattr(kernel.integrator, "gradients_per_step", 1)
    evaluations = each * steps * chains
    details: dict[str, Any] = {}
    try:
        potential = ModelPotential.of(kernel._model, mcmc._args or (), mcmc._kwargs or {}, kernel._batch_size)
        share = [plate.batch_size / plate.size for plate in potential.plates.values()]
        twice = 2 if hasattr(kernel._chain_for(potential).gradient, "anchor") else 1
        passes = evaluations * twice * float(np.prod(share))
        lines["passes"] = Line("passes through the data, by the steps", passes, plain(passes))
    except ValueError:
        pass  # the arguments of the run are not known any more, as after unpickling
    shown = plain(evaluations)
    if seconds is not None:
        details["per_second"] = evaluations / seconds
        shown += f", {plain(evaluations / seconds)} a second"
    lines["gradient_evaluations"] = Line("gradient evaluations", evaluations, shown, details=details)
    return lines


# -- what is kept ----------------------------------------------------------------------------------------------------


def _kept(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState, z: np.ndarray, names: list[str]) -> dict[str, Line]:
    monitor = mcmc.get_extra_fields(group_by_chain=True)["monitor"]
    lines = {"refused": _refused(mcmc, monitor, z)}
    T = np.asarray(monitor.temperature, float)
    if not np.isnan(T).all():
        lines["kinetic_temperature"] = _temperature("kinetic temperature", T)
    if isinstance(kernel.dynamics, Thermostatted):
        lines["thermostat"] = _thermostat(mcmc, kernel, state)
    lines |= _warm_up(mcmc, state)
    with np.errstate(invalid="ignore"):
        R, n = r_hat(z), effective(z)
    worst, fewest = int(np.argmax(R)), int(np.argmin(n))
    mixed = "longer chains, a larger steps_per_sample, or a start by init_params=find_mode(...); several modes perhaps"
    lines["r_hat"] = Line(
        "mixing (not correctness): R-hat",
        float(R[worst]),
        f"{R[worst]:.3f} at {names[worst]}",
        f"<= {MIXED}",
        graded(R[worst], MIXED, APART),
        f"the chains are not in the same place: {mixed}.",
        {"where": names[worst]},
    )
    lines["ess"] = Line(
        "mixing (not correctness): effective draws",
        float(n[fewest]),
        f"{n[fewest]:.0f} at {names[fewest]}",
        f">= {FEW}",
        "ok" if n[fewest] >= FEW else "doubtful",
        f"averages are not known well: {mixed}.",
        {"where": names[fewest]},
    )
    return lines


def _refused(mcmc: MCMC, monitor: Any, z: np.ndarray) -> Line:
    diverging = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["diverging"])
    share, in_a_row = float(diverging.mean()), int(np.asarray(monitor.refused).max())
    still = int((np.ptp(z, axis=1) == 0).all(-1).sum())
    wrong = still or in_a_row >= STUCK or share > 0.2
    return Line(
        "draws with a refused step",
        share,
        f"{share:.2%}" + (f", {still} chains stand still" if still else ""),
        "<= 1 %",
        "wrong" if wrong else graded(share, 0.01, 0.2),
        "steps left the finite numbers or the support: a smaller step_size, or look for data that are not finite.",
        {"in_a_row": in_a_row, "standing_still": still},
    )


def _temperature(name: str, T: np.ndarray) -> Line:
    """:param T: whose mean should be 1, shape ``(chains, draws)``."""
    mean, error = float(T.mean()), float(standard_error(T))
    certain = abs(mean - 1) > bound(1, len(T)) * error
    verdict = graded(abs(mean - 1), *VARIANCE) if certain else "ok" if np.isfinite(mean) else "wrong"
    return Line(
        name,
        mean,
        f"{mean:.3f} +- {error:.3f}",
        f"1 +- {VARIANCE[0]}",
        verdict,
        f"the draws are too {'wide' if mean > 1 else 'narrow'} or on their way from a distant start: {SMALLER}, or "
        "more warm-up.",
        {"error": error},
    )


def _thermostat(mcmc: MCMC, kernel: SGMCMC, state: SGMCMCState) -> Line:
    """Mean thermostat less D: the heat of the gradient noise that it takes up, h s^2 / 2."""
    fields = mcmc.get_extra_fields(group_by_chain=True)
    kept = fields.get("thermostat", state.thermostat)
    leaves = [np.asarray(leaf, float).ravel() for leaf in (kept.values() if isinstance(kept, dict) else [kept])]
    absorbed = float(np.concatenate(leaves).mean()) - kernel.dynamics.noise
    of = "" if "thermostat" in fields else ", of the last state"
    return Line("thermostat less D, the noise taken up", absorbed, plain(absorbed) + of)


def _warm_up(mcmc: MCMC, state: SGMCMCState) -> dict[str, Line]:
    """What the warm-up of a kernel has found that was given no step size."""
    if not isinstance(state.tuning, Tuning):
        return {}
    found = settings(mcmc)
    worst = {name: float(np.max(score)) for name, score in found["scores"].items()}
    z = max(worst["gradient"], worst["virial"])
    checked = worst["r_hat"] > 0
    limit = 4.5
    red = checked and not (z <= limit and worst["r_hat"] <= MIXED)
    inflation = float(np.max(found["predicted_inflation"]))
    return {
        "warm_up": Line(
            "check at the end of the warm-up",
            z,
            f"z = {z:.1f}, R-hat = {worst['r_hat']:.2f}" if checked else "too short for one",
            f"z <= {limit}, R-hat <= {MIXED}" if checked else "",
            ("doubtful" if red else "ok") if checked else "",
            "the posterior is perhaps a funnel (non-centre it), of several modes, or num_warmup was too short.",
            worst,
        ),
        "tuned_inflation": Line(
            "inflation that the warm-up predicts", inflation, f"{inflation:.1%}", "<= 10 %", graded(inflation, 0.1, 0.3)
        ),
    }


# -- what the data add -----------------------------------------------------------------------------------------------


def _scores(draws: Draws, found: Gradients) -> dict[str, Line]:
    rows = "all rows" if found.whole else f"{found.rows} fresh rows"
    n = draws.z.shape[0] * draws.z.shape[1]
    lines = {"looked_at": Line("gradients looked at", n, f"{n} draws, {rows} each", details={"passes": found.passes})}
    if draws.left_out:
        share = draws.left_out / (n + draws.left_out)
        lines["edge"] = Line(
            "draws at the edge of the support",
            share,
            f"{share:.2%}",
            "<= 1 %",
            graded(share, 0.01, 0.2),
            "values round to the edge of their support: another parametrisation, or jax_enable_x64.",
        )
    wrong = ~np.isfinite(found.values).all(-1)
    if wrong.any():
        lines["score"] = Line(
            "E[dU/dz] = 0",
            float("nan"),
            f"not finite in {wrong.mean():.1%} of draws",
            "finite",
            "wrong",
            "look for data that are not finite, or outside the support of their distribution.",
        )
        return lines
    of = identities(draws.z, found.values)
    limit = bound(2 * len(draws.names), len(draws.z))
    zero = (of.gradient, of.gradient_error, np.abs(of.gradient) / of.scale)
    shift = (of.shift, of.shift_error, np.abs(of.shift))
    lines["score"] = _identity("E[dU/dz] = 0", draws, zero, shift, limit, MEAN, "the mean is off by {:.2f} sd")
    one = (of.virial - 1, of.virial_error, np.abs(of.virial - 1))
    inflation = (of.inflation, of.inflation_error, np.abs(of.inflation))
    lines["virial"] = _identity(
        "E[(z - m) dU/dz] = 1", draws, one, inflation, limit, VARIANCE, "the variance is off by {:+.0%}"
    )
    product = (draws.z - draws.z.mean((0, 1))) * (found.values - found.values.mean((0, 1)))
    lines["configurational_temperature"] = _temperature("configurational temperature", product.mean(-1))
    by_site = {site: product[..., np.asarray(draws.sites) == site].mean() for site in dict.fromkeys(draws.sites)}
    line = lines["configurational_temperature"]
    lines["configurational_temperature"] = line._replace(details={**line.details, "by_site": by_site})
    return lines


def _identity(
    name: str,
    draws: Draws,
    own: tuple,
    mixed: tuple,
    limit: float,
    tolerance: tuple[float, float],
    effect: str,
) -> Line:
    """
    :param own: deviation, its standard error and its size in the coordinates themselves; **mixed** - the same times the
        covariance of the draws.
    :param effect: how to say what the second means.
    """
    deviation, own_error, own_size = own
    shifted, mixed_error, mixed_size = mixed
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.nan_to_num(np.abs(deviation) / own_error)
        z_mixed = np.nan_to_num(np.abs(shifted) / mixed_error)
    certain = np.maximum(np.where(z > limit, own_size, 0), np.where(z_mixed > limit, mixed_size, 0))
    verdict = graded(float(certain.max()), *tolerance)
    both = np.maximum(z, z_mixed)
    worst = int(np.argmax(both))
    by_site = {}
    for site in dict.fromkeys(draws.sites):
        index = np.flatnonzero(np.asarray(draws.sites) == site)
        at = index[np.argmax(both[index])]
        by_site[site] = {"z": float(both[at]), "where": draws.names[at], "effect": float(shifted[at])}
    advice = (
        f"{effect.format(shifted[int(np.argmax(certain))])} at {draws.names[int(np.argmax(certain))]}, read off to "
        f"first order: {SMALLER}; more warm-up; LocScaleReparam for a funnel; step_halving(mcmc, key, ...) tells more."
    )
    error = float(np.median(mixed_error))
    if verdict == "ok" and not error <= UNCERTAIN:
        verdict = "doubtful"
        advice = (
            f"the standard error of what it shows is {error:.2f}, so little can be seen: more draws, or larger batches."
        )
    return Line(
        name,
        float(both[worst]),
        f"z = {both[worst]:.1f} at {draws.names[worst]}, {effect.format(shifted[worst])[4:].replace(' is', '')}",
        f"z <= {limit:.1f}, or less than {tolerance[0]:.0%}",
        verdict,
        advice,
        {
            "where": draws.names[worst],
            "bound_z": limit,
            "effect": float(shifted[worst]),
            "effect_error": float(mixed_error[worst]),
            "by_site": by_site,
        },
    )


def _predictions(
    kernel: SGMCMC, state: SGMCMCState, draws: Draws, found: Gradients, pairs: np.ndarray, epoch: float
) -> dict[str, Line]:
    of = predicted(kernel, state, draws, found.values, pairs, epoch)
    if of is None:
        return {}
    lines = {}
    advice = {
        "noise": f"minibatch noise widens the draws by more than the friction takes up: {SMALLER}; or "
        'integrator="NOGIN".',
        "step": "the step is too large for the word: a smaller step_size.",
    }
    for key, words in (("noise", "minibatch noise"), ("step", "the step size")):
        inflation = getattr(of, key)
        worst = int(np.argmax(np.abs(inflation)))
        lines[f"inflation_by_{key}"] = Line(
            f"inflation predicted of {words}" + (", reshuffled" if key == "noise" and epoch >= 2 else ""),
            float(inflation[worst]),
            f"{inflation[worst]:+.1%} at {draws.names[worst]}",
            f"<= {VARIANCE[0]:.0%}",
            graded(abs(float(inflation[worst])), *VARIANCE),
            advice[key],
            {"where": draws.names[worst], "by_coordinate": dict(zip(draws.names, inflation.tolist()))},
        )
    lines["stability"] = Line(
        "stability of the step",
        of.stable,
        ("unstable", "near its limit", "stable")[of.stable],
        "at 1.25 h as well",
        ("wrong", "doubtful", "ok")[of.stable],
        "the step is at the limit of what the narrowest direction allows: a smaller step_size, or an "
        "inverse_mass_matrix.",
    )
    return lines
