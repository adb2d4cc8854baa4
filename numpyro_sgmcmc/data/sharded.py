r"""
Arrays whose rows are distributed over D devices; device k has :math:`N_k` of them.

If each device looks up n / D of its own rows, with energies u,

.. math:: \nabla\tilde U(z) = \nabla U_0(z) + \sum_{k=1}^D \frac{N_k}{n / D} \sum_{i \in S_k} \nabla u_i(z)

needs one sum over k, of as many numbers as z has. Plain indexing of a sharded array would send the rows themselves from
device to device.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.rows.shares import Shares, number_of_rows
from numpyro_sgmcmc.utils.compat import closed_over_arrays_are_constants


class ShardedRows(RowArray):
    """
    An array whose rows are distributed over the devices of a mesh, made by :func:`shard_rows`. A model indexes it by
    the rows of its plate, ``X[rows]``.

    :param jax.Array values: the rows of each device, shape ``(D, N / D, ...)``, with devices along the first axis. If D
        does not divide N, ``N / D`` is rounded up, and shorter shares are padded.
    :param int size: N.
    """

    def __init__(self, values: jax.Array, size: int):
        self._values = values
        self._shares = Shares(size, len(values))
        self.devices = len(values)
        self.shape = (size, *values.shape[2:])
        self.dtype = values.dtype

    where = "spread over devices"

    def __repr__(self) -> str:
        return f"{self._argument}ShardedRows(shape={self.shape}, devices={self.devices})"

    def _take(self, rows: Any, served: Any = None) -> jax.Array:
        """``served``: whether ``rows`` consists of D equal pieces, of which piece k has rows of device k."""
        if not served:
            return self._values.reshape(-1, *self.shape[1:])[self._shares.locate(rows)]
        places = (rows.reshape(self.devices, -1) - self._shares.first[:, None]).astype(jnp.uint32)
        # rows of another device would be non-finite, never another row
        own = jax.vmap(lambda values, index: values.at[index].get(mode="fill"))(self._values, places)
        return own.reshape(*rows.shape, *self.shape[1:])


def shard_rows(mesh: Mesh, *arrays: Any, axis: str | None = None) -> Any:
    """
    Distributes the rows of arrays over the devices of a mesh, the same number to each, or one more to some.

    In a run of several processes, each of them calls it either with the same arrays, for example memory maps, and reads
    the rows of its own devices, or with a ``jax.Array`` of all processes, made by
    :func:`jax.make_array_from_process_local_data`.

    :param mesh: the devices.
    :param arrays: arrays with the same number of rows.
    :param axis: the axis of the mesh over which the rows are distributed; None for a mesh with one axis.
    :return: a :class:`~numpyro_sgmcmc.data.sharded.ShardedRows`, which a model indexes instead of the array, or a
        tuple of them.
    :raises ValueError: if there are fewer rows than devices; the arrays differ in their number of rows; the axis is
        missing, or not one of the mesh; or JAX would copy the rows to all devices, as it does unless
        ``JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1`` is set before it is imported.

    **Example**

    .. code-block:: python

        mesh = jax.make_mesh((jax.device_count(),), ("rows",))
        X, y = shard_rows(mesh, X, y)
        mcmc.run(rng_key, X, y)
    """
    if closed_over_arrays_are_constants():
        raise ValueError(
            "shard_rows needs JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1 in the environment before JAX is imported. Without "
            "it NumPyro's programs contain the data as constants, and each device would get a copy of all rows."
        )
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        (axis,) = names
    if axis not in names:
        raise ValueError(f"shard_rows(axis={axis!r}): the mesh has the axes {', '.join(map(repr, names))}. Name one.")
    devices = mesh.shape[axis]
    rows = number_of_rows("shard_rows", arrays)
    if rows < devices:
        raise ValueError(
            f"{rows} rows cannot be distributed over {devices} devices along {axis!r}. Use a mesh with at most {rows}."
        )
    # for all axis types of the mesh, the compiler should choose how lookups are sharded
    automatic = Mesh(mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    sharding = NamedSharding(automatic, PartitionSpec(axis))
    shares = Shares(rows, devices)
    sharded = tuple(ShardedRows(_spread(array, shares, sharding), rows) for array in arrays)
    return sharded[0] if len(sharded) == 1 else sharded


def _spread(array: Any, shares: Shares, sharding: NamedSharding) -> jax.Array:
    shape = (shares.devices, shares.longest, *array.shape[1:])
    if isinstance(array, jax.Array):
        rows = np.asarray(shares.rows(np.arange(shares.longest)))
        cut = (lambda x: x.reshape(shape)) if shares.equal else (lambda x: x[rows])
        return jax.jit(cut, out_shardings=sharding)(array)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)

    def of_devices(index: Any) -> np.ndarray:
        parts = np.empty((len(range(shares.devices)[index[0]]), *shape[1:]), dtype)
        for part, k in zip(parts, range(shares.devices)[index[0]]):
            first, number = shares.first[k], shares.numbers[k]
            part[:number] = array[first : first + number]
            part[number:] = part[number - 1]
        return parts

    return jax.make_array_from_callback(shape, sharding, of_devices)
