# `make run` and `make test` are all that a fresh clone needs; both set up first.
VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is 3.11 or newer; dm_control's tasks need 3.11 or 3.12.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
export OMP_NUM_THREADS ?= 1

.PHONY: setup run test test-slow lint docs wheel clean

setup: $(VENV)/.done
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check

# What training needs.
$(VENV)/.base: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; name one: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) from constraints.txt (minutes, once)"
	$(INSTALL) -c constraints.txt torch
	$(INSTALL) -c constraints.txt -e .
	@touch $@

# All extras, and what the tests and the site need.
$(VENV)/.done: $(VENV)/.base
	$(INSTALL) -c constraints.txt -e '.[dev]'
	@# Virtual patients for the tests of examples/insulin. Without its dependencies: it asks for the old gym package.
	$(INSTALL) --no-deps simglucose==0.2.11
	@touch $@

MAIN_RUN := outputs/dppg/hopper/privacy.users_per_round=32,total_steps=2000000,seed=0

run: $(VENV)/.base
	$(BIN)/privrl-bench algo=dppg env=hopper total_steps=2_000_000 privacy.users_per_round=32
	@$(BIN)/privrl play '$(MAIN_RUN)' --episodes 1 --video '$(MAIN_RUN)/policy.gif' || true  # needs OpenGL

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/count_structure.py --check
	$(BIN)/python -m privrl_bench.papers.pages.write_results --check

# The site in site/; a broken link is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# tests/test_site.py builds the site, as `make docs` does.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

# What takes minutes: statistical attacks, kills, long sweeps. LIMIT=40: start no test after 40 minutes.
test-slow: setup
	$(INSTALL) -c constraints.txt -e '.[gpu]'
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(if $(LIMIT),--limit $(LIMIT))

wheel: setup
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist site *.egg-info
