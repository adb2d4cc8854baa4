r"""
Sums out discrete sites of the rows.

A site that is marked ``infer={"enumerate": "parallel"}`` is replaced by the marginal density of its rows,

.. math:: \log p(x_i \mid z) = \log \sum_k p(x_i, k \mid z),

exactly: the sum is over the joint support of all marked sites, for each element of their plates. A minibatch is scaled
by N/n outside the logarithm, so its estimate of U is unbiased. (NumPyro's own enumeration scales inside.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution

from numpyro_sgmcmc.local.replay import FirstRun, LocalError, check_nothing_else_depends, emit, run_again
from numpyro_sgmcmc.model.given_values import given_values

MOST = 1024  # maximal number of elements of the joint support


@dataclass(frozen=True)
class summed_out:
    """The model with its marked sites summed out; the model itself if there are none."""

    fn: Any  # model
    imputes: bool = False  # see given_values

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        supports: dict[str, np.ndarray] = {}
        model = given_values(self.fn, self.imputes)
        is_marked = lambda msg: msg["infer"].get("enumerate") == "parallel"  # noqa: E731

        def first_element(name: str, fn: Distribution) -> jax.Array:
            supports[name] = support_of(name, fn, fn.event_shape, MOST)
            return jnp.broadcast_to(supports[name][0], fn.shape())

        first = FirstRun(is_marked, first_element)
        with first:
            result = model(*args, **kwargs)
        if not first.sites:
            return result
        name = next(iter(first.sites))
        if not first.frames:
            raise LocalError(
                f"site {name!r} is marked infer={{'enumerate': 'parallel'}}, but is not in a plate: only discrete "
                "sites of the rows can be summed out. Sample it in a block of its own with numpyro.infer.Gibbs."
            )
        joint = _joint(supports)

        def density(elements: Mapping[str, jax.Array]) -> Any:
            value_of = lambda name, fn: jnp.broadcast_to(elements[name], fn.shape())  # noqa: E731
            return run_again(model, args, kwargs, first, value_of)

        check_nothing_else_depends(density, {site: values[0] for site, values in joint.items()}, "summed out")
        total = jax.nn.logsumexp(jax.vmap(lambda e: density(e)[0])(joint), axis=0)
        emit("+".join(first.observed) or f"_{name}_summed_out", total, first)  # their marginal density
        return result


def support_of(name: str, fn: Distribution, event_shape: tuple[int, ...], most: float = math.inf) -> np.ndarray:
    """All values of an event, or of a coordinate of it, shape ``(values, *event_shape)``. ``most``: of a sum."""
    base = fn
    while isinstance(base, (ExpandedDistribution, Independent, MaskedDistribution)):
        base = base.base_dist
    if base.event_shape or not base.has_enumerate_support:
        raise LocalError(
            f"local site {name!r} has a {type(base).__name__} distribution, whose values cannot be enumerated: its "
            "support must be finite, and its event a number for each coordinate. Marginalise it, or give the kernel "
            "local=."
        )
    with jax.ensure_compile_time_eval():
        try:
            values = np.asarray(base.enumerate_support(expand=False))
        except NotImplementedError as error:
            raise LocalError(
                f"local site {name!r} has a {type(base).__name__} distribution, whose support differs between rows or "
                "is not finite. Marginalise it, or give the kernel local=."
            ) from error
    values = values.reshape(len(values), -1)[:, 0]
    count = math.prod(event_shape)
    if len(values) ** count > most:
        raise LocalError(
            f"local site {name!r} has {len(values)}^{count} values, more than the maximum of {most} for a sum. Draw it "
            "instead: local=LocalGibbs()."
        )
    return np.array(list(itertools.product(values, repeat=count))).reshape(-1, *event_shape)


def _joint(supports: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """The elements of the joint support, along a first axis."""
    count = math.prod(map(len, supports.values()))
    if count > MOST:
        raise LocalError(
            f"the sites {', '.join(map(repr, supports))} have {count} values together, more than the maximum of {MOST} "
            "for a sum. Draw them instead: local=LocalGibbs()."
        )
    columns = zip(*itertools.product(*supports.values()))
    return {name: jnp.asarray(np.array(column)) for name, column in zip(supports, columns)}
