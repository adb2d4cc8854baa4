"""``gradient_noise``: the variance of a kernel's gradient estimate, and its effect on the draws."""

from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_sgmcmc.diagnostics.run import states_of
from numpyro_sgmcmc.engine.sgmcmc import SGMCMC
from numpyro_sgmcmc.engine.state import SGMCMCState, Stream, derive_key
from numpyro_sgmcmc.potential.centred import centred_potential
from numpyro_sgmcmc.rows.schemes import next_rows
from numpyro_sgmcmc.tuning.coordinates import Identity, gradient_in_x, unraveler
from numpyro_sgmcmc.tuning.start import PROBES, gradient_variance
from numpyro_sgmcmc.types import Sites
from numpyro_sgmcmc.utils.validation import checked_count


class GradientNoise(NamedTuple):
    """
    - **variance** - the variance s^2 of the gradient estimate in each coordinate, a dict like ``z``.
    - **inflation** - the relative variance that it adds to z with the kernel's dynamics and the step size of the state,
      if batches are independent. Reshuffled rows add less. After a warm-up that has chosen coordinates, it is that of a
      posterior whose coordinates are then independent and of variance 1. NaN for a dynamics for which it is not known,
      such as a recipe.
    """

    variance: Sites
    inflation: Sites


def gradient_noise(
    kernel: SGMCMC, state: SGMCMCState, *model_args: Any, num_batches: int = PROBES, **model_kwargs: Any
) -> GradientNoise:
    r"""
    The noise of a kernel's gradient estimator at a state. Measure it before a long run.

    To first order in h, white noise of variance :math:`s^2` adds to the variance of each coordinate the share
    :math:`h s^2 / 2` for SGLD and :math:`h s^2 / (2 \gamma)` for SGHMC; MSGNHT finds the friction that balances it,
    SGNHT that for the mean over the coordinates. For NOGIN it is the remainder that arises if this variance differs
    from the one in ``noise_variance`` of the state.

    The result depends on the state of the estimator: the noise of :class:`~numpyro_sgmcmc.SVRG` increases from one full
    pass to the next, and the tables of :class:`~numpyro_sgmcmc.SAGA` are up to date at the start.

    :param kernel: the kernel, with the estimator in question.
    :param state: a state of that kernel, of one chain or several, for example ``mcmc.last_state``. To compare
        estimators at one position, start each with ``kernel.init(rng_key, 0, z, model_args, model_kwargs)``.
    :param model_args, model_kwargs: arguments of the model.
    :param int num_batches: number of minibatches; the relative error of the variance is about
        ``sqrt(2 / num_batches)``.
    :return: variance and inflation, with chains along the first axis if the state has several.

    **Example**

    .. doctest::

        >>> from jax import random
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> from numpyro_sgmcmc import SAGA, SGHMC, gradient_noise
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     with numpyro.plate("N", len(x)) as rows:
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x[rows])
        >>> x = 3 + random.normal(random.key(0), (1000,))
        >>> plain = SGHMC(model, step_size=1e-3, friction=10.0, batch_size=100)
        >>> state = plain.init(random.key(1), 0, {"mu": 3.0}, (x,), {})
        >>> noise = gradient_noise(plain, state, x)  # s^2 is about N^2 / n = 1e4, less 10 % without replacement
        >>> bool(8e3 < noise.variance["mu"] < 1e4), bool(0.4 < noise.inflation["mu"] < 0.5)
        (True, True)
        >>> saga = SGHMC(model, step_size=1e-3, friction=10.0, batch_size=100, gradient=SAGA())
        >>> state = saga.init(random.key(1), 0, {"mu": 3.0}, (x,), {})
        >>> bool(gradient_noise(saga, state, x).variance["mu"] < 1e-3)
        True
    """
    if not isinstance(state, SGMCMCState):
        raise TypeError(
            f"state= must be a state of the kernel, not {type(state).__name__}: give mcmc.last_state after a run, or "
            "kernel.init(rng_key, 0, None, model_args, model_kwargs). For Tempered give mcmc.sampler.kernel and "
            "mcmc.last_state.cold."
        )
    if not isinstance(kernel, SGMCMC):
        raise TypeError(
            f"kernel= must be a kernel of numpyro_sgmcmc, such as mcmc.sampler, not {type(kernel).__name__}."
        )
    num_batches = checked_count("num_batches", num_batches)
    if num_batches < 2:
        raise ValueError(f"num_batches={num_batches}: a variance needs at least 2.")

    def probe(usual, state):
        potential, chain = centred_potential(usual, state.settings.centering), kernel.chain_for(usual)
        z = usual.in_variables_of(potential, state.z)
        key_probes = derive_key(state.rng_key, Stream.PROBE)
        coordinates = state.settings.coordinates

        def gradient_fn(k):
            key = random.fold_in(key_probes, k)
            coming = state.rows_state._replace(t=jnp.asarray(state.rows_state.t + k, jnp.uint32))
            rows, _ = next_rows(chain.rows, coming, potential.plates, state.settings.contiguous)
            return lambda z: chain.evaluate(potential, z, rows, state.gradient_state, key)

        variance = gradient_variance(lambda k: gradient_fn(k)(z).gradient, num_batches)
        if isinstance(coordinates, Identity):
            return GradientNoise(variance, chain.dynamics.inflation(state.phase, state.step_size, variance))
        here = lambda k: gradient_in_x(gradient_fn(k), coordinates, potential.prototype)(state.x)  # noqa: E731
        own = gradient_variance(lambda k: here(k).gradient, num_batches)
        added = chain.dynamics.inflation(state.phase, state.step_size, own)
        relative = coordinates.variances(added) / coordinates.variances(jnp.ones_like(added))
        return GradientNoise(variance, unraveler(potential.prototype)(relative))

    def probes(potential, state):
        return jax.vmap(lambda state: probe(potential, state))(state) if state.i.ndim else probe(potential, state)

    measure = kernel.compiled(probes, model_args, model_kwargs)
    if isinstance(state.settings.coordinates, Identity) or not jnp.ndim(state.i):
        return measure(state)
    # chains share fields of the state
    return jax.tree.map(lambda *chains: jnp.stack(chains), *map(measure, states_of(kernel, state)))
