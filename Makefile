# make run         a first chain of learners, from nothing (about a minute of installation the first time)
# make test        the whole suite; what was left out is printed with its reason
# make test-oldest the same with the lowest versions that setup.cfg allows, on Python 3.10 (.venv-oldest)
# make lint        style, types and the one-way imports between the rooms
# make format      what `make lint` would ask for, where a tool can do it
# make constraints resolve the pins anew from setup.cfg
# make clean       remove everything that these made, but not your runs/
#
# PYTHON=/path/to/python3.12 chooses the interpreter, ARGS="-k exchange" goes on to pytest.

VENV = .venv
CONSTRAINTS = constraints.txt
PYTHONS = python3.11 python3.12 python3.13 python3.10 python3
BIN = $(VENV)/bin
FITS = import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))
PYTHON = $(shell for python in $(PYTHONS); do $$python -c '$(FITS)' 2>/dev/null && echo $$python && break; done)
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint $(CONSTRAINTS)

.PHONY: run test test-oldest lint format constraints clean

run: $(VENV)/.installed
	@$(BIN)/machworks run topology/chains/digits.yaml

test: $(VENV)/.installed
	@$(BIN)/python -m pytest $(ARGS)

test-oldest:
	@$(MAKE) --no-print-directory test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt PYTHONS=python3.10

lint: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.installed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Twice setup.cfg's dependencies: the newest that fit every Python, and the oldest that it allows (on the oldest Python).
constraints: $(VENV)/.installed
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet uv
	@{ sed '/^[^#]/Q' constraints.txt; \
	  $(BIN)/uv pip compile setup.cfg --extra dev --universal --python-version 3.10 --no-header --no-annotate \
	    --upgrade --quiet; } > constraints.tmp && mv constraints.tmp constraints.txt
	@{ sed '/^[^#]/Q' constraints-oldest.txt; \
	  $(BIN)/uv pip compile setup.cfg --extra dev --resolution lowest-direct --python-version 3.10 --no-header \
	    --no-annotate --upgrade --quiet; } > constraints.tmp && mv constraints.tmp constraints-oldest.txt

# setuptools comes first, pinned, and builds the package itself: pip would otherwise fetch an unpinned one for that.
$(VENV)/.installed: setup.cfg $(CONSTRAINTS)
	@if [ -z "$(PYTHON)" ]; then \
	  echo "No Python 3.10 to 3.13 found (looked for: $(PYTHONS)). Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 2; fi
	@$(PYTHON) -c '$(FITS)' || { \
	  echo "$(PYTHON) is not a Python 3.10 to 3.13. Name another one: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip is missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; \
	  exit 2; }
	@echo "Installing into $(VENV) ($$($(PYTHON) --version), $(CONSTRAINTS)): about a minute, 3 GB on disk ..."
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-oldest build dist machworks.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
