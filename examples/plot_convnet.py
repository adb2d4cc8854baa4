r"""
A Bayesian convolutional network on MNIST
=========================================

A small convolutional network learns handwritten digits, its weights sampled by MSGNHT with the symmetric splitting
integrator (``"ssi"``) and with Euler's (``"euler"``). Li et al. (2016), section 5.2, report that on convolutional
networks their results are those on fully connected ones; architecture and settings are in an appendix that is not part
of the paper.
"""

# %%
# The experiment
# --------------
# The architecture is therefore ours: two convolutions of 5 x 5 pixels with 16 and 32 channels, ReLU and stride 2, then
# the logits. Prior, D, h, batches and start are those of the fully connected networks of ``plot_neural_network.py``,
# and so is the definition of a run that works. There are 8 epochs instead of 40, because a step takes longer on a CPU.
# h is halved after epoch 4.

import sys

from gallery import save
import jax
import jax.numpy as jnp
from network_study import arguments, as_shown, check_averaging, draw, metrics, report, sets, study
from networks import Network
import numpy as np

STRIDE = 2
SIZE = {
    "kernel": (5, 5),
    "epochs": (5, 8),
    "sweep_epochs": (1, 1),
    "choice_epochs": (2, 4),
    "seeds": (1, 3),
    "rows": (6000, None),
    "test_rows": (2000, None),
    "held_out": (1000, 10_000),
}
LISTS = {
    "channels": ((8,), (16, 32)),
    "step_size": (2e-3, 1e-4),
    "sweep": ((3e-2,), (3e-4, 1e-3, 3e-3, 1e-2)),
    "step_sizes": ((2e-3,), (1e-4, 3e-4)),
    "diffusions": ((5.0,), (5.0, 50.0)),
}

# %%
# The network
# -----------
# Two convolutions with ReLU and stride 2 in place of pooling, then the logits. A convolution is written as a matrix
# product with the patches of the image, which on a CPU is faster than ``jax.lax.conv``.


def patches(x, size):
    """All patches of ``size`` x ``size`` pixels at every second place, shape=(rows, height, width, numbers)."""
    height, width = (STRIDE * ((n - size) // STRIDE) + 1 for n in x.shape[1:3])
    x = jnp.concatenate([x[:, i : i + height : STRIDE] for i in range(size)], -1)
    return jnp.concatenate([x[:, :, j : j + width : STRIDE] for j in range(size)], -1)


def convolutional(data, args):
    shape = images(data.X[:1]).shape
    shapes, (height, width, channels) = {}, shape[1:]
    for layer, out in enumerate(args.channels):
        shapes |= {f"w{layer}": (args.kernel, args.kernel, channels, out), f"b{layer}": (out,)}
        height, width, channels = (height - args.kernel) // STRIDE + 1, (width - args.kernel) // STRIDE + 1, out
    if min(height, width) < 1:
        sys.exit(f"images of {data.name} are too small for {len(args.channels)} convolutions of size {args.kernel}.")
    shapes |= {"w": (height * width * channels, data.classes), "b": (data.classes,)}

    def logits(weights, X):
        x = images(X)
        for layer, out in enumerate(args.channels):
            x = jax.nn.relu(patches(x, args.kernel) @ weights[f"w{layer}"].reshape(-1, out) + weights[f"b{layer}"])
        return x.reshape(len(x), -1) @ weights["w"] + weights["b"]

    return Network(shapes, logits)


def images(X):
    """Rows as images with one channel; rows of numbers are taken as squares."""
    if X.ndim == 2:
        side = int(np.sqrt(X.shape[1]))
        if side**2 != X.shape[1]:
            sys.exit(f"rows of {X.shape[1]} numbers are not square images.")
        X = X.reshape(-1, side, side)
    return X[..., None]


# %%
# What is claimed
# ---------------
# In every run the predictions averaged over draws are more accurate than a single draw. Their negative log-likelihood
# is also lower, but by Jensen's inequality that holds for any predictions. ``check_averaging`` asserts both. The page
# of :doc:`results </results>` says how accurate they are, with the settings of the fully connected networks and with D
# and h chosen on held-out rows. The program does not claim that one of the two integrators is better.


def options(parser):
    parser.add_argument("--channels", type=int, nargs="+", help="of each convolution")


def main(args):
    for data, settings in sets(args):
        result = study({"convolutional": convolutional(data, settings)}, data, settings)
        report(result, settings)
        save(settings, "convnet", draw(result, settings), metrics(result))
        check_averaging(result, as_shown(result, settings))


if __name__ == "__main__":
    main(arguments(__doc__, SIZE, LISTS, options))
