"""The climate of the tests, set before jax looks for devices."""

from collections import Counter
from importlib.metadata import version
import os
import shutil
import tempfile

FLAGS = [
    "--xla_force_host_platform_device_count=2",  # for ``chain_method="parallel"``
    "--xla_cpu_parallel_codegen_split_count=1",  # small programs compile sooner in one part
]
if version("jax").startswith("0.10."):
    # that release compiles a fusion slowly, and a suite of many small programs twice as long; others lack the flag
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()

# Several workers share the cores: threads of SciPy's OpenBLAS would wait for each other in every call
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What takes time is the compiler: a program that one test has compiled serves the others of its worker, and the fresh
# processes that these start. Two workers have a folder each, since one would read what the other has written in part.
CACHE = None
if "PYTEST_XDIST_WORKER" in os.environ or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    CACHE = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="numpyro_sgmcmc-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.hookimpl(tryfirst=True)  # before pytest looks at ``-m``
def pytest_collection_modifyitems(items):
    cases = Counter()
    for item in items:
        every = item.get_closest_marker("every")
        if every is not None:
            if cases[item.parent, item.function] % every.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[item.parent, item.function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Most programs run for less time than LLVM would spend on them. What XLA does before it stays the same."""
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("optimised") is None)


def pytest_unconfigure():
    if CACHE is not None:
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def progress_bars_as_asked(monkeypatch):
    """NumPyro hides progress bars, and with them its loop in Python, where these are set."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


# programs of their own, which ``--doctest-modules`` would import
collect_ignore = ["benchmarks", "mutations.py", "gallery.py", "sources.py"]


@pytest.fixture
def programs():
    """What JAX says of each program that it compiles during the test: a list that may be cleared."""
    said = []

    def listen(event, duration, **fields):
        if event.endswith("backend_compile_duration"):
            said.append(str(fields))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield said
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
