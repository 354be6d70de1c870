# make demo | test | test-faults | synth | lint | docs | dist | lock | bench | clean
# Each target sets up .venv by itself when it is missing or older than the requirements.

PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
# The library reports usage nowhere; neither do the tools it starts.
export RAY_USAGE_STATS_ENABLED := 0
export CDK_DISABLE_VERSION_CHECK := 1
export CDK_DISABLE_CLI_TELEMETRY := true
export PYTHONUNBUFFERED := 1

# Extra arguments for pip, for example an index of CPU wheels: make demo TORCH_PIP_ARGS='--index-url <CPU wheel index>'
TORCH_PIP_ARGS ?=
# Extra arguments for pytest and for the demo's job: make test PYTEST_ARGS='-k settings', make demo DEMO_ARGS='--steps 50'
PYTEST_ARGS ?=
# One more than there are cores: many tests wait for a server, a browser or a process of their own. At most four, for the memory.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
DEMO_ARGS ?=
# make demo LOCKED=1 installs the very files that the lock files name, by their hashes; PyTorch by its version.
LOCKED ?=
INSTALL = $(if $(LOCKED),--require-hashes --no-deps -r $(1).lock,-r $(1).txt)

CODE := constructs/eks_ray_train stacks app.py job tools docs bench examples

.PHONY: demo test test-faults synth diff lint docs dist lock bench clean venv venv-cdk

venv: $(VENV)/.stamp-dev
venv-cdk: $(VENV)/.stamp-cdk

$(VENV)/bin/python:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, got " + sys.version.split()[0] + "; run make with PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

# What a review of `cdk synth` needs: no torch, no Ray, no system Node.js.
$(VENV)/.stamp-cdk: requirements-cdk.txt pyproject.toml | $(VENV)/bin/python
	@echo "==> installing requirements-cdk.txt (CDK, its command line and Node.js)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q $(call INSTALL,requirements-cdk)
	@$(if $(LOCKED),$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .)
	@touch $@

# torch first and by its exact version: a CPU wheel that pip can see is taken, and Ray or transformers never pull another.
$(VENV)/.stamp-job: requirements.txt $(VENV)/.stamp-cdk
	@echo "==> installing requirements.txt (PyTorch, Ray, transformers: the large part)"
	@$(BIN)/python tools/install_torch.py $(TORCH_PIP_ARGS)
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(call INSTALL,requirements)
	@touch $@

$(VENV)/.stamp-dev: requirements-dev.txt $(VENV)/.stamp-job
	@echo "==> installing requirements-dev.txt (test tools)"
	@$(BIN)/python -m pip install --disable-pip-version-check -q $(call INSTALL,requirements-dev)
	@touch $@

synth: $(VENV)/.stamp-cdk ## review what would be deployed: no account, region or credentials needed
	$(BIN)/cdk synth --quiet

diff: $(VENV)/.stamp-cdk
	$(BIN)/cdk diff

demo: $(VENV)/.stamp-job ## synthesize, then train and resume the same job on a local Ray cluster
	$(BIN)/python tools/demo.py $(DEMO_ARGS)

# Two passes: everything that needs no Ray cluster on several processes, then the tests that start real clusters one by one.
# pytest's exit code 5 (no test selected, for example by PYTEST_ARGS) is no failure of a pass.
test: $(VENV)/.stamp-dev ## the suite that CI runs
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "not faults and not ray" $(PYTEST_ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -v --durations=15 -m "ray and not faults" $(PYTEST_ARGS) || [ $$? -eq 5 ]

test-faults: $(VENV)/.stamp-dev ## the long fault matrix; results under bench/results/
	RECORD_FAULTS=1 $(BIN)/python -m pytest -m "faults or matrix" $(PYTEST_ARGS)

lint: $(VENV)/.stamp-dev .venv-lint/.stamp ## style, types, dead code, duplicated code
	$(BIN)/ruff check .
	$(BIN)/mypy constructs/eks_ray_train stacks app.py tools
	$(BIN)/mypy job
	.venv-lint/bin/vulture
	.venv-lint/bin/jscpd --min-lines 10 --min-tokens 100 --skip-comments --format python --reporters console --no-tips --exit-code 1 $(CODE)

# Environments of their own: what builds pages or releases must not decide the versions that the tests run with.
.venv-%/.stamp: requirements-%.lock
	@echo "==> installing $<"
	@test -x .venv-$*/bin/pip || $(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip install --disable-pip-version-check -q --require-hashes --no-deps -r $<
	@touch $@

docs: .venv-docs/.stamp ## the documentation as a site that needs no network, in site/
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "==> site/index.html"

dist: .venv-release/.stamp ## wheel and sdist in dist/, checked, the wheel tried in an empty environment
	rm -rf dist
	.venv-release/bin/python -m build --outdir dist
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/python tools/check_dist.py dist

lock: .venv-release/.stamp ## the newest versions that the requirements allow, with hashes, into requirements*.lock
	.venv-release/bin/python tools/lock.py

bench: $(VENV)/.stamp-dev ## measurements that need no GPU; results under bench/results/
	@set -e; for script in synth_time critical_path capacity_find gate_speed data_pack; do echo "==> bench/$$script.py"; $(BIN)/python bench/$$script.py; done

clean:
	rm -rf $(VENV) .venv-checkov .venv-docs .venv-lint .venv-release cdk.out .demo .artifacts site dist build .pytest_cache .mypy_cache .ruff_cache
