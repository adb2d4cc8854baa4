r"""
Partial centring of the latent sites of hierarchies (Papaspiliopoulos, Roberts & Sköld 2003).

Let a be a latent site of a location-scale family, a = m + s e, whose location m or scale s depends on other latents.
The variable that is sampled in its place is

.. math:: \tilde a = \lambda m + s^\lambda e, \qquad a = m + s^{1 - \lambda} (\tilde a - \lambda m), \qquad
    \log |\partial a / \partial \tilde a| = (1 - \lambda) \log s,

for each element with its own :math:`\lambda` between 0 and 1. As the model writes it, :math:`\lambda = 1` (centred); at
0 the site is independent of m and s before there are data (non-centred). If the site is a function of a, as for
``LogNormal``, the function follows.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    OrderedTransform,
    Transform,
    ZeroSumTransform,
)

from numpyro_sgmcmc.model.dataflow import dependence
from numpyro_sgmcmc.model.handlers import Transforms, given_transform
from numpyro_sgmcmc.model.multivariate import Multivariate
from numpyro_sgmcmc.model.random_walk import RandomWalk
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.types import Sites

FAMILIES = dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel
OF_VECTORS = OrderedTransform, ZeroSumTransform  # one-to-one from vectors without constraints


class LocationScale(NamedTuple):
    """A site as a function of a = loc + scale e."""

    loc: Any
    scale: Any
    standard: Distribution  # that of e
    transforms: tuple[Transform, ...] = ()  # from a to the value of the site, applied in order
    mask: Any = True  # which elements have a density

    def transform(self, share: jax.Array) -> Transform:
        """From the partially centred variable to the value of the site; ``share`` is lambda."""
        share = jnp.where(self.mask, share, 1)  # without a density, an element has no Jacobian either
        scale = self.scale ** (1 - share)
        affine = AffineTransform(self.loc * (1 - share * scale), scale)
        return ComposeTransform([affine, *self.transforms]) if self.transforms else affine

    def energy(self, x: jax.Array, share: jax.Array) -> jax.Array:
        """
        The energy of the partially centred variable, by element. The log density of the site plus the log determinant
        is the same number, but in float32 a - m has no correct digits where the scale is small.
        """
        e = (x - share * self.loc) / self.scale**share
        return jnp.where(self.mask, share * jnp.log(self.scale) - self.standard.log_prob(e), 0)

    def scaled(self, factor: jax.Array) -> "LocationScale":
        """The form of a times a positive factor for each element."""
        return self._replace(scale=factor * self.scale)

    def share_of(self, curvature: jax.Array) -> jax.Array:
        """The share of the data in the precision of e if they have this curvature along a."""
        precision = self.scale**2 * curvature
        return precision / (precision + 1)


Form: TypeAlias = LocationScale | Multivariate | RandomWalk


def form_of(fn: Distribution) -> Form | None:
    """The form of a distribution; None if it has none."""
    if type(fn) in FAMILIES:
        parameters = {name: getattr(fn, name) for name in fn.arg_constraints} | {"loc": 0.0, "scale": 1.0}
        return LocationScale(fn.loc, fn.scale, type(fn)(**parameters))  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(fn, dist.MultivariateNormal | dist.MultivariateStudentT):
        return Multivariate(fn.loc, fn.scale_tril)
    if isinstance(fn, dist.GaussianRandomWalk):
        return RandomWalk(jnp.asarray(fn.scale)[..., None])
    wrapped = dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution, dist.TransformedDistribution
    form = form_of(fn.base_dist) if isinstance(fn, wrapped) else None
    if form is None or isinstance(fn, (dist.ExpandedDistribution, dist.Independent)):
        return form
    if isinstance(fn, dist.MaskedDistribution):
        mask = jnp.reshape(fn._mask, jnp.shape(fn._mask) + (1,) * len(fn.event_shape))
        return form._replace(mask=form.mask & mask)
    if not isinstance(form, LocationScale):
        return None
    for transform in fn.transforms:  # pyright: ignore[reportAttributeAccessIssue]
        if (transform.domain.event_dim or transform.codomain.event_dim) and not isinstance(transform, OF_VECTORS):
            return None
        if isinstance(transform, AffineTransform) and not form.transforms:
            loc, scale = transform.loc + transform.scale * form.loc, jnp.abs(transform.scale) * form.scale
            sign = AffineTransform(0.0, jnp.sign(transform.scale))
            form = form._replace(loc=loc, scale=scale, standard=dist.TransformedDistribution(form.standard, sign))
        else:
            form = form._replace(transforms=(*form.transforms, transform))
    return form


def _shape_of(form: Form, value: Any) -> tuple[int, ...]:
    """The shape of a, given the value of the site."""
    transforms = form.transforms if isinstance(form, LocationScale) else ()
    return ComposeTransform([*transforms]).inverse_shape(jnp.shape(value))


def centred_transform(
    centering: Sites, transforms: Transforms | None, name: str, fn: Distribution, step: Any
) -> Transform | None:
    """From the partially centred variable to the value of a site; ``transforms`` are those of other sites."""
    form = form_of(fn) if name in centering else None
    if form is None:
        return given_transform(name, fn, transforms, step)
    return form.transform(centering[name] if step is None else centering[name][step])


def location_and_scale_parents(
    trace: Callable[[Sites], Mapping[str, Any]], structure: Structure, transforms: Transforms | None
) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """
    The latent sites of a location-scale family, and the latents on which location and scale depend.

    Left out are sites whose density is scaled, those with transforms of their own, and those that
    :class:`~numpyro.infer.reparam.LocScaleReparam` has replaced.

    :param trace: unconstrained values -> trace of the model.
    """

    def parameters(z):
        parameters_of, tr = {}, trace(z)
        for name in z:
            site, scale = tr[name], structure.sites[name].scale
            form = form_of(site["fn"])
            replaced = name.removesuffix("_decentered") in tr.keys() - {name}
            own = given_transform(name, site["fn"], transforms) is not None
            left_out = replaced or own or scale != 1
            if form is not None and not left_out and _shape_of(form, site["value"]) == z[name].shape:
                parameters_of[name] = jnp.asarray(form.loc), jnp.asarray(form.scale)
        return parameters_of

    return dependence(parameters, structure.prototype)


def checked_centering(centering: Any, settings: Any = None, gradient: Any = None) -> Any:
    """
    None, False or a dict by site. Raises a ValueError for anything else, or a centring beside the ``settings`` of
    another run, which have their own, or beside the centre of an estimator.
    """
    if settings is not None:
        if centering is not None:
            raise ValueError("settings= have a centring of their own. Leave centering= out.")
        return settings.centering or False
    if centering is None or centering is False:
        return centering
    if not isinstance(centering, Mapping):
        raise ValueError(
            f"centering={centering!r} must be None, False or a dict by site, for example centering={{'effect': 0.5}}."
        )
    for name, share in centering.items():
        values = np.asarray(share)
        if not np.issubdtype(values.dtype, np.number) or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"centering[{name!r}] must be between 0 (non-centred) and 1 (centred).")
    if centering and getattr(gradient, "center", None) is not None:
        raise ValueError(
            "the center of the gradient estimator is a position as the model is written, but centering= changes the "
            "variables. Leave one out."
        )
    return dict(centering)


def fitted(centering: Mapping[str, Any], sites: Mapping[str, Any], prototype: Mapping[str, Any]) -> Sites:
    """The given numbers as arrays like the sites. Raises a ValueError for sites without a centring, or other shapes."""
    for name, share in centering.items():
        if name not in prototype:
            raise ValueError(f"centering names {name!r}, which is no latent site; these are {sorted(prototype)}.")
        if name not in sites:
            raise ValueError(
                f"centering names {name!r}, but a site has a centring only if its distribution is Normal, StudentT, "
                "Cauchy, Laplace, Logistic, Gumbel or a function of one by element, ZeroSumNormal, MultivariateNormal, "
                "MultivariateStudentT or GaussianRandomWalk, and its location or scale depends on other latents, or if "
                "it is the z of mu + tau * z, mu + z @ L.T with a Cholesky factor L, or cumsum(tau * z). Leave it out; "
                f"{f'there are {sorted(sites)}' if sites else 'there is none'}."
            )
        if np.shape(share) not in ((), prototype[name].shape):
            raise ValueError(
                f"centering[{name!r}] has shape {np.shape(share)}, but the site has {prototype[name].shape}. Give a "
                "number or an array of this shape."
            )
    return {
        name: jnp.broadcast_to(jnp.asarray(share, prototype[name].dtype), prototype[name].shape)
        for name, share in centering.items()
    }
