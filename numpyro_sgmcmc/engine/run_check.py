r"""
Adds the draws of a run to the averages of :mod:`~numpyro_sgmcmc.report.run_scores`, while it is sampling.

A word that ends with a kick, such as ``BAGAB``, has evaluated the gradient at the draw for its next step. If batches
are independent, the draw does not depend on their rows, so this gradient is used. Otherwise one is evaluated on rows of
its own after every k-th draw, so that there are at least 20 steps for each; after a draw of many steps, several.

If the step size is given, the matrix S is the covariance of the draws in the second half of the warm-up.

A run is not checked if the gradient at a draw is not defined or costs too much: local values that are kept from visit
to visit, a block of Gibbs, data on disk, other variables than those of NumPyro (a simplex), replicas that exchange
temperatures; nor with a schedule, whose draws have no common distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.state import RarelyChanging, SGMCMCState, Stream, axes_of_chains, derive_key
from numpyro_sgmcmc.model.numpyro_internals import GIBBS_SITES_KWARG
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.run_scores import RunScores, ScoreAverages
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.schedules import Constant
from numpyro_sgmcmc.tuning.coordinates import raveled
from numpyro_sgmcmc.types import RowsState

STEPS = 20  # steps for each gradient that is evaluated for the check
FREE_STEPS = 8  # the same if the gradient has been evaluated for a step
MOST = 8  # maximal number of gradients at a draw


@dataclass(frozen=True)
class RunCheck:
    chain: Chain  # the chain for the potential
    potential: ModelPotential  # that of the variables in which the chains move

    @property
    def possible(self) -> bool:
        """Whether the draws can be checked, and the user has not switched it off."""
        potential = self.potential
        defined = potential.transforms is None and not potential.keeps_local_values
        defined &= GIBBS_SITES_KWARG not in potential.kwargs and isinstance(self.chain.schedule, Constant)
        return self.chain.checked and defined and not potential.sources

    @property
    def averages(self) -> ScoreAverages:
        """The averages of the model."""
        inside = [name for name, site in self.potential.structure.latents.items() if site.plates]
        return ScoreAverages.for_model(self.potential.prototype, inside)

    def start(self, state: SGMCMCState, chains: int) -> SGMCMCState:
        """A new state, with the averages of no draws yet; without them if the draws are not checked."""
        if not self.possible:
            return state
        dtype = raveled(state.z).dtype
        return state._replace(scores=RunScores.zeros(self.averages, chains, dtype, learns=not self.chain.tuned))

    def after(self, before: SGMCMCState, state: SGMCMCState, steps: Any) -> SGMCMCState:
        """The state after a transition, with its draws in the averages; ``before`` is the state before it."""
        scores = state.scores
        if not isinstance(scores, RunScores):
            return state
        period = ((FREE_STEPS if self._is_free else STEPS) + steps - 1) // steps
        sampling = self.chain.is_sampling(state)

        def add(_, scores):
            # XLA moves what does not depend on the loop out of it, into every transition; scores.places depends on it
            always = scores.places >= 0
            key_of = partial(derive_key, use=jnp.where(always, int(Stream.CHECK), 0))
            keys = jax.vmap(key_of)(before.rng_key if jnp.ndim(state.i) else before.rng_key[None])
            z, g = self._over(state, _position), self._over(state, partial(self._gradient, steps), keys)
            z, g = (jnp.where(always, x, 0) for x in (z, g))
            L = state.settings.coordinates
            z, v, diagonal = jax.vmap(L.times)(z), jax.vmap(L.times)(g), L.variances(jnp.ones_like(g[0]))
            return scores.add(self.averages, z, *scores.times(v, diagonal))

        # loops of one iteration or none, because a conditional would copy the averages
        due = sampling & (scores.draws % period == 0)
        scores = lax.fori_loop(0, due.astype(jnp.int32), add, scores)
        if not self.chain.tuned:
            marks = RarelyChanging.unpacked(state.marks)
            i, end = (jnp.ravel(x)[0] for x in (state.i, marks.num_warmup))
            late = ~sampling & (i > end // 2)
            learn = lambda _, scores: scores.learn(self._over(state, _position))  # noqa: E731
            scores = lax.fori_loop(0, late.astype(jnp.int32), learn, scores)
        return state._replace(scores=scores._replace(draws=scores.draws + sampling))

    @property
    def _is_free(self) -> bool:
        """Whether the gradient at the draw has been evaluated for the next step, on rows that it does not depend on."""
        return self.chain.integrator.carries_gradient and getattr(self.chain.rows, "independent", False)

    def _over(self, state: SGMCMCState, fn: Callable[..., jax.Array], *rest: jax.Array) -> jax.Array:
        """``fn`` of each chain, with an axis of chains."""
        if not jnp.ndim(state.i):
            return fn(state, *(x[0] for x in rest))[None]
        return jax.vmap(fn, (axes_of_chains(self.chain), *[0] * len(rest)))(state, *rest)

    def _gradient(self, steps: Any, state: SGMCMCState, rng_key: jax.Array) -> jax.Array:
        """The gradient at the position of a chain, in its coordinates."""
        if self._is_free:
            return raveled(state.gradient)
        z = self.chain.position(self.potential, state)
        key_rows, key_model = random.split(rng_key)

        def of_rows(k):
            rows_state = RowsState(key_rows, jnp.uint32(k))
            rows, _ = next_rows(self.chain.rows, rows_state, self.potential.plates, state.settings.contiguous)
            key = random.fold_in(key_model, k)
            return raveled(self.chain.evaluate(self.potential, z, rows, state.gradient_state, key).gradient)

        if isinstance(steps, int) and steps < 2 * STEPS:
            gradient = of_rows(0)
        else:
            number = jnp.clip(steps // STEPS, 1, MOST)
            total = lax.fori_loop(0, number, lambda k, total: total + of_rows(k), jnp.zeros_like(raveled(z)))
            gradient = total / number
        return state.settings.coordinates.pull_back(gradient)


def _position(state: SGMCMCState) -> jax.Array:
    return raveled(state.phase.z)
