"""The code of the pages runs as it is printed."""

import importlib.util
from pathlib import Path
import re
import subprocess
import sys

import models
from numpyro.infer import MCMC
import pytest

import numpyro_sgmcmc

DOCS = Path(__file__).resolve().parents[1] / "docs"


def code_of(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["extend.md", "howto.md", "local.md", "upstream.md"])
def test_programs(page):
    if page == "upstream.md":
        pytest.importorskip("funsor")
    names = {}
    for k, block in enumerate(code_of(page)):
        if block.startswith("import os\n"):  # sets the environment
            subprocess.run([sys.executable, "-c", block], check=True)
        else:
            exec(compile(block, f"{page}, block {k}", "exec"), names)


def test_what_one_comes_to_can_be_made():
    names = vars(numpyro_sgmcmc) | {"MCMC": MCMC, "model": models.gaussian, "h": 1e-3, "a": 1e-2, "b": 1.0, "γ": 0.5}
    names["center"] = {"mu": 0.7}
    for block in code_of("coming_from.md"):
        eval(block, names)


@pytest.mark.parametrize("page", ["choosing.md", "recipe.md"])
def test_what_is_advised_can_be_made(page):
    names = vars(numpyro_sgmcmc) | {"model": models.gaussian}
    for block in code_of(page):
        exec(block, names)


@pytest.mark.slow
def test_the_tables_of_the_bias_are_those_of_the_kernels():
    spec = importlib.util.spec_from_file_location("bias", DOCS / "bias.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.page() == (DOCS / "bias.md").read_text()


def table_rows(page):
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_rules_for_step_sizes_have_the_measured_numbers():
    rules = {(kernel, rule): numbers for kernel, rule, *numbers in map(rule_of, table_rows("choosing.md")) if kernel}
    names = {"1, the default": "n / (N ω), γ = 1, the default", "ω": "n / (N ω), γ = ω"}
    measured = {}
    for N, d, setting, *found in table_rows("step_sizes.md"):
        if d == "20":
            kernel, rule = ("SGHMC", names.get(setting)) if len(found) == 2 else ("SGLD", setting)
            cells = measured.setdefault((kernel, rule), {})
            for rows, cell in zip(("reshuffled", "independent"), found):
                cells[rows, N] = cell.split(" ±")[0]
    order = [(rows, N) for rows in ("reshuffled", "independent") for N in ("10,000", "100,000")]
    assert len(rules) == 5
    for setting, numbers in rules.items():
        assert numbers == [measured[setting][cell] for cell in order], setting


def rule_of(row):
    found = re.fullmatch(r"`(SG\w+)`, h = (.*)", row[0])
    return [*found.groups(), *row[1:]] if found and len(row) == 5 else ["", ""]


def test_every_public_name_is_in_the_reference():
    documented = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert documented == set(numpyro_sgmcmc.__all__)
