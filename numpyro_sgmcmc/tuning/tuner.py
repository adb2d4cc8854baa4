r"""
The numbers of a kernel, found in its warm-up: coordinates, centre, step size, steps of a draw.

The first transition searches for the law of the posterior (:mod:`~numpyro_sgmcmc.tuning.search`), unless that of
another run is given. After 1/8, 1/4 and 1/2 of the warm-up the draws of the round
(:mod:`~numpyro_sgmcmc.tuning.pilot`) correct it: they move c, stretch L where they can tell, and, where they are not
those of the posterior, halve the step. The noise of the gradient is then measured anew where the draws are. What stands
after half of the warm-up is frozen, and the second half checks it.

The noise gives the step size (:mod:`~numpyro_sgmcmc.tuning.step_rule`), and a draw takes :math:`1 / h` steps.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.model.coordinates import Coordinates, blocks_of, product, raveled, unraveler
from numpyro_sgmcmc.rows.schemes import next_rows, row_weights
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Moments, evidence, rotation, stretch
from numpyro_sgmcmc.tuning.search import Found, search
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.types import GradientEstimator, Phase, Potential, RowScheme, RowsState
from numpyro_sgmcmc.utils import noise, trees

SHORTEST = 2 * BLOCKS  # transitions of a warm-up that draws are looked at in
CHECKED = 20 * BLOCKS  # transitions of a warm-up whose second half is long enough for a check
PROBES = 1000  # places at which the noise of the gradient is measured, at least, and 2 for each coordinate
MOST_STEPS = 1000  # of a draw
RED = 4.5  # a z-score beyond it halves the step


class Tuning(NamedTuple):
    """
    What has been found. The same for all chains of a state.

    - **coordinates** - c and L.
    - **curvature** - the largest of U in x; 1 where L is a whole matrix.
    - **variance** - of the gradient's noise in x, by coordinate.
    - **step_size** - h in x.
    - **num_steps** - of a draw.
    - **largest** - no step is larger.
    - **transition** - number of the next one, **num_warmup** those of the warm-up.
    - **moments** - of the round under way.
    - **passes** - over the data so far, in search and warm-up.
    - **scores** - see :class:`Scores`.
    - **inflation** - relative variance that the gradient's noise adds, to first order, in the worst coordinate.
    """

    coordinates: Coordinates
    curvature: jax.Array
    variance: jax.Array
    step_size: jax.Array
    num_steps: jax.Array
    largest: jax.Array
    transition: jax.Array
    num_warmup: jax.Array
    moments: Moments
    passes: jax.Array
    scores: "Scores"
    inflation: jax.Array

    @property
    def told(self) -> list[jax.Array]:
        """What a run tells of it: steps of a draw, largest variance of the noise, passes, inflation, scores."""
        return [self.num_steps, self.variance.max(), self.passes, self.inflation, *self.scores]


class Scores(NamedTuple):
    """
    The worst coordinate of a round, see :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 before any round.
    """

    gradient: jax.Array
    virial: jax.Array
    r_hat: jax.Array


@dataclass(frozen=True)
class Tuner:
    """
    :param rule: the dynamics of the kernel, and what it makes of the gradient's noise.
    :param gradient: of the kernel.
    :param rows: of the kernel.
    :param steps_per_sample: given by the user, or None.
    :param dense_mass: the blocks of L, see :func:`~numpyro_sgmcmc.model.coordinates.blocks_of`.
    :param known: coordinates and curvature that another run has found, or None.
    """

    rule: StepRule
    gradient: GradientEstimator
    rows: RowScheme
    steps_per_sample: int | None
    dense_mass: Any = True
    known: tuple[Coordinates, float] | None = None

    def start(self, potential: Potential, chains: int, num_warmup: int) -> Tuning:
        """Before the first transition: nothing but shapes."""
        sites = potential.prototype.values()
        d, dtype = sum(site.size for site in sites), jnp.result_type(*(site.dtype for site in sites))
        coordinates = Coordinates(jnp.zeros(d, dtype), jnp.eye(d, dtype=dtype))
        noisy = potential.randomised or any(plate.batch_size < plate.size for plate in potential.plates.values())
        places = -(-max(PROBES, 2 * d) // chains) if noisy else 2
        zero = jnp.zeros((), dtype)
        return Tuning(
            coordinates,
            zero + 1,
            jnp.zeros(d, dtype),
            zero,
            jnp.ones((), jnp.int32),
            zero + self.rule.dynamics.largest_step(1.0),
            jnp.zeros((), jnp.int32),
            jnp.asarray(num_warmup, jnp.int32),
            Moments.zeros(jnp.zeros((places, chains, d), dtype)),
            zero,
            Scores(zero, zero, zero),
            zero,
        )

    def before(
        self, potential: Potential, tuning: Tuning, z: Any, energies: jax.Array, phase: Phase, gradient_state: Any, key
    ) -> tuple[Tuning, Phase, Any]:
        """
        What precedes a transition: where a round ends, the changes; within a round, a look at the draw before.

        :param z: of the chains, an axis of chains in front, as also of ``energies`` and ``phase``.
        """
        key_change, key_look, key_momentum = random.split(key, 3)
        t, end = tuning.transition, tuning.num_warmup
        looks = end >= SHORTEST
        last = (end >= CHECKED) & (t == end)
        due = (t == 0) | (looks & (t == _bounds(end)).any())
        # at draws, where the round has seen some: what stands for them before lies on a normal law
        drawn = jnp.minimum(tuning.moments.draws.astype(jnp.int32), len(tuning.moments.places))
        drawn = jnp.where(drawn > 0, drawn, len(tuning.moments.places))
        operands = tuning, phase.z, gradient_state

        def change(operands):
            return self._change(potential, z, energies, key_change, *operands)

        tuning, x, gradient_state = lax.cond(due, change, lambda o: o, operands)
        places = tuning.moments.places
        counts = looks & (t > _round(tuning)[0]) & (t <= end)
        number = jnp.where(due, len(places), counts).astype(jnp.int32)

        def look(k, seen):
            moments, differences = seen
            there = jnp.where(due, places[k % drawn], x)
            first, second = self._pair(
                potential, tuning.coordinates, there, gradient_state, random.fold_in(key_look, k)
            )
            moments = moments.add(_block(tuning), there, first, second)
            return moments, differences.at[k].set((first - second) / jnp.sqrt(2.0))

        moments, differences = lax.fori_loop(0, number, look, (tuning.moments, jnp.zeros_like(places)))

        def settle():
            return self._settled(potential, tuning, x, differences.reshape(-1, x.shape[-1]), key_momentum)

        tuning, phase = lax.cond(due, settle, lambda: (tuning._replace(moments=moments), phase))
        scores = lax.cond(last, lambda: _worst(evidence(tuning.moments)), lambda: tuning.scores)
        return tuning._replace(scores=scores, transition=jnp.minimum(t + 1, 2**31 - 2)), phase, gradient_state

    def _change(self, potential, z, energies, key, tuning, x, gradient_state):
        """New coordinates, positions in them, and the estimator's state."""
        blocks = blocks_of(potential.prototype, self.dense_mass)
        key_search, key_center, key_x = random.split(key, 3)
        places = tuning.moments.places

        def by_search():
            best = jnp.argmin(jnp.where(jnp.isfinite(energies), energies, jnp.inf))
            if self.known is None:
                found = search(potential, jax.tree.map(lambda x: x[best], z), key_search, self.dense_mass)
            else:
                coordinates, curvature = self.known
                found = Found(coordinates, jnp.asarray(curvature, x.dtype), jnp.zeros((), x.dtype))
            draws = noise.normal(key_x, places.shape, x.dtype)
            largest = jnp.asarray(self.rule.dynamics.largest_step(found.curvature), x.dtype)
            return found.coordinates, draws[0, : len(x)], draws, found.curvature, largest, found.passes

        def by_draws():
            found = evidence(tuning.moments)
            scores = _worst(found)
            factors, vectors = stretch(tuning.moments, found)
            if blocks is not None:
                # a coordinate as wide as its draws may be too stiff beside the others
                factors, vectors = jnp.ones_like(factors), jnp.eye(x.shape[-1], dtype=x.dtype)
            into = lambda x: product(product(x - found.mean, vectors) / factors, vectors.T)  # noqa: E731
            scale = product(tuning.coordinates.scale, product(vectors * factors, vectors.T))
            moved = Coordinates(tuning.coordinates.to_z(found.mean), scale), into(x), into(places)
            moved = trees.where(trees.all_finite(moved), moved, (tuning.coordinates, x, places))
            late = (tuning.transition > tuning.num_warmup // 8) & (tuning.num_warmup >= CHECKED)
            # a step that the noise keeps far below the largest one is not what is wrong
            bold = tuning.step_size > 0.7 * tuning.largest
            red = late & bold & (jnp.maximum(scores.gradient, scores.virial) > RED)
            largest = jnp.where(red, 0.5 * tuning.largest, tuning.largest)
            return *moved, tuning.curvature, largest, jnp.zeros_like(largest)

        coordinates, x, places, curvature, largest, passes = lax.cond(tuning.transition == 0, by_search, by_draws)
        center = unraveler(potential.prototype)(coordinates.center)
        gradient_state = self.gradient.recenter(potential, gradient_state, center, key_center)
        tuning = tuning._replace(
            coordinates=coordinates,
            curvature=curvature,
            largest=largest,
            moments=tuning.moments._replace(places=places),
            passes=tuning.passes + passes + 1,
        )
        return tuning, x, gradient_state

    def _settled(
        self, potential: Potential, tuning: Tuning, x: jax.Array, differences: jax.Array, rng_key: jax.Array
    ) -> tuple[Tuning, Phase]:
        """Axes, step size and steps by the noise that has been seen; momenta drawn anew."""
        variance, axes = rotation(differences, blocks_of(potential.prototype, self.dense_mass))
        scale = product(tuning.coordinates.scale, axes)
        h = self.rule.step_size(variance, tuning.largest)
        steps = jnp.clip(jnp.ceil(1 / h), 1, MOST_STEPS).astype(jnp.int32)
        tuning = tuning._replace(
            coordinates=tuning.coordinates._replace(scale=scale),
            variance=variance,
            step_size=h,
            inflation=self.rule.inflation(h, variance),
            num_steps=steps if self.steps_per_sample is None else tuning.num_steps,
            moments=Moments.zeros(product(tuning.moments.places, axes)),
        )
        return tuning, self._phase(tuning, product(x, axes), rng_key)

    def _phase(self, tuning: Tuning, x: jax.Array, rng_key: jax.Array) -> Phase:
        momentum = noise.normal(rng_key, x.shape, x.dtype)
        return jax.vmap(lambda x, p: self.rule.phase(x, p, tuning.step_size, tuning.variance))(x, momentum)

    def _pair(self, potential, coordinates, x, gradient_state, rng_key):
        """Gradients in x from two fresh minibatches for each chain."""
        unravel = unraveler(potential.prototype)

        def one(x, key):
            z = unravel(coordinates.to_z(x))

            def gradient(key):
                key_rows, key_model = random.split(key)
                rows, _ = next_rows(self.rows, RowsState(key_rows, jnp.zeros((), jnp.uint32)), potential.plates)
                with potential.serving(rows, weights=row_weights(self.rows, potential.plates)):
                    evaluation = self.gradient.evaluate(potential, z, rows, gradient_state, key_model)
                return coordinates.pull_back(raveled(evaluation.gradient))

            return jax.vmap(gradient)(random.split(key))

        pairs = jax.vmap(one)(x, random.split(rng_key, len(x)))
        return pairs[:, 0], pairs[:, 1]


def _bounds(num_warmup: jax.Array) -> jax.Array:
    """Transitions before which a round ends, but for the last."""
    return jnp.stack([num_warmup // 8, num_warmup // 4, num_warmup // 2])


def _round(tuning: Tuning) -> tuple[jax.Array, jax.Array]:
    """The transitions before which the draws of this round begin to count, after a quarter of it, and end."""
    t, end = tuning.transition, tuning.num_warmup
    begin = jnp.max(jnp.where(_bounds(end) < t, _bounds(end), 0))
    end = jnp.min(jnp.where(_bounds(end) >= t, _bounds(end), end))
    return begin + (end - begin) // 4, end


def _block(tuning: Tuning) -> jax.Array:
    """Block of the draw before this transition."""
    begin, end = _round(tuning)
    block = (tuning.transition - begin - 1) * BLOCKS // jnp.maximum(end - begin - 1, 1)
    return jnp.clip(block, 0, BLOCKS - 1)


def _worst(found: Any) -> Scores:
    return Scores(jnp.abs(found.gradient).max(), jnp.abs(found.virial).max(), found.r_hat.max())
