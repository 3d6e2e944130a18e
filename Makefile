# Every target first sets up .venv in this folder; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo docs test test-slow lint format setup clean

demo: setup            ## supervised training, PET and iPET on the sample data, in minutes
	$(BIN)/clozify demo

test: setup            ## the tests to pass before every commit, in parallel
	$(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

test-slow: setup       ## the tests that take longer: browsers, clusters, killed processes, the tutorial
	$(BIN)/python -m pytest -m slow -n auto --dist loadfile --no-loadscope-reorder

docs: setup            ## build the documentation's site into site/
	$(BIN)/python scripts/build_site.py

lint: setup            ## format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup          ## put the code into form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(STAMP)

# torch comes first and pinned: asked for by a range, an index may answer with gigabytes of GPU libraries.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "clozify needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
