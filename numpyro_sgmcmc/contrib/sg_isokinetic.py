"""Isokinetic SG-MCMC: :mod:`~numpyro_sgmcmc.contrib.isokinetic` from minibatches. Experimental."""

from dataclasses import replace
from typing import Any, Unpack

from numpyro_sgmcmc.contrib.isokinetic import Isokinetic
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.rows.schemes import WithoutReplacement
from numpyro_sgmcmc.utils.validation import checked_inverse_mass, checked_rate


class SGIsokinetic(SGMCMC):
    r"""
    Stochastic gradient isokinetic (microcanonical) Langevin dynamics. Experimental: it may change or be removed.

    The momentum is a direction u with :math:`|u| = 1`, which gradient and noise turn. For many coordinates h and D have
    the same meaning as for :class:`~numpyro_sgmcmc.SGHMC`, and z moves by :math:`h \sqrt{d}` in every step, for any
    gradient.

    Gradient noise with the same variance in all coordinates causes no bias. Otherwise the relative error of the
    variance of z is :math:`(x_j - \bar x) / (D + \bar x)` with :math:`x_j = h s_j^2 / (2 M_j)`, as with
    :class:`~numpyro_sgmcmc.SGNHT`. ``inverse_mass_matrix="noise"`` makes :math:`s_j^2 / M_j` equal: the mass is
    proportional to the variance of the noise, measured once with 300 minibatches at the start of the chain
    (the paper's preconditioner). :class:`~numpyro_sgmcmc.MSGNHT` needs no such mass, and was better in our measurements
    (docs/measurements.md). The paper's tuning of the step size by the energy error is not implemented.

    :param model: NumPyro model with two or more latent coordinates.
    :param step_size: h > 0, or a function of the step index.
    :param float friction: D >= 0, the rate (1 / time) at which the direction is refreshed.
    :param batch_size: rows of a minibatch: an int, ``{plate: int}``, or None for the ``subsample_size`` declared in
        the model.
    :param int steps_per_sample: integrator steps for each MCMC transition; None: 1.
    :param str integrator: a word over ``A B O``.
    :param gradient: gradient estimator; None: ``Minibatch()``.
    :param rows: row scheme. Independent batches by default: the constant length of u balances only white noise.
    :param inverse_mass_matrix: None, a scalar, a dict of diagonals like ``z``, or ``"noise"``.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`; None: uniform on (-2, 2).
    :raises ValueError: if there is no step size; at ``init``, for a model with a single coordinate.

    **References:**

    1. *Can Microcanonical Langevin Dynamics Leverage Mini-Batch Gradient Noise?*, E. Sommer, K. Diao, J. Robnik,
       U. Seljak, D. Rügamer (2026), arXiv 2602.06500
    2. *Microcanonical Langevin Monte Carlo*, J. Robnik, U. Seljak (2023), arXiv 2303.18221

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc.contrib.sg_isokinetic import SGIsokinetic
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10).expand([2]).to_event(1))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000, 2))
        >>> kernel = SGIsokinetic(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean(0) - x.mean(0)).max() < 0.02)
        True
    """

    missing_step_size = ". Give one, or use SGHMC, whose warm-up chooses it."

    def __init__(
        self,
        model: Any,
        *,
        friction: float = 1.0,
        integrator: str = "ABOBA",
        inverse_mass_matrix: Any = None,
        **options: Unpack[KernelOptions],
    ):
        dynamics = Isokinetic(checked_rate("friction", friction))
        if isinstance(inverse_mass_matrix, str) and inverse_mass_matrix == "noise":
            dynamics = replace(dynamics, by_noise=True)
        else:
            dynamics = replace(dynamics, inverse_mass_matrix=checked_inverse_mass(inverse_mass_matrix))
        if options.get("rows") is None:
            options["rows"] = WithoutReplacement()
        super().__init__(model, dynamics, integrator, **options)

    @property
    def friction(self) -> float:
        """D, frozen at construction."""
        return self.dynamics.noise
