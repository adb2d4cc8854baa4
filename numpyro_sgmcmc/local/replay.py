"""
Runs a model twice. The first run records the values of all sites except the local ones, and the second computes the log
density of the local sites as a function of their own values.

In the first run the handlers around the model give the global sites their values and the plates their rows. Two kinds
of sites are hidden from these handlers: the local sites, and the sites after the first of them in the same plates,
which depend on local sites. The second run is completely hidden. It uses the recorded values and given values of the
local sites, and returns the log density of the hidden sites, for each element of the plates.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.primitives import Messenger

from numpyro_sgmcmc.model.dataflow import dependence
from numpyro_sgmcmc.model.given_values import SiteError


class LocalError(SiteError):
    """An error in a local site; the message names the site."""


class FirstRun(Messenger):
    """
    :param is_local: message of a sample site that is not observed -> whether it is hidden.
    :param value_of: name, distribution -> value of a local site in this run.
    """

    def __init__(self, is_local: Callable[[Any], bool], value_of: Callable[[str, Any], Any]):
        self.is_local, self.value_of = is_local, value_of
        self.sites: dict[str, Any] = {}  # local site -> its distribution in this run
        self.frames: dict[str, int] = {}  # plates of the local sites -> dim
        self.plates: dict[str, tuple[tuple, jax.Array]] = {}  # arguments and rows of every plate
        self.values: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}  # values of the latent sites that are not local
        self.nameless: dict[str, list[Any]] = {"control_flow": [], "prng_key": []}  # values of scans, keys
        self.observed: list[str] = []  # the observed sites among the hidden ones
        super().__init__(None)

    def process_message(self, msg: Any) -> None:
        if msg["type"] not in ("sample", "deterministic"):
            return
        frames = {frame.name: frame.dim for frame in msg["cond_indep_stack"]}
        if msg["type"] == "sample" and not msg["is_observed"] and self.is_local(msg):
            if self.sites and frames != self.frames:
                raise LocalError(
                    f"local site {msg['name']!r} is in the plates {sorted(frames)}, but {next(iter(self.sites))!r} is "
                    f"in {sorted(self.frames)}. All local sites must be in the same plates."
                )
            self.frames = frames
            value = self.value_of(msg["name"], msg["fn"])
            for name, dim in frames.items():  # add 0 * rows, so that everything that depends on it depends on the rows
                rows = 0 * self.plates[name][1]
                rows = rows.reshape(-1, *(1,) * (-dim - 1 + msg["fn"].event_dim))
                value = value + rows.astype(jnp.result_type(value))
            msg["value"], msg["stop"] = value, True
            self.sites[msg["name"]] = msg["fn"]
        elif self.sites and self.frames.items() <= frames.items():
            if msg["type"] == "sample" and not msg["is_observed"]:
                first = next(iter(self.sites))
                raise LocalError(
                    f"latent site {msg['name']!r} follows the site {first!r}, which is summed out, in the same plates. "
                    f"If it does not depend on {first!r}, put it before {first!r}, and give local= for it. If it does, "
                    f"marginalise one of them, or leave the mark of {first!r} out and draw both by a function local=."
                )
            msg["stop"] = True
            if msg["type"] == "sample":
                self.observed.append(msg["name"])

    def postprocess_message(self, msg: Any) -> None:
        if msg["type"] == "plate":
            self.plates[msg["name"]] = msg["args"], msg["value"]
        elif msg["type"] in self.nameless:
            self.nameless[msg["type"]].append(msg["value"])
        elif msg["type"] in ("sample", "param", "mutable"):
            self.values[msg["name"]] = msg["value"]
            if msg["type"] == "sample" and not msg["is_observed"] and msg["name"] not in self.sites:
                self.globals[msg["name"]] = msg["value"]


class _Replay(Messenger):
    def __init__(self, first: FirstRun, value_of: Callable[[str, Any], Any]):
        self.first, self.value_of = first, value_of
        self.nameless = {kind: iter(values) for kind, values in first.nameless.items()}
        self.densities: dict[str, jax.Array] = {}
        super().__init__(None)

    def process_message(self, msg: Any) -> None:
        first, name = self.first, msg.get("name")
        msg["stop"] = True
        if msg["type"] == "plate":
            msg["args"], msg["value"] = first.plates[name]
        elif msg["type"] in self.nameless:
            msg["value"] = next(self.nameless[msg["type"]])
        elif name in first.sites:
            msg["value"] = self.value_of(name, msg["fn"])
        elif name in first.values and not msg.get("is_observed"):
            msg["value"] = first.values[name]

    def postprocess_message(self, msg: Any) -> None:
        if msg["type"] == "sample":
            density = msg["fn"].log_prob(msg["value"])
            scale = 1.0 if msg["scale"] is None else msg["scale"]
            for frame in msg["cond_indep_stack"]:
                (size, _), rows = self.first.plates[frame.name]
                scale = scale * len(rows) / size
            self.densities[msg["name"]] = density * scale


def run_again(model: Callable, args: tuple, kwargs: Mapping[str, Any], first: FirstRun, value_of: Callable) -> Any:
    """
    :param value_of: name, distribution -> value of a local site.
    :return: the log density of the local sites and all hidden sites, summed to the plates of the local sites, and the
        log densities of the other sites, by name.
    """
    replay = _Replay(first, value_of)
    with replay:
        model(*args, **kwargs)
    others = replay.densities
    ours = [others.pop(name) for name in list(others) if name in {*first.observed, *first.sites}]
    return sum((to_plates(density, first.frames) for density in ours), start=jnp.zeros(())), others


def check_nothing_else_depends(density: Callable, values: Mapping[str, jax.Array], how: str) -> None:
    """Raises a LocalError if a site outside the plates of the local sites depends on one; ``how``: for the message."""
    _, others = dependence(density, values)
    for name, depends in others.items():
        for local in sorted(depends):
            raise LocalError(
                f"site {name!r} depends on {local!r}, which is {how}, but is outside its plates. Move it into "
                "them, with one log density for each of their elements."
            )


def to_plates(density: jax.Array, frames: Mapping[str, int]) -> jax.Array:
    """The sum over all dimensions except those of these plates."""
    dims = set(frames.values())
    summed = density.sum(tuple(k for k in range(-density.ndim, 0) if k not in dims), keepdims=True)
    return summed.reshape(summed.shape[min(dims) :])


def emit(name: str, density: jax.Array, first: FirstRun) -> None:
    """Adds a factor in the plates of the local sites."""
    with ExitStack() as plates:
        for plate, dim in first.frames.items():
            plates.enter_context(numpyro.plate(plate, first.plates[plate][0][0], dim=dim))
        numpyro.factor(name, density)
