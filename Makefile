# `make run` and `make test` are all a newcomer needs; both set up .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := src tests examples conftest.py
QUICKSTART := runs/quickstart

.DEFAULT_GOAL := help
.PHONY: help run explore test gpu bench reproduce check format lint types fix setup clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.installed  ## create .venv with capsella (editable) and the development tools

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup  ## train a small capsule net and its ConvNet twin on MNIST, and write a page that shows what they learned
	$(BIN)/capsella quickstart

explore: setup  ## open the explorer on the nets of `make run`, which are trained first if they are not there
	@test -f $(QUICKSTART)/capsnet_small/record.json && test -f $(QUICKSTART)/convnet_small/record.json \
		|| $(BIN)/capsella quickstart --out $(QUICKSTART)
	$(BIN)/capsella explore $(QUICKSTART)/capsnet_small $(QUICKSTART)/convnet_small

test: setup  ## the default test suite (CPU)
	$(BIN)/python -m pytest

gpu: setup  ## the tests that need a CUDA device (a CUDA build of torch in .venv)
	$(BIN)/python -m pytest -n 0 -m gpu tests

bench: setup  ## how fast routing is on this machine, beside what it must be
	$(BIN)/capsella bench bars

reproduce: setup  ## run the tables of a paper again: make reproduce PAPER=peer2022
	$(BIN)/capsella reproduce $(PAPER)

check: format lint types test  ## what CI runs: format, lint, types, tests; changes nothing

format: setup
	$(BIN)/ruff format --check $(SOURCES)

lint: setup
	$(BIN)/ruff check $(SOURCES)

types: setup
	$(BIN)/mypy

fix: setup  ## let ruff format and repair what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:  ## remove .venv and caches
	rm -rf $(VENV) runs/quickstart build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
