"""What the warm-up finds, ``Settings``, and the state of its search, ``WarmUp``: two parts of the state of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
import numpy as np

from numpyro_sgmcmc.tuning.coordinates import Identity
from numpyro_sgmcmc.tuning.pilot import BLOCKS, Evidence, Moments, is_lost, score_limit
from numpyro_sgmcmc.types import Phase
from numpyro_sgmcmc.utils import html

# the share of steps that may be rejected by a Metropolis test, and the one that should be; also per unit of time
REJECTED = 0.12, 1.0
AIM = 0.03, 0.5
CHECKED = 20 * BLOCKS  # transitions of the shortest warm-up whose second half is long enough for a check

MEANING = {
    "step_size": "in standardised coordinates",
    "gradient_noise": "largest variance of the gradient noise in a coordinate",
    "predicted_inflation": "relative error of a variance by this noise",
    "centering": "1 centred, 0 non-centred",
    "curvature": "largest curvature in the coordinates",
    "passes": "over the data, by the search",
    "scores": "of the check of the warm-up, in the worst coordinate",
}
NOT_SHOWN = frozenset(["noise_variance", "contiguous", "share"])  # fields of Settings that are not in the dict


class Scores(NamedTuple):
    """Scores of a round's worst coordinate, see :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 before any round."""

    gradient: jax.Array
    virial: jax.Array
    r_hat: jax.Array

    @classmethod
    def from_evidence(cls, statistics: Evidence) -> "Scores":
        """The scores of a round."""
        return cls(jnp.abs(statistics.gradient).max(), jnp.abs(statistics.virial).max(), statistics.r_hat.max())


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Settings(dict):
    """
    The settings of a run: those that the warm-up has found so far, the same for all chains of a state; None: given by
    the user. :func:`~numpyro_sgmcmc.settings` explains and returns them, with those of the kernel and a verdict, and
    ``settings=`` takes them. As a dict they cannot be changed.

    - **noise_variance** - variance of the gradient noise in x, by coordinate.
    - **contiguous** - whether minibatches are blocks of neighbouring rows, if the row scheme is undecided.
    - **share** - share of the rows in a minibatch.
    """

    step_size: Any = None
    steps_per_sample: Any = None
    gradient: Any = None
    batch_size: Any = None
    rows: Any = None
    gradient_noise: Any = None
    predicted_inflation: Any = None
    coordinates: Any = Identity()
    centering: Any = ()
    curvature: Any = None
    passes: Any = None
    scores: Any = None
    verdict: Any = None
    friction: Any = None
    diffusion: Any = None
    noise_variance: Any = None
    contiguous: Any = None
    share: Any = None

    def __post_init__(self):
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        super().update({name: x for name, x in named.items() if x is not None and name not in NOT_SHOWN})

    def __reduce__(self) -> tuple:
        return partial(type(self), **vars(self)), ()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("settings cannot be changed; dict(settings) can.")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore

    @classmethod
    def known(cls, settings: Mapping[str, Any]) -> "Settings":
        """Those of another run with which a warm-up starts; if each chain has found its own, of the first chain."""
        centering = dict(settings.get("centering", {}))
        own = cls(coordinates=settings["coordinates"], centering=centering, curvature=settings["curvature"])
        return jax.tree.map(lambda part: part[0], own) if np.ndim(own.curvature) == 1 else own

    @property
    def uses_all_rows(self) -> bool:
        """Whether the warm-up has chosen all rows, in each chain that has found its own settings."""
        return self.share is not None and bool(np.all(np.asarray(self.share) == 1))

    @property
    def kept(self) -> dict[str, jax.Array]:
        """The numbers that a run keeps, by their names in :class:`~numpyro_sgmcmc.report.monitor.Monitor`."""
        if self.scores is None:
            return {}
        return {
            "num_steps": self.steps_per_sample,
            "share": self.share,
            "noise": self.noise_variance.max(),
            "passes": self.passes,
            "inflation": self.predicted_inflation,
            **self.scores._asdict(),
        }

    def __repr__(self) -> str:
        """A line for each setting, with long values in short, and what it is where the name does not say it."""
        width = max(map(len, self), default=0)
        notes = {name: f" ({note})" for name, note in MEANING.items()}
        return "\n".join(f"{name:{width}}  {html.in_short(x)}{notes.get(name, '')}" for name, x in self.items())

    def _repr_html_(self) -> str:
        """The same as a table for notebooks."""
        return html.table((name, html.in_short(x), MEANING.get(name, "")) for name, x in self.items())


