"""
The update as a word: one letter for each flow of a dynamics, read from left to right.

Each letter is a step of size h divided by the number of times it occurs. The gradient is evaluated at the first kick
after the position has moved, and reused until it moves again, also in the next step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.dynamics import nose_hoover, underdamped
from numpyro_sgmcmc.types import Dynamics, Evaluation, Flow, Phase, Sites
from numpyro_sgmcmc.utils import noise


@dataclass(frozen=True)
class Splitting:
    """
    The integrator that is spelled by a word.

    :param str word: for example ``"ABOBA"``.
    :param dict flows: letter -> flow, as declared by the dynamics. A kernel uses those of its dynamics; the default are
        the letters of underdamped and Nosé-Hoover dynamics.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Splitting
        >>> from numpyro_sgmcmc.dynamics.underdamped import Underdamped
        >>> Splitting("BAOAB").gradients_per_step  # that of the last kick serves the first of the next step
        1
        >>> Splitting("ABOBA").check(Underdamped(noise=1.0))  # a word that does not fit is an error
    """

    word: str
    flows: Mapping[str, Flow] = field(
        default_factory=lambda: underdamped.FLOWS | nose_hoover.FLOWS, repr=False, compare=False
    )

    @property
    def _kicks(self) -> list[int]:
        return [k for k, letter in enumerate(self.word) if self.flows[letter].needs_gradient]

    @property
    def _moves(self) -> list[int]:
        return [k for k, letter in enumerate(self.word) if self.flows[letter].moves]

    @property
    def evaluates_end(self) -> bool:
        """Whether the last gradient of a step is evaluated at its final position (BAOAB, OBABO, ABO)."""
        return bool(self._kicks and self._moves) and self._kicks[-1] > self._moves[-1]

    @property
    def carries_gradient(self) -> bool:
        """Whether the first kick of a step uses the last gradient of the previous step (BAOAB, OBABO)."""
        return self.evaluates_end and self._kicks[0] <= self._moves[0]

    @property
    def evaluates_start(self) -> bool:
        """Whether the first gradient of a step is evaluated at its initial position (E, EA)."""
        return bool(self._kicks) and not self.carries_gradient and self._kicks[0] <= min(self._moves, default=0)

    @property
    def needs_variance(self) -> bool:
        """Whether a letter needs the variance of the gradient noise (ABGBA)."""
        return any(self.flows[letter].needs_variance for letter in self.word)

    @property
    def gradients_per_step(self) -> int:
        """Gradient evaluations per step."""
        evaluations, fresh = 0, self.carries_gradient
        for letter in self.word:
            if self.flows[letter].needs_gradient and not fresh:
                evaluations, fresh = evaluations + 1, True
            fresh = fresh and not self.flows[letter].moves
        return evaluations

    def check(self, dynamics: Dynamics) -> None:
        """
        Checks that the word integrates each term of the SDE once.

        :raises ValueError: if a letter is wrong or missing; the message names it.
        """
        flows, word = dynamics.flows, self.word
        refuse = f"integrator {word!r} does not fit {type(dynamics).__name__}: "
        terms = {letter: flow.contains or letter for letter, flow in flows.items()}
        for letter in word:
            if letter not in flows:
                raise ValueError(
                    f"{refuse}it has no flow {letter!r}. A word is written in capitals; its flows are "
                    f"{', '.join(map(repr, flows))}; by name: {', '.join(map(repr, dynamics.integrators))}."
                )
        for letter in dict.fromkeys(word):
            for other in dict.fromkeys(word):
                if letter != other and set(terms[letter]) >= set(terms[other]):
                    raise ValueError(f"{refuse}{letter!r} contains {other!r}; leave out one of them.")
            if flows[letter].needs_gradient and flows[letter].needs_noise and word.count(letter) > 1:
                raise ValueError(f"{refuse}{letter!r} is a whole first-order step and may occur only once.")
            places = flows[letter].places
            if places and not any(_stands_in(word, place) for place in places):
                raise ValueError(
                    f"{refuse}{letter!r} is correct only in {' or '.join(map(repr, places))}, whose letters may not "
                    "occur elsewhere."
                )
        for term in dict.fromkeys("".join(terms.values())):
            having = [letter for letter in flows if term in terms[letter]]
            if not set(having) & set(word):
                raise ValueError(
                    f"{refuse}the {flows[term].name} {term!r} is missing"
                    + "".join(f", or {letter!r}, which contains it" for letter in having if letter != term)
                    + "."
                )

    def step(
        self,
        dynamics: Dynamics,
        phase: Phase,
        gradient: Any,
        h: jax.Array,
        gradient_fn: Callable[[Sites], Evaluation],
        rng_key: jax.Array,
        noise_free: Any = None,
    ) -> tuple[Phase, Any, tuple[Evaluation, ...]]:
        """
        One step.

        :param gradient: the carried gradient, or ``()``.
        :param h: step size, shape ``()``.
        :param gradient_fn: position -> :class:`~numpyro_sgmcmc.types.Evaluation`.
        :param rng_key: key of the step's noise.
        :param noise_free: whether the step has no noise, shape ``()``; None: it has noise.
        :return: the new phase, the gradient to carry (or ``()``), and all evaluations.
        """
        return self.observed_step(dynamics, phase, gradient, h, gradient_fn, rng_key, noise_free)[:3]

    def observed_step(
        self,
        dynamics: Dynamics,
        phase: Phase,
        gradient: Any,
        h: jax.Array,
        gradient_fn: Callable[[Sites], Evaluation],
        rng_key: jax.Array,
        noise_free: Any = None,
    ) -> tuple[Phase, Any, tuple[Evaluation, ...], tuple[tuple[Phase, Phase], ...]]:
        """The results of :meth:`step`, and the phases before and after each letter with noise."""
        used = [self.flows[letter] for letter in self.word]
        shared = any(flow.shares_noise for flow in used)
        draws = shared + sum((flow.needs_noise or flow.needs_key) and not flow.shares_noise for flow in used)
        keys = iter([rng_key] if draws == 1 else jax.random.split(rng_key, draws))

        def normal(like):
            drawn = noise.normal_like(next(keys), like)
            return drawn if noise_free is None else jax.tree.map(lambda n: jnp.where(noise_free, 0, n), drawn)

        of_step = normal(dynamics.noise_like(phase)) if shared else ()
        fresh, evaluations, around_noise = self.carries_gradient, [], []
        for letter in self.word:
            flow, inputs = self.flows[letter], []
            if flow.needs_gradient:
                if not fresh:
                    evaluations.append(gradient_fn(phase.z))
                    gradient, fresh = evaluations[-1].gradient, True
                inputs.append(gradient)
            if flow.shares_noise:
                inputs.append(of_step)
            elif flow.needs_noise:
                inputs.append(normal(phase.z))
            elif flow.needs_key:
                inputs.append(next(keys))
            before, phase = phase, getattr(dynamics, letter)(phase, h / self.word.count(letter), *inputs)
            if flow.needs_noise:
                around_noise.append((before, phase))
            fresh = fresh and not flow.moves
        return phase, gradient if self.carries_gradient else (), tuple(evaluations), tuple(around_noise)


def _stands_in(word: str, part: str) -> bool:
    """Whether the word has this part, and the letters of the part nowhere else."""
    return part in word and all(word.count(letter) == part.count(letter) for letter in part)


def named(integrator: str | Splitting, dynamics: Dynamics) -> Splitting:
    """The integrator for a name (``"euler"``, ``"ssi"``) or a word. Raises a ValueError if it does not fit."""
    if isinstance(integrator, Splitting):
        integrator = integrator.word
    if not isinstance(integrator, str) or not integrator:
        raise ValueError(f"integrator={integrator!r} must be a name ({', '.join(dynamics.integrators)}) or a word.")
    splitting = Splitting(dynamics.integrators.get(integrator, integrator), dynamics.flows)
    splitting.check(dynamics)
    return splitting
