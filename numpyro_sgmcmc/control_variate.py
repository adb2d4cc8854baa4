r"""
Control variates: the minibatch gradient at a fixed point c is subtracted and its known mean added back.

.. math:: \hat g(z) = \nabla\tilde U_S(z) - \nabla\tilde U_S(c) + \nabla U(c)

with the same rows S in both. Unbiased for any c; its variance is that of the difference, of order
:math:`N^2 \lVert z - c \rVert^2 / n` in place of :math:`N^2 / n`. :class:`ControlVariate` keeps c (Baker et al. 2019),
:class:`SVRG` moves it to the state of the chain from time to time (Dubey et al. 2016, algorithm 2).
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.arguments import check_like_z, check_minibatched, checked_choice, checked_count
from numpyro_sgmcmc.base import Evaluation, GradientEstimator, Potential, Rows, RowScheme, Sites
from numpyro_sgmcmc.gradients import full_gradient
from numpyro_sgmcmc.lockstep import when_any
from numpyro_sgmcmc.saga import SAGA, SAGAState
from numpyro_sgmcmc.tables import TABLES


class Anchor(NamedTuple):
    """
    - **z** - the point c.
    - **gradient** - the gradient there over all rows.
    """

    z: Sites
    gradient: Sites


class _Anchored(GradientEstimator):
    """What both have in common: an :class:`Anchor` as state, and the difference above."""

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Anchor, rng_key: jax.Array
    ) -> Evaluation:
        # one key for both: the noise of a randomised model then cancels, as that of the rows does
        energy, gradient = jax.value_and_grad(potential.estimate)(z, rows, rng_key)
        at_anchor = jax.grad(potential.estimate)(gradient_state.z, rows, rng_key)
        gradient = jax.tree.map(lambda g, a, full: g - a + full, gradient, at_anchor, gradient_state.gradient)
        return Evaluation(energy, gradient, ())

    def reconditioned(self, potential: Potential, gradient_state: Anchor, rng_key: jax.Array) -> Anchor:
        """A full pass: the gradient at the anchor is another one under other values."""
        return _anchor(potential, gradient_state.z, rng_key)


def _anchor(potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
    return Anchor(z, full_gradient(potential, z, rng_key))


@dataclass(frozen=True, eq=False)
class ControlVariate(_Anchored):
    r"""
    Control variates around a fixed centre, best the mode: :func:`~numpyro_sgmcmc.find_mode` finds one.

    Two minibatch gradients a step, one full pass at the start. The gradients of the rows at the centre are computed
    anew at each step, unless they are to be stored: then a step costs what :class:`~numpyro_sgmcmc.SAGA` costs, with
    tables of the same form and size; ``stored="linear"`` makes generalised linear models as cheap as plain minibatches.

    Far from the centre the variance is larger than that of plain minibatches; for posteriors of several modes, and
    networks, it is no help. For a randomised model (``numpyro.prng_key()``) the gradient at the centre is itself an
    estimate, with one key for each few thousand rows, and what it is off by stays for the life of the chain.

    :param dict center: unconstrained values of all latent sites.
    :param stored: None, or the form of a table that holds the gradients at the centre: ``"row"``, ``"batch"`` or
        ``"linear"``, see :class:`~numpyro_sgmcmc.SAGA`.
    :raises ValueError: a centre that is not like ``z``; no minibatched plate; with ``stored``, what SAGA refuses.

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

    center: Sites
    stored: Literal["row", "batch", "linear"] | None = None

    def __post_init__(self):
        if self.stored is not None:
            checked_choice("ControlVariate(stored)", self.stored, tuple(TABLES))

    def joined(self, rows: RowScheme) -> tuple[GradientEstimator, RowScheme]:
        return (self, rows) if self.stored is None else _Stored(self.stored, center=self.center).joined(rows)

    def check(self, potential: Potential, chains: int) -> None:
        del chains
        check_minibatched(self, potential.plates)
        check_like_z("ControlVariate(center)", self.center, potential.prototype)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
        del z
        return _anchor(potential, _as_z(self.center, potential), rng_key)


def _as_z(center: Sites, potential: Potential) -> Sites:
    return {name: jnp.asarray(center[name], site.dtype) for name, site in potential.prototype.items()}


@dataclass(frozen=True, eq=False)
class _Stored(SAGA):
    """Control variates by a table that is filled at the centre and never written again."""

    center: Sites = field(default_factory=dict, kw_only=True)

    def check(self, potential: Potential, chains: int) -> None:
        check_like_z("ControlVariate(center)", self.center, potential.prototype)
        super().check(potential, chains)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> SAGAState:
        del z
        return super().start(potential, _as_z(self.center, potential), rng_key)

    def commit(self, gradient_state: SAGAState, proposal: Any, accepted: jax.Array) -> SAGAState:
        del proposal, accepted
        return gradient_state

    def reconditioned(self, potential: Potential, gradient_state: SAGAState, rng_key: jax.Array) -> SAGAState:
        return self.start(potential, self.center, rng_key)


@dataclass(frozen=True)
class SVRG(_Anchored):
    r"""
    Stochastic variance reduced gradients: the centre moves to the state of the chain every ``update_every`` steps, with
    a full pass over the data, in chunks.

    Two minibatch gradients a step and, at the default, one full pass an epoch: three gradients of each row an epoch in
    all. Chains that are run together (``chain_method="vectorized"`` or ``jax.vmap``) make the pass together.

    :param update_every: m, steps between two full passes. None: N/n, one epoch (of the plate with the most batches).
    :raises ValueError: ``update_every`` below 1; no minibatched plate.

    **References:**

    1. *Variance Reduction in Stochastic Gradient Langevin Dynamics*, A. Dubey et al. (2016), algorithm 2

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import SVRG
        >>> SVRG(update_every=100)
        SVRG(update_every=100)
    """

    update_every: int | None = None

    def __post_init__(self):
        if self.update_every is not None:
            object.__setattr__(self, "update_every", checked_count("SVRG(update_every)", self.update_every))

    def check(self, potential: Potential, chains: int) -> None:
        del chains
        check_minibatched(self, potential.plates)

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Anchor:
        return _anchor(potential, z, rng_key)

    def renewed(
        self, potential: Potential, z: Sites, gradient_state: Anchor, i: jax.Array, rng_key: jax.Array
    ) -> Anchor:
        epoch = max((plate.size // plate.batch_size for plate in potential.plates.values()), default=1)
        due = (i > 0) & (i % (self.update_every or epoch) == 0)
        return when_any(due, lambda at: _anchor(potential, *at), (z, rng_key), gradient_state)
