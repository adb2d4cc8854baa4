"""Running a NumPyro model on the rows it is told, and handing it arrays that traced rows may index."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.contrib.control_flow.scan import scan_wrapper
from numpyro.primitives import Messenger

from numpyro_sgmcmc.types import Rows


class minibatch(Messenger):
    """
    Run a model on the rows it is told: plates named in ``rows`` get these indices and NumPyro rescales by N/n, any
    other plate gets all of its rows. ``numpyro.prng_key()`` statements get keys split from ``rng_key``.
    """

    def __init__(self, fn: Any = None, rows: Rows | None = None, rng_key: jax.Array | None = None):
        self.rows = {} if rows is None else rows
        self.rng_key = rng_key
        self.declared: dict[str, tuple[int, int | None]] = {}
        self.in_scan: dict[str, tuple[int, int | None]] = {}
        self.randomised = False
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            size = msg["args"][0]
            self.declared[msg["name"]] = msg["args"]
            chosen = self.rows.get(msg["name"])
            # a plate without a subsample_size must not warn about one, hence the new args
            msg["value"] = jnp.arange(size) if chosen is None else chosen
            msg["args"] = (size, None if chosen is None else len(chosen))
        elif msg["type"] == "prng_key" and msg["value"] is None:
            self.randomised = True
            if self.rng_key is not None:
                self.rng_key, msg["value"] = jax.random.split(self.rng_key)
        elif msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # the body of a scan runs out of reach of this handler; have its plates reported
            body, *rest = msg["args"]
            msg["args"] = (_report_plates(body, self.in_scan), *rest)


class _report_plates(Messenger):
    def __init__(self, fn: Any, found: dict[str, tuple[int, int | None]]):
        self.found = found
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            self.found[msg["name"]] = msg["args"]


class full_rows(Messenger):
    """
    The model on all of its rows, whatever ``subsample_size`` it declares: what ArviZ, ``Predictive`` and
    ``log_likelihood`` should see. Equal to the model it wraps, as :class:`numpyro.infer.Gibbs` compares models.
    """

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            msg["value"] = jnp.arange(msg["args"][0])
            msg["args"] = (msg["args"][0], None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = indexable((args, kwargs))
        return super().__call__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.fn == (other.fn if isinstance(other, full_rows) else other)

    def __hash__(self) -> int:
        return hash(self.fn)


class _Indexable(np.ndarray):
    """
    A NumPy array that traced row numbers may index. It is not made a JAX array as a whole, for models ask NumPy about
    their arguments: ``len(np.unique(group))``, ``int(y.max()) + 1``.
    """

    _on_device: jax.Array | None = None

    def __getitem__(self, index: Any) -> Any:
        if not any(isinstance(part, jax.Array) for part in jax.tree.leaves(index)):
            return super().__getitem__(index)
        if self._on_device is None:
            with jax.ensure_compile_time_eval():  # one copy for all the places that index it
                self._on_device = jnp.asarray(np.asarray(self))
        return self._on_device[index]


def indexable(tree: Any) -> Any:
    """The arguments of a model with their NumPy arrays made indexable by traced row numbers."""
    return jax.tree.map(
        lambda x: x.view(_Indexable) if isinstance(x, np.ndarray) and x.dtype.kind in "biufc" else x, tree
    )
