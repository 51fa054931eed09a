# Every target does its own set-up: on a fresh machine `make test` or `make demo` is the only command needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TOOLS := $(VENV)/tools
# Twice quiet: errors only.
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
PYTEST_WORKERS ?= 2

# One thread per process: test workers do not fight for cores, and sums come out the same on every machine.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test lint docs dist clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

install: $(TOOLS)  ## set up .venv with the tested versions and this package, editable

# torch goes first, at its exact pin: asked for as a range by a dependency it may bring an accelerator build of several
# gigabytes. setuptools comes with it so that the package builds with the pinned one and needs no second download.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (takes a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt setuptools "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[report]'
	@touch $@

# What the tests need is several times as large (Ray, browsers, transformers): the demo does without.
$(TOOLS): $(INSTALLED)
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,report]'
	@touch $@

demo: $(INSTALLED)  ## show the program at work, in a minute or so
	@$(BIN)/budgeted demo

test: lint  ## lint, types and tests: what CI runs
	$(BIN)/python -m pytest --quiet --numprocesses $(PYTEST_WORKERS)

lint: $(TOOLS)  ## style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)  ## the site, into site/: warnings are errors, links are checked
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; with its search: $(BIN)/python -m http.server --directory site"

dist: $(INSTALLED)  ## the package, into dist/, checked as a package index does
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[release]'
	@rm -rf build dist
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*

clean:  ## remove the environment, caches and build products; runs stay
	rm -rf $(VENV) build dist site src/budgeted.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
