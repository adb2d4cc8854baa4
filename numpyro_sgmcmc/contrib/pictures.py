"""
Plots of diagnostics. Each function takes the result of a diagnostic, draws it on Matplotlib axes and returns them; by
default it makes new axes. Matplotlib is an extra: ``pip install "numpyro_sgmcmc[examples]"``.
"""

from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.coupling import Coupled
from numpyro_sgmcmc.diagnostics.draws import latent_draws
from numpyro_sgmcmc.diagnostics.predicted_inflation import gradient_pairs
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.table import Table

RIGHT, WRONG, GREY = "#009E73", "#D55E00", "#999999"  # from the colour-blind-safe palette of Okabe & Ito
COLOURS = {"ok": RIGHT, "doubtful": "#E69F00", "wrong": WRONG, "": GREY}


def _axes(ax: Any, rows: int = 1) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "numpyro_sgmcmc[examples]"') from error
    _, ax = plt.subplots(rows, 1, squeeze=False, sharex=True, figsize=(6.4, 2.0 * rows + 2.0), layout="constrained")
    return ax[0, 0] if rows == 1 else ax[:, 0]


def _check_found(found: Any, function: str, field: str) -> None:
    """
    :param str field: that only the lines of this function's result have.
    :raises TypeError: if ``found`` is not a result of the function.
    """
    if not isinstance(found, Table) or not all(field in line.details for line in found.lines.values()):
        raise TypeError(f"found= must be the result of {function}, not another {type(found).__name__}.")


def plot_step_halving(found: Table, ax: Any = None, of: str = "sd") -> Any:
    """
    The change of a mean or an sd from its value at h, in sds, against the step size: at h, at h / 2, and extrapolated
    to 0.

    :param found: result of :func:`~numpyro_sgmcmc.step_halving`.
    :param ax: axes, or None.
    :param str of: ``"mean"`` or ``"sd"``.
    """
    if of not in ("mean", "sd"):
        raise ValueError(f"of={of!r} must be 'mean' or 'sd'.")
    _check_found(found, "step_halving(mcmc, key, ...)", "sd_change")
    ax = _axes(ax)
    for site, line in found.items():
        sd, value = np.ravel(line["sd"]), np.ravel(line[of])
        far = np.ravel(line[f"extrapolated_{of}"]) - value
        change, error = np.ravel(line[f"{of}_change"]), np.ravel(line[f"{of}_error"])
        colour = COLOURS[line["verdict"]]
        for k in range(len(sd)):
            ax.plot([1, 0.5], [0, change[k]], "o-", color=colour, ms=4, label=site if k == 0 else None)
            ax.errorbar([0.5], [change[k]], [error[k]], color=colour, capsize=2)
            ax.plot([0.5, 0], [change[k], far[k] / sd[k]], "o:", color=colour, ms=4, mfc="white")
    ax.axhline(0, color=GREY, lw=0.8)
    ax.set_xlabel("step size, or noise, over that of the run")
    ax.set_ylabel(f"change of the {of}, in sds")
    return ax


def plot_temperatures(found: Table, ax: Any = None) -> Any:
    """
    The configurational temperature of each site, and the kinetic temperature, compared with 1.

    :param found: result of ``summary(mcmc, *model_args)``, with the data.
    :param ax: axes, or None.
    :raises ValueError: for a summary without the data.
    """
    if not isinstance(found, Table) or "configurational_temperature" not in found:
        raise ValueError("found has no configurational temperature. Give summary the data: summary(mcmc, *model_args).")
    ax = _axes(ax)
    by_site = dict(found["configurational_temperature"]["by_site"])
    if "kinetic_temperature" in found:
        by_site["kinetic"] = found["kinetic_temperature"]["value"]
    values = np.array([float(value) for value in by_site.values()])
    colours = [RIGHT if abs(value - 1) <= 0.1 else WRONG for value in values]
    ax.scatter(values, np.arange(len(values)), color=colours, zorder=3)
    ax.set_yticks(np.arange(len(values)), list(by_site))
    ax.axvspan(0.9, 1.1, color=RIGHT, alpha=0.15)
    ax.set_xlabel("temperature, 1 for a right run")
    return ax


