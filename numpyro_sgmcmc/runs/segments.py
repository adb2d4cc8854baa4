"""
A run in segments. The same compiled loop is used for segments of any length, in the warm-up and after it:

    for i in t .. t + n - 1:  state = sample(state);  buffer[(i - start) // thinning] = draw of the state

Each draw is the state after the last of ``thinning`` transitions, as in :class:`~numpyro.infer.MCMC`. The draws are the
same: the transition is the same program, and n and t are its arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

BUFFER = 2**26  # bytes of draws that are collected before they are written
LONGEST = 1024  # maximal number of transitions of a segment


class Averages(NamedTuple):
    """Averages of the values of a function at draws that are not kept, with chains along the first axis."""

    count: int  # number of draws of each chain
    mean: Any
    variance: Any

    @classmethod
    def from_moments(cls, moments: "Moments", chains: int) -> "Averages":
        """``moments``: moments, with chains along the first axis if there are several."""
        count = int(np.ravel(moments.count)[0])
        front = (lambda x: np.asarray(x)) if chains > 1 else (lambda x: np.asarray(x)[None])
        mean, squares = jax.tree.map(front, (moments.mean, moments.squares))
        return cls(count, mean, jax.tree.map(lambda m: m / max(count - 1, 1), squares))


class Moments(NamedTuple):
    r"""
    What the averages are computed from, draw by draw (Welford 1962): after draw k

    .. math:: \bar x_k = \bar x_{k-1} + \frac{x_k - \bar x_{k-1}}{k}, \qquad
        M_k = M_{k-1} + (x_k - \bar x_{k-1}) (x_k - \bar x_k), \qquad s^2_k = \frac{M_k}{k - 1}.
    """

    count: jax.Array  # k
    mean: Any  # a tree of floats
    squares: Any  # M_k, a tree like this

    @classmethod
    def of_none(cls, like: Any) -> "Moments":
        """The moments before the first draw, for values of these shapes."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.result_type(x.dtype, jnp.float32)), like)
        return cls(jnp.int32(0), zeros, zeros)

    def after(self, values: Any, counts: jax.Array) -> "Moments":
        """The moments after another draw, if it ``counts``."""
        count = self.count + counts
        share = jnp.where(counts, 1 / jnp.maximum(count, 1), 0.0)
        away = jax.tree.map(lambda x, mean: x - mean, values, self.mean)
        mean = jax.tree.map(lambda mean, d: mean + share.astype(mean.dtype) * d, self.mean, away)
        left = jnp.where(counts, 1 - share, 0.0)  # x_k - mean_k is (1 - 1 / k) (x_k - mean_{k-1})
        squares = jax.tree.map(lambda m, d: m + left.astype(m.dtype) * d * d, self.squares, away)
        return Moments(count, mean, squares)


class Carry(NamedTuple):
    """The state of a run between two segments."""

    state: Any  # state of the chains
    moments: Any  # moments of the draws so far, if these are averaged, otherwise ()


