"""Chains spread over the cores of the machine."""

import math
import os

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import numpyro

numpyro.set_host_device_count(os.cpu_count() or 1)  # has to come before the first computation; leaves a GPU alone
APART, WHOLE = PartitionSpec("chains"), PartitionSpec()


def mesh(chains):
    """The devices of JAX, or so many of them that each has equally many chains."""
    number = len(jax.tree.leaves(chains)[0])
    return Mesh(np.array(jax.devices()[: math.gcd(number, jax.device_count())]), ("chains",))


def place(chains):
    """Chains put where :func:`spread` needs them, or it compiles a program of its own for those of its first call."""
    return jax.device_put(chains, NamedSharding(mesh(chains), APART))


def spread(function, chains, shared, axis=0):
    """
    ``function(*chains, *shared)``, each device with its chains.

    :param chains: what each chain has its own of: arrays with a leading axis of chains, or trees of them.
    :param shared: what they all have.
    :param axis: the axis of the chains in what the function gives.
    """
    specs = {"in_specs": (APART, WHOLE), "out_specs": PartitionSpec(*[None] * axis, "chains")}
    on_each = lambda chains, shared: function(*chains, *shared)  # noqa: E731
    return jax.shard_map(on_each, mesh=mesh(chains), check_vma=False, **specs)(chains, shared)
