"""Preconditioned SGLD: :mod:`~numpyro_sgmcmc.dynamics.overdamped` with a mass estimated in the warm-up."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.overdamped import Overdamped
from numpyro_sgmcmc.dynamics.preconditioned import STEP_SIZE_IS_GIVEN, preconditioned
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC


class PSGLD(SGMCMC):
    r"""
    Preconditioned stochastic gradient Langevin dynamics:
    :math:`z' = z - h M^{-1} g + \sqrt{2 h M^{-1}}\, n` with :math:`M^{-1} = 1 / (\lambda + \sqrt{V})`, V the running
    mean of :math:`g^2` by coordinate.

    V is estimated in the first half of the warm-up and then stays fixed. From then on the kernel is
    :class:`~numpyro_sgmcmc.SGLD` with a constant ``inverse_mass_matrix``, so it samples the posterior with order 1.
    (The paper updates V for ever and omits :math:`\Gamma`, which changes the stationary distribution. For a metric that
    depends on the position, with its :math:`\Gamma`, see :class:`~numpyro_sgmcmc.SGRLD`.)

    h has the unit of a gradient of U times that of :math:`z^2`. If minibatch noise of standard deviation s is much
    larger than the gradient, the drift is :math:`-h g / s`, and the noise increases the variance of z by a relative
    :math:`h s / 2`.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param float memory: :math:`\beta` in [0, 1); V averages over about :math:`1 / (1 - \beta)` steps.
    :param float damping: :math:`\lambda` > 0, in the units of a gradient of U.
    :param str integrator: ``"euler"``.
    :raises ValueError: if there is no step size, or memory or damping is out of range; at ``init``, for a run without a
        warm-up.

    **References:**

    1. *Preconditioned Stochastic Gradient Langevin Dynamics for Deep Neural Networks*, C. Li, C. Chen, D. Carlson,
       L. Carin (2016), equations 4 and 5, algorithm 1; their gradients are means over the data

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import PSGLD
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = PSGLD(model, step_size=5e-3, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=200, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
        >>> mcmc.last_state.auxiliary.inverse_mass["mu"].shape
        ()
    """

    missing_step_size = STEP_SIZE_IS_GIVEN

    def __init__(
        self,
        model: Any,
        *,
        memory: float = 0.99,
        damping: float = 1e-5,
        integrator: str = "euler",
        **options: Unpack[KernelOptions],
    ):
        super().__init__(model, preconditioned(Overdamped(), memory, damping), integrator, **options)
