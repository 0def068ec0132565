# make train: from a fresh clone to a trained checkpoint and the table of held-out errors
# make test:  from a fresh clone through every check
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: train train-all evaluate fits test lint help goldens

help:
	@grep '^# make' Makefile

train: $(VENV)/installed
	$(BIN)/python train.py +experiment=moe_ep

# make train-all: a checkpoint from nothing: kernel surrogates, composed steps, network and fit anew
train-all: $(VENV)/installed
	rm -rf results/train-all
	$(BIN)/python train.py +experiment=moe_ep experiment_name=train-all evaluation=none \
		kernels.settings.released=null kernels.settings.cache=results/train-all/cache

# make fits: every fit of the evaluation suite and its report; half an hour, goes on where it stopped
fits: $(VENV)/installed
	$(BIN)/pinn evaluate

# make evaluate: both leave-one-out experiments
evaluate: $(VENV)/installed
	$(BIN)/python train.py +experiment=lomo
	$(BIN)/python train.py +experiment=logo

test: lint
	# Byte code is kept whatever the environment says: hundreds of processes import the same modules.
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses auto --dist worksteal

# make lint:  style and types alone
lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make fuzz: an hour of random input: nothing crashes, hangs or is left half-written
.PHONY: fuzz
fuzz: $(VENV)/installed-test
	PINN_FUZZ_SECONDS=$${PINN_FUZZ_SECONDS:-3600} $(BIN)/pytest tests/fuzz \
		--numprocesses auto --dist worksteal

# make kernel-tables: newer tables of measured kernels (120 MB), which kernels=newer learns from
.PHONY: kernel-tables
kernel-tables: $(VENV)/installed
	$(BIN)/python -m pip download --quiet --no-deps --dest build/kernel-tables \
		aisimulate==0.13.0.dev202610270000000085
	cd build/kernel-tables && ../../$(BIN)/python -m zipfile -e aisimulate-*.whl .

# make wheel-test: the wheel alone in an empty environment, on every command of README and docs
.PHONY: wheel-test
wheel-test: $(BIN)/python
	rm -rf build/wheel && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m venv build/wheel/venv
	build/wheel/venv/bin/pip install --quiet --constraint constraints.txt build/wheel/*.whl \
		pytest beartype hypothesis
	cd build/wheel && venv/bin/pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H100
	env --unset=PYTHONPATH build/wheel/venv/bin/pytest tests/docs -k typed

# make live-test: a real vLLM server on this machine's cores: its schedule repeated, its loads
# predicted; 25 minutes on two idle cores, 2 GB in build/live
.PHONY: live-test
live-test: $(VENV)/installed
	$(BIN)/python tests/live/run_live.py build/live

# make notebook: docs/python.ipynb run anew, with what it prints and draws
.PHONY: notebook
notebook: $(VENV)/installed
	$(BIN)/python scripts/make_notebook.py

# make docs:  the pages of docs as a site in docs/site, or where SITE= says
SITE ?= docs/site
.PHONY: docs
docs: $(VENV)/installed-test
	$(BIN)/sphinx-build -q -W --keep-going docs $(SITE)

# make goldens: what the Go tests compare with, anew from the checkpoint in the repository
goldens: $(VENV)/installed
	$(BIN)/python scripts/make_goldens.py

# make go-module AT=HOST/OWNER/REPOSITORY: where the repository lies, in the paths of the Go modules
.PHONY: go-module
go-module:
	@test -n "$(AT)" || { echo "say where: make go-module AT=HOST/OWNER/REPOSITORY"; exit 1; }
	old=$$(sed -n 's#^module \(.*\)/export/go/pinn$$#\1#p' export/go/pinn/go.mod); \
	grep -rlF "$$old/export/go" export/go | xargs sed -i "s#$$old/export/go#$(AT)/export/go#g"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: what is installed stays until the lists of packages change.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), which takes a few minutes the first time"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), which takes a few minutes the first time"
	$(INSTALL) --editable '.[test]'
	@touch $(VENV)/installed $@
