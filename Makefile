# Trainyard in two commands: `make up`, and `make test`. Everything lives in this checkout: .venv and .state.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Debian builds its interpreter with profile-guided optimisation; one that pyenv has built takes a third more CPU.
# One without ensurepip cannot make a virtual environment.
PYTHONS := /usr/bin/python3.11 python3.11 python3
PYTHON ?= $(or $(shell for one in $(PYTHONS); do if $$one -Sc 'import ensurepip' 2>/dev/null; then command -v $$one; break; fi; done),python3)
PY := .venv/bin/python

# Kept off, every process would compile Django anew: seconds for each `make up`, minutes for the tests.
export PYTHONDONTWRITEBYTECODE :=

NODES ?= 0
GPUS ?= 8

.PHONY: help install up test lint kube kube-down demo bench reference picture lock

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: ## .venv, the locked requirements, the browser libraries and `yard`; does nothing when all is there
	@$(PYTHON) -IS tools/install.py

up: install ## install if needed, then run the control plane until Ctrl-C
	@exec $(PY) -m controlplane.supervisor

test: ## everything: static checks, and all tests on SQLite, PostgreSQL and Kubernetes; installs what they need
	@$(PYTHON) -IS tools/install.py --dev
	@$(PY) tools/test.py

lint: ## ruff, its formatter, mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: ## measure what is claimed, and print the table; many minutes, the last of them for Kubernetes
	@$(PYTHON) -IS tools/install.py --dev
	@$(PY) -m bench

demo: install ## four projects, their quotas, users, running jobs and data to look at (while `make up` runs)
	@$(PY) manage.py demo
	@$(PY) manage.py demo_data

kube: install ## a real Kubernetes to try things on: a node that runs containers, NODES=0 fake ones, GPUS=8 each
	@$(PY) -m tools.kube up --nodes $(NODES) --gpus $(GPUS)

kube-down: ## end it, and leave nothing of it
	@$(PY) -m tools.kube down

reference: ## write the pages of docs/reference that come from the code
	@$(PY) tools/reference.py
	@$(PY) manage.py openapi

picture: ## take the README's picture of the overview from a running demo
	@$(PYTHON) -IS tools/install.py --dev
	@$(PY) tools/picture.py

lock: ## resolve requirements*.in again, with hashes (needs uv)
	@for name in requirements requirements-control requirements-workloads requirements-netapp requirements-dev requirements-uv; do \
	  uv pip compile -q --generate-hashes --python-version 3.11 $$name.in -o $$name.txt; done
