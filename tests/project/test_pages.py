"""The code of the pages runs as it is printed, and their numbers are those of programs."""

import ast
import importlib.util
import inspect
from pathlib import Path
import re
import subprocess
import sys

import models
from numpyro.infer import MCMC
import pytest
import test_visits

import numpyro_sgmcmc
from numpyro_sgmcmc.tuning.pilot import score_limit

DOCS = Path(__file__).resolve().parents[2] / "docs"
GALLERY = DOCS.parent / "examples"
PUBLIC = {name: getattr(numpyro_sgmcmc, name) for name in dir(numpyro_sgmcmc)}


def code_of(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


# packages that a page uses and the extra `test` does not have; `make docs` runs neighbours.md always
NEEDED = {"neighbours.md": ["equinox", "formulae", "polars"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the draws are wrong. the chains are in different regions")  # weights of a network
@pytest.mark.parametrize("page", ["extend.md", "howto.md", "local.md", "neighbours.md"])
def test_programs(page):
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    names = {}
    for k, block in enumerate(code_of(page)):
        if block.startswith("import os\n"):  # sets the environment
            subprocess.run([sys.executable, "-c", block], check=True)
        else:
            exec(compile(block, f"{page}, block {k}", "exec"), names)


@pytest.mark.parametrize("number", range(5))
def test_what_is_reported_upstream_still_happens(number):
    if number == 1:
        pytest.importorskip("funsor")
    program = code_of("maintainers/upstream.md")[number]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NUMBERS = {"dt": 1e-3, "alpha": 0.02, "lr": 3e-2, "N": 50.0, "learning_rate": 2e-3, "momentum_decay": 0.05}
NUMBERS |= {"step_size": 4e-3, "stepsize": 5e-3}


def test_what_one_comes_to_can_be_made():
    names = PUBLIC | {"MCMC": MCMC, "model": models.gaussian, "h": 1e-3, "a": 1e-2, "b": 1.0, "γ": 0.5}
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
    names = PUBLIC | {"model": models.gaussian}
    for block in code_of(page):
        exec(block, names)


@pytest.mark.slow
def test_the_tables_of_the_bias_are_those_of_the_kernels():
    spec = importlib.util.spec_from_file_location("bias", DOCS / "scripts" / "bias.py")
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


def rounded(value, printed):
    """``value`` with as many digits as ``printed`` has behind its point."""
    return f"{value:.{len(printed.partition('.')[2])}f}"


def test_the_stored_local_values_have_the_computed_law():
    posterior = 1 / (0.01 + test_visits.N / 2)  # y ~ N(mu, 2)
    rows = [[cell.strip() for cell in row.strip(" |").split("|")] for row in LOCAL_TABLE.findall(text_of("local.md"))]
    assert [float(h) for h, *_ in rows] == [0.1, 0.01, 0.001]
    kinds = [(0.0, False), (test_visits.RHO, False), (test_visits.RHO, True)]
    for h, *cells in rows:
        ratios = [test_visits.law(rho, kept, float(h))[1] / posterior for rho, kept in kinds]
        assert cells == [rounded(ratio, cell) for ratio, cell in zip(ratios, cells)], h
    sentence = r"unbiased, at (\S+)\. Short chains from the prior give (\S+)\.\n"
    unbiased, biased = re.search(sentence, text_of("local.md")).groups()
    means = [test_visits.law(rho, kept)[0] for rho, kept in kinds]
    assert [rounded(mean, unbiased) for mean in means] == [unbiased, biased, unbiased]


LOCAL_TABLE = re.compile(r"^ *(\| 0\.[\d.| ]+\|)$", re.MULTILINE)


def text_of(page):
    return (DOCS / page).read_text()


def test_the_bounds_of_the_warm_up_are_the_computed_ones():
    text = re.sub(r"\s+", " ", text_of("self_tuning.md"))
    pattern = (
        r"is (\S+) for 4 chains tuned together and 11 coordinates, and (\S+) for a chain tuned alone and 100 coord"
    )
    assert re.search(pattern, text).groups() == tuple(f"{score_limit(*size):.1f}" for size in ((11, 4), (100, 1)))


def test_the_pages_about_large_data_have_the_numbers_of_other_pages():
    (passes,) = re.findall(r"\| passes over the data by the warm-up \| none \| (\S+) \|", text_of("results.md"))
    assert re.sub(r"\s+", " ", text_of("scale.md")).count(f"There are {float(passes):.2g} of them") == 1
    memory = {cells[0]: cells[-1] for cells in table_rows("benchmarks.md") if cells[0].startswith("4 chains")}
    copies = {name: float(re.search(r"\((.*)\)", cell)[1]) for name, cell in memory.items()}
    assert round(copies["4 chains, JAX's defaults"]) == 3  # "about three times the size of the data"
    assert copies["4 chains, no bar"] < 0.25  # "a small part of their size"


# The numbers in the prose of the gallery's programs. They are settings, claims that the program asserts, or a paper's
# results. A result of ours does not belong there: the program prints it, and docs/scripts/results.py puts it on a page.
INPUTS = {
    "convergence_rates": {"0.1", "0.2", "0.7", "0.033", "0.045", "0.001"},  # exponents and constants of the paper
    "covertype_scale": {"5 %"},  # asserted
    "diagnostics": {"0.3", "15 %", "10 times", "50 times", "1.2", "20 times", "1.44"},  # faults, and their effects
    "double_well": {"0.001", "0.05", "0.1", "0.2", "0.25", "0.3"},  # step sizes
    "is_it_right": {"30 %", "70 %", "0.7", "0.7 times", "1.5"},  # the model, the step size and 1 / (1 - 0.7 / 2)
    "lda": {"12 %"},  # asserted
    "logistic_regression": {"0.1", "84.95 %", "84.72 %", "84.56", "84.51 %", "84.80", "84.84 %"},  # start; the paper's
    "many_topics": {"930 times"},  # size of the corpus
    "minibatch_bias": {"10 %", "15 %", "0.1", "0.4"},  # asserted; step sizes
    "mixture": {"5 %", "50 times", "40 %", "50 %"},  # asserted; a step size; starts and weights
    "neural_network": {"80 %"},  # of a run that works
    "out_of_core": {"15 %"},  # asserted
    "regression": {"70 %", "10 %", "20 %"},  # parts of the data
    "simplex": {"0.1"},  # the prior
    "step_size_bias": {"5 %"},  # the last step size
}
NUMBER = re.compile(
    r"(?<!section )(?<![\w.])(?:\d*\.\d+|\d+(?= %| s\b| times\b))(?:e-?\d+)?(?: %| s\b| times\b)?|±|\+-|\+/-",
)


def prose_of(program):
    """The text blocks of a page: the docstring, and comments that begin with ``# %%``."""
    text = program.read_text()
    blocks = [ast.get_docstring(ast.parse(text)), *re.findall(r"^# %%\n((?:#.*\n)+)", text, re.MULTILINE)]
    return "\n\n".join(re.sub(r"\s*\n#? ?", " ", block) for block in blocks)


@pytest.mark.parametrize("program", sorted(GALLERY.glob("plot_*.py")), ids=lambda program: program.stem)
def test_the_prose_of_the_gallery_has_no_results(program):
    assert set(NUMBER.findall(prose_of(program))) == INPUTS.get(program.stem.removeprefix("plot_"), set())


def test_results_in_prose_are_found():
    text = ".0470 +- .0004 and 97.2 % in section 5.2, 1.6e-2 or -0.44 ± 2; 8 % in 15 s, from 0.065, N(0, 1), 1/3, L^-2."
    assert NUMBER.findall(text) == [".0470", "+-", ".0004", "97.2 %", "1.6e-2", "0.44", "±", "8 %", "15 s", "0.065"]


def test_every_public_name_is_in_the_reference():
    documented = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert documented == {name for name, each in PUBLIC.items() if callable(each)}


ROOT_PAGES = [DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if not {"_build", "gallery"} & {*page.relative_to(DOCS).parts}]


def anchors_of(page):
    """The anchors of the headings, as GitHub and Sphinx name them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*?)$", text, re.M)]


@pytest.mark.parametrize("page", ROOT_PAGES + PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\((?!http|mailto)([^)#\s]*)#?([^)\s]*)\)", text)
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors_of(target), f"{path}#{anchor}"
