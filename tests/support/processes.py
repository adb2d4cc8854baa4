"""Programs that run in a process of their own, for what only a fresh one shows."""

import os
from pathlib import Path
import subprocess
import sys

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
# where a program finds the package, the tests and what they share
SEARCH = os.pathsep.join(map(str, [SUPPORT, TESTS, TESTS.parent, *sorted(TESTS.glob("[a-z]*/"))]))


def in_a_fresh_process(program, *args, **environment):
    """Source text, which may import the tests and the package beside them; it should import ``conftest`` first."""
    command = [sys.executable, "-c", program, *args]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": SEARCH} | environment, check=True, timeout=120)
