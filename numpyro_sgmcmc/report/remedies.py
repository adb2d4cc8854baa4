"""What to change after a run that is doubtful: one thing for each cause, for all warnings and tables."""

from typing import NamedTuple

import numpy as np

from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.statistics import is_arriving, still_falling
from numpyro_sgmcmc.utils.wording import plain

NOISY = 0.05  # a predicted inflation above which minibatch noise is the likely cause
MORE_WARM_UP, MORE_DRAWS, MORE_ROWS = "a larger num_warmup", "a larger num_samples", "a larger batch_size"
MANY_PASSES = 8  # over the data for a draw, as all rows take about as many
LONGER = 20  # times the draws of a run that may be asked for
OTHER_PARAMETERS = f"{MORE_WARM_UP}, or reparametrise the model"


class Remedies(NamedTuple):
    """
    What a user may change. A step size that the warm-up has chosen is not part of it, nor is the size of a minibatch if
    every step uses all rows.
    """

    tuned: bool  # whether the warm-up has chosen the step size
    noisy: bool = True  # whether there is minibatch noise
    inflated: bool = False  # whether the warm-up predicts that it matters
    arriving: bool = False  # whether the chains were still on their way when the draws began
    step_size: float = 0.0  # that of the last draw; 0: not known
    passes: float = 0.0  # over the data for a draw

    @classmethod
    def for_run(cls, monitor: Monitor) -> "Remedies":
        """The remedies for the run with this monitor."""
        tuned, inflated = bool(np.any(monitor.num_steps)), not np.all(monitor.inflation[:, -1] <= NOISY)
        noisy = not tuned or bool(np.any(monitor.noise[:, -1]))
        arriving = is_arriving(monitor.energy) or still_falling(monitor.energy)
        passes = float(np.max(monitor.num_steps * np.asarray(monitor.share)))
        return cls(tuned, noisy, inflated, arriving, float(np.asarray(monitor.step_size)[-1, -1]), passes)

    @property
    def costly(self) -> bool:
        """Whether a draw takes about as many passes as with all rows, or more."""
        return self.passes >= MANY_PASSES

    @property
    def more_rows(self) -> str:
        """All of them if minibatches save little: without noise the steps are larger, and the step size has no bias."""
        if not self.costly:
            return MORE_ROWS
        return f"all rows, batch_size={{}}, because a draw takes {plain(self.passes)} passes over the data as it is"

    @property
    def accurate(self) -> str:
        """For draws that step size, minibatch noise or a distant start have made inaccurate."""
        if self.arriving:
            return MORE_WARM_UP
        return self.more_rows if self.tuned and self.noisy and self.inflated else self.stable

    @property
    def less_noise(self) -> str:
        """For minibatch noise."""
        return self.more_rows if self.noisy else OTHER_PARAMETERS

    @property
    def stable(self) -> str:
        """For steps that are too large, as those that are refused."""
        smaller = f"a smaller step_size{f' than {self.step_size:.3g}' * (self.step_size > 0)}"
        return OTHER_PARAMETERS if self.tuned else smaller

    def conclusive(self, needed: float) -> str:
        """For too few draws for a verdict; ``needed``: times those of the run."""
        if self.noisy and self.costly:
            return self.more_rows
        return MORE_DRAWS + f", or {MORE_ROWS}" * self.noisy if needed <= LONGER else OTHER_PARAMETERS

    def hot(self, mean: float) -> str:
        """For a kinetic temperature. Thermostats that have grown on the way from a distant start make it too low."""
        return self.accurate if mean > 1 else MORE_WARM_UP
