"""Stochastic gradient Riemannian HMC: :mod:`~numpyro_sgmcmc.dynamics.recipe` with a metric between z and momentum."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.metrics import OfPosition
from numpyro_sgmcmc.dynamics.recipe import Recipe
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.utils.validation import checked_metric, checked_rate


class SGRHMC(SGMCMC):
    r"""
    Stochastic gradient Riemannian Hamiltonian Monte Carlo, with :math:`G(z)^{-1} = R(z) R(z)^T`,

    .. math::

        dz = R p\, dt + \Gamma^z dt, \qquad dp = -R^T \nabla U\, dt - \gamma G^{-1} p\, dt + \Gamma^p dt
            + \sqrt{2 \gamma G^{-1}}\, dW, \qquad \Gamma = \mathrm{div}\, Q,

    the recipe with :math:`D = \gamma G^{-1}` for the momentum, :math:`Q_{pz} = R^T`, :math:`Q_{zp} = -R` up to the
    sign of p, and :math:`H = U + p^T p / 2`. As Q depends on z alone, only the rows of p have a divergence,
    :math:`\Gamma^p_i = \sum_j \partial Q_{p_i z_j} / \partial z_j`. The step is the recipe's Euler step, ``"PA"``: the
    momentum, then the position with the new momentum. It is explicit and of order 1. A leapfrog step with these terms
    would have to be implicit for order 2.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param metric: z, a dict of unconstrained values by site, -> :math:`G(z)^{-1}`, as for
        :class:`~numpyro_sgmcmc.SGRLD`. A chain makes large moves where it is large.
    :param float friction: :math:`\gamma \ge 0`; Ma, Chen & Fox use 1.
    :param gradient_noise: variance of the gradient, which is subtracted from the injected noise, see
        :class:`~numpyro_sgmcmc.Recipe`.
    :param exact: how the divergence :math:`\Gamma` is computed, see :class:`~numpyro_sgmcmc.Recipe`.
    :param str integrator: ``"euler"``, or a word over ``E A P``.
    :param rows: row scheme. None: ``Reshuffled()``, or independent batches if their noise is measured.
    :raises ValueError: at the start of a chain, for a metric that is not symmetric and positive semi-definite.

    **References:**

    1. *A Complete Recipe for Stochastic Gradient MCMC*, Y.-A. Ma, T. Chen, E. B. Fox (2015), section 3.2

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGRHMC
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> metric = lambda z: {"mu": 1 / (1 + z["mu"] ** 2)}
        >>> kernel = SGRHMC(model, metric=metric, step_size=1e-2, friction=300.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    def __init__(
        self,
        model: Any,
        *,
        metric: Any,
        friction: float = 1.0,
        gradient_noise: Any = None,
        exact: bool | None = None,
        integrator: str = "euler",
        **options: Unpack[KernelOptions],
    ):
        metric, friction = checked_metric(metric), checked_rate("friction", friction)
        dynamics = Recipe(
            OfPosition(metric, "friction", friction),
            OfPosition(metric, "coupling"),
            kinetic=1.0,
            exact=exact,
            gradient_noise=gradient_noise,
        )
        super().__init__(model, dynamics, integrator, **options)
