"""
A finished run: all that a diagnostic receives, and all that it may ask of a kernel and of ``MCMC``.

NumPyro keeps constrained draws. Their unconstrained values z are computed by the transforms of the model. A value that
was rounded to the edge of its support has no finite z, so its draw is left out of diagnostics that need z.
"""

from collections.abc import Callable, Mapping
import copy
from functools import cached_property
import math
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.data.argument_checks import not_an_array
from numpyro_sgmcmc.data.arrays import fingerprint, named_leaves
from numpyro_sgmcmc.diagnostics.draws import check_draws, latent_draws, posterior_draws, thinned
from numpyro_sgmcmc.engine.settings import check_mcmc
from numpyro_sgmcmc.engine.state import RarelyChanging, SGMCMCState, Stream, axes_of_chains, derive_key
from numpyro_sgmcmc.local.models import keeps_values
from numpyro_sgmcmc.potential.centred import centred_potential, is_as_written
from numpyro_sgmcmc.potential.potential import ModelPotential
from numpyro_sgmcmc.report.monitor import Monitor
from numpyro_sgmcmc.report.remedies import Remedies
from numpyro_sgmcmc.tuning.coordinates import raveled, unraveler
from numpyro_sgmcmc.tuning.warm_up import WarmUp
from numpyro_sgmcmc.utils.monte_carlo import FEWEST


class Draws(NamedTuple):
    z: np.ndarray  # unconstrained values, raveled in the order of ravel_pytree, float64, shape (chains, draws, d)
    names: tuple[str, ...]  # names of the coordinates, such as "w[2]"
    sites: tuple[str, ...]  # the site of each coordinate
    left_out: int = 0  # number of draws that have no finite z
    centering: Mapping[str, jax.Array] = MappingProxyType({})  # lambda by site if z are partially centred; else empty

    @classmethod
    def of_sites(cls, z: np.ndarray, prototype: Mapping[str, Any], left_out: int = 0) -> "Draws":
        """Draws of sites with the shapes of ``prototype``."""
        places = [(site, index) for site in sorted(prototype) for index in np.ndindex(*prototype[site].shape)]
        names = tuple(site + (f"[{', '.join(map(str, index))}]" if index else "") for site, index in places)
        return cls(z, names, tuple(site for site, _ in places), left_out)

    @property
    def flat(self) -> np.ndarray:
        """Draws of all chains, shape ``(chains * draws, d)``."""
        return self.z.reshape(-1, self.z.shape[-1])

    @property
    def by_site(self) -> dict[str, np.ndarray]:
        """Site -> the numbers of its coordinates."""
        sites = np.asarray(self.sites)
        return {site: np.flatnonzero(sites == site) for site in dict.fromkeys(self.sites)}


class TooFewDraws(ValueError):
    """A run has too few draws for a diagnostic."""


