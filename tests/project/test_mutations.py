"""The faults of ``mutations.py`` can be planted in the package as it is. Whether tests catch them: `make mutations`."""

from mutations import FAULTS, ROOT, planted
import pytest


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    path, text = planted(fault, ROOT / "numpyro_sgmcmc")
    assert text != path.read_text()
