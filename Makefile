PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
VENV := .venv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.installed

# Some containers set this. Then every process would compile all that it imports once more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test nightly quick lint docs bench carry clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 8

setup: $(STAMP) ## make the virtual environment .venv with all that tests and demo need

# The stamp is written last: an interrupted setup starts again, a complete one costs nothing. Without --no-compile pip would
# spend a minute on compiling thousands of files that nothing here imports.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (the first time this takes a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) pip install --quiet --disable-pip-version-check --no-input --no-compile -c constraints.txt --editable '.[dev]'
	@touch $@

demo: setup ## where auxiliary data helps, does nothing or hurts, on scikit-learn's digits
	@$(RUN) attittud demo

# worksteal: neighbours stay on one worker and share its fixtures. (loadgroup has no effect with pytest 9.2 and xdist 3.8.)
test: lint ## all checks: lint, then every test that a change needs, in minutes
	@$(RUN) pytest -n $(WORKERS) --dist worksteal -m "not nightly"

nightly: setup ## the tests that take longest: all adapters, workers, and runs from end to end
	@$(RUN) pytest -n $(WORKERS) --dist worksteal -m nightly

quick: setup ## the tests of the library in a minute, for daily work: without the slow ones and the lab
	@$(RUN) pytest -n $(WORKERS) --dist worksteal -q -m "not slow and not nightly" tests/attittud

lint: setup ## ruff (lint and format), mypy and import-linter
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(VENV)/bin/lint-imports --no-logo

SITE := docs/_build

# -W: a broken link, a missing anchor or a page that nothing leads to is an error.
docs: setup ## the documentation as a site, in docs/_build
	@$(RUN) sphinx -W --keep-going -q -b html docs $(SITE)
	@echo "Open $(SITE)/index.html in a browser; search and all pages work from the disk"

bench: setup ## time and memory of a step, beside multitask, the authors' algorithm, TorchJD and Opacus
	@$(RUN) benchmarks

# What the lab needs beside torch, transformers and the usual scientific packages, unpacked for another Python.
CARRY := .carry
CARRY_PYTHON := 3.12
CARRIED := pydantic pydantic-core annotated-types typing-inspection typing-extensions filelock

carry: ## packages for a Linux machine on which nothing can be installed (Python 3.12), in the folder .carry
	@rm -rf $(CARRY)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile --only-binary=:all: \
	    --python-version $(CARRY_PYTHON) --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
	    -c constraints.txt --target $(CARRY) $(CARRIED)
	@echo "Copy src, experiments and $(CARRY) to that machine, and set PYTHONPATH=src:.:$(CARRY) there"

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) $(CARRY) $(SITE) dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
