"""Programs that run in a process of their own, for what only a fresh one shows."""

import os
from pathlib import Path
import subprocess
import sys

TESTS = Path(__file__).parent


def in_a_fresh_process(program, *args, **environment):
    """Source text, which may import the tests and the package beside them; it should import ``conftest`` first."""
    search = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    command = [sys.executable, "-c", program, *args]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": search} | environment, check=True, timeout=120)
