r"""
The metrics of Patterson & Teh (2013) for :class:`~numpyro_sgmcmc.SGRLD`, with the coordinates that belong to them, see
:mod:`~numpyro_sgmcmc.model.simplex`: a site on the simplex has K unconstrained values, independent Gamma numbers under
the prior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from numpyro_sgmcmc.model.potential import ModelPotential
from numpyro_sgmcmc.model.simplex import Charts, supports_of_sites
from numpyro_sgmcmc.utils.validation import checked_rates


@dataclass(frozen=True)
class ExpandedMean:
    r"""
    The expanded mean: :math:`z = \pm\theta`, :math:`G^{-1} = |z|`, so that a step is

    .. math:: z' = z + h\,\mathrm{sgn}(z)\, (b - |z|) + \sqrt{2 h |z|}\, n, \qquad
        b = |z| - z\, \partial U / \partial z + 1,

    b for a prior Gamma(a, 1) and counts: a plus their estimate. It is the reflected step of Patterson & Teh. For such
    a b of mean mu, :math:`\mathrm{Var}\,\theta = (2 \mu + h \mathrm{Var}\, b) / (2 - h)` while theta stays away from
    0; near 0 it is far off, where :class:`~numpyro_sgmcmc.SCIR` has no error of the step. Sites that are neither
    positive nor on the simplex have a metric of 1.

    :param dict counts: n by site on the simplex, a number: the sum of its theta has the law Gamma(A + n), with A the
        sum of the Dirichlet's parameters. Any n leaves the law of pi; with the number of the data's counts the
        posterior of theta_k is Gamma(alpha_k + n_k), as in the law above, and steps of the order of 0.1 are stable.

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
    The natural coordinates: :math:`z = \log \theta`, :math:`G^{-1} = e^{-z}`: the same process as that of
    :class:`ExpandedMean`, with a step that is exact in no case and that explodes for small :math:`\theta`: for
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


def transforms_of(metric: Any) -> Any:
    """The transforms that a metric asks for; None: those of NumPyro."""
    return getattr(metric, "transforms", None)


def check_charts(potential: ModelPotential, what: str, way_out: str, all_of_them: bool) -> None:
    """
    :raises ValueError: names a site that is neither positive nor on the simplex, or says that there is no other.
    """
    supports = supports_of_sites(potential)
    other = [name for name, support in supports.items() if support == "other"]
    if len(other) == len(supports) or (all_of_them and other):
        raise ValueError(
            f"{what} is for sites that are positive or on the simplex, as with Gamma and Dirichlet priors; site "
            f"{other[0]!r} is neither. {way_out}"
        )
