# Everything runs in a virtual environment of its own; `make nightly` and `make test` need nothing but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DEMO_SITE ?= nightly-demo
DEMO_USERS ?= 10000

.PHONY: setup nightly test test-system lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

nightly: setup
	$(BIN)/ammrank demo $(DEMO_SITE) --users $(DEMO_USERS)

test: setup
	$(BIN)/python -m pytest

test-system: setup
	$(BIN)/python -m pytest -m system

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(DEMO_SITE)
