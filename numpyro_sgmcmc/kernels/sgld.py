"""Stochastic gradient Langevin dynamics: :mod:`~numpyro_sgmcmc.dynamics.overdamped` from minibatches."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.skew import checked_mass
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC


class SGLD(SGMCMC):
    r"""
    Stochastic gradient Langevin dynamics: :math:`z' = z - h M^{-1} g + \sqrt{2 h M^{-1}}\, n`.

    The order is 1. On a Gaussian with curvature :math:`\lambda` the variance of the draws is :math:`1 / (\lambda (1 -
    h\lambda/2))`. Minibatch noise of variance :math:`s^2` adds a relative :math:`h s^2 / 2` in each coordinate.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param step_size: h > 0, or a function of the step index. None: chosen in the warm-up, together with the
        coordinates, see :mod:`~numpyro_sgmcmc.tuning.tuner`. (Welling & Teh write h/2 for our h.)
    :param str integrator: ``"euler"``.
    :param inverse_mass_matrix: preconditioner of drift and noise: None, a scalar or a dict of diagonals like ``z``.
    :param skew: Q, a constant skew-symmetric matrix over the raveled z, shape ``(d, d)``: the drift is then
        :math:`-(M^{-1} + Q) g`, irreversible and with the same stationary distribution, see
        :mod:`~numpyro_sgmcmc.dynamics.skew`.

    **References:**

    1. *Bayesian Learning via Stochastic Gradient Langevin Dynamics*, M. Welling, Y. W. Teh (2011), equation 4

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGLD(model, step_size=1e-4, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    def __init__(
        self,
        model: Any,
        *,
        integrator: str = "euler",
        inverse_mass_matrix: Any = None,
        skew: Any = None,
        **options: Unpack[KernelOptions],
    ):
        dynamics = Overdamped(*checked_mass(inverse_mass_matrix, skew, options.get("step_size")))
        super().__init__(model, dynamics, integrator, **options)
