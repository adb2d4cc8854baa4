r"""
The checks of local sites. Both are measured on new minibatches at draws of the run.

**Memory.** Two local chains of the same row start at different values :math:`u_0, u_0'` and end at :math:`u, u'`. The
slope of the difference of the ends on that of the starts, and the squared correlation,

.. math::

    \beta = \frac{E[(u - u')(u_0 - u_0')]}{E[(u_0 - u_0')^2]}, \qquad
    \rho^2 = \beta^2 \, \frac{E[(u_0 - u_0')^2]}{E[(u - u')^2]},

are 0 if the values are draws from the conditional distribution, whatever it is. If the chains start at the prior of a
normal hierarchy, the part of the gradient that comes from the data is multiplied by :math:`1 - \beta`, so the variance
of the posterior is too large by the factor :math:`1 / (1 - \beta)`, and the share :math:`\rho^2` of the variance of the
local values of a row comes from their starts. A function may return good starts, whose memory does no harm.

**Rejected moves.** The share s of the rows whose local chain rejects every move. Such a row keeps a draw from the
prior, so :math:`\beta` is at least s if the other rows forget their starts. Values of the previous visit are wrong only
if no visit moves them, so s is the share of rows that reject the moves of all visits of the run. If a function returns
the starts, only a chain without any movement is wrong.

The score identities show neither, because they use the same local values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
import math
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_sgmcmc.diagnostics.run import Draws, Run
from numpyro_sgmcmc.local.models import drawn_locally, makes_moves, recorded_draw
from numpyro_sgmcmc.report.check import Checks, Line
from numpyro_sgmcmc.rows.schemes import independent_rows
from numpyro_sgmcmc.tuning.coordinates import raveled, unraveler
from numpyro_sgmcmc.utils.significance import ERRORS, largest_z_score
from numpyro_sgmcmc.utils.workarounds.in_place import read_at

PLACES = 100  # draws of the run, each with a minibatch of its own
VISITS = 40  # at most so many visits to a row with a stored value
OF_A_FUNCTION = 0.3, 0.99  # bounds of s, if a function returns the starts
SMALLER = "Use a smaller step_size than {run.local.step_size:g}"

LOCAL_CHECKS = Checks()


@dataclass(frozen=True, eq=False)
class WithLocal:
    """A run with local sites."""

    run: Run
    draws: Draws | None  # the places to measure at; None if local values are kept, which fit the last position only
    rng_key: jax.Array

    @property
    def local(self) -> Any:
        """The sampler of the local sites."""
        return self.run.kernel.sampled_model.local

    @property
    def visits(self) -> float:
        """The number of visits to a row whose value is kept, otherwise 1."""
        if not self.run.keeps_local_values:
            return 1.0
        ((size, batch),) = self.run.potential.plates.values()
        return max(float(self.run.steps.min()) * batch / size, 1.0)

    @property
    def better(self) -> str:
        """What makes draws forget their starts."""
        local = self.local
        if hasattr(local, "moves"):
            return f"more moves than {local.moves}"
        return f"more sweeps than {local.sweeps}" if hasattr(local, "sweeps") else "more moves in the function"

    def over_places(self, fn: Callable, visits: int, rng_key: jax.Array) -> Any:
        """
        ``fn(potential, z, table, key)`` at draws, or at the last position of each chain if values are kept, as their
        table fits this position only. The places are along axis 0 of the results, fewer for many visits.
        """

        def at_places(potential, z, table, keys):
            unravel = unraveler(potential.prototype)
            return lax.map(lambda each: fn(potential, unravel(each[0]), table, each[1]), (z, keys))

        places, at_draws, results = max(PLACES // visits, 10), self.run.compiled(at_places), []
        if self.draws is None:
            chains = self.run.states[:places]
            visits_of_chain = -(-places // len(chains))
            starts = [(np.repeat(raveled(chain.z)[None], visits_of_chain, 0), chain.gradient_state) for chain in chains]
        else:
            starts = [(self.draws.flat[:: max(1, len(self.draws.flat) // places)], ())]
        for k, (z, table) in enumerate(starts):
            keys = random.split(random.fold_in(rng_key, k), len(z))
            results.append(at_draws(jnp.asarray(z, jnp.result_type(float)), table, keys))
        return jax.tree.map(lambda *x: np.concatenate([np.asarray(each, float) for each in x]), *results)


def local_lines(run: Run, draws: Draws | None, rng_key: jax.Array) -> dict[str, Line]:
    """Empty if there are no local sites."""
    if not isinstance(run.kernel.sampled_model, drawn_locally):
        return {}
    local, checks = WithLocal(run, draws, rng_key), Checks(LOCAL_CHECKS)
    if callable(getattr(local.local, "start", None)):
        del checks["local_memory"]
        checks["local_moves"] = replace(checks["local_moves"], bounds=OF_A_FUNCTION)
    return checks.lines(local)


@LOCAL_CHECKS.add("memory of the starts of local chains", ERRORS, "<= {0:.0%}", "Use {run.better}")
def local_memory(run: WithLocal) -> Line:
    visits = int(min(run.visits, VISITS))

    def chain(potential, z, rows, rng_key):
        """Start and end of local chains, which continue for all visits."""
        first, *others = random.split(rng_key, visits)
        begin = recorded_draw(potential, z, rows, first)
        if not others:
            return begin, begin.values
        has_value = jnp.ones(len(next(iter(rows.values()))))

        def again(carry, key):
            draw = recorded_draw(potential, z, rows, key, (carry[0], has_value))
            return (draw.stored, draw.values), None

        (_, values), _ = lax.scan(again, (begin.stored, begin.values), jnp.stack(others))
        return begin, values

    def pairs_of_chains(potential, z, _, rng_key):
        key_rows, *keys = random.split(rng_key, 3)
        rows = independent_rows(key_rows, potential.plates)
        (begin, ends), (other, other_ends) = (chain(potential, z, rows, key) for key in keys)
        pairs = {name: ((begin.start[name], other.start[name]), (ends[name], other_ends[name])) for name in ends}
        return {name: _products(begin.plates[name], *pair) for name, pair in pairs.items()}

    products = run.over_places(pairs_of_chains, visits, random.split(run.rng_key)[0])
    return _memory(run.local, products, run.visits / visits)


def _products(plates, *pairs):
    """
    Means over the rows of the squared difference of two starts, of its product with that of the two ends, and of the
    sizes of both differences, shape ``(4, coordinates)``. In the first two, rows whose starts differ by more than the
    median are divided by this difference, so that one start in the tail of its prior does not decide.
    """
    differences = (jnp.subtract(*(x.astype(jnp.result_type(float)) for x in pair)) for pair in pairs)
    starts, ends = (x.reshape(math.prod(x.shape[:plates]), -1) for x in differences)
    scale = jnp.maximum(jnp.abs(starts), jnp.median(jnp.abs(starts), 0))
    a, b = (jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1), 0) for x in (starts, ends))
    return jnp.stack([(a * a).mean(0), (a * b).mean(0), jnp.abs(starts).mean(0), jnp.abs(ends).mean(0)])


def _memory(local, products, more):
    """
    :param products: local site -> those of :func:`_products` at each place, shape ``(places, 4, coordinates)``.
    :param more: visits of the run for each that was made here.
    """
    names = [f"{site}[{k}]" if x.shape[2] > 1 else site for site, x in products.items() for k in range(x.shape[2])]
    squares, mixed, starts, ends = np.moveaxis(np.concatenate(list(products.values()), 2), 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = mixed.mean(0) / squares.mean(0)
        error = np.sqrt(((mixed - slope * squares) ** 2).sum(0)) / squares.sum(0)
        ratio = starts.mean(0) / ends.mean(0)  # of the widths
    fixed = squares.mean(0) == 0  # starts that are all the same have no memory
    slope, error = np.where(fixed, 0, slope), np.where(fixed, 0, error)
    error, slope = error * more * np.abs(slope) ** (more - 1), np.sign(slope) * np.abs(slope) ** more
    certain = np.maximum(np.abs(slope) - largest_z_score(len(slope), len(mixed) - 1) * error, 0)
    share = np.nan_to_num(certain * np.where(fixed, 0, ratio), posinf=0) ** 2
    size = np.maximum(certain, share)
    worst = int(np.argmax(np.where(np.isnan(size), np.inf, size)))
    return Line(
        float(slope[worst]),
        f"{slope[worst]:+.1%} +- {error[worst]:.1%} at {names[worst]}, {min(share[worst], 1):.1%} of its variance",
        seen=f"the draws of {type(local).__name__} of {names[worst]} depend on where they start",
        size=float(size[worst]),
        details={"where": names[worst], "error": float(error[worst]), "share": float(min(share[worst], 1))},
    )


@LOCAL_CHECKS.add("rows whose local moves are all rejected", ERRORS, "<= {0:.0%}", SMALLER)
def local_moves(run: WithLocal) -> Line | None:
    if not makes_moves(run.run.kernel.sampled_model):
        return None
    sites: tuple[str, ...] = ()
    visits, kept = int(min(run.visits, VISITS)), run.run.keeps_local_values

    def shares(potential, z, table, rng_key):
        key_rows, key_draws = random.split(rng_key)
        rows = independent_rows(key_rows, potential.plates)
        before = read_at(table, *rows.values()) if kept else None

        def accepted(key):
            nonlocal sites
            record = recorded_draw(potential, z, rows, key, before)
            sites = tuple(record.values)
            assert record.accepted is not None
            return record.accepted.mean(), record.accepted.any(0)

        mean, moved = lax.map(accepted, random.split(key_draws, visits))
        return mean.mean(), 1 - moved.any(0).mean()

    mean, still = run.over_places(shares, visits, random.split(run.rng_key)[1])
    share, error = max(float(still.mean()), 0.0), float(still.std() / len(still) ** 0.5)
    return Line(
        share,
        f"{share:.1%} +- {error:.1%}; {mean.mean():.1%} of the moves accepted",
        seen=f"local values of {' and '.join(map(repr, sites))} stay at their start",
        size=share - 3 * error,
        details={"acceptance": float(mean.mean()), "error": error, "visits": visits, "sites": sites},
    )
