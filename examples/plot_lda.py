r"""
Topics of documents
===================

Latent Dirichlet allocation (Li et al. 2016, section 5.1): each document has its own shares of the topics, latent
variables that belong to a row. The kernels sample the topics from minibatches of 5 documents. For these documents alone
``local=`` draws the shares, by Gibbs sampling of the topic of each word.

The paper's corpus of ICML abstracts is not available. ``cora_abstracts``, 2410 abstracts of papers on machine learning,
is the most similar corpus. Four of five documents are for training. Of the others one half of the words is given, and
the perplexity is that of the other half, averaged over the draws of the topics. The reference is collapsed Gibbs
sampling of all documents, with the topic prior that performs best on some of the training documents.
"""

import datasets
from gallery import expect_refusals, parsed, parser, save, shown
from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, init_to_sample, init_to_value
import topics
from tqdm import tqdm

from numpyro_sgmcmc import MSGNHT, SCIR, SGHMC, SGRLD, ExpandedMean

D, BATCH, SWEEPS = 0.75, 5, 5
SIZE = {"topics": (5, 30), "burn_in": (5, 10), "draws": (5, 20), "splits": (1, 3)}  # passes; with --fast, without
PRIORS = (0.5, 0.1, 0.03)

expect_refusals()  # Euler's step explodes, as the picture shows

# %%
# The samplers
# ------------
# Thermostats, and Langevin dynamics with momentum, of the softmax of normal numbers, or of the logarithms of gamma
# numbers, the expanded natural parameters; samplers of the simplex of topics. The last four have the same Dirichlet
# prior. A step of SCIR draws a noncentral chi-square number for each probability, which takes more time than 50
# documents do: so many are in its minibatches. Its ``counts`` are those of all words, since a minibatch may hold a
# single topic.

STEPS = (1e-2, 2.5e-3, 5e-4)
SAMPLERS = {
    "MSGNHT ssi": STEPS,
    "MSGNHT euler": STEPS,
    "SGHMC ssi": STEPS,
    "MSGNHT ssi, expanded natural": STEPS,
    "SGHMC ssi, expanded natural": STEPS,
    "SGRLD, expanded mean": (1e-2, 2.5e-3, 1e-3),
    "SCIR": (0.1,),
}
COLORS = dict(zip(SAMPLERS, ("#0072B2", "#D55E00", "#009E73", "#56B4E9", "#999999", "#CC79A7", "#E69F00")))


