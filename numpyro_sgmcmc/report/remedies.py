"""What to change after a run that is doubtful. Each remedy is written here, once, for all warnings and tables."""

from typing import NamedTuple

import numpy as np

from numpyro_sgmcmc.report.monitor import Monitor

REFUSED_FOR = "values that are not finite or out of the support, or to an energy that chance does not allow"
OTHER_PARAMETERS = (
    "other parameters of the model (numpyro.infer.reparam.LocScaleReparam: centre the groups of a hierarchy that have "
    "many rows, non-centre those with few)"
)
NEARER = "a larger num_warmup, or init_params=find_mode(...)"


class Remedies(NamedTuple):
    """
    What a user may change. A step size that the warm-up has chosen is not part of it, nor is the size of a minibatch if
    every step uses all rows.
    """

    tuned: bool  # whether the warm-up has chosen the step size
    noisy: bool = True  # whether there is minibatch noise, if it has

    @classmethod
    def of(cls, monitor: Monitor) -> "Remedies":
        """The remedies for the run with this monitor."""
        tuned = bool(np.any(monitor.num_steps))
        return cls(tuned, not tuned or bool(np.any(monitor.noise[:, -1])))

    @property
    def accurate(self) -> str:
        """For draws that step size, minibatch noise or a posterior far from normal have made inaccurate."""
        if self.tuned:
            return f"a larger num_warmup{' or batch_size' * self.noisy}, or {OTHER_PARAMETERS}"
        return (
            "a smaller step_size, a larger batch_size, friction or diffusion, gradient=ControlVariate(find_mode(...)), "
            "or more warm-up from a distant start; LocScaleReparam for a funnel"
        )

    @property
    def less_noise(self) -> str:
        """For minibatch noise."""
        return "a larger batch_size" if self.tuned else f'{self.accurate}; or integrator="NOGIN"'

    @property
    def stable(self) -> str:
        """For steps that are too large, as those that are refused."""
        return f"{OTHER_PARAMETERS}, or a larger num_warmup" if self.tuned else "a smaller step_size"

    @property
    def mixing(self) -> str:
        """For chains that do not mix, and for too few effective draws."""
        more = "num_samples or num_warmup" if self.tuned else "num_samples, num_warmup or steps_per_sample"
        return f"a larger {more}, or init_params=find_mode(...); perhaps there are several modes"

    def hot(self, mean: float) -> str:
        """For a kinetic temperature, with its possible causes."""
        if self.tuned:
            return (
                "Perhaps the posterior is far from normal, as with a hierarchy or several modes, or the warm-up was "
                f"too short. Use {self.accurate}"
            )
        if mean > 1:
            return (
                "Perhaps the step size is beyond its stability limit, the friction is too small for the noise of the "
                f"minibatches, or the chain has not converged from a distant start. Use {self.accurate}"
            )
        return (
            "Perhaps thermostats that grew on the way from a distant start, or refused steps, have slowed down the "
            f"momentum. Use {NEARER}, or a smaller step_size"
        )
