# make train: from a fresh clone to a trained checkpoint and the table of held-out errors
# make test:  from a fresh clone through every check
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: train train-all test lint help

help:
	@grep '^# make' Makefile

train: $(VENV)/installed
	$(BIN)/python train.py +experiment=moe_ep

# make train-all: also both leave-one-out experiments
train-all: train
	$(BIN)/python train.py +experiment=lomo
	$(BIN)/python train.py +experiment=logo

test: lint
	$(BIN)/pytest

# make lint:  style and types alone
lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
