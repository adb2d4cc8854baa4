"""
SGMCMCJax 0.2.13 against the hand-written scan of its own JAX: it does not import on the versions we support.

In an environment of its own: ``pip install sgmcmcjax==0.2.13 jax==0.4.23 jaxlib==0.4.23 'numpy<2' 'scipy<1.13'``, then
``python sgmcmcjax_peer.py``. Its rows stand beside ours, both over the limit of their own JAX.
"""

import argparse
import json
from pathlib import Path
import statistics
import time

import jax
from jax import lax, random
import jax.numpy as jnp
from sgmcmcjax.kernels import build_sgld_kernel

H = 1e-6


def hand_written(X, y, B, steps):
    N, d = X.shape

    @jax.jit
    def loop(key, X, y):
        def step(carry, _):
            w, key = carry
            key, key_rows, key_noise = random.split(key, 3)
            batch = random.randint(key_rows, (B,), 0, N)

            def energy(w):
                logits = X[batch] @ w
                return 0.5 * w @ w + N / B * jnp.sum(jax.nn.softplus(logits) - y[batch] * logits)

            return (w - H * jax.grad(energy)(w) + jnp.sqrt(2 * H) * random.normal(key_noise, (d,)), key), None

        return lax.scan(step, (jnp.zeros(d), key), None, length=steps)[0]

    return lambda: loop(random.PRNGKey(1), X, y)


def peer(X, y, B, steps):
    def loglikelihood(w, x, y):
        return y * (x @ w) - jax.nn.softplus(x @ w)

    init, kernel, get = build_sgld_kernel(H, loglikelihood, lambda w: -0.5 * w @ w, (X, y), B)

    @jax.jit
    def loop(key):
        def step(state, k):
            return kernel(k, random.fold_in(key, k), state), None

        return get(lax.scan(step, init(key, jnp.zeros(X.shape[1])), jnp.arange(steps))[0])

    return lambda: loop(random.PRNGKey(2))


def lap(fn):
    begin = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - begin


def main(args):
    numbers = []
    for N, B, d in ((10**5, 100, 50), (10**6, 100, 50), (10**6, 1000, 50)):
        X = random.normal(random.PRNGKey(0), (N, d))
        y = random.bernoulli(random.PRNGKey(3), 0.5, (N,)).astype(jnp.float32)
        steps = 20_000 if B == 100 else 4_000
        ours, theirs = hand_written(X, y, B, steps), peer(X, y, B, steps)
        lap(ours), lap(theirs)
        laps = [(lap(ours), lap(theirs)) for _ in range(args.repeats)]
        limit = statistics.median(a for a, _ in laps) / steps * 1e6
        ratio = statistics.median(b / a for a, b in laps)
        numbers.append({"N": N, "B": B, "d": d, "limit": limit, "ratio": ratio})
    text = (
        f"## SGMCMCJax\n\nVersion 0.2.13 on jax {jax.__version__}, SGLD, over the hand-written scan there.\n\n"
        "| N | B | d | hand-written, µs | SGMCMCJax |\n| --- | --- | --- | --- | --- |\n"
    )
    text += "".join(f"| {n['N']:.0e} | {n['B']} | {n['d']} | {n['limit']:.2f} | {n['ratio']:.2f} |\n" for n in numbers)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "sgmcmcjax_peer.md").write_text(text)
    (args.out / "sgmcmcjax_peer.json").write_text(json.dumps(numbers) + "\n")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    main(parser.parse_args())
