"""
The draws of every kernel of the catalogue as commit da36787 made them, with a given step size: ``stored_draws.npz``.

``python tests/support/stored_draws.py`` stores those of the package that Python imports, for the installed JAX.
"""

from pathlib import Path
import sys

import numpy as np

FILE = Path(__file__).with_name("stored_draws.npz")
PROCESSOR = "processor"


def processor():
    """The instructions of this processor, of which the compiler chooses."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def draws(cell):
    """The draws and energies of two short chains, as one vector."""
    from jax import random, tree
    from numpyro.infer import MCMC

    mcmc = MCMC(cell.make(), num_warmup=3, num_samples=3, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(1), *cell.args, extra_fields=("potential_estimate",))
    leaves = tree.leaves((mcmc.get_samples(), mcmc.get_extra_fields()["potential_estimate"]))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def store():
    from catalogue import CATALOGUE
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # as in the tests
    kept = dict(np.load(FILE)) if FILE.exists() else {}
    for cell in CATALOGUE:
        kept[f"{jax.__version__} {cell}"] = draws(cell)
    kept[PROCESSOR] = processor()
    np.savez_compressed(FILE, **kept)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import conftest  # noqa: F401  the flags of the compiler

    store()
