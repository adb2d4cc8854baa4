r"""
Control variates: the minibatch gradient at a fixed point c is subtracted and its known mean added back.

.. math:: \hat g(z) = \nabla\tilde U_S(z) - \nabla\tilde U_S(c) + \nabla U(c)

with the same rows S in both. It is unbiased for any c. Its variance is that of the difference, of order
:math:`N^2 \lVert z - c \rVert^2 / n` instead of :math:`N^2 / n`. :class:`ControlVariate` keeps c fixed (Baker et al.
2019), SVRG moves it to the state of the chain from time to time (Dubey et al. 2016, algorithm 2).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.gradients.full_pass import full_evaluation, full_gradient
from numpyro_sgmcmc.gradients.saga import SAGA, SAGAState
from numpyro_sgmcmc.gradients.second_order import expands, expansion
from numpyro_sgmcmc.gradients.tables import TABLES, check_options
from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, RowScheme, Sites
from numpyro_sgmcmc.utils.validation import check_like_z, check_minibatched, checked_choice, checked_count
from numpyro_sgmcmc.utils.workarounds.lockstep import when_any


class Anchor(NamedTuple):
    z: Sites  # the point c
    gradient: Sites  # the gradient there over all rows
    hessian: Any = ()  # the Hessian there, see second_order; (): none
    all_rows: Any = ()  # whether all rows are used instead, see tuning.all_rows; (): never


class Anchored(GradientEstimator):
    """The base class of both: its state is an :class:`Anchor`, its gradient the one above."""

    chunk_size: int | None

    def anchor(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
        return Anchor(z, full_gradient(potential, z, rng_key, self.chunk_size))

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Anchor, rng_key: jax.Array
    ) -> Evaluation:
        # the same key for both, so that the noise of a randomised model cancels, as that of the rows does
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        center, of_center, hessian, _ = gradient_state
        of_rows, of_all = expansion(potential, center, of_center, hessian, z, rows, rng_key)
        return Evaluation(energy, jax.tree.map(lambda g, a, full: g - a + full, gradient, of_rows, of_all), ())

    def gradients_per_row(self, gradient_state: Anchor) -> int:
        """At z and at c, and two for a product with the Hessian there."""
        return 4 if expands(gradient_state) and np.any(gradient_state.hessian.used) else 2

    def refresh(self, potential: Potential, gradient_state: Anchor, rng_key: jax.Array) -> Anchor:
        """A full pass: new conditioning values change the gradient at the anchor."""
        return self.anchor(potential, gradient_state.z, rng_key)


@dataclass(frozen=True, eq=False)
class ControlVariate(Anchored):
    r"""
    Control variates around a fixed centre, preferably the mode, see :func:`~numpyro_sgmcmc.find_mode`.

    A step costs two minibatch gradients, and the start one full pass. The gradients of the rows at the centre are
    recomputed at each step, unless they are ``stored``: then a step costs as much as with
    :class:`~numpyro_sgmcmc.SAGA`, with tables of the same form and size; ``stored="linear"`` makes generalised linear
    models as cheap as plain minibatches.

    Far from the centre the variance is larger than that of plain minibatches, so control variates do not help with
    networks or posteriors with several modes. For a randomised model (``numpyro.prng_key()``) the gradient at the
    centre is itself an estimate, with one key for every few thousand rows, and its error persists for the whole chain.

    :param dict center: unconstrained values of all latent sites; None: the warm-up chooses it, which needs a kernel
        without a given ``step_size``.
    :param stored: None, or the form of a table that holds the gradients at the centre: ``"row"``, ``"batch"`` or
        ``"linear"``, see :class:`~numpyro_sgmcmc.SAGA`.
    :param predictor: with ``stored="linear"``, see :class:`~numpyro_sgmcmc.SAGA`.
    :param chunk_size: rows per chunk of a full pass. None: as many as take about 64 MB, 4096 at most.
    :param float memory: the share of the machine's memory that a table, for all chains, may take.
    :param order: 2 adds a term that leaves a noise of order :math:`N^2 \lVert z - c \rVert^4 / n`, see
        :mod:`~numpyro_sgmcmc.gradients.second_order`, if the warm-up chooses the centre; 1: without it. None: with it
        if it makes the step size twice as large, and at most 1000 coordinates or the groups of a hierarchy are sampled.
    :raises ValueError: for a centre that is not like ``z``; no minibatched plate; local sites that are drawn; with
        ``stored``, whatever SAGA refuses.

    **References:**

    1. *Control Variates for Stochastic Gradient MCMC*, J. Baker, P. Fearnhead, E. B. Fox, C. Nemeth (2019)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import ControlVariate, SGLD, find_mode
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> center = find_mode(model, random.key(1), x, batch_size=100, num_steps=1000, progress_bar=False)
        >>> kernel = SGLD(model, step_size=1e-4, batch_size=100, gradient=ControlVariate(center), steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(2), x, init_params=center)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    center: Sites | None = None
    stored: Literal["row", "batch", "linear"] | None = None
    predictor: Any = None
    chunk_size: int | None = None
    memory: float = 0.25
    order: int | None = None

    def __post_init__(self):
        if self.order is not None:
            checked_choice("ControlVariate(order)", self.order, (1, 2))
        if self.order == 2 and (self.center is not None or self.stored is not None):
            raise ValueError(
                "ControlVariate(order=2) needs a kernel whose warm-up chooses the center, and no table: leave center= "
                "and stored= out, or order=."
            )
        if self.stored is not None:
            checked_choice("ControlVariate(stored)", self.stored, tuple(TABLES))
        check_options("ControlVariate", "stored", self.stored, self.predictor, self.chunk_size, self.memory)

    def with_rows(self, rows: RowScheme) -> tuple[GradientEstimator, RowScheme]:
        if self.stored is None:
            return self, rows
        if self.center is None:
            raise ValueError(
                f"ControlVariate(stored={self.stored!r}) needs a center: find_mode(model, key, ...) returns one. "
                "Without stored= the warm-up can choose it."
            )
        options = {"predictor": self.predictor, "chunk_size": self.chunk_size, "memory": self.memory}
        return _Stored(self.stored, **options, center=self.center).with_rows(rows)

    def check(self, potential: Potential, chains: int) -> None:
        check_minibatched("ControlVariate", potential.plates)
        if potential.draws_local_sites:
            raise ValueError(
                "ControlVariate() does not work with local=: its gradient over all rows would use a single draw of the "
                "local sites, which would bias the posterior. Use gradient=Minibatch()."
            )
        if self.center is not None:
            check_like_z("ControlVariate(center)", self.center, potential.prototype)

    @property
    def shared(self) -> bool:
        return self.center is None

    def recenter(self, potential: Potential, gradient_state: Anchor, z: Sites, rng_key: jax.Array) -> Anchor:
        if self.center is not None:
            return gradient_state
        anchor = self.anchor(potential, _as_z(z, potential), rng_key)
        return anchor._replace(hessian=gradient_state.hessian, all_rows=gradient_state.all_rows)

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Anchor, rng_key: jax.Array
    ) -> Evaluation:
        if isinstance(gradient_state.all_rows, tuple):
            return super().evaluate(potential, z, rows, gradient_state, rng_key)

        def from_minibatch():
            energy, gradient, _ = super(ControlVariate, self).evaluate(potential, z, rows, gradient_state, rng_key)
            return energy.astype(jnp.result_type(*jax.tree.leaves(z))), gradient

        from_all_rows = partial(full_evaluation, potential, z, rng_key)
        energy, gradient = lax.cond(gradient_state.all_rows, from_all_rows, from_minibatch)
        return Evaluation(energy, gradient, ())

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
        if self.center is None:
            return Anchor(z, jax.tree.map(jnp.zeros_like, z))  # until recenter
        return self.anchor(potential, _as_z(self.center, potential), rng_key)


def _as_z(center: Sites, potential: Potential) -> Sites:
    return {name: jnp.asarray(center[name], site.dtype) for name, site in potential.prototype.items()}


@dataclass(frozen=True, eq=False)
class _Stored(SAGA):
    """Control variates from a table that is filled at the centre and never updated."""

    center: Sites = field(default_factory=dict, kw_only=True)
    owner: ClassVar[tuple[str, str]] = "ControlVariate", "stored"
    begin_step = GradientEstimator.begin_step
    commit = GradientEstimator.commit

    def check(self, potential: Potential, chains: int) -> None:
        check_like_z("ControlVariate(center)", self.center, potential.prototype)
        super().check(potential, chains)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> SAGAState:
        return super().start(potential, _as_z(self.center, potential), rng_key)

    def refresh(self, potential: Potential, gradient_state: SAGAState, rng_key: jax.Array) -> SAGAState:
        """A pass over the data: new conditioning values change the gradients at the centre."""
        return self.start(potential, self.center, rng_key)


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
        check_minibatched("SVRG", potential.plates)
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
