r"""
SAGA: a table stores the most recent gradient of each unit of the data, a row or a batch (Dubey et al. 2016,
algorithm 1, for Langevin dynamics).

.. math:: \hat g(z) = \nabla U_0(z) + \sum_{k=1}^K \alpha_k + \frac{K}{m}\sum_{k \in S} (\nabla u_k(z) - \alpha_k),
          \qquad \alpha_k \leftarrow \nabla u_k(z) \text{ for } k \in S

with the prior's energy :math:`U_0` and the energies :math:`u_k` of K units, m of them in a minibatch. The estimate is
unbiased for any values in the table, and has little variance if they were computed near z. The tables
(:mod:`~numpyro_sgmcmc.gradients.tables`) define what a unit is.
"""

from collections.abc import Callable
import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_sgmcmc.gradients.tables import TABLES, Partition, Table, check_options, first_occurrences
from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, RowScheme, Sites
from numpyro_sgmcmc.utils import trees
from numpyro_sgmcmc.utils.memory import announce
from numpyro_sgmcmc.utils.validation import check_minibatched, checked_choice
from numpyro_sgmcmc.utils.workarounds.in_place import add_at, read_at
from numpyro_sgmcmc.utils.workarounds.lockstep import when_any


class SAGAState(NamedTuple):
    table: Any  # the values stored for each unit, K along axis 0
    total: Sites  # sum of the gradients over the table, a dict like z
    seen: Any  # whether each unit has been seen, 0 or 1; () if that is not needed
    count: Any  # number of units seen so far, or ()


class TableUpdate(NamedTuple):
    """The update by a step, if it is accepted."""

    units: jax.Array
    change: SAGAState  # of the table and of ``seen`` at these units, and of the other fields


