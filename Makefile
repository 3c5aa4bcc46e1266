# Every target sets up what it needs by itself: a virtual environment in .venv, installed again only when
# pyproject.toml or constraints.txt changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What users need; READY has what developers need.
USABLE := .venv/.usable

.PHONY: help demo quickstart test test-all faults fuzz lint types fast slow bench format lock locked clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

$(USABLE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[export,sweep]'
	@touch $(USABLE)

demo: $(USABLE)  ## train a small network once by SGD and by SparseFW, shrink both, draw the picture
	$(BIN)/sparsefw demo
	@echo "Here, sparsefw is $(BIN)/sparsefw; or first: . $(BIN)/activate"

quickstart: $(USABLE)  ## the same idea in 40 lines of Python
	$(BIN)/python examples/quickstart.py

test: lint types fast  ## lint, types, the fast tests (under 10 minutes on 2 cores)

test-all: lint types  ## everything (under 45 minutes on 2 cores)
	$(MAKE) --no-print-directory all-tests

# Cases per reader, and the seed that they are drawn from: the same seed draws the same cases.
CASES ?= 5000
SEED ?= 0
fuzz: $(READY)  ## hostile files for every reader: CASES=5000 each, SEED=0 (hours on 2 cores; a tenth in minutes)
	CASES=$(CASES) SEED=$(SEED) OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 tests/fuzz

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy
	$(BIN)/mypy

# FAULTS=N SEED=S: how many faults, and the seed that draws them; FAULTS_TABLE=FILE: also write the table there.
FAULTS ?= 200
SEED ?= 0

faults: $(READY)  ## 200 faults, drawn from SEED=0, happen to all commands; a table of promises (under 40 minutes on 2 cores)
	OMP_NUM_THREADS=1 FAULTS=$(FAULTS) SEED=$(SEED) $(BIN)/pytest -n 2 tests/faults

# One thread per test process: two processes of two threads each are slower than two of one on 2 cores.
fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'

all-tests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

lock: $(READY)  ## write requirements-dev.lock and docs/licences.md from what .venv holds
	$(BIN)/python tools/lock.py

# torch comes first, from its own index where pip is so configured: its hash differs between machines.
locked:  ## install what requirements-dev.lock lists, checked by hashes, instead of the newest
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $(READY)

bench: $(READY)  ## time of an optimizer step: SGD and every region, in one run
	$(BIN)/python benchmarks/optimizer.py

format: $(READY)  ## ruff, writing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and the caches
	rm -rf .venv .pytest_cache .hypothesis .mypy_cache .ruff_cache
