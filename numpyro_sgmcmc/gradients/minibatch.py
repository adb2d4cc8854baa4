"""The plain gradient estimator."""

from dataclasses import dataclass
from typing import Any

import jax

from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, Sites


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    r"""
    The plain estimator
    :math:`\nabla\tilde U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_{i \in S}\nabla\log p(x_i \mid z)`.

    Variance O(N^2 / n) per coordinate; no state. It is the default of the kernels.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Minibatch, SGLD
        >>> kernel = SGLD(lambda: None, step_size=1e-4, gradient=Minibatch())
    """

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[()]:
        del potential, z, rng_key
        return ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        del gradient_state
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        return Evaluation(energy, gradient, ())
