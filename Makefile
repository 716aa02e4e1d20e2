# `make demo` and `make test` need python3 (3.11 or later) with venv, and nothing else.
PYTHON ?= python3
BIN := .venv/bin

# The builds that fit each other. Any other torchvision brings another torch.
TORCH := torch==2.13.0
TORCHVISION := torchvision==0.28.0

.PHONY: demo test test-torch test-avalanche format bench clean

demo: .venv/installed
	mkdir -p demo
	$(BIN)/replan compare examples/fig2.toml --plot demo/fig2.png --csv demo/fig2.csv

test: .venv/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest

# PyTorch and Lightning, in an environment of their own.
test-torch: .venv-torch/installed
	.venv-torch/bin/pytest tests/integrations/test_torch.py tests/integrations/test_lightning.py tests/integrations/test_states.py \
		tests/integrations/test_practice.py \
		tests/networks/test_experiment.py::test_a_run_of_steps_against_torch \
		tests/networks/test_model.py::test_a_run_of_steps_against_torch

# Avalanche, in another one: torchvision, which it needs, breaks `import lightning` there.
test-avalanche: .venv-avalanche/installed
	.venv-avalanche/bin/pytest tests/integrations/test_avalanche.py

format: .venv/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Speed against peers in the same run; needs a C compiler. Takes half an hour.
bench: .venv/installed-bench
	$(BIN)/python benchmarks/rate.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/knobs.py

.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "replan needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

.venv-%/pip:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade pip
	touch $@

.venv-torch/installed: .venv-torch/pip pyproject.toml
	.venv-torch/bin/python -m pip install --quiet $(TORCH)
	.venv-torch/bin/python -m pip install --quiet accelerate tensorboard --editable '.[lightning,test]'
	touch $@

.venv-avalanche/installed: .venv-avalanche/pip pyproject.toml
	.venv-avalanche/bin/python -m pip install --quiet $(TORCH) $(TORCHVISION)
	.venv-avalanche/bin/python -m pip install --quiet --editable '.[avalanche,test]'
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
	rm -rf .venv .venv-torch .venv-avalanche .cache demo build dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
