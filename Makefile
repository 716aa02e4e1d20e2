# `make demo` and `make test` need python3 (3.11 or later) with venv, and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test format bench clean

demo: .venv/installed
	mkdir -p demo
	$(BIN)/replan compare examples/fig2.toml --plot demo/fig2.png --csv demo/fig2.csv

test: .venv/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest

format: .venv/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Speed against peers in the same run; needs a C compiler. Takes half an hour.
bench: .venv/installed-bench
	$(BIN)/python benchmarks/rate.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/figures.py

.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "replan needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv/installed: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-dev: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ .venv/installed

.venv/installed-bench: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@ .venv/installed

clean:
	rm -rf .venv .cache demo build dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
