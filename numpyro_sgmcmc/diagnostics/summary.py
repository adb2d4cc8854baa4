r"""
``summary(mcmc, *data)``: checks of a run, each compared with a stated bound.

The checks of the kept fields (:mod:`~numpyro_sgmcmc.report.run_checks`) are in O(draws), among them the kinetic
temperature :math:`E[p^T M^{-1} p] / d`, which is 1 for a correct sampler. Those with the data
(:mod:`~numpyro_sgmcmc.diagnostics.checks_with_data`) take one new minibatch per draw.

The verdict is not ``ok`` only if a deviation is significant and matters: its z-score exceeds a quantile of Student's t
for the worst of all coordinates, and the error of a mean exceeds 0.1 sd, or that of a variance 10 %. R-hat and the
effective sample size measure whether chains have mixed, not bias.
"""

from typing import Any

from jax import random
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.checks_with_data import CHECKS_WITH_DATA, WithData, numbers_by_site, power
from numpyro_sgmcmc.diagnostics.local_checks import local_lines
from numpyro_sgmcmc.diagnostics.pictures import summary_picture
from numpyro_sgmcmc.diagnostics.predicted_inflation import gradient_pairs
from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.diagnostics.scores import gradients
from numpyro_sgmcmc.diagnostics.table import Summary
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.report.run_checks import CHECKS, Kept
from numpyro_sgmcmc.report.run_verdict import RunVerdict
from numpyro_sgmcmc.types import Thermostatted
from numpyro_sgmcmc.utils.monte_carlo import r_hat
from numpyro_sgmcmc.utils.wording import plain

NUMBERS = 2**25  # maximal number of coordinates times draws that are used
FEWEST = 400  # number of draws that are used for any number of coordinates
NO_POWER = Line(None, "not known without the data", title="power")


