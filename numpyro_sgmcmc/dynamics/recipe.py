r"""
The complete recipe (Ma, Chen & Fox 2015, theorem 1): with x = (z, momentum p, auxiliary variables a),

.. math:: dx = \left[ -(D(x) + Q(x)) \nabla H(x) + \Gamma(x) \right] dt + \sqrt{2 D(x)}\, dW, \qquad
    \Gamma_i(x) = \sum_j \frac{\partial}{\partial x_j} (D_{ij}(x) + Q_{ij}(x)),

leaves :math:`\exp(-H(x))`, :math:`H = U(z) + K(x)`, invariant, for any D that is symmetric and positive semi-definite
and any Q that is skew. (The slides of Liu (2016) differentiate by x_i in one place; x_j is right, and the tests show
it.)

Euler steps of all variables at once, or of one part after the other, each with the current values of the others:

===== ========================= ===================================================================
``E`` all variables              x += h f(x) + sqrt(2 D(x) h - B(x) h^2) n
``A`` position                   the rows of z alone
``P`` momentum                   the rows of p alone
``X`` auxiliary variables        their rows alone
===== ========================= ===================================================================

where f is the drift, with the minibatch gradient g in place of the gradient of U. Any word with all parts is of
order 1. ``"euler"`` is ``E`` if z is the only variable, ``PA`` with a momentum, ``XA`` with auxiliary variables and
``APX`` with both: with D and Q of SGLD, SGHMC and SGNHT these are the steps of those kernels. The letters of a
step share one draw of n, so that blocks of D between the parts are right too.

If the noise of g has covariance V, it adds h^2 B, where :math:`B = A_z V A_z^T` and A_z are the columns of D + Q that
multiply g. If V is known, h^2 B is subtracted from the injected noise. This is right to first order, and possible as
long as 2 D h - B h^2 is positive semi-definite.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partialmethod
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.dynamics.divergence import divergence
from numpyro_sgmcmc.dynamics.matrices import Layout, Matrix
from numpyro_sgmcmc.dynamics.matrix_checks import check_matrix, check_noise
from numpyro_sgmcmc.types import Dynamics, Flow, Phase, Potential
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.validation import checked_choice


def _flow(name: str, **options: Any) -> Flow:
    return Flow(name, needs_gradient=True, needs_noise=True, shares_noise=True, **options)


PARTS = {"A": _flow("position", moves=True), "P": _flow("momentum"), "X": _flow("auxiliary variables")}


@dataclass(frozen=True, eq=False)
class Recipe(Dynamics):
    """
    The dynamics defined by D and Q, see :mod:`~numpyro_sgmcmc.dynamics.recipe`.

    D and Q are functions of the phase. Its ``z`` is a dict of unconstrained values by site, ``momentum`` has the same
    form, and ``auxiliary`` has the form of the ``auxiliary`` given here. D and Q return a matrix over all variables,
    raveled to n numbers (``jax.flatten_util.ravel_pytree`` of z, then momentum, then auxiliary):

    - a scalar: times the identity;
    - a diagonal, shape ``(n,)``, or a matrix, shape ``(n, n)``;
    - a dict of blocks, each in one of these forms: ``{name: block}``, or ``{(row, column): block}``, whose mirror
      image is filled in. The names are those of sites and of auxiliary variables, ``"z"``, ``"momentum"`` and
      ``"auxiliary"``. All other blocks are 0;
    - a :class:`~numpyro_sgmcmc.dynamics.matrices.LinearMap`, given by its products.

    :param D: function of the phase, or a constant; None: 0.
    :param Q: function of the phase, or a constant; None: 0.
    :param kinetic: K, the energy of the momentum and of auxiliary variables: a function of the phase, or the inverse
        mass of the momentum, a number. None: no momentum. A chain starts with a momentum from N(0, M), where M = 1 if
        ``kinetic`` is a function.
    :param auxiliary: initial values of the auxiliary variables, any pytree of arrays; a dict if blocks name them.
    :param bool momentum: False: there is no momentum, and ``kinetic`` is the energy of the auxiliary variables alone.
    :param exact: how the divergence of D + Q is computed. True: exactly, by n JVPs; False: without bias, by one JVP
        with random signs; None: exactly up to 16 variables. It is always exact for scalars, constants, and diagonals
        whose entries depend on their own coordinate only.
    :param gradient_noise: V, the variance of the gradient, which is subtracted from the injected noise: a scalar, a
        dict of diagonals like ``z``, a function of the phase that returns one, or ``"measured"``: estimated from 300
        minibatches at the start of the chain. None: nothing is subtracted.
    :raises ValueError: at the start of a chain, if D is not symmetric or not positive semi-definite, Q is not skew, a
        shape does not fit, or more noise is to be subtracted than is injected. Later such a step is refused and the
        draw is ``diverging``.

    **References:**

    1. *A Complete Recipe for Stochastic Gradient MCMC*, Y.-A. Ma, T. Chen, E. B. Fox (2015), equations 3 to 5 and 9

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import jax.numpy as jnp
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGMCMC, Recipe
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> farther = lambda phase: 1 + (phase.z["mu"] - 3) ** 2  # moves more where the density is small
        >>> kernel = SGMCMC(model, Recipe(D=farther), "euler", step_size=1e-4, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    D: Any = None
    Q: Any = None
    kinetic: Any = None
    auxiliary: Any = ()
    momentum: bool = True
    exact: bool | None = None
    gradient_noise: Any = None

    def __post_init__(self):
        if self.D is None and self.Q is None:
            raise ValueError("Recipe() moves nothing: give D=, Q= or both, functions of the phase.")
        if self.kinetic is None and jax.tree.leaves(self.auxiliary):
            raise ValueError("auxiliary= is given and kinetic= is not: give the energy of the auxiliary variables.")
        if not (self.kinetic is None or callable(self.kinetic)) and not _positive(self.kinetic):
            raise ValueError(
                f"kinetic={self.kinetic!r} must be the inverse mass, a positive number, or a function of the phase "
                "that returns an energy."
            )
        if not (self.kinetic is None or callable(self.kinetic)) and jax.tree.leaves(self.auxiliary):
            raise ValueError("auxiliary= needs a kinetic= that is a function of the phase: the energy of both.")
        checked_choice("exact", self.exact, (True, False, None))
        if self.D is None and self.gradient_noise is not None:
            raise ValueError(
                "gradient_noise= is subtracted from the injected noise, but without D= no noise is injected. Give D=, "
                "or leave gradient_noise= out."
            )
        if isinstance(self.gradient_noise, str) and self.gradient_noise != "measured":
            raise ValueError(f"gradient_noise={self.gradient_noise!r} must be the variance itself, or 'measured'.")

    # -- variables, flows and integrators -------------------------------------------------------------------------

    @property
    def _parts(self) -> str:
        """The letters of the parts."""
        return "A" + "P" * self._has_momentum + "X" * bool(jax.tree.leaves(self.auxiliary))

    @property
    def _has_momentum(self) -> bool:
        return self.kinetic is not None and self.momentum

    @property
    def flows(self) -> Mapping[str, Flow]:
        parts = self._parts if self._parts != "A" else ""
        flows = {"E": _flow("Euler step of all variables", moves=True, contains=parts)}
        flows |= {letter: PARTS[letter] for letter in parts}
        measured = isinstance(self.gradient_noise, str)
        return {letter: flow._replace(needs_variance=measured) for letter, flow in flows.items()}

    @property
    def integrators(self) -> Mapping[str, str]:
        return {"euler": {"A": "E", "AP": "PA", "AX": "XA", "APX": "APX"}[self._parts]}

    def largest_step(self, curvature: Any) -> Any:
        return math.nan  # the warm-up cannot choose one

    def init(self, z: Any, noise: Any) -> Phase:
        momentum = ()
        if self._has_momentum:
            mass = 1.0 if callable(self.kinetic) else self.kinetic
            momentum = jax.tree.map(lambda n: n / jnp.sqrt(jnp.asarray(mass, n.dtype)), noise)
        dtype = jnp.result_type(*jax.tree.leaves(z))
        return Phase(z, momentum, (), jax.tree.map(lambda a: jnp.asarray(a, dtype), self.auxiliary))

    def bind(self, potential: Potential) -> "Recipe":
        """Turns metrics that depend on the model into functions of the phase, see :class:`~.metrics.OfPosition`."""
        own = {name: getattr(self, name) for name in ("D", "Q", "gradient_noise")}
        bound = {name: part.bind(potential) for name, part in own.items() if hasattr(part, "bind")}
        return replace(self, **bound) if bound else self

    def noise_like(self, phase: Phase) -> Any:
        # the momentum comes first: so its noise is that of SGHMC with the same key
        return phase.z if self._parts == "A" else (phase.momentum, phase.z, phase.auxiliary)

    def temperature(self, phase: Phase) -> Any:
        """The mean of p dK/dp over the coordinates."""
        if not self._has_momentum:
            return ()
        heat = jax.tree.map(jnp.multiply, phase.momentum, self._slope(phase).momentum)
        return trees.total(heat) / trees.size(heat)

    def inflation(self, phase: Phase, h: jax.Array, variance: Any) -> Any:
        """Not known in general."""
        return jax.tree.map(lambda s2: jnp.full_like(s2, jnp.nan), variance)

    # -- the step -------------------------------------------------------------------------------------------------

    def _moved(self, phase: Phase, h: jax.Array, gradient: Any, noise: Any, *, parts: tuple[str, ...]) -> Phase:
        layout = Layout(phase)
        n = layout.ravel(Phase(noise) if self._parts == "A" else Phase(noise[1], noise[0], (), noise[2]))
        x, h = layout.ravel(phase), jnp.asarray(h, n.dtype)
        signs = jnp.where(n < 0, -1, 1).astype(n.dtype)
        drift = self.drift(phase, gradient, signs)
        step = h * layout.ravel(drift)
        if self.D is not None:
            step = step + self._covariance(phase, layout, h).factor(n)
        moved = layout.unravel(x + step, phase)
        return phase._replace(**{part: getattr(moved, part) for part in parts})

    E = partialmethod(_moved, parts=Phase._fields)
    A = partialmethod(_moved, parts=("z",))
    P = partialmethod(_moved, parts=("momentum",))
    X = partialmethod(_moved, parts=("auxiliary",))

    def drift(self, phase: Phase, gradient: Any, signs: jax.Array) -> Phase:
        """
        f = -(D + Q) grad H + Gamma, as a phase.

        :param gradient: of U, like ``z``.
        :param signs: random signs for the estimate of the divergence, shape ``(n,)``.
        """
        layout = Layout(phase)
        slope = layout.ravel(Phase(gradient))
        if self.kinetic is not None:
            slope = layout.ravel(self._slope(phase)).at[layout.z].add(slope)
        x, drift = layout.ravel(phase), jnp.zeros_like(slope)
        for what in self._given:
            product = self._matrix(what, phase, layout).times(slope)
            if what == "Q":
                heat, size = slope @ product, jnp.linalg.norm(slope) * jnp.linalg.norm(product)
                not_skew = jnp.abs(heat) > float(jnp.finfo(x.dtype).eps) ** 0.5 * size
                product = jnp.where(not_skew, jnp.nan, product)
            drift = drift - product
            if callable(getattr(self, what)):
                matrix_at = lambda x, what=what: self._matrix(what, layout.unravel(x, phase), layout)  # noqa: E731
                drift = drift + divergence(matrix_at, x, signs, self.exact)
        return layout.unravel(drift, phase)

    @property
    def _given(self) -> list[str]:
        return [what for what in ("D", "Q") if getattr(self, what) is not None]

    def _matrix(self, what: str, phase: Phase, layout: Layout) -> Matrix:
        """D or Q; 0 if it is not given."""
        given = {} if what not in self._given else getattr(self, what)
        value = given(phase) if callable(given) else given
        matrix = Matrix(what, value, layout, sign=1 if what == "D" else -1)
        if what == "D" and matrix.map is not None and matrix.map.factor is None:
            raise ValueError("D is a LinearMap without a factor=. Its noise needs one: v -> F v with F F' = D.")
        return matrix

    def _slope(self, phase: Phase) -> Phase:
        """The gradient of K."""
        if callable(self.kinetic):
            return jax.grad(lambda phase: jnp.asarray(self.kinetic(phase)).reshape(()))(phase)
        momentum = jax.tree.map(lambda p: self.kinetic * p, phase.momentum)
        return jax.tree.map(jnp.zeros_like, phase)._replace(momentum=momentum)

    def _covariance(self, phase: Phase, layout: Layout, h: jax.Array) -> Matrix:
        """2 D h - B h^2."""
        D = self._matrix("D", phase, layout)
        if self.gradient_noise is None:
            return D.scaled(2 * h)
        V = self.gradient_noise if isinstance(phase.noise_variance, tuple) else phase.noise_variance
        V = V(phase) if callable(V) else V
        V = jax.tree.map(lambda v, z: jnp.broadcast_to(v, z.shape), trees.like(V, phase.z), phase.z)
        return D.less_noise(self._matrix("Q", phase, layout), layout.ravel(Phase(V)), h)

    # -- the check of a start -------------------------------------------------------------------------------------

    def report(self, phase: Phase, h: jax.Array) -> Any:
        layout = Layout(phase)
        report = {what: self._matrix(what, phase, layout).shown() for what in self._given}
        if self.gradient_noise is not None:
            report["noise"] = self._covariance(phase, layout, h).shown()
        return report

    def check(self, report: Any, phase: Phase) -> None:
        layout = Layout(phase)
        for what in self._given:
            check_matrix(what, np.asarray(report[what], float), layout)
        if self.gradient_noise is not None:
            check_noise(np.asarray(report["noise"], float), layout)


def _positive(value: Any) -> bool:
    try:
        return bool(np.isfinite(value) and value > 0)
    except (TypeError, ValueError):
        return False
