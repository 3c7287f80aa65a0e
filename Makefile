# Every target does the setup it needs. A fresh machine needs python3 (3.11 or later, with venv) and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CODE    = $(wildcard src lab/src tests bench apps examples/fastapi_shop examples/flask_shop)
# Four more test workers than cores, because tests wait more than they compute; parallel runs also reveal shared state.
WORKERS = $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n + 4)))
# Databases are many small files, and a disk takes ten times as long as memory to make and remove them. If /dev/shm has
# too little room, or is mounted noexec, the tests use the usual folder for temporary files.
TEMPORARY = $(shell room=$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }'); \
    if [ "$${room:-0}" -gt 2000000 ] && ! grep -q '^[^ ]* /dev/shm .*noexec' /proc/mounts; \
    then echo /dev/shm; else echo "$${TMPDIR:-/tmp}"; fi)

# pip's configured index, certificate and proxy are used as they are. Only settings that would install outside of .venv
# are overridden.
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PIP_TARGET PIP_PREFIX PIP_ROOT

# The tests start hundreds of interpreters. Without bytecode files, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Stops with one clear line if $(PYTHON) cannot be used.
define need_python
stop() { echo "$$1" >&2; exit 1; }; \
command -v $(PYTHON) >/dev/null || stop "Holdfast needs Python 3.11 or later; '$(PYTHON)' was not found."; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
    stop "Holdfast needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1). Use another one: make PYTHON=python3.12"; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
    stop "$(PYTHON) cannot create environments: install python3-venv (Debian, Ubuntu: apt install python3-venv)."
endef

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo invoicing passports test test-long check lint format faults simulate trials soak bench bench-peers bench-targets clean lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install the pinned packages (other targets do this when needed)
	@echo "$(VENV) is ready"

demo: $(STAMP) ## Run the demo
	@$(BIN)/holdfast demo

invoicing: $(STAMP) ## Run the demo of the invoicing application: an API, two workers, one of them killed, PDFs and emails
	@$(BIN)/python -m apps.invoicing demo

passports: $(STAMP) ## Run the demo of the passports application: signed labels and webhooks, two workers, one of them killed
	@$(BIN)/python -m apps.passports demo $(ARGS)

# Runs pytest in parallel, with its temporary files in memory.
define run_tests
@tmp=$$(mktemp -d "$(TEMPORARY)/holdfast-tests.XXXXXX") && trap 'rm -rf "$$tmp"' EXIT && trap 'exit 1' INT TERM && \
chmod 755 "$$tmp" && TMPDIR=$$tmp $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
endef

test: $(STAMP) ## Run all but the long tests (5 minutes); ARGS="-k lease" is passed to pytest and selects from all tests
	@echo "tests ($(WORKERS) workers)"
	$(run_tests) $(or $(ARGS),-m "not long")

test-long: $(STAMP) ## Run the long tests: the second server version, sabotage, broker restarts, long suites (8 minutes)
	@echo "long tests ($(WORKERS) workers)"
	$(run_tests) -m long

check: lint test test-long trials ## Run everything that CI runs: lint, both tiers of tests, then the trials (25 minutes)

lint: $(STAMP) ## Check style, formatting, types and import directions
	@echo "ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "ruff format"
	@$(BIN)/ruff format --quiet --check . || { echo "run 'make format' to format these files"; exit 1; }
	@echo "mypy"
	@$(BIN)/mypy --no-error-summary $(CODE)
	@echo "import-linter"
	@out=$$($(BIN)/lint-imports --no-cache 2>&1) || { printf '%s\n' "$$out"; exit 1; }

faults: $(STAMP) ## Kill, stop and cut off real workers and judge the damage (about 5 minutes)
	@echo "faults"
	@$(BIN)/holdfast faults --side-by-side 2 $(ARGS)

simulate: $(STAMP) ## Run 10,000 simulated schedules of the engine (4 minutes)
	@echo "simulation"
	@$(BIN)/python -m holdfast_lab.faults.simulation --schedules 10000 $(ARGS)

# The faults mostly wait for leases to run out, so the simulation can use the processor meanwhile, at the lowest priority.
# Seeds are fixed here, so a failure points to the change; `make faults` and `make simulate` draw new ones.
trials: $(STAMP) ## Run the faults and 10,000 simulated schedules at once, with fixed seeds (about 5 minutes)
	@echo "faults and simulation (seeds from 1)"
	@log=$$(mktemp "$(TEMPORARY)/holdfast-simulation.XXXXXX") && simulation= && \
	trap 'kill $$simulation 2>/dev/null; rm -f "$$log"' EXIT && trap 'exit 130' INT TERM && \
	{ nice -n 19 $(BIN)/python -m holdfast_lab.faults.simulation --schedules 10000 --seed 1 >"$$log" 2>&1 & simulation=$$!; } && \
	{ $(BIN)/holdfast faults --side-by-side 2 --seed 1 && faults=0 || faults=$$?; } && \
	{ wait $$simulation && simulated=0 || simulated=$$?; simulation=; } && tr '\r' '\n' <"$$log" | grep -vE '^[0-9,]+ of .* failed' && \
	exit $$((faults + simulated))

soak: $(STAMP) ## Run all faults at full size, 1,000,000 simulated schedules and the large property tests (hours)
	@$(BIN)/holdfast faults --soak $(ARGS)
	@$(BIN)/python -m holdfast_lab.faults.simulation --schedules 1000000
	@$(MAKE) test ARGS="--hypothesis-profile soak tests/store_contract/test_state_machine.py"

format: $(STAMP) ## Format the code and apply the safe fixes
	@echo "ruff format and fixes"
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

bench: $(STAMP) ## Measure throughput and latency on this machine
	@$(BIN)/holdfast bench $(ARGS)

bench-peers: $(STAMP) ## Compare Holdfast with other job systems and write docs/benchmarks.md (13 minutes, pip and npm)
	@$(BIN)/python -m bench.peers setup
	@out=bench/peers/results/$$(date -u +%Y-%m-%d-%H%M).jsonl && \
	$(BIN)/python -m bench.peers run --out $$out $(ARGS) && $(BIN)/python -m bench.peers report $$out

bench-targets: $(STAMP) ## Measure all performance targets in interleaved pairs (about 25 minutes), or ARGS="--against COMMIT"
	@$(BIN)/python -m bench.targets $(ARGS)

clean: ## Remove .venv, caches and build output
	@echo "removing $(VENV), caches and build output"
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	@find . -path ./.git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +

# uv resolves for all supported Python versions and platforms at once. It does not read pip's configuration, so pass it
# pip's index; the lock file does not record that index.
lock: ## Resolve the dependencies again and write requirements.lock
	@$(need_python)
	@echo "resolving the dependencies"
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp/venv" && "$$tmp/venv/bin/pip" install -qq uv && \
	index=$$("$$tmp/venv/bin/pip" config get global.index-url 2>/dev/null || true) && \
	index=$${PIP_INDEX_URL:-$$index} && \
	if [ -n "$$index" ]; then UV_DEFAULT_INDEX=$$index; export UV_DEFAULT_INDEX; fi && \
	"$$tmp/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --all-extras --group dev \
	    --strip-extras --generate-hashes --upgrade --no-annotate --no-emit-index-url --no-emit-find-links \
	    --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock
	@echo "wrote requirements.lock"

$(STAMP): pyproject.toml lab/pyproject.toml requirements.lock
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    $(need_python); echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing the pinned packages into $(VENV)"
	@$(BIN)/python -m pip install -qq -r requirements.lock
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable . --editable lab
	@touch $@
