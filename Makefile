# kvledger. `make` alone lists the targets; `make run` and `make test` set themselves up.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STATE ?= .run
VLLM_TESTS ?= tests/vllm

.DEFAULT_GOAL := help
.PHONY: help run demo test test-slow test-vllm test-gpu lint format generated wheel-test bench evidence clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two installs, each remade when pyproject.toml changes: what `make run` needs, and what the checks need on top.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "kvledger needs Python 3.11 or newer, $(PYTHON) is older: make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "the venv module is missing: install the package python3-venv, or name another Python: make run PYTHON=..."; exit 1; }
	@$(BIN)/pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.service: pyproject.toml | $(VENV)/bin/pip
	@echo "installing kvledger[service] into $(VENV) ..."
	@$(BIN)/pip install --quiet --editable '.[service]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	@echo "installing kvledger[service,postgres,agent] and the test tools into $(VENV) ..."
	@$(BIN)/pip install --quiet --group dev --editable '.[service,postgres,agent]'
	@touch $@ $(VENV)/.service

run: $(VENV)/.service ## set up, and start the service with a simulated day behind it and two engines reporting
	@$(BIN)/kvledger serve --demo --state-dir $(STATE)

demo: $(VENV)/.service ## set up, replay a simulated day of a shared fleet, print who pays for what
	@$(BIN)/kvledger demo --state-dir $(STATE)

test: $(VENV)/.dev ## set up and run the tests (under 5 minutes on 2 cores)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(VENV)/.dev ## the long suites: 10 000 schedules, kills at every statement, whole traces
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# vLLM has an environment of its own, outside the tree, since it takes 4 GB; tests/vllm/environment.py says where.
test-vllm: $(VENV)/.dev ## the hook on a real vLLM, on the CPU; the first time it installs 4 GB
	@python="$$($(BIN)/python tests/vllm/environment.py)" && TEST_KVLEDGER="$(abspath $(BIN))/kvledger" \
	  "$$(dirname "$$python")/pytest" -c tests/vllm/pytest.ini --confcutdir tests/vllm $(VLLM_TESTS)

test-gpu: $(VENV)/.dev ## the agent on a real NVIDIA GPU, in a minute: which one, and what it gives
	@$(BIN)/python tests/real_gpu.py

lint: $(VENV)/.dev ## ruff, mypy strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --explicit-package-bases alerts dashboards
	@$(BIN)/lint-imports

format: $(VENV)/.dev ## let ruff put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

generated: $(VENV)/.dev ## make the committed files that are made of code again; the tests compare them
	@$(BIN)/python -m ledger.metrics > docs/metrics.md
	@$(BIN)/python -m alerts.ledger_health > alerts/ledger_health.yml
	@$(BIN)/python -m dashboards.fleet > dashboards/fleet.json
	@$(BIN)/python -m ledger.collectors.document

wheel-test: $(VENV)/.dev ## build the wheel and use it from an empty environment
	@$(BIN)/python tests/wheel.py

bench: $(VENV)/.dev ## every measured claim as a ratio against its limit, in one run
	@$(BIN)/python -m bench

evidence: $(VENV)/.dev ## the long runs; results go to docs/evidence/ and are committed
	@$(BIN)/python -m bench.evidence

clean: ## remove the environment and what `make run` made
	rm -rf $(VENV) $(STATE) build dist
