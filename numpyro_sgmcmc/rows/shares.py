"""Consecutive shares of the rows, one for each device: the first N mod D shares have one row more than the others."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Shares(NamedTuple):
    size: int  # N, the number of all rows
    devices: int  # D, the number of devices

    @property
    def numbers(self) -> np.ndarray:
        """The number of rows of each device."""
        least, more = divmod(self.size, self.devices)
        return np.where(np.arange(self.devices) < more, least + 1, least).astype(np.int32)

    @property
    def first(self) -> np.ndarray:
        """The first row of each device."""
        return (np.cumsum(self.numbers) - self.numbers).astype(np.int32)

    @property
    def longest(self) -> int:
        """The largest number of rows of a device."""
        return -(-self.size // self.devices)

    @property
    def equal(self) -> bool:
        return self.size % self.devices == 0

    def rows(self, places: Any) -> Any:
        """Row numbers at these places of every share, shape ``(D, ...)``. Shorter shares repeat their last row."""
        column = (slice(None), *(None,) * jnp.ndim(places))
        return self.first[column] + jnp.minimum(places, self.numbers[column] - 1)

    def locate(self, rows: Any) -> Any:
        """The positions of these rows if all shares are padded to the length of the longest."""
        least, more = divmod(self.size, self.devices)
        device = jnp.where(rows < more * (least + 1), rows // (least + 1), (rows - more) // max(least, 1))
        return device * self.longest + rows - jnp.asarray(self.first)[device]

    def weights(self, batch_size: int) -> np.ndarray | None:
        """
        The weight :math:`w_k = D N_k / N` of each row of a batch with the same number of rows from every device, which
        makes the estimate scaled by :math:`N / n` unbiased; None if all are 1.
        """
        if self.equal:
            return None
        shares = self.devices * self.numbers / self.size
        return np.repeat(shares, batch_size // self.devices).astype(np.float32)


def number_of_rows(call: str, arrays: Sequence[Any]) -> int:
    """The length of the arrays. Raises a ValueError if they differ; ``call`` is the function for which they are."""
    shapes = [np.shape(array) for array in arrays]
    if () in shapes or len({shape[0] for shape in shapes}) != 1:
        listed = ", ".join(map(str, shapes)) or "none"
        raise ValueError(f"{call} needs arrays with the same number of rows, got shapes {listed}.")
    return shapes[0][0]
