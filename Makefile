# Everything runs in a virtual environment of its own; `make nightly` and `make test` need nothing but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DOCS_STAMP := $(VENV)/.set-up-docs
DEMO_SITE ?= nightly-demo
DEMO_USERS ?= 10000
# Test processes; each has its own cluster, lake and published site.
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/python -m pytest
ROOMS := ammrank_dask storage workflows
# What needs root, a browser or minutes has a target of its own, and so have tests that run nights of their own.
APART := system or docs or long
SIDE_BY_SIDE := $(PYTEST) --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Every process of a test imports the packages: it compiles them anew where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=
# What `make coverage` holds: percent of the lines of the three rooms.
COVERED := 93

.PHONY: setup nightly test test-nights test-random test-system test-docs docs test-long test-histories test-fuzz test-wheel test-pythons test-lower-bounds coverage lint bench bench-paper clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

nightly: setup
	$(BIN)/ammrank demo $(DEMO_SITE) --users $(DEMO_USERS)

# The examples of the docstrings too. Files are taken as they come: by their number of tests, as xdist would, those with
# one that takes long would be the last. The CPU seconds of all processes are printed at the end: 400 at most.
test: setup
	$(SIDE_BY_SIDE) -m 'not (night or $(APART))' --doctest-modules tests ammrank_dask benchmarks $(MORE)

# Whole nights: corrected and late days, object stores, other partitions, forgotten users, balanced lists. And models of
# benchmarks that learn for many seconds.
test-nights: setup
	$(SIDE_BY_SIDE) -m 'night and not ($(APART))' tests $(MORE)

# In another order and with other examples each time; the seed is printed, and MORE='--randomly-seed=N' takes it.
test-random:
	HYPOTHESIS_PROFILE=search $(MAKE) test test-nights MORE='-p randomly $(MORE)'

test-system: setup
	$(PYTEST) -m system $(MORE)

test-docs: setup
	$(PYTEST) -m docs $(MORE)

# The pages as a site, build/site/index.html; a warning is an error.
docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/site

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_STAMP)

# The wheel, installed beside a package with a top-level `workflows`, runs a night; needs a package index.
test-wheel: setup
	.ci/wheel-beside-workflows

# Fresh environments of the other Pythons that are here; needs a package index.
test-pythons: setup
	.ci/pythons

# A fresh environment with the lowest versions that pyproject.toml allows; needs a package index and some minutes.
test-lower-bounds: setup
	.ci/lower-bounds

# All that `make test` leaves out, with every kill and every setting.
test-long: setup
	AMMRANK_KILLS=36 $(PYTEST) -m '$(APART)' $(MORE)

# Random histories with faults beside the same ones without, for MINUTES or HOURS; the seed is printed, and SEED=N takes it.
MINUTES ?= $(if $(HOURS),$$(($(HOURS) * 60)),60)
test-histories: setup
	$(BIN)/python -m tests.histories --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Damaged and odd files of all kinds that come from outside, for MINUTES; SEED=N makes the same ones again.
test-fuzz: setup
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# The kernels are counted where they run as plain Python: the test that does the same is left out before.
coverage: setup
	$(BIN)/python -m coverage erase
	$(MAKE) test test-nights MORE='--deselect tests/unit/kernels/test_without_jit.py --cov --cov-append --cov-report= $(MORE)'
	NUMBA_DISABLE_JIT=1 $(PYTEST) --numprocesses $(TEST_PROCESSES) tests/unit/kernels tests/unit/ingest/test_interest.py --cov --cov-append --cov-report=
	$(BIN)/python -m coverage report --fail-under $(COVERED)

# The two links hand mypy the other rooms: it must say that it checked every file.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/duplicates.py $(ROOMS)
	$(BIN)/mypy | tee -a /dev/stderr | grep -q "no issues found in $$(find $(ROOMS) -name '*.py' | wc -l) source files"

bench: setup
	$(BIN)/python -m benchmarks

# A night of the paper's size, or of USERS; the lake is kept for the next time, results are build/paper/paper.json and .svg.
bench-paper: setup
	$(BIN)/python -m benchmarks paper --work build/paper $(if $(USERS),--users $(USERS)) $(if $(MODEL),--model $(MODEL))

# A folder that holds nothing but compiled files is still imported: a move leaves such folders behind.
clean:
	rm -rf $(DEMO_SITE) build .coverage
	find $(ROOMS) tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find $(ROOMS) tests benchmarks -type d -empty -delete
