"""The code of the pages runs as it is printed."""

import importlib.util
import inspect
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


NUMBERS = {"dt": 1e-3, "alpha": 0.02, "lr": 3e-2, "N": 50.0, "learning_rate": 2e-3, "momentum_decay": 0.05}
NUMBERS |= {"step_size": 4e-3, "stepsize": 5e-3}


def test_what_one_comes_to_can_be_made():
    names = vars(numpyro_sgmcmc) | {"MCMC": MCMC, "model": models.gaussian, "h": 1e-3, "a": 1e-2, "b": 1.0, "γ": 0.5}
    names |= NUMBERS | {"center": {"mu": 0.7}}
    for block in code_of("coming_from.md"):
        eval(block, names)


# The steps of the other libraries, from their source code, with full gradients. z' = z - a dU + b n, and
# z' = z + c v, v' = v - a dU - f v + b n. SGMCMCJax: diffusions.py; BlackJAX: sgmcmc/diffusions.py; posteriors:
# sgmcmc/sgld.py and sghmc.py, with dU / N for dU and the temperature 1 / N; TFP: optimizer/sgld.py; Turing: sghmc.jl
SGLD_STEPS = {
    "SGMCMCJax": lambda dt: (dt, (2 * dt) ** 0.5),
    "BlackJAX": lambda step_size: (step_size, (2 * step_size) ** 0.5),
    "posteriors": lambda lr, N: (lr / N, (1 / N * lr * 2) ** 0.5),
    "TFP": lambda learning_rate: (learning_rate * 0.5, learning_rate * learning_rate**-0.5),
    "Turing": lambda stepsize: (stepsize / 2, stepsize**0.5),
}
SGHMC_STEPS = {
    "SGMCMCJax": lambda dt, alpha: (1.0, dt, alpha, (2 * alpha * dt) ** 0.5),
    "BlackJAX": lambda step_size, alpha: (step_size, step_size, alpha * step_size, (step_size * 2 * alpha) ** 0.5),
    "posteriors": lambda lr, alpha, N: (lr, lr / N, lr * alpha, (1 / N * lr * 2 * alpha) ** 0.5),
    "Turing": lambda learning_rate, momentum_decay: (
        *(1.0, learning_rate, momentum_decay),
        (2 * learning_rate * momentum_decay) ** 0.5,
    ),
}


def test_step_sizes_of_other_libraries():
    """Our steps z - h dU + sqrt(2 h) n, and p - h dU - h γ p + sqrt(2 h γ) n with v = s p and c s = h."""
    formulas = {name: [cell.strip("`") for cell in cells] for name, *cells in table_rows("coming_from.md")[2:]}
    value = lambda formula: eval(formula, {}, NUMBERS)  # noqa: E731
    arguments = lambda step: {name: NUMBERS[name] for name in inspect.signature(step).parameters}  # noqa: E731
    assert set(formulas) == set(SGLD_STEPS)
    assert {name for name, cells in formulas.items() if cells[1]} == set(SGHMC_STEPS)
    for name, step in SGLD_STEPS.items():
        h = value(formulas[name][0])
        assert step(**arguments(step)) == pytest.approx((h, (2 * h) ** 0.5)), name
    for name, step in SGHMC_STEPS.items():
        h, friction = map(value, formulas[name][1:])
        c, *momentum = step(**arguments(step))
        s = h / c
        assert momentum == pytest.approx([s * h, h * friction, s * (2 * h * friction) ** 0.5]), name


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
