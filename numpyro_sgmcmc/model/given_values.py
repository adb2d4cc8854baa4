"""
Values of sites that come from outside of the model's own statements: from ``numpyro.handlers`` around the model, and
the missing values that ``obs_mask=`` draws.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import MaskedDistribution
from numpyro.primitives import Messenger

from numpyro_sgmcmc.model.numpyro_internals import handlers_around

MISSING = "missing values of site "  # begins the name that these values have in a trace
_UNOBSERVED = "_unobserved"  # NumPyro appends it to the name of a site with obs_mask=


class SiteError(ValueError):
    """An error in a site; the message names the site."""


class given_values(Messenger):
    """
    Runs a user's model.

    - Values that ``handlers.condition`` gives to a site, one for each row of a minibatched plate, are indexed by the
      rows of the minibatch.
    - The missing values of ``sample(..., obs_mask=)`` are left out. Their density integrates to 1, so that of the other
      sites is the marginal one, if they do not depend on the missing values. In the trace these have a name.

    :param fn: model.
    :param bool imputes: keeps the missing values, as latent sites.
    :raises ValueError: for a latent site that ``handlers.substitute`` or ``handlers.replay`` gives a value, and for a
        site in a minibatched plate that ``handlers.do`` changes.
    """

    def __init__(self, fn: Any, imputes: bool = False):
        self.imputes = imputes
        self.minibatched: dict[str, tuple[int, jax.Array]] = {}  # plate -> its size and the rows
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample" or msg.get("_control_flow_done"):  # the sites of a scan that has run
            return
        cut = self.minibatched
        plates = {frame.dim: cut[frame.name] for frame in msg["cond_indep_stack"] if frame.name in cut}
        if plates and "_intervener_id" in msg:
            raise SiteError(
                f"numpyro.handlers.do changes site {msg['name']!r} in a minibatched plate, where NumPyro would scale "
                "its density twice. Write the change in the model: pass its values as an argument x, and use x[rows]."
            )
        if msg["is_observed"]:
            if plates and _is_conditioned(msg):
                for dim, (size, rows) in plates.items():
                    msg["value"] = _at_rows(jnp.asarray(msg["value"]), dim - msg["fn"].event_dim, size, rows)
        elif msg["value"] is not None:
            raise SiteError(
                f"numpyro.handlers.substitute or replay gives latent site {msg['name']!r} a value, which a sampler "
                "would replace by its own. To hold the site at this value use numpyro.handlers.condition; to start "
                "there use init_params= or init_strategy=init_to_value(values=...)."
            )
        elif not self.imputes and is_missing(msg):
            name = f"{MISSING}{msg['name'].removesuffix(_UNOBSERVED)!r}"
            msg["value"], msg["stop"] = checkpoint_name(not_drawn(msg), name), True

    def postprocess_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            self.minibatched.pop(msg["name"], None)
            size, n = msg["args"]
            if n is not None:
                self.minibatched[msg["name"]] = size, msg["value"]


def is_missing(msg: Any) -> bool:
    """Whether a sample site has the missing values of another one, which has an ``obs_mask=``."""
    return not msg["is_observed"] and msg["name"].endswith(_UNOBSERVED) and is_masked(msg["fn"])


def not_drawn(msg: Any) -> jax.Array:
    """A value of a site where none is needed, as nothing depends on it."""
    return jnp.zeros(msg["fn"].shape())


def is_masked(fn: Any) -> bool:
    while fn is not None and not isinstance(fn, MaskedDistribution):
        fn = getattr(fn, "base_dist", None)
    return fn is not None


def of_all_rows(model: Any, sizes: Iterable[int]) -> str:
    """The handler around a model that has an array with one of these sizes, such as a mask of all rows."""
    for handler in _handlers_of(model):
        held = [vars(handler).get(name) for name in ("data", "mask", "scale")]
        if any(set(sizes) & set(jnp.shape(leaf)) for leaf in jax.tree.leaves(held)):
            return f"numpyro.handlers.{type(handler).__name__}"
    return ""


def check_not_collapsed(model: Any) -> None:
    """Raises a ValueError for a model whose plates are summed up by a handler."""
    if any(isinstance(handler, handlers.collapse) for handler in _handlers_of(model)):
        raise ValueError(
            "numpyro.handlers.collapse around the model makes one factor of all rows of a plate, so there are no "
            "minibatches. Leave it out, or use NUTS."
        )


def _handlers_of(model: Any) -> Iterator[Messenger]:
    """The handlers around a model."""
    while model is not None:
        if isinstance(model, Messenger):
            yield model
        model = getattr(model, "fn", None)


def _is_conditioned(msg: Any) -> bool:
    """Whether the value of a site is from ``handlers.condition``, not from the model's own ``obs=``."""
    return any(
        any(value is msg["value"] for value in (handler.data or {}).values())
        or (handler.condition_fn is not None and handler.condition_fn(msg) is not None)
        for handler in handlers_around(handlers.condition)
    )


def _at_rows(value: jax.Array, dim: int, size: int, rows: jax.Array) -> jax.Array:
    of_all_rows = value.ndim >= -dim and value.shape[dim] == size
    return jnp.take(value, rows, axis=dim) if of_all_rows else value