def summary(
    mcmc: MCMC, *model_args: Any, max_draws: int = 4000, seconds: float | None = None, **model_kwargs: Any
) -> Summary:
    r"""
    A table of checks of a run, each with a bound and a verdict: ``ok``, ``doubtful`` or ``wrong``.

    If you pass the data, it checks :math:`E[\partial_j U] = 0` and :math:`E[(z - m)_j \partial_j U] = 1` with one new
    minibatch per draw (or all rows, for plates of at most 2000), and predicts the inflation of the variance by
    minibatch noise and by the step size. This takes one pass over the data and two minibatches per draw.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param model_args, model_kwargs: arguments of the model, as given to ``mcmc.run``. Without them only the fields
        that the run has kept are checked.
    :param int max_draws: draws at which gradients are evaluated, over all chains, evenly thinned; fewer, but at least
        400, if these would be more than 2**25 numbers.
    :param seconds: duration of the run, to report gradient evaluations per second; NumPyro does not record it.
    :return: a mapping from the name of a line to a dict with ``value``, ``bound``, ``verdict``, ``advice`` and more;
        ``.verdict`` is ``"right"``, ``"doubtful"`` or ``"wrong"``, or ``"unchecked"`` if nothing is wrong, but the run
        is too short; ``str()`` says in short what is wrong or doubtful and which errors would have been found, and
        ``.all()`` is the whole table; ``.by_site`` has the identities, the temperature and the predicted inflations of
        each site, for its worst coordinate; ``.plot()`` is a picture of the errors by site.
    :raises TypeError: if it is not an MCMC with a kernel of this package.
    :raises ValueError: if there was no run yet, there are fewer than 8 draws of each chain, or the data are not those
        of the run.

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
    run = Run(mcmc, model_args, model_kwargs, "summary", data_needed=False)
    with_data = run.has_data and not run.keeps_local_values
    draws = run.draws(min(max_draws, max(FEWEST, NUMBERS // run.coordinates))) if with_data else run.values()
    kept = _kept(run, draws)
    lines = _facts(run, seconds) | CHECKS.lines(kept)
    if not with_data:
        checks_draws = run.state.scores != ()  # while the run was sampling
        if run.has_data:
            lines |= local_lines(run, None, run.key)
        more = (
            'local= has start="previous", so there are no score identities; step_halving(mcmc, key, ...) shows more.'
            if run.keeps_local_values
            else "With the data, summary(mcmc, *model_args) adds the score identities."
        )
        note = f"These lines do not detect every bias. {more}"
        lines["power"] = _power(kept, kept.verdict) if checks_draws else NO_POWER
        checked = not checks_draws or kept.verdict.after(kept.of_warm_up) != "unchecked"
        return Summary("Verdict", lines, note, checked=checked, picture=summary_picture)
    key_scores, key_pairs, key_local = random.split(run.key, 3)
    sampled = run.as_sampled(draws)
    scores = gradients(run, sampled, key_scores)
    normal = np.isfinite(scores.values).all() and not run.samples_other_coordinates  # a prediction is for NumPyro's
    data = WithData(run, sampled, scores, run.use, gradient_pairs(run, draws, key_pairs) if normal else None)
    lines |= CHECKS_WITH_DATA.lines(data)
    verdict = kept.verdict._replace(power=kept.verdict.power.or_by(power(data)))
    lines["power"] = _power(kept, verdict)
    if normal:
        lines |= local_lines(run, draws, key_local)
    checked = verdict.after(kept.of_warm_up) != "unchecked"
    return Summary("Verdict", lines, by_site=numbers_by_site(lines), checked=checked, picture=summary_picture)


def _facts(run: Run, seconds: float | None) -> dict[str, Line]:
    """Lines that are not checked: the size and the cost of the run, and what its thermostat has balanced."""
    kernel, chains, kept, steps = run.kernel, run.mcmc.num_chains, run.draws_of_a_chain, float(run.steps.max())
    lines = {
        "draws": Line(chains * kept, f"{chains} x {kept}"),
        "steps": Line(steps, plain(steps), title="steps of a chain, warm-up included"),
    }
    each = getattr(kernel.integrator, "gradients_per_step", 1)
    evaluations = each * steps * chains * len(getattr(run.sampler, "temperatures", [1.0]))
    if run.has_data or run.args or run.kwargs:
        batch, size = run.rows
        own = run.potential if kernel.transforms is None else kernel.potential(run.args, run.kwargs)
        each_row = kernel.chain_for(own).gradient.gradients_per_row(run.state.gradient_state)
        passes = evaluations * each_row * (batch / size if size else 1.0)
        lines["passes"] = Line(passes, plain(passes), title="passes over the data, by the steps")
    shown, details = plain(evaluations), {}
    if seconds is not None:
        details["per_second"] = evaluations / seconds
        shown += f", in {plain(seconds)} s: {plain(evaluations / seconds)} a second"
    lines["gradient_evaluations"] = Line(evaluations, shown, details=details, title="gradient evaluations")
    if isinstance(kernel.dynamics, Thermostatted):
        lines["thermostat"] = _thermostat(run)
    return lines


def _thermostat(run: Run) -> Line:
    """Mean thermostat minus D: the effect of the gradient noise that it balances, h s^2 / 2."""
    kept: Any = run.fields.get("thermostat", run.state.thermostat)
    leaves = [np.asarray(leaf, float).ravel() for leaf in (kept.values() if isinstance(kept, dict) else [kept])]
    balanced = float(np.concatenate(leaves).mean()) - run.kernel.dynamics.noise
    shown = plain(balanced) + ", of the last state" * ("thermostat" not in run.fields)
    return Line(balanced, shown, title="thermostat minus D: the noise that it balances")


def _kept(run: Run, draws: Draws) -> Kept:
    limit = np.inf if run.warm_up is None else run.warm_up.score_limit
    with np.errstate(invalid="ignore"):
        return Kept(run.monitor, run.state.averages, limit, r_hat(draws.z), draws.z, draws.names)


def _power(kept: Kept, verdict: RunVerdict) -> Line:
    """A line without a check: the errors that would have been found."""
    shown = verdict.power.words(kept.of_warm_up == "right", kept.monitor.step_size.shape[1])
    return Line(verdict.power.shift, shown, details={"inflation": verdict.power.inflation}, title="power")
