"""Ensembles of short chains on images of digits: starts, samplers, and the quality of what they predict."""

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

ROTATED = 2000  # test images that are turned by 90 degrees


class Plan(NamedTuple):
    """
    - **members** - of an ensemble, and chains.
    - **start**, **chain** - epochs of the optimised start, and of the chain behind it; a deep ensemble has both.
    - **burn** - epochs of the chain that are its warm-up; a draw at the end of each of the others.
    - **batch** - rows of a minibatch.
    - **learning_rate** - Adam's, which falls to 0 as a cosine.
    - **rate**, **decay** - of a step of SGHMC, in the words of descent with momentum on the mean energy of a row:
      :math:`h = \\sqrt{rate \\cdot T / N}`, :math:`D = decay / h`.
    - **spread** - the prior of a weight is N(0, spread / fan-in), that of a bias N(0, 1).
    - **temperature** - T; chains sample :math:`\\exp(-U / T)`.
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


class Ensembles:
    """All methods on one network and one data set, from the same starts."""

    def __init__(self, network: Network, data: Any, plan: Plan):
        self.network, self.data, self.plan = network, data, plan
        self.model = classifier(network, plan.spread)
        self.epoch = len(data.y) // plan.batch  # steps

    def starts(self, seed: int, epochs: int) -> dict:
        """Members that are trained for so many epochs, from He's starts."""
        plan, (key_start, key) = self.plan, random.split(random.key(seed))
        start = jax.vmap(partial(he, shapes=self.network.shapes))(random.split(key_start, plan.members))
        steps = epochs * self.epoch
        optimizer = optax.adam(optax.cosine_decay_schedule(plan.learning_rate, steps))
        options = {"members": plan.members, "batch_size": plan.batch, "progress_bar": False}
        data = self.data.X, self.data.y
        return warm_start(self.model, key, *data, start=start, num_steps=steps, optimizer=optimizer, **options)

    def kernels(self) -> dict:
        """
        Name -> kernel. The numbers of the others are chosen so that a step is about as long as one of SGHMC, which is
        the only one that was looked at on held-out rows.
        """
        plan, N, T = self.plan, len(self.data.y), self.plan.temperature
        h = float(np.sqrt(plan.rate * T / N))
        D = plan.decay / h
        tempered = numpyro.handlers.scale(self.model, scale=1 / T) if T != 1 else self.model
        common = {"batch_size": plan.batch, "steps_per_sample": self.epoch}
        cycles = Cyclical(2 * h, plan.chain * self.epoch // 2, exploration=0.4)
        return {
            "SGHMC": SGHMC(tempered, step_size=h, friction=D, **common),
            "cyclical SGHMC": SGHMC(tempered, step_size=cycles, friction=D, **common),
            "MSGNHT ssi": MSGNHT(tempered, step_size=h, diffusion=D, integrator="ssi", **common),
            "adaptive SGHMC": AdaptiveSGHMC(tempered, step_size=5e-3, friction=20.0, **common),
            "PSGLD": PSGLD(tempered, step_size=1e-4, **common),
            "SG-Barker": SGBarker(tempered, step_size=1e-6 * T, **common),
        }

    def chains(self, kernel: Any, seed: int, starts: dict) -> MCMC:
        plan = self.plan
        chains = {"num_chains": plan.members, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=plan.burn, num_samples=plan.chain - plan.burn, **chains)
        extra = random.fold_in(random.key(seed), 1)
        mcmc.run(extra, self.data.X, self.data.y, init_params=starts, extra_fields=("i",))
        return mcmc

    def scores(self, draws: Any) -> dict[str, float]:
        """Of the averaged predictions of an MCMC, or of weights with the members in front."""
        draws = draws if isinstance(draws, MCMC) else (self.model, draws)
        data = self.data
        found = predict(draws, data.X_test, data.y_test)
        p = found.mean["y"]
        turned = jnp.rot90(data.X_test[:ROTATED].reshape(-1, *image(data)), axes=(1, 2))
        p_turned = predict(draws, turned.reshape(-1, *data.X_test.shape[1:])).mean["y"]
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


def compare_digits(ensembles: Ensembles, seed: int, names: Any) -> dict[str, dict[str, float]]:
    """
    Scores of one seed: a deep ensemble and its first member, the starts, and chains from them.

    :param names: which of the kernels.
    """
    plan = ensembles.plan
    ensemble = ensembles.starts(seed, plan.start + plan.chain)
    found = {
        "one member": ensembles.scores(jax.tree.map(lambda w: w[:1], ensemble)),
        "deep ensemble": ensembles.scores(ensemble),
    }
    starts = ensembles.starts(seed, plan.start)
    found["starts"] = ensembles.scores(starts)
    print(seed, found, flush=True)
    kernels = ensembles.kernels()
    for name in names:
        found[name] = ensembles.scores(ensembles.chains(kernels[name], seed, starts))
        print(seed, name, found[name], flush=True)
    return found
