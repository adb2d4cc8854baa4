"""A ``Run`` is all that a diagnostic may look at."""

from pathlib import Path
import re

import numpyro_sgmcmc

PACKAGE = Path(numpyro_sgmcmc.__file__).parent
PRIVATE = re.compile(r"\b(kernel|sampler|mcmc)\._\w+")
ALLOWED = {"run.py", "draws.py"}  # NumPyro has no public names for the arguments of a run and for its draws


def test_no_diagnostic_touches_a_private_part():
    found = {}
    for folder in ("diagnostics", "contrib"):
        for path in (PACKAGE / folder).glob("*.py"):
            private = sorted({match[0] for match in PRIVATE.finditer(path.read_text())})
            if private and path.name not in ALLOWED:
                found[path.name] = private
    assert not found
