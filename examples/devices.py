"""Run chains on all cores of the machine."""

import math
import os

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import numpyro

numpyro.set_host_device_count(os.cpu_count() or 1)  # has to come before the first computation; leaves a GPU alone
APART, WHOLE = PartitionSpec("chains"), PartitionSpec()


def mesh(chains):
    """The devices of JAX, or as many of them as get equal numbers of chains."""
    number = len(jax.tree.leaves(chains)[0])
    return Mesh(np.array(jax.devices()[: math.gcd(number, jax.device_count())]), ("chains",))


def place(chains):
    """The chains on the devices of :func:`spread`, which otherwise compiles an extra program for its first call."""
    return jax.device_put(chains, NamedSharding(mesh(chains), APART))


def spread(function, chains, shared, axis=0):
    """
    Run ``function(*chains, *shared)`` on each device with its part of the chains.

    :param chains: the arguments that differ between chains: arrays with a leading axis of chains, or trees of them.
    :param shared: the arguments that are the same for all chains.
    :param axis: the axis of the chains in the result of the function.
    """
    specs = {"in_specs": (APART, WHOLE), "out_specs": PartitionSpec(*[None] * axis, "chains")}
    on_each = lambda chains, shared: function(*chains, *shared)  # noqa: E731
    return jax.shard_map(on_each, mesh=mesh(chains), check_vma=False, **specs)(chains, shared)
