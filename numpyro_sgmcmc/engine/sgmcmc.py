"""
The kernel: combines dynamics, integrator, gradient estimator and row scheme, and implements NumPyro's ``MCMCKernel``.

Everything that changes is part of the state, the attributes of the kernel are frozen, and the potential is built anew
from the arguments of each call. So nothing is stale in a trace that NumPyro reuses for other chains, runs and resumes.
"""

from collections.abc import Callable, Mapping, Sequence
import copy
from functools import partial, wraps
from operator import attrgetter
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
from numpyro.infer.mcmc import MCMCKernel

from numpyro_sgmcmc.checks.at_construction import check_options
from numpyro_sgmcmc.checks.before_start import check_resumed
from numpyro_sgmcmc.engine.chain import Chain
from numpyro_sgmcmc.engine.chains import Chains, chain_for
from numpyro_sgmcmc.engine.new_state import fingerprint_of_data, new_state
from numpyro_sgmcmc.engine.options import listed_options
from numpyro_sgmcmc.engine.parts import chain_of_parts
from numpyro_sgmcmc.engine.progress_bar import Bar
from numpyro_sgmcmc.engine.state import SGMCMCState, keys_of_chains
from numpyro_sgmcmc.local.models import keeps_values, with_local
from numpyro_sgmcmc.model.handlers import Transforms, full_rows, indexable
from numpyro_sgmcmc.potential.compiled import compiled, within_a_program
from numpyro_sgmcmc.potential.potential import ModelPotential, constrained_latents
from numpyro_sgmcmc.types import Checked, Dynamics, GradientEstimator, Integrator, RowScheme, Schedule, Sites
from numpyro_sgmcmc.utils.validation import checked_batch_size, checked_model


def part(name: str, doc: str) -> Any:
    """A property: a part of the chain, frozen at construction."""
    return property(attrgetter(f"chain.{name}"), doc=doc)


def _precise(method: Callable) -> Callable:
    """
    A method whose programs multiply matrices in full precision if the warm-up chooses the settings, unless JAX's option
    ``jax_default_matmul_precision`` is set. By default a GPU rounds the factors to ten bits. The errors are far below
    the noise of minibatches, but not below the smallest curvatures, and the search divides by these.
    """

    @wraps(method)
    def precise(self: "SGMCMC", *args: Any, **kwargs: Any) -> Any:
        chosen = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
        with jax.default_matmul_precision(chosen or ("highest" if self.chain.tuned else None)):
            return method(self, *args, **kwargs)

    return precise


