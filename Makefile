# Two commands matter: `make demo` serves the embedded pair, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check lint types imports format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "==> making $(VENV) and installing truedraft into it (about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Serve the embedded pair on 127.0.0.1:8000 after a self-check
	@echo "==> starting the demo pair on 127.0.0.1:$(PORT) (stop with Ctrl-C)"
	@$(BIN)/truedraft serve --demo --port $(PORT)

test: $(VENV)/.installed check ## Lint, types, import rules and all CPU tests
	@echo "==> fetching the demo pair's target if it is not cached yet"
	@$(BIN)/truedraft demo-pair fetch
	@echo "==> running the CPU tests"
	@$(BIN)/pytest -m 'not full and not gpu'

test-full: $(VENV)/.installed check ## The same and the tests that take minutes
	@$(BIN)/truedraft demo-pair fetch
	@$(BIN)/pytest -m 'not gpu'

check: lint types imports ## Lint, types and import rules

lint: $(VENV)/.installed
	@echo "==> ruff"
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests

types: $(VENV)/.installed
	@echo "==> mypy"
	@$(BIN)/mypy

imports: $(VENV)/.installed
	@echo "==> import-linter"
	@$(BIN)/lint-imports

format: $(VENV)/.installed ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix src tests
	@$(BIN)/ruff format src tests

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
