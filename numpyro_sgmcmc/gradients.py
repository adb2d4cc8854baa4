"""Gradient estimators: rows -> unbiased gradient of U. Written on the potential's three questions; none draws."""

from dataclasses import dataclass
from typing import Any

import jax

from numpyro_sgmcmc.base import Evaluation, Potential, Rows, Sites


@dataclass(frozen=True)
class Minibatch:
    r"""
    The plain estimator
    :math:`\nabla\tilde U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_{i \in S}\nabla\log p(x_i \mid z)`.

    Variance O(N^2 / n) per coordinate; no state.
    """

    def init(self, potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[()]:
        del potential, z, rng_key
        return ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        del gradient_state
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        return Evaluation(energy, gradient, ())

    def commit(self, gradient_state: Any, proposal: Any, accepted: jax.Array) -> tuple[()]:
        del gradient_state, proposal, accepted
        return ()