class SGMCMC(MCMCKernel):
    """
    A stochastic-gradient MCMC kernel, composed of a dynamics, an integrator, a gradient estimator and a row scheme. The
    named kernels are special cases.

    :param model: NumPyro model.
    :param dynamics: the SDE, see :class:`~numpyro_sgmcmc.types.Dynamics`.
    :param integrator: a word or the name of one (:class:`~numpyro_sgmcmc.Splitting`), or an object that implements
        :class:`~numpyro_sgmcmc.types.Integrator`.
    :param gradient: gradient estimator. None: ``Minibatch()``, or a control variate if the warm-up chooses the step
        size.
    :param rows: row scheme. None: independent batches for words that need them, otherwise reshuffled ones; in blocks of
        neighbouring rows if the warm-up chooses the step size and finds that they cost no more noise.
    :param step_size: h > 0, or a function of the step index. None: chosen in the warm-up, together with the
        coordinates, see :mod:`~numpyro_sgmcmc.tuning.tuner`. ``Polynomial(None, b, gamma)`` decreases from the chosen
        step size.
    :param batch_size: rows of a minibatch: an int or ``{plate: int}``. None: the ``subsample_size`` declared in the
        model; if none is declared and ``step_size`` is None, 500 rows or 2 per coordinate, or all rows if the warm-up
        finds that they are cheaper, see :mod:`~numpyro_sgmcmc.tuning.all_rows`. ``{}``: all rows.
    :param int steps_per_sample: integrator steps per draw, in one compiled loop. None: 1, or chosen together with the
        step size.
    :param init_strategy: as for :class:`~numpyro.infer.NUTS`. None: uniform on (-2, 2); if the warm-up chooses the step
        size, the best of several draws around 0.
    :param dense_mass: the coordinates whose correlations the warm-up estimates: True, False, or a list of tuples
        of sites, as for :class:`~numpyro.infer.NUTS`. True means a matrix, for a hierarchy of many groups its blocks
        and border, and with more than 1000 coordinates otherwise a diagonal and a few directions; False a diagonal.
    :param settings: the settings of another run, from :func:`~numpyro_sgmcmc.settings`. The warm-up starts with its
        coordinates.
    :param local: how to draw the latent sites of the rows for each minibatch: :class:`~numpyro_sgmcmc.LocalGibbs`,
        :class:`~numpyro_sgmcmc.LocalHMC`, :class:`~numpyro_sgmcmc.LocalLangevin`, or a function, see
        :class:`~numpyro_sgmcmc.LocalFunction`.
    :param centering: which variable is sampled for a latent site whose location or scale depends on others: a dict
        site -> number or array between 0 (non-centred) and 1 (centred), see
        :mod:`~numpyro_sgmcmc.model.centering`; False: all as written. None: chosen if the warm-up chooses the step
        size, otherwise as written.
    :param check: whether gradients at the draws check them while sampling, see
        :mod:`~numpyro_sgmcmc.engine.run_check`. The draws do not depend on it. None: if the warm-up chooses the step
        size.
    :raises ValueError: see :mod:`~numpyro_sgmcmc.potential.minibatched`; at construction where possible, else at
        ``init``.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGMCMC, Minibatch, Reshuffled, Splitting
        >>> from numpyro_sgmcmc.dynamics.underdamped import Underdamped
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> parts = Underdamped(noise=30.0), Splitting("OBABO"), Minibatch(), Reshuffled()
        >>> kernel = SGMCMC(model, *parts, step_size=3e-3, batch_size=100, steps_per_sample=20)
        >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=500, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> bool(abs(mcmc.get_samples()["mu"].mean() - x.mean()) < 0.02)
        True
    """

    sample_field = "z"  # pyright: ignore[reportAssignmentType]
    default_fields = ("z", "diverging", "step_size", "monitor")  # pyright: ignore[reportAssignmentType]
    missing_step_size = ""  # in kernels whose warm-up cannot choose a step size: what to give
    _frozen = False
    transforms: Transforms | None = None  # of the sites; None: those of NumPyro
    dynamics: Any = part("dynamics", "The SDE, see :class:`~numpyro_sgmcmc.types.Dynamics`.")
    integrator: Integrator = part("integrator", "The integrator, usually a :class:`~numpyro_sgmcmc.Splitting`.")
    gradient: GradientEstimator = part("gradient", "The gradient estimator.")
    rows: RowScheme = part("rows", "The row scheme.")
    schedule: Schedule = part("schedule", "Step index -> h.")
    steps_per_sample: int | None = part("steps_per_sample", "Integrator steps per draw; None: the warm-up chooses.")

    def __init__(
        self,
        model: Any,
        dynamics: Dynamics,
        integrator: Any,
        gradient: GradientEstimator | None = None,
        rows: RowScheme | None = None,
        *,
        step_size: float | Schedule | None = None,
        batch_size: int | Mapping[str, int] | None = None,
        steps_per_sample: int | None = None,
        init_strategy: Any = None,
        dense_mass: bool | Sequence[tuple[str, ...]] = True,
        settings: Mapping[str, Any] | None = None,
        local: Any = None,
        centering: Any = None,
        check: bool | None = None,
        **unknown: Any,
    ):
        check_options(type(self), unknown, step_size, self.missing_step_size)
        self._users_model = checked_model(model)
        self.sampled_model = with_local(model, local)  # that of the user, without the latents of its rows
        self.chain = chain_of_parts(
            *(dynamics, integrator, gradient, rows, step_size),
            init_strategy=init_strategy,
            steps_per_sample=steps_per_sample,
            dense_mass=dense_mass,
            settings=settings,
            centering=centering,
            check=check,
            keeps_values=keeps_values(self.sampled_model),
            batch_size=batch_size,
        )
        self.batch_size = checked_batch_size(batch_size)
        self.bar = Bar()
        self._frozen = True

    def __init_subclass__(cls) -> None:
        cls.__signature__ = listed_options(cls, cls.__mro__[1])  # pyright: ignore[reportAttributeAccessIssue]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise AttributeError(
                f"{type(self).__name__}.{name} is frozen: NumPyro compiles a kernel once, so a later change would be "
                "silently ignored. Make a new kernel."
            )
        object.__setattr__(self, name, value)

    # -- the contract with MCMC ----------------------------------------------------------------------------------

    @property
    def model(self) -> full_rows:
        """The model on all of its rows, as ArviZ, ``Predictive`` and ``log_likelihood`` need it."""
        return full_rows(self._users_model)

    @property
    def _sample_fn(self) -> Callable:
        # if this is None, MCMC calls `init` again on a resume, in vain: there is nothing to rebuild
        return self.sample

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        """The text of the progress bar, see :class:`~numpyro_sgmcmc.engine.progress_bar.Bar`."""
        return self.bar(state)

    @_precise
    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Sites | None,
        model_args: tuple,
        model_kwargs: Mapping[str, Any] | None,
    ) -> SGMCMCState:
        """
        The state of a new chain, or of several chains if ``rng_key`` is a batch of keys. Costs O(batch), and one look
        at each array for values that are not finite; if the warm-up chooses the settings, also short descents.

        :param init_params: unconstrained values for some or all sites (constrained values in a block of
            :class:`~numpyro.infer.Gibbs`, as is its convention); the other sites start by ``init_strategy``.
        :raises ValueError: for a model that :func:`~numpyro_sgmcmc.potential.minibatched.checked_structure` refuses;
            ``init_params`` with wrong names or shapes; an energy that is not finite at the start, with its site; a site
            whose density for a row depends on the other rows of its minibatch.
        """
        return new_state(self, keys_of_chains(rng_key), num_warmup, init_params, model_args, model_kwargs)

    def check_model(self, potential: ModelPotential) -> None:
        """Raises a ValueError for a model that this kernel cannot sample."""

    def check_start(self, on_potential: Callable, z: Sites, state: SGMCMCState) -> None:
        """Checks that need the values at the start, for a dynamics that is ``Checked``. ``z``: of the first chain."""
        if isinstance(self.dynamics, Checked):
            phase = jax.tree.map(lambda x: x[0], state.phase) if jnp.ndim(state.i) else state.phase
            h = jnp.ravel(state.step_size)[0]
            bound: Any = lambda potential: self.chain_for(potential).dynamics  # noqa: E731
            report = on_potential(lambda potential, phase, h: bound(potential).report(phase, h))
            self.dynamics.check(report(phase, h), phase)

    @_precise
    def sample(self, state: SGMCMCState, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> SGMCMCState:
        """One MCMC transition: ``steps_per_sample`` steps of every chain in ``state``."""
        in_program = partial(within_a_program, self.potential) if isinstance(state.i, Tracer) else self.potential
        potential = in_program(model_args, model_kwargs)
        check_resumed(state, potential.prototype)
        return self.chains_for(potential).transition(state, fingerprint_of_data(model_args, model_kwargs))

    # -- for those who look at a run or continue it ---------------------------------------------------------------

    def posterior_chain(self, state: SGMCMCState) -> tuple["SGMCMC", SGMCMCState]:
        """
        The kernel and the part of a state whose draws are from the posterior. If the warm-up has chosen all rows, the
        kernel with all rows.
        """
        chosen = self.batch_size is None and state.settings.uses_all_rows
        return self.replace(batch_size={}) if chosen else self, state

    def potential(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> ModelPotential:
        """The potential that is sampled."""
        return ModelPotential.from_model(
            self.sampled_model, model_args, model_kwargs, self._batch_size, self.transforms
        )

    def potential_of_values(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> ModelPotential:
        """The potential of NumPyro's unconstrained values."""
        return ModelPotential.from_model(self.sampled_model, model_args, model_kwargs, self._batch_size)

    def compiled(
        self, fn: Callable, model_args: tuple, model_kwargs: Mapping[str, Any] | None, *, values: bool = False
    ) -> Callable:
        """``fn(potential, *rest)`` as a compiled function of ``rest``; ``values``: for :meth:`potential_of_values`."""
        transforms = None if values else self.transforms
        return compiled(fn, self.sampled_model, model_args, model_kwargs, self._batch_size, transforms)

    def replace(self, **parts: Any) -> "SGMCMC":
        """A copy with another ``chain``, ``batch_size`` or ``sampled_model``."""
        kernel = copy.copy(self)
        vars(kernel).update(parts)
        return kernel

    def chain_for(self, potential: ModelPotential) -> Chain:
        """The chain for a potential."""
        return chain_for(self.chain, potential)

    def chains_for(self, potential: ModelPotential) -> Chains:
        """The chains for a potential."""
        return Chains(potential, self.chain_for(potential))

    def postprocess_fn(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable[[Sites], Sites]:
        """
        Unconstrained -> constrained values and deterministic sites, except those inside minibatched plates.

        NumPyro calls it at every transition, so it costs O(batch). It is compiled, because NumPyro's one eager call
        would otherwise evaluate values that are not used.
        """
        return jax.jit(lambda z: self.potential(model_args, model_kwargs).constrain(z))

    # -- as a block of numpyro.infer.Gibbs ----------------------------------------------------------------------

    def get_constrain_fn(self, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> Callable[[Sites], Sites]:
        """Unconstrained -> constrained values, whether or not the arguments contain the values of the other blocks."""
        args, kwargs = indexable((model_args, {} if model_kwargs is None else model_kwargs))
        return jax.jit(partial(constrained_latents, self.sampled_model, args, kwargs, transforms=self.transforms))

    def refresh(self, state: SGMCMCState, model_args: tuple, model_kwargs: Mapping[str, Any] | None) -> SGMCMCState:
        """The state under new conditioning values, see :meth:`~numpyro_sgmcmc.engine.chain.Chain.refresh`."""
        potential = self.potential(model_args, model_kwargs)
        return self.chain_for(potential).refresh(potential, state)

    def wrap_model(self, wrapper: Callable) -> "SGMCMC":
        """A copy of this kernel for ``wrapper(model)``."""
        return self.replace(sampled_model=wrapper(self.sampled_model))

    @property
    def _batch_size(self) -> Any:
        return self.chain.batch_size if self.batch_size is None else self.batch_size
