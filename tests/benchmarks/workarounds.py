"""
What works around XLA beside the plain form, on a CPU: a piece whose ratio is about 1 on all supported versions can go.

``python tests/benchmarks/workarounds.py``, a minute.
"""

from unittest import mock

from bench import arguments, ratio, save, seconds, side_by_side, table
import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_sgmcmc.utils import noise
from numpyro_sgmcmc.utils.workarounds import loop
from numpyro_sgmcmc.utils.workarounds.in_place import add_at, read_at
from numpyro_sgmcmc.utils.workarounds.lockstep import when_any

WEIGHTS, ROWS, STEPS = 79_510, 10**6, 200
BY_ROW, BY_BATCH = (10**6, 1, 100), (10**4, 100, 1)  # units of a table, numbers of each, units of a minibatch


def repeated(step, start, steps=STEPS):
    """``step(k, carry)`` in a compiled loop; the carry is made anew by every call."""
    run = jax.jit(lambda: lax.fori_loop(0, steps, step, start()))
    return lambda: run()


def normals(draw, uses):
    """Numbers that are used so many times, as by the letters of a word."""

    def step(k, sums):
        n = draw(random.fold_in(random.key(0), k))
        return tuple(0.9 * s + (j + 1) * n for j, s in enumerate(sums))

    return repeated(step, lambda: (jnp.zeros(WEIGHTS),) * uses)


def with_barrier(draw):
    """``draw`` as on versions that need no ``cond`` that is always true."""

    def drawn(key):
        with mock.patch.object(jax, "__version_info__", (0, 11)):
            return draw(key)

    return drawn


def tables(read, add, units, size, B):
    """Steps that replace the gradients of a batch, ``size`` numbers each, in a table."""

    def step(k, carry):
        values, total = carry
        rows = (jnp.arange(B) * 9973 + k * 101) % units
        change = jnp.cos(total + jnp.arange(size)) - read(values, rows)
        return add(values, rows, change), 0.9 * total + change.sum(0)

    return repeated(step, lambda: (jnp.zeros((units, size)), jnp.zeros(size)), 5 * STEPS)


def full_passes(choose):
    """Four chains with counters of their own, of which each needs all rows in every hundredth step."""
    data = random.normal(random.key(0), (ROWS // 10,))

    def step(carry):
        i, x = carry
        return i + 1, choose(i % 100 == 0, lambda x: jnp.sin(x * data).mean(), x, 0.9 * x)

    of_chain = lambda carry: lax.fori_loop(0, STEPS, lambda _, carry: step(carry), carry)  # noqa: E731
    run = jax.jit(jax.vmap(of_chain))
    return lambda: run((jnp.zeros(4, jnp.int32), jnp.ones(4)))


def large_steps(repeat):
    """Steps of twenty sines of a million numbers, as a loop of one kernel and as a loop with a library call."""

    def step(x):
        for _ in range(20):
            x = jnp.sin(x)
        return x

    run = jax.jit(lambda: repeat(step, jnp.ones(10**6), STEPS // 20))
    return lambda: run()


def main(args):
    plainly = lambda table, rows: table[rows]  # noqa: E731
    by_barrier = lambda table, rows: lax.optimization_barrier(table[rows])  # noqa: E731
    scatter = lambda table, rows, change: table.at[rows].add(change)  # noqa: E731
    ours = lambda key: noise.normal(key, (WEIGHTS,), jnp.float32)  # noqa: E731
    cond = lambda due, fn, x, other: lax.cond(due, fn, lambda _: other, x)  # noqa: E731
    pairs = {
        "`box_muller`": (normals(ours, 1), normals(lambda key: random.normal(key, (WEIGHTS,)), 1)),
        "its `cond`, against a barrier": (normals(ours, 2), normals(with_barrier(ours), 2)),
        "`loop.repeat`": (
            large_steps(loop.repeat),
            large_steps(lambda step, x, n: lax.fori_loop(0, n, lambda _, x: step(x), x)),
        ),
        "`in_place.read_at`, units of rows": (tables(read_at, add_at, *BY_ROW), tables(plainly, add_at, *BY_ROW)),
        "`in_place.read_at`, of batches": (tables(read_at, add_at, *BY_BATCH), tables(plainly, add_at, *BY_BATCH)),
        "the same against a barrier": (tables(read_at, add_at, *BY_BATCH), tables(by_barrier, add_at, *BY_BATCH)),
        "`in_place.add_at`": (tables(read_at, add_at, *BY_ROW), tables(read_at, scatter, *BY_ROW)),
        "`lockstep.when_any`": (full_passes(when_any), full_passes(cond)),
    }
    numbers = []
    for name, (piece, plain) in pairs.items():
        laps = side_by_side({"piece": piece, "plain": plain}, 1 if args.fast else 7)
        numbers.append({"piece": name, "ratio": ratio(laps, "plain", "piece"), "ms": seconds(laps, "piece") * 1e3})
    cells = [[n["piece"], f"{n['ms']:.1f}", f"{n['ratio']:.2f}"] for n in numbers]
    text = "## Workarounds\n\nTimes on a CPU; the ratio is the plain form's time over ours.\n\n" + table(
        ["piece", "ms", "plain form / ours"], cells
    )
    save(args, "workarounds", text, numbers)


if __name__ == "__main__":
    main(arguments(__doc__).parse_args())