def kernel_for(name, h, train, size, key):
    shape = size["topics"], size["vocabulary"]
    batch = min(10 * BATCH if name == "SCIR" else BATCH, len(train) // 2)
    common = {
        "step_size": h,
        "batch_size": batch,
        "steps_per_sample": len(train) // batch,  # a pass
        "local": topics.share_given_words(SWEEPS),
    }
    words = float(train.lengths.sum())
    if name in ("SGRLD, expanded mean", "SCIR"):
        start = {"beta": random.dirichlet(key, jnp.ones(shape[1]), shape[:1])}  # none is 0, as draws of the prior are
        common["init_strategy"] = init_to_value(values=start)
        model = topics.by_dirichlet(*shape)
        if name == "SCIR":
            return SCIR(model, counts={"beta": words}, **common)
        return SGRLD(model, metric=ExpandedMean({"beta": words / shape[0]}), **common)
    kind, _, parameters = name.partition(", ")
    if parameters:
        common["inverse_mass_matrix"] = 4.0  # logarithms take longer steps well, unlike SGRLD's means
        start = {"theta": jnp.log(random.gamma(key, 1.0, shape)).T - 2}
        common["init_strategy"] = init_to_value(values=start)
        model = topics.by_expanded_natural(*shape)
    else:
        common["init_strategy"] = init_to_sample
        model = topics.by_softmax(*shape)
    kernel, integrator = kind.split()
    if kernel == "SGHMC":
        return SGHMC(model, friction=D, integrator=integrator, **common)
    return MSGNHT(model, diffusion=D, integrator=integrator, **common)


def sample(name, h, train, size, args):
    """beta after each pass that follows the burn-in, or None where steps were refused."""
    key_start, key_run = random.split(random.key(args.seed))
    kernel = kernel_for(name, h, train, size, key_start)
    mcmc = MCMC(kernel, num_warmup=args.burn_in, num_samples=args.draws, progress_bar=False)
    mcmc.run(key_run, train, extra_fields=("diverging",))
    return None if mcmc.get_extra_fields()["diverging"].any() else topics.topics_of(mcmc.get_samples())


# %%
# The reference
# -------------


def reference(documents, size, args, split):
    """beta of collapsed Gibbs sampling with the best of the priors, and that prior."""

    def run(corpus, prior):
        sizes = size["topics"], size["vocabulary"], prior, 20 * args.burn_in, args.draws
        return topics.collapsed_gibbs(random.key(args.seed), corpus, *sizes)

    less, seen, unseen = topics.split(documents, seed=args.splits + split, share=0.1)
    less = topics.Corpus.of(less)
    score = {prior: topics.perplexities(random.key(1), run(less, prior), seen, unseen)[-1] for prior in PRIORS}
    best = min(score, key=score.get)
    return run(topics.Corpus.of(documents), best), best


# %%
# The picture
# -----------
# Left: the perplexity of the average over the draws so far, on the first split. Right: at the last pass, against the
# step size. A curve is missing where steps were refused.


def draw(gibbs, curves, args):
    fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    passes = args.burn_in + np.arange(1, args.draws + 1)
    for name, color in COLORS.items():
        found = {h: curves[name, h] for h in SAMPLERS[name] if (name, h) in curves}
        finite = {h: curve for h, curve in found.items() if np.isfinite(curve).all()}
        if finite:
            best = min(finite, key=lambda h: finite[h][-1])
            axes[0].plot(passes, finite[best], color=color, label=f"{name}, h = {best:g}")
            steps = sorted(finite)
            axes[1].semilogx(steps, [finite[h][-1] for h in steps], "o-", color=color)
    for reference in gibbs[:1]:
        axes[0].plot(passes, reference, color="black", ls=":", label="collapsed Gibbs sampling")
        axes[1].axhline(reference[-1], color="black", ls=":")
    axes[0].set(
        xlabel="passes over the documents", ylabel="perplexity of unseen words", title="averaged over the draws"
    )
    axes[1].set(xlabel="step size h", title="at the last pass")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside right upper", frameon=False, fontsize=8)
    return fig


# %%
# The claims
# ----------
# On ``cora_abstracts`` the thermostat with the splitting integrator comes within 12 % of collapsed Gibbs sampling and
# is better than SGHMC at its best step size. Euler's steps are refused at the paper's largest step size.


def main(args):
    name = args.data or (
        "cora_abstracts" if not args.fast and datasets.available("cora_abstracts", args.data_dir) else None
    )
    documents, vocabulary = topics.read_corpus(name, args.data_dir, 150) if name else topics.simulated_corpus()
    size = {"topics": args.topics, "vocabulary": vocabulary}
    metrics = {"data": name or "simulated", "documents": len(documents), "vocabulary": vocabulary}
    cells = [(sampler, h) for sampler, steps in SAMPLERS.items() for h in steps if sampler in args.samplers]
    if args.fast:
        fast = ("MSGNHT ssi", "SGHMC ssi", "MSGNHT ssi, expanded natural", "SCIR")
        chosen = fast if args.samplers == list(SAMPLERS) else args.samplers
        cells = [(sampler, SAMPLERS[sampler][0]) for sampler in chosen]
    gibbs, curves, priors = [], {cell: [] for cell in cells}, []  # a curve for each split
    for split in range(args.splits):
        train, seen, unseen = topics.split(documents, split)
        corpus = topics.Corpus.of(train)
        if args.reference:
            beta, prior = reference(train, size, args, split)
            gibbs.append(topics.perplexities(random.key(2), beta, seen, unseen))
            priors.append(prior)
        for cell in tqdm(cells, desc=f"split {split}"):
            beta = sample(*cell, corpus, size, args)
            refused = np.full(args.draws, np.inf)
            curves[cell].append(refused if beta is None else topics.perplexities(random.key(2), beta, seen, unseen))
        # the other splits: the best step size of each sampler
        best = {
            sampler: min((c for c in cells if c[0] == sampler), key=lambda c: curves[c][0][-1]) for sampler, _ in cells
        }
        cells = list(best.values())
    named = {"collapsed Gibbs": gibbs} | {f"{sampler}, h = {h:g}": found for (sampler, h), found in curves.items()}
    metrics["prior of the reference"] = priors
    metrics["perplexity"] = {what: [float(curve[-1]) for curve in found] for what, found in named.items()}
    for what, values in metrics["perplexity"].items():
        print(f"{what:32}", *(f"{x:9.1f}" for x in values))
    save(args, "lda", draw(gibbs, {cell: found[0] for cell, found in curves.items()}, args), metrics)

    last = {sampler: np.mean([curve[-1] for curve in curves[cell]]) for sampler, cell in best.items()}
    if name is None and "MSGNHT ssi" in last:
        assert last["MSGNHT ssi"] < 0.8 * vocabulary, last  # of words that are all the same
    elif name == "cora_abstracts" and shown(args):
        assert last["MSGNHT ssi"] < 1.12 * np.mean([curve[-1] for curve in gibbs]), metrics
        assert last["MSGNHT ssi"] < last["SGHMC ssi"], metrics
        assert not np.isfinite(curves["MSGNHT euler", max(STEPS)][0][-1]), metrics


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--data", metavar="NAME", help="NAME.npz; cora_abstracts if it is found, else simulated")
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where it is")
    arguments.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS), help="run these alone")
    arguments.add_argument("--no-reference", dest="reference", action="store_false", help="no collapsed Gibbs sampling")
    main(parsed(arguments, **SIZE))
