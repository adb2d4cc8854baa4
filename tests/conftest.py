"""The climate of the tests, set before jax looks for devices."""

from importlib.metadata import version
import os

FLAGS = ["--xla_force_host_platform_device_count=2"]  # for ``chain_method="parallel"``
if version("jax").startswith("0.10."):
    # that release compiles a fusion slowly, and a suite of many small programs twice as long; others lack the flag
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()

import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def progress_bars_as_asked(monkeypatch):
    """NumPyro hides progress bars, and with them its loop in Python, where these are set."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


# programs of their own, which ``--doctest-modules`` would import
collect_ignore = ["benchmarks", "mutations.py", "gallery.py"]
