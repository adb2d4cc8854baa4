"""The comparison of samplers on digits in the gallery, on small simulated images."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def ensembles():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        from digit_comparison import PLANS
        from digit_ensembles import Ensembles
        from networks import load
        from plot_neural_network import dense

        data = load(None, rows=600)
        network = dense(data, 1, SimpleNamespace(units=8, activation="relu"))
        yield Ensembles(network, data, PLANS["dense"]._replace(members=2, start=3, chain=6, cycle=3, burn=1, batch=50))


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore:the draws are")  # nearly descent, on purpose
@pytest.mark.parametrize(
    "name",
    ["SGHMC", "adaptive SGHMC", *(pytest.param(name, marks=slow) for name in ("MSGNHT ssi", "PSGLD", "SG-Barker"))],
)
def test_chains_of_a_kernel(ensembles, name):
    """As many draws as the plan says, and predictions no worse than those of the starts by more than .1."""
    draws = ensembles.chains(name, ensembles.plan.settings[name], seed=0)
    shape = jax.tree.leaves(draws)[0].shape
    assert shape[0] == 2 * (5 if name == "SGHMC" else 2)
    assert all(np.isfinite(w).all() for w in draws.values())
    found = ensembles.scores(draws)
    assert found["nll"] < ensembles.scores(ensembles.starts(0))["nll"] + 0.1
