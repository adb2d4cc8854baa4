"""
The potential in partially centred variables (:mod:`~numpyro_sgmcmc.model.centering`,
:mod:`~numpyro_sgmcmc.model.non_centred`), and which sites of a model have such variables.
"""

from collections.abc import Mapping
from functools import partial
import math
from typing import Any

import jax
import numpy as np

from numpyro_sgmcmc.model.centering import LocationScale, centred_transform, form_of
from numpyro_sgmcmc.model.multivariate import Multivariate
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.types import Sites


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


def forms(potential: ModelPotential, z: Sites) -> dict[str, LocationScale | Multivariate]:
    """The forms of the sites that have one; the scales of non-centred ones are those of the values made of them."""
    trace, (z, _) = potential.trace(z, potential.some_rows(), None), potential.as_written(z)
    of_sites = {name: form for name in z if (form := form_of(trace[name]["fn"]))}
    if potential.non_centred:
        for name in potential.non_centred.scales:
            of_sites[name] = potential.non_centred.form(name, z).after(of_sites[name])
    return of_sites
