r"""
Samplers of local sites that are derived from the model: Markov chains on the conditional distribution of each row's
sites, for all rows of the batch at once, started anew for each minibatch.

A few moves from a distant start do not reach the conditional distribution. The posterior of the global sites is then
biased, mostly in its width. If the data nearly determine the latents of a row, give a start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.local.function import PREVIOUS, Conditional, LocalFunction
from numpyro_sgmcmc.local.replay import LocalError
from numpyro_sgmcmc.local.summed import support_of
from numpyro_sgmcmc.model.structure import is_discrete
from numpyro_sgmcmc.utils.validation import check_positive, checked_count

Values = Mapping[str, jax.Array]


def _started(start: Any, rng_key: jax.Array, conditional: Conditional) -> Values:
    return LocalFunction(start).draw(rng_key, conditional) if callable(start) else conditional.start


def _check_start(label: str, start: Any) -> None:
    if not (start is None or start == PREVIOUS or callable(start)):
        raise ValueError(f"{label}(start={start!r}) must be None, {PREVIOUS!r} or a function.")


@dataclass(frozen=True)
class LocalGibbs:
    r"""
    Gibbs sweeps over discrete local sites with finite support: each coordinate is drawn from its conditional
    distribution, :math:`p(u_j = k \mid u_{-j}, x_i, z)`, for all rows of the batch at once.

    Each coordinate costs one evaluation of the rows' density for each value of its support.

    :param int sweeps: number of sweeps over all coordinates.
    :param start: the initial values. None: draws from the prior. A function with the arguments of ``local=``, which
        returns them. ``"previous"``: the values of the row's previous visit, kept in a table over all rows.

    **Example**

    .. doctest::

        >>> import jax.numpy as jnp
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro_sgmcmc import LocalGibbs, SGHMC
        >>> def belief(x):
        ...     W = numpyro.sample("W", dist.Normal(0, 1).expand([3, 8]).to_event(2))
        ...     with numpyro.plate("rows", len(x)) as rows:
        ...         h = numpyro.sample("h", dist.Bernoulli(0.5).expand([3]).to_event(1))
        ...         numpyro.sample("x", dist.Bernoulli(logits=h @ W).to_event(1), obs=x[rows])
        >>> kernel = SGHMC(belief, local=LocalGibbs(sweeps=2), step_size=1e-3, friction=10.0, batch_size=50)
    """

    sweeps: int = 1
    start: Callable | str | None = None

    def __post_init__(self):
        checked_count("LocalGibbs(sweeps)", self.sweeps)
        _check_start("LocalGibbs", self.start)

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> Values:
        """:raises ValueError: for a site that is not discrete, or whose support is not finite."""
        for name, fn in conditional.sites.items():
            if not is_discrete(fn):
                raise LocalError(
                    f"local site {name!r} is continuous, but LocalGibbs() draws discrete sites only. Use "
                    "LocalHMC(...), or a function that draws all local sites."
                )
        key_start, key_sweeps = random.split(rng_key)
        values = _started(self.start, key_start, conditional)

        def sweep(k, values):
            for s, (name, fn) in enumerate(conditional.sites.items()):
                key_site = random.fold_in(random.fold_in(key_sweeps, k), s)
                values = _over_coordinates(name, fn, values, key_site, conditional)
            return values

        return lax.fori_loop(0, self.sweeps, sweep, dict(values))


def _over_coordinates(name, fn, values, rng_key, conditional):
    size, support = math.prod(fn.event_shape), jnp.asarray(support_of(name, fn, ()))

    def coordinate(j, values):
        flat = values[name].reshape(*fn.batch_shape, size)
        here = jnp.arange(size) == j

        def density_at(value):
            moved = jnp.where(here, value.astype(flat.dtype), flat).reshape(values[name].shape)
            return conditional.density({**values, name: moved})

        logits = jax.vmap(density_at)(support)
        noise = random.gumbel(random.fold_in(rng_key, j), logits.shape)
        chosen = jnp.broadcast_to(support[jnp.argmax(logits + noise, 0)], fn.batch_shape)
        new = jnp.where(here, chosen[..., None].astype(flat.dtype), flat)
        return {**values, name: new.reshape(values[name].shape)}

    return lax.fori_loop(0, size, coordinate, values)


@dataclass(frozen=True)
class LocalHMC:
    r"""
    Hamiltonian Monte Carlo on continuous local sites, in their unconstrained coordinates: leapfrog steps with unit mass
    on each row's conditional density, accepted or rejected row by row.

    :param float step_size: size of a leapfrog step; at most about the width of a row's conditional distribution.
    :param int num_steps: leapfrog steps per trajectory. Avoid trajectories of about half a period of the conditional
        distribution, or a period: the chain then hardly mixes.
    :param int moves: trajectories per minibatch.
    :param start: the initial values. None: draws from the prior. A function with the arguments of ``local=``, which
        returns them. ``"previous"``: the values of the row's previous visit, kept in a table over all rows.

    **Example**

    .. doctest::

        >>> import jax.numpy as jnp
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro_sgmcmc import LocalHMC, SGHMC
        >>> def effects(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("rows", len(y)) as rows:
        ...         u = numpyro.sample("u", dist.Normal(mu, 1))
        ...         numpyro.sample("y", dist.Poisson(jnp.exp(u)), obs=y[rows])
        >>> local = LocalHMC(step_size=0.3, num_steps=3, moves=5)
        >>> kernel = SGHMC(effects, local=local, step_size=1e-3, friction=10.0, batch_size=50)
    """

    step_size: float
    num_steps: int = 3
    moves: int = 5
    start: Callable | str | None = None

    def __post_init__(self):
        check_positive(self, step_size=self.step_size)
        checked_count(f"{type(self).__name__}(num_steps)", self.num_steps)
        checked_count(f"{type(self).__name__}(moves)", self.moves)
        _check_start(type(self).__name__, self.start)

    def draw(self, rng_key: jax.Array, conditional: Conditional) -> Values:
        """:raises ValueError: for a discrete site."""
        return self.draw_watched(rng_key, conditional)[0]

    def draw_watched(self, rng_key: jax.Array, conditional: Conditional) -> tuple[Values, jax.Array]:
        """The values of :meth:`draw`, and whether each move was accepted, shape ``(moves, *plates)``."""
        for name, fn in conditional.sites.items():
            if is_discrete(fn):
                raise LocalError(
                    f"local site {name!r} is discrete, but {type(self).__name__} draws continuous sites only. Mark it "
                    "infer={'enumerate': 'parallel'}, which sums it out, or use LocalGibbs()."
                )
        key_start, key_moves = random.split(rng_key)
        start = dict(_started(self.start, key_start, conditional))
        h = self.step_size

        def energy_and_force(u):
            density, back = jax.vjp(conditional.density, u)
            return -density, back(jnp.ones_like(density))[0]

        def kinetic(p):
            rows = jnp.ndim(conditional.density(start))
            batch = {name: len(fn.batch_shape) for name, fn in conditional.sites.items()}
            halves = [0.5 * jnp.sum(x * x, tuple(range(batch[name], x.ndim))) for name, x in p.items()]
            return sum(half.sum(tuple(range(half.ndim - rows))) for half in halves)

        def move(u, k):
            key_p, key_accept = random.split(random.fold_in(key_moves, k))
            keys = dict(zip(u, random.split(key_p, len(u))))
            p = {name: random.normal(keys[name], x.shape, x.dtype) for name, x in u.items()}
            energy, force = energy_and_force(u)
            before = energy + kinetic(p)

            def leap(_, state):
                u, p, force, _ = state
                p = jax.tree.map(lambda p, f: p + 0.5 * h * f, p, force)
                u = jax.tree.map(lambda u, p: u + h * p, u, p)
                energy, force = energy_and_force(u)
                return u, jax.tree.map(lambda p, f: p + 0.5 * h * f, p, force), force, energy

            new, p, _, energy = lax.fori_loop(0, self.num_steps, leap, (u, p, force, energy))
            change = energy + kinetic(p) - before
            accepted = jnp.log(random.uniform(key_accept, change.shape)) < -change  # False if it is NaN

            def chosen(name, new, old):
                extra = old.ndim - len(conditional.sites[name].batch_shape)
                return jnp.where(accepted.reshape(*accepted.shape, *(1,) * extra), new, old)

            return {name: chosen(name, new[name], u[name]) for name in u}, accepted

        return lax.scan(move, start, jnp.arange(self.moves))


@dataclass(frozen=True)
class LocalLangevin(LocalHMC):
    """
    :class:`LocalHMC` with one leapfrog step per move, which is the Metropolis-adjusted Langevin algorithm.

    :param float step_size: size h of the leapfrog step; the Langevin step is :math:`h^2 / 2`.
    :param int moves: moves per minibatch.
    :param start: as for :class:`LocalHMC`.
    """

    num_steps: int = field(default=1, init=False)
