"""What can be imported from the top of the package, and from the namespaces of its subjects."""

from importlib import import_module
import subprocess
import sys

import pytest

import numpyro_sgmcmc

# every name that version 0.1 had at the top
NAMES = """
    MSGNHT PSGLD SAGA SCIR SGBarker Tempered SGHMC SGLD SGMCMC SGNHT SGRHMC SGRLD SVRG AdaptiveSGHMC Checkpointed
    Constant ControlVariate Cyclical Energy ExpandedMean Fisher GradientNoise LinearMap LocalFunction
    LocalGibbs LocalHMC LocalLangevin Minibatch Natural OnDisk Piecewise Polynomial Predictions Recipe Reshuffled
    SGMCMCState Sharded
    ShardedRows Splitting WithReplacement WithoutReplacement compare corrected couple find_mode gradient_noise
    kernel_stein_discrepancy predict resample score_linearity settings shard_rows shuffle_rows step_halving summary
    to_arviz warm_start weighted_summary weights
""".split()
NAMESPACES = "kernels schedules rows gradients dynamics local data tuning engine runs diagnostics contrib".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_can_be_imported_from_the_top(name):
    namespace = {}
    exec(f"from numpyro_sgmcmc import {name}", namespace)
    assert callable(namespace[name]) and namespace[name].__name__ == name
    assert name in dir(numpyro_sgmcmc)


def test_the_top_has_few_names_and_all_of_them_exist():
    assert len(numpyro_sgmcmc.__all__) <= 30
    assert all(hasattr(numpyro_sgmcmc, name) for name in numpyro_sgmcmc.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'sghmc'"):
        numpyro_sgmcmc.sghmc  # noqa: B018


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_has_functions_and_classes(namespace):
    """Also after a module of the same name has been imported."""
    program = (
        f"from numpyro_sgmcmc import {namespace} as room\n"
        "print(*(name for name in room.__all__ if not callable(getattr(room, name))))"
    )
    assert not subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    room = import_module(f"numpyro_sgmcmc.{namespace}")
    assert all(getattr(room, name).__name__ == name for name in room.__all__)
    assert getattr(numpyro_sgmcmc, namespace) is room


def test_every_public_name_has_one_home():
    homes = [name for namespace in NAMESPACES for name in import_module(f"numpyro_sgmcmc.{namespace}").__all__]
    assert len(homes) == len(set(homes))
    assert set(NAMES) <= set(homes)
