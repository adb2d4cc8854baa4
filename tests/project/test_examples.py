"""The programs a newcomer runs first: the examples, and the README's own."""

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(name, *args, cwd, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / name, *args],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_logistic_regression_on_simulated_rows(tmp_path):
    done = program("logistic_regression.py", "--fast", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "truth" in done.stdout and "laplace sd" in done.stdout
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["truth_z"]["largest"] < 5
    assert (tmp_path / "out" / "logistic_regression.png").stat().st_size > 10_000


@pytest.mark.slow
def test_logistic_regression_on_data_found_by_name(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = np.where(rng.random(3000) < 1 / (1 + np.exp(-2 * X[:, 0])), 1, -1)
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    done = program(
        "logistic_regression.py", "--fast", "--data", "mine", cwd=tmp_path, NUMPYRO_SGMCMC_DATA=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    accuracy = json.loads((tmp_path / "out" / "metrics.json").read_text())["test_accuracy"]
    assert accuracy["posterior"] > accuracy["larger class"] + 0.1


def test_logistic_regression_says_where_data_belong(tmp_path):
    done = program("logistic_regression.py", "--data", "nothing", "--data-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing.npz was found in none of these folders" in done.stderr and str(tmp_path) in done.stderr


def test_the_readmes_example(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    draws = np.asarray(names["mcmc"].get_samples()["w"])
    assert draws.shape == (2000, 3)
    assert np.abs(draws.mean(0) - [1.0, -2.0, 0.5]).max() < 5 * draws.std(0).max()
    assert names["new"].shape == (2000, 5)
    assert names["summary"](names["mcmc"], names["X"], names["y"]).verdict == "right"
    assert "posterior" in names["idata"] and "Number of divergences: 0" in capsys.readouterr().out


def test_the_example_of_the_first_page_is_part_of_the_readmes():
    readme, index = (re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1] for page in FIRST)
    assert "summary(mcmc, X, y)" in index
    left_out = [line for line in index.splitlines() if line not in readme.splitlines()]
    assert left_out == ["from numpyro.infer import MCMC"]


FIRST = "README.md", "docs/index.md"


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"X": np.ones((5, 2)), "y": np.ones((5, 1))}, r"X of shape \(5, 2\) and y of shape \(5, 1\)"),
        ({"X": np.ones((5, 2)), "y": np.ones(4)}, r"y of shape \(4,\)"),
        ({"X": np.ones(5), "y": np.ones(5)}, r"X of shape \(5,\)"),
        ({"X": np.array([["a", None]]), "y": np.ones(1)}, "mine.npz is not an archive of arrays of numbers"),
        ({"x": np.ones(5)}, "this program needs X, y or"),
        (None, "mine.npz is not an archive of arrays of numbers"),
    ],
)
def test_an_archive_that_does_not_fit(arrays, message, tmp_path, examples):
    import datasets

    if arrays is None:
        (tmp_path / "mine.npz").write_text("no archive")
    else:
        np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(SystemExit, match=message):
        datasets.parts("mine", tmp_path)
    with pytest.raises(SystemExit, match="there is no such folder"):
        datasets.parts("mine", tmp_path / "elsewhere")


CORPUS = {"indptr": np.array([0, 2, 3]), "indices": np.array([0, 4, 1]), "counts": np.array([1, 2, 1])}


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, "mine.npz has 1 documents of two words or more"),
        ({"indices": np.array([0, -4, 1])}, "document 0 has the word -4"),
        ({"vocab": np.array(["a", "b"])}, "document 0 has the word 4, but must have words 0 to 1"),
        ({"indices": np.array([0.0, 4, 1])}, "indices has dtype float64"),
        ({"indptr": np.array([0, 2, 7])}, "indptr must rise from 0 to the length of indices, 3"),
        ({"counts": np.array([1, 2])}, "counts must hold a number"),
        ({"counts": np.array([1, 0, 1])}, "counts must hold a number"),
    ],
)
def test_a_file_that_is_no_corpus(change, message, tmp_path, examples):
    import topics

    np.savez(tmp_path / "mine.npz", **{**CORPUS, **change})
    with pytest.raises(SystemExit, match=message):
        topics.read_corpus("mine", tmp_path)


def test_a_name_may_have_its_suffix(tmp_path, examples):
    import datasets

    np.savez(tmp_path / "mine.npz", X=np.ones((5, 2)), y=np.ones(5))
    assert datasets.parts("mine.npz", tmp_path)[0].shape == (5, 2)


@pytest.mark.parametrize(
    "line, as_shown",
    [("", True), ("--seed 3 --fast", True), ("--rows 10", True), ("--rows 2 --fast", True), ("--rows 10 --fast", False)]
    + [("--step-sizes 0.1 0.2", True), ("--step-sizes 0.1", False)],
)
def test_settings_of_a_page_are_told_from_others(line, as_shown, monkeypatch, examples):
    import gallery

    monkeypatch.setattr(sys, "argv", ["plot_something.py", *line.split()])
    arguments = gallery.parser("Title\n\nWhat it does.", rows=(2, 10))
    arguments.add_argument("--step-sizes", type=float, nargs="+", default=(0.1, 0.2))
    assert gallery.parsed(arguments, rows=(2, 10)).as_shown == as_shown
