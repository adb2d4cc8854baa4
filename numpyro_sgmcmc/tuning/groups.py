r"""
The groups of a hierarchy: coordinates that are independent of those of the other groups, given the rest.

They are the elements of a plate, or of the longest axis of a site without one. The rest, the *globals*, are the other
sites, those of smaller plates included, if there are not too many. Whether the prior couples the groups after all, as
in a random walk, or the data, as for a Gaussian process, is seen from their Hessians: with random signs :math:`s_j` for
the groups, :math:`s_j (H s)_j = H_{jj} + \sum_{i \ne j} s_i s_j H_{ij}` depends on the signs only if they are coupled.
The Hessians of prior and data are looked at separately, because the ratio of their sizes depends on scales that are not
yet known.
"""

from collections import defaultdict
import math
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.structure import Site
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.coordinates import is_high_dimensional, unraveler
from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.curvature import gradient_and_product

FROM = 100  # coordinates; with fewer, a full matrix is cheap
FEWEST, LARGEST = 20, 8  # groups, and coordinates of a group
GLOBALS, BORDER = 200, 1_000_000  # at most so many globals, and numbers that couple them to the groups
COUPLED = 0.05  # relative change with the signs
CLOSE = 0.3  # sd of the position where it is looked at
ROUNDING = 1e-4  # relative size of a Hessian that may consist of rounding errors


class Part(NamedTuple):
    """One site of the layout."""

    shape: tuple[int, ...]  # its unconstrained shape
    axes: tuple[int, ...]  # the axes along which its elements belong to different groups
    family: int  # number of its family of groups, or -1 for a global site


