"""Control variates whose centre moves to the chain from time to time (Dubey et al. 2016, algorithm 2)."""

from dataclasses import dataclass

import jax

from numpyro_sgmcmc.gradients.control_variate import Anchor, Anchored
from numpyro_sgmcmc.types import Potential, Sites
from numpyro_sgmcmc.utils.validation import check_minibatched, checked_count
from numpyro_sgmcmc.utils.workarounds.lockstep import when_any


@dataclass(frozen=True)
class SVRG(Anchored):
    r"""
    Stochastic variance reduced gradients: the centre moves to the state of the chain every ``update_every`` steps, with
    a full pass over the data, in chunks.

    A step takes two minibatch gradients, and by default each epoch one full pass: three gradients of each row per epoch
    in total. Chains that run together (``chain_method="vectorized"`` or ``jax.vmap``) make the pass together.

    :param update_every: m, steps between two full passes. None: N/n, one epoch (of the plate with the most batches).
    :param chunk_size: rows per chunk of a full pass. None: as many as take about 64 MB, 4096 at most.
    :raises ValueError: if ``update_every`` or ``chunk_size`` is below 1, or there is no minibatched plate.

    **References:**

    1. *Variance Reduction in Stochastic Gradient Langevin Dynamics*, A. Dubey et al. (2016), algorithm 2

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import SVRG
        >>> SVRG(update_every=100)
        SVRG(update_every=100, chunk_size=None)
    """

    update_every: int | None = None
    chunk_size: int | None = None

    def __post_init__(self):
        if self.update_every is not None:
            object.__setattr__(self, "update_every", checked_count("SVRG(update_every)", self.update_every))
        if self.chunk_size is not None:
            checked_count("SVRG(chunk_size)", self.chunk_size)

    def check(self, potential: Potential, chains: int) -> None:
        del chains
        check_minibatched(self, potential.plates)
        if potential.draws_local_sites:
            raise ValueError(
                "SVRG() does not work with local=: it would keep one draw of the local sites of all rows for an epoch, "
                "so its noise would not be white. Use gradient=Minibatch()."
            )

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
        return self.anchor(potential, z, rng_key)

    def begin_step(
        self, potential: Potential, z: Sites, gradient_state: Anchor, i: jax.Array, rng_key: jax.Array
    ) -> Anchor:
        epoch = max((plate.size // plate.batch_size for plate in potential.plates.values()), default=1)
        due = (i > 0) & (i % (self.update_every or epoch) == 0)
        return when_any(due, lambda operand: self.anchor(potential, *operand), (z, rng_key), gradient_state)
