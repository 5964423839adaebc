PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
VENV := .venv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 8

setup: $(STAMP) ## make the virtual environment .venv with all that tests and demo need

# The stamp is written last: an interrupted setup starts again, a complete one costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (the first time this takes a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) pip install --quiet --disable-pip-version-check --no-input -c constraints.txt --editable '.[dev]'
	@touch $@

demo: setup ## where auxiliary data helps, does nothing and destroys, on scikit-learn's digits
	@$(RUN) attittud demo

# worksteal: neighbours stay on one worker and share its fixtures. (loadgroup has no effect with pytest 9.2 and xdist 3.8.)
test: lint ## all checks: lint, then every test
	@$(RUN) pytest -n $(WORKERS) --dist worksteal

lint: setup ## ruff (lint and format) and mypy
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy

bench: setup ## time and memory of a step, beside multitask, the authors' algorithm, TorchJD and Opacus
	@$(RUN) benchmarks

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
