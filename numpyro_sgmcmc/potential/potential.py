"""
NumPyro model -> U(z), the negative log joint density of its unconstrained latents: the prior's energy, the energy of
each row, the minibatch estimate.

A potential is built anew from the arguments of every call and used in it only. It may hold tracers; kernels never
keep one.

All latents are outside the minibatched plates; :mod:`~numpyro_sgmcmc.potential.minibatched` refuses others. Only
``trace`` gives the latents their values.
"""

from collections.abc import Iterable, Iterator, Mapping
import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import init_to_uniform

from numpyro_sgmcmc.data.arrays import indexable
from numpyro_sgmcmc.data.on_disk import OnDisk
from numpyro_sgmcmc.data.sharded import ShardedRows
from numpyro_sgmcmc.local.models import drawn_locally, keeps_values, visit
from numpyro_sgmcmc.local.summed import summed_out
from numpyro_sgmcmc.model.centering import LocationScale, form_of, location_and_scale_parents
from numpyro_sgmcmc.model.handlers import Transforms, elementwise, inverse, minibatch, transform_of, unconstrained
from numpyro_sgmcmc.model.non_centred import NonCentred
from numpyro_sgmcmc.model.numpyro_internals import find_valid_initial_params
from numpyro_sgmcmc.model.plates import AUTOMATIC
from numpyro_sgmcmc.model.structure import Structure
from numpyro_sgmcmc.potential.minibatched import checked_structure
from numpyro_sgmcmc.types import Plate, Rows, Sites


