"""
What one transition costs in NumPyro's own loop, with the progress bar and without, at 1 and at 100 steps: a kernel of
ours beside one written by hand. ``python tests/benchmarks/calls.py`` prints a table; some eight minutes. With
``--jitted`` there is no loop of NumPyro: a jitted call of 100 steps, with random and with contiguous rows.
"""

import argparse
import contextlib
import io
import time
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from numpyro.infer.mcmc import MCMCKernel

from numpyro_sgmcmc import SGHMC, SGLD, Reshuffled, WithReplacement

H, FRICTION = 1e-7, 1.0


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ w), obs=y[rows])


class State(NamedTuple):
    z: Any
    momentum: Any
    i: Any
    diverging: Any
    rng_key: Any


class ByHand(MCMCKernel):
    """The same update with as little around it as MCMC allows."""

    sample_field, default_fields, model, _sample_fn = "z", ("z", "diverging"), None, True

    def __init__(self, batch_size, steps, underdamped, contiguous=False):
        self.batch_size, self.steps, self.underdamped, self.contiguous = batch_size, steps, underdamped, contiguous

    def get_diagnostics_str(self, state):
        return ""

    def postprocess_fn(self, args, kwargs):
        return lambda z: z

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        w = jnp.zeros(model_args[0].shape[1])
        key = random.key_data(rng_key) if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else rng_key
        return State({"w": w}, w if self.underdamped else (), jnp.int32(0), jnp.zeros((), bool), key)

    def sample(self, state, model_args, model_kwargs):
        X, y = model_args
        N, n = len(X), self.batch_size

        def potential(w, rows):
            logits = X[rows] @ w
            return 0.5 * w @ w + N / n * jnp.sum(jax.nn.softplus(logits) - y[rows] * logits)

        def step(carry):
            w, p, i = carry
            key_rows, key_noise = random.split(random.fold_in(state.rng_key, i))
            start = random.randint(key_rows, () if self.contiguous else (n,), 0, N)
            rows = (start + jnp.arange(n)) % N if self.contiguous else start
            noise = random.normal(key_noise, w.shape)
            if not self.underdamped:
                return w - H * jax.grad(potential)(w, rows) + np.sqrt(2 * H) * noise, p, i + 1
            w = w + H / 2 * p
            kick, c = H / 2 * jax.grad(potential)(w, rows), np.exp(-FRICTION * H)
            p = c * (p - kick) + np.sqrt(1 - c * c) * noise - kick
            return w + H / 2 * p, p, i + 1

        carry = state.z["w"], state.momentum, state.i
        w, p, i = step(carry) if self.steps == 1 else lax.fori_loop(0, self.steps, lambda _, c: step(c), carry)
        return State({"w": w}, p, i, ~jnp.isfinite(w).all(), random.split(state.rng_key, 1)[0])


def seconds(kernel, data, transitions, bar):
    with contextlib.redirect_stderr(io.StringIO()):
        mcmc = MCMC(kernel, num_warmup=0, num_samples=transitions, progress_bar=bar)
        start = time.perf_counter()
        mcmc.run(random.key(0), *data)
        jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - start


def microseconds(kernel, data, transitions, bar):
    """Of a transition, from the difference of two runs, so that what is compiled does not count."""
    few, many = (seconds(kernel, data, n, bar) for n in (transitions, 5 * transitions))
    return (many - few) / (4 * transitions) * 1e6


def jitted_calls(kernel, data, calls):
    """A function that times so many calls of a compiled transition, in microseconds each."""
    state = kernel.init(random.PRNGKey(0), 0, None, data, {})
    call = jax.jit(lambda state, *data: kernel.sample(state, data, {}))
    state = jax.block_until_ready(call(state, *data))

    def timed():
        nonlocal state
        start = time.perf_counter()
        for _ in range(calls):
            state = call(state, *data)
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / calls * 1e6

    return timed


def jitted(args):
    print("| N | rows | kernel | ours, us | by hand, us | ratio |\n|---|---|---|---|---|---|")
    for rows in args.sizes:
        data = simulated(rows, args.columns)
        for contiguous in (False, True):
            for kernel_class in (SGLD, SGHMC):
                scheme = Reshuffled(contiguous=True) if contiguous else WithReplacement()
                options = {"step_size": H, "batch_size": args.batch_size, "rows": scheme}
                ours = kernel_class(model, steps_per_sample=100, **options)
                hand = ByHand(args.batch_size, 100, kernel_class is SGHMC, contiguous)
                pair = [jitted_calls(kernel, data, 300) for kernel in (ours, hand)]
                times = np.array([[timed() for timed in pair] for _ in range(args.repeat)])
                us, ratio = np.median(times, 0), np.median(times[:, 0] / times[:, 1])
                which = "contiguous" if contiguous else "random"
                print(
                    f"| {rows:.0e} | {which} | {kernel_class.__name__} | {us[0]:.0f} | {us[1]:.0f} | {ratio:.2f} |",
                    flush=True,
                )


def simulated(rows, columns):
    key_X, key_y = random.split(random.key(1))
    return random.normal(key_X, (rows, columns)), random.bernoulli(key_y, 0.5, (rows,)).astype(float)


def main(args):
    data = simulated(args.rows, args.columns)
    print(
        f"jax {jax.__version__}, N = {args.rows}, d = {args.columns}, n = {args.batch_size}, medians of {args.repeat}"
    )
    print("| bar | steps | kernel | ours, us | by hand, us | ratio |\n|---|---|---|---|---|---|")
    for bar, transitions in (True, 1000), (False, 20_000):
        for steps in (1, 100):
            for kernel_class in (SGLD, SGHMC):
                options = {"step_size": H, "batch_size": args.batch_size, "rows": WithReplacement()}
                pair = (
                    kernel_class(model, steps_per_sample=steps, **options),
                    ByHand(args.batch_size, steps, kernel_class is SGHMC),
                )
                n = max(300, transitions // steps)
                times = np.array([[microseconds(k, data, n, bar) for k in pair] for _ in range(args.repeat)])
                ours, hand = np.median(times, 0)
                ratio = np.median(times[:, 0] / times[:, 1])
                print(
                    f"| {bar} | {steps} | {kernel_class.__name__} | {ours:.1f} | {hand:.1f} | {ratio:.2f} |", flush=True
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--jitted", action="store_true", help="a jitted call of 100 steps, without NumPyro's loop")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**6, 10**7], help="rows, with --jitted")
    options = parser.parse_args()
    (jitted if options.jitted else main)(options)
