"""
The potential in partially centred variables (:mod:`~numpyro_sgmcmc.model.centering`,
:mod:`~numpyro_sgmcmc.model.non_centred`), and which sites of a model have such variables.
"""

from collections.abc import Mapping
from functools import partial
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.model.centering import Form, centred_transform, form_of
from numpyro_sgmcmc.model.multivariate import Multivariate
from numpyro_sgmcmc.model.numpyro_internals import SCAN_INDEX
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.types import Sites

LARGEST_SERIES = 1_000_000  # elements of the matrix R of a site in a ``scan``, to choose its centring


def hierarchical_sites(potential: ModelPotential) -> dict[str, frozenset[str]]:
    """The sites that have a centring, and the sites on which their scales depend."""
    if potential.draws_local_sites:
        return {}
    centred, non_centred = potential.hierarchies
    return centred | non_centred.scales


def sites_to_centre(potential: ModelPotential) -> dict[str, jax.ShapeDtypeStruct]:
    """
    Shapes and dtypes of the sites whose centring can be chosen: not those whose elements have scales of their own, as
    those of a horseshoe have, because an element alone says little about its scale.
    """
    sizes = {name: math.prod(site.shape) for name, site in potential.prototype.items()}
    sites = hierarchical_sites(potential)

    def shares_scales(name):
        return all(2 * sizes[other] < max(sizes[name], 3) for other in sites[name])

    return {name: site for name, site in potential.prototype.items() if name in sites and shares_scales(name)}


def centred_potential(potential: ModelPotential, centering: Mapping[str, jax.Array]) -> ModelPotential:
    """The potential of the partially centred variables."""
    if not centering:
        return potential
    sites, non_centred = potential.hierarchies
    of_centred = {name: share for name, share in centering.items() if name in sites}
    transforms = partial(centred_transform, of_centred, potential.transforms)
    new = potential.replace(transforms=transforms, centred=of_centred)
    if names := non_centred.scales.keys() & centering.keys():
        # the location and the scale are functions of the other variables, in which centred sites are transformed
        new = new.replace(non_centred=new.non_centred_among(names), centering=centering)
    return new


def is_as_written(potential: ModelPotential, centering: Sites) -> bool:
    """Whether these are the variables of the model itself: 1 for sites that it has centred, 0 for the others."""
    non_centred: Any = potential.hierarchies[1].scales if centering else {}
    return all(bool((np.asarray(share) == (name not in non_centred)).all()) for name, share in centering.items())


def forms(potential: ModelPotential, z: Sites) -> dict[str, Form]:
    """The forms of the sites that have one; the scales of non-centred ones are those of the values made of them."""
    trace, (z, _) = potential.trace(z, potential.some_rows(), None), potential.as_written(z)
    of_sites = {name: form for name in z if (form := form_of(trace[name]["fn"]))}
    for name in of_sites:
        if SCAN_INDEX in trace[name]["infer"] and len(z[name]) * z[name].size <= LARGEST_SERIES:
            of_sites[name] = _of_series(potential, z, name)
    if potential.non_centred:
        for name in potential.non_centred.scales:
            of_sites[name] = potential.non_centred.form(name, z).after(of_sites[name])
    return of_sites


def _of_series(potential: ModelPotential, z: Sites, name: str) -> Multivariate:
    """The form of a site in a ``scan``: R is the derivative of its elements by the standardised ones."""
    transforms = partial(centred_transform, {name: jnp.zeros_like(z[name])}, potential.transforms)
    whitened = potential.replace(transforms=transforms)
    e = potential.in_variables_of(whitened, z)
    _, push = jax.linearize(lambda x: whitened.in_variables_of(potential, {**e, name: x})[name], e[name])
    columns = jax.vmap(lambda step: push(jnp.zeros_like(e[name]).at[step].set(1)))(jnp.arange(len(e[name])))
    return Multivariate(0.0, jnp.moveaxis(columns, (0, 1), (-1, -2)), axis=0)
