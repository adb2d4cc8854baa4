r"""
The settings of a kernel that the warm-up chooses: coordinates (centre c and scale L), step size, steps per draw.

The first transition approximates the posterior by a normal (:mod:`~numpyro_sgmcmc.tuning.search`), unless the settings
of another run are given. After 1/8, 1/4 and 1/2 of the warm-up the draws of the round
(:mod:`~numpyro_sgmcmc.tuning.pilot`) correct it: they move c, rescale L along directions where the evidence is
sufficient, and halve the step size if they are not from the posterior. A round whose draws are lost is started again
from the normal approximation, with half the step size. Then the gradient noise is measured again at the draws.

After half of the warm-up the settings are frozen, and the second half checks them. If the check fails after 3/4, the
settings are corrected once more, and the last quarter checks the correction. If it fails at the end, there is a last
correction, which is not checked.

The noise, and how far the posterior is from normal, determine the step size (:mod:`~numpyro_sgmcmc.tuning.step_rule`).
A draw takes :math:`l / h` steps. Its length l is 1, or up to 4 if the draws of a round depend on each other more than
they would for a standard normal.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.rows.schemes import is_contiguous
from numpyro_sgmcmc.tuning.arrow import Arrow
from numpyro_sgmcmc.tuning.coordinates import Coordinates, LowRank, blocks_of, is_wide, product, unraveler
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.low_rank import VECTORS
from numpyro_sgmcmc.tuning.pilot import (
    BLOCKS,
    Evidence,
    Moments,
    bend_of,
    evidence,
    measured,
    pooled,
    rotation,
    shortened,
    stretch,
    together,
    turned,
)
from numpyro_sgmcmc.tuning.probes import probe
from numpyro_sgmcmc.tuning.search import Found, search
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.tuning import CHECKED, Scores, Tuning
from numpyro_sgmcmc.types import GradientEstimator, Phase, Potential, RowScheme
from numpyro_sgmcmc.utils import noise, trees

SHORTEST = 2 * BLOCKS  # transitions of the shortest warm-up whose draws are used
PROBES = 1000  # positions at which the gradient noise is measured, at least; also at least 2 per coordinate
WIDE_PROBES = 400  # the same if L is not a full matrix: its axes are then not rotated to those of the noise
QUIET_PROBES = 200  # the same without noise
MOST_STEPS = 1000  # maximal steps per draw
SLOW, LONGEST = 0.2, 4.0  # effective draws per draw below which draws become longer, and the maximal length


@dataclass(frozen=True)
class Tuner:
    """
    :param rule: chooses the step size for the dynamics of the kernel and the variance of the gradient noise.
    :param gradient: gradient estimator of the kernel.
    :param rows: row scheme of the kernel.
    :param steps_per_sample: given by the user, or None.
    :param dense_mass: the blocks of L, see :func:`~numpyro_sgmcmc.tuning.coordinates.blocks_of`.
    :param known: coordinates and curvature found by another run, or None.
    """

    rule: StepRule
    gradient: GradientEstimator
    rows: RowScheme
    steps_per_sample: int | None
    dense_mass: Any = True
    known: tuple[Coordinates | LowRank | Arrow, float] | None = None

    def start(self, potential: Potential, chains: int, num_warmup: int, layout: Layout | None = None) -> Tuning:
        """
        The state before the first transition: only its shapes and dtypes matter.

        :param layout: the groups of a hierarchy, if L has their shape.
        """
        sites = potential.prototype.values()
        d, dtype = sum(site.size for site in sites), jnp.result_type(*(site.dtype for site in sites))
        zero = jnp.zeros((), dtype)
        if layout is not None:
            nothing = jnp.zeros(d, dtype)
            coordinates, places = Arrow.diagonal(nothing, nothing, layout), WIDE_PROBES
        elif is_wide(potential.prototype):
            k, places = 2 * VECTORS if self.dense_mass is True else 0, WIDE_PROBES
            nothing = jnp.zeros(d, dtype)
            coordinates = LowRank(nothing, nothing + 1, jnp.zeros((d, k), dtype), jnp.ones(k, dtype))
        else:
            coordinates, places = Coordinates(jnp.zeros(d, dtype), jnp.eye(d, dtype=dtype)), max(PROBES, 2 * d)
        if self.known is not None:
            coordinates = jax.tree.map(jnp.zeros_like, self.known[0])
        noisy = potential.randomised or any(plate.batch_size < plate.size for plate in potential.plates.values())
        places = -(-(places if noisy else QUIET_PROBES) // chains)
        return Tuning(
            coordinates,
            zero + 1,
            jnp.zeros(d, dtype),
            zero,
            jnp.asarray(self.steps_per_sample or 1, jnp.int32),
            zero + 1,
            zero + self.rule.dynamics.largest_step(1.0),
            zero,
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            jnp.asarray(num_warmup, jnp.int32),
            Moments.zeros(jnp.zeros((places, chains, d), dtype), isinstance(coordinates, Coordinates)),
            jnp.zeros((2, d), dtype),
            zero,
            Scores(zero, zero, zero),
            zero,
        )

    def before(
        self, potential: Potential, tuning: Tuning, z: Any, phase: Phase, gradient_state: Any, key
    ) -> tuple[Tuning, Phase, Any, jax.Array]:
        """
        Called before a transition of the warm-up, and before the first one after it. At the end of a round it updates
        the settings; within a round it adds the previous draw to the moments.

        :param z: positions of the chains, along the first axis, as in ``phase``, and in ``gradient_state`` unless the
            estimator shares it.
        :return: settings, phase, the estimator's state, and whether the coordinates are new.
        """
        key_change, key_look, key_momentum = random.split(key, 3)
        t, end = tuning.transition, tuning.num_warmup
        looks = end >= SHORTEST
        correction = looks & (t == jnp.stack([end // 8, end // 4, end // 2])).any()
        halfway, last = ((end >= CHECKED) & (t == check) for check in (3 * end // 4, end))
        found = lax.cond(correction | halfway | last, evidence, _nothing_seen, tuning.moments)
        found = trees.where(last, together(found, tuning.earlier), found)
        tuning = tuning._replace(
            scores=trees.where(last, Scores.of(found), tuning.scores),
            earlier=jnp.where(halfway, jnp.stack([found.gradient, found.virial]), tuning.earlier),
        )
        due = (t == 0) | correction | ((halfway | last) & tuning.is_too_large(found))
        # the noise is measured at draws if the round has some, otherwise at draws from the normal approximation
        drawn = jnp.minimum(tuning.moments.draws.astype(jnp.int32), len(tuning.moments.places))
        drawn = jnp.where((drawn > 0) & ~tuning.is_lost(found), drawn, len(tuning.moments.places))
        operands = tuning, phase.z, gradient_state

        def change(operands):
            return self._change(potential, z, key_change, found, *operands)

        tuning, x, gradient_state = lax.cond(due, change, lambda o: o, operands)
        begins = due | halfway
        tuning = tuning._replace(begun=jnp.where(begins, t, tuning.begun))
        moments = trees.where(begins, tuning.moments.restarted(), tuning.moments)
        places = moments.places
        counts = looks & (t > tuning.round[0]) & (t <= end)
        number = jnp.where(due, len(places), counts).astype(jnp.int32)

        def look(k, seen):
            moments, differences, bends, sound = seen
            # first at the positions of the chains
            there = jnp.where(due & (k > 0), places[k % drawn], x)
            parts = self.gradient, self.rows, tuning.coordinates
            reach = self.rule.reach(tuning.largest)
            seen = probe(potential, *parts, there, gradient_state, reach, random.fold_in(key_look, k))
            moments = moments.add(tuning.block, there, seen.first, seen.second)
            differences = differences.at[k].set((seen.first - seen.second) / jnp.sqrt(2.0))
            sound = jnp.where(k > 0, sound, jnp.isfinite(seen.first).all(1))
            return moments, differences, bends.at[k].set(seen.bend), sound

        nothing = jnp.zeros_like(places), jnp.zeros_like(places), jnp.ones(places.shape[1], bool)
        added, differences, bends, sound = lax.fori_loop(0, number, look, (moments, *nothing))

        def settle():
            flat = lambda samples: samples.reshape(-1, x.shape[-1])  # noqa: E731
            # a chain cannot leave a position where the gradient is not finite, so it starts at c
            there, here = jnp.where(sound[: len(x), None], x, 0), tuning._replace(moments=moments)
            return self._settled(potential, here, there, flat(differences), flat(bends), key_momentum)

        tuning, phase = lax.cond(due, settle, lambda: (tuning._replace(moments=added), phase))
        return tuning, phase, gradient_state, due

    def _change(self, potential, z, key, found, tuning, x, gradient_state):
        """New coordinates, positions in them, and the estimator's state."""
        blocks = blocks_of(potential.prototype, self.dense_mass)
        key_search, key_center, key_x = random.split(key, 3)
        places = tuning.moments.places
        draws = noise.normal(key_x, places.shape, x.dtype)
        fresh = draws[0, : len(x)], draws

        def by_search():
            if self.known is None:
                layout = getattr(tuning.coordinates, "layout", None)
                law = search(potential, z, key_search, self.dense_mass, is_contiguous(self.rows), layout)
            else:
                coordinates, curvature = self.known
                law = Found(coordinates, jnp.asarray(curvature, x.dtype), jnp.zeros((), x.dtype))
            largest = jnp.asarray(self.rule.dynamics.largest_step(law.curvature), x.dtype)
            return law.coordinates, *fresh, law.curvature, tuning.length, largest, law.passes

        def by_draws():
            center = tuning.coordinates.to_z(found.mean)
            if blocks is None and isinstance(tuning.coordinates, Coordinates):
                factors, vectors = stretch(tuning.moments, found)
                into = lambda x: product(product(x - found.mean, vectors) / factors, vectors.T)  # noqa: E731
                scale = product(tuning.coordinates.scale, product(vectors * factors, vectors.T))
                moved = Coordinates(center, scale), into(x), into(places)
            else:  # do not rescale: a coordinate scaled to the width of its draws may be too stiff
                moved = tuning.coordinates._replace(center=center), x - found.mean, places - found.mean
            lost = tuning.is_lost(found) | ~trees.all_finite(moved)
            moved = trees.where(lost, (tuning.coordinates, *fresh), moved)
            late = (tuning.transition > tuning.num_warmup // 8) & (tuning.num_warmup >= CHECKED)
            halved = lost | (late & tuning.is_too_large(found))
            largest = jnp.where(halved, 0.5 * tuning.largest, tuning.largest)
            slow = late & (found.slowest < SLOW) & ~lost
            longer = jnp.clip(2 * SLOW / found.slowest, 1, LONGEST / tuning.length)
            length = tuning.length * jnp.where(slow, longer, 1)
            return *moved, tuning.curvature, length, largest, jnp.zeros_like(largest)

        coordinates, x, places, curvature, length, largest, passes = lax.cond(
            tuning.transition == 0, by_search, by_draws
        )
        center = unraveler(potential.prototype)(coordinates.center)
        gradient_state = self.gradient.recenter(potential, gradient_state, center, key_center)
        tuning = tuning._replace(
            coordinates=coordinates,
            curvature=curvature,
            length=length,
            largest=largest,
            moments=tuning.moments._replace(places=places),
            passes=tuning.passes + passes + 1,
        )
        return tuning, x, gradient_state

    def _settled(
        self,
        potential: Potential,
        tuning: Tuning,
        x: jax.Array,
        differences: jax.Array,
        bends: jax.Array,
        rng_key: jax.Array,
    ) -> tuple[Tuning, Phase]:
        """Axes, step size and number of steps from what was measured; new momenta are drawn."""
        coordinates, moments = tuning.coordinates, tuning.moments
        if isinstance(coordinates, LowRank):
            seen = measured(shortened(differences))
        else:
            turns = coordinates.turns
            seen, axes = rotation(differences, blocks_of(potential.prototype, self.dense_mass), turns)
            coordinates = coordinates.turned(axes)
            x, moments = turned(x, turns, axes), moments._replace(places=turned(moments.places, turns, axes))
        if isinstance(coordinates, Arrow):
            seen = pooled(seen, coordinates.layout)
        bend = bend_of(bends)
        h = self.rule.step_size(seen, bend, tuning.largest)
        steps = jnp.clip(jnp.ceil(tuning.length / h), 1, MOST_STEPS).astype(jnp.int32)
        tuning = tuning._replace(
            coordinates=coordinates,
            variance=seen.variance,
            step_size=h,
            bend=bend,
            inflation=self.rule.inflation(h, seen.variance),
            num_steps=steps if self.steps_per_sample is None else tuning.num_steps,
            moments=moments,
            earlier=jnp.zeros_like(tuning.earlier),
        )
        return tuning, self._phase(tuning, x, rng_key)

    def _phase(self, tuning: Tuning, x: jax.Array, rng_key: jax.Array) -> Phase:
        momentum = noise.normal(rng_key, x.shape, x.dtype)
        return jax.vmap(lambda x, p: self.rule.phase(x, p, tuning.step_size, tuning.variance))(x, momentum)


def _nothing_seen(moments: Moments) -> Evidence:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evidence, moments))
