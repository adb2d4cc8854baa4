r"""
Coordinates for sites on the half-line and on the simplex in which Gamma and Dirichlet distributions have the same form,
and the metrics of :class:`~numpyro_sgmcmc.SGRLD` in them (Patterson & Teh 2013).

A point of the simplex consists of K numbers on the half-line divided by their sum,

.. math:: \pi_k = \theta_k / s, \quad s = \sum_k \theta_k, \qquad
    p(\theta) = p(\pi)\, s^{1 - K}\, \mathrm{Gamma}(s; A, 1),

The distribution of the sum can be chosen, because it does not affect that of :math:`\pi`. With
:math:`A = \sum_k \alpha_k` the prior Dirichlet(:math:`\alpha`) is that of independent
:math:`\theta_k \sim \mathrm{Gamma}(\alpha_k, 1)`. A site with the prior Gamma(a, b) is :math:`\theta / b`.

The unconstrained values are :math:`\log \theta` ("natural") or :math:`\pm\theta` ("mean", both signs equally likely).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.scipy.special import gammaln
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from numpyro_sgmcmc.model.handlers import elementwise, given_transform
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.utils.validation import checked_rates


@jax.custom_jvp
def inside(value: jax.Array) -> jax.Array:
    """The value, at least the smallest positive number, which sparse priors often undercut; its derivative is 1."""
    return jnp.maximum(value, jnp.finfo(value.dtype).tiny)


@jax.custom_jvp
def exponential(x: jax.Array) -> jax.Array:
    """exp(x), at least the smallest positive number; its derivative is always its value."""
    return jnp.maximum(jnp.exp(x), jnp.finfo(x.dtype).tiny)


@jax.custom_jvp
def shares(x: jax.Array) -> jax.Array:
    """exp(x) divided by its sum. Its derivative ignores the sum: it is that of exp(x) at a sum of 1."""
    return exponential(jax.nn.log_softmax(x))


inside.defjvps(lambda tangent, value, x: tangent)
exponential.defjvps(lambda tangent, value, x: value * tangent)
shares.defjvps(lambda tangent, value, x: value * tangent)


class HalfLine(Transform):
    """
    Unconstrained values -> positive ones.

    :param scale: unit of theta, in units of the site.
    :param bool log: whether the unconstrained values are log theta; otherwise they are theta with any sign.
    """

    domain: Any = constraints.real
    codomain: Any = constraints.positive

    def __init__(self, scale: Any, log: bool):
        self.scale, self.log = scale, log

    def __call__(self, x):
        return self.scale * (exponential(x) if self.log else inside(jnp.abs(x)))

    def _inverse(self, y):
        return jnp.log(y / self.scale) if self.log else y / self.scale

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.log(self.scale) + (x if self.log else jnp.zeros_like(x))

    def tree_flatten(self):
        return (self.scale,), (("scale",), {"log": self.log})


class Expanded(Transform):
    """
    K unconstrained values -> a point of the simplex.

    :param total: A, shape ``batch_shape``.
    :param bool log: as for :class:`HalfLine`.
    :param bool raw: leave the sum out of derivatives. If the likelihood is homogeneous of degree n in pi, these are the
        derivatives with A + n instead of A, for any n.
    """

    domain: Any = constraints.real_vector
    codomain: Any = constraints.simplex

    def __init__(self, total: Any, log: bool, raw: bool):
        self.total, self.log, self.raw = total, log, raw

    def _log_sum(self, x):
        return jax.nn.logsumexp(x, -1) if self.log else jnp.log(inside(jnp.abs(x).sum(-1)))

    def __call__(self, x):
        if not self.log:
            return inside(inside(jnp.abs(x)) / jnp.exp(self._log_sum(x)[..., None]))
        return shares(x) if self.raw else exponential(jax.nn.log_softmax(x))

    def _inverse(self, y):
        theta = jnp.asarray(self.total)[..., None] * y
        return jnp.log(theta) if self.log else theta

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        log_sum = self._log_sum(x)
        power = (self.total - x.shape[-1]) * log_sum
        power = lax.stop_gradient(power) if self.raw else power
        power = power - gammaln(jnp.asarray(self.total, x.dtype))
        return power - jnp.exp(log_sum) + (x.sum(-1) if self.log else 0.0)

    def tree_flatten(self):
        return (self.total,), (("total",), {"log": self.log, "raw": self.raw})


@dataclass(frozen=True)
class Charts:
    """The transforms of a model's sites on the half-line and on the simplex, as functions of their distributions."""

    log: bool
    raw: bool = False
    counts: Mapping[str, Any] = field(default_factory=dict)  # site -> number that is added to the A of its prior

    def __call__(self, name: str, fn: dist.Distribution, step: Any) -> Transform | None:
        """The transform of a site; None if it is on neither."""
        own: Any = _bare(fn)
        support = elementwise(fn.support)
        if support is constraints.simplex:
            total = jnp.full(fn.batch_shape, float(fn.event_shape[-1]))
            if isinstance(own, dist.Dirichlet):
                total = jnp.asarray(own.concentration).sum(-1)
            return Expanded(total + self.counts.get(name, 0.0), self.log, self.raw)
        if support is constraints.positive or support is constraints.nonnegative:
            has_rate = isinstance(own, (dist.Gamma, dist.Exponential))
            return HalfLine(1 / jnp.asarray(own.rate) if has_rate else 1.0, self.log)
        return None


def supports_of_sites(potential: Any) -> dict[str, str]:
    """Name of each latent site -> ``"simplex"``, ``"half-line"`` or ``"other"``, from the charts of the potential."""
    supports: dict[str, str] = {}
    kinds = {Expanded: "simplex", HalfLine: "half-line"}

    def trace(z):
        for name, site in potential.trace(z, potential.some_rows(), None).items():
            if name in potential.prototype:
                supports[name] = kinds.get(type(given_transform(name, site["fn"], potential.transforms)), "other")
        return ()

    jax.eval_shape(trace, potential.prototype)
    return supports


def _bare(fn: Any) -> Any:
    while isinstance(fn, (dist.ExpandedDistribution, dist.Independent)):
        fn = fn.base_dist
    return fn


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
