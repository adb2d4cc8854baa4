"""Adaptive SGHMC: :mod:`~numpyro_sgmcmc.dynamics.underdamped` with a mass estimated in the warm-up."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.preconditioned import STEP_SIZE_IS_GIVEN, preconditioned
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC, part
from numpyro_sgmcmc.utils.validation import checked_rate


class AdaptiveSGHMC(SGMCMC):
    r"""
    Scale-adapted stochastic gradient Hamiltonian Monte Carlo: :class:`~numpyro_sgmcmc.SGHMC` with
    :math:`M^{-1} = 1 / (\lambda + \sqrt{V})`, where V is the running mean of :math:`g^2` by coordinate.

    V is estimated in the first half of the warm-up and then frozen, so that the draws are those of
    :class:`~numpyro_sgmcmc.SGHMC` with a constant ``inverse_mass_matrix``, and every word has the same stationary
    distribution as there. When the mass changes, the momentum is rescaled, :math:`p' = \sqrt{M' / M}\, p`.

    In the paper's notation :math:`\epsilon = h`, and the decay of the momentum per step is
    :math:`\epsilon V^{-1/2} C = h D`, which is .05 there: a friction of D = .05 / h. The paper subtracts the gradient
    noise from the injected noise; here ``integrator="NOGIN"`` does this. The paper's adaptive window of V is replaced
    by a constant ``memory``.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param float friction: D >= 0, a rate (1 / time).
    :param float memory: :math:`\beta` in [0, 1); V averages over about :math:`1 / (1 - \beta)` steps.
    :param float damping: :math:`\lambda` > 0, in the units of a gradient of U.
    :param str integrator: ``"euler"``, ``"ssi"``, ``"NOGIN"`` or a word over ``A B F N O E G``.
    :param rows: row scheme. None: ``Reshuffled()``, or ``WithoutReplacement()`` for NOGIN.
    :raises ValueError: if there is no step size, or an argument is out of range; at ``init``, for a run without a
        warm-up.

    **References:**

    1. *Bayesian Optimization with Robust Bayesian Neural Networks*, J. T. Springenberg, A. Klein, S. Falkner, F. Hutter
       (2016), section 3.2 and equations 8 to 10

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import AdaptiveSGHMC
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = AdaptiveSGHMC(model, step_size=2e-2, friction=3.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=200, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    missing_step_size = STEP_SIZE_IS_GIVEN
    friction: float = part("dynamics.base.noise", "D.")

    def __init__(
        self,
        model: Any,
        *,
        friction: float = 1.0,
        memory: float = 0.99,
        damping: float = 1e-5,
        integrator: str = "ABOBA",
        **options: Unpack[KernelOptions],
    ):
        dynamics = preconditioned(Underdamped(checked_rate("friction", friction)), memory, damping)
        super().__init__(model, dynamics, integrator, **options)
