# Needs make and Python >= 3.11 (with venv), nothing else. Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
PYVERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)

# Each interpreter that is asked for by name has an environment of its own, so that they do not replace each other.
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(PYVERSION))
BIN = $(VENV)/bin
PYTEST = $(BIN)/python -m pytest
# Processes that share the test files; 0 runs all in one, as a debugger needs it.
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install quickstart test test-slow test-all test-gpu lint format docs bench clean

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS=...]; a target that needs the environment builds it first"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name text; do printf '%-13s %s\n' "$$name" "$$text"; done

install: $(VENV)/.installed ## build the environment: the package in editable mode, and what development needs

quickstart: $(VENV)/.installed ## train PPO on CartPole over eight seeds in one jit; minutes
	$(BIN)/jaxrl train ppo --env CartPole-v1 --seeds 8 --out runs/quickstart $(ARGS)

# Most of the tests' time is compiling. These flags make it several times shorter, and the programs hardly slower; test-all and
# learning tests compile as users do.
FAST_COMPILE = XLA_FLAGS="$$(JAX_PLATFORMS=cpu $(BIN)/python -m tests.helpers.fast_flags) $$XLA_FLAGS"

# $(1): the marker expression; $(2): what it leaves out, and how to run that; $(3): variables for pytest
run_tests = @status=0; $(3) $(PYTEST) -n $(WORKERS) --dist loadgroup --max-worker-restart 0 -m "$(1)" $(ARGS) || status=$$?; echo "Left out: $(2)"; exit $$status
GPU_LEFT_OUT = tests marked gpu (make test-gpu, on a machine with one)

test: $(VENV)/.installed ## run the tests but those marked learning, chaos, slow, ray or gpu; 17 to 30 minutes on 2 cores; ARGS="--part 0/4": a quarter of them
	$(call run_tests,not learning and not chaos and not slow and not ray and not gpu,tests marked learning or chaos or slow or ray (make test-all); $(GPU_LEFT_OUT),$(FAST_COMPILE))

test-slow: $(VENV)/.installed ## only the tests marked slow; .ci/run takes another part of them each day
	$(call run_tests,slow and not learning and not chaos and not ray and not gpu,all other tests (make test; make test-all),$(FAST_COMPILE))

test-all: $(VENV)/.installed ## the same with learning, chaos, slow and ray; about two hours on 2 cores
	$(call run_tests,not gpu,$(GPU_LEFT_OUT); scores that take longest (make bench ARGS=scores))

test-gpu: $(VENV)/.installed ## only the tests marked gpu
	JAX_PLATFORMS=cuda,cpu $(PYTEST) -m gpu $(ARGS)

lint: $(VENV)/.installed ## ruff check, ruff format --check, the lint of prose, and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.helpers.prose
	$(BIN)/mypy

format: $(VENV)/.installed ## let ruff repair and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.docs ## build the documentation into site/, warnings and broken links as errors
	NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed ## speed against a raw bound and against a peer, side by side
	$(BIN)/python -m benchmarks $(or $(ARGS),speed)

clean: ## remove environments, caches and build products; runs/ stays
	rm -rf .venv .venv-* build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The name of this stamp holds the version, so a changed interpreter means a fresh environment.
$(VENV)/.python-$(PYVERSION):
	@$(PYTHON) -c '' || { echo "PYTHON=$(PYTHON) does not start. Name a Python >= 3.11: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PYTHON=$(PYTHON) is Python $(PYVERSION), and jaxrl needs >= 3.11. Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python-$(PYVERSION) pyproject.toml
	@echo "Installing jaxrl and its dependencies into $(VENV): once; several hundred megabytes to download, 3 GB on disk."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@
