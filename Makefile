# make demo: install into .venv and replay a real trace that holds a corruption.
# make test: install the test tools, run lint, types and tests.
# make test-engines: install real engines into build/engines and test the recorder on them;
#   ENGINES=sglang or ENGINES=vllm for one of them.
# make fuzz: the randomised tests alone, EXAMPLES times as many examples of each.
# make bench: run all CPU benchmarks, one table; some minutes of CPU (docs/performance.md).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2
ENGINES ?= sglang vllm
EXAMPLES ?= 10

.PHONY: demo test lint types unit fuzz test-engines bench clean

demo: $(VENV)/.installed
	@$(BIN)/kvcanary demo

test: lint types unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-test
	$(BIN)/mypy

unit: $(VENV)/.installed-test
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

fuzz: $(VENV)/.installed-test
	KVCANARY_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m hypothesis

test-engines: $(VENV)/.installed-test $(ENGINES:%=engine-%)
	KVCANARY_ENGINES="$(ENGINES)" $(BIN)/pytest -n $(WORKERS) --dist loadfile tests/engines

engine-%: $(VENV)/.installed-test
	$(BIN)/python tests/engines/setup_$*.py

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.bench_all

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing kvcanary into $(VENV) ..."
	@$(PIP) --upgrade "pip>=25.1"
	@$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test tools ..."
	@$(PIP) -c constraints.txt --group test --group lint
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
