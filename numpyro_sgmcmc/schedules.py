r"""
Step sizes: step index -> h. Any callable can be used, such as an optax schedule; those defined here can be pickled.

Convention (Chen, Ding & Carin 2015): :math:`z' = z - h \nabla U + \sqrt{2h}\, n`. Papers that follow Welling &
Teh (2011), such as Dubey et al. (2016), write h/2 for our h.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
import math
import numbers
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.types import Schedule
from numpyro_sgmcmc.utils.validation import check_positive, checked_choice

__all__ = ["Constant", "Cyclical", "Piecewise", "Polynomial"]


@dataclass(frozen=True)
class Constant:
    """
    The same step size at every step. A float given as ``step_size`` is converted to this.

    :param float value: h > 0.
    :raises ValueError: if it is not positive and finite.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Constant
        >>> Constant(0.01)(1000)
        0.01
    """

    value: float

    def __post_init__(self):
        check_positive(self, value=self.value)

    def __call__(self, i: Any) -> Any:
        del i
        return self.value


@dataclass(frozen=True)
class Polynomial:
    r"""
    Decreasing steps :math:`h_i = a (b + i)^{-\gamma}` (Welling & Teh 2011; Chen et al. 2015, section 3.3).

    :param float a: scale, > 0. None: after the warm-up, the steps decrease from the step size that it chose.
    :param float b: offset, > 0.
    :param float gamma: rate, > 0. Weight the draws by their step size.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Polynomial
        >>> h = Polynomial(a=0.1, b=1.0, gamma=0.5)
        >>> round(float(h(99)), 6)
        0.01
    """

    a: float | None
    b: float
    gamma: float

    def __post_init__(self):
        check_positive(self, **({} if self.a is None else {"a": self.a}), b=self.b, gamma=self.gamma)

    @property
    def relative(self) -> bool:
        """Whether the steps are relative to the step size that the warm-up chooses."""
        return self.a is None

    @classmethod
    def optimal(cls, order: int, for_: Literal["bias", "mse"], *, a: float | None, b: float = 1.0) -> "Polynomial":
        r"""
        The optimal exponent (Chen et al. 2015, remark 7): :math:`\gamma = 1/(K+1)` for the bias, which then
        decreases as :math:`L^{-K/(K+1)}` in the number of steps L, up to a factor log L; :math:`\gamma = 1/(2K+1)` for
        the mean squared error, which decreases as :math:`L^{-2K/(2K+1)}`. (Remark 10: 1/3 and 1/5 for SGHMC by
        splitting, 1/2 and 1/3 for SGLD.) With independent minibatches of constant size every integrator has K = 1.

        :param int order: K, order of the integrator: 1 for ``euler``, 2 for ``ssi`` and symmetric words.
        :param str for_: ``"bias"`` or ``"mse"``.
        :param float a: scale.
        :param float b: offset.

        **Example**

        .. doctest::

            >>> from numpyro_sgmcmc import Polynomial
            >>> Polynomial.optimal(2, for_="mse", a=0.1).gamma
            0.2
        """
        if isinstance(order, bool) or not isinstance(order, int) or order < 1:
            raise ValueError(f"Polynomial.optimal(order={order!r}): the order must be an integer, 1 or more.")
        checked_choice("Polynomial.optimal(for_)", for_, ("bias", "mse"))
        return cls(a, b, 1 / (order + 1 if for_ == "bias" else 2 * order + 1))

    def __call__(self, i: Any) -> Any:
        if self.a is None:
            return (1 + i / self.b) ** (-self.gamma)
        return self.a * (self.b + i) ** (-self.gamma)


@dataclass(frozen=True)
class Piecewise:
    """
    Constant phases: ``values[k]`` from step ``boundaries[k-1]`` on (Dubey et al. 2016 use two; Li et al. 2016
    halve once).

    :param tuple boundaries: increasing step indices at which the step size changes.
    :param tuple values: one more step size than boundaries, each > 0.

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Piecewise
        >>> h = Piecewise(boundaries=(1000,), values=(1e-2, 5e-3))
        >>> float(h(999)) > float(h(1000))
        True
    """

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self):
        if not (isinstance(self.boundaries, Iterable) and isinstance(self.values, Iterable)):
            raise TypeError(
                "Piecewise: give a sequence of boundaries and one of values, as in Piecewise((1000,), (1e-2, 5e-3))."
            )
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        object.__setattr__(self, "values", tuple(self.values))
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"Piecewise: {len(self.boundaries)} boundaries need {len(self.boundaries) + 1} values, "
                f"got {len(self.values)}."
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"Piecewise(boundaries={self.boundaries}): the boundaries must increase.")
        if not all(0 < b <= LAST and b == int(b) for b in self.boundaries):
            raise ValueError(f"Piecewise(boundaries={self.boundaries}): boundaries are steps, from 1 to 2**31 - 1.")
        for value in self.values:
            check_positive(self, values=value)

    def __call__(self, i: Any) -> Any:
        phase = sum((i >= jnp.asarray(b)).astype(jnp.int32) for b in self.boundaries)
        return jnp.asarray(self.values)[phase]


@dataclass(frozen=True)
class Cyclical:
    r"""
    Cosine cycles :math:`h_i = \frac{a}{2}\left(\cos\frac{\pi\,(i \bmod c)}{c} + 1\right)`, never below
    ``minimum`` (Zhang et al. 2020, equation 1).

    During the first part of each cycle, ``exploration``, the dynamics has no noise: large steps of gradient descent
    find another mode, and the small steps that follow sample it (algorithm 1 there). The draws of the first part are
    not from the posterior; use :meth:`cycle_of` to leave them out, as :func:`~numpyro_sgmcmc.weights` does. Each cycle
    gives the same number of draws, so modes are not visited in proportion to their weight.

    :param float a: largest step size, at the start of each cycle.
    :param int cycle: steps in a cycle, c.
    :param float minimum: lower bound of the step size, a thousandth of ``a`` by default; a step of size 0 would not
        move.
    :param float exploration: share of a cycle without noise, :math:`\beta` in [0, 1).
    :raises ValueError: if one of them is not positive and finite, ``cycle`` is not an integer below 2**31, or
        ``exploration`` is not in [0, 1).

    **Example**

    .. doctest::

        >>> from numpyro_sgmcmc import Cyclical
        >>> h = Cyclical(a=0.1, cycle=1000, exploration=0.8)
        >>> [round(float(h(i)), 6) for i in (0, 500, 999, 1000)]
        [0.1, 0.05, 0.0001, 0.1]
        >>> h.cycle_of([700, 801, 1000, 1001, 1900])  # after so many steps: the field "i" of the draws
        array([-1,  0,  0, -1,  1])
    """

    a: float
    cycle: int
    minimum: float | None = None
    exploration: float = 0.0

    def __post_init__(self):
        check_positive(self, a=self.a, cycle=self.cycle)
        if self.minimum is None:
            object.__setattr__(self, "minimum", 1e-3 * self.a)
        check_positive(self, minimum=self.minimum)
        if self.cycle != int(self.cycle) or self.cycle > LAST:
            raise ValueError(
                f"Cyclical(cycle={self.cycle!r}): the cycle must be an integer number of steps, below 2**31."
            )
        share = self.exploration
        if isinstance(share, bool) or not isinstance(share, numbers.Real) or not 0 <= share < 1:
            raise ValueError(f"Cyclical(exploration={share!r}): the share of a cycle without noise must be in [0, 1).")
        object.__setattr__(self, "cycle", int(self.cycle))

    @property
    def period(self) -> int:
        """Steps after which the schedule repeats, see :func:`schedule_index`."""
        return self.cycle

    def __call__(self, i: Any) -> Any:
        # multiply by a float: a quotient of integers would have single precision
        h = 0.5 * self.a * (jnp.cos(math.pi / self.cycle * (i % self.cycle)) + 1.0)
        return jnp.maximum(h, self.minimum)  # pyright: ignore[reportArgumentType]

    def explores(self, i: Any) -> Any:
        """Whether step i has no noise."""
        return i % self.cycle < round(self.exploration * self.cycle)

    def cycle_of(self, i: Any) -> np.ndarray:
        """
        The number of the cycle that a draw belongs to, counted from 0, or -1 for a draw from the exploration part.

        :param i: steps so far: ``mcmc.get_extra_fields()["i"]`` after ``mcmc.run(..., extra_fields=("i",))``.
        """
        last = np.asarray(i, np.int64) - 1
        return np.where(self.explores(last), -1, last // self.cycle)


LAST = 2**31 - 1  # the largest index that a schedule is called with
WRAPS = 256  # overflows of the counter after which one period is cut short: 2**40 steps


def schedule_index(schedule: Schedule, i: jax.Array, wraps: jax.Array) -> jax.Array:
    """
    The int32 with which a schedule is called at step ``i + 2**32 wraps``, both uint32. It does not grow beyond
    ``2**31 - 1``. A schedule with a ``period`` is called with the index modulo the period, so that it repeats for ever.
    """
    period = getattr(schedule, "period", None)
    if period is None:
        large = (wraps > 0) | (i > LAST)
        return jnp.where(large, LAST, i.astype(jnp.int32))
    behind = jnp.asarray([(k << 32) % period for k in range(WRAPS)], jnp.uint32)[wraps % WRAPS]
    return ((i % jnp.uint32(period) + behind) % jnp.uint32(period)).astype(jnp.int32)


def as_schedule(step_size: float | Schedule | None) -> Schedule:
    """Converts a float to :class:`Constant`; returns a callable unchanged. Raises an error for anything else."""
    if isinstance(step_size, Callable):
        try:
            h = jax.eval_shape(lambda i: jnp.asarray(step_size(i)), jax.ShapeDtypeStruct((), jnp.int32))
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                f"step_size={step_size!r} fails at a traced step index: {type(error).__name__}. Write it with "
                "jax.numpy: `jnp.where(i < 100, 1e-2, 1e-3)` instead of `if`, or use Piecewise."
            ) from error
        except Exception as error:
            raise TypeError(f"step_size={step_size!r} must return h for a step index, but it fails: {error}") from error
        if h.size != 1:
            raise ValueError(f"step_size={step_size!r} returns shape {h.shape}; it must return one number.")
        return step_size
    try:
        value = float(None if isinstance(step_size, (bool, str)) else step_size)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(f"step_size={step_size!r} is neither a number nor a function of the step index.") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"step_size={step_size!r}: a constant step size must be positive and finite.")
    return Constant(value)
