# Everything is installed into .venv, which the first target creates; a second run starts at once.

SHELL := bash
.DEFAULT_GOAL := help

BIN := .venv/bin
# nproc counts threads of OpenMP where these are limited.
CORES ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
TEST_PROCESSES ?= 2
# Rules and tests start `lm-validity` and `snakemake` by name.
ACTIVATED := PATH="$(CURDIR)/.venv/bin:$$PATH"
PYTEST = $(ACTIVATED) $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations 15
# There is one Slurm on a machine: clones that test on it take turns.
TURN = flock --nonblock $(LOCK) true || echo 'waiting for another slurm-test on this machine'; $(ACTIVATED) flock --close $(LOCK)
LOCK := /tmp/lm-validity-slurm-test.lock
SLURM = $(TURN) $(BIN)/python tests/slurm/slurm_cluster.py run --
WARM = $(BIN)/python -m lm_validity.cli.warm snakemake --profile profiles/local --cores $(CORES)
# --strict: a link that leads nowhere fails; the variable silences an announcement of another program.
# The pages load nothing from the network.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict && ! grep -rlE 'src="https?:' build/docs --include='*.html'
UP_AND_DOWN := tests/slurm/test_up_and_down.py
# They wait more than they compute.
ON_SLURM := $(BIN)/pytest -n 3 --dist load --durations 15 --ignore $(UP_AND_DOWN)
AT ?= $(shell git diff --name-only HEAD; git ls-files --others --exclude-standard)
# Files are given out in this order: the long ones first, so that no process is left alone with them at the end.
GATED := $(wildcard tests/workflow tests/published tests/browser tests/contact tests/unit)

# One thread a process: two jobs side by side finish sooner than one job on two threads.
export OMP_NUM_THREADS := 1
export PYTHON TORCH_INDEX
# PYTHONDONTWRITEBYTECODE, which images of machines set: each process of a test would compile the package again.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

# $(call gate,title,command): run a check and say how long it took.
define gate
@printf '\n== %s\n' '$(1)' && start=$$SECONDS && $(2) && echo "   passed in $$((SECONDS - start)) s"
endef

.PHONY: help published demo test tests test-near test-slow test-real slurm-test slurm-test-slow slurm-up-and-down lint gate-types gates format docs benchmark clean FORCE

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

published: .venv/installed-reports ## the page of 61 published models: a minute with the installation, without torch
	@$(BIN)/lm-validity report examples/published --output results/published

# To a pipe a line at every tenth of the steps, and what fails; the workflow draws a bar on a terminal. Jobs are forked.
demo: ## the page of 61 published models, then the embedded example through the workflow and its report
	@test -f results/published/index.html || $(MAKE) --no-print-directory published
	@echo 'To look at meanwhile: results/published/index.html. The demo takes 6 minutes on two idle cores, once installed.'
	@$(MAKE) --silent --no-print-directory .venv/installed
	@if [ -t 2 ]; then $(ACTIVATED) $(WARM) --quiet host; else \
		set -o pipefail; $(ACTIVATED) $(WARM) --quiet host reason 2>&1 | awk -f workflow/scripts/progress.awk; \
	fi
	@$(BIN)/lm-validity findings

test: .venv/installed ## formatters, linters, unit, workflow and published-number tests
	@echo 'make test: formatters and linters, the types beside them, then about 3,600 tests: 13 minutes of processor time'
	@$(MAKE) --no-print-directory --jobs 2 gate-types tests || { echo 'make test failed: the lines with *** name what.'; exit 2; }

tests: gates
	@printf '\n== tests\n'
	@$(PYTEST) $(GATED)

test-near: .venv/installed ## the unit tests beside AT=path, or beside what has changed since HEAD: under a minute
	@tests=$$($(BIN)/python tests/near.py $(AT)) && $(PYTEST) $$tests

test-slow: test .venv/installed-bayes ## also the long simulations and kill runs
	@printf '\n== slow tests\n'
	@$(PYTEST) -m 'slow and not slurm' -o timeout=3600 $(GATED)

test-real: .venv/installed ## real models on real benchmark files (REAL_DATA=folder): hours, in pieces that go on
	@$(BIN)/python tests/real/fetch_models.py .real
	@$(ACTIVATED) $(BIN)/pytest -n 0 -m real -o timeout=3600 --durations 0 tests/real

slurm-test: slurm-up-and-down ## as root on Debian: start a real one-machine Slurm, break things on it, stop it
	@$(SLURM) $(ON_SLURM) -m "slurm and not slow" tests/slurm

slurm-test-slow: slurm-up-and-down ## also a full disk, a lost network, the time limit
	@$(SLURM) $(ON_SLURM) -m slurm tests/slurm

slurm-up-and-down: .venv/installed
	@$(TURN) $(BIN)/pytest -n 0 -m slurm $(UP_AND_DOWN)

lint: .venv/installed ## formatters and linters, changing nothing
	@$(MAKE) --no-print-directory --jobs 2 gate-types gates

# Beside the others and the first tests, since it takes longer than all other checks.
gate-types:
	$(call gate,types,$(BIN)/mypy)

gates:
	$(call gate,ruff format,$(BIN)/ruff format --check .)
	$(call gate,ruff check,$(BIN)/ruff check .)
	$(call gate,spelling,$(BIN)/codespell)
	$(call gate,import rules,$(BIN)/lint-imports)
	$(call gate,snakefmt,$(BIN)/snakefmt --check Snakefile workflow)
	$(call gate,snakemake --lint,$(ACTIVATED) $(BIN)/snakemake --lint)
	$(call gate,links of the documentation,$(MKDOCS))

format: .venv/installed ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/snakefmt Snakefile workflow

docs: .venv/installed ## the documentation as a site, build/docs/index.html
	@$(BIN)/python docs/generate_reference.py
	@$(MKDOCS)
	@echo "Documentation: build/docs/index.html"

benchmark: .venv/installed ## side-by-side speed measurements
	@$(ACTIVATED) $(BIN)/python benchmarks/run.py

clean: ## remove caches; results and .venv stay
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build
	@find . -path ./.venv -prune -o -path ./results -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# A .venv that was moved or copied starts another folder's Python: install again.
ifeq ($(shell grep -lsF '$(CURDIR)/.venv/bin' .venv/bin/pip),)
.venv/installed .venv/installed-reports: FORCE
endif

FORCE:

.venv/installed: pyproject.toml envs/constraints.txt envs/bootstrap.sh
	@envs/bootstrap.sh cells,nf4,slurm,test,docs
	@touch $@

# What pages of scores need; nothing where more is installed.
.venv/installed-reports: pyproject.toml envs/constraints.txt envs/bootstrap.sh
	@test .venv/installed -nt pyproject.toml || envs/bootstrap.sh
	@touch $@

# NUTS (bambi, nutpie) is large and only slow tests run it; without it those tests skip, visibly.
.venv/installed-bayes: .venv/installed
	@envs/bootstrap.sh cells,nf4,slurm,test,docs,bayes
	@touch $@