class Run:
    """
    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package. For
        :class:`~numpyro_sgmcmc.Tempered`, kernel and state are those of the replica at temperature 1.
    :param args: arguments of the model. If there are no ``args`` and no ``kwargs``, those that the run has kept.
    :param kwargs: keyword arguments of the model.
    :param str caller: name of the diagnostic, for errors.
    :param bool data_needed: False for a diagnostic that can do without data.
    :param bool continues: True for a diagnostic that continues single chains.
    :raises TypeError: if it is not an ``MCMC`` with a kernel of this package, or not one whose chains can be continued.
    :raises ValueError: if there are no draws, the data are not those of the run, or they are needed and not known.
    """

    def __init__(
        self,
        mcmc: Any,
        args: tuple,
        kwargs: Mapping[str, Any],
        caller: str,
        *,
        data_needed: bool = True,
        continues: bool = False,
    ):
        check_mcmc(mcmc, caller)
        self.mcmc, self.caller, self.sampler = mcmc, caller, mcmc.sampler
        if not hasattr(self.sampler, "posterior_chain"):
            raise TypeError(
                f"{caller} needs a run with a kernel of numpyro_sgmcmc, not {type(self.sampler).__name__}. For a block "
                "of numpyro.infer.Gibbs see mcmc.last_state.block_states; for other kernels use ArviZ."
            )
        if continues and hasattr(self.sampler, "temperatures"):
            raise TypeError(
                f"{caller} continues single chains, but those of {type(self.sampler).__name__} exchange their "
                "temperatures, so it would test other chains. Use summary or kernel_stein_discrepancy, or compare two "
                "runs."
            )
        check_draws(mcmc, caller)
        self.kernel, self.state = self.sampler.posterior_chain(mcmc.last_state)
        self.has_data, (self.args, self.kwargs) = self._arguments(args, dict(kwargs), data_needed)

    # -- the data ---------------------------------------------------------------------------------------------------

    def _arguments(self, args: tuple, kwargs: dict[str, Any], needed: bool) -> tuple[bool, tuple[tuple, dict]]:
        kept = tuple(self.mcmc._args or ()), dict(self.mcmc._kwargs or {})
        marks = RarelyChanging.unpacked(self.state.marks)
        if not (args or kwargs):
            without_data = np.isin(np.asarray(marks.fingerprint), (0, fingerprint((), {})))
            known = any(kept) or bool(without_data.all())
            if needed and not known:
                raise ValueError(
                    f"{self.caller}(mcmc): the arguments of the run are not known any more, as after unpickling. Pass "
                    "those of mcmc.run(...)."
                )
            return known and (needed or not any(kept)), kept
        different = _difference((args, kwargs), kept, marks)
        if different is not None:
            raise ValueError(
                f"{self.caller}(mcmc, ...): the data are not those of the run{different}. Pass the arguments of "
                "mcmc.run(...), transformed in the same way and with their rows in the same order."
            )
        return True, (args, kwargs)

    @cached_property
    def potential(self) -> ModelPotential:
        """The potential of NumPyro's unconstrained values, also if the kernel samples others, as on a simplex."""
        return self.kernel.potential_of_values(self.args, self.kwargs)

    @cached_property
    def is_as_written(self) -> bool:
        """Whether the chains have moved in the variables of the model itself, not in partially centred ones."""
        return is_as_written(self.potential, dict(self.state.settings.centering))

    @property
    def samples_other_coordinates(self) -> bool:
        """Whether the chains move in other coordinates than NumPyro's unconstrained values."""
        return self.kernel.transforms is not None or not self.is_as_written

    @property
    def keeps_local_values(self) -> bool:
        """Whether local values of each row are kept from visit to visit."""
        return keeps_values(self.kernel.sampled_model)

    @cached_property
    def rows(self) -> tuple[int, int]:
        """
        Rows of a batch, and of the data: the elements of observed sites in minibatched plates. Those of crossed plates
        multiply, those of separate plates add up.
        """
        plates, sites = self.potential.plates, self.potential.structure.sites.values()
        inside = [[plates[name] for name in site.plates if name in plates] for site in sites]
        groups = {tuple(crossed) for crossed in inside if crossed}  # once for several sites in the same plates
        batch = sum(math.prod(plate.batch_size for plate in crossed) for crossed in groups)
        return batch, sum(math.prod(plate.size for plate in crossed) for crossed in groups)

    def compiled(self, fn: Callable, data: tuple[tuple, Mapping[str, Any]] | None = None) -> Callable:
        """``fn(potential, *rest)`` as a compiled function of ``rest``, for :attr:`potential` or for other ``data``."""
        return self.kernel.compiled(fn, *(data or (self.args, self.kwargs)), values=True)

    def with_arguments(self) -> Any:
        """A copy of the ``MCMC`` that has the arguments of the model, which a run may have lost by pickling."""
        known = copy.copy(self.mcmc)
        known._args, known._kwargs = self.args, self.kwargs
        return known

    # -- the chains ---------------------------------------------------------------------------------------------------

    @cached_property
    def states(self) -> list[SGMCMCState]:
        """The separate state of each chain, on the device."""
        return [jax.tree.map(jnp.asarray, state) for state in states_of(self.kernel, self.state)]

    @property
    def key(self) -> jax.Array:
        """A key derived from the run that its chains do not use."""
        key = self.state.rng_key
        return derive_key(jnp.asarray(key)[0] if jnp.ndim(self.state.i) else key, Stream.PROBE)

    @property
    def steps(self) -> np.ndarray:
        """Number of integrator steps of each chain, warm-up included."""
        wraps = np.asarray(RarelyChanging.unpacked(self.state.marks).wraps, float)
        return np.asarray(self.state.i, float) + 2.0**32 * wraps

    @property
    def warm_up(self) -> WarmUp | None:
        """The search of the warm-up for settings; None if the step size was given."""
        return self.state.warm_up or None

    @property
    def monitor(self) -> Monitor:
        """The numbers that the run has kept for its checks, by chain."""
        return self.fields["monitor"]

    @property
    def use(self) -> Remedies:
        """What the user of the run may change."""
        return Remedies.for_run(self.monitor)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the run has collected, by chain."""
        return self.mcmc.get_extra_fields(group_by_chain=True)

    @property
    def step_sizes(self) -> np.ndarray:
        """Step size of each draw, shape ``(chains, draws)``."""
        return np.asarray(self.fields["step_size"], float).reshape(self.mcmc.num_chains, -1)

    @property
    def mean_step(self) -> float:
        """Mean step size of the draws of the first chain, without steps of size 0."""
        h = self.step_sizes[0]
        return float(h[h > 0].mean()) if (h > 0).any() else 0.0

    # -- the draws ----------------------------------------------------------------------------------------------------

    @property
    def draws_of_a_chain(self) -> int:
        """Number of draws that the run has kept of each chain."""
        return next(iter(latent_draws(self.mcmc).values())).shape[1]

    @property
    def coordinates(self) -> int:
        """Number of constrained values in a draw."""
        return sum(x[0, 0].size for x in latent_draws(self.mcmc).values())

    def values(self) -> Draws:
        """The constrained draws of the latent sites; those of an exploration, which has another law, are left out."""
        values = posterior_draws(self.mcmc)
        flat = np.concatenate([values[name].reshape(*values[name].shape[:2], -1) for name in sorted(values)], -1)
        return Draws.of_sites(flat, {name: x[0, 0] for name, x in values.items()})

    def draws(self, max_draws: int) -> Draws:
        """
        The draws in unconstrained space, evenly thinned to at most ``max_draws`` over all chains. Raises TooFewDraws if
        fewer than ``FEWEST`` of each chain are left.
        """
        draws = thinned(self.mcmc, max_draws)
        chains, kept = next(iter(draws.values())).shape[:2]

        def back(potential, values):
            return lax.map(lambda values: raveled(potential.unconstrain(values)), values, batch_size=64)

        flat = {name: jnp.asarray(x.reshape(-1, *x.shape[2:])) for name, x in draws.items()}
        z = np.asarray(self.compiled(back)(flat), float).reshape(chains, kept, -1)
        finite = np.isfinite(z).all(-1).all(0)  # in all chains, so that they have the same length
        if finite.sum() < FEWEST:
            raise TooFewDraws(
                f"{self.caller}(mcmc) needs at least {FEWEST} draws of each chain whose unconstrained values are "
                f"finite, but has {finite.sum()} of {kept}. Use a larger num_samples, or check for sites at the edge "
                "of their support."
            )
        return Draws.of_sites(z[:, finite], self.potential.prototype, int((~finite).sum()) * chains)

    def as_sampled(self, draws: Draws) -> Draws:
        """
        The draws in the partially centred variables in which the chains have moved; those of the first chain, if each
        has found its own.
        """
        if self.is_as_written:
            return draws
        centering = dict(self.states[0].settings.centering)

        def moved(potential, flat):
            centred, unravel = centred_potential(potential, centering), unraveler(potential.prototype)
            return lax.map(lambda z: raveled(potential.in_variables_of(centred, unravel(z))), flat, batch_size=64)

        z = np.asarray(self.compiled(moved)(jnp.asarray(draws.flat)), float).reshape(draws.z.shape)
        return draws._replace(z=z, centering=centering)


def states_of(kernel: Any, state: SGMCMCState) -> list[SGMCMCState]:
    """The separate state of each chain."""
    state = state._replace(scores=())  # chains that go on are not those of the run
    if jnp.ndim(state.i) == 0:
        return [state]
    axes, settings = axes_of_chains(kernel.chain), state.settings
    own_centering = any(np.ndim(share) == np.ndim(state.z[name]) for name, share in dict(settings.centering).items())
    if own_centering or np.ndim(settings.step_size) == 1:  # each chain has its own
        axes = (0,) * len(axes)
    chains = len(np.asarray(state.i))

    def take(k: int, x: Any, axis: Any) -> Any:
        return x if axis is None else jax.tree.map(lambda leaf: leaf[k], x)

    return [SGMCMCState(*(take(k, x, axis) for x, axis in zip(state, axes))) for k in range(chains)]


def _difference(given: tuple, kept: tuple, marks: RarelyChanging) -> str | None:
    """How the given arguments differ from those of the run, as far as that is known; None if they do not."""
    ours, theirs = (dict(named_leaves(*arguments)) for arguments in (given, kept))
    if ours.keys() == theirs.keys():  # one by one, so that arguments of the same shape are not exchanged
        changed = [name for name in ours if fingerprint((ours[name],), {}) != fingerprint((theirs[name],), {})]
        shapes = [tuple(getattr(side[name], "shape", ()) for side in (ours, theirs)) for name in changed]
        other = [f"{name} has shape {a}, in the run {b}" for name, (a, b) in zip(changed, shapes) if a != b]
        differences = other or [f"{name} has other values" for name in changed]
        return ": " + "; ".join(differences) if differences else None
    mark = fingerprint(*given)
    if not mark or np.any(marks.data_changed) or np.all((marks.fingerprint == mark) | (marks.fingerprint == 0)):
        return None
    odd = not_an_array(*given)
    if odd:
        return f": {odd[0]}"
    missing = sorted(theirs.keys() - ours.keys()) if ours.keys() < theirs.keys() else []
    return f": without {' and '.join(missing)}" if missing else ""
