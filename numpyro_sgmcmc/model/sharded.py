r"""
Arrays whose rows are spread over devices: device k of D has rows :math:`kN/D` to :math:`(k+1)N/D - 1`.

Where each device looks up rows of its own, :math:`\nabla U(z) = -\nabla\log p(z) - \frac{N}{n}\sum_k\sum_{i \in S_k}
\nabla\log p(x_i \mid z)` needs one sum over k, of as many numbers as z has. Plain indexing of a sharded array would
send the rows themselves from device to device.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from numpyro_sgmcmc.model.row_array import RowArray
from numpyro_sgmcmc.utils.compat import closed_over_arrays_are_constants


class ShardedRows(RowArray):
    """
    An array whose rows are spread over the devices of a mesh, made by :func:`shard_rows`. A model indexes it by the
    rows of its plate, ``X[rows]``.

    :param jax.Array values: the rows, shape ``(devices, N / devices, ...)``, the first axis over the devices.
    """

    def __init__(self, values: jax.Array):
        self._values = values
        devices, length, *rest = values.shape
        self.devices = devices
        self.shape = (devices * length, *rest)
        self.dtype = values.dtype

    where = "spread over devices"

    def __repr__(self) -> str:
        return f"{self._argument}ShardedRows(shape={self.shape}, devices={self.devices})"

    def _take(self, rows: Any, served: Any = None) -> jax.Array:
        """
        :param served: whether each device's share of the rows is its own: device k is asked for element k of ``rows``,
            cut into equal pieces.
        """
        if not served:
            return self._values.reshape(self.shape)[rows]
        length = self._values.shape[1]
        first = length * jnp.arange(self.devices, dtype=jnp.int32)
        places = (rows.reshape(self.devices, -1) - first[:, None]).astype(jnp.uint32)
        # rows of another device would be numbers that are not finite, never another row
        own = jax.vmap(lambda values, at: values.at[at].get(mode="fill"))(self._values, places)
        return own.reshape(*rows.shape, *self.shape[1:])


def shard_rows(mesh: Mesh, *arrays: Any, axis: str | None = None) -> Any:
    """
    Spread the rows of arrays over the devices of a mesh, an equal share for each.

    In a run of several processes each of them calls it with the same arrays, memory maps for example, and reads the
    rows of its own devices; or with a ``jax.Array`` of all processes, as
    :func:`jax.make_array_from_process_local_data` makes it.

    :param mesh: the devices.
    :param arrays: arrays with the same number of rows.
    :param axis: the axis of the mesh over which the rows are spread; None for a mesh of one axis.
    :return: what a model indexes in place of the array, or a tuple of them.
    :raises ValueError: the rows cannot be shared equally; the arrays differ in their number of rows; the axis is not
        said, or not one of the mesh; JAX would copy the rows to all devices, as it does unless
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
            "it NumPyro's programs hold the data as constants, and each device would get a copy of all rows."
        )
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        (axis,) = names
    if axis not in names:
        raise ValueError(f"shard_rows(axis={axis!r}): the mesh has the axes {', '.join(map(repr, names))}. Name one.")
    devices = mesh.shape[axis]
    lengths = sorted({np.shape(array)[0] if np.ndim(array) else 0 for array in arrays})
    if len(lengths) != 1:
        shapes = ", ".join(str(np.shape(array)) for array in arrays) or "none"
        raise ValueError(f"shard_rows needs arrays with one common number of rows, got shapes {shapes}.")
    (rows,) = lengths
    if not rows or rows % devices:
        raise ValueError(
            f"{rows} rows cannot be shared equally by {devices} devices along {axis!r}: leave out {rows % devices} of "
            "them, or use another number of devices."
        )
    # whatever the mesh says of its axes, the compiler is to choose how lookups are sharded
    automatic = Mesh(mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    sharding = NamedSharding(automatic, PartitionSpec(axis))
    sharded = tuple(ShardedRows(_spread(array, devices, sharding)) for array in arrays)
    return sharded[0] if len(sharded) == 1 else sharded


def _spread(array: Any, devices: int, sharding: NamedSharding) -> jax.Array:
    shape = (devices, array.shape[0] // devices, *array.shape[1:])
    if isinstance(array, jax.Array):
        return jax.jit(lambda x: x.reshape(shape), out_shardings=sharding)(array)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)

    def share(index: Any) -> np.ndarray:
        first, last, _ = index[0].indices(devices)
        rows = np.asarray(array[first * shape[1] : last * shape[1]], dtype)
        return rows.reshape(last - first, *shape[1:])

    return jax.make_array_from_callback(shape, sharding, share)
