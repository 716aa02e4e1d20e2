# `make demo` and `make test` need python3 (3.11 or later) with venv, and nothing else.
PYTHON ?= python3
BIN := .venv/bin

# The builds that fit each other. Any other torchvision brings another torch.
TORCH := torch==2.13.0
TORCHVISION := torchvision==0.28.0
FRAMEWORKS := tests/replay/frameworks

.PHONY: demo core test test-all test-sanitized test-torch test-transformers test-avalanche test-reproduction test-package docs \
	page test-page paint-gif notebooks figures format bench clean

demo: .venv/installed core
	mkdir -p demo
	$(BIN)/replan compare examples/fig2.toml --optimum --plot demo/fig2.png --csv demo/fig2.csv

# Compiles the C files in src/replan/core if one is newer than the libraries.
core: .venv/installed
	$(BIN)/python src/replan/core/build.py

test: .venv/installed-dev core
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest

# What takes long: fuzz and crash tests, pages and notebooks.
test-all: test
	$(BIN)/pytest -m slow

# The core under gcc's sanitizers of addresses and undefined behaviour.
test-sanitized: .venv/installed-dev core
	CC=gcc $(BIN)/python src/replan/core/build.py build/sanitized -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) libstdc++.so.6" ASAN_OPTIONS=detect_leaks=0 \
		REPLAN_CORE=$(CURDIR)/build/sanitized/_core-base.so $(BIN)/pytest tests/core tests/models/test_gradients.py

# PyTorch, Lightning and Hugging Face, in an environment of their own.
test-torch: .venv-torch/installed
	.venv-torch/bin/pytest $(FRAMEWORKS)/test_torch.py $(FRAMEWORKS)/test_lightning.py $(FRAMEWORKS)/test_schedules.py $(FRAMEWORKS)/test_examples.py

test-transformers: .venv-torch/installed
	.venv-torch/bin/pytest $(FRAMEWORKS)/test_transformers.py

# Avalanche, in another one: torchvision, which it needs, breaks `import lightning` there.
test-avalanche: .venv-avalanche/installed
	.venv-avalanche/bin/pytest $(FRAMEWORKS)/test_avalanche.py $(FRAMEWORKS)/test_examples.py

# The wheel with the oldest dependencies that pyproject.toml allows, the sdist with the newest, each where nothing else is.
test-package: .venv-package/installed
	rm -rf build/package
	.venv-package/bin/python -m build --outdir build/package .
	.venv-package/bin/python tests/oldest.py > build/package/oldest.txt
	$(PYTHON) -m venv build/package/oldest
	build/package/oldest/bin/python -m pip install --quiet --constraint build/package/oldest.txt build/package/*.whl
	build/package/oldest/bin/replan --version
	cd build/package && oldest/bin/python ../../tests/packaged.py
	$(PYTHON) -m venv build/package/newest
	build/package/newest/bin/python -m pip install --quiet --upgrade build/package/*.tar.gz
	build/package/newest/bin/replan --version
	cd build/package && newest/bin/python ../../tests/packaged.py

# The site of the documentation: build/site/index.html.
docs: .venv-docs/installed page
	.venv-docs/bin/python docs/build.py

# The page on which one paints when to replay: one file, build/replan.html.
page: .venv-page/installed
	.venv-page/bin/python -m replan.page.build build/replan.html

# The page in a headless browser, its kernels under node; needs node, npm and Chromium.
test-page: page tests/page/node_modules .venv-page/installed-test
	tests/page/node_modules/.bin/prettier --config tests/page/package.json --check src/replan/page tests/page
	tests/page/node_modules/.bin/eslint --config tests/page/eslint.config.mjs src/replan/page tests/page
	CHROMIUM="$$(command -v chromium chromium-browser google-chrome | head -n 1)" REPLAN=$(CURDIR)/.venv-page/bin/replan \
		node --test --test-concurrency=2 tests/page/page.test.mjs tests/page/page20.test.mjs
	.venv-page/bin/python -m pytest tests/page

# The film of a hand that paints on the page, for the README: docs/images/paint.gif.
paint-gif: page .venv/installed-bench
	$(BIN)/python docs/paint_gif.py

# Runs the notebooks in place, for outputs that are up to date.
notebooks: .venv/installed-dev core
	$(BIN)/python docs/run_notebooks.py paper own-model

# The paper's figures and claims, with ours: half an hour on two cores, and the data sets of images.
figures: .venv/installed-reproduction core
	$(BIN)/python -m reproduction all --out figures

test-reproduction: .venv/installed-reproduction core
	$(BIN)/python -m pytest reproduction/tests
	$(BIN)/python -m pytest -m slow tests/test_docs.py -k models

format: .venv/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Speed against peers in the same run; needs a C compiler. Takes half an hour.
bench: .venv/installed-bench core page
	$(BIN)/python benchmarks/rate.py
	$(BIN)/python benchmarks/relu.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/sweeps.py
	$(BIN)/python benchmarks/knobs.py
	$(BIN)/python benchmarks/page.py

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
	.venv-torch/bin/python -m pip install --quiet trl --editable '.[lightning,transformers,test]'
	touch $@

.venv-avalanche/installed: .venv-avalanche/pip pyproject.toml
	.venv-avalanche/bin/python -m pip install --quiet $(TORCH) $(TORCHVISION)
	.venv-avalanche/bin/python -m pip install --quiet --editable '.[avalanche,test]'
	touch $@

.venv-package/installed: .venv-package/pip
	.venv-package/bin/python -m pip install --quiet build
	touch $@

.venv-docs/installed: .venv-docs/pip docs/requirements.txt
	.venv-docs/bin/python -m pip install --quiet --requirement docs/requirements.txt
	touch $@

.venv-page/installed: .venv-page/pip pyproject.toml
	.venv-page/bin/python -m pip install --quiet ziglang --editable .
	touch $@

.venv-page/installed-test: .venv-page/installed
	.venv-page/bin/python -m pip install --quiet --editable '.[test]'
	touch $@

tests/page/node_modules: tests/page/package.json
	npm install --prefix tests/page --no-package-lock --silent
	touch $@

.venv/installed: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-dev: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ .venv/installed

.venv/installed-reproduction: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[reproduction,test]'
	touch $@ .venv/installed

.venv/installed-bench: .venv/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@ .venv/installed

clean:
	rm -rf .venv .venv-* .cache demo figures build dist tests/page/node_modules src/replan/core/*.so
	find src tests benchmarks reproduction -name __pycache__ -prune -exec rm -rf {} +
