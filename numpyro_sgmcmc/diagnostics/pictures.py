"""
Pictures of what a run has kept, on Matplotlib axes, which they return; by default they make new ones. Matplotlib is an
extra: ``pip install "numpyro_sgmcmc[examples]"``. The results of diagnostics have a method ``plot``.
"""

from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.draws import latent_draws
from numpyro_sgmcmc.diagnostics.predicted_inflation import gradient_pairs
from numpyro_sgmcmc.diagnostics.run import Run
from numpyro_sgmcmc.diagnostics.table_pictures import axes_of
from numpyro_sgmcmc.utils.html import COLOURS

__all__ = ["plot_noise_spectrum", "plot_trace"]


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
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("variance of the gradient noise")
    return ax
