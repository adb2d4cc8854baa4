r"""
The metrics of Patterson & Teh (2013) for :class:`~numpyro_sgmcmc.SGRLD`, with their coordinates, see
:mod:`~numpyro_sgmcmc.contrib.simplex`: a site on the simplex has K unconstrained values, which are independent Gamma
numbers under the prior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from numpyro_sgmcmc.contrib.simplex import Charts, supports_of_sites
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.utils.validation import checked_rates


@dataclass(frozen=True)
class ExpandedMean:
    r"""
    The expanded mean: :math:`z = \pm\theta`, :math:`G^{-1} = |z|`, so that a step is

    .. math:: z' = z + h\,\mathrm{sgn}(z)\, (b - |z|) + \sqrt{2 h |z|}\, n, \qquad
        b = |z| - z\, \partial U / \partial z + 1,

    where b, for a prior Gamma(a, 1) and counts, is a plus the estimate of the counts. It is the reflected step of
    Patterson & Teh. For such a b with mean :math:`\mu`,
    :math:`\mathrm{Var}\,\theta = (2 \mu + h \mathrm{Var}\, b) / (2 - h)` while :math:`\theta` is not close to 0. Near 0
    the error is large; :class:`~numpyro_sgmcmc.SCIR` has no discretisation error there. Sites that are neither
    positive nor on the simplex have a metric of 1.

    :param dict counts: n by site on the simplex, a number: the sum of its :math:`\theta` has the distribution
        Gamma(A + n), where A is the sum of the Dirichlet's parameters. The distribution of :math:`\pi` does not depend
        on n. If n is the number of counts in the data, the posterior of :math:`\theta_k` is
        Gamma(:math:`\alpha_k + n_k`), as above, and steps of the order of 0.1 are stable.

    **References:** *Stochastic Gradient Riemannian Langevin Dynamics on the Probability Simplex*, S. Patterson, Y. W.
    Teh (2013), section 3, table 1
    """

    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def transforms(self) -> Charts:
        """The coordinates of this metric."""
        return Charts(False, counts=checked_rates("counts", self.counts))

    def bind(self, potential: ModelPotential) -> Callable[[Any], Any]:
        """z -> the diagonal of G^-1, a dict like z."""
        # |z|, whose derivative at 0 is 1
        return _by_site(potential, lambda z: jnp.where(z < 0, -z, z))


@dataclass(frozen=True)
class Natural:
    r"""
    The natural coordinates, :math:`z = \log \theta`, :math:`G^{-1} = e^{-z}`. The process is the same as that of
    :class:`ExpandedMean`, but its step is never exact and diverges for small :math:`\theta`. It is here for
    comparisons. Sites that are neither positive nor on the simplex have a metric of 1.

    :param dict counts: as for :class:`ExpandedMean`.

    **References:** as for :class:`ExpandedMean`, table 1, "expanded natural"
    """

    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def transforms(self) -> Charts:
        """The coordinates of this metric."""
        return Charts(True, counts=checked_rates("counts", self.counts))

    def bind(self, potential: ModelPotential) -> Callable[[Any], Any]:
        """z -> the diagonal of G^-1, a dict like z."""
        return _by_site(potential, lambda z: jnp.exp(-z))


def _by_site(potential, metric):
    supports = supports_of_sites(potential)
    return lambda z: {name: metric(x) if supports[name] != "other" else jnp.ones_like(x) for name, x in z.items()}
