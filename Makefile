# Needs python3 (3.11 or newer), make and git; everything else is installed into .venv on first use.
# On a machine whose python3 is older: make demo PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# tests start many processes; each would compile dpsql anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-shell test audit check docs data native bench clean

help:  ## list what make can do
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/core.stamp  ## private counts and sums on the sample data, with price and intervals
	@$(BIN)/dpsql demo

demo-shell: .venv/dev.stamp native  ## an hour at the stock DuckDB shell, every step checked
	@$(BIN)/python -m tests.end_to_end.shell_story

test: .venv/dev.stamp  ## the tests that run in minutes
	@$(BIN)/python -m pytest -n 2 --durations=10

audit: .venv/dev.stamp  ## every test, the long ones too
	@$(BIN)/python -m pytest -n 2 --durations=25 -m ''

check: .venv/dev.stamp  ## lint, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

docs: .venv/docs.stamp  ## the pages of docs/ as a site, in out/docs
	@.venv/docs/bin/zensical build --clean --strict

data: .venv/dev.stamp  ## make sample_data/ again from its sources
	@$(BIN)/python sample_data/make_flights.py
	@$(BIN)/python sample_data/make_clinic.py

native: .venv/core.stamp  ## the aggregate in C: faster, same results (needs a C compiler)
	@$(BIN)/python udfs/native/build.py

# make_zipf.py makes the table, and peers.py installs other systems
bench: .venv/dev.stamp out/zipf.parquet  ## every benchmark, on a generated table of 10 million rows
	@set -e; for script in $(filter-out benchmarks/make_zipf.py benchmarks/peers.py,$(wildcard benchmarks/*.py)); \
	  do echo "$$script"; $(BIN)/python "$$script"; done

clean:  ## remove .venv, caches and generated files
	@rm -rf .venv .cache out build dist udfs/native/*.duckdb_extension .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/core.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'dpsql needs Python 3.11 or newer: make PYTHON=python3.12 …' >&2; exit 1; }
	@echo 'Setting up .venv (once; about a minute) …'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install --editable .
	@touch $@

.venv/dev.stamp: .venv/core.stamp
	@echo 'Adding what the tests need to .venv (once; about a minute) …'
	@$(PIP) install --editable '.[dev]'
	@touch $@

# an environment of its own: zensical and dbt want two versions of pathspec
.venv/docs.stamp: .venv/core.stamp
	@echo 'Setting up .venv/docs (once) …'
	@test -x .venv/docs/bin/python || $(BIN)/python -m venv .venv/docs
	@.venv/docs/bin/python -m pip --disable-pip-version-check --quiet install $$($(BIN)/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

out/zipf.parquet: benchmarks/make_zipf.py | .venv/dev.stamp
	@$(BIN)/python benchmarks/make_zipf.py out
