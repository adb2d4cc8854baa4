r"""
Stochastic gradient Nosé-Hoover thermostats (Ding et al. 2014; Gan et al. 2015; Li et al. 2016, equation 2).

.. math::

    dz = M^{-1} p\, dt, \quad dp = -\nabla U(z)\, dt - \xi p\, dt + \sqrt{2 D M}\, dW, \quad
    d\xi = (p^T M^{-1} p / d - 1)\, dt

with one thermostat :math:`\xi` for all d coordinates (SGNHT), or one for each, :math:`d\xi_j = (p_j^2 / M_j - 1)\, dt`
(MSGNHT). Leaves :math:`\exp(-U(z) - p^T M^{-1} p / 2 - d (\xi - D)^2 / 2)` invariant, the last term summed over
coordinates with d = 1 for MSGNHT. Gradient noise of constant variance :math:`s^2` only shifts the mean of
:math:`\xi` to :math:`D + h s^2 / 2`: the thermostat finds the friction that balances noise nobody has measured.

===== ================ =====================================================================
``A``  drift            z += h M^-1 p
``B``  kick             p -= h g
``F``  friction         p *= exp(-xi h)
``N``  noise            p += sqrt(2 D h) M^1/2 n
``O``  F and N, exact   OU given xi; variance D (1 - exp(-2 xi h)) / xi, its series at xi -> 0
``D``  thermostat       xi += h (p M^-1 p / d - 1), or elementwise
``E``  first order      p += -h (g + xi p) + sqrt(2 D h) M^1/2 n
===== ================ =====================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc import trees
from numpyro_sgmcmc.arguments import checked_inverse_mass, checked_rate
from numpyro_sgmcmc.base import GradientEstimator, Phase, RowScheme, Schedule, Sites
from numpyro_sgmcmc.batches import WithoutReplacement
from numpyro_sgmcmc.gradients import Minibatch
from numpyro_sgmcmc.integrators import named
from numpyro_sgmcmc.kernel import SGMCMC
from numpyro_sgmcmc.sghmc import Underdamped


@dataclass(frozen=True)
class NoseHoover(Underdamped):
    """
    The underdamped dynamics whose friction is a thermostat.

    :param float noise: D, intensity of the injected noise, where the thermostats start.
    :param bool elementwise: one thermostat a coordinate instead of one in all.
    """

    elementwise: bool = False
    flows: str = field(default="ABFNODE", init=False)

    @property
    def integrators(self) -> Mapping[str, str]:
        return {"euler": "AED", "ssi": "ADFBNFDA"}

    def friction(self, phase: Phase) -> Any:
        return trees.like(phase.thermostat, phase.momentum)

    def init(self, z: Sites, noise: Any) -> Phase:
        if self.elementwise:
            thermostat = jax.tree.map(lambda x: jnp.full_like(x, self.noise), z)
        else:
            thermostat = jnp.asarray(self.noise, jnp.result_type(*jax.tree.leaves(z)))
        return super().init(z, noise)._replace(thermostat=thermostat)

    def balanced(self, phase: Phase, h: jax.Array, variance: Any) -> Phase:
        """Thermostats at D + h M^-1 s^2 / 2, where they balance independent gradient noise of variance s^2."""
        shifts = self.gradient_heat(h, variance)
        if self.elementwise:
            return phase._replace(thermostat=jax.tree.map(jnp.add, phase.thermostat, shifts))
        return phase._replace(thermostat=phase.thermostat + trees.total(shifts) / trees.size(shifts))

    def inflation(self, h: jax.Array, variance: Any) -> Any:
        """What is left of it once the thermostats balance: nothing, or the deviations from one common friction."""
        heat = self.gradient_heat(h, variance)
        if self.elementwise:
            return jax.tree.map(jnp.zeros_like, heat)
        mean = trees.total(heat) / trees.size(heat)
        return jax.tree.map(lambda x: (x - mean) / (self.noise + mean), heat)

    def D(self, phase: Phase, h: jax.Array) -> Phase:
        energy = jax.tree.map(lambda p, im: im * p * p, phase.momentum, self.inverse_mass(phase.z))
        if self.elementwise:
            thermostat = jax.tree.map(lambda xi, e: xi + h * (e - 1), phase.thermostat, energy)
        else:
            thermostat = phase.thermostat + h * (trees.total(energy) / trees.size(energy) - 1)
        return phase._replace(thermostat=thermostat)


class SGNHT(SGMCMC):
    r"""
    Stochastic gradient Nosé-Hoover thermostat, one thermostat in all.

    The default word ``"ADBOBDA"`` is symmetric with the exact Ornstein-Uhlenbeck flow; ``"ssi"`` (``ADFBNFDA``) and
    ``"euler"`` (``AED``) are the schemes of Li et al. (2016), of order 2 and 1. Any of these costs one gradient a step.

    :param model: NumPyro model.
    :param step_size: h > 0, or a function of the step index.
    :param float diffusion: D >= 0, intensity of the injected noise; the thermostats start at D.
    :param batch_size: rows of a minibatch: an int, ``{plate: int}``, or None for the ``subsample_size`` declared in
        the model.
    :param int steps_per_sample: integrator steps for each MCMC transition.
    :param str integrator: ``"euler"``, ``"ssi"`` or a word over ``A B F N O D E``.
    :param gradient: gradient estimator.
    :param rows: row scheme. Independent batches by default: a thermostat balances white noise. Reshuffled rows hide
        the slow part of their noise from z but not from the momentum, and z comes out too narrow (0.47 to 0.97 of the
        variance in docs/design.md).
    :param inverse_mass_matrix: None, a scalar or a dict of diagonals like ``z``.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`. None (and no ``init_params``): a short descent of
        a mean-field normal law, and thermostats at D + h s^2 / 2 with the variance s^2 of the gradient there, see
        :mod:`~numpyro_sgmcmc.start`. With a start given, the thermostats begin at D as in the papers.

    **References:**

    1. *Bayesian Sampling Using Stochastic Gradient Thermostats*, N. Ding et al. (2014)
    2. *High-Order Stochastic Gradient Thermostats for Bayesian Learning of Deep Models*, C. Li et al. (2016),
       sections 2.2 and 3 (printed there: theta = p h/2; meant: theta += p h/2)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
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

    def __init__(
        self,
        model: Any,
        *,
        step_size: float | Schedule,
        diffusion: float = 1.0,
        batch_size: int | Mapping[str, int] | None = None,
        steps_per_sample: int = 1,
        integrator: str = "ADBOBDA",
        gradient: GradientEstimator = Minibatch(),
        rows: RowScheme = WithoutReplacement(),
        inverse_mass_matrix: Any = None,
        init_strategy: Any = None,
    ):
        dynamics = NoseHoover(
            checked_rate("diffusion", diffusion),
            checked_inverse_mass(inverse_mass_matrix),
            self.elementwise,
        )
        super().__init__(
            model,
            dynamics,
            named(integrator, dynamics),
            gradient,
            rows,
            step_size=step_size,
            batch_size=batch_size,
            steps_per_sample=steps_per_sample,
            init_strategy=init_strategy,
        )

    @property
    def diffusion(self) -> float:
        """D, frozen at construction."""
        return self.dynamics.noise


class MSGNHT(SGNHT):
    """
    Multivariate stochastic gradient Nosé-Hoover thermostat: :class:`SGNHT` with one thermostat for each coordinate, so
    that coordinates with unlike gradient noise each find their friction (Gan et al. 2015; Li et al. 2016). The
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
