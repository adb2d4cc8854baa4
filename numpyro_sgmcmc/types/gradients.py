"""The interface of gradient estimators."""

from typing import Any, Protocol

import jax

from numpyro_sgmcmc.types.basic import Evaluation, Rows, Sites
from numpyro_sgmcmc.types.potentials import Potential, RowScheme


class GradientEstimator(Protocol):
    """
    Rows -> unbiased gradient of U, for one chain; the kernel maps it over chains.

    The estimator itself is a frozen dataclass of options. Whatever it stores about a chain is its state: any pytree of
    arrays, which at every step has the structure, shapes and dtypes of the one that ``start`` returns. An estimator
    draws no rows; rows and keys are arguments. All methods except ``with_rows``, ``check`` and ``gradients_per_row``
    are traced: a step cannot branch on values in Python, and what a method closes over becomes a constant of the
    compiled program.

    The order of the calls: ``with_rows`` when a kernel is made, ``check`` and ``start`` in ``init``; then in each step
    ``begin_step`` once, ``evaluate`` once for every gradient of the integrator, and ``commit`` once.

    Estimators inherit from this class: it has defaults for the methods that most of them do not need.
    """

    def with_rows(self, rows: RowScheme) -> tuple["GradientEstimator", RowScheme]:
        """
        The estimator and the row scheme that the kernel will use. An estimator may read the properties of the scheme
        (``distinct``, ``independent``) and may replace it.
        """
        return self, rows

    def check(self, potential: Potential, chains: int) -> None:
        """
        Called before anything is compiled.

        :param chains: number of chains, each with a state.
        :raises ValueError: if this estimator cannot be used with this potential.
        """

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> Any:
        """The state of a chain that starts at ``z``. A pass over the data is allowed."""
        ...

    def begin_step(self, potential: Potential, z: Sites, gradient_state: Any, i: jax.Array, rng_key: jax.Array) -> Any:
        """
        The state before a step from ``z``. It is kept even if the step is refused.

        :param i: number of the step, counted from 0. A 32-bit integer, which may be unsigned and start at 0 again
            after 2**32 steps. It is the same for all chains that run together.
        """
        return gradient_state

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        """
        An estimate of U and of its gradient at ``z``. It is unbiased for any state, if the rows are drawn independently
        of the state.

        :param rows: ``batch_size`` rows of each minibatched plate; the same for all evaluations of a step. A row may
            occur twice if the scheme is not ``distinct``.
        :param gradient_state: the result of ``begin_step``; it does not change between the evaluations of a step.
        :param rng_key: for ``numpyro.prng_key()`` in the model; the same for all evaluations of a step.
        :return: the evaluation. Its ``update`` is the argument of ``commit``, any pytree of arrays.
        """
        ...

    def commit(self, gradient_state: Any, update: Any, accepted: jax.Array) -> Any:
        """
        The state after a step.

        :param gradient_state: the result of ``begin_step``.
        :param update: ``update`` of the last evaluation of the step.
        :param accepted: whether the step was accepted, a boolean of shape ``()``. If not, the update may contain
            non-finite numbers, and the state must not change.
        """
        return gradient_state

    def gradients_per_row(self, gradient_state: Any) -> int:
        """Gradients that ``evaluate`` computes for each row; counted after a run."""
        return 1

    @property
    def shared(self) -> bool:
        """Whether chains that run together share one state. Then only ``recenter`` may change it."""
        return False

    def recenter(self, potential: Potential, gradient_state: Any, z: Sites, rng_key: jax.Array) -> Any:
        """The state for chains around ``z``; the warm-up calls this when it has estimated their centre."""
        return gradient_state

    def refresh(self, potential: Potential, gradient_state: Any, rng_key: jax.Array) -> Any:
        """
        The state after the conditioning values have changed, for a block of :class:`numpyro.infer.Gibbs`; the potential
        has the new values already. The state must not depend on the old values in a way that makes ``evaluate`` biased.
        A pass over the data is allowed.
        """
        return gradient_state