class Layout(NamedTuple):
    """Where the groups are in raveled z."""

    parts: tuple[Part, ...]  # the sites, in the order of ravel_pytree
    families: tuple[tuple[int, int], ...]  # number of groups, and of coordinates in each, by family
    size: int  # number of globals

    @property
    def globals(self) -> np.ndarray:
        """The numbers of the globals in raveled z."""
        belongs = [np.full(math.prod(part.shape), part.family) for part in self.parts]
        return np.flatnonzero(np.concatenate(belongs) < 0)

    def split(self, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Globals, shape ``(k,)``, and the groups of each family, shape ``(groups, b)``."""
        common, members = [], [[] for _ in self.families]
        start = 0
        for part in self.parts:
            size = math.prod(part.shape)
            values = x[start : start + size]
            start += size
            if part.family < 0:
                common.append(values)
            else:
                first = jnp.moveaxis(values.reshape(part.shape), part.axes, range(len(part.axes)))
                members[part.family].append(first.reshape(self.families[part.family][0], -1))
        join = lambda arrays, axis: arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis)  # noqa: E731
        return join(common, 0) if common else x[:0], [join(arrays, 1) for arrays in members]

    def merge(self, common: jax.Array, members: list[jax.Array]) -> jax.Array:
        """The inverse of :meth:`split`."""
        values, used, columns = [], 0, [0] * len(self.families)
        for part in self.parts:
            size = math.prod(part.shape)
            if part.family < 0:
                values.append(common[used : used + size])
                used += size
                continue
            groups, first = self.families[part.family][0], columns[part.family]
            columns[part.family] = last = first + size // groups
            rest = [n for axis, n in enumerate(part.shape) if axis not in part.axes]
            lengths = [part.shape[axis] for axis in part.axes]
            of_site = members[part.family][:, first:last].reshape(*lengths, *rest)
            values.append(jnp.moveaxis(of_site, range(len(part.axes)), part.axes).ravel())
        return jnp.concatenate(values)


def candidates(sites: dict[str, Site]) -> dict[Any, dict[str, tuple[int, ...]]]:
    """Family -> the axes of the groups in each of its sites, for latent sites with enough elements."""
    families: dict[Any, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, site in sites.items():
        if site.unconstrained is None or not site.unconstrained.shape:
            continue
        shape = site.unconstrained.shape
        # a plate counts its dimension from the right of the batch shape
        axes = tuple(sorted(len(site.log_prob_shape) + dim for dim in site.plates.values()))
        axes = axes or (shape.index(max(shape)),)
        if any(not 0 <= axis < len(shape) for axis in axes):
            continue
        groups = math.prod(shape[axis] for axis in axes)
        if groups >= FEWEST:
            families[frozenset(site.plates) or groups, groups][name] = axes
    return families


def layout_of(potential: ModelPotential, coupled: Any) -> Layout | None:
    """
    The layout of a model, or None if it has no groups that are not ``coupled``, or few coordinates. Several families,
    as those of crossed effects, are coupled to each other, so a full matrix is used if there is one.
    """
    sites = {name: site for name, site in potential.structure.sites.items() if name in potential.prototype}
    sizes = {name: math.prod(shape.shape) for name, shape in potential.prototype.items()}
    d = sum(sizes.values())
    if d <= FROM:
        return None
    families = candidates(sites)
    chosen: list[dict[str, tuple[int, ...]]] = []
    for key in sorted(families, key=lambda key: -sum(sizes[name] for name in families[key])):
        members = families[key]
        b = sum(sizes[name] for name in members) // key[1]
        if b <= LARGEST and not coupled(_layout(potential, [members])):
            chosen.append(members)
            layout = _layout(potential, chosen)
            if layout.size <= min(GLOBALS, BORDER // (d - layout.size)) and layout.size <= d / 2:
                return layout
            if not is_high_dimensional(potential.prototype):
                return None
    return None


def _layout(potential: ModelPotential, families: list[dict[str, tuple[int, ...]]]) -> Layout:
    of_site = {name: (number, axes) for number, members in enumerate(families) for name, axes in members.items()}
    parts, lengths, widths, size = [], [0] * len(families), [0] * len(families), 0
    for name in sorted(potential.prototype):
        shape = potential.prototype[name].shape
        family, axes = of_site.get(name, (-1, ()))
        parts.append(Part(shape, axes, family))
        if family < 0:
            size += math.prod(shape)
        else:
            lengths[family] = math.prod(shape[axis] for axis in axes)
            widths[family] += math.prod(shape) // lengths[family]
    return Layout(tuple(parts), tuple(zip(lengths, widths)), size)


def coupling(potential: ModelPotential, rng_key: jax.Array, layout: Layout) -> jax.Array:
    """
    By how much the signs change the products with the Hessian of the prior or of the data, whichever is more, in the
    groups of the first family.
    """
    key_z, key_along, key_signs, key_model = random.split(rng_key, 4)
    groups, b = layout.families[0]
    unravel = unraveler(potential.prototype)
    d = sum(math.prod(part.shape) for part in layout.parts)
    dtype = jnp.result_type(float)
    z, along = CLOSE * noise.normal(key_z, (d,), dtype), noise.normal(key_along, (b,), dtype)
    # sorted data have the groups one after the other
    spread = lambda plate: jnp.asarray(np.linspace(0, plate.size - 1, plate.batch_size).astype(np.int32))  # noqa: E731
    rows = {name: spread(plate) for name, plate in potential.plates.items()}
    latents = potential.structure.latents

    def prior_and_data(z):
        parts = [jnp.zeros((), dtype), jnp.zeros((), dtype)]
        for name, _, energy in potential.energies(unravel(z), rows, key_model):
            parts[name not in latents] += jnp.sum(energy)
        return jnp.stack(parts)

    def products(key):
        signs = random.rademacher(key, (groups, 1), z.dtype)
        v = layout.merge(jnp.zeros(layout.size), [signs * along])

        def of_part(chosen):
            product = gradient_and_product(jax.grad(lambda z: chosen @ prior_and_data(z)), z, v)[1]
            return (signs * layout.split(product)[1][0]).ravel()

        return jax.vmap(of_part)(jnp.eye(2, dtype=dtype))

    first, second = lax.map(products, random.split(key_signs))
    change, size = jnp.linalg.norm(first - second, axis=1), jnp.linalg.norm(first + second, axis=1) / 2
    change = jnp.max(change / jnp.maximum(size, ROUNDING * size.max() + 1e-30))
    return jnp.where(jnp.isfinite(change), change, jnp.inf)
