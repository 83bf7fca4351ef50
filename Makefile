# Two commands matter: `make demo` serves the embedded pair, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
# Tests run side by side, one process a core; `PARALLEL=` runs them in one process.
PARALLEL ?= -n auto --maxprocesses 8 --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check lint types imports docs format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "truedraft needs Python 3.11 or newer, and %s is %d.%d: make PYTHON=python3.12" % (sys.executable, *v))'
	@echo "==> making $(VENV) and installing truedraft into it (a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Serve the embedded pair on 127.0.0.1:8000 after a self-check
	@echo "==> starting the demo pair on 127.0.0.1:$(PORT) (Ctrl-C stops it)"
	@$(BIN)/truedraft serve --demo --port $(PORT)

test: $(VENV)/.installed check ## Lint, types, import rules and all CPU tests
	@echo "==> fetching the demo pair's target, if it is not in the cache (93 MB)"
	@$(BIN)/truedraft demo-pair fetch --quiet
	@echo "==> running the CPU tests (some minutes)"
	@$(BIN)/pytest $(PARALLEL) -m 'not full and not gpu'
	@echo "==> all is well"

test-full: $(VENV)/.installed check ## The same, and the tests that take minutes
	@$(BIN)/truedraft demo-pair fetch --quiet
	@$(BIN)/pytest $(PARALLEL) -m 'not gpu'

check: lint types imports ## Lint, types and import rules

lint: $(VENV)/.installed
	@echo "==> lint and format (ruff)"
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check src tests benchmarks

types: $(VENV)/.installed
	@echo "==> types (mypy)"
	@$(BIN)/mypy

imports: $(VENV)/.installed
	@echo "==> import rules (import-linter)"
	@$(BIN)/lint-imports

docs: $(VENV)/.installed ## Rewrite docs/commands from the commands' help
	@$(BIN)/python -m truedraft.cli.docs docs/commands

format: $(VENV)/.installed ## Format, and fix what can be fixed
	@$(BIN)/ruff check --fix src tests benchmarks
	@$(BIN)/ruff format src tests benchmarks

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
