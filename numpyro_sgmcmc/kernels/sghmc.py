"""Stochastic gradient Hamiltonian Monte Carlo: :mod:`~numpyro_sgmcmc.dynamics.underdamped` from minibatches."""

from collections.abc import Mapping
from typing import Any

from numpyro_sgmcmc.dynamics.underdamped import Underdamped
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.kernels.sgmcmc import SGMCMC
from numpyro_sgmcmc.rows.schemes import Reshuffled
from numpyro_sgmcmc.types import GradientEstimator, RowScheme, Schedule
from numpyro_sgmcmc.utils.validation import checked_inverse_mass, checked_rate


class SGHMC(SGMCMC):
    r"""
    Stochastic gradient Hamiltonian Monte Carlo: underdamped Langevin dynamics with minibatch gradients.

    The default word ``"ABOBA"`` is exact in z on Gaussians with the full gradient; ``"ssi"`` (``AFBNFA``) and
    ``"euler"`` (``EA``) are the schemes of Chen, Ding & Carin (2015), of order 2 and 1. Any of these costs one gradient
    a step. Minibatch noise of variance :math:`s^2` adds a relative :math:`h s^2 / (2 D)` to the variance of z when
    batches are independent.

    :param model: NumPyro model.
    :param step_size: h > 0, or a function of the step index.
    :param float friction: D >= 0, a rate (1 / time).
    :param batch_size: rows of a minibatch: an int, ``{plate: int}``, or None for the ``subsample_size`` declared in
        the model.
    :param int steps_per_sample: integrator steps for each MCMC transition.
    :param str integrator: ``"euler"``, ``"ssi"`` or a word over ``A B F N O E``.
    :param gradient: gradient estimator.
    :param rows: row scheme.
    :param inverse_mass_matrix: None, a scalar or a dict of diagonals like ``z``.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`; None: uniform on (-2, 2).

    **References:**

    1. *Stochastic Gradient Hamiltonian Monte Carlo*, T. Chen, E. B. Fox, C. Guestrin (2014)
    2. *On the Convergence of Stochastic Gradient MCMC Algorithms with High-Order Integrators*, C. Chen, N. Ding,
       L. Carin (2015), section 4

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
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

    def __init__(
        self,
        model: Any,
        *,
        step_size: float | Schedule,
        friction: float = 1.0,
        batch_size: int | Mapping[str, int] | None = None,
        steps_per_sample: int = 1,
        integrator: str = "ABOBA",
        gradient: GradientEstimator = Minibatch(),
        rows: RowScheme = Reshuffled(),
        inverse_mass_matrix: Any = None,
        init_strategy: Any = None,
    ):
        dynamics = Underdamped(checked_rate("friction", friction), checked_inverse_mass(inverse_mass_matrix))
        super().__init__(
            model,
            dynamics,
            integrator,
            gradient,
            rows,
            step_size=step_size,
            batch_size=batch_size,
            steps_per_sample=steps_per_sample,
            init_strategy=init_strategy,
        )

    @property
    def friction(self) -> float:
        """D, frozen at construction."""
        return self.dynamics.noise
