# Needs python3 (3.11 or newer), make and git; everything else is installed into .venv on first use.
# On a machine whose python3 is older: make demo PYTHON=python3.12
# The tests with other versions, in an environment of their own: make test-all DUCKDB=2.0.0 SQLGLOT=30.27.0

PYTHON ?= python3
PINS := $(DUCKDB:%=duckdb==%) $(SQLGLOT:%=sqlglot==%)
VENV := .venv$(if $(DUCKDB)$(SQLGLOT),/with$(DUCKDB:%=-duckdb-%)$(SQLGLOT:%=-sqlglot-%))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# tests start many processes; each would compile dpsql anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-shell test test-rest test-all test-times spark audit check docs data native bench clean

help:  ## list what make can do
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/core.stamp  ## private counts and sums on the sample data, with price and intervals
	@$(BIN)/dpsql demo

demo-shell: $(VENV)/dev.stamp native  ## an hour at the stock DuckDB shell, every step checked
	@$(BIN)/python -m tests.end_to_end.shell_story

test: $(VENV)/dev.stamp  ## the tests before a commit: units, golden records, one file for each front end
	@$(PYTEST) -m 'not long and not thorough'

test-rest: $(VENV)/dev.stamp  ## the tests that `make test` leaves out, without the long ones
	@$(PYTEST) -m 'thorough and not long'

test-all: $(VENV)/dev.stamp  ## both in one run; DUCKDB=2.0.0 takes that version
	@$(PYTEST)

test-times: $(VENV)/dev.stamp  ## `make test-all`, with CPU seconds by folder and the slowest tests
	@$(PYTEST) -p tests.times

spark: .venv/spark.stamp  ## questions on tables of Spark; installs pyspark, and Java by the system's packages
	@DPSQL_SPARK=1 $(BIN)/python -m pytest -m '' -p no:randomly -W ignore::FutureWarning tests/spark

audit: $(VENV)/dev.stamp  ## every test, the long ones too
	@$(PYTEST) -p tests.times -m ''

check: $(VENV)/dev.stamp  ## lint, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

docs: .venv/docs.stamp  ## the pages of docs/ as a site, in out/docs
	@.venv/docs/bin/zensical build --clean --strict

data: $(VENV)/dev.stamp  ## make sample_data/ again from its sources
	@$(BIN)/python sample_data/make_flights.py
	@$(BIN)/python sample_data/make_clinic.py

native: $(VENV)/core.stamp  ## the aggregate in C: faster, same results (needs a C compiler)
	@$(BIN)/python udfs/native/build.py

# make_zipf.py makes the table, peers.py installs other systems, same_session.py is a child of same_answers.py, and
# spark.py needs what `make spark` installs
bench: $(VENV)/dev.stamp out/zipf.parquet  ## every benchmark, on a generated table of 10 million rows
	@set -e; for script in $(filter-out $(addprefix benchmarks/,make_zipf.py peers.py same_session.py spark.py),$(wildcard benchmarks/*.py)); \
	  do echo "$$script"; $(BIN)/python "$$script"; done

clean:  ## remove .venv, caches and generated files
	@rm -rf .venv .cache out build dist udfs/native/*.duckdb_extension .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/core.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'dpsql needs Python 3.11 or newer: make PYTHON=python3.12 …' >&2; exit 1; }
	@echo 'Setting up $(VENV) (once; about a minute) …'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable . $(PINS)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	@echo 'Adding what the tests need to $(VENV) (once; about a minute) …'
	@$(PIP) install --editable '.[dev]' $(PINS)
	@touch $@

.venv/spark.stamp: .venv/dev.stamp
	@bash tests/spark/install_java.sh
	@echo 'Adding Spark to .venv (once; half a gigabyte) …'
	@$(PIP) install $$($(BIN)/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["spark"])')
	@touch $@

# an environment of its own: zensical and dbt want two versions of pathspec
.venv/docs.stamp: $(VENV)/core.stamp
	@echo 'Setting up .venv/docs (once) …'
	@test -x .venv/docs/bin/python || $(BIN)/python -m venv .venv/docs
	@.venv/docs/bin/python -m pip --disable-pip-version-check --quiet install $$($(BIN)/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

out/zipf.parquet: benchmarks/make_zipf.py | $(VENV)/dev.stamp
	@$(BIN)/python benchmarks/make_zipf.py out
