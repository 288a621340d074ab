# The two commands of the README, and the house's own.
#   make up      install into .venv and run a node in the foreground
#   make test    install what the tests need and run the quick ones, and one of each kind with real processes
#   make test-all  run all other tests: real nodes, clients, clusters, Spark, browsers; after make test
#   make chaos   campaigns, comparisons with Apache Kafka, the demo, the README on a clean copy; hours
#   make check   format, lint, types, layers, tidy
#   make coverage  which functions of each package its tests call; minutes, not part of make test
#   make docs-site  the docs as a site, in build/site
#   make bench   measure; prints a table (ARGS=--peers: beside others; ARGS=--check: beside stored figures)
#   make dist    what others can install, in dist/: an sdist and two wheels
#   make demo    a stream of orders through Spark: lake, revenue per minute, current state; ends with a chart

# The Python that .venv is made with; without one, tools/python.sh chooses.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEVELOP := $(VENV)/.develop
DIST := $(VENV)/.dist
SPARK := $(VENV)/.spark
SITE := $(VENV)/.site
BENCH := $(VENV)/.bench
STUB := src/millpond/wire/messages.pyi
INSTALL := $(BIN)/python tools/installation.py
ARGS ?=
# Tests wait more than they compute: more of them than cores run at a time.
WORKERS ?= 3

# Each worker of the tests, and each process that one starts, would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up test test-all test-tools check format bench chaos coverage demo dist docs docs-site clean

up: $(RUNTIME)
	@$(BIN)/millpond up $(ARGS)

# The number after the name is the budget: minutes of processor time, with a Python that was built with optimisation.
MEASURED = $(BIN)/python tools/processor_time.py
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --durations 20 --durations-min 8

test: $(DEVELOP) test-tools
	@$(MEASURED) "make test" 12 $(PYTEST) -m "not extended" $(ARGS)

test-all: $(DEVELOP) test-tools
	@$(MEASURED) "make test-all" 30 $(PYTEST) -m extended $(ARGS)

test-tools:
	@sh tools/system_packages.sh kcat redis-server chromium prometheus
	@sh tools/java.sh

check: $(DEVELOP) $(STUB)
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/mypy --strict examples
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/tidy.py

format: $(DEVELOP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(BENCH)
	@case " $(ARGS) " in *--peers*) \
		RUNLEVEL=1 sh tools/system_packages.sh redis-server nats-server rabbitmq-server maven; sh tools/java.sh;; esac
	@$(BIN)/python -m bench $(ARGS)

chaos: $(DEVELOP)
	@$(BIN)/python tests/campaigns/chaos.py $(ARGS)

coverage: $(DEVELOP)
	@$(BIN)/python tools/function_coverage.py $(ARGS)

demo: $(SPARK)
	@sh tools/java.sh --must
	@$(BIN)/python -m examples.demo $(ARGS)

dist: $(DIST)
	@$(BIN)/python tools/dist.py $(ARGS)

docs: $(DEVELOP) $(STUB)
	@$(BIN)/python tools/config_docs.py
	@$(BIN)/python tools/api_docs.py
	@$(BIN)/python tools/client_docs.py
	@$(BIN)/python tools/spark_docs.py
	@$(BIN)/python tools/lesson_docs.py

docs-site: $(SITE) docs
	@$(BIN)/python tools/site.py build/pages
	@$(BIN)/python -m mkdocs build --strict -q
	@echo "The docs are in build/site/index.html"

clean:
	rm -rf $(VENV) build

$(VENV)/bin/python:
	@echo "Making a Python environment in $(VENV) …"
	@python="$(PYTHON)"; python="$${python:-$$(sh tools/python.sh)}"; "$$python" -m venv $(VENV) \
		|| (rm -rf $(VENV); sh tools/system_packages.sh --must python3-venv && "$$python" -m venv $(VENV))
	@echo "Updating pip …"
	@$(BIN)/python -m pip install -q --upgrade pip

$(RUNTIME): $(VENV)/bin/python pyproject.toml setup.py $(wildcard src/millpond/wire/kernel/*.pyx src/millpond/wire/kernel/*.pxi)
	@echo "Installing Millpond into $(VENV); that takes a minute or two …"
	@$(INSTALL) -e .
	@touch $@

# An install writes it too; this follows changes of the schemas.
$(STUB): tools/wire_stub.py src/millpond/wire/notation.py $(shell find src/millpond/wire/schemas) | $(VENV)/bin/python
	@$(BIN)/python tools/wire_stub.py

$(SPARK): $(RUNTIME)
	@echo "Installing Spark into $(VENV) …"
	@$(INSTALL) -e '.[spark,demo]'
	@touch $@

$(DIST): $(VENV)/bin/python
	@$(BIN)/python -m pip install -q 'build>=1.2'
	@touch $@

$(DEVELOP): $(RUNTIME)
	@echo "Installing what the tests need into $(VENV) …"
	@$(INSTALL) -e '.[dev,spark,demo,sql]'
	@touch $@

# A client that cannot be had is left out of its row.
$(BENCH): $(DEVELOP)
	@echo "Installing the clients that the bench puts beside ours into $(VENV) …"
	@$(INSTALL) -e '.[bench]' || echo "Going on without them."
	@touch $@

$(SITE): $(DEVELOP)
	@echo "Installing what the site needs into $(VENV) …"
	@$(INSTALL) -e '.[docs]'
	@touch $@
