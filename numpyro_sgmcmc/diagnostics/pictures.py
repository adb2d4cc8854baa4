"""
Pictures of runs and of tables on Matplotlib axes, which they return; by default they make new ones. Matplotlib is an
extra: ``pip install "numpyro_sgmcmc[examples]"``. Those of tables are what their method ``plot`` draws.
"""

from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import latent_draws
from numpyro_sgmcmc.diagnostics.predicted_inflation import gradient_pairs
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.table import SITES, Table
from numpyro_sgmcmc.utils.html import COLOURS
from numpyro_sgmcmc.utils.significance import ERRORS, ORDER
from numpyro_sgmcmc.utils.validation import checked_choice

__all__ = ["plot_noise_spectrum", "plot_trace"]

WRONG, GREY = COLOURS["wrong"], "#999999"


def axes_of(ax: Any, rows: int = 1, columns: int = 1, height: float = 2.0) -> Any:
    """The axes that are given, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "numpyro_sgmcmc[examples]"') from error
    size = {"figsize": (6.4, height * rows + 2.0), "layout": "constrained"}
    _, axes = plt.subplots(rows, columns, squeeze=False, sharex=columns == 1, sharey=columns > 1, **size)
    return axes.ravel() if axes.size > 1 else axes[0, 0]


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
    axes = axes_of(axes, 3 if leaves else 2)
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
    ax = axes_of(ax)
    ax.semilogy(np.arange(1, len(values) + 1), np.maximum(values, 1e-30), "o-", ms=3, color=COLOURS["ok"])
    ax.set(xlabel="eigenvalue", ylabel="variance of the gradient noise")
    return ax


def summary_picture(table: Table, axes: Any = None) -> Any:
    """
    The errors of mean and variance in the worst coordinate of each site, with the intervals that the check leaves. An
    interval inside the grey band excludes an error that matters.
    """
    if not table.by_site:
        raise ValueError("a picture needs finite gradients at the draws. Give summary the data: summary(mcmc, *data).")
    order = sorted(table.by_site, key=lambda site: -ORDER.index(table.by_site[site]["verdict"]))[:SITES]
    axes = axes_of(axes, columns=2, height=0.25 * len(order))
    kinds = ("score", "error of the mean, in sds"), ("virial", "relative error of the variance")
    for ax, (key, label) in zip(axes, kinds):
        for place, site in enumerate(order):
            numbers = table[key]["by_site"][site]
            error, colour = numbers["bound_z"] * numbers["effect_error"], COLOURS[numbers["verdict"]]
            ax.errorbar(numbers["effect"], place, xerr=error, fmt="o", ms=4, color=colour)
        ax.axvspan(-ERRORS[0], ERRORS[0], color=GREY, alpha=0.2, lw=0)
        ax.axvline(0, color=GREY, lw=0.8)
        ax.set_xlabel(label)
    axes[0].set(yticks=range(len(order)), yticklabels=order, ylim=(len(order) - 0.5, -0.5))
    axes[0].set_title("sites, by their worst coordinates", loc="left", fontsize="medium")
    return axes


def halving_picture(table: Table, ax: Any = None, of: str = "sd") -> Any:
    """The change of a mean or an sd from its value at h, in sds: at h, at h / 2, and extrapolated to 0."""
    checked_choice("of", of, ("mean", "sd"))
    ax = axes_of(ax)
    for site, line in table.items():
        sd, value = np.ravel(line["sd"]), np.ravel(line[of])
        far = np.ravel(line[f"extrapolated_{of}"]) - value
        change, error = np.ravel(line[f"{of}_change"]), np.ravel(line[f"{of}_error"])
        colour = COLOURS[line["verdict"]]
        for k in range(len(sd)):
            ax.plot([1, 0.5], [0, change[k]], "o-", color=colour, ms=4, label=site if k == 0 else None)
            ax.errorbar([0.5], [change[k]], [error[k]], color=colour, capsize=2)
            ax.plot([0.5, 0], [change[k], far[k] / sd[k]], "o:", color=colour, ms=4, mfc="white")
    ax.axhline(0, color=GREY, lw=0.8)
    ax.set(xlabel="step size, or noise, over that of the run", ylabel=f"change of the {of}, in sds")
    return ax


def coupling_picture(table: Any, ax: Any = None) -> Any:
    """The distance between the coupled chains at each draw."""
    ax = axes_of(ax)
    for chain in table.trace:
        ax.semilogy(np.maximum(chain, 1e-30), lw=0.6, alpha=0.7)
    ax.axhline(max(table.joint, 1e-30), color=WRONG, label="bound")
    ax.set(xlabel="draw", ylabel="distance of the pair")
    ax.legend(frameon=False)
    return ax


def comparison_picture(table: Table, ax: Any = None) -> Any:
    """Errors of means against errors of sds, with their standard errors."""
    ax = axes_of(ax)
    for site, line in table.items():
        x, y, dx, dy = (np.ravel(line[key]) for key in ("mean", "sd", "mean_error", "sd_error"))
        ax.errorbar(x, y, dy, dx, fmt="o", ms=3, color=COLOURS[line["verdict"]], lw=0.8, label=site)
    ax.axhline(0, color=GREY, lw=0.8)
    ax.axvline(0, color=GREY, lw=0.8)
    ax.set(xlabel="error of the mean, in sds", ylabel="relative error of the sd")
    return ax
