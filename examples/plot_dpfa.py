r"""
Deep Poisson factor analysis
============================

Topics of documents, with a sigmoid belief network of three layers above that says which of the topics a document has
(Li et al. 2016, section 5.2). The kernels sample the topics and the weights of the network from minibatches of 100
documents. For these documents alone ``local=`` draws the topics of the words, the units of the network and the rates,
by Gibbs sampling, see deep_topics.py.

The paper's corpus is ten million documents of Wikipedia. This one is ``newsgroups20_bow``, 11 269 messages. Words that
are in more than a tenth of the documents are left out, and of the others 7700 are kept. 500 documents are not for
training. One half of their words is seen, and the perplexity is that of the other half.

The gradient of N documents is of the order N, so step sizes for ten million documents are small for a thousand times
fewer. Beside the paper's two there is one a hundred times larger, with a D a hundred times smaller, which leaves h D as
it is.
"""

import datasets
import deep_topics as deep
from gallery import expect_refusals, parsed, parser, save, shown
import jax
from jax import random
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, init_to_value
import topics
from tqdm import tqdm

from numpyro_sgmcmc import MSGNHT

BATCH, SWEEPS, TEST, LONGEST = 100, 3, 500, 150
SIZE = {"steps": (150, 2000), "draws": (5, 20), "sweeps": (20, 50)}  # sweeps of the reference; with --fast, without
WORDS, UNITS = 7700, (128, 64, 32)

expect_refusals()  # the start is far from the mode, and the kinetic temperature is high at first

# %%
# The samplers
# ------------
# Thermostats, by the splitting integrator and by Euler's.

STEPS = ((1e-2, 0.4), (1e-4, 40.0), (1e-5, 40.0))  # h, D
COLORS = dict(zip(STEPS, ("#0072B2", "#009E73", "#D55E00")))
SMALL = ((1e-2, 0.4),)  # with --fast


def sample(integrator, h, D, corpus, units, vocabulary, args):
    """The global sites at equal distances on the way, the last ones after ``args.steps`` steps."""
    key_start, key_run = random.split(random.key(args.seed))
    kernel = MSGNHT(
        deep.deep_poisson(units, vocabulary),
        step_size=h,
        diffusion=D,
        integrator=integrator,
        batch_size=BATCH,
        steps_per_sample=args.steps // args.draws,
        local=deep.of_documents(SWEEPS),
        init_strategy=init_to_value(values=deep.start(key_start, units, vocabulary)),
    )
    mcmc = MCMC(kernel, num_warmup=0, num_samples=args.draws, progress_bar=False)
    mcmc.run(key_run, corpus, extra_fields=("diverging",))
    draws = mcmc.get_samples()
    refused = bool(mcmc.get_extra_fields()["diverging"].any())
    return [jax.tree.map(lambda x: x[i], draws) for i in range(args.draws)], refused  # noqa: B023


def scored(draws, seen, unseen):
    """Perplexity by each draw, and by the average of p over the second half of them."""
    p = topics.probabilities(random.key(2), draws, seen, unseen, deep.unseen_words)
    return topics.perplexity(p, unseen), float(topics.perplexity(p[len(p) // 2 :].mean(0, dtype=float), unseen))


# %%
# The reference
# -------------
# Collapsed Gibbs sampling of all documents, for latent Dirichlet allocation with as many topics, of which ten draws are
# averaged.


def reference(train, seen, unseen, number, vocabulary, args):
    betas = topics.collapsed_gibbs(
        random.key(args.seed), topics.Corpus.of(train), number, vocabulary, 0.1, args.sweeps, 10
    )
    return float(topics.perplexities(random.key(2), betas, seen, unseen)[-1])


# %%
# The picture
# -----------
# Perplexity by single draws against the documents seen; the same document may be seen many times. Solid: splitting,
# dashed: Euler. Dotted: latent Dirichlet allocation by collapsed Gibbs sampling.


def label(integrator, h, D):
    return f"{integrator}, h = {h:g}, D = {D:.3g}"


def draw(curves, gibbs, args):
    fig, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    seen = BATCH * args.steps // args.draws * np.arange(1, args.draws + 1)
    for (integrator, h, D), curve in curves.items():
        style = "-" if integrator == "ssi" else "--"
        ax.plot(seen, curve, style, color=COLORS.get((h, D), "#0072B2"), label=label(integrator, h, D))
    ax.axhline(gibbs, color="black", ls=":", label="LDA, collapsed Gibbs sampling")
    ax.set(xlabel="documents seen", ylabel="perplexity of unseen words", yscale="log")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return fig


# %%
# The claims
# ----------
# At the paper's two step sizes hardly anything is learnt from so few documents. At the larger one the splitting
# integrator learns the topics, and Euler's steps are refused. The program asserts both. The perplexity stays above that
# of latent Dirichlet allocation by collapsed Gibbs sampling, see the page of :doc:`results </results>`.
#
# The picture and the numbers are written after each run, so that a long program can be stopped.


def main(args):
    name = args.data or (
        "newsgroups20_bow" if not args.fast and datasets.available("newsgroups20_bow", args.data_dir) else None
    )
    if name:
        documents, vocabulary = topics.read_corpus(name, args.data_dir, LONGEST, WORDS)
        units, steps, integrators = UNITS, STEPS, ("ssi", "euler")
    else:
        documents, vocabulary = topics.simulated_corpus(600)
        units, steps, integrators = (8, 6), SMALL, ("ssi",)
    train, seen, unseen = topics.split(documents, args.seed, min(0.2, TEST / len(documents)))
    corpus = topics.Corpus.of(train)
    metrics = {"data": name or "simulated", "documents": len(train), "vocabulary": vocabulary, "perplexity": {}}
    curves = {}
    metrics["collapsed Gibbs"] = gibbs = reference(train, seen, unseen, units[0], vocabulary, args)
    for integrator, h, D in tqdm([(integrator, *step) for step in steps for integrator in integrators]):
        draws, refused = sample(integrator, h, D, corpus, units, vocabulary, args)
        curves[integrator, h, D], averaged = scored(draws, seen, unseen)
        metrics["perplexity"][label(integrator, h, D)] = {
            "last draw": float(curves[integrator, h, D][-1]),
            "averaged": averaged,
            "refused": refused,
            "course": curves[integrator, h, D].tolist(),
        }
        plt.close("all")  # the picture of fewer runs
        save(args, "dpfa", draw(curves, gibbs, args), metrics)
    for what, found in metrics["perplexity"].items():
        print(f"{what:28} {found['last draw']:9.1f} {found['averaged']:9.1f}")
    print(f"{'collapsed Gibbs':28} {'':9} {gibbs:9.1f}")

    best = min(found["averaged"] for found in metrics["perplexity"].values())
    if name is None:
        assert best < 0.8 * vocabulary, best  # of words that are all the same
    elif name == "newsgroups20_bow" and shown(args):
        small, large = STEPS[1], STEPS[0]
        assert not metrics["perplexity"][label("ssi", *large)]["refused"], metrics
        assert metrics["perplexity"][label("euler", *large)]["refused"], metrics
        assert curves["ssi", *large][-1] < 0.5 * curves["ssi", *small][-1], metrics


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--data", metavar="NAME", help="NAME.npz; newsgroups20_bow if it is found, else simulated")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where it is")
    main(parsed(arguments, **SIZE))
