"""Consecutive shares of the rows, one for each device: the first N mod D of them have one row more than the others."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Shares(NamedTuple):
    """
    - **size** - N, rows of all devices.
    - **devices** - D.
    """

    size: int
    devices: int

    @property
    def numbers(self) -> np.ndarray:
        """Rows of each device."""
        least, more = divmod(self.size, self.devices)
        return np.where(np.arange(self.devices) < more, least + 1, least).astype(np.int32)

    @property
    def first(self) -> np.ndarray:
        """The first row of each device."""
        return (np.cumsum(self.numbers) - self.numbers).astype(np.int32)

    @property
    def longest(self) -> int:
        """Rows of the device that has most of them."""
        return -(-self.size // self.devices)

    @property
    def equal(self) -> bool:
        return self.size % self.devices == 0

    def rows(self, places: Any) -> Any:
        """Row numbers of these places in every share, shape ``(D, ...)``. A share that is too short repeats its end."""
        column = (slice(None), *(None,) * jnp.ndim(places))
        return self.first[column] + jnp.minimum(places, self.numbers[column] - 1)

    def locate(self, rows: Any) -> Any:
        """Where these rows are when all shares are filled up to the length of the longest."""
        least, more = divmod(self.size, self.devices)
        device = jnp.where(rows < more * (least + 1), rows // (least + 1), (rows - more) // max(least, 1))
        return device * self.longest + rows - jnp.asarray(self.first)[device]

    def weights(self, batch_size: int) -> np.ndarray | None:
        """
        :math:`w_k = D N_k / N` for each row of a batch that has as many rows of every device, so that the estimate
        scaled by :math:`N / n` is unbiased; None where all are 1.
        """
        if self.equal:
            return None
        shares = self.devices * self.numbers / self.size
        return np.repeat(shares, batch_size // self.devices).astype(np.float32)