class ModelPotential:
    """
    The potential of a model for given arguments, a :class:`~numpyro_sgmcmc.types.Potential`.

    :param plates: the plates that are minibatched.
    :param transforms: site -> NumPyro transform from unconstrained values to its support, instead of
        ``biject_to(support)``.
    """

    def __init__(
        self,
        model: Any,
        args: tuple,
        kwargs: Mapping[str, Any],
        plates: Mapping[str, Plate],
        structure: Structure,
        transforms: Transforms | None = None,
    ):
        self.plates = plates
        self.structure = structure
        self.prototype = structure.prototype
        self.randomised = structure.randomised
        self.transforms = transforms
        self.args, self.kwargs = args, dict(kwargs)
        self._weights: Mapping[str, Any] = {}
        self.centred: Sites = {}  # the shares of sites that the model has centred
        self.centering: Sites = {}  # those of sites that it has non-centred
        self.non_centred: NonCentred | None = None
        self.draws_local_sites = isinstance(model, drawn_locally)
        self.keeps_local_values = keeps_values(model)
        self.model = model
        if structure.has_params:  # they keep the values of their initialisers with a fixed key, the same in all chains
            params = {name: site["value"] for name, site in self._drawn({}).items() if site["type"] == "param"}
            self.model = handlers.substitute(model, data=params)

    @classmethod
    def from_model(
        cls,
        model: Any,
        model_args: tuple,
        model_kwargs: Mapping[str, Any] | None,
        batch_size: Any,
        transforms: Transforms | None = None,
    ) -> "ModelPotential":
        """The potential for a user's model and arguments, after all checks of the model."""
        args, kwargs = indexable((model_args, {} if model_kwargs is None else model_kwargs))
        if not isinstance(model, drawn_locally):
            model = summed_out(model)
        plates, structure = checked_structure(model, args, kwargs, batch_size, transforms)
        return cls(model, args, kwargs, plates, structure, transforms)

    def with_minibatches(self) -> "ModelPotential":
        """If no plate is minibatched, the same with minibatches that can be taken, for a start from few rows."""
        if self.plates:
            return self
        try:
            plates, structure = checked_structure(self.model, self.args, self.kwargs, AUTOMATIC, self.transforms)
        except ValueError:
            return self
        return self.replace(plates=plates, structure=structure)

    @property
    def sources(self) -> list[OnDisk]:
        """The arguments that are on disk."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, OnDisk)]

    @property
    def row_sources(self) -> list[OnDisk]:
        """Those with one row for each element of the minibatched plate; none if several plates are minibatched."""
        sizes = [plate.size for plate in self.plates.values()]
        return [source for source in self.sources if [len(source)] == sizes]

    @property
    def sharded(self) -> list[ShardedRows]:
        """The arguments whose rows are distributed over devices."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, ShardedRows)]

    @property
    def devices(self) -> int:
        """The number of devices over which they are distributed. Raises a ValueError if it is not the same for all."""
        numbers = {array.devices for array in self.sharded} or {1}
        if len(numbers) > 1:
            raise ValueError(
                f"{' and '.join(map(repr, self.sharded))} are not distributed over the same number of devices. Use the "
                "same for all."
            )
        return numbers.pop()

    def replace(self, **parts: Any) -> "ModelPotential":
        """A copy with other attributes."""
        potential = copy.copy(self)
        vars(potential).pop("hierarchies", None)
        vars(potential).update(parts)
        return potential

    def using_rows(
        self, rows: Rows, read: tuple[jax.Array, ...] = (), weights: Mapping[str, Any] = MappingProxyType({})
    ) -> "ModelPotential":
        """
        The potential in which the :attr:`row_sources` return the data of these rows that have already been read, each
        device looks up its own share of the rows, and the energies of the rows are weighted.
        """
        lookups = dict(zip(map(id, self.row_sources), read)) | {id(array): True for array in self.sharded}
        serve = lambda x: x.using_rows(rows.values(), lookups[id(x)]) if id(x) in lookups else x  # noqa: E731
        args, kwargs = jax.tree.map(serve, (self.args, self.kwargs)) if lookups else (self.args, self.kwargs)
        return self.replace(_weights=weights, args=args, kwargs=kwargs)

    @property
    def local_values(self) -> dict[str, jax.ShapeDtypeStruct]:
        return jax.eval_shape(lambda z, rows: self.visit(z, rows, None, None)[1], self.prototype, self.some_rows())

    def _drawn(self, values: dict[str, jax.Array]) -> dict[str, Any]:
        """A trace of the model with these constrained values; others are drawn with a fixed key."""
        seeded = handlers.seed(minibatch(self.model, self.some_rows()), jax.random.key(0))
        return handlers.trace(handlers.substitute(seeded, data=values)).get_trace(*self.args, **self.kwargs)

    def some_rows(self) -> Rows:
        """
        Rows for computations whose result does not depend on the rows; O(batch), where all rows would be O(N). They are
        never traced, so that NumPy arrays are indexed by NumPy and not copied to the device.
        """
        with jax.ensure_compile_time_eval():
            return {name: jnp.arange(plate.batch_size, dtype=jnp.int32) for name, plate in self.plates.items()}

    def trace(self, z: Sites, rows: Rows, rng_key: jax.Array | None) -> dict[str, Any]:
        return self._trace_as_written(self.as_written(z)[0], rows, rng_key)

    def _trace_as_written(self, z: Sites, rows: Rows, rng_key: jax.Array | None) -> dict[str, Any]:
        key = jax.random.key(0) if rng_key is None else rng_key
        at_z = unconstrained(minibatch(self.model, rows, key), z, self.transforms)
        return handlers.trace(at_z).get_trace(*self.args, **self.kwargs)

    def energies(self, z: Sites, rows: Rows, rng_key: jax.Array | None) -> Iterator[tuple[str, dict, jax.Array]]:
        """Name, plates (name -> dim) and scaled energy, not summed, of every sample site."""
        written, log_det = self.as_written(z)
        trace = self._trace_as_written(written, rows, rng_key)
        forms = {name: form_of(trace[name]["fn"]) for name in self.centred}
        centred = {name: form for name, form in forms.items() if isinstance(form, LocationScale)}
        jacobians = {f"_{name}_log_det" for name in centred}  # parts of the energies of these forms
        for name, site in trace.items():
            if site["type"] != "sample" or name in jacobians:
                continue
            plates = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
            if name in centred:
                yield name, plates, centred[name].energy(z[name], self.centred[name])
                continue
            log_prob = site["fn"].log_prob(site["value"])
            if site["scale"] is not None:
                log_prob = site["scale"] * log_prob
            for plate in self._weights.keys() & plates.keys():
                log_prob = log_prob * self._weights[plate].reshape(-1, *(1,) * (-plates[plate] - 1))
            yield name, plates, -log_prob
        if self.non_centred:
            yield "_centering_log_det", {}, -log_det

    def prior(self, z: Sites, rng_key: jax.Array | None = None) -> jax.Array:
        energies = self.energies(z, self.some_rows(), rng_key)
        return _sum(energy for _, plates, energy in energies if not self.plates.keys() & plates)

    def per_row(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        """
        Energy of each row in the batch, shape ``(batch_size,)``, without the factor N/n. Raises a ValueError if not
        exactly one plate is minibatched.
        """
        if len(self.plates) != 1:
            raise ValueError(
                f"energies of single rows need exactly one minibatched plate, not {len(self.plates)}: "
                f"{', '.join(map(repr, self.plates)) or 'none'}. Use gradient=Minibatch()."
            )
        ((name, plate),) = self.plates.items()
        n = rows[name].shape[0]
        total = jnp.zeros(n)
        for _, plates, energy in self.energies(z, rows, rng_key):
            if name in plates:
                energy = jnp.moveaxis(energy, plates[name], 0).reshape(n, -1).sum(1)
                total = total + energy * (n / plate.size)
        return total

    def estimate(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> jax.Array:
        return _sum(energy for _, _, energy in self.energies(z, rows, rng_key))

    def visit(
        self, z: Sites, rows: Rows, rng_key: jax.Array | None, before: tuple[Sites, jax.Array] | None
    ) -> tuple[jax.Array, Sites]:
        """:meth:`estimate` with local sites drawn by a chain that starts at given values, and the values drawn."""
        visits = visit(self.model, before)
        return self.replace(model=visits).estimate(z, rows, rng_key), visits.values

    def by_site(self, z: Sites, rows: Rows, rng_key: jax.Array | None = None) -> dict[str, jax.Array]:
        """The terms of :meth:`estimate`."""
        return {name: jnp.sum(energy) for name, _, energy in self.energies(z, rows, rng_key)}

    def constrain(self, z: Sites) -> dict[str, jax.Array]:
        """
        Constrained values of the latents and of the deterministic sites. Left out are sites inside a minibatched plate,
        which would be N numbers per draw; those outside that depend on its rows, which would have the values of one
        minibatch; and those that depend on missing values.
        """
        constrained = {}
        for name, site in self.trace(z, self.some_rows(), None).items():
            deterministic = (
                site["type"] == "deterministic"
                and name not in self.structure.left_out + self.structure.with_missing
                and not self.plates.keys() & {frame.name for frame in site["cond_indep_stack"]}
            )
            if deterministic or (site["type"] == "sample" and name in z):
                constrained[name] = site["value"]
        return constrained

    def site_values(self, z: Sites, rows: Rows) -> dict[str, Any]:
        """Constrained values of all sample and deterministic sites on these rows."""
        trace = self.trace(z, rows, None)
        return {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "deterministic")}

    def with_values(self, values: dict[str, jax.Array]) -> "ModelPotential":
        """The potential of the model in which these values replace those of deterministic sites."""
        return self.replace(model=handlers.substitute(self.model, data=values))

    def latents(self, z: Sites) -> dict[str, jax.Array]:
        tr = self.trace(z, self.some_rows(), None)
        return {name: tr[name]["value"] for name in z}  # constrained

    def unconstrain(self, values: dict[str, jax.Array]) -> Sites:
        """The inverse of :meth:`constrain` for the latents among ``values``."""
        tr = self._drawn(values)
        return {
            name: self._unconstrained_value(tr[name], value) for name, value in values.items() if name in self.prototype
        }

    def _unconstrained_value(self, site: Any, value: jax.Array) -> jax.Array:
        return inverse(transform_of(site["name"], site["fn"], self.transforms), value)

    # -- other variables, see potential.centred --------------------------------------------------------------------

    @cached_property
    def hierarchies(self) -> tuple[dict[str, frozenset[str]], NonCentred]:
        """The sites that are centred, with the sites on which their scales depend, and those that are non-centred."""
        trace = lambda z: self.trace(z, self.some_rows(), None)  # noqa: E731
        parents = location_and_scale_parents(trace, self.structure, self.transforms)
        centred = {name: scale for name, (loc, scale) in parents.items() if (loc | scale) - {name}}
        return centred, self.non_centred_among(parents.keys() - centred.keys())

    def non_centred_among(self, names: Iterable[str]) -> NonCentred:
        """Those of these sites that the model has non-centred."""

        def parameters(z, rows):
            sites = {k: site for k, site in self.trace(z, rows, None).items() if site["type"] == "sample"}
            triangular = constraints.corr_cholesky, constraints.lower_cholesky
            factors = [sites[name]["value"] for name in z if elementwise(sites[name]["fn"].support) in triangular]
            return {name: jax.tree.leaves(site["fn"]) for name, site in sites.items()}, factors

        return NonCentred(parameters, self.prototype, self.some_rows(), names)

    def as_written(self, z: Sites) -> tuple[Sites, jax.Array]:
        """z in the variables of the model's non-centred sites, and the log determinant."""
        return self.non_centred.as_written(z, self.centering) if self.non_centred else (z, jnp.zeros(()))

    def in_variables_of(self, other: "ModelPotential", z: Sites) -> Sites:
        """The unconstrained values that have the same sites in ``other``, the same model with other transforms."""
        if other.transforms is self.transforms:
            return z
        tr = self.trace(z, self.some_rows(), None)
        z = {name: other._unconstrained_value(tr[name], tr[name]["value"]).astype(x.dtype) for name, x in z.items()}
        return other.non_centred.as_sampled(z, other.centering) if other.non_centred else z

    def initial(self, rng_key: jax.Array, rows: Rows, init_strategy: Any) -> Sites:
        """A start with finite energy and gradient on these rows, if NumPyro's search finds one."""
        usual = ModelPotential(self.model, self.args, self.kwargs, self.plates, self.structure)
        prototype = self.prototype
        if self.transforms:  # the search is in NumPyro's own coordinates
            prototype = jax.eval_shape(lambda z: usual.unconstrain(self.latents(z)), prototype)
        prototype = {name: jnp.zeros(s.shape, s.dtype) for name, s in prototype.items()}
        (z, _, _), _ = find_valid_initial_params(
            rng_key,
            minibatch(self.model, rows, jax.random.key(0)),
            init_strategy=init_to_uniform if init_strategy is None else init_strategy,
            model_args=self.args,
            model_kwargs=self.kwargs,
            prototype_params=prototype,
        )
        return self.unconstrain(usual.latents(z)) if self.transforms else z


def constrained_latents(
    model: Any, args: tuple, kwargs: Mapping[str, Any], z: Sites, transforms: Transforms | None = None
) -> dict[str, jax.Array]:
    """
    Constrained values of the sites in ``z``, computed by their transforms alone. Other latents, which a Gibbs kernel
    leaves out here, are drawn; they matter only if a support depends on them.
    """
    seeded = handlers.seed(minibatch(model), jax.random.key(0))
    tr = handlers.trace(unconstrained(seeded, z, transforms)).get_trace(*args, **kwargs)
    return {name: tr[name]["value"] for name in z}


def _sum(energies: Any) -> jax.Array:
    return sum((jnp.sum(energy) for energy in energies), start=jnp.zeros(()))
