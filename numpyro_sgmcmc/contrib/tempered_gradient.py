"""The gradient of U / T, for the replicas of tempered chains."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, Sites


class TemperedGradientState(NamedTuple):
    beta: jax.Array  # 1 / T, shape ()
    inner: Any  # state of the estimator of U


@dataclass(frozen=True)
class TemperedGradient(GradientEstimator):
    """
    Turns an estimator of the gradient of U into one of U / T. Its energy is still that of U. T is part of the state: 1
    at the start, and set by :class:`~numpyro_sgmcmc.Tempered`.
    """

    inner: GradientEstimator  # the estimator of U

    def check(self, potential: Potential, chains: int) -> None:
        self.inner.check(potential, chains)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> TemperedGradientState:
        beta = jnp.ones((), jnp.result_type(*jax.tree.leaves(z)))
        return TemperedGradientState(beta, self.inner.start(potential, z, rng_key))

    def begin_step(
        self, potential: Potential, z: Sites, gradient_state: TemperedGradientState, i: jax.Array, rng_key: jax.Array
    ) -> TemperedGradientState:
        return gradient_state._replace(inner=self.inner.begin_step(potential, z, gradient_state.inner, i, rng_key))

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: TemperedGradientState, rng_key: jax.Array
    ) -> Evaluation:
        of_u = self.inner.evaluate(potential, z, rows, gradient_state.inner, rng_key)
        return of_u._replace(gradient=jax.tree.map(lambda g: gradient_state.beta * g, of_u.gradient))

    def commit(self, gradient_state: TemperedGradientState, update: Any, accepted: jax.Array) -> TemperedGradientState:
        return gradient_state._replace(inner=self.inner.commit(gradient_state.inner, update, accepted))
