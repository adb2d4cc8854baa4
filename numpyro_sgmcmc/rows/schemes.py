"""
Which rows a step sees: schemes, as :class:`~numpyro_sgmcmc.types.RowScheme` describes them. Those that do not repeat
rows use :func:`~numpyro_sgmcmc.rows.permutation.permute`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.rows.permutation import add, permute, words, words_needed
from numpyro_sgmcmc.types import Plate, Rows, RowScheme, RowsState


@dataclass(frozen=True)
class Reshuffled:
    """
    Random reshuffling: each epoch runs through a new random order of the rows, a batch at a time.

    Within an epoch the errors of the minibatch gradients cancel, which removes most of the excess variance that
    independent minibatches cause, as long as an epoch is short compared with the relaxation of the chain (Paulin et
    al. 2025).
    Rows that do not fill a last batch are left out of that epoch; every epoch starts anew, so every row is equally
    likely at every step.

    :param bool contiguous: hand out neighbouring rows, the blocks in random order and their boundaries shifted at
        random each epoch. 2 to 5 times faster on large data, for memory is read in order. The rows of the data must
        be in random order themselves (:func:`shuffle_rows`): blocks of sorted data are unlike each other, which makes
        the gradients noisier and, as their partition is nearly fixed, noisy in the same directions in every epoch.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import Reshuffled
        >>> epoch = [Reshuffled()(random.key(0), jnp.array(t), 12, 4) for t in range(3)]
        >>> sorted(jnp.concatenate(epoch).tolist()) == list(range(12))
        True
    """

    contiguous: bool = False
    independent: ClassVar[bool] = False
    distinct: ClassVar[bool] = True

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        batches = size // batch_size
        epoch, position = jnp.divmod(jnp.asarray(t, jnp.uint32), jnp.uint32(batches))
        places = jnp.arange(batch_size, dtype=jnp.uint32)
        if not self.contiguous:
            order = words(rng_key, epoch, words_needed(size))
            return permute(order, position * batch_size + places, size)
        order = words(rng_key, epoch, words_needed(batches) + 1)
        block = permute(order[:-1], position, batches).astype(jnp.uint32) * batch_size
        # as behind permute: the shift would be computed for each element of the batch
        first = lax.optimization_barrier(add(order[-1] % jnp.uint32(size), block, size))
        return add(first, places, size).astype(jnp.int32)


@dataclass(frozen=True)
class WithoutReplacement:
    """
    A fresh batch of distinct rows at every step, independent of the batches before.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import WithoutReplacement
        >>> rows = WithoutReplacement()(random.key(0), jnp.array(0), 12, 4)  # batch 0 of 4 rows out of 12
        >>> len(set(rows.tolist()))
        4
    """

    independent: ClassVar[bool] = True
    distinct: ClassVar[bool] = True

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        order = words(rng_key, t, words_needed(size))
        return permute(order, jnp.arange(batch_size, dtype=jnp.uint32), size)


@dataclass(frozen=True)
class WithReplacement:
    """
    Rows drawn independently of each other; a row may come twice in a batch.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> from numpyro_sgmcmc import WithReplacement
        >>> rows = WithReplacement()(random.key(0), jnp.array(0), 12, 4)  # batch 0 of 4 rows out of 12
        >>> bool((rows >= 0).all() & (rows < 12).all())
        True
    """

    independent: ClassVar[bool] = True
    distinct: ClassVar[bool] = False

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        return random.randint(random.fold_in(rng_key, jnp.asarray(t, jnp.uint32)), (batch_size,), 0, size, jnp.int32)


def next_rows(scheme: RowScheme, state: RowsState, plates: Mapping[str, Plate]) -> tuple[Rows, RowsState]:
    """
    The rows of the next batch of every plate, and the state after it. Each of several plates has a key of its own.
    """
    keys = [state.rng_key] if len(plates) == 1 else [random.fold_in(state.rng_key, p) for p in range(len(plates))]
    rows = {
        name: jnp.asarray(scheme(key, state.t, plate.size, plate.batch_size), jnp.int32)
        for key, (name, plate) in zip(keys, plates.items())
    }
    return rows, state._replace(t=state.t + 1)


def shuffle_rows(rng_key: jax.Array, *arrays: Any) -> Any:
    """
    Put the rows of the arrays into one common random order, once, before ``Reshuffled(contiguous=True)``.

    :param rng_key: random key.
    :param arrays: arrays with the same number of rows; NumPy arrays stay NumPy arrays.
    :return: the shuffled array, or a tuple of them.
    :raises ValueError: the arrays differ in their number of rows.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpy as np
        >>> from numpyro_sgmcmc import shuffle_rows
        >>> X, y = shuffle_rows(random.key(0), np.arange(6).reshape(3, 2), np.arange(3))
        >>> bool((X[:, 0] == 2 * y).all())
        True
    """
    lengths = [np.shape(array)[0] if np.ndim(array) else -1 for array in arrays]
    if not arrays or -1 in lengths or len(set(lengths)) > 1:
        shapes = ", ".join(str(np.shape(array)) for array in arrays)
        raise ValueError(f"shuffle_rows needs arrays with one common number of rows, got shapes {shapes or 'none'}.")
    order = random.permutation(rng_key, lengths[0])
    shuffled = tuple(
        array[np.asarray(order)] if isinstance(array, np.ndarray) else jnp.asarray(array)[order] for array in arrays
    )
    return shuffled[0] if len(shuffled) == 1 else shuffled
