"""Stochastic gradient Riemannian Langevin dynamics: :mod:`~numpyro_sgmcmc.dynamics.recipe` with a metric for D."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.metrics import OfPosition
from numpyro_sgmcmc.dynamics.recipe import Recipe
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.utils.validation import checked_metric


class SGRLD(SGMCMC):
    r"""
    Stochastic gradient Riemannian Langevin dynamics, with :math:`D(z) = G(z)^{-1}`,

    .. math:: z' = z + h \left( -(D(z) + Q)\, g + \Gamma(z) \right) + \sqrt{2 h D(z)}\, n, \qquad
        \Gamma_i = \sum_j \partial D_{ij} / \partial z_j.

    The order is 1. With a constant D this is SGLD. D is a preconditioner that depends on the position: the inverse of
    the Riemannian metric G, which is large where the chain should make large moves.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param metric: z, a dict of unconstrained values by site, -> D(z): a scalar, a diagonal or a matrix over z raveled
        to d numbers (``jax.flatten_util.ravel_pytree``), or a dict of these by site. Or
        :class:`~numpyro_sgmcmc.Fisher`, :class:`~numpyro_sgmcmc.Energy`; :class:`~numpyro_sgmcmc.ExpandedMean` or
        :class:`~numpyro_sgmcmc.Natural` for sites on the simplex and on the half-line.
    :param skew: Q, a constant skew-symmetric matrix over the raveled z, shape ``(d, d)``. It makes the chain
        irreversible and leaves its stationary distribution unchanged.
    :param gradient_noise: variance of the gradient, which is subtracted from the injected noise, see
        :class:`~numpyro_sgmcmc.Recipe`.
    :param exact: how the divergence :math:`\Gamma` is computed, see :class:`~numpyro_sgmcmc.Recipe`.
    :param rows: row scheme. None: ``Reshuffled()``, or independent batches if their noise is measured.
    :raises ValueError: at the start of a chain, if D is not symmetric and positive semi-definite.

    **References:**

    1. *Stochastic Gradient Riemannian Langevin Dynamics on the Probability Simplex*, S. Patterson, Y. W. Teh (2013),
       equation 5
    2. *A Complete Recipe for Stochastic Gradient MCMC*, Y.-A. Ma, T. Chen, E. B. Fox (2015), section 3.1

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGRLD
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> metric = lambda z: {"mu": 1 / (1 + z["mu"] ** 2)}
        >>> kernel = SGRLD(model, metric=metric, step_size=1e-3, batch_size=100, steps_per_sample=20)
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
        skew: Any = None,
        gradient_noise: Any = None,
        exact: bool | None = None,
        integrator: str = "euler",
        **options: Unpack[KernelOptions],
    ):
        dynamics = Recipe(OfPosition(checked_metric(metric)), skew, exact=exact, gradient_noise=gradient_noise)
        super().__init__(model, dynamics, integrator, **options)

    @property
    def transforms(self) -> Any:  # those of the metric, if it has its own coordinates
        return getattr(self.dynamics.D.metric, "transforms", None)
