r"""
Chooses the centring of hierarchies (:mod:`~numpyro_sgmcmc.model.centering`): the share of the data in the precision of
each element,

.. math:: \lambda_j = \frac{k_j}{k_j + s_j^{-2}}, \qquad
    k_j = \frac{\partial^2}{\partial a_j^2} (U + \log p(a_j \mid m_j, s_j)),

where k is the curvature of everything but the element's own prior, estimated from products of the Hessian with random
signs. For normal models it makes the element nearly independent of m and s (Papaspiliopoulos, Roberts & Sköld 2007).
For a vector a = m + R e (:mod:`~numpyro_sgmcmc.model.multivariate`) it is 1 minus the variance of :math:`e_i`,
:math:`1 - [(1 + R^T K R)^{-1}]_{ii}` with the diagonal matrix K of these curvatures.

In the centred form the width of an element is :math:`(k_j + s_j^{-2})^{-1/2}`. If log s changes by its standard
deviation, for which the elements alone give :math:`\sigma = (1 + 2 \sum_j \lambda_j^2)^{-1/2}`, this width changes by
a relative :math:`(1 - \lambda_j) \sigma`. If the elements are known, log s has the standard deviation
:math:`\sigma_a = (1 + 2 J)^{-1/2}` for J elements, so a chain moves along log s by steps that are too short by a factor
of :math:`\sigma / \sigma_a`. Where both are small, little would be gained, but m and s would get the noise of the rows:
the elements stay centred. The sums are over the elements that have the same scale.

A site that the model has non-centred stays so if its elements have different scales, as the weights of a Gaussian
process in a basis do: such scales can change by orders of magnitude, and nothing near a single position shows it.
"""

from functools import partial

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.full_pass import over_all_rows
from numpyro_sgmcmc.model.multivariate import Multivariate
from numpyro_sgmcmc.potential.centred import centred_potential, forms, sites_to_centre
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.tuning.start import mean_field, passes_of
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.curvature import gradient_and_product

ROUNDS = 3
PROBES = 4  # random signs, which separate the elements that share rows
SHARING = 4  # elements that share a scale, on average, at least
BENT, SLOWED = 0.05, 2.0  # a relative change of widths, and a factor, below which a site stays centred


def shares_of_data(potential: ModelPotential, z: Sites, rng_key: jax.Array) -> Sites:
    """The centring of each element of the hierarchical sites, 1 for sites that stay centred; z is in the bulk."""
    sites = sites_to_centre(potential)
    written = centred_potential(potential, jax.tree.map(jnp.ones_like, sites))
    a = potential.in_variables_of(written, z)
    key_signs, key_model = random.split(rng_key)

    def curvatures(energy):
        """
        Estimates of the diagonal of the Hessian of ``energy(k, z)`` in the k-th site, from vectors of random signs, by
        site: shape ``(PROBES, ...)``.
        """

        def diagonal(k, key):
            slope = jax.grad(lambda x: energy(k, {**a, **x}))
            signs = {
                name: (j == k) * random.rademacher(key, site.shape, site.dtype)
                for j, (name, site) in enumerate(sites.items())
            }
            product = gradient_and_product(slope, {name: a[name] for name in sites}, signs)[1]
            return jax.tree.map(jnp.multiply, signs, product)

        # in a loop, so that the product is compiled once, however many sites there are
        keys = random.split(key_signs, PROBES)
        of_site = lambda k: jax.vmap(partial(diagonal, k))(keys)  # noqa: E731
        return jax.tree.map(lambda x: x.sum(0), lax.map(of_site, jnp.arange(len(sites))))

    def of_all(potential, a, rows, key):
        del a
        return curvatures(lambda _, z: potential.estimate(z, rows, key))

    def prior(k, z):
        energies = written.by_site(z, written.some_rows())
        return sum((j == k) * energies[name] for j, name in enumerate(sites))

    own = curvatures(prior)
    total = over_all_rows(written, of_all, a, key_model, total=own)
    form_of_site, shares = forms(written, a), {}
    for name in sites:
        form = form_of_site[name]
        share = form.share_of(_curvature(total[name] - own[name]))
        share = jnp.where(jnp.isfinite(share), share, 1)
        group = _groups_by_scale(jnp.ones(()) if isinstance(form, Multivariate) else form.scale, share)
        over_elements = lambda x, own=group: jax.ops.segment_sum(x.ravel(), own, x.size)[own]  # noqa: E731
        elements, squares, rest = map(over_elements, (jnp.ones_like(share), share**2, 1 - share))
        width = 1 / jnp.sqrt(1 + 2 * squares)
        slowed = width * jnp.sqrt(1 + 2 * elements)
        gains = (rest / elements * width > BENT) | (slowed > SLOWED)
        shares[name] = jnp.where(gains.reshape(share.shape), share, 1)
        if written.non_centred and name in written.non_centred.scales:
            # several elements have the same scale, as those of groups do, and the weights of a spectrum do not
            are_shared = 1 + group.max() <= max(1, share.size / SHARING)
            fits = form.is_triangular if isinstance(form, Multivariate) else are_shared
            shares[name] = jnp.where(fits, shares[name], 0)
    return shares


def _curvature(probes: jax.Array) -> jax.Array:
    """
    The curvature of each element from its estimates. Where the elements are coupled so closely that even the sign of
    the mean is uncertain, the norm of the row of the Hessian, which is at least as large: data that couple elements
    say much about them.
    """
    mean, deviation = probes.mean(0), probes.std(0)
    return jnp.where(mean > deviation, mean, jnp.hypot(mean, deviation))


def _groups_by_scale(scales: jax.Array, share: jax.Array) -> jax.Array:
    """The number of the group of each element, where a group has one scale; groups are counted from 0."""
    scales = jnp.broadcast_to(scales, share.shape).ravel()
    order = jnp.argsort(scales)
    new = jnp.diff(scales[order], prepend=scales[order][:1]) > 1e-5 * scales[order]
    return jnp.zeros(scales.shape, jnp.int32).at[order].set(jnp.cumsum(new))


def chosen_centering(potential: ModelPotential, z: Sites, rng_key: jax.Array, contiguous: bool) -> Sites:
    """
    The centring that is chosen at the start of a chain. In each round but the first the descent is in the variables
    that the one before has chosen, because a mean-field normal finds better scales of variables that are nearly
    independent.
    """
    as_written = jax.tree.map(jnp.ones_like, sites_to_centre(potential))
    keys = random.split(rng_key, ROUNDS)

    def choose(k, chosen):
        z, centering = chosen
        key_rows, key_noise, key = random.split(keys[k], 3)
        new = centred_potential(potential, centering)
        end, _ = mean_field(new, potential.in_variables_of(new, z), key_rows, key_noise, contiguous)
        z = new.in_variables_of(potential, end)
        return z, shares_of_data(potential, z, key)

    return lax.fori_loop(0, ROUNDS, choose, (z, as_written))[1]


def passes_of_centering(potential: ModelPotential, sites: int) -> float:
    """Rows used by the choice for this number of sites, in passes over the data."""
    return ROUNDS * (passes_of(potential) + 3 * PROBES * sites)
