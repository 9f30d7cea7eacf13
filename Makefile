# `make demo` and `make test` are all a newcomer needs; everything sets up what it uses.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test check extras soak chaos bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: check
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not soak" --durations 20 tests/model tests/unit tests/conformance tests/parity
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not soak" --durations 20 tests/integration tests/chaos

# The tests of the extras; from then on `make test` runs them as well.
extras: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[huggingface,lightning]'
	$(BIN)/python -m pytest -q tests/unit/runtime/test_integrations.py tests/integration/test_integrations.py

soak: setup
	$(BIN)/python -m pytest -q -m soak

chaos: setup
	$(BIN)/python -m tests.chaos.run --seeds $(or $(SEEDS),0:200)
	$(BIN)/python -m tests.chaos.grouped --seeds $(or $(SEEDS),0:200)
	$(BIN)/python -m tests.chaos.grouped --seeds $(or $(SEEDS),0:200) --deterministic
	$(BIN)/python -m tests.chaos.grouped --seeds $(or $(SEEDS),0:50) --fsdp
	$(BIN)/python -m tests.chaos.models --seeds $(or $(SEEDS),0:100)
	$(BIN)/python -m tests.chaos.interrupted --kills 100
	# The last one needs root, for a network and a file system of its own.
	$(BIN)/python -m tests.chaos.grouped --seeds $(or $(SEEDS),0:200) --links --disk

bench: setup
	failed=0; for script in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$script"; $(BIN)/python $$script || failed=1; done; exit $$failed

clean:
	rm -rf .venv .mypy_cache .ruff_cache build dist
