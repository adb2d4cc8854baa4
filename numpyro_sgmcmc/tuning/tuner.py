r"""
The settings of a kernel that the warm-up chooses: coordinates (centre c and scale L), step size, steps per draw.

The first transition approximates the posterior by a normal (:mod:`~numpyro_sgmcmc.tuning.search`), unless the settings
of another run are given. After 1/8, 1/4 and 1/2 of the warm-up the draws of the round
(:mod:`~numpyro_sgmcmc.tuning.pilot`) correct it: they move c, rescale L along directions where the evidence is
sufficient, and halve the step size if they are not from the posterior. A round whose draws are lost is started again
from the normal approximation, with half the step size. Then the gradient noise is measured again at the draws.

The first time, the noise is measured with scattered rows and with blocks of neighbouring rows, if the row scheme leaves
this open. Blocks are read several times faster, so the chain uses them if their noise is not larger
(:func:`~numpyro_sgmcmc.tuning.noise_samples.is_as_quiet`). Later it is measured with and without a control variate's
term of second order, if the noise keeps the step size small; the term stays if it makes the step size much larger.

After half of the warm-up the settings are frozen, and the second half checks them. If the check fails after 3/4, the
settings are corrected once more, and the last quarter checks the correction. If it fails at the end, there is a last
correction, which is not checked.

The noise, and how far the posterior is from normal, determine the step size (:mod:`~numpyro_sgmcmc.tuning.step_rule`,
:mod:`~numpyro_sgmcmc.tuning.choice`).
A draw takes :math:`l / h` steps. Its length l is 1, or up to 4 if the draws of a round depend on each other more than
they would for a standard normal.
"""

from dataclasses import dataclass, replace
from functools import partial
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.second_order import Hessian, expands, passes_of_hessian, using
from numpyro_sgmcmc.rows.schemes import is_contiguous, is_undecided
from numpyro_sgmcmc.tuning.all_rows import decides
from numpyro_sgmcmc.tuning.choice import Choice
from numpyro_sgmcmc.tuning.coordinates import Coordinates, blocks_of, unraveler
from numpyro_sgmcmc.tuning.groups import Layout
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Moments, corrected, evidence, together
from numpyro_sgmcmc.tuning.probes import Looks, probe
from numpyro_sgmcmc.tuning.search import Approximation, search, unknown
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.warm_up import CHECKED, Scores, Settings, Update, WarmUp
from numpyro_sgmcmc.types import GradientEstimator, Phase, Potential, RowScheme
from numpyro_sgmcmc.utils import noise, trees

SHORTEST = 2 * BLOCKS  # transitions of the shortest warm-up whose draws are used
PROBES = 1000  # positions at which the gradient noise is measured, at least; also at least 2 per coordinate
WIDE_PROBES = 400  # the same if L is not a full matrix: its axes are then not rotated to those of the noise
QUIET_PROBES = 200  # the same without noise
SLOW, LONGEST = 0.2, 4.0  # effective draws per draw below which draws become longer, and the maximal length


