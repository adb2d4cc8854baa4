"""The climate of the tests: two host devices, for ``chain_method="parallel"``, set before jax looks for devices."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()

import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def progress_bars_as_asked(monkeypatch):
    """NumPyro hides progress bars, and with them its loop in Python, where these are set."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


# programs of their own, which ``--doctest-modules`` would import
collect_ignore = ["benchmarks", "mutations.py", "gallery.py"]
