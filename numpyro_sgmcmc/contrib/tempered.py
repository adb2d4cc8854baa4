r"""
Parallel tempering: R replicas of a chain exchange their temperatures. Replica k samples from
:math:`\exp(-\beta_k U)`, :math:`\beta_k = 1 / T_k`. Two of them with :math:`\beta > \beta'`, at z and z', exchange with
probability

.. math::
    \min\{1, \exp(\delta \tilde\Delta - \delta^2 \sigma^2 / 2)\}, \qquad \delta = \beta - \beta',

where :math:`\tilde\Delta` is an estimate of :math:`\Delta = U(z) - U(z')` from a minibatch and :math:`\sigma^2` its
variance.

For :math:`\tilde\Delta \sim N(\Delta, \sigma^2)` the mean of this probability, :math:`a(\Delta)`, is that of an exact
exchange: with :math:`x = \delta\tilde\Delta - \delta^2\sigma^2/2` the density of :math:`-x` at :math:`-\Delta` is
:math:`e^{x - \delta\Delta}` times that of x at :math:`\Delta`, hence
:math:`a(\Delta) = e^{\delta\Delta} a(-\Delta)`, which is detailed balance.

Deng et al. write :math:`\sigma^2` for the variance of one energy. The variance of the difference of two independent
energies is twice as large, so their correction is :math:`\delta^2\sigma^2`. Here both energies use the same rows, and
:math:`\sigma^2 = N^2 (1/n - 1/N) s^2` with :math:`s^2` the variance of the rows' differences in the minibatch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

from numpyro_sgmcmc.contrib.tempered_gradient import TemperedGradient
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState, Stream, derive_key, keys_of_chains
from numpyro_sgmcmc.model.handlers import full_rows
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.rows.schemes import independent_rows
from numpyro_sgmcmc.types import Adaptive, Plate, Sites, Thermostatted
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.validation import checked_count, is_key


class TemperedState(NamedTuple):
    replicas: SGMCMCState  # state of the R replicas, along the first axis
    holder: jax.Array  # which replica has which temperature, int32, shape (R,), in the order of the temperatures
    t: jax.Array  # transitions so far, uint32
    # for each pair of neighbouring temperatures, shape (R - 1,): 1 if the last transition exchanged them, 0 if it
    # rejected the exchange, NaN if it did not propose one
    swapped: jax.Array
    rng_key: jax.Array  # key of the next transition

    @property
    def cold(self) -> SGMCMCState:
        """The state of the replica at temperature 1."""
        first = self.holder[..., 0]
        if first.ndim == 0:
            return jax.tree.map(lambda x: x[first], self.replicas)
        return jax.tree.map(lambda x: x[jnp.arange(len(first)), first], self.replicas)

    # the default fields, of the draw
    z = property(attrgetter("cold.z"))
    diverging = property(attrgetter("cold.diverging"))
    step_size = property(attrgetter("cold.step_size"))
    monitor = property(attrgetter("cold.monitor"))


class Tempered(MCMCKernel):
    r"""
    Parallel tempering (replica exchange) of a stochastic-gradient kernel: one chain of
    :class:`~numpyro.infer.MCMC` holds R replicas, which sample from :math:`\exp(-U / T_k)` and exchange their
    temperatures. The draws are those of the replica at :math:`T = 1`.

    Use it for posteriors with several modes. At a high temperature a replica crosses barriers that it could not cross
    at temperature 1. After each transition the pairs (1, 2), (3, 4), ... or (2, 3), ... propose an exchange. The
    acceptance probability is corrected for the noise of their energies, see :mod:`~numpyro_sgmcmc.contrib.tempered`. A
    transition costs R transitions of the kernel, and the energies of one minibatch for each replica.

    For normal noise of known variance the correction is exact. It makes exchanges rarer: between equal energies their
    rate is :math:`2\Phi(-\delta\sigma/2)`, .13 at :math:`\delta\sigma = 3`. ``extra_fields=("swapped",)`` collects the
    exchanges, and ``jnp.nanmean(fields["swapped"], 0)`` is their rate. A larger ``swap_batch_size``, or temperatures
    closer to each other, raise it. :math:`\sigma^2` is estimated with a relative error of :math:`\sqrt{2/n}`, or more
    if the rows are heavy-tailed.

    :param kernel: :class:`~numpyro_sgmcmc.SGLD`, :class:`~numpyro_sgmcmc.SGHMC` or another kernel with a given step
        size, which all replicas use, and without a state that depends on the temperature.
    :param temperatures: :math:`1 = T_1 < T_2 < \dots`, at least two. They temper the whole of U, prior included, as a
        function of the unconstrained values; each :math:`\exp(-U / T_k)` must be integrable.
    :param int swap_batch_size: rows of the minibatch that estimates the difference of two energies, at least 2. None:
        the batch size of the kernel.
    :raises ValueError: for temperatures that do not start at 1 and increase; a kernel whose warm-up chooses the step
        size, or that adapts to one temperature; at ``init``, a model with several minibatched plates, with data on
        disk, or with random numbers of its own.

    **References:**

    1. *Non-convex Learning via Replica Exchange Stochastic Gradient MCMC*, W. Deng, Q. Feng, L. Gao, F. Liang, G. Lin
       (2020), arXiv 2008.05367
    2. *The penalty method for random walks with uncertain energies*, D. M. Ceperley, M. Dewing (1999)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGLD, Tempered
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 3))
        ...     with numpyro.plate("N", len(x)) as rows:  # only |mu| is known
        ...         numpyro.sample("x", dist.Normal(jnp.abs(mu), 1), obs=x[rows])
        >>> x = 1.5 + random.normal(random.key(0), (20,))
        >>> kernel = SGLD(model, step_size=5e-3, batch_size=10, steps_per_sample=10)
        >>> tempered = Tempered(kernel, temperatures=[1.0, 3.0, 9.0, 27.0])
        >>> mcmc = MCMC(tempered, num_warmup=500, num_samples=4000, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> share = (mcmc.get_samples()["mu"] > 0).mean()
        >>> bool(0.1 < share < 0.9)
        True
    """

    sample_field = "z"  # pyright: ignore[reportAssignmentType]
    default_fields = ("z", "diverging", "step_size", "monitor")  # pyright: ignore[reportAssignmentType]

    def __init__(self, kernel: SGMCMC, temperatures: Sequence[float], *, swap_batch_size: int | None = None):
        _check_kernel(kernel)
        self.temperatures = _checked_temperatures(temperatures)
        self.swap_batch_size = None if swap_batch_size is None else checked_count("swap_batch_size", swap_batch_size)
        if self.swap_batch_size == 1:
            raise ValueError("swap_batch_size=1: one row does not determine a variance. Give at least 2.")
        chain = replace(kernel.chain, gradient=TemperedGradient(kernel.gradient), checked=False)
        self.kernel = kernel.replace(chain=chain)

    @property
    def model(self) -> full_rows:
        """The model on all of its rows, as ArviZ, ``Predictive`` and ``log_likelihood`` need it."""
        return self.kernel.model

    @property
    def _sample_fn(self) -> Callable:
        return self.sample  # see SGMCMC: a resume needs no `init`

    def get_diagnostics_str(self, state: TemperedState) -> str:
        """Diagnostics of all replicas."""
        return self.kernel.get_diagnostics_str(state.replicas)

    def postprocess_fn(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable[[Sites], Sites]:
        """Unconstrained -> constrained values and deterministic sites."""
        return self.kernel.postprocess_fn(model_args, model_kwargs)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Sites | None,
        model_args: tuple,
        model_kwargs: Mapping[str, Any] | None,
    ) -> TemperedState:
        """
        The state of a new chain, or of several chains if ``rng_key`` is a batch of keys.

        :param init_params: as for the kernel; all replicas of a chain start there.
        """
        rng_key = keys_of_chains(rng_key)
        potential = self.kernel.potential(model_args, model_kwargs)
        self._check(potential)
        R, chains = len(self.temperatures), () if is_key(rng_key) else rng_key.shape[:1]
        split = partial(random.split, num=R + 1)
        keys = jax.vmap(split)(rng_key) if chains else split(rng_key)
        if init_params is not None:
            init_params = {
                name: jnp.repeat(jnp.asarray(x) if chains else jnp.asarray(x)[None], R, axis=0)
                for name, x in init_params.items()
            }
        replica_keys = keys[..., 1:, :].reshape(-1, keys.shape[-1])
        flat = self.kernel.init(replica_keys, num_warmup, init_params, model_args, model_kwargs)
        replicas = _folded(flat, chains, R)
        # zeros that are mapped like the chains, so that NumPyro's buffers fit from the start
        zero = 0 * replicas.refused
        holder = zero + jnp.arange(R, dtype=zero.dtype)
        replicas = _at_temperatures(replicas, replicas.gradient_state.beta / jnp.asarray(self.temperatures))
        t = zero[..., 0].astype(jnp.uint32)
        swapped = jnp.full_like(replicas.step_size[..., 1:], jnp.nan)
        return TemperedState(replicas, holder, t, swapped, keys[..., 0, :])

    def posterior_chain(self, state: TemperedState) -> tuple[SGMCMC, SGMCMCState]:
        """The kernel, and the state of the replica at temperature 1."""
        return self.kernel, state.cold

    def sample(self, state: TemperedState, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> TemperedState:
        """One transition of every replica, then exchanges."""
        chains, R = state.t.shape, len(self.temperatures)
        # NumPyro replaces only the outer key when a run starts from post_warmup_state
        split = lambda key: random.split(derive_key(key, Stream.STEPS), R)  # noqa: E731
        keys = jax.vmap(split)(state.rng_key) if chains else split(state.rng_key)
        replicas = state.replicas._replace(rng_key=keys)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(chains) + 1 :]), replicas)
        flat = self.kernel.sample(flat, model_args, model_kwargs)
        state = state._replace(replicas=_folded(flat, chains, R))
        exchange = partial(self._exchange, self.kernel.potential(model_args, model_kwargs))
        return jax.vmap(exchange)(state) if chains else exchange(state)

    def _exchange(self, potential: ModelPotential, state: TemperedState) -> TemperedState:
        R = len(self.temperatures)
        betas = 1 / jnp.asarray(self.temperatures, state.replicas.step_size.dtype)
        key_rows, key_accept = random.split(derive_key(state.rng_key, Stream.EXCHANGE))
        # pairs of this transition, by the lower of their levels: 0, 2, ... or 1, 3, ...
        level = (state.t % 2).astype(jnp.int32) + 2 * jnp.arange(R // 2)
        tried = level < R - 1
        level = jnp.where(tried, level, 0)
        colder, hotter = state.holder[level], state.holder[level + 1]
        pair = (jax.tree.map(itemgetter(at), state.replicas.z) for at in (colder, hotter))
        # each pair has its own rows: noise common to several pairs would need a joint correction
        difference, variance = jax.vmap(partial(self._compared, potential))(random.split(key_rows, R // 2), *pair)
        log_ratio = log_exchange(betas[level] - betas[level + 1], difference, variance)
        u = noise.uniform_like(key_accept, log_ratio)
        accepted = tried & (jnp.log(u) < log_ratio)  # False where an energy is not finite
        beyond = jnp.where(accepted, level, R)  # out of bounds: dropped
        holder = state.holder.at[beyond].set(hotter, mode="drop")
        holder = holder.at[jnp.where(accepted, level + 1, R)].set(colder, mode="drop")
        swapped = jnp.full_like(state.swapped, jnp.nan)
        swapped = swapped.at[jnp.where(tried, level, R)].set(accepted.astype(swapped.dtype), mode="drop")
        replicas = _at_temperatures(state.replicas, jnp.zeros_like(betas).at[holder].set(betas))
        return TemperedState(replicas, holder, state.t + 1, swapped, derive_key(state.rng_key, Stream.NEXT))

    def _compared(self, potential: ModelPotential, rng_key: jax.Array, z: Sites, other: Sites):
        """An estimate of U(z) - U(other) from a minibatch, and its variance."""
        if not potential.plates:
            return potential.estimate(z, {}) - potential.estimate(other, {}), jnp.zeros(())
        ((name, (size, _)),) = potential.plates.items()
        n = self._swap_rows(potential)
        rows = independent_rows(rng_key, {name: Plate(size, n)})
        each = potential.per_row(z, rows) - potential.per_row(other, rows)
        difference = potential.prior(z) - potential.prior(other) + size * each.mean()
        return difference, size**2 * (1 / n - 1 / size) * each.var(ddof=1)

    def _swap_rows(self, potential: ModelPotential) -> int:
        ((_, (size, batch)),) = potential.plates.items()
        return min(self.swap_batch_size or batch, size)

    def _check(self, potential: ModelPotential) -> None:
        refused = {
            "a model with several minibatched plates": len(potential.plates) > 1,
            "data on disk": bool(potential.sources),
            "a model that draws random numbers of its own": potential.randomised,
            "latent sites that are drawn for each minibatch": potential.draws_local_sites,
        }
        for what, applies in refused.items():
            if applies:
                raise ValueError(
                    f"Tempered does not work with {what}: it compares the energies that the rows have in two replicas. "
                    "Use the kernel itself."
                )
        if potential.plates and self._swap_rows(potential) < 2:
            raise ValueError("batch_size=1: one row does not determine a variance. Give Tempered a swap_batch_size.")


def log_exchange(delta: jax.Array, difference: jax.Array, variance: jax.Array) -> jax.Array:
    """The log of the acceptance ratio, for ``delta`` = beta - beta' and an estimate of U(z) - U(z')."""
    return delta * difference - 0.5 * delta**2 * variance


def _folded(flat: SGMCMCState, chains: tuple[int, ...], R: int) -> SGMCMCState:
    return jax.tree.map(lambda x: x.reshape(*chains, R, *x.shape[1:]), flat)


def _at_temperatures(replicas: SGMCMCState, betas: jax.Array) -> SGMCMCState:
    """The replicas at other temperatures. A gradient that is carried to the next step is rescaled: it is of beta U."""
    before = replicas.gradient_state
    betas = betas.astype(before.beta.dtype)
    factor = betas / before.beta
    rescaled = lambda g: g * factor.reshape(factor.shape + (1,) * (g.ndim - factor.ndim))  # noqa: E731
    gradient = jax.tree.map(rescaled, replicas.gradient)
    return replicas._replace(gradient=gradient, gradient_state=before._replace(beta=betas))


def _check_kernel(kernel: Any) -> None:
    if not isinstance(kernel, SGMCMC):
        raise ValueError(f"Tempered takes a kernel, as SGLD(model, step_size=...), not {kernel!r}.")
    name = type(kernel).__name__
    if kernel.chain.tuned:
        raise ValueError(
            f"Tempered({name}(...)) needs a step size: the warm-up chooses one for temperature 1 only. Give {name} a "
            "step_size."
        )
    if kernel.chain.centering:
        raise ValueError(f"Tempered exchanges positions as the model is written. Leave centering= of {name} out.")
    if isinstance(kernel.dynamics, (Adaptive, Thermostatted)) or kernel.integrator.needs_variance:
        raise ValueError(
            f"Tempered does not work with {name} and integrator={kernel.integrator}: part of its state depends on the "
            "temperature. Use SGLD, or SGHMC with a word that needs no variance."
        )


def _checked_temperatures(temperatures: Any) -> tuple[float, ...]:
    values = np.asarray(temperatures, float)
    if values.ndim != 1 or len(values) < 2 or values[0] != 1 or not (np.diff(values) > 0).all():
        raise ValueError(f"temperatures={temperatures!r} must start at 1 and increase: [1.0, 2.0, 4.0].")
    if not np.isfinite(values).all():
        raise ValueError(f"temperatures={temperatures!r} must be finite.")
    return tuple(values.tolist())
