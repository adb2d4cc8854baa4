"""Runs a NumPyro model on given rows, and at unconstrained values."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to, constraints
from numpyro.distributions.transforms import IndependentTransform, StickBreakingTransform, Transform
from numpyro.primitives import Messenger

from numpyro_sgmcmc.data.arrays import indexable
from numpyro_sgmcmc.data.row_array import RowArray
from numpyro_sgmcmc.model.given_values import is_missing, not_drawn
from numpyro_sgmcmc.model.numpyro_internals import SCAN_INDEX, handlers_around, rows_of, scan_wrapper
from numpyro_sgmcmc.types import Rows, Sites
from numpyro_sgmcmc.utils.workarounds.once import once

Transforms: TypeAlias = Mapping[str, Transform] | Callable[[str, Distribution, Any], Transform | None]
"""
Site -> transform from unconstrained values to the support of its distribution; or a function of the site, the
distribution and, inside a ``scan``, the number of the step.
"""

IN_SCAN = "_numpyro_sgmcmc_in_scan"  # in site["infer"] inside a scan: whether it runs backwards


class minibatch(Messenger):
    """
    Runs a model on given rows: plates named in ``rows`` get these indices and NumPyro rescales by N/n; any other plate
    gets all of its rows. ``numpyro.prng_key()`` statements get keys split from ``rng_key``.
    """

    def __init__(self, fn: Any = None, rows: Rows | None = None, rng_key: jax.Array | None = None):
        self.rows = {} if rows is None else rows
        self.rng_key = rng_key
        self.declared: dict[str, tuple[int, int | None]] = {}
        self.unequal: dict[str, tuple[int, int]] = {}  # plates that are declared with two sizes
        self.in_scan: dict[str, tuple[int, int | None]] = {}
        self.randomised = False
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            size = msg["args"][0]
            if isinstance(size, (float, np.floating)):
                raise ValueError(f"plate {msg['name']!r} has the size {size}, which must be an integer: len(x).")
            if msg["name"] in self.declared and self.declared[msg["name"]][0] != size:
                self.unequal[msg["name"]] = self.declared[msg["name"]][0], size
            self.declared[msg["name"]] = msg["args"]
            chosen = self.rows.get(msg["name"])
            # with new args, a plate without a subsample_size does not warn about one
            msg["value"] = jnp.arange(size) if chosen is None else chosen
            msg["args"] = (size, None if chosen is None else len(chosen))
        elif msg["type"] == "prng_key" and msg["value"] is None:
            self.randomised = True
            if self.rng_key is not None:
                self.rng_key, msg["value"] = jax.random.split(self.rng_key)
        elif msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # the body of a scan runs outside this handler, so another handler must see its statements
            body, init, xs, length, reverse = msg["args"]
            msg["args"] = (_in_scan(body, self.in_scan, reverse), init, xs, length, reverse)

    def postprocess_message(self, msg: Any) -> None:
        """Indexes a :class:`RowArray` for ``numpyro.subsample``, because the plate itself cannot."""
        if msg["type"] == "subsample" and isinstance(msg["value"], RowArray):
            array, event_dim = msg["value"], msg["kwargs"]["event_dim"]
            for plate in handlers_around(numpyro.plate):
                if plate.dim - event_dim == -array.ndim:
                    msg["value"] = array[rows_of(plate)]
                    msg["kwargs"] = {"event_dim": None}


class _in_scan(Messenger):
    """Reports the plates in the body of a scan, and marks its sites."""

    def __init__(self, fn: Any, sizes: dict[str, tuple[int, int | None]], reverse: bool):
        self.sizes, self.reverse = sizes, reverse
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            self.sizes[msg["name"]] = msg["args"]
        elif msg["type"] == "sample":
            msg["infer"][IN_SCAN] = self.reverse


class full_rows(Messenger):
    """
    The model on all of its rows, for any declared ``subsample_size``, as ArviZ, ``Predictive`` and ``log_likelihood``
    need it. Without a key, as in ``log_likelihood``, missing values are not drawn. It compares
    equal to the model it wraps, because :class:`numpyro.infer.Gibbs` compares models.
    """

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            msg["value"] = jnp.arange(msg["args"][0])
            msg["args"] = (msg["args"][0], None)
        elif msg["type"] == "sample" and is_missing(msg) and not handlers_around(handlers.seed):
            msg["value"] = not_drawn(msg)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = indexable((args, kwargs))
        return super().__call__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.fn == (other.fn if isinstance(other, full_rows) else other)

    def __hash__(self) -> int:
        return hash(self.fn)


def transform_of(name: str, fn: Distribution, transforms: Transforms | None) -> Transform:
    """The transform of a site from unconstrained values to its support."""
    return given_transform(name, fn, transforms) or biject_to(fn.support)


def given_transform(name: str, fn: Distribution, transforms: Transforms | None, step: Any = None) -> Transform | None:
    return transforms(name, fn, step) if callable(transforms) else (transforms or {}).get(name)


def inverse(transform: Transform, value: jax.Array) -> jax.Array:
    """
    The unconstrained value. NumPyro takes what is left of a simplex as 1 minus the sum of the other probabilities, so
    that small ones have no digits. Here it is the sum of those that are left.
    """
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    if not isinstance(transform, StickBreakingTransform):
        return jnp.asarray(transform.inv(value))
    left = jnp.cumsum(value[..., :0:-1], -1)[..., ::-1]
    return jnp.log(value[..., :-1]) - jnp.log(left) + jnp.log(left.shape[-1] - jnp.arange(left.shape[-1]))


def unconstrained(fn: Any, z: Sites, transforms: Transforms | None = None) -> handlers.substitute:
    """
    The model with latents at the values of the unconstrained ``z``, and for each latent a factor ``_{site}_log_det``:
    the log determinant of the Jacobian, which makes the density one of ``z``.
    """
    return handlers.substitute(fn, substitute_fn=partial(_value_at, z, transforms))


def _value_at(z: Sites, transforms: Transforms | None, site: Any) -> Any:
    name = site["name"]
    if site["type"] != "sample" or name not in z:
        return None
    fn, x = site["fn"], z[name]
    step = site["infer"].get(SCAN_INDEX)
    if step is not None and site["infer"].get(IN_SCAN):
        step = len(x) - 1 - step  # NumPyro counts steps as they are run; values are in the order of the elements
    given = given_transform(name, fn, transforms, step)
    transform = given or biject_to(fn.support)
    if step is not None and jnp.ndim(x) > len(transform.inverse_shape(fn.shape())):
        x = x[step]  # inside a scan, z has a value for each step
    if given is None and elementwise(fn.support) is constraints.real:
        return x
    value, log_det = transformed(transform, x, fn)
    numpyro.factor(f"_{name}_log_det", log_det)
    return once(value, z)


def in_order_of_steps(site: Any, x: jax.Array) -> jax.Array:
    """The values of a site as NumPyro looks them up: in a scan from the step that is run first."""
    return x[::-1] if site["infer"].get(IN_SCAN) else x


def transformed(transform: Transform, x: jax.Array, fn: Distribution) -> tuple[jax.Array, jax.Array]:
    """The value of a site, and the log determinant of the Jacobian for each element of the batch shape."""
    value = jnp.asarray(transform(x))
    log_det = jnp.asarray(transform.log_abs_det_jacobian(x, value))
    # event dimensions left in log_det, as for a vector on the half-line, whose coordinates are mapped separately
    event_dim = jnp.ndim(log_det) - jnp.ndim(value) + len(fn.event_shape)
    return value, log_det.sum(tuple(range(-event_dim, 0)))


def elementwise(support: Any) -> Any:
    """The constraint of each element of a support."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support