def plot_trace(mcmc: MCMC, site: str, axes: Any = None) -> Any:
    """
    The draws of a site with the step size, and the thermostats if the run has collected them
    (``extra_fields=("thermostat",)``).

    :param mcmc: an MCMC that has run a kernel of this package.
    :param str site: a latent site.
    :param axes: two or three axes, or None.
    """
    run = Run(mcmc, (), {}, "plot_trace", data_needed=False)
    draws = latent_draws(mcmc)
    if not isinstance(site, str) or site not in draws:
        raise ValueError(f"site={site!r} must be a latent site of the run: {', '.join(map(repr, draws))}.")
    fields = run.fields
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(fields.get("thermostat", ()))]
    axes = _axes(axes, 3 if leaves else 2)
    values = draws[site].reshape(*draws[site].shape[:2], -1)
    for chain in values:
        axes[0].plot(chain, lw=0.6, alpha=0.7)
    axes[0].set_ylabel(site)
    axes[1].plot(np.asarray(fields["step_size"]).T, lw=0.8)
    axes[1].set_ylabel("step size")
    for leaf in leaves:
        axes[2].plot(leaf.reshape(*leaf.shape[:2], -1).mean(-1).T, lw=0.6)
        axes[2].set_ylabel("thermostat")
    axes[-1].set_xlabel("draw")
    return axes


def plot_noise_spectrum(mcmc: MCMC, *model_args: Any, ax: Any = None, pairs: int = 400, **model_kwargs: Any) -> Any:
    """
    Eigenvalues of the covariance of the kernel's gradient noise, in coordinates where the draws have unit variance.

    :param mcmc: an MCMC that has run a kernel of this package.
    :param model_args: arguments of the model; none: those of ``mcmc.run``.
    :param ax: axes, or None.
    :param int pairs: number of pairs of minibatches, and maximal number of eigenvalues.
    """
    run = Run(mcmc, model_args, model_kwargs, "plot_noise_spectrum")
    draws = run.draws(4000)
    noise = gradient_pairs(run, draws, run.key, pairs) * draws.flat.std(0)
    values = np.linalg.svd(noise, compute_uv=False) ** 2 / len(noise)
    ax = _axes(ax)
    ax.semilogy(np.arange(1, len(values) + 1), np.maximum(values, 1e-30), "o-", ms=3, color=RIGHT)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("variance of the gradient noise")
    return ax


def plot_coupling(found: Coupled, ax: Any = None) -> Any:
    """
    The distance between the coupled chains at each draw.

    :param found: result of :func:`~numpyro_sgmcmc.couple`.
    :param ax: axes, or None.
    """
    _check_found(found, "couple(mcmc, key, ...)", "lower")
    ax = _axes(ax)
    for chain in found.trace:
        ax.semilogy(np.maximum(chain, 1e-30), lw=0.6, alpha=0.7)
    ax.axhline(max(found.joint, 1e-30), color=WRONG, label="bound")
    ax.set_xlabel("draw")
    ax.set_ylabel("distance of the pair")
    ax.legend(frameon=False)
    return ax


def plot_compare(found: Table, ax: Any = None) -> Any:
    """
    Errors of means against errors of sds, with their standard errors.

    :param found: result of :func:`~numpyro_sgmcmc.compare`.
    :param ax: axes, or None.
    """
    _check_found(found, "compare(mcmc, reference)", "5%")
    ax = _axes(ax)
    for site, line in found.items():
        parts = (np.ravel(line[key]) for key in ("mean", "sd", "mean_error", "sd_error"))
        x, y, dx, dy = parts
        ax.errorbar(x, y, dy, dx, fmt="o", ms=3, color=COLOURS[line["verdict"]], lw=0.8, label=site)
    ax.axhline(0, color=GREY, lw=0.8)
    ax.axvline(0, color=GREY, lw=0.8)
    ax.set_xlabel("error of the mean, in sds")
    ax.set_ylabel("relative error of the sd")
    return ax
