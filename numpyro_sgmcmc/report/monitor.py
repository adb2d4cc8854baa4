"""The numbers collected with every draw for the checks of a run."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.report.run_scores import RunNumbers

FIRST = 64  # coordinates per site that are used to distinguish chains


class Monitor(NamedTuple):
    """
    Numbers that describe a chain at the end of a transition.

    - **chain** - the number of the chain in a state of several chains, otherwise 0; ``()`` once a run has ended.
    - **refused** - steps refused in a row.
    - **diverging** - whether a step of the transition was refused.
    - **temperature** - kinetic temperature; NaN without a momentum, and after a step without noise.
    - **step_size** - size of the last step.
    - **data_changed** - whether the data have changed since the start of the chain.
    - **energy** - estimate of U at the last evaluation of the gradient.
    - **place** - one linear function of the position: see :func:`projection`.
    - **jump** - the squared last step, relative to that of its noise alone: see :func:`squared_step`; 0 with a
      momentum.
    - **num_steps**, **noise**, **passes** - results of the warm-up: steps per draw, the largest variance of the
      gradient in x, passes over the data; 0 if the step size was given.
    - **inflation** - relative inflation of the variance that the warm-up predicts; 0 if the step size was given.
    - **gradient**, **virial**, **r_hat** - the worst scores of the check at the end of the warm-up, see
      :class:`~numpyro_sgmcmc.tuning.pilot.Evidence`; 0 if there was none.
    - **gradients** to **least_inflation** - see :class:`~numpyro_sgmcmc.report.run_scores.RunNumbers`; 0 if the draws
      are not checked.
    """

    chain: Any
    refused: Any
    diverging: Any
    temperature: Any
    step_size: Any
    data_changed: Any
    energy: Any
    place: Any
    jump: Any
    num_steps: Any
    noise: Any
    passes: Any
    inflation: Any
    gradient: Any
    virial: Any
    r_hat: Any
    gradients: Any
    series: Any
    size: Any
    error: Any
    score: Any
    least_shift: Any
    least_inflation: Any

    @property
    def scores(self) -> RunNumbers:
        """What the identities of the score say about the run."""
        return RunNumbers(*self[-len(RunNumbers._fields) :])


def projection(position: Any, batched: bool) -> jax.Array:
    """A sum of the first coordinates of each site with fixed weights, O(1), which distinguishes chains."""
    total = jnp.zeros(())
    for k, leaf in enumerate(jax.tree.leaves(position)):
        flat = leaf.reshape(len(leaf) if batched else 1, -1)[:, :FIRST]
        weights = np.cos(1.0 + k + np.arange(flat.shape[1]))
        total = total + (flat * jnp.asarray(weights, flat.dtype)).sum(-1)
    return total if batched else total[0]


def squared_step(z: Any, before: Any, h: Any, batched: bool) -> jax.Array:
    r"""
    Mean over the coordinates of :math:`(z - z_{before})^2 / 2h`, for each chain. For
    :math:`z = z_{before} - h g + \sqrt{2h} n` its expectation is 1 + h E[g^2] / 2: to first order, 1 plus the relative
    variance that curvature and white gradient noise add.
    """
    squares = [jnp.square(x - y) for x, y in zip(jax.tree.leaves(z), jax.tree.leaves(before))]
    if not batched:
        squares = [x[None] for x in squares]
    total: Any = sum(x.reshape(len(x), -1).sum(-1) for x in squares)
    size = sum(x[0].size for x in squares)
    mean = total / (2 * size * jnp.maximum(h, jnp.finfo(total.dtype).tiny))
    return mean if batched else mean[0]