@dataclass(frozen=True)
class SAGA(GradientEstimator):
    r"""
    SAGA, for every kernel and every word.

    ======================= ============================= ==============================================
    ``per``                 table                         a step costs
    ======================= ============================= ==============================================
    ``"row"``               N x d, a gradient a row       gradients of single rows; random memory access
    ``"batch"``             N/n x d, a gradient a batch   as much as a plain minibatch
    ``"linear"``            N numbers (times outputs)     as much as a plain minibatch
    ======================= ============================= ==============================================

    - ``per="batch"``: the batches are those of a fixed partition, batch j the rows jn to (j+1)n - 1; the row scheme is
      applied to their numbers. A shorter last batch is weighted exactly.
    - ``per="linear"``: for models whose rows depend on the latents through a linear predictor only, such as
      generalised linear models; the estimates are those of ``per="row"``. The predictor is found in the trace of the
      model, or named by ``predictor``, which does not depend on how JAX writes a trace.

    Each step updates the sum over the table by its change. To limit rounding errors the sum is recomputed from the
    table after 1, 2, 4 and 8 epochs, and then every 16 epochs.

    The table does not help if its gradients were computed far from the current position. If the chain starts far from
    the mode, SAGA is noisier than plain minibatches for some epochs. Reshuffled rows make this worse: each step is
    unbiased over the order of the rows, but given the rows seen so far, the remaining rows are the ones with old
    gradients, so the chain overshoots once before it settles. Start at :func:`~numpyro_sgmcmc.find_mode`, or use
    :class:`~numpyro_sgmcmc.WithoutReplacement`.

    ``per="batch"`` is noisier than ``per="row"``, by a factor of up to the batch size, because the gradients of a batch
    all have the same age.

    :param per: the unit whose gradient is stored: ``"row"``, ``"batch"`` or ``"linear"``.
    :param init: ``"full"``: a pass over the data fills the table at the start. ``"online"``: no pass; units not yet
        seen have the mean gradient of those seen. ``"zeros"``: no pass, and at first no reduction of the noise. All are
        unbiased from the start (reweighting the units seen so far by N / seen would not be).
    :param predictor: for ``per="linear"``. The name of a deterministic site in the plate,
        ``eta = numpyro.deterministic("eta", X[rows] @ w)``, whose value the model then uses. Or a function
        ``predictor(latents, rows)`` of the constrained values by site and the row numbers, which index JAX arrays; a
        step then costs a few gradients of the batch instead of one. A few rows are used to check that the predictor is
        affine in the unconstrained latents, and that the rows depend on them only through it.
    :param chunk_size: rows per chunk of a pass over the data. None: as many as take about 64 MB, 4096 at most.
    :param float memory: the share of the machine's memory that the table, for all chains, may take. With a progress bar
        NumPyro keeps a second copy, which it rewrites at every draw.
    :raises ValueError: for a table that is too large; no minibatched plate, or several; a randomised model; a model
        without a linear predictor.

    **References:**

    1. *Variance Reduction in Stochastic Gradient Langevin Dynamics*, A. Dubey et al. (2016), algorithm 1
    2. *SAGA: A Fast Incremental Gradient Method*, A. Defazio, F. Bach, S. Lacoste-Julien (2014)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SAGA, SGLD
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGLD(model, step_size=1e-4, batch_size=100, gradient=SAGA(per="batch"), steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=100, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    per: Literal["row", "batch", "linear"] = "row"
    init: Literal["full", "online", "zeros"] = "full"
    memory: float = 0.25
    predictor: str | Callable[[dict[str, Any], jax.Array], jax.Array] | None = None
    chunk_size: int | None = None
    distinct: bool = field(default=False, init=False, repr=False, compare=False)
    owner: ClassVar[tuple[str, str]] = "SAGA", "per"  # the class and its argument, for errors

    def __post_init__(self):
        checked_choice("SAGA(per)", self.per, tuple(TABLES))
        checked_choice("SAGA(init)", self.init, ("full", "online", "zeros"))
        check_options("SAGA", "per", self.per, self.predictor, self.chunk_size, self.memory)

    def with_rows(self, rows: RowScheme) -> tuple["SAGA", RowScheme]:
        if getattr(rows, "devices", 1) > 1:
            raise self._on_devices(f"takes no rows={rows!r}")
        estimator = copy.copy(self)
        object.__setattr__(estimator, "distinct", self.per == "batch" or getattr(rows, "distinct", False))
        if self.per == "batch":
            return estimator, Partition(rows)  # pyright: ignore[reportReturnType]
        return estimator, rows

    def _on_devices(self, what: str) -> ValueError:
        return ValueError(
            f"{self._form.label} {what}: its table is not distributed over devices. Use Minibatch(), SVRG() or "
            "ControlVariate(center)."
        )

    def check(self, potential: Potential, chains: int) -> None:
        check_minibatched(self.owner[0], potential.plates)
        label = self._form.label
        if len(potential.plates) > 1:
            raise ValueError(
                f"{label} stores the gradients of one plate, but {' and '.join(map(repr, potential.plates))} are all "
                "minibatched. Minibatch only one of them, or use SVRG() or ControlVariate(center)."
            )
        if potential.devices > 1:
            raise self._on_devices(f"cannot be used with rows that are spread over {potential.devices} devices")
        if potential.draws_local_sites:
            raise ValueError(
                f"{label} does not work with local=: it would store gradients at old draws of the local sites. Use "
                "gradient=Minibatch()."
            )
        if potential.randomised:
            raise ValueError(
                f"{label} does not work with a model that draws its own keys (numpyro.prng_key): it would store "
                "gradients with their noise. Use SVRG() or ControlVariate(center), which use one key for both of their "
                "gradients."
            )
        self._form.check(potential)
        state = jax.eval_shape(lambda: self._empty(potential))
        smaller = f"{self.owner[1]}='batch' (or 'linear', for generalised linear models), " * (self.per == "row")
        alternatives = f"Use {smaller}SVRG() or ControlVariate(center), fewer chains, or a larger share memory=."
        announce(label, (state.table, state.seen), chains, self.memory, alternatives)

    @property
    def _form(self) -> Table:
        name, argument = self.owner
        return TABLES[self.per](f"{name}({argument}={self.per!r})", self.predictor, self.chunk_size)

    def _empty(self, potential: Potential) -> SAGAState:
        """The table before anything is seen."""
        ((name, plate),) = potential.plates.items()
        z = jax.tree.map(jnp.zeros_like, dict(potential.prototype))
        rows = {name: jnp.zeros(plate.batch_size, jnp.int32)}
        unit = jax.eval_shape(lambda: self._form.evaluate(potential, z, rows).values)
        units = self._form.units(plate)
        table = jax.tree.map(lambda value: jnp.zeros((units, *value.shape[1:]), value.dtype), unit)
        online = self.init == "online"
        return SAGAState(
            table,
            total=z,
            seen=jnp.zeros(units, jnp.uint8) if online else (),
            count=jnp.zeros((), jnp.int32) if online else (),
        )

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> SAGAState:
        state = self._empty(potential)
        if self.init != "full":
            return state
        return self._summed(potential, z, state._replace(table=self._form.fill(potential, z, state.table)))

    def _summed(self, potential: Potential, z: Sites, state: SAGAState) -> SAGAState:
        """The state with the sum over the table recomputed."""
        return state._replace(total=self._form.total(potential, z, state.table, self._form.chunk(potential, z)))

    def begin_step(
        self, potential: Potential, z: Sites, gradient_state: SAGAState, i: jax.Array, rng_key: jax.Array
    ) -> SAGAState:
        """Recomputes the sum at some epochs: it has rounding errors of the large gradients far from the mode."""
        (plate,) = potential.plates.values()
        # a minibatch per iteration: XLA compiles a loop with longer iterations to slower code
        length = self._form.units_a_step(plate)
        steps = -(-self._form.units(plate) // length)
        epoch = i // steps
        due = (i % steps == 0) & (epoch > 0) & ((epoch & (epoch - 1) == 0) | (epoch % 16 == 0))

        def sum_up(current):
            z, table, old = current
            new = self._form.total(potential, z, table, length)
            return trees.where(trees.all_finite(new), new, old)  # steps with non-finite rows are refused

        operand = (z, gradient_state.table, gradient_state.total)
        return gradient_state._replace(total=when_any(due, sum_up, operand, gradient_state.total))

    def refresh(self, potential: Potential, gradient_state: SAGAState, rng_key: jax.Array) -> SAGAState:
        """For ``per="linear"``, recomputes the sum: new values in the predictor change the gradients of its slopes."""
        if self.per != "linear":
            return gradient_state
        z = jax.tree.map(jnp.zeros_like, gradient_state.total)
        return self._summed(potential, z, gradient_state)

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: SAGAState, rng_key: jax.Array
    ) -> Evaluation:
        (plate,) = potential.plates.values()
        form, total = self._form, gradient_state.total
        prior, gradient = jax.value_and_grad(potential.prior)(z, rng_key)
        batch = form.evaluate(potential, z, rows)
        units = form.units(plate)
        scale = units / batch.units.shape[0]
        change = jax.tree.map(jnp.subtract, batch.values, read_at(gradient_state.table, batch.units))
        unseen = jax.tree.map(lambda s: 1 - s[batch.units], gradient_state.seen)
        to_gradient = lambda values: form.to_gradient(potential, z, batch.units, values)  # noqa: E731
        difference, update = self._update(batch.units, change, unseen, to_gradient)
        if self.init == "online":
            # the table holds zeros for units not yet seen; they count with the mean gradient of those seen
            mean = jax.tree.map(lambda t: t / jnp.maximum(gradient_state.count, 1), total)
            total = jax.tree.map(lambda m: units * m, mean)
            difference = jax.tree.map(lambda x, m: x - unseen.sum() * m, difference, mean)
        gradient = jax.tree.map(lambda g, t, x: g + t + scale * x, gradient, total, difference)
        return Evaluation(prior + scale * batch.energy, gradient, update)

    def _update(
        self, units: jax.Array, change: Any, unseen: Any, to_gradient: Callable[[Any], Sites]
    ) -> tuple[Sites, TableUpdate]:
        """The sum of the changes of the gradients, and the update of the table, where each unit counts once."""
        if self.distinct:
            written, difference = change, to_gradient(change)
            total = difference
        else:
            first = first_occurrences(units)
            once = lambda c: c * first.reshape(-1, *[1] * (c.ndim - 1)).astype(c.dtype)  # noqa: E731
            written, unseen = jax.tree.map(once, (change, unseen))
            both = jax.vmap(to_gradient)(jax.tree.map(lambda *x: jnp.stack(x), change, written))
            difference, total = (jax.tree.map(lambda x, k=k: x[k], both) for k in (0, 1))
        count = jax.tree.map(lambda u: u.sum(dtype=jnp.int32), unseen)
        return difference, TableUpdate(units, SAGAState(written, total, unseen, count))

    def commit(self, gradient_state: SAGAState, update: TableUpdate, accepted: jax.Array) -> SAGAState:
        # mask the update, not the table: a `where` over the table would copy all of it at each step
        masked = jax.tree.map(lambda x: jnp.where(accepted, x, jnp.zeros_like(x)), update.change)
        return SAGAState(
            table=add_at(gradient_state.table, update.units, masked.table),
            total=jax.tree.map(jnp.add, gradient_state.total, masked.total),
            seen=add_at(gradient_state.seen, update.units, masked.seen),
            count=jax.tree.map(jnp.add, gradient_state.count, masked.count),
        )
