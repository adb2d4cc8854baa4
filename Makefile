# make demo | test | test-slow | test-gallery | test-sources | figures | experiments | results | docs | mutations | bench |
#      lint | dist | release | clean
#
# PYTHON=python3.13   the interpreter of the environment
# STACK=oldest|newest versions held by .ci/$(STACK).txt (default: what pip chooses)
# VENV=folder         the environment (default: .venv, .venv-oldest, .venv-newest)
# ARGS="-k laws"      more arguments for pytest or for the demo

PYTHON ?= python3
STACK ?=
VENV ?= .venv$(addprefix -,$(STACK))
ARGS ?=
CORES := $(shell nproc 2>/dev/null | awk '{ print $$1 < 8 ? $$1 : 8 }')

BIN := $(VENV)/bin
CONSTRAINTS := $(STACK:%=.ci/%.txt)
SYNTHETIC := step_size_bias convergence_rates double_well mixture minibatch_bias

.PHONY: demo test test-slow test-gallery test-sources figures experiments results docs mutations bench lint dist release clean

demo: $(VENV)/installed-examples
	$(BIN)/python examples/logistic_regression.py $(ARGS)

test: MARKED := not slow
test-slow: MARKED := slow

# the tests; `make test-slow` has the long runs, and the cases of large products that are left out here
test test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest tests numpyro_sgmcmc --doctest-modules -m "$(MARKED)" -n $(or $(CORES),2) --dist loadfile $(ARGS)

# every program of the gallery in a few seconds each
test-gallery: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/gallery.py -n $(or $(CORES),2) $(ARGS)

# OnDisk with pyarrow, grain, array_record and h5py themselves
test-sources: $(VENV)/installed-sources
	$(BIN)/python -m pytest tests/sources.py $(ARGS)

# the papers' synthetic experiments in full, into out/: about ten minutes
figures: PROGRAMS := $(SYNTHETIC:%=examples/plot_%.py)

# the rest of the gallery in full, into out/: about two hours
experiments: PROGRAMS := $(filter-out $(SYNTHETIC:%=examples/plot_%.py),$(wildcard examples/plot_*.py))

figures experiments: $(VENV)/installed-test
	for program in $(PROGRAMS); do $(BIN)/python $$program $(ARGS) || exit 1; done

# docs/results.md, from what `make figures experiments` left in out/
results: $(VENV)/installed-test
	$(BIN)/python docs/scripts/results.py $(ARGS)

# docs/_build/html, with the gallery executed in its fast sizes; `make docs GALLERY=` runs it in full. Warnings are errors,
# and the examples of the docstrings are run
docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b doctest -d docs/_build/html/.doctrees docs docs/_build/doctest

# faults planted one at a time, and the tests that catch them: about twenty minutes
mutations: $(VENV)/installed-test
	$(BIN)/python tests/mutations.py $(ARGS)

# docs/benchmarks.md: about an hour, on a machine with nothing else to do; ARGS=--fast shows that the programs run
bench: $(VENV)/installed-bench
	$(BIN)/python tests/benchmarks/report.py $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# sdist and wheel; each is installed in an empty environment, where the example of README.md runs
dist: $(VENV)/installed-dev
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py $(DATED) $(CONSTRAINTS:%=-c %)

# all that must hold of a release, a dated changelog among it, before `twine upload dist/*`: about two hours on two cores
release: DATED := --dated
release: lint dist test test-slow test-gallery mutations docs

clean:
	rm -rf .venv .venv-* build dist out *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# one stamp for each extra: a second run installs nothing
$(VENV)/installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=-c %) -e '.[$*]'
	touch $@

# where the system's venv has no pip of its own, the interpreter's pip puts one there
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
