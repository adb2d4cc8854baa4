"""What all sides of an interface exchange: sites, rows, plates, the variables of a dynamics."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

Sites: TypeAlias = dict[str, jax.Array]
"""Unconstrained values of the latent sites, keyed by name."""

Rows: TypeAlias = dict[str, jax.Array]
"""Plate name -> int32 row numbers, shape ``(batch_size,)``. Empty if all rows are used."""

Schedule: TypeAlias = Callable[[Any], Any]
"""Step index -> step size h. Counts integrator steps, not MCMC transitions."""


class Plate(NamedTuple):
    """A plate: each step uses ``batch_size`` of its ``size`` rows."""

    size: int
    batch_size: int


class Phase(NamedTuple):
    """
    The variables that the flows of a dynamics update.

    - **z** - dict of unconstrained values.
    - **momentum** - dict like ``z``; ``()`` for first-order dynamics.
    - **thermostat** - scalar (SGNHT), dict like ``z`` (MSGNHT), or ``()``.
    - **auxiliary** - any other variables that a dynamics owns: a pytree, or ``()``.
    - **noise_variance** - variance of the white gradient noise, like ``z``, for flows that subtract it; otherwise
      ``()``.
    """

    z: Any
    momentum: Any = ()
    thermostat: Any = ()
    auxiliary: Any = ()
    noise_variance: Any = ()


class RowsState(NamedTuple):
    """The position of a chain in its sequence of minibatches; its size does not depend on the size of the data."""

    rng_key: jax.Array  # one key for the whole chain
    t: jax.Array  # shape=(), dtype=uint32, batches drawn so far; 0 again after 2**32


class Evaluation(NamedTuple):
    """One gradient evaluation; ``update`` is what the estimator will store of it."""

    energy: jax.Array
    gradient: Any
    update: Any


class TemperatureFromSteps(NamedTuple):
    """
    Holds no array. It takes the place of the kinetic temperature for a dynamics without momentum and with unit mass,
    whose temperature is estimated from its last step.
    """
