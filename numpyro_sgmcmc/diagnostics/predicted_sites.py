"""A model's predictions for each row, summed over the draws, in chunks of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
import numpyro.distributions as dist

from numpyro_sgmcmc.data.argument_checks import check_arrays
from numpyro_sgmcmc.gradients.full_pass import chunk_length
from numpyro_sgmcmc.model.handlers import in_order_of_steps, minibatch
from numpyro_sgmcmc.model.row_checks import check_lengths
from numpyro_sgmcmc.model.structure import outline
from numpyro_sgmcmc.potential.compiled import on_data
from numpyro_sgmcmc.types import Plate


class PredictedSites:
    """The sites that a model predicts, and the rows for which it predicts them."""

    def __init__(self, model: Any, values: Mapping[str, jax.Array], args: tuple, kwargs: Mapping[str, Any]):
        self.model = model
        self._sums_of = on_data(self._sums, args, kwargs)  # a function of latents, rows and weights
        self.latents: tuple[str, ...] = ()
        self.axes: dict[str, int] = {}  # site -> the axis of the rows that are split into chunks
        self.plate, self.size, self.length = "", 0, 0
        draw = {name: x[0] for name, x in values.items()}
        on_data(lambda args, kwargs: self._look(draw, args, kwargs), args, kwargs)()

    def _look(self, values: dict, args: tuple, kwargs: dict) -> jax.Array:
        """Finds the latents, the plate whose rows are split into chunks, and the length of a chunk."""
        handler = minibatch(self.model)
        try:
            trace = self._trace(handler, values, args, kwargs)
        except TypeError as error:
            check_arrays(args, kwargs, error)
            raise
        samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
        self.latents = tuple(name for name in samples if name in values and not samples[name]["is_observed"])
        own = {frame.name for name in self.latents for frame in samples[name]["cond_indep_stack"]}
        others = [samples[name] for name in samples if name not in self.latents]
        plates = {frame.name: frame.size for site in others for frame in site["cond_indep_stack"]}
        plates = {name: size for name, size in plates.items() if name not in own}
        if plates:
            self.plate = max(plates, key=lambda name: plates[name])
            self.size = plates[self.plate]
            latents = {name: values[name] for name in self.latents}

            def of_rows(rows):
                return self._of_one(latents, rows, args, kwargs, random.key(0))

            plate = {self.plate: Plate(self.size, self.size)}
            self.length = chunk_length(of_rows, plate)
            given = handlers.condition(self.model, data=latents)
            check_lengths(outline(given, args, kwargs, {self.plate: self.size}), plate)
        return jnp.zeros(())

    def _trace(self, handler: Any, values: dict, args: tuple, kwargs: dict, rng_key: Any = None) -> dict:
        key = random.key(0) if rng_key is None else rng_key
        latents = {name: x for name, x in values.items() if not self.latents or name in self.latents}

        def only(site):
            named = site["type"] == "sample" and site["name"] in latents
            return in_order_of_steps(site, latents[site["name"]]) if named else None

        given = handlers.substitute(handlers.seed(handler, key), substitute_fn=only)
        return handlers.trace(given).get_trace(*args, **kwargs)

    def sums(self, latents: Mapping[str, jax.Array], weight: jax.Array) -> list[dict[str, np.ndarray]]:
        """For all rows, the weighted sums of the means, and the logs of the weighted sums of the densities."""
        chunks = row_chunks(np.arange(self.size, dtype=np.int32), self.length)
        every_rows = [{self.plate: jnp.asarray(chunk)} for chunk in chunks] if self.plate else [{}]
        parts = [jax.tree.map(np.asarray, self._sums_of(latents, rows, weight)) for rows in every_rows]
        return [joined_chunks(sums, self.axes, self.size) for sums in zip(*parts)]

    def _sums(self, args, kwargs, values, rows, weight):
        """The weighted sum of the means, and the log of the weighted sum of the densities."""

        def add(sums, draw):
            number, value, w = draw
            mean, log = self._of_one(value, rows, args, kwargs, random.fold_in(random.key(0), number))
            mean = {name: sums[0][name] + jnp.where(w > 0, w * x, 0) for name, x in mean.items()}
            log = {name: jnp.where(w > 0, x + jnp.log(w), -jnp.inf) for name, x in log.items()}
            return (mean, jax.tree.map(jnp.logaddexp, sums[1], log)), None

        first = jax.tree.map(lambda x: x[0], values)
        shapes = jax.eval_shape(lambda: self._of_one(first, rows, args, kwargs, random.key(0)))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.result_type(s.dtype, weight.dtype)), shapes[0])
        none = jax.tree.map(lambda s: jnp.full(s.shape, -jnp.inf, jnp.result_type(s.dtype, weight.dtype)), shapes[1])
        numbers = jnp.arange(len(weight), dtype=jnp.uint32)
        return lax.scan(add, (zero, none), (numbers, values, weight))[0]

    def _of_one(self, values, rows, args, kwargs, rng_key):
        """The predicted means of all sites for one draw, and the log densities of the observed ones."""
        means, logs = {}, {}
        for name, site in self._trace(minibatch(self.model, rows), values, args, kwargs, rng_key).items():
            if site["type"] != "sample" or name in self.latents:
                continue
            fn, factor = site["fn"], isinstance(site["fn"], dist.Unit)
            dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
            if factor and not dims:
                continue  # no density of rows
            mean = None if factor else _mean(fn)
            results = [] if mean is None else [(means, mean)]
            if site["is_observed"]:
                results.append((logs, fn.log_prob(site["value"])))
            for into, value in results:
                into[name] = value
                if self.plate in dims:
                    self.axes[name] = axis = len(fn.batch_shape) + dims[self.plate]
                    if rows and value.shape[axis] != len(rows[self.plate]):
                        raise ValueError(
                            f"site {name!r} has {value.shape[axis]} rows instead of {len(rows[self.plate])} of plate "
                            f"{self.plate!r}. Index the data by the rows of the plate, "
                            "`with numpyro.plate(...) as rows: ... x[rows]`."
                        )
        return means, logs


def row_chunks(numbers: np.ndarray, length: int) -> list[np.ndarray]:
    """Row numbers in chunks of the same length, so that one program is compiled; the last chunk is filled up."""
    length = max(1, min(length, len(numbers)))
    return [np.resize(numbers[first : first + length], length) for first in range(0, len(numbers), length)]


def joined_chunks(
    chunks: Sequence[Mapping[str, np.ndarray]], axes: Mapping[str, int], size: int
) -> dict[str, np.ndarray]:
    """Site -> its values at all ``size`` rows, which are along its axis in ``axes``; without one, those of any rows."""
    values = dict(chunks[0])
    for site in values.keys() & axes.keys():
        whole = np.concatenate([chunk[site] for chunk in chunks], axes[site])
        values[site] = np.split(whole, [size], axes[site])[0]
    return values


def _mean(fn: Any) -> jax.Array | None:
    """The mean of a distribution, or the probabilities of a categorical one; None if it is not known."""
    base = fn
    while hasattr(base, "base_dist"):
        base = base.base_dist
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        probs: Any = base.probs
        return jnp.broadcast_to(probs, (*fn.batch_shape, *fn.event_shape, probs.shape[-1]))
    try:
        return jnp.asarray(fn.mean)
    except NotImplementedError:
        return None