class WarmUp(NamedTuple):
    """The state of the search for settings."""

    length: jax.Array  # length of a draw, in units of time
    largest: jax.Array  # upper bound of the step size
    second_order: jax.Array  # whether the next round measures the noise with a control variate of second order as well
    transition: jax.Array  # number of the next transition
    begun: jax.Array  # number of the transition before which this round began
    num_warmup: jax.Array  # transitions of the warm-up
    moments: Moments  # moments of the current round
    earlier: jax.Array  # z-scores of the round before it, if it belongs to the same check; otherwise 0, shape (2, d)
    rejected: jax.Array  # sum of the rejection probabilities of this round, means over steps and chains

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

    def is_too_large(self, step_size: jax.Array, statistics: Evidence) -> jax.Array:
        """
        Whether the draws of a round are not from the posterior, and perhaps because of the step size. If the noise
        keeps it far below the largest one, it is not the cause.
        """
        scores, limit = Scores.from_evidence(statistics), self.score_limit
        right = (scores.gradient <= limit) & (scores.virial <= limit)  # a score that is not a number is not right
        return (step_size > 0.7 * self.largest) & ~right

    @property
    def rejection(self) -> jax.Array:
        """The share of steps in this round that the Metropolis test has rejected; 0 without a test."""
        return jnp.clip(self.rejected / jnp.maximum(self.moments.draws, 1), 0, 0.999)

    @property
    def passes_the_test(self) -> jax.Array:
        """Whether there is a test, and nearly all steps pass it: then their size does not make draws wrong."""
        return (self.rejection > 0) & (self.rejection <= AIM[0])

    def reach_of_test(self, step_size: jax.Array) -> jax.Array:
        r"""
        The step size at which the Metropolis test rejects only a share ``AIM`` of the steps; infinity if it rejects at
        most ``REJECTED``. A rejection reverses the momentum, so between two of them a chain must go some way: the
        distance 1, which is the time 1, or 1 / h steps.

        The work of a step is about normal, with mean :math:`\sigma^2 / 2`, variance :math:`\sigma^2` and
        :math:`\sigma \propto h^3`, so a share :math:`2 \Phi(-\sigma / 2)` passes.
        """
        rejected = self.rejection
        sigma = lambda rejected: -2 * ndtri((1 - rejected) / 2)  # noqa: E731
        most, aim = (jnp.minimum(share, rate * step_size) for share, rate in (REJECTED, AIM))
        smaller = jnp.maximum(sigma(aim) / jnp.maximum(sigma(rejected), 1e-3), 0.25**3) ** (1 / 3)
        return jnp.where(rejected > most, smaller * step_size, jnp.inf)

    def is_lost(self, statistics: Evidence) -> jax.Array:
        """Whether the draws of a round say nothing; a round of a short warm-up has too few draws to know."""
        return (self.num_warmup >= CHECKED) & is_lost(statistics)


class Update(NamedTuple):
    """The parts of the state of a run that may be new before a transition; phases and gradients of all chains."""

    settings: Settings
    warm_up: WarmUp
    phase: Phase
    gradient_state: Any
    renewed: jax.Array  # whether the coordinates, and all positions in them, are new
    gradient: jax.Array  # then the gradient in x, shape (chains, d), and the estimate of U there
    energy: jax.Array