class Segments:
    """
    The chains of a run, under its chain method.

    :param keys: one key, or one for each chain.
    :param fields: collected fields of the state, the position first.
    :param averages: a function of a draw; the moments of its values are kept instead of the positions. None: the
        positions are kept.
    """

    def __init__(
        self,
        mcmc: MCMC,
        keys: jax.Array,
        init_params: Any,
        fields: Sequence[str],
        args: tuple,
        kwargs: dict,
        averages: Callable[[dict[str, Any]], Any] | None = None,
    ):
        self.mcmc, self.keys, self.init_params, self.fields = mcmc, keys, init_params, fields
        self.args, self.kwargs, self.averages = args, kwargs, averages
        self.chains = mcmc.num_chains
        self.total = mcmc.num_warmup + mcmc.num_samples
        self.start = mcmc.num_warmup + mcmc.num_samples % mcmc.thinning
        # one state per chain, or one of several chains
        self.mapped = self.chains > 1 and mcmc.chain_method != "vectorized"
        first = jax.tree.map(lambda x: x[0], (keys, init_params)) if self.mapped else (keys, init_params)
        self.carry = jax.eval_shape(self._init, first)  # the carry of one program: of one chain, or of all chains
        collected = jax.eval_shape(self.collect, self.carry.state)
        self.draw, self.draw_tree = jax.tree.flatten(collected)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in self.draw) * (self.chains if self.mapped else 1)
        self.longest = int(np.clip(BUFFER // max(size, 1), 1, LONGEST))
        self._program = jax.jit(self._loop)
        self._over_chains = jax.pmap(self._loop, in_axes=(0, None, None)) if mcmc.chain_method == "parallel" else None

    # -- one program --------------------------------------------------------------------------------------------

    def _init(self, start: tuple) -> Carry:
        key, init_params = start
        state = self.mcmc.sampler.init(key, self.mcmc.num_warmup, init_params, self.args, self.kwargs)
        # no weak types: arrays read from a file have none, and would cause a second compilation
        state = jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype) if _is_number(x) else x, state)
        moments = () if self.averages is None else Moments.of_none(jax.eval_shape(self.averaged, state))
        return Carry(state, moments)

    def sample(self, state: Any) -> Any:
        """One transition."""
        return self.mcmc.sampler.sample(state, self.args, self.kwargs)

    def collect(self, state: Any) -> dict[str, Any]:
        """The collected fields of a state, with constrained positions."""
        fields = {name: _attribute(state, name) for name in self.fields if not name.startswith("~z.")}
        return fields | {"z": self._over_chains_of(state, self._constrained) if self.averages is None else {}}

    def _constrained(self, z: Any) -> dict[str, Any]:
        left_out = {name[3:] for name in self.fields if name.startswith("~z.")}
        constrain = self.mcmc.postprocess_fn or self.mcmc.sampler.postprocess_fn(self.args, self.kwargs)
        return {site: x for site, x in constrain(z).items() if site not in left_out}

    def averaged(self, state: Any) -> Any:
        """The values of a state that are averaged."""
        function: Any = self.averages
        return self._over_chains_of(state, lambda z: function(self._constrained(z)))

    def _over_chains_of(self, state: Any, fn: Callable) -> Any:
        return jax.vmap(fn)(state.z) if jnp.ndim(state.i) else fn(state.z)

    def _kept(self, t: Any) -> Any:
        """The number of draws kept from t transitions."""
        return (jnp if isinstance(t, jax.Array) else np).maximum(t - self.start, 0) // self.mcmc.thinning

    def _loop(self, carry: Carry, t: jax.Array, n: jax.Array) -> tuple[Carry, list[jax.Array]]:
        before = self._kept(t)

        def transition(i, carried):
            (state, moments), buffer = carried
            state = self.sample(state)
            place = self._kept(i) - before
            leaves = jax.tree.leaves(self.collect(state))
            if self.averages is not None:
                moments = moments.after(self.averaged(state), self._kept(i + 1) > self._kept(i))
            return Carry(state, moments), [x.at[place].set(leaf) for x, leaf in zip(buffer, leaves)]

        slots = self.longest // self.mcmc.thinning + 2
        buffer = [jnp.zeros((slots, *leaf.shape), leaf.dtype) for leaf in self.draw]
        return lax.fori_loop(t, t + n, transition, (carry, buffer))

    # -- all chains ---------------------------------------------------------------------------------------------

    def begin(self) -> Carry:
        """The initial states of the run."""
        start = self.keys, self.init_params
        return self._map(self._init)(start) if self.mapped else self._init(start)

    def _map(self, fn: Callable) -> Callable:
        """Maps a function over chains, as NumPyro does."""
        method = self.mcmc.chain_method
        if method == "sequential":
            chain = lambda trees, k: jax.tree.map(lambda x: x[k], trees)  # noqa: E731
            over_chains = lambda trees: [fn(*chain(trees, k)) for k in range(self.chains)]  # noqa: E731
            return lambda *trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *over_chains(trees))
        return jax.pmap(fn) if isinstance(method, str) else method(fn)

    def advance(self, carry: Carry, t: int, n: int) -> tuple[Carry, list[np.ndarray]]:
        """The states after ``n`` transitions, and the new draws of each collected array, ``(draws, chains, ...)``."""
        times = jnp.int32(t), jnp.int32(n)
        if self._over_chains is not None and self.mapped:
            carry, buffers = self._over_chains(carry, *times)
        elif self.mapped:
            carry, buffers = self._map(lambda carry: self._program(carry, *times))(carry)
        else:
            carry, buffers = self._program(carry, *times)
        count = int(self._kept(t + n) - self._kept(t))
        if self.mapped:
            draws = [np.asarray(x)[:, :count].swapaxes(0, 1) for x in buffers]
        elif self.chains > 1:
            draws = [np.asarray(x)[:count] for x in buffers]
        else:
            draws = [np.asarray(x)[:count, None] for x in buffers]
        return carry, draws

    def shapes(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of one draw of all chains, for each collected array."""
        front = (self.chains,) if self.mapped or self.chains == 1 else ()
        return [((*front, *leaf.shape), leaf.dtype) for leaf in self.draw]

    def whole(self, draws: list[np.ndarray]) -> dict[str, Any]:
        """The collected fields of a run, with chains along the first axis, as in :class:`~numpyro.infer.MCMC`."""
        return self.draw_tree.unflatten([jnp.asarray(x.swapaxes(0, 1)) for x in draws])


def _attribute(state: Any, name: str) -> Any:
    """A nested attribute of a state, such as ``"momentum.mu"``; some parts are dicts."""
    for part in name.split("."):
        state = state[part] if isinstance(state, dict) else getattr(state, part)
    return state


def _is_number(x: Any) -> bool:
    return not jnp.issubdtype(x.dtype, jax.dtypes.extended)
