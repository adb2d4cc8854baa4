"""Ensembles of short chains on images of digits: starts, samplers, and the quality of what they predict."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from digit_kernels import ADAPTIVE, CONSTANT, ESTIMATED, Setting, digit_kernel
import jax
from jax import random
import jax.numpy as jnp
from networks import Network, classifier, ece, he
import numpy as np
from numpyro.infer import MCMC
import optax

from numpyro_sgmcmc import predict, warm_start

ADAM = "deep ensemble, Adam"
ROTATED = 2000  # test images that are turned by 90 degrees


class Plan(NamedTuple):
    """
    - **members** - of an ensemble, and chains.
    - **start**, **chain** - epochs of the optimised start, and of the chain behind it; a deep ensemble has both.
    - **cycle** - epochs of a cycle. At its start the step is the largest, and near its end it is almost 0. The last
      weights of each cycle are averaged.
    - **burn** - epochs of a chain without cycles that are its warm-up; a draw at the end of each of the others.
    - **batch** - rows of a minibatch.
    - **learning_rate** - Adam's, which falls to 0 as a cosine.
    - **momentum_rate** - first step of descent with momentum .9, which falls to 0 as a cosine: of a deep ensemble.
    - **decay** - share of the momentum that a step of a chain loses.
    - **spread** - the prior of a weight is N(0, spread / fan-in), that of a bias N(0, 1).
    - **settings** - of each kernel.
    """

    members: int
    start: int
    chain: int
    cycle: int
    burn: int
    batch: int
    learning_rate: float
    momentum_rate: float
    decay: float
    spread: float
    settings: Mapping[str, Setting]


class Ensembles:
    """All methods on one network and one data set, from the same starts."""

    def __init__(self, network: Network, data: Any, plan: Plan):
        self.network, self.data, self.plan = network, data, plan
        self.model = classifier(network, plan.spread)
        self.epoch = len(data.y) // plan.batch  # steps
        self.kept_starts: dict[int, dict] = {}

    def trained(self, seed: int, epochs: int, optimizer: Any) -> dict:
        """Members from He's starts. ``optimizer`` is a function of the number of steps."""
        plan, (key_start, key) = self.plan, random.split(random.key(seed))
        start = jax.vmap(partial(he, shapes=self.network.shapes))(random.split(key_start, plan.members))
        steps = epochs * self.epoch
        options = {"members": plan.members, "batch_size": plan.batch, "progress_bar": False}
        data = self.data.X, self.data.y
        return warm_start(self.model, key, *data, start=start, num_steps=steps, optimizer=optimizer(steps), **options)

    def adam(self, steps: int) -> Any:
        return optax.adam(optax.cosine_decay_schedule(self.plan.learning_rate, steps))

    def momentum(self, steps: int) -> Any:
        """Descent on the energy of all rows, so the rate is divided by their number."""
        rate = self.plan.momentum_rate / len(self.data.y)
        return optax.sgd(optax.cosine_decay_schedule(rate, steps), momentum=0.9)

    def starts(self, seed: int) -> dict:
        """Of the chains. All methods of a seed have the same."""
        if seed not in self.kept_starts:
            self.kept_starts = {seed: self.trained(seed, self.plan.start, self.adam)}
        return self.kept_starts[seed]

    def chains(self, name: str, setting: Setting, seed: int) -> dict:
        """The draws of a kernel that are averaged, those of all chains along the first axis."""
        plan, constant = self.plan, name == CONSTANT
        kernel = digit_kernel(
            self.model,
            name,
            setting,
            N=len(self.data.y),
            cycle=plan.cycle * self.epoch,
            decay=plan.decay,
            batch_size=plan.batch,
            steps_per_sample=self.epoch,
        )
        burn = plan.burn if constant else ESTIMATED * (name in ADAPTIVE)
        chains = {"num_chains": plan.members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=burn, num_samples=plan.chain - burn, **chains)
        extra = random.fold_in(random.key(seed), 1)
        mcmc.run(extra, self.data.X, self.data.y, init_params=self.starts(seed))
        # equal weights: weights by step size, which suit a posterior, would leave out the end of a cycle
        kept = constant | (np.arange(burn, plan.chain) % plan.cycle == plan.cycle - 1)
        draws = mcmc.get_samples(group_by_chain=True)
        return jax.tree.map(lambda x: x[:, kept].reshape(-1, *x.shape[2:]), draws)

    def scores(self, draws: dict) -> dict[str, float]:
        """Of the averaged predictions of weights with the members or draws in front."""
        data = self.data
        found = predict((self.model, draws), data.X_test, data.y_test)
        p = found.mean["y"]
        turned = jnp.rot90(data.X_test[:ROTATED].reshape(-1, *image(data)), axes=(1, 2))
        p_turned = predict((self.model, draws), turned.reshape(-1, *data.X_test.shape[1:])).mean["y"]
        return {
            "accuracy": 100 * float(np.mean(p.argmax(1) == data.y_test)),
            "nll": -float(found.log_density["y"].mean()),
            "ece": float(ece(np.log(np.maximum(p, 1e-30)), data.y_test)),
            "entropy": entropy(p),
            "rotated": entropy(p_turned),
        }

    def chain_scores(self, name: str, setting: Setting, seed: int) -> dict[str, float]:
        return self.scores(self.chains(name, setting, seed))


def image(data):
    """Shape of an image."""
    shape = data.X_test.shape[1:]
    return shape if len(shape) == 2 else (int(np.sqrt(shape[0])),) * 2


def entropy(p):
    """Mean entropy of predictions, in nats."""
    return float(-np.sum(p * np.log(np.maximum(p, 1e-30)), 1).mean())


def methods(ensembles: Ensembles, names: Any) -> dict[str, Callable[[int], dict]]:
    """
    Method -> function of a seed that returns weights: deep ensembles, the starts, and chains from them.

    :param names: which of the kernels, and ``ADAM`` for another deep ensemble.
    """
    plan = ensembles.plan
    epochs = plan.start + plan.chain
    other = {ADAM: lambda seed: ensembles.trained(seed, epochs, ensembles.adam)}
    return {
        "deep ensemble": lambda seed: ensembles.trained(seed, epochs, ensembles.momentum),
        "starts": ensembles.starts,
        **{n: other[n] if n in other else partial(ensembles.chains, n, plan.settings[n]) for n in names},
    }


def digit_scores(ensembles: Ensembles, run: Callable[[int], dict], seed: int) -> dict[str, dict[str, float]]:
    """Scores of the averaged predictions of one method and seed, and of those of its first member or draw alone."""
    draws = run(seed)
    found = {"averaged": draws, "one": jax.tree.map(lambda w: w[:1], draws)}
    return {name: ensembles.scores(draws) for name, draws in found.items()}
