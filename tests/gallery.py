"""The fast runs of the gallery: ``make test-gallery``. Each program ends by asserting what it claims."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ["plot_five_minutes.py", "plot_from_nuts.py", "plot_is_it_right.py"]
PROGRAMS = sorted({path.name for path in (ROOT / "examples").glob("plot_*.py")} - set(TUTORIALS))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, "--fast", "--out", tmp_path],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads((tmp_path / "metrics.json").read_text())
    (picture,) = tmp_path.glob("*.png")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial_needs_nothing_but_itself(name, tmp_path):
    program = (tmp_path / name).resolve()
    program.write_text((ROOT / "examples" / name).read_text())
    environment = os.environ | {"MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_there_are_programs():
    assert PROGRAMS
