PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Bytecode is kept even where Python is told not to: tests and checks are compiled in ten seconds, by each process.
# In the given order: by default files of few tests come last, which may be slow, and one process has nothing to do.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-gpu test-processors lint types docs check clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "bo_scale needs Python 3.11 or newer; try: make PYTHON=python3.11"'
	@$(PYTHON) -m venv $(VENV) || { echo 'No venv module: on Debian or Ubuntu run "apt install python3-venv" first.'; exit 1; }
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt 'torch==2.13.0'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## active sampling of malaria incidence, then optimisation of a noisy function; plots and numbers in demo/
	$(BIN)/python examples/malaria.py --out demo
	$(BIN)/python examples/levy.py --out demo

test: $(STAMP)  ## files shared out to two processes of one thread each
	$(PYTEST) bo_scale tests

test-gpu: $(STAMP)  ## on a machine with a CUDA device
	@$(BIN)/python -c 'import sys, torch; assert torch.cuda.is_available(), "torch finds no CUDA device; `make test` pretends that there is one"'
	$(BIN)/python -m pytest -m gpu tests

test-processors: $(STAMP)  ## as if on other machines, with other seeds; takes five times as long as the tests
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE TEST_SEED=1 $(MAKE) test
	ATEN_CPU_CAPABILITY=avx2 TEST_SEED=2 $(MAKE) test
	MKL_CBWR=COMPATIBLE TEST_THREADS=2 TEST_SEED=3 $(MAKE) test
	ATEN_CPU_CAPABILITY=default TEST_SEED=4 $(MAKE) test
	$(MAKE) test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation in site/, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@! grep -rlE '<(script|link)[^>]+(src|href)="https?:' site --include='*.html' || { echo 'These pages need a network.'; exit 1; }
	@echo 'Open site/index.html.'

check: lint types docs test

clean:
	rm -rf $(VENV) demo site .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
