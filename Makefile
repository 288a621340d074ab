# The two commands of the README, and the house's own.
#   make up      install into .venv and run a node in the foreground
#   make test    install what the tests need and run them all
#   make check   format, lint, types, layers, tidy
#   make bench   measure; prints a table

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEVELOP := $(VENV)/.develop
ARGS ?=

.PHONY: up test check format bench chaos docs clean

up: $(RUNTIME)
	@$(BIN)/millpond up $(ARGS)

test: $(DEVELOP)
	@sh tools/system_packages.sh kcat redis-server
	@$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

check: $(DEVELOP)
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/mypy --strict examples
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/tidy.py

format: $(DEVELOP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEVELOP)
	@$(BIN)/python -m bench $(ARGS)

chaos: $(DEVELOP)
	@$(BIN)/python tests/campaigns/chaos.py $(ARGS)

docs: $(DEVELOP)
	@$(BIN)/python tools/config_docs.py
	@$(BIN)/python tools/wire_stub.py
	@$(BIN)/python tools/api_docs.py

clean:
	rm -rf $(VENV) build

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV) || (rm -rf $(VENV); sh tools/system_packages.sh --must python3-venv && $(PYTHON) -m venv $(VENV))
	@$(BIN)/python -m pip install -q --upgrade pip

$(RUNTIME): $(VENV)/bin/python pyproject.toml setup.py $(wildcard src/millpond/wire/kernel/*.pyx)
	@echo "Installing Millpond into $(VENV) …"
	@$(BIN)/python -m pip install -q -e .
	@touch $@

$(DEVELOP): $(RUNTIME)
	@echo "Installing what the tests need into $(VENV) …"
	@$(BIN)/python -m pip install -q -e '.[dev,spark,demo]'
	@touch $@
