"""``settings``: the results of the warm-up of a run."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.gradients.second_order import expands
from numpyro_sgmcmc.report.run_checks import Kept, verdict_on_warm_up
from numpyro_sgmcmc.rows.schemes import decided
from numpyro_sgmcmc.tuning.warm_up import Scores, Settings
from numpyro_sgmcmc.utils.monte_carlo import FEWEST, r_hat
from numpyro_sgmcmc.utils.significance import worst


def check_mcmc(mcmc: Any, caller: str) -> None:
    """Raises a TypeError if it is not an :class:`~numpyro.infer.MCMC`."""
    if not isinstance(mcmc, MCMC):
        raise TypeError(f"{caller}(mcmc) needs a numpyro.infer.MCMC that has run, not {type(mcmc).__name__}.")


def settings(mcmc: MCMC) -> Settings:
    r"""
    The settings that the warm-up of a run chose, and the result of its check.

    - **step_size** - h in the coordinates x, :math:`z = c + L x`.
    - **friction** or **diffusion** - that of the kernel, in x; absent for SGLD.
    - **steps_per_sample** - steps per draw.
    - **gradient** - the gradient estimator; a control variate with the order that was chosen. Without minibatches it is
      :class:`~numpyro_sgmcmc.Minibatch`.
    - **batch_size** - rows of a minibatch, by plate; empty if every step uses all rows.
    - **rows** - the row scheme. By default the warm-up chooses between scattered rows and blocks of neighbouring rows.
    - **gradient_noise** - :math:`s^2`, the largest variance of the gradient noise over the coordinates of x.
    - **predicted_inflation** - the largest relative variance that this noise adds to a coordinate of x, to first order.
    - **coordinates** - c and L, see :class:`~numpyro_sgmcmc.tuning.coordinates.Coordinates`.
    - **centering** - the centring of each element by site, see :mod:`~numpyro_sgmcmc.model.centering`: 1 centred, 0
      non-centred; empty if all is as written.
    - **passes** - passes over the data by the search and the measurements of the warm-up, without its steps.
    - **verdict** - ``"right"``, ``"doubtful"`` or ``"wrong"``, by the check in the second half of the warm-up, and by
      the refused steps, the temperature and the R-hat of the draws, if there are any. ``"unchecked"`` if nothing is
      wrong, but the draws are too few to decide, and the warm-up was too short for a check or they see too little.
    - **scores** - scores of the check of the warm-up: the z-scores of :math:`E[\partial_j U] = 0` and of
      :math:`E[(x - m)_j \partial_j U] = 1`, and R-hat, each in the worst coordinate; 0 if there was no check.
    - **curvature** - the largest curvature of U in x, 1 if L is a full matrix.

    If you pass them to ``settings=`` of a kernel, a later run of the same model starts with these coordinates, without
    a search. It measures the noise and chooses the step size again, so the kernel, the batch size and the data may
    differ.

    :param mcmc: an MCMC after a run, or a warm-up, with a kernel whose ``step_size`` was left out.
    :return: the settings, a dict that cannot be changed. If each of several chains has found its own
        (``chain_method="sequential"`` or ``"parallel"``), chains are along the first axis of each value.
    :raises TypeError: if it is not an :class:`~numpyro.infer.MCMC`.
    :raises ValueError: if there was no run yet, or the step size of the kernel was given.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, settings
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> mcmc = MCMC(SGHMC(model, batch_size=100), num_warmup=200, num_samples=200, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> found = settings(mcmc)
        >>> round(found["step_size"], 2), found["steps_per_sample"]
        (0.3, 4)
        >>> again = SGHMC(model, batch_size=50, settings=found)
        >>> MCMC(again, num_warmup=50, num_samples=200, progress_bar=False).run(random.key(2), x)
    """
    check_mcmc(mcmc, "settings")
    kernel, state = mcmc.sampler, mcmc.last_state
    if not isinstance(kernel, SGMCMC):
        raise ValueError(
            f"settings(mcmc) needs a kernel of numpyro_sgmcmc whose warm-up chose the step size, not "
            f"{type(kernel).__name__}. For a block of numpyro.infer.Gibbs see mcmc.last_state.block_states."
        )
    if state is None:
        raise ValueError("settings(mcmc): there was no run yet; call mcmc.run(...) first.")
    if not state.warm_up:
        raise ValueError(
            "settings(mcmc) needs a kernel whose warm-up chose the step size, but step_size= was given. Leave it out."
        )
    chosen = jax.device_get(state.settings)
    several = np.ndim(chosen.step_size) == 1

    def value(x):
        return np.asarray(x) if several else np.asarray(x).item()

    schemes = [decided(kernel.rows, bool(contiguous)) for contiguous in np.atleast_1d(chosen.contiguous)]
    names = "step_size", "steps_per_sample", "predicted_inflation", "curvature", "passes"
    return replace(
        chosen,
        **{name: value(chosen[name]) for name in names},
        gradient=_in_use(kernel.gradient, state.gradient_state),
        batch_size={} if chosen.uses_all_rows else {name: int(np.max(n)) for name, n in chosen.batch_size.items()},
        rows=schemes if several else schemes[0],
        gradient_noise=value(chosen.noise_variance.max(-1)),
        centering=dict(chosen.centering),
        scores={name: value(score) for name, score in chosen.scores._asdict().items()},
        verdict=value(_verdicts(mcmc, state, chosen.scores)),
        friction=getattr(kernel, "friction", None),
        diffusion=getattr(kernel, "diffusion", None),
    )


def _in_use(gradient: Any, gradient_state: Any) -> Any:
    """The estimator, with the order of a control variate that the warm-up has chosen, or the plain one in its place."""
    if isinstance(gradient, ControlVariate) and gradient.shared and gradient_state == ():
        return Minibatch()
    if not expands(gradient_state):
        return gradient
    return replace(gradient, order=2 if np.all(gradient_state.hessian.used) else 1)


def _verdicts(mcmc: MCMC, state: SGMCMCState, scores: Scores) -> np.ndarray:
    """The verdict on a run, or on each of the chains that have found their own settings."""
    averages, limit = state.averages, state.warm_up.score_limit
    fields = mcmc.get_extra_fields(group_by_chain=True) if mcmc._states else {}
    of_draws, run = "ok", None
    if "monitor" in fields:
        samples = mcmc.get_samples(group_by_chain=True)
        sites = {name for name, _ in averages.sites}
        latents = [x for name, x in samples.items() if name in sites and x.shape[1] >= FEWEST and x.size]
        mixing = np.concatenate([r_hat(x).ravel() for x in latents]) if latents else None
        run = Kept(fields["monitor"], averages, limit, mixing)
        of_draws = worst(*(line.verdict for name, line in run.failures.items() if name != "warm_up"))
    checks = np.stack(scores, -1)
    of_warm_up = [verdict_on_warm_up(of_chain, limit) for of_chain in checks.reshape(-1, checks.shape[-1])]
    if run is not None and state.scores != ():
        of_warm_up = [run.verdict.after(verdict) for verdict in of_warm_up]
    # a doubt is never better than the check
    verdicts = of_warm_up if of_draws == "ok" else [of_draws] * len(of_warm_up)
    return np.array(verdicts).reshape(checks.shape[:-1])
