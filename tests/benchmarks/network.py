"""A network of MNIST's size: a step of each sampler against a plain optax SGD step of the same network."""

from bench import arguments, neighbours, random_rows, ratio, save, seconds, side_by_side, stepping, table
import jax
from jax import lax, random
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax

from numpyro_sgmcmc import MSGNHT, SGHMC, SGLD, Reshuffled, WithReplacement
from numpyro_sgmcmc.utils import noise

SHAPES = {"w1": (784, 100), "b1": (100,), "w2": (100, 10), "b2": (10,)}
H = 1e-6


def logits(p, X):
    return jax.nn.relu(X @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def model(X, y):
    p = {name: numpyro.sample(name, dist.Normal(0, 1).expand(s).to_event(len(s))) for name, s in SHAPES.items()}
    with numpyro.plate("N", len(X)) as rows:
        numpyro.sample("y", dist.Categorical(logits=logits(p, X[rows])), obs=y[rows])


def start():
    keys = random.split(random.key(0), len(SHAPES))
    return {name: 0.05 * random.normal(key, shape) for key, (name, shape) in zip(keys, SHAPES.items())}


def optax_sgd(X, y, rows, steps, noise=False):
    """Plain stochastic gradient descent; with ``noise`` it is Langevin dynamics written by hand."""
    N, optimizer = len(X), optax.sgd(H)

    @jax.jit
    def loop(p, key, X, y):
        def step(carry, _):
            p, state, key = carry
            key, key_rows, key_noise = random.split(key, 3)
            batch = rows(key_rows)

            def loss(p):
                nll = optax.softmax_cross_entropy_with_integer_labels(logits(p, X[batch]), y[batch])
                return N * nll.mean() + 0.5 * noise * sum(jnp.sum(w**2) for w in p.values())

            updates, state = optimizer.update(jax.grad(loss)(p), state)
            p = optax.apply_updates(p, updates)
            if noise:
                p = jax.tree.map(lambda w, n: w + (2 * H) ** 0.5 * n, p, by_jax(key_noise, p))
            return (p, state, key), None

        return lax.scan(step, (p, optimizer.init(p), key), None, length=steps)[0][0]

    return lambda: loop(start(), random.key(1), X, y)


def by_jax(rng_key, tree):
    keys = random.split(rng_key, len(tree))
    return {name: random.normal(key, x.shape) for key, (name, x) in zip(keys, tree.items())}


def normals(draw, steps):
    """The noise of a step and nothing else."""

    @jax.jit
    def loop(key):
        def step(sums, k):
            return jax.tree.map(jnp.add, sums, draw(random.fold_in(key, k), sums)), None

        return lax.scan(step, {n: jnp.zeros(s) for n, s in SHAPES.items()}, jnp.arange(steps))[0]

    return lambda: loop(random.key(2))


def compare(data, B, steps, repeats):
    N = len(data[0])

    def ours(kernel_class, **options):
        kernel = kernel_class(model, step_size=H, batch_size=B, steps_per_sample=steps, **options)
        return stepping(kernel, data, start=start())

    cells = {
        "optax SGD": optax_sgd(*data, random_rows(N, B), steps),
        "optax SGD, neighbouring rows": optax_sgd(*data, neighbours(N, B), steps),
        "normal numbers of JAX alone": normals(by_jax, steps),
        "normal numbers of ours alone": normals(noise.normal_like, steps),
        "optax SGD with noise, by hand": optax_sgd(*data, random_rows(N, B), steps, noise=True),
        "SGLD, random rows": ours(SGLD, rows=WithReplacement()),
        "SGLD": ours(SGLD),
        "SGLD, contiguous rows": ours(SGLD, rows=Reshuffled(contiguous=True)),
        "SGHMC": ours(SGHMC),
        "SGHMC ssi": ours(SGHMC, integrator="ssi"),
        "MSGNHT": ours(MSGNHT),
        "MSGNHT ssi": ours(MSGNHT, integrator="ssi"),
    }
    laps = side_by_side(cells, repeats)
    return [
        {
            "name": name,
            "us": seconds(laps, name) / steps * 1e6,
            "images a second": B * steps / seconds(laps, name),
            "over SGD": ratio(laps, name, "optax SGD"),
            "over SGLD": ratio(laps, name, "SGLD"),
        }
        for name in cells
    ]


def main(args):
    N = 2_000 if args.fast else 60_000
    data = random.normal(random.key(3), (N, 784)), random.randint(random.key(4), (N,), 0, 10)
    text = "## Neural network\n\n784-100-10, 79 510 weights, 60 000 images of noise. "
    text += "Over a step of plain SGD, and of SGLD.\n\n"
    numbers = {}
    for B, steps in ((100, 10),) if args.fast else ((100, 1000), (1000, 200)):
        rows = numbers[f"B = {B}"] = compare(data, B, steps, 1 if args.fast else args.repeats)
        text += (
            table(
                [f"B = {B}", "µs", "images a second", "over SGD", "over SGLD"],
                [
                    [
                        r["name"],
                        f"{r['us']:.0f}",
                        f"{r['images a second']:,.0f}",
                        f"{r['over SGD']:.2f}",
                        f"{r['over SGLD']:.2f}",
                    ]
                    for r in rows
                ],
            )
            + "\n"
        )
    save(args, "network", text, numbers)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    main(parser.parse_args())
