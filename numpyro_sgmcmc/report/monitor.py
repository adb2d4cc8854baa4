"""The numbers collected with every draw for the checks of a run, and the one array in which they are collected."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FIRST = 64  # coordinates per site that are used to distinguish chains
DTYPES = {"refused": np.int32, "diverging": bool, "data_changed": bool}  # of a run; float32 for the others


class Monitor(NamedTuple):
    """Numbers that describe a chain at the end of a transition. To keep one more, add it here and to the state."""

    chain: Any  # number of the chain in a state of several chains, otherwise 0; () once a run has ended
    refused: Any  # steps refused in a row
    diverging: Any  # whether a step of the transition was refused
    temperature: Any  # kinetic temperature; NaN without a momentum, and after a step without noise
    step_size: Any  # size of the last step
    data_changed: Any  # whether the data have changed since the start of the chain
    energy: Any  # estimate of U at the last evaluation of the gradient
    place: Any  # one linear function of the position, see projection
    jump: Any  # the squared last step, relative to that of its noise alone, see squared_step; 0 with a momentum
    # results of the warm-up; 0 if the step size was given
    num_steps: Any = 0.0  # steps per draw
    share: Any = 0.0  # share of the rows in a minibatch
    noise: Any = 0.0  # the largest variance of the gradient in x
    passes: Any = 0.0  # passes over the data
    inflation: Any = 0.0  # predicted relative inflation of the variance
    gradient: Any = 0.0  # the worst scores of its check, see tuning.pilot.Evidence; 0 if there was none
    virial: Any = 0.0
    r_hat: Any = 0.0
    # what the identities of the score say about the draws, see run_scores.RunNumbers; 0 if they are not checked
    gradients: Any = 0.0
    series: Any = 0.0
    size: Any = 0.0
    error: Any = 0.0
    score: Any = 0.0
    least_shift: Any = 0.0
    least_inflation: Any = 0.0

    def packed(self) -> jax.Array:
        """One array, with the numbers along its last axis, as each collected array costs about 5 us per call."""
        shape = jnp.shape(self.step_size)
        return jnp.stack([jnp.broadcast_to(jnp.asarray(number, jnp.float32), shape) for number in self], -1)

    @classmethod
    def unpacked(cls, packed: Any) -> "Monitor":
        """The numbers of a whole run."""
        by_name = dict(zip(cls._fields, np.moveaxis(np.asarray(packed), -1, 0)))
        return cls(**{name: x.astype(DTYPES.get(name, x.dtype)) for name, x in by_name.items()})._replace(chain=())


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
