r"""
The stochastic Barker proposal (Mauri & Zanella 2024, arXiv 2405.08999; Livingstone & Zanella 2022). Only the direction
of a jump depends on the gradient, not its size. For each coordinate,

.. math:: z' = z \pm w, \qquad w = \sqrt{2 h M^{-1} / (1 + \sigma^2)}\; (1 + \sigma n), \quad \sigma = 0.1,

upwards with probability

.. math:: p = \frac{1}{1 + e^{g w}} \approx \sum_k \pi_k\, \Phi(-a_k g w).

To first order in h it leaves :math:`\exp(-U)` invariant: the mean of a jump is :math:`-h M^{-1} g`, that of its square
:math:`2 h M^{-1}`. No jump is larger than w, even for very large gradients.

If the gradient has normal noise of variance :math:`\tau^2`, the mean of :math:`\Phi(-a g w)` is a flatter function of
the exact gradient. To compensate, the probability is made steeper,

.. math:: p = \sum_k \pi_k\, \Phi\left(\frac{-g w}{\sqrt{a_k^{-2} - \tau^2 w^2}}\right),

so that its mean over the noise is exactly the probability without noise, as long as
:math:`\tau |w| < 1 / \max_k a_k = 1.0775`. For larger :math:`\tau |w|` a term is 0 or 1, and the variance of the draws
is too large. The paper has one term, a = 1 / 1.702. The three terms here differ from the logistic function by at most
6e-5 and have the same slope at 0, so that the law without noise is also correct.

==== ============ ==============================
``E`` jump         z' = z + w or z - w
==== ============ ==============================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import jax
from jax import random
import jax.numpy as jnp
from jax.scipy.stats import norm

from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.types import Dynamics, Flow, Phase
from numpyro_sgmcmc.utils import noise, trees
from numpyro_sgmcmc.utils.validation import checked_inverse_mass

SPREAD = 0.1  # sigma
WEIGHTS = (0.226257, 0.597395, 0.176348)  # pi: the logistic distribution as a mixture of normals
SCALES = (0.928046, 0.588707, 0.36853)  # a


@dataclass(frozen=True)
class Barker(Dynamics):
    """The stochastic Barker proposal."""

    inverse_mass_matrix: Any = 1.0  # factor of the squared jumps: 1.0, a scalar, or a dict of diagonals like z

    flows: ClassVar[Mapping[str, Flow]] = {
        "E": Flow("jump", needs_gradient=True, needs_key=True, moves=True, needs_variance=True)
    }
    integrators: ClassVar[Mapping[str, str]] = {"euler": "E"}

    def largest_step(self, curvature: Any) -> Any:
        return 0.04 / curvature  # adds h / 2 to the relative variance, as for SGLD

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Relative variance by white noise beyond ``phase.noise_variance`` tau^2: h M^-1 (s^2 - tau^2) / 2."""
        known = phase.noise_variance
        known = jax.tree.map(jnp.zeros_like, variance) if isinstance(known, tuple) else known
        inverse_mass = trees.like(self.inverse_mass_matrix, variance)
        return jax.tree.map(lambda s2, t2, im: 0.5 * h * im * (s2 - t2), variance, known, inverse_mass)

    def E(self, phase: Phase, h: jax.Array, gradient: Any, rng_key: jax.Array) -> Phase:
        key_size, key_sign = random.split(rng_key)

        def jump(z, g, tau2, n, u, im):
            w = jnp.sqrt(2 * h * im / (1 + SPREAD**2)) * (1 + SPREAD * n)
            return z + jnp.where(u < upwards(g, w, tau2), w, -w)

        sizes, signs = noise.normal_like(key_size, phase.z), noise.uniform_like(key_sign, phase.z)
        inverse_mass = trees.like(self.inverse_mass_matrix, phase.z)
        return phase._replace(z=jax.tree.map(jump, phase.z, gradient, phase.noise_variance, sizes, signs, inverse_mass))


def upwards(g: jax.Array, w: jax.Array, variance: jax.Array) -> jax.Array:
    """The probability of a jump of +w. It is NaN if g is not finite, so that the step is refused."""
    total = jnp.zeros_like(g)
    for weight, scale in zip(WEIGHTS, SCALES):
        left = jnp.maximum(scale**-2 - variance * w * w, 1e-12)
        total += weight * norm.cdf(-g * w / jnp.sqrt(left))
    return jnp.where(jnp.isfinite(g), total, jnp.nan)


class SGBarker(SGMCMC):
    r"""
    Stochastic gradient Barker dynamics: each coordinate jumps by :math:`w \approx \sqrt{2 h M^{-1}}`, upwards with
    probability :math:`1 / (1 + e^{g w})`, else downwards.

    A jump is never larger than w, so the chain stays stable where gradients are occasionally enormous, as in networks
    and with heavy tails, while :class:`~numpyro_sgmcmc.SGLD` diverges. Elsewhere it behaves like SGLD. Its order is 1,
    with a variance of :math:`(1 + h \lambda / 2) / \lambda` on a Gaussian of curvature :math:`\lambda` to first order.

    The kernel corrects for the noise of the gradient. It measures the variance :math:`\tau^2` once, with 300
    minibatches at the start of the chain, and makes the probability steeper. With normal noise a step then has exactly
    the distribution of a step without noise, as long as :math:`\tau \sqrt{2 h M^{-1}}` is below about 0.9. So start
    near the mode (``init_params=find_mode(...)``), and keep h below :math:`0.4 / (M^{-1} \tau^2)`.

    Arguments that are not listed are those of :class:`~numpyro_sgmcmc.SGMCMC`.

    :param step_size: h > 0, or a function of the step index. The paper's :math:`\sigma` is about
        :math:`\sqrt{2 h M^{-1}}`.
    :param rows: row scheme. None: ``WithoutReplacement()``. Batches must be independent: reshuffled ones add less noise
        than the correction removes.
    :param inverse_mass_matrix: None, a scalar or a dict of diagonals like ``z``.
    :raises ValueError: if there is no step size, or batches are not independent.

    **References:**

    1. *Robust Approximate Sampling via Stochastic Gradient Barker Dynamics*, L. Mauri, G. Zanella (2024)
    2. *The Barker proposal: combining robustness and efficiency in gradient-based MCMC*, S. Livingstone, G. Zanella
       (2022)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGBarker
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGBarker(model, step_size=4e-5, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x, init_params={"mu": 3.0})
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    missing_step_size = (
        ". Give half the square of a jump, for example a tenth of the posterior variance, or use SGLD or SGHMC, whose "
        "warm-up chooses it."
    )

    def __init__(self, model: Any, *, inverse_mass_matrix: Any = None, **options: Unpack[KernelOptions]):
        super().__init__(model, Barker(checked_inverse_mass(inverse_mass_matrix)), "euler", **options)
