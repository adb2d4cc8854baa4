"""
What is chosen at the end of a round of the warm-up, from gradients at its draws: whether minibatches are blocks of
neighbouring rows, the order of a control variate, the axes of x, the step size, and the steps per draw.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.second_order import expands, passes_of_hessian, using
from numpyro_sgmcmc.tuning.all_rows import are_cheaper, decides
from numpyro_sgmcmc.tuning.noise_samples import along_axes, bend_of, is_as_quiet, turned
from numpyro_sgmcmc.tuning.probes import Looks
from numpyro_sgmcmc.tuning.step_rule import StepRule
from numpyro_sgmcmc.tuning.warm_up import Update
from numpyro_sgmcmc.types import Potential
from numpyro_sgmcmc.utils import noise, trees

MOST_STEPS = 1000  # maximal steps per draw
LARGER = 1.9  # ratio of step sizes, in steps of 2^(1/4), for which a control variate of second order is worth its cost
HESSIANS = 3  # times that the Hessian is computed


@dataclass(frozen=True)
class Choice:
    rule: StepRule
    undecided: bool  # whether it is open if minibatches are blocks
    order: int | None  # the order of a control variate; None: chosen
    steps_per_sample: int | None  # given by the user, or None
    blocks: Any  # blocks of L, see blocks_of

    def made(
        self, potential: Potential, measured: Update, looks: Looks, visited: jax.Array, rng_key: jax.Array
    ) -> Update:
        """
        The state with what is chosen, and with new momenta.

        :param measured: the state when the noise was measured.
        :param looks: what was measured.
        :param visited: where it was measured, shape ``(places, chains, d)``; first at the positions of the chains.
        """
        settings, warm_up, gradient_state = measured.settings, measured.warm_up, measured.gradient_state
        coordinates, moments, first = settings.coordinates, warm_up.moments, warm_up.transition == 0
        turns, expanding = coordinates.turns, expands(gradient_state)
        flat = lambda x: x.reshape(*x.shape[:-3], -1, x.shape[-1])  # noqa: E731
        differences, bends, visited = flat(looks.differences), flat(looks.bends), flat(visited)

        def choose(differences, bends):
            of_noise, axes = along_axes(differences, visited, coordinates, self.blocks)
            bend = bend_of(bends)
            return of_noise, axes, bend, self.rule.step_size(of_noise, bend, warm_up.largest)

        kinds = jax.vmap(choose)(differences, bends)
        blocks_fit = larger = jnp.zeros((), bool)
        if self.undecided:
            scattered, of_blocks = turned(differences, turns, kinds[1][1])
            blocks_fit = first & is_as_quiet(of_blocks[len(of_blocks) // 2 :], scattered)
        if expanding:
            h = kinds[-1]
            larger = ~first & gradient_state.hessian.used & ((h[1] >= LARGER * h[0]) | (self.order == 2))
        kind = (blocks_fit | larger).astype(jnp.int32)
        parts = kinds, looks.gradient, looks.energy
        (of_noise, axes, bend, h), gradient, energy = jax.tree.map(lambda of_kinds: of_kinds[kind], parts)
        # a chain cannot leave a position where the gradient is not finite, so it starts at c, where it is about 0
        sound = jnp.isfinite(gradient).all(1, keepdims=True)
        x, gradient = (jnp.where(sound, x, 0) for x in (measured.phase.z, gradient))
        energy = jnp.where(sound[:, 0], energy, jnp.inf)
        x, gradient, places = (turned(x, turns, axes) for x in (x, gradient, moments.places))
        coordinates = coordinates if turns is None else coordinates.turned(axes)
        silent = jax.tree.map(jnp.zeros_like, of_noise)
        of_all = self.rule.step_size(silent, bend, warm_up.largest)
        share, batch_size = settings.share, settings.batch_size
        if decides(gradient_state):
            all_rows = gradient_state.all_rows | are_cheaper(potential, h, of_all)
            gradient_state = gradient_state._replace(all_rows=all_rows)
            h = jnp.where(all_rows, of_all, h)
            of_noise = trees.where(all_rows, silent, of_noise)
            share = jnp.where(all_rows, 1, share)
            batch_size = {name: jnp.where(all_rows, potential.plates[name].size, n) for name, n in batch_size.items()}
        steps = jnp.clip(jnp.ceil(warm_up.length / h), 1, MOST_STEPS).astype(jnp.int32)
        if expanding:
            gradient_state = using(gradient_state, first | larger)
            # the second order is tried if the noise keeps h small, and the Hessians cost no more than the warm-up
            part = min(plate.batch_size / plate.size for plate in potential.plates.values())
            passes = steps * x.shape[0] * part * warm_up.num_warmup
            cheap = HESSIANS * passes_of_hessian(coordinates) <= passes
            second_order = larger | (cheap & (LARGER * h <= of_all)) | (self.order == 2)
            warm_up = warm_up._replace(second_order=second_order)
        settings = replace(
            settings,
            step_size=h,
            steps_per_sample=steps if self.steps_per_sample is None else settings.steps_per_sample,
            predicted_inflation=self.rule.inflation(h, of_noise.variance),
            coordinates=coordinates,
            noise_variance=of_noise.variance,
            share=share,
            batch_size=batch_size,
            contiguous=settings.contiguous | blocks_fit,
        )
        moments, earlier = moments._replace(places=places), jnp.zeros_like(warm_up.earlier)
        momentum = noise.normal(rng_key, x.shape, x.dtype)
        return measured._replace(
            settings=settings,
            warm_up=warm_up._replace(moments=moments, earlier=earlier),
            phase=jax.vmap(lambda x, p: self.rule.phase(x, p, h, of_noise.variance))(x, momentum),
            gradient_state=gradient_state,
            gradient=gradient,
            energy=energy,
        )
