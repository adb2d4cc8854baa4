"""
Row schemes (:class:`~numpyro_sgmcmc.types.RowScheme`), which choose the rows of a step. Those that do not repeat rows
use :func:`~numpyro_sgmcmc.rows.permutation.permute`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.rows.permutation import add, permute, words, words_needed
from numpyro_sgmcmc.rows.shares import Shares, number_of_rows
from numpyro_sgmcmc.types import Plate, Potential, Rows, RowScheme, RowsState


@dataclass(frozen=True)
class Reshuffled:
    """
    Random reshuffling: each epoch goes through the rows in a new random order, one batch at a time.

    Within an epoch the errors of the minibatch gradients cancel, which removes most of the excess variance that
    independent minibatches cause, as long as an epoch is short compared with the relaxation of the chain (Paulin et
    al. 2025).
    Rows that do not fill a last batch are left out of that epoch; every epoch draws a new order, so every row is
    equally likely at every step.

    :param contiguous: use blocks of neighbouring rows, in random order, with boundaries that are shifted at random each
        epoch. This is 2 to 5 times faster on large data, because memory is read in order. The rows of the data must be
        in random order themselves (:func:`shuffle_rows`): blocks of sorted data differ from each other, which makes the
        gradients noisier and, as the blocks are nearly fixed, noisy in the same directions in every epoch. None: the
        warm-up measures whether they do (:func:`~numpyro_sgmcmc.tuning.noise_samples.is_as_quiet`), and chooses.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import Reshuffled
        >>> epoch = [Reshuffled()(random.key(0), jnp.array(t), 12, 4) for t in range(3)]
        >>> sorted(jnp.concatenate(epoch).tolist()) == list(range(12))
        True
    """

    contiguous: bool | None = False
    independent = False
    distinct = True

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        batches = size // batch_size
        epoch, position = jnp.divmod(jnp.asarray(t, jnp.uint32), jnp.uint32(batches))
        places = jnp.arange(batch_size, dtype=jnp.uint32)
        if not self.contiguous:
            order = words(rng_key, epoch, words_needed(size))
            return permute(order, position * batch_size + places, size)
        order = words(rng_key, epoch, words_needed(batches) + 1)
        block = permute(order[:-1], position, batches).astype(jnp.uint32) * batch_size
        # a barrier as in permute: otherwise the shift would be computed for each element of the batch
        first = lax.optimization_barrier(add(order[-1] % jnp.uint32(size), block, size))
        return add(first, places, size).astype(jnp.int32)


@dataclass(frozen=True)
class WithoutReplacement:
    """
    A new batch of distinct rows at every step, independent of the previous batches.

    :param contiguous: use a block of neighbouring rows that starts at a random row, and goes on at the first row after
        the last. All N blocks are equally likely, so the gradient is unbiased whatever the order of the rows. Only its
        variance depends on the order. None: as for :class:`Reshuffled`.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import WithoutReplacement
        >>> rows = WithoutReplacement()(random.key(0), jnp.array(0), 12, 4)  # batch 0 of 4 rows out of 12
        >>> len(set(rows.tolist()))
        4
    """

    contiguous: bool | None = False
    independent = True
    distinct = True

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        places = jnp.arange(batch_size, dtype=jnp.uint32)
        if not self.contiguous:
            return permute(words(rng_key, t, words_needed(size)), places, size)
        # a barrier as in permute: otherwise the first row would be drawn for each element of the batch
        first = lax.optimization_barrier(words(rng_key, t, 1)[0] % jnp.uint32(size))
        return add(first, places, size).astype(jnp.int32)


@dataclass(frozen=True)
class WithReplacement:
    """
    Rows drawn independently of each other; a row may occur twice in a batch.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import WithReplacement
        >>> rows = WithReplacement()(random.key(0), jnp.array(0), 12, 4)  # batch 0 of 4 rows out of 12
        >>> bool((rows >= 0).all() & (rows < 12).all())
        True
    """

    independent = True
    distinct = False

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        return random.randint(random.fold_in(rng_key, jnp.asarray(t, jnp.uint32)), (batch_size,), 0, size, jnp.int32)


@dataclass(frozen=True)
class Sharded:
    """
    Draws the same number of rows from every device, for arrays of :func:`~numpyro_sgmcmc.shard_rows`. Kernels use it
    automatically if the arrays are sharded. In a kernel whose arrays are on one device it draws the same rows, and so
    gives the same draws as on several devices, up to rounding.

    If D does not divide N, the first devices have one row more than the others. Their rows are drawn less often, so
    they have a larger weight: :math:`D N_k / N` for those of device k, which makes the gradients unbiased.

    :param rows: the scheme by which each device chooses among its rows, with its own key.
    :param int devices: D. Each device draws n / D of the n rows of a batch.
    :raises ValueError: if n is not a multiple of D.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import Reshuffled, Sharded
        >>> rows = Sharded(Reshuffled(), 2)(random.key(0), jnp.array(0), 12, 4)  # two of 0 .. 5 and two of 6 .. 11
        >>> (rows // 6).tolist()
        [0, 0, 1, 1]
    """

    rows: RowScheme
    devices: int

    @property
    def independent(self) -> bool:
        return self.rows.independent

    @property
    def distinct(self) -> bool:
        return self.rows.distinct

    @property
    def contiguous(self) -> bool | None:
        return getattr(self.rows, "contiguous", False)

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        if batch_size % self.devices:
            raise ValueError(
                f"{self}: batches of {batch_size} rows cannot be shared equally by {self.devices} devices. Use a "
                f"batch_size that is a multiple of {self.devices}."
            )
        shares = Shares(size, self.devices)

        def share(k, number, first):
            return first + self.rows(random.fold_in(rng_key, k), t, number, batch_size // self.devices)

        parts = []
        for number in sorted(set(shares.numbers.tolist()), reverse=True):
            (devices,) = np.nonzero(shares.numbers == number)
            first = jnp.asarray(shares.first[devices])
            parts.append(jax.vmap(partial(share, number=number))(jnp.asarray(devices), first=first).ravel())
        return jnp.concatenate(parts)


def for_devices(scheme: RowScheme, potential: Potential) -> RowScheme:
    """The scheme that draws rows from each of the devices over which a potential's rows are distributed."""
    devices = potential.devices
    if devices == 1 or getattr(scheme, "devices", 0) == devices:
        return scheme
    if isinstance(scheme, Sharded):
        raise ValueError(f"rows={scheme}: the data are distributed over {devices} devices. Leave Sharded out.")
    if len(potential.plates) > 1:
        raise ValueError(
            f"the plates {' and '.join(map(repr, potential.plates))} are all minibatched, but only one plate can have "
            "rows that are distributed over devices. Minibatch only that one."
        )
    return Sharded(scheme, devices)


def is_contiguous(scheme: RowScheme) -> bool:
    """Whether minibatches are certain to be blocks of neighbouring rows."""
    return bool(getattr(scheme, "contiguous", False))


def is_undecided(scheme: RowScheme) -> bool:
    """Whether the warm-up chooses between scattered rows and blocks."""
    return getattr(scheme, "contiguous", False) is None


def decided(scheme: RowScheme, contiguous: bool) -> RowScheme:
    """The scheme after that choice; a scheme without it stays as it is."""
    if not is_undecided(scheme):
        return scheme
    if isinstance(scheme, Sharded):
        return replace(scheme, rows=decided(scheme.rows, contiguous))
    return replace(scheme, contiguous=contiguous)  # pyright: ignore[reportArgumentType]


def next_rows(
    scheme: RowScheme, state: RowsState, plates: Mapping[str, Plate], contiguous: Any = None
) -> tuple[Rows, RowsState]:
    """
    The rows of the next batch of every plate, and the state after it. With several plates, each has its own key.

    :param contiguous: whether a scheme that is undecided uses blocks, the same for all chains; None: it does not.
    """
    keys = [state.rng_key] if len(plates) == 1 else [random.fold_in(state.rng_key, p) for p in range(len(plates))]

    def rows(contiguous: bool) -> Rows:
        draw = decided(scheme, contiguous)
        return {
            name: jnp.asarray(draw(key, state.t, plate.size, plate.batch_size), jnp.int32)
            for key, (name, plate) in zip(keys, plates.items())
        }

    if contiguous is None or not is_undecided(scheme):
        chosen = rows(False)
    else:
        chosen = lax.cond(contiguous, partial(rows, True), partial(rows, False))
    return chosen, state._replace(t=state.t + 1)


def independent_rows(rng_key: jax.Array, plates: Mapping[str, Plate]) -> Rows:
    """Distinct rows for each plate, independent of those of a run, for a check."""
    return next_rows(WithoutReplacement(), RowsState(rng_key, jnp.zeros((), jnp.uint32)), plates)[0]


def row_weights(scheme: RowScheme, plates: Mapping[str, Plate]) -> dict[str, np.ndarray]:
    """The weights of the rows of a batch, for each plate where they are not 1."""
    if not isinstance(scheme, Sharded):
        return {}
    weights = {name: Shares(plate.size, scheme.devices).weights(plate.batch_size) for name, plate in plates.items()}
    return {name: weight for name, weight in weights.items() if weight is not None}


def shuffle_rows(rng_key: jax.Array, *arrays: Any) -> Any:
    """
    Put the rows of the arrays into one common random order, once, before ``Reshuffled(contiguous=True)``.

    :param rng_key: random key.
    :param arrays: arrays with the same number of rows; NumPy arrays stay NumPy arrays.
    :return: the shuffled array, or a tuple of them.
    :raises ValueError: if the arrays differ in their number of rows.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpy as np
        >>> from numpyro_sgmcmc import shuffle_rows
        >>> X, y = shuffle_rows(random.key(0), np.arange(6).reshape(3, 2), np.arange(3))
        >>> bool((X[:, 0] == 2 * y).all())
        True
    """
    order = random.permutation(rng_key, number_of_rows("shuffle_rows", arrays))
    shuffled = tuple(
        array[np.asarray(order)] if isinstance(array, np.ndarray) else jnp.asarray(array)[order] for array in arrays
    )
    return shuffled[0] if len(shuffled) == 1 else shuffled
