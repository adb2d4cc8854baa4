"""Stochastic gradient Hamiltonian Monte Carlo: :mod:`~numpyro_sgmcmc.dynamics.underdamped` from minibatches."""

from typing import Any, Unpack

from numpyro_sgmcmc.dynamics.skew import checked_mass
from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC, part
from numpyro_sgmcmc.utils.validation import checked_rate


class SGHMC(SGMCMC):
    r"""
    Stochastic gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics with minibatch gradients.

    The default word ``"ABOBA"`` is exact in z on Gaussians with the full gradient. ``"ssi"`` (``AFBNFA``) and
    ``"euler"`` (``EA``) are the schemes of Chen, Ding & Carin (2015), of order 2 and 1. Each of these costs one
    gradient per step. Independent minibatches whose gradient has variance :math:`s^2` add a relative :math:`h s^2 / (2
    D)` to the variance of z. ``"NOGIN"`` (``ABGBA``) of Matthews & Weare (2018) injects less noise, by that amount. On
    Gaussians it is exact in z even with noisy gradients, if their noise is normal and independent between coordinates.
    It measures :math:`s^2` once, with 300 minibatches at the start of the chain, so start it near the mode
    (``init_params=find_mode(...)``). SAGA and SVRG have no noise at the start, so nothing is subtracted for them.
    ``"BAGAB"`` does the same in the order of BAOAB, and its means are more accurate where the posterior is skewed, see
    :mod:`~numpyro_sgmcmc.dynamics.underdamped`. Self-tuned kernels use it; with all rows its steps pass a Metropolis
    test, so that the step size does not bias the draws, see :mod:`~numpyro_sgmcmc.engine.metropolis`.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param float friction: D >= 0, a rate (1 / time). The default of 1 suits a step size that the warm-up chooses. If
        you set the step size, set the friction too.
    :param str integrator: ``"euler"``, ``"ssi"``, ``"NOGIN"`` or a word over ``A B F N O E G``, and ``R`` with a
        ``skew``. None: ``"ABOBA"``; if ``step_size`` is left out, ``"BAGAB"``, or ``"BAOAB"`` if ``rows`` is given.
    :param rows: row scheme. None: ``Reshuffled()``, or ``WithoutReplacement()`` for words with a ``G``, as NOGIN. These
        need independent batches: reshuffled ones add less noise than they subtract.
    :param inverse_mass_matrix: None, a scalar or a dict of diagonals like ``z``.
    :param skew: Q, a constant skew-symmetric matrix over the raveled z, shape ``(d, d)``, which rotates the momentum
        (``R``). The stationary distribution stays the same, see :mod:`~numpyro_sgmcmc.dynamics.skew`.

    **References:**

    1. *Stochastic Gradient Hamiltonian Monte Carlo*, T. Chen, E. B. Fox, C. Guestrin (2014)
    2. *On the Convergence of Stochastic Gradient MCMC Algorithms with High-Order Integrators*, C. Chen, N. Ding,
       L. Carin (2015), section 4
    3. *Langevin Markov Chain Monte Carlo with Stochastic Gradients*, C. Matthews, J. Weare (2018)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    friction: float = part("dynamics.noise", "D.")

    def __init__(
        self,
        model: Any,
        *,
        friction: float = 1.0,
        integrator: str | None = None,
        inverse_mass_matrix: Any = None,
        skew: Any = None,
        **options: Unpack[KernelOptions],
    ):
        step_size = options.get("step_size")
        mass = checked_mass(inverse_mass_matrix, skew, step_size)
        dynamics = Underdamped(checked_rate("friction", friction), *mass)
        if integrator is None:
            if step_size is None:
                integrator = "BAGAB" if options.get("rows") is None else "BAOAB"
            else:
                integrator = "ABOBA" if skew is None else "RABOBAR"
        super().__init__(model, dynamics, integrator, **options)
