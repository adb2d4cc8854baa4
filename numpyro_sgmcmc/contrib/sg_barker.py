"""The stochastic Barker proposal: :mod:`~numpyro_sgmcmc.contrib.barker` from minibatches."""

from typing import Any, Unpack

from numpyro_sgmcmc.contrib.barker import Barker
from numpyro_sgmcmc.engine.options import KernelOptions
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.utils.validation import checked_inverse_mass


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

    def __init__(
        self,
        model: Any,
        *,
        inverse_mass_matrix: Any = None,
        **options: Unpack[KernelOptions],
    ):
        super().__init__(model, Barker(checked_inverse_mass(inverse_mass_matrix)), "euler", **options)
