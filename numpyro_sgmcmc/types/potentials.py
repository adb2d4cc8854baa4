"""Interfaces of the model's side: the energy of some rows, and the choice of these rows."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import jax

from numpyro_sgmcmc.types.basic import Plate, Rows, Sites


class Potential(Protocol):
    """U(z), the negative log joint density in unconstrained space."""

    plates: Mapping[str, Plate]

    @property
    def prototype(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the unconstrained latents."""
        ...

    @property
    def randomised(self) -> bool:
        """Whether the model draws its own keys (``numpyro.prng_key()``)."""
        ...

    @property
    def draws_local_sites(self) -> bool:
        """Whether latent sites of the rows are drawn for each minibatch."""
        ...

    @property
    def keeps_local_values(self) -> bool:
        """Whether these draws start at the values of the previous visit to a row."""
        ...

    @property
    def local_values(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of these values for a minibatch, with rows along axis 0."""
        ...

    def visit(
        self, z: Sites, rows: Rows, rng_key: jax.Array | None, before: tuple[Sites, jax.Array] | None
    ) -> tuple[jax.Array, Sites]:
        """The estimate with local values drawn by a chain that starts at ``before``, and the new values."""
        ...

    @property
    def devices(self) -> int:
        """The number of devices over which the rows are distributed, in order."""
        ...

    def using_rows(
        self, rows: Rows, read: tuple[jax.Array, ...] = (), weights: Mapping[str, Any] = MappingProxyType({})
    ) -> "Potential":
        """
        The potential in which each device looks up its own share of these rows, the same number on every device.

        :param read: the data of these rows that have already been read, from each source on disk.
        :param weights: weights of the rows, by plate, if they are not 1.
        """
        ...

    def prior(self, z: Sites, rng_key: jax.Array | None = None) -> jax.Array:
        """Energy of everything outside the minibatched plates, Jacobians included, shape ``()``; needs no data."""
        ...

    def per_row(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        """Energy of each row, shape ``(batch_size,)``, not scaled by N/n."""
        ...

    def estimate(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        """Unbiased estimate of U(z) from the rows, shape ``()``; U(z) itself if no plate is minibatched."""
        ...


class RowScheme(Protocol):
    """
    Chooses the rows of a plate that are in batch t. The model holds the data and looks the rows up.

    A scheme keeps no state and is hashable. Its rows depend only on the arguments of the call, so that a chain can be
    resumed, or a batch drawn again, from a key and a number. It is called under ``jit`` and ``vmap``.

    - Each row is equally likely to be in batch t, over the keys: so the estimate scaled by N/n is unbiased.
    - Batches of different keys are independent.
    - ``t`` is a uint32, traced or not, or a Python int. After 2**32 batches it starts at 0 again, and the sequence of
      batches repeats.
    """

    @property
    def independent(self) -> bool:
        """Whether batches are independent of each other, so that their gradient noise is white."""
        ...

    @property
    def distinct(self) -> bool:
        """Whether the rows of a batch are distinct."""
        ...

    def __call__(self, rng_key: jax.Array, t: jax.Array, size: int, batch_size: int) -> jax.Array:
        """Rows of batch ``t``: int32 numbers in ``0 .. size - 1``, shape ``(batch_size,)``."""
        ...
