# `make demo` and `make test` are all a newcomer needs; everything sets up what it uses.
PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.runs
STAMP := .venv/.installed
# A command whose end is a pipe fails if its beginning does.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# Of pip's many lines those that take time: large files, and the installation at the end.
brief = | sed --unbuffered --quiet \
	-e 's/^ *\(Downloading.*\)\/*\( ([0-9.]* [MG]B)\).*/  \1\2/p' \
	-e 's/^Installing collected packages.*/  Installing all of them (a minute or more)/p' \
	-e 's/^Successfully installed.*/  Installed/p'
pip = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt $(1) $(brief)
# Runs a command, and says how long it took: $(call timed,name of the part,command).
timed = @echo '$(2)'; begun=$$(date +%s); $(2) || exit; echo "== $(1): $$(($$(date +%s) - begun)) s"
PYTEST := $(BIN)/python -m pytest -q --dist worksteal -m "not soak" --durations 30
PURE := tests/model tests/unit tests/conformance tests/parity

PARTS := pages form rules types imports

.PHONY: setup demo test quick check $(PARTS) extras browser soak chaos bench clean

setup: $(STAMP)

# What runs jobs; the tools of development come on top, so that the first demo need not wait for them.
$(RUNS): pyproject.toml constraints.txt
	@echo '== Setting up .venv: torch and what else paceline needs (once; about two minutes)'
	@$(PYTHON) -m venv .venv
	@$(call pip,-e '.[all]')
	@touch $@

$(STAMP): $(RUNS) experiments/pyproject.toml
	@echo '== Adding the tools of development to .venv (once)'
	@$(call pip,-e '.[dev]' -e ./experiments)
	@touch $@

demo: $(RUNS)
	$(BIN)/python examples/demo.py

# Two parts at a time; what each says comes when it is over.
check: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(PARTS)

$(PARTS): setup

pages:
	$(call timed,pages,NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet)

form:
	$(call timed,form,$(BIN)/ruff format --check .)

rules:
	$(call timed,rules,$(BIN)/ruff check .)

types:
	$(call timed,types,$(BIN)/mypy)

imports:
	$(call timed,imports,$(BIN)/lint-imports)

test: check
	$(call timed,tests of parts,$(PYTEST) -n auto $(PURE))
	$(call timed,tests of jobs,$(PYTEST) -n 4 tests/integration tests/chaos tests/ray)

# What is quick to check of FILE, or of several: its style, imports, and the tests of its room.
quick: setup
	$(BIN)/python tests/quick.py $(FILE)

# The tests of the extras; from then on `make test` runs them as well.
extras: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[huggingface,lightning,tensorboard,wandb,mlflow]'
	$(BIN)/python -m pytest -q tests/unit/runtime/test_integrations.py tests/integration/test_integrations.py \
		tests/unit/curves/test_sinks.py

# The page of a job in Chromium (Debian: apt install chromium).
browser: setup
	@$(call pip,playwright)
	$(BIN)/python -m pytest -q -m soak tests/integration/test_browser.py

# One benchmark runs Ray Train as well, and one example Optuna.
soak: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'ray[train]' optuna
	$(BIN)/python -m pytest -q -m soak

storm: setup
	$(BIN)/python -m paceline_experiments.storm --page $(or $(PAGE),docs) --json storm.json

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
	failed=0; for script in $$(grep -l __main__ experiments/benchmarks/*.py); do \
		echo "== $$script"; $(BIN)/python $$script || failed=1; done; exit $$failed

clean:
	rm -rf .venv .mypy_cache .ruff_cache build dist
