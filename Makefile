# Each target sets up what it needs: a virtual environment in .venv, with torch first, so that its open range in pyproject.toml settles on the version below.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Counting covered lines takes time; CI asks for it.
COVERAGE ?=

.PHONY: demo test lint docs clean

demo: $(READY)
	$(BIN)/hylorada demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist worksteal $(COVERAGE)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mkdocs build --strict

# An open range for torch would pull gigabytes of CUDA packages onto a machine without a GPU.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) demo build/site
