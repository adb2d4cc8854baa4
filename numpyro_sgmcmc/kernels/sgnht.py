"""Stochastic gradient Nosé-Hoover thermostats: :mod:`~numpyro_sgmcmc.dynamics.nose_hoover` from minibatches."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.nose_hoover import NoseHoover
from numpyro_sgmcmc.dynamics.skew import checked_mass
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.parts import default_rows
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC, part
from numpyro_sgmcmc.utils.validation import checked_rate


class SGNHT(SGMCMC):
    r"""
    Stochastic gradient Nosé-Hoover thermostat, with one thermostat for all coordinates.

    The friction adapts until it balances the gradient noise. The default word ``"ADBOBDA"`` is symmetric, with
    the exact Ornstein-Uhlenbeck flow. ``"ssi"`` (``ADFBNFDA``) and ``"euler"`` (``AED``) are the schemes of Li et al.
    (2016), of order 2 and 1. Each of these costs one gradient per step.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param float diffusion: D >= 0, intensity of the injected noise; the thermostats start at D.
    :param str integrator: ``"euler"``, ``"ssi"`` or a word over ``A B F N O D E``, and ``R`` with a ``skew``.
        None: ``"ADBOBDA"``.
    :param rows: row scheme. None: ``WithoutReplacement()``, whose batches are independent, as thermostats require. With
        reshuffled rows the noise mostly cancels in z, but not in the momentum, and the variance of z becomes too small
        (0.47 to 0.97 of the true one in docs/maintainers/measurements.md).
    :param inverse_mass_matrix: None, a scalar or a dict of diagonals like ``z``.
    :param skew: Q, a constant skew-symmetric matrix over the raveled z, shape ``(d, d)``, which rotates the momentum
        (``R``). The stationary distribution stays the same, see :mod:`~numpyro_sgmcmc.dynamics.skew`.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`. None (and no ``init_params``): the mean of a mean-field
        normal approximation, with thermostats at D + h s^2 / 2, where s^2 is the variance of the gradient there, see
        :mod:`~numpyro_sgmcmc.tuning.start`. If a start is given, the thermostats start at D as in the papers.

    **References:**

    1. *Bayesian Sampling Using Stochastic Gradient Thermostats*, N. Ding et al. (2014)
    2. *High-Order Stochastic Gradient Thermostats for Bayesian Learning of Deep Models*, C. Li et al. (2016),
       sections 2.2 and 3 (printed there: theta = p h/2; meant: theta += p h/2)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGNHT
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGNHT(model, step_size=2e-3, diffusion=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x, extra_fields=("thermostat",))
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    elementwise = False
    diffusion: float = part("dynamics.noise", "D.")

    def __init__(
        self,
        model: Any,
        *,
        diffusion: float = 1.0,
        integrator: str | None = None,
        inverse_mass_matrix: Any = None,
        skew: Any = None,
        **options: Unpack[KernelOptions],
    ):
        step_size = options.get("step_size")
        mass = checked_mass(inverse_mass_matrix, skew, step_size)
        dynamics = NoseHoover(checked_rate("diffusion", diffusion), *mass, self.elementwise)
        if integrator is None:
            integrator = "ADBOBDA" if skew is None else "RADBOBDAR"
        if options.get("rows") is None:
            options["rows"] = default_rows(True, step_size is None or getattr(step_size, "relative", False))
        super().__init__(model, dynamics, integrator, **options)


class MSGNHT(SGNHT):
    """
    Multivariate stochastic gradient Nosé-Hoover thermostat: :class:`SGNHT` with one thermostat for each coordinate, so
    that the friction of each coordinate adapts to its own gradient noise (Gan et al. 2015; Li et al. 2016). The
    arguments are those of :class:`SGNHT`.

    **References:**

    1. *Scalable Deep Poisson Factor Analysis for Topic Modeling*, Z. Gan et al. (2015)
    2. *High-Order Stochastic Gradient Thermostats for Bayesian Learning of Deep Models*, C. Li et al. (2016),
       equation 2

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import MSGNHT
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = MSGNHT(model, step_size=2e-3, diffusion=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x, extra_fields=("thermostat",))
        >>> mcmc.get_extra_fields()["thermostat"]["mu"].shape
        (500,)
    """

    elementwise = True
