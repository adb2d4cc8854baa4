r"""
Two hundred topics
==================

Latent Dirichlet allocation with many topics, by Langevin dynamics with momentum and without (Chen et al. 2015, section
5, figure 4). Each document has its own shares of the topics, drawn by ``local=`` for the 100 documents of a minibatch.

The paper's corpus is ten million documents of Wikipedia. This one is ``newsgroups20_bow``, 11 269 messages. Words that
are in more than a tenth of the documents are left out, and of the others 7700 are kept. 500 documents are not for
training. One half of their words is seen, and the perplexity is that of the other half.
"""

from functools import partial

import datasets
from gallery import SECONDS, expect_refusals, once, parsed, parser, save, shown
from jax import random
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, init_to_sample
import topics
from tqdm import tqdm

from numpyro_sgmcmc import SGHMC, SGLD

BATCH, SWEEPS, TEST, LONGEST, WORDS = 100, 2, 500, 100, 7700
SIZE = {"topics": (5, 200), "steps": (200, 400), "draws": (4, 10)}  # with --fast, without

expect_refusals()  # Euler's step explodes, as the picture shows

# %%
# The samplers
# ------------
# The gradient of N documents is of the order N. A corpus that is 930 times smaller than the paper's has the same
# dynamics at steps that are :math:`\sqrt{930} = 30` times larger and at a friction D that is as many times smaller: the
# steps and frictions of the paper, {2, 5, 8, 20, 50, 80} 1e-5 and {20, 40, 80}, times and over 30. SGLD has the step
# size :math:`h / D` at which it moves as fast as SGHMC does. Two runs have a friction of the paper as it is, with a
# step at which Euler's friction, a factor 1 - hD for the momentum, is not stable.

SCALE = 30
STEPS = tuple(SCALE * h * 1e-5 for h in (2, 5, 8, 20, 50, 80))
FRICTIONS = tuple(D / SCALE for D in (20, 40, 80))
SAMPLERS = {"SGHMC ssi": "#009E73", "SGHMC euler": "#D55E00", "SGLD": "#0072B2"}
CELLS = [(name, 0.055, 40.0) for name in ("SGHMC ssi", "SGHMC euler")]
CELLS += [(name, h, FRICTIONS[1]) for h in (*STEPS[::-1], 0.1) for name in SAMPLERS]
CELLS += [("SGHMC ssi", STEPS[-1], D) for D in (FRICTIONS[0], FRICTIONS[2])]


def sample(name, h, D, corpus, vocabulary, args):
    """Draws of beta at equal intervals, and whether steps were refused."""
    common = {
        "batch_size": BATCH,
        "steps_per_sample": args.steps // args.draws,
        "local": topics.share_given_words(SWEEPS, one_by_one=True),
        "init_strategy": init_to_sample,
    }
    model = topics.by_softmax(args.topics, vocabulary)
    if name == "SGLD":
        kernel = SGLD(model, step_size=h / D, **common)
    else:
        kernel = SGHMC(model, step_size=h, friction=D, integrator=name.split()[1], **common)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=args.draws, progress_bar=False)
    mcmc.run(random.key(args.seed), corpus, extra_fields=("diverging",))
    return topics.topics_of(mcmc.get_samples()), bool(mcmc.get_extra_fields()["diverging"].any())


def described(cell):
    sampler, h, D = cell
    return f"{sampler}, h = {h:g}, D = {D:.3g}"


def chosen(numbers):
    """The cells with these numbers, in the order of the list; all for None."""
    if numbers is not None and not set(numbers) <= set(range(len(CELLS))):
        raise SystemExit(f"--cells {' '.join(map(str, numbers))}: the numbers are 0 to {len(CELLS) - 1}.")
    return [cell for k, cell in enumerate(CELLS) if numbers is None or k in numbers]


# %%
# The picture
# -----------
# The perplexity by the average of the second half of the draws, against the step size, at the middle one of the
# frictions. Open circles: steps were refused.


def draw(table):
    fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, color in SAMPLERS.items():
        ours = [(h, x) for (other, h, D), x in table.items() if (other, D) == (name, FRICTIONS[1])]
        found = sorted((h, x["perplexity"], x["refused"]) for h, x in ours)
        if found:
            h, perplexity, refused = map(np.array, zip(*found))
            ax.loglog(h, perplexity, "-", color=color, label=name)
            ax.loglog(h[~refused], perplexity[~refused], "o", color=color)
            ax.loglog(h[refused], perplexity[refused], "o", color=color, mfc="white")
    ax.set(xlabel="step size h", ylabel="perplexity of unseen words")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return fig


# %%
# The runs
# --------
# Each run is kept in a file of its own, and not run again: a program that was stopped goes on where it was. The picture
# and the numbers are written after each run. ``--cells 0 4`` takes the first and the fifth of ``CELLS`` alone.


def main(args):
    name = args.data or (
        "newsgroups20_bow" if not args.fast and datasets.available("newsgroups20_bow", args.data_dir) else None
    )
    if name:
        documents, vocabulary = topics.read_corpus(name, args.data_dir, LONGEST, WORDS)
    else:
        documents, vocabulary = topics.simulated_corpus(600)
    train, seen, unseen = topics.split(documents, args.seed, min(0.2, TEST / len(documents)))
    corpus = topics.Corpus.of(train)

    def run(cell):
        betas, refused = sample(*cell, corpus, vocabulary, args)
        late = betas[args.draws // 2 :]
        return {"perplexity": float(topics.perplexities(random.key(2), late, seen, unseen)[-1]), "refused": refused}

    cells = chosen(args.cells) if name else [("SGHMC ssi", STEPS[-1], FRICTIONS[1])]
    metrics = {"data": name or "simulated", "documents": len(train), "vocabulary": vocabulary, "runs": len(cells)}
    size = f"{metrics['data']}, topics {args.topics}, steps {args.steps}, draws {args.draws}"
    table = {}
    for cell in tqdm(cells):
        table[cell] = once(args, f"{size}, {described(cell)}", args.seed, partial(run, cell))
        metrics |= {"seconds": sum(SECONDS), "perplexity": {described(cell): found for cell, found in table.items()}}
        plt.close("all")  # the last picture stays open, for the page
        save(args, "many_topics", draw(table), metrics)
    for what, found in metrics["perplexity"].items():
        print(f"{what:36} {found['perplexity']:9.1f}", "steps were refused" * found["refused"])

    best = min(found["perplexity"] for found in table.values())
    if name is None:
        assert best < 0.8 * vocabulary, best  # of words that are all the same
    elif name == "newsgroups20_bow" and shown(args):
        assert table["SGHMC euler", 0.055, 40.0]["refused"] and not table["SGHMC ssi", 0.055, 40.0]["refused"], metrics


if __name__ == "__main__":
    arguments = parser(__doc__, **SIZE)
    arguments.add_argument("--data", metavar="NAME", help="NAME.npz; newsgroups20_bow if it is found, else simulated")
    arguments.add_argument(
        "--cells", type=int, nargs="+", metavar="K", help="these of the runs, counted from 0; else all"
    )
    arguments.add_argument("--data-dir", metavar="FOLDER", help="where it is")
    main(parsed(arguments, **SIZE))
