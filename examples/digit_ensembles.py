"""Ensembles of short chains on images of digits: starts, samplers, and the quality of what they predict."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
from networks import Network, classifier, ece, he
import numpy as np
import numpyro
from numpyro.infer import MCMC
import optax

from numpyro_sgmcmc import MSGNHT, PSGLD, SGHMC, AdaptiveSGHMC, Cyclical, SGBarker, predict, warm_start

ADAM = "deep ensemble, Adam"
ROTATED = 2000  # test images that are turned by 90 degrees


class Cycles(NamedTuple):
    """
    - **epochs** - of a cycle. At its start the step is the largest, and near its end it is almost 0.
    - **kept** - a draw at the end of each of so many last epochs of a cycle.
    - **rate**, **temperature** - as those of a plan; the rate is that of the largest step.
    """

    epochs: int
    kept: int
    rate: float
    temperature: float


class Plan(NamedTuple):
    """
    - **members** - of an ensemble, and chains.
    - **start**, **chain** - epochs of the optimised start, and of the chain behind it; a deep ensemble has both.
    - **burn** - epochs of a chain without cycles that are its warm-up; a draw at the end of each of the others.
    - **batch** - rows of a minibatch.
    - **learning_rate** - Adam's, which falls to 0 as a cosine.
    - **rate**, **decay** - of a step of SGHMC, in the words of descent with momentum on the mean energy of a row:
      :math:`h = \\sqrt{rate \\cdot T / N}`, :math:`D = decay / h`.
    - **spread** - the prior of a weight is N(0, spread / fan-in), that of a bias N(0, 1).
    - **temperature** - T; chains sample :math:`\\exp(-U / T)`.
    - **momentum_rate** - first step of descent with momentum .9, which falls to 0 as a cosine: of a deep ensemble.
    - **cycles** - of the cyclical chain.
    """

    members: int
    start: int
    chain: int
    burn: int
    batch: int
    learning_rate: float
    rate: float
    decay: float
    spread: float
    temperature: float
    momentum_rate: float
    cycles: Cycles


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

    def kernels(self) -> dict:
        """
        Name -> kernel. The numbers of the others are chosen so that a step is about as long as one of SGHMC. Only
        SGHMC and cyclical SGHMC were looked at on held-out rows.
        """
        plan, N, T = self.plan, len(self.data.y), self.plan.temperature
        common = {"batch_size": plan.batch, "steps_per_sample": self.epoch}

        def sghmc(rate, T, schedule=lambda h: h):
            h = float(np.sqrt(rate * T / N))
            return SGHMC(self.tempered(T), step_size=schedule(h), friction=plan.decay / h, **common)

        h = float(np.sqrt(plan.rate * T / N))
        cycle = plan.cycles.epochs * self.epoch
        return {
            "SGHMC": sghmc(plan.rate, T),
            "cyclical SGHMC": sghmc(plan.cycles.rate, plan.cycles.temperature, lambda h: Cyclical(h, cycle)),
            "MSGNHT ssi": MSGNHT(self.tempered(T), step_size=h, diffusion=plan.decay / h, integrator="ssi", **common),
            "adaptive SGHMC": AdaptiveSGHMC(self.tempered(T), step_size=5e-3, friction=20.0, **common),
            "PSGLD": PSGLD(self.tempered(T), step_size=1e-4, **common),
            "SG-Barker": SGBarker(self.tempered(T), step_size=1e-6 * T, **common),
        }

    def tempered(self, temperature: float) -> Any:
        return numpyro.handlers.scale(self.model, scale=1 / temperature) if temperature != 1 else self.model

    def chains(self, kernel: Any, seed: int) -> dict:
        """The draws that are averaged, those of all chains along the first axis."""
        plan, cyclical = self.plan, isinstance(kernel.schedule, Cyclical)
        burn = 0 if cyclical else plan.burn
        chains = {"num_chains": plan.members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=burn, num_samples=plan.chain - burn, **chains)
        extra = random.fold_in(random.key(seed), 1)
        mcmc.run(extra, self.data.X, self.data.y, init_params=self.starts(seed))
        if not cyclical:
            return mcmc.get_samples()
        # equal weights: weights by step size, which suit a posterior, would leave out the end of a cycle
        kept = np.arange(plan.chain) % plan.cycles.epochs >= plan.cycles.epochs - plan.cycles.kept
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
    plan, kernels = ensembles.plan, ensembles.kernels()
    epochs = plan.start + plan.chain
    other = {ADAM: lambda seed: ensembles.trained(seed, epochs, ensembles.adam)}
    return {
        "deep ensemble": lambda seed: ensembles.trained(seed, epochs, ensembles.momentum),
        "starts": ensembles.starts,
        **{name: other[name] if name in other else partial(ensembles.chains, kernels[name]) for name in names},
    }


def digit_scores(ensembles: Ensembles, run: Callable[[int], dict], seed: int) -> dict[str, dict[str, float]]:
    """Scores of the averaged predictions of one method and seed, and of those of its first member or draw alone."""
    draws = run(seed)
    found = {"averaged": draws, "one": jax.tree.map(lambda w: w[:1], draws)}
    return {name: ensembles.scores(draws) for name, draws in found.items()}
