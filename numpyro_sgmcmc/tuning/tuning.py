"""The settings that the warm-up has found so far: a part of the state of a run."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.coordinates import Coordinates, Identity, LowRank
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Evidence, Moments, is_lost, score_limit

CHECKED = 20 * BLOCKS  # transitions of the shortest warm-up whose second half is long enough for a check


class Scores(NamedTuple):
    """
    Scores of the worst coordinate of a round, see :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 before any round.
    """

    gradient: jax.Array
    virial: jax.Array
    r_hat: jax.Array

    @classmethod
    def of(cls, found: Evidence) -> "Scores":
        """The scores of a round."""
        return cls(jnp.abs(found.gradient).max(), jnp.abs(found.virial).max(), found.r_hat.max())


class Given(NamedTuple):
    """The settings of a run whose step size is given."""

    coordinates: Identity = Identity()

    @property
    def kept(self) -> dict[str, jax.Array]:
        """The numbers that a run keeps of its warm-up."""
        return {}


class Tuning(NamedTuple):
    """
    The settings found so far, and the state of the search. The same for all chains of a state.

    - **coordinates** - c and L.
    - **curvature** - the largest curvature of U in x; 1 if L is a full matrix.
    - **variance** - variance of the gradient noise in x, by coordinate.
    - **step_size** - h in x.
    - **num_steps** - steps per draw.
    - **length** - length of a draw, in units of time.
    - **largest** - upper bound of the step size.
    - **bend** - what the shape of the posterior adds to the gradient at ``largest``, see
      :mod:`~numpyro_sgmcmc.tuning.probes`.
    - **transition** - number of the next transition.
    - **begun** - number of the transition before which this round began.
    - **num_warmup** - transitions of the warm-up.
    - **moments** - moments of the current round.
    - **earlier** - z-scores of the round before it, if it belongs to the same check; otherwise 0, shape ``(2, d)``.
    - **passes** - passes over the data so far, in search and warm-up.
    - **scores** - see :class:`Scores`.
    - **inflation** - relative variance that the gradient noise adds, to first order, in the worst coordinate.
    """

    coordinates: Coordinates | LowRank | Arrow
    curvature: jax.Array
    variance: jax.Array
    step_size: jax.Array
    num_steps: jax.Array
    length: jax.Array
    largest: jax.Array
    bend: jax.Array
    transition: jax.Array
    begun: jax.Array
    num_warmup: jax.Array
    moments: Moments
    earlier: jax.Array
    passes: jax.Array
    scores: Scores
    inflation: jax.Array

    @property
    def kept(self) -> dict[str, jax.Array]:
        """The numbers that a run keeps, by their names in :class:`~numpyro_sgmcmc.report.monitor.Monitor`."""
        return {
            "num_steps": self.num_steps,
            "noise": self.variance.max(),
            "passes": self.passes,
            "inflation": self.inflation,
            **self.scores._asdict(),
        }

    @property
    def score_limit(self) -> float:
        """The bound of the scores: see :func:`~numpyro_sgmcmc.tuning.pilot.score_limit`."""
        chains, coordinates = self.moments.places.shape[-2:]
        return score_limit(coordinates, chains)

    @property
    def round(self) -> tuple[jax.Array, jax.Array]:
        """The transitions before which this round begins to use draws, after a quarter of it, and ends."""
        begin, end = self.begun, self.num_warmup
        bounds = jnp.stack([end // 8, end // 4, end // 2, jnp.where(end >= CHECKED, 3 * end // 4, end)])
        end = jnp.min(jnp.where(bounds > begin, bounds, end))
        return begin + (end - begin) // 4, end

    @property
    def block(self) -> jax.Array:
        """Block of the draw before this transition."""
        begin, end = self.round
        block = (self.transition - begin - 1) * BLOCKS // jnp.maximum(end - begin - 1, 1)
        return jnp.clip(block, 0, BLOCKS - 1)

    def is_too_large(self, found: Evidence) -> jax.Array:
        """
        Whether the draws of a round are not from the posterior, and perhaps because of the step size. If the noise
        keeps it far below the largest one, it is not the cause.
        """
        scores, limit = Scores.of(found), self.score_limit
        right = (scores.gradient <= limit) & (scores.virial <= limit)  # a score that is not a number is not right
        return (self.step_size > 0.7 * self.largest) & ~right

    def is_lost(self, found: Evidence) -> jax.Array:
        """Whether the draws of a round say nothing; a round of a short warm-up has too few draws to know."""
        return (self.num_warmup >= CHECKED) & is_lost(found)