@dataclass(frozen=True)
class Tuner:
    rule: StepRule  # chooses the step size for the dynamics of the kernel and the variance of the gradient noise
    gradient: GradientEstimator  # gradient estimator of the kernel
    rows: RowScheme  # row scheme of the kernel
    steps_per_sample: int | None  # given by the user, or None
    dense_mass: Any = True  # the blocks of L, see blocks_of
    known: Settings | None = None  # settings of another run, or None
    layout: Layout | None = None  # the groups of a hierarchy, if L has their shape

    @property
    def order(self) -> int | None:
        """The order of a control variate; None: chosen."""
        return getattr(self.gradient, "order", None)

    def start(self, potential: Potential, chains: int, num_warmup: int) -> tuple[Settings, WarmUp]:
        """The settings and the state before the first transition: only their shapes and dtypes matter."""
        coordinates = unknown(potential, self.dense_mass, self.layout)
        (d,), dtype = coordinates.center.shape, coordinates.center.dtype
        places = max(PROBES, 2 * d) if isinstance(coordinates, Coordinates) else WIDE_PROBES
        if self.known is not None:
            coordinates = jax.tree.map(jnp.zeros_like, self.known.coordinates)
        noisy = potential.randomised or any(plate.batch_size < plate.size for plate in potential.plates.values())
        places = -(-(places if noisy else QUIET_PROBES) // chains)
        zero = jnp.zeros((), dtype)
        settings = Settings(
            step_size=zero,
            steps_per_sample=jnp.asarray(self.steps_per_sample or 1, jnp.int32),
            predicted_inflation=zero,
            coordinates=coordinates,
            curvature=zero + 1,
            passes=zero,
            scores=Scores(zero, zero, zero),
            noise_variance=jnp.zeros(d, dtype),
            contiguous=jnp.zeros((), bool),
            batch_size={name: jnp.asarray(plate.batch_size) for name, plate in potential.plates.items()},
            share=zero + math.prod(plate.batch_size / plate.size for plate in potential.plates.values()),
        )
        warm_up = WarmUp(
            length=zero + 1,
            largest=zero + self.rule.dynamics.largest_step(1.0),
            second_order=jnp.asarray(self.order == 2),
            transition=jnp.zeros((), jnp.int32),
            begun=jnp.zeros((), jnp.int32),
            num_warmup=jnp.asarray(num_warmup, jnp.int32),
            moments=Moments.zeros(jnp.zeros((places, chains, d), dtype), coordinates.is_rescaled),
            earlier=jnp.zeros((2, d), dtype),
            rejected=zero,
        )
        return settings, warm_up

    def before(
        self,
        potential: Potential,
        settings: Settings,
        warm_up: WarmUp,
        z: Any,
        phase: Phase,
        gradient_state: Any,
        rng_key: jax.Array,
        accept_prob: Any = 1.0,
    ) -> Update:
        """
        Called before a transition of the warm-up, and before the first one after it. At the end of a round it updates
        the settings; within a round it adds the previous draw to the moments.

        :param z: positions of the chains, along the first axis, as in ``phase``, and in ``gradient_state`` unless the
            estimator shares it.
        :param accept_prob: acceptance probability of the previous transition, if its steps pass a Metropolis test.
        """
        key_change, key_look, key_momentum = random.split(rng_key, 3)
        t, end = warm_up.transition, warm_up.num_warmup
        looks = end >= SHORTEST
        correction = looks & (t == jnp.stack([end // 8, end // 4, end // 2])).any()
        halfway, last = ((end >= CHECKED) & (t == check) for check in (3 * end // 4, end))
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(evidence, warm_up.moments))
        statistics = lax.cond(correction | halfway | last, evidence, lambda _: nothing, warm_up.moments)
        statistics = trees.where(last, together(statistics, warm_up.earlier), statistics)
        settings = replace(settings, scores=trees.where(last, Scores.from_evidence(statistics), settings.scores))
        earlier = jnp.where(halfway, jnp.stack([statistics.gradient, statistics.virial]), warm_up.earlier)
        warm_up = warm_up._replace(earlier=earlier)
        reach = warm_up.reach_of_test(settings.step_size)
        wrong = warm_up.is_too_large(settings.step_size, statistics) | (reach < settings.step_size)
        due = (t == 0) | correction | ((halfway | last) & wrong)
        # the noise is measured at draws if the round has some, otherwise at draws from the normal approximation
        drawn = jnp.minimum(warm_up.moments.draws.astype(jnp.int32), len(warm_up.moments.places))
        drawn = jnp.where((drawn > 0) & ~warm_up.is_lost(statistics), drawn, len(warm_up.moments.places))
        change = partial(self._change, potential, z, key_change, statistics, reach)
        operands = settings, warm_up, phase.z, gradient_state
        settings, warm_up, x, gradient_state = lax.cond(due, change, lambda *same: same, *operands)
        begins = due | halfway
        warm_up = warm_up._replace(begun=jnp.where(begins, t, warm_up.begun))
        moments = trees.where(begins, warm_up.moments.restarted(), warm_up.moments)
        places = moments.places
        counts = looks & (t > warm_up.round[0]) & (t <= end)
        rejected = jnp.where(begins, 0, warm_up.rejected + counts * (1 - jnp.mean(accept_prob)))
        warm_up = warm_up._replace(rejected=rejected.astype(warm_up.rejected.dtype))
        undecided, expanding = is_undecided(self.rows) and bool(potential.plates), expands(gradient_state)
        kinds = 2 if undecided or expanding else 1
        both = jnp.where(t == 0, undecided, warm_up.second_order)
        number = jnp.where(due, len(places) * jnp.where(both, 2, 1), counts).astype(jnp.int32)

        def look(k, carry):
            moments, looks = carry
            kind, place = jnp.divmod(k, len(places))
            there = jnp.where(due & (place > 0), places[place % drawn], x)
            parts = self.gradient, self.rows, settings.coordinates
            contiguous = settings.contiguous | ((t == 0) & (kind > 0))
            rest = self.rule.reach(warm_up.largest), random.fold_in(key_look, k), contiguous
            estimator = using(gradient_state, (kind > 0) | (t == 0)) if expanding else gradient_state
            if decides(estimator):  # the noise is that of minibatches; the chains may go on with all rows
                estimator = estimator._replace(all_rows=jnp.where(due, place == 0, estimator.all_rows))
            gradients = probe(potential, *parts, there, estimator, *rest)
            moments = moments.add(warm_up.block, there, gradients.first, gradients.second)
            return moments, looks.add(kind, place, gradients)

        added, looks = lax.fori_loop(0, number, look, (moments, Looks.zeros(kinds, places)))
        kept = Update(settings, warm_up, phase, gradient_state, due, looks.gradient[0], looks.energy[0])

        def choose():
            visited = places[jnp.arange(len(places)) % drawn].at[0].set(x)
            measured = kept._replace(warm_up=warm_up._replace(moments=moments), phase=phase._replace(z=x))
            choice = Choice(self.rule, undecided, self.order, self.steps_per_sample, self._blocks(potential))
            return choice.made(potential, measured, looks, visited, key_momentum)

        return lax.cond(due, choose, lambda: kept._replace(warm_up=warm_up._replace(moments=added)))

    def _blocks(self, potential: Potential) -> Any:
        return blocks_of(potential.prototype, self.dense_mass)

    def _change(self, potential, z, key, statistics, reach, settings, warm_up, x, gradient_state):
        """New coordinates, positions in them, and the estimator's state."""
        key_search, key_center, key_x, key_hessian = random.split(key, 4)
        places = warm_up.moments.places
        draws = noise.normal(key_x, places.shape, x.dtype)
        fresh = draws[0, : len(x)], draws

        def by_search():
            if self.known is None:
                layout = settings.coordinates.layout  # the chain of a transition has none
                law = search(potential, z, key_search, self.dense_mass, is_contiguous(self.rows), layout)
            else:
                curvature = jnp.asarray(self.known.curvature, x.dtype)
                law = Approximation(self.known.coordinates, curvature, jnp.zeros((), x.dtype))
            largest = jnp.asarray(self.rule.dynamics.largest_step(law.curvature), x.dtype)
            return law.coordinates, *fresh, law.curvature, warm_up.length, largest, law.passes

        def by_draws():
            # blocks are not rescaled: a coordinate scaled to the width of its draws may be too stiff
            rescaled = settings.coordinates.is_rescaled and self._blocks(potential) is None
            moved = corrected(settings.coordinates, warm_up.moments, statistics, x, rescaled)
            lost = warm_up.is_lost(statistics) | ~trees.all_finite(moved)
            moved = trees.where(lost, (settings.coordinates, *fresh), moved)
            late = (warm_up.transition > warm_up.num_warmup // 8) & (warm_up.num_warmup >= CHECKED)
            too_large = warm_up.is_too_large(settings.step_size, statistics) & ~warm_up.passes_the_test
            halved = lost | (late & too_large)
            largest = jnp.where(halved, 0.5 * warm_up.largest, warm_up.largest)
            largest = jnp.minimum(largest, reach)
            slow = late & (statistics.slowest < SLOW) & ~lost
            longer = jnp.clip(2 * SLOW / statistics.slowest, 1, LONGEST / warm_up.length)
            length = warm_up.length * jnp.where(slow, longer, 1)
            return *moved, settings.curvature, length, largest, jnp.zeros_like(largest)

        coordinates, x, places, curvature, length, largest, passes = lax.cond(
            warm_up.transition == 0, by_search, by_draws
        )
        center = unraveler(potential.prototype)(coordinates.center)
        gradient_state = self.gradient.recenter(potential, gradient_state, center, key_center)
        passes = settings.passes + passes + 1
        if expands(gradient_state):
            renewed = partial(Hessian.at, potential, center, coordinates, key_hessian)
            unused = replace(gradient_state.hessian, used=jnp.zeros((), bool))
            hessian = lax.cond(warm_up.second_order, renewed, lambda: unused)
            gradient_state = gradient_state._replace(hessian=hessian)
            passes += warm_up.second_order * passes_of_hessian(coordinates)
        settings = replace(settings, coordinates=coordinates, curvature=curvature, passes=passes)
        moments = warm_up.moments._replace(places=places)
        return settings, warm_up._replace(length=length, largest=largest, moments=moments), x, gradient_state
