"""
The update as a word: one letter for each flow of a dynamics, read from left to right.

Each letter moves for h divided by the number of times it occurs. The gradient is evaluated at the first kick after a
position has moved and reused until it moves again, also into the next step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from numpyro_sgmcmc.types import Dynamics, Evaluation, Phase, Sites
from numpyro_sgmcmc.utils import noise

KICKS = "BE"  # flows that need the gradient
NOISY = "NOE"  # flows that need noise


@dataclass(frozen=True)
class Splitting:
    """
    The interpreter of a word.

    :param str word: e.g. ``"ABOBA"``. See the flows of the dynamics for the letters.
    :param str moves: the letters that change the position.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Splitting
        >>> from numpyro_sgmcmc.dynamics.underdamped import Underdamped
        >>> Splitting("BAOAB").gradients_per_step  # that of the last kick serves the first of the next step
        1
        >>> Splitting("ABOBA").check(Underdamped(noise=1.0))  # a word that does not fit is an error
    """

    word: str
    moves: str = "A"

    @property
    def carries_gradient(self) -> bool:
        """Whether a step begins with a kick whose gradient the step before has left behind (BAOAB, OBABO)."""
        kicks = [k for k, letter in enumerate(self.word) if letter in KICKS]
        moves = [k for k, letter in enumerate(self.word) if letter in self.moves]
        return bool(kicks and moves) and kicks[0] < moves[0] and kicks[-1] > moves[-1]

    @property
    def gradients_per_step(self) -> int:
        """Gradient evaluations a step."""
        evaluations, fresh = 0, self.carries_gradient
        for letter in self.word:
            if letter in KICKS and not fresh:
                evaluations, fresh = evaluations + 1, True
            fresh = fresh and letter not in self.moves
        return evaluations

    def check(self, dynamics: Dynamics) -> None:
        """
        Judge the word by the grammar of its dynamics.

        :raises ValueError: names the letter that is wrong or missing.
        """
        word, has = self.word, self.word.__contains__
        name = type(dynamics).__name__
        refuse = f"integrator {word!r} does not fit {name}: "
        for letter in word:
            if letter not in dynamics.flows:
                raise ValueError(
                    f"{refuse}it has no flow {letter!r}. A word is written in capitals; its flows are "
                    f"{', '.join(map(repr, dynamics.flows))}; by name: {', '.join(map(repr, dynamics.integrators))}."
                )
        if dynamics.flows == "E":
            if word != "E":
                raise ValueError(f"{refuse}a first-order dynamics has the single word 'E'.")
            return
        if not has("A"):
            raise ValueError(f"{refuse}the drift 'A' is missing, so the position would never move.")
        if has("E"):
            for letter in "BFNO":
                if has(letter):
                    raise ValueError(
                        f"{refuse}'E' is the whole momentum update and stands without {letter!r}; leave one out."
                    )
            if word.count("E") > 1:
                raise ValueError(f"{refuse}'E' may stand only once.")
        else:
            if not has("B"):
                raise ValueError(f"{refuse}the kick 'B' is missing, so the gradient would have no effect.")
            for letter in "FN":
                if has("O") and has(letter):
                    raise ValueError(f"{refuse}'O' contains {letter!r}; leave out one of them.")
                if not has("O") and not has(letter):
                    raise ValueError(f"{refuse}{letter!r} is missing: friction and noise are 'O', or 'F' and 'N'.")
        if "D" in dynamics.flows and not has("D"):
            raise ValueError(f"{refuse}the thermostat 'D' is missing.")

    def step(
        self,
        dynamics: Dynamics,
        phase: Phase,
        gradient: Any,
        h: jax.Array,
        gradient_fn: Callable[[Sites], Evaluation],
        rng_key: jax.Array,
    ) -> tuple[Phase, Any, tuple[Evaluation, ...]]:
        """
        One step.

        :param gradient: the carried gradient, or ``()``.
        :param h: step size, shape ``()``.
        :param gradient_fn: position -> :class:`~numpyro_sgmcmc.types.Evaluation`.
        :param rng_key: key of the step's noise.
        :return: the new phase, the gradient to carry (or ``()``), and the evaluations that were made.
        """
        draws = sum(letter in NOISY for letter in self.word)
        keys = iter([rng_key] if draws == 1 else jax.random.split(rng_key, draws))
        fresh, evaluations = self.carries_gradient, []
        for letter in self.word:
            inputs = []
            if letter in KICKS:
                if not fresh:
                    evaluations.append(gradient_fn(phase.z))
                    gradient, fresh = evaluations[-1].gradient, True
                inputs.append(gradient)
            if letter in NOISY:
                inputs.append(noise.normal_like(next(keys), phase.z))
            phase = getattr(dynamics, letter)(phase, h / self.word.count(letter), *inputs)
            fresh = fresh and letter not in self.moves
        return phase, gradient if self.carries_gradient else (), tuple(evaluations)


def named(integrator: str | Splitting, dynamics: Dynamics) -> Splitting:
    """
    The integrator meant by a name (``"euler"``, ``"ssi"``) or a word, judged.

    :raises ValueError: no such name, or an illegal word.
    """
    if isinstance(integrator, Splitting):
        integrator = integrator.word
    if not isinstance(integrator, str) or not integrator:
        raise ValueError(f"integrator={integrator!r}: give a name ({', '.join(dynamics.integrators)}) or a word.")
    splitting = Splitting(dynamics.integrators.get(integrator, integrator), dynamics.moves)
    splitting.check(dynamics)
    return splitting
