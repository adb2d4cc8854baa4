r"""
``couple``: a bound on the bias caused by minibatches, from pairs of chains that share their noise.

X is the chain of the run, Y a chain with the same steps, the same random numbers and the gradient over all rows.
For any joint law of X and Y,

.. math:: W_2^2(\mathrm{law}\, X, \mathrm{law}\, Y) \le E |X - Y|^2

(Biswas & Mackey 2021, section 2; Dobson, Li & Zhai 2021). The inequality still holds in expectation if the same draws
are paired differently, as :math:`W_2^2` is convex: :math:`W_2^2 \le E W_2^2(\hat X_n, \hat Y_n)`. For one coordinate
the best pairs are those of equal rank, so the bound is

.. math:: \min\Big(E (X_j - Y_j)^2,\; \frac{1}{n} \sum_i (X_{(i)j} - Y_{(i)j})^2\Big)^{1/2} .

It bounds the errors of the mean and the sd of a coordinate, in sds of Y. The law of Y is the posterior, up to the error
of the step size: for ABOBA that is 0 on normal posteriors.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC

from numpyro_sgmcmc.diagnostics.continued_chains import continue_chains, with_changes
from numpyro_sgmcmc.diagnostics.pictures import coupling_picture
from numpyro_sgmcmc.diagnostics.run import Draws, Run, TooFewDraws
from numpyro_sgmcmc.diagnostics.scores import ALL_ROWS
from numpyro_sgmcmc.diagnostics.table import Table
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.gradients.control_variate import ControlVariate
from numpyro_sgmcmc.gradients.full_pass import full_gradient
from numpyro_sgmcmc.gradients.minibatch import Minibatch
from numpyro_sgmcmc.report.check import Line
from numpyro_sgmcmc.tuning.coordinates import unraveler
from numpyro_sgmcmc.types import Evaluation, GradientEstimator, Potential, Rows, Sites
from numpyro_sgmcmc.utils.monte_carlo import FEWEST, positive_sd
from numpyro_sgmcmc.utils.significance import ORDER
from numpyro_sgmcmc.utils.validation import check_key, checked_choice, checked_count

CLOSE, FAR = 0.1, 0.15  # in sds: upper bounds up to CLOSE are ok, lower bounds above FAR are wrong
ASSIGNED = 1000  # draws that are paired by an optimal assignment over all coordinates


class Coupled(Table):
    """
    - **bound** - site -> bounds for its coordinates, in sds.
    - **joint** - bound for all coordinates together, in the unconstrained units of z.
    - **lower** - lower bounds of the distance, like ``bound``.
    - **trace** - the distance between the two chains of each pair at each draw, shape ``(chains, draws)``.
    """

    bound: dict[str, np.ndarray]
    joint: float
    lower: dict[str, np.ndarray]
    trace: np.ndarray


@dataclass(frozen=True)
class AllRows(GradientEstimator):
    """The gradient over all rows, in chunks, at every step."""

    def start(self, potential: Potential, z: Sites, rng_key: jax.Array) -> tuple[()]:
        return ()

    def evaluate(
        self, potential: Potential, z: Sites, rows: Rows, gradient_state: Any, rng_key: jax.Array
    ) -> Evaluation:
        return Evaluation(potential.estimate(z, rows, rng_key), full_gradient(potential, z, rng_key), ())


def couple(
    mcmc: MCMC,
    rng_key: jax.Array,
    *model_args: Any,
    gradient: str | None = None,
    num_samples: int | None = None,
    num_warmup: int | None = None,
    **model_kwargs: Any,
) -> Coupled:
    r"""
    A bound on the Wasserstein distance between the draws and draws with exact gradients: on the bias by minibatches.

    Each chain continues from its last state together with a partner that has the same noise. Such chains approach each
    other where the posterior is log-concave. If they do not, the bound is large but still valid.

    :param mcmc: an :class:`~numpyro.infer.MCMC` that has run a kernel of this package; it is not changed.
    :param rng_key: random key.
    :param model_args, model_kwargs: arguments of the model; none: those of ``mcmc.run``.
    :param gradient: gradient of the partner: ``"full"``, all rows at every step; ``"control"``, a control variate at
        the mean of the draws, which has a little noise. None: ``"full"`` for at most 2000 rows, and for kernels with an
        estimator other than ``Minibatch()``.
    :param num_samples: draws of each pair; None: as many as the run has kept.
    :param num_warmup: warm-up draws before these, in which the partners converge; None: a quarter of ``num_samples``.
    :return: a mapping from sites to dicts with ``bound`` and ``lower`` of each coordinate, in sds; ``.bound`` has them
        by site, ``.joint`` is the bound for all coordinates together, in the units of z.
    :raises ValueError: if there was no run yet, the data are not those of the run, there are no minibatches, or fewer
        than 8 draws.

    **References:**

    1. *Bounding Wasserstein distance with couplings*, N. Biswas, L. Mackey (2021), arXiv 2112.03152, equation 4
    2. *Using coupling methods to estimate sample quality of stochastic differential equations*, M. Dobson, Y. Li,
       J. Zhai (2021)

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import MCMC
        >>> from numpyro_sgmcmc import SGHMC, WithoutReplacement, couple
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> kernel = SGHMC(model, step_size=2e-3, friction=30.0, batch_size=20, steps_per_sample=50,
        ...                rows=WithoutReplacement())  # adds h s^2 / (2 D) = 1.6 to the variance: sd x 1.6
        >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=200, progress_bar=False)
        >>> mcmc.run(random.key(1), x)
        >>> found = couple(mcmc, random.key(2), x, num_samples=2000)
        >>> bool(0.55 < found.bound["mu"] < 0.75), found.verdict
        (True, 'wrong')
    """
    run = Run(mcmc, model_args, model_kwargs, "couple", continues=True)
    check_key(rng_key, "couple(mcmc, jax.random.key(0), *model_args)")
    kernel = run.kernel
    if run.keeps_local_values:
        raise ValueError(
            'couple(mcmc): local= has start="previous", and a partner with another gradient cannot continue from the '
            "local values of the run. Use step_halving(mcmc, key, ...)."
        )
    if not run.potential.plates:
        raise ValueError(
            "couple(mcmc): no plate is minibatched, so the gradients are exact already. Use step_halving(mcmc, key, "
            "...) to check the step size."
        )
    kept = run.draws_of_a_chain if num_samples is None else checked_count("num_samples", num_samples)
    if kept < FEWEST:
        raise TooFewDraws(f"couple(mcmc) needs at least {FEWEST} draws of each pair, but {kept} are asked for.")
    left_out = kept // 4 if num_warmup is None else checked_count("num_warmup", num_warmup, least=0)
    plain = isinstance(kernel.gradient, Minibatch) and not run.samples_other_coordinates
    chosen = gradient or ("full" if run.rows[1] <= ALL_ROWS or not plain else "control")
    checked_choice("gradient", chosen, ("full", "control"))
    if chosen == "control" and run.samples_other_coordinates:
        raise ValueError(
            f'gradient="control" is not available for {type(kernel).__name__}, which samples other coordinates than '
            'those of the draws. Use gradient="full".'
        )
    same, states = with_changes(run)
    if chosen == "full":
        partner, partners = _with_gradient(same, states, AllRows(), [() for _ in states])
    else:
        draws = run.draws(4000)
        dtype = jax.tree.leaves(states[0].z)[0].dtype
        centre = unraveler(run.potential.prototype)(jnp.asarray(draws.flat.mean(0), dtype))
        estimator = ControlVariate(centre)
        start = run.compiled(lambda potential, key: estimator.start(potential, centre, key))
        partner, partners = _with_gradient(same, states, estimator, [start(rng_key)] * len(states))
    # the same key for both, so that they have the same rows and the same noise
    x = continue_chains(run, same, states, left_out, kept, rng_key)
    y = continue_chains(run, partner, partners, left_out, kept, rng_key)
    return _bounds(run, x, y)


def _with_gradient(kernel: SGMCMC, states: list, estimator: GradientEstimator, gradient_states: list) -> tuple:
    """The kernel with another estimator, and a gradient variance of 0 for NOGIN to subtract."""
    changed = []
    for state, gradient_state in zip(states, gradient_states):
        none = jax.tree.map(jnp.zeros_like, state.noise_variance)
        changed.append(state._replace(gradient_state=gradient_state, noise_variance=none))
    return kernel.replace(chain=replace(kernel.chain, gradient=estimator)), changed


def _bounds(run: Run, x: Draws, y: Draws) -> Coupled:
    bound, lower, joint = distances(x.z, y.z)
    sd = positive_sd(y.z)
    bound, lower = np.nan_to_num(bound / sd, nan=np.inf), np.nan_to_num(lower / sd, nan=np.inf)
    verdicts = ["ok" if b <= CLOSE else "wrong" if least > FAR else "doubtful" for b, least in zip(bound, lower)]
    lines = {}
    for site, own in x.by_site.items():
        shape = run.potential.prototype[site].shape
        worst = max(own, key=lambda j: (ORDER.index(verdicts[j]), bound[j]))
        lines[site] = Line(
            float(bound[worst]),
            f"{lower[worst]:.3f} to {bound[worst]:.3f} at {x.names[worst]}",
            f"<= {CLOSE}",
            verdicts[worst],
            f"minibatch noise moves the draws by up to so many sds. Use {run.use.less_noise}",
            {"bound": bound[own].reshape(shape), "lower": lower[own].reshape(shape)},
        )
    table = Coupled("Distance to the draws with exact gradients, in sds", lines, picture=coupling_picture)
    table.bound, table.lower = ({site: line.details[key] for site, line in lines.items()} for key in ("bound", "lower"))
    table.joint, table.trace = joint, np.sqrt(((x.z - y.z) ** 2).sum(-1))
    return table


def distances(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """
    Upper bounds of the Wasserstein distance of each coordinate, lower bounds from the means and sds (Gelbrich 1990),
    and an upper bound for all coordinates together, from paired draws, shape ``(chains, draws, d)``.
    """
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    paired = ((x - y) ** 2).mean(0)
    ranked = ((np.sort(x, 0) - np.sort(y, 0)) ** 2).mean(0)
    lower = np.hypot(x.mean(0) - y.mean(0), x.std(0) - y.std(0))
    joint = paired.sum()
    if np.isfinite(x).all() and np.isfinite(y).all():
        some = np.linspace(0, len(x) - 1, min(len(x), ASSIGNED)).round().astype(int)
        cost = ((x[some, None] - y[None, some]) ** 2).sum(-1)
        from scipy.optimize import linear_sum_assignment  # a dependency of jax; slow to import

        joint = min(joint, cost[linear_sum_assignment(cost)].mean())
    return np.sqrt(np.minimum(paired, ranked)), lower, float(np.sqrt(joint))
