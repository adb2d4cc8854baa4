"""``to_arviz``: the result of ``az.from_numpyro`` for a run; a saved netCDF file documents how it was made."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
import json
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.log_likelihood import log_likelihood_of
from numpyro_sgmcmc.diagnostics.run import Run, TooFewDraws
from numpyro_sgmcmc.diagnostics.summary import summary
from numpyro_sgmcmc.diagnostics.weights import weights
from numpyro_sgmcmc.engine.settings import settings
from numpyro_sgmcmc.utils.validation import checked_count

PACKAGES = "numpyro_sgmcmc", "numpyro", "jax", "arviz"  # whose versions are kept


def to_arviz(
    mcmc: MCMC,
    *model_args: Any,
    log_likelihood: bool | int = False,
    correction: Any = None,
    seed: int = 0,
    **model_kwargs: Any,
) -> Any:
    r"""
    ArviZ's ``InferenceData`` (0.23) or ``DataTree`` (1.x) of a run.

    In addition to ``az.from_numpyro``, the group ``sample_stats`` has ``weight``, ``temperature``, ``refused`` (steps
    refused in a row) and, if it was collected, the ``thermostat`` of each site. The attributes of ``posterior`` are
    ``settings``, ``versions``, and the ``verdict`` of :func:`~numpyro_sgmcmc.summary` with its ``lines`` and their
    ``verdicts``; all but the verdict as JSON.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package.
    :param model_args, model_kwargs: arguments of the model, for a summary with the data; none: the verdict uses only
        the fields that the run has kept.
    :param log_likelihood: True: the log-likelihood of all rows, evaluated in chunks, ``chains * draws * N`` numbers. An
        integer k: that of k rows, drawn without replacement, whose numbers are the coordinate of the plate. ``az.loo``
        of k of N rows times N / k estimates that of all rows; ``az.loo_subsample`` needs the log-likelihood of all
        rows.
    :param correction: draws of :func:`~numpyro_sgmcmc.corrected`, instead of those of the run. The attribute
        ``correction`` describes them.
    :param int seed: seed for the choice of rows.
    :raises ValueError: if there was no run yet, or the log-likelihood of more rows than there are is requested.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, to_arviz
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=2000, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> idata = to_arviz(mcmc, x, log_likelihood=50)
        >>> idata.log_likelihood["x"].shape, idata.sample_stats["temperature"].shape
        ((1, 2000, 50), (1, 2000))
        >>> idata.posterior.attrs["verdict"]
        'right'
    """
    run = Run(mcmc, model_args, model_kwargs, "to_arviz")
    import arviz as az  # importing it takes longer than NumPyro and JAX together, so only where it is needed

    try:
        checks = summary(mcmc, *model_args, **model_kwargs)
    except TooFewDraws:  # save them with the verdicts on the fields collected during the run
        checks = summary(mcmc)
    idata = az.from_numpyro(run.with_arguments(), log_likelihood=False)
    attributes = {
        "settings": json.dumps(_settings(run)),
        "versions": json.dumps({name: version(name) for name in PACKAGES}),
        "verdict": checks.verdict,
        "lines": json.dumps({key: line.shown for key, line in checks.lines.items()}),
        "verdicts": json.dumps({key: line.verdict for key, line in checks.lines.items() if line.verdict}),
    }
    if correction is not None:
        if not hasattr(correction, "done"):
            raise TypeError(f"correction= must be the result of corrected(mcmc, ...), not {type(correction).__name__}.")
        attributes["correction"] = correction.done
    posterior = _dataset(idata, "posterior")
    for site, draws in (correction or {}).items():
        if site in posterior and draws.shape != posterior[site].shape:
            raise ValueError(
                f"correction= has shape {draws.shape} at site {site!r}, the run {posterior[site].shape}: draws whose "
                "unconstrained values are not finite, or from an exploration, are not corrected. Save the corrected "
                "draws by themselves, az.from_dict({'posterior': dict(correction)})."
            )
        if site in posterior:
            posterior[site] = (posterior[site].dims, draws)
    _replace(idata, "posterior", posterior.assign_attrs(attributes))
    _replace(idata, "sample_stats", _dataset(idata, "sample_stats").assign(_statistics(mcmc)))
    if log_likelihood is not False:
        rows = None if log_likelihood is True else checked_count("log_likelihood", log_likelihood)
        _replace(idata, "log_likelihood", log_likelihood_of(run, rows, seed))
    return idata


def _dataset(idata: Any, group: str) -> Any:
    import xarray as xr

    dataset = getattr(idata, group)
    return (dataset if isinstance(dataset, xr.Dataset) else dataset.to_dataset()).copy()


def _replace(idata: Any, group: str, dataset: Any) -> None:
    import xarray as xr

    if isinstance(idata, getattr(xr, "DataTree", ())):
        idata[group] = xr.DataTree(dataset=dataset)  # pyright: ignore[reportAttributeAccessIssue]
    elif hasattr(idata, group):
        setattr(idata, group, dataset)
    else:
        idata.add_groups({group: dataset})


def _statistics(mcmc: MCMC) -> dict[str, Any]:
    kept = mcmc.get_extra_fields(group_by_chain=True)
    monitor, dims = kept["monitor"], ("chain", "draw")
    added = {"weight": (dims, weights(mcmc, group_by_chain=True)), "refused": (dims, np.asarray(monitor.refused))}
    if not np.isnan(np.asarray(monitor.temperature, float)).all():
        added["temperature"] = (dims, np.asarray(monitor.temperature))
    thermostat = kept.get("thermostat")
    for name, value in (thermostat if isinstance(thermostat, Mapping) else {"": thermostat}).items():
        if value is not None and np.size(value):
            key = f"thermostat_{name}" if name else "thermostat"
            own = tuple(f"{key}_dim_{k}" for k in range(np.ndim(value) - 2))
            added[key] = (dims + own, np.asarray(value))
    return added


def _settings(run: Run) -> dict[str, Any]:
    mcmc, kernel = run.mcmc, run.kernel
    saved: dict[str, Any] = {
        "kernel": type(kernel).__name__,
        "dynamics": _options(kernel.dynamics),
        "integrator": getattr(kernel.integrator, "word", type(kernel.integrator).__name__),
        "gradient": _options(kernel.gradient),
        "rows": _options(kernel.rows),
        "batch_size": kernel.batch_size,
        "steps_per_sample": kernel.steps_per_sample,
        "step_size": np.asarray(run.mcmc.last_state.step_size, float).ravel().tolist(),
        "num_warmup": mcmc.num_warmup,
        "num_samples": mcmc.num_samples,
        "num_chains": mcmc.num_chains,
        "thinning": mcmc.thinning,
    }
    if hasattr(run.sampler, "temperatures"):
        saved["temperatures"] = list(run.sampler.temperatures)
    if run.warm_up is not None:
        tuned = settings(mcmc)
        for name in ("steps_per_sample", "gradient_noise", "predicted_inflation", "passes", "scores"):
            saved[name] = jax.tree.map(lambda x: np.asarray(x).tolist(), tuned[name])
    return saved


def _options(part: Any) -> dict[str, Any]:
    """The name of a part and its options, except arrays."""
    options = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
    plain = {key: value for key, value in options.items() if isinstance(value, (int, float, str, bool))}
    return {"name": type(part).__name__} | plain
