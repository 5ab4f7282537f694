# mps-fleet: the commands of this project. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# A Python of the distribution: shims of version managers break where nobody looks.
PYTHON ?= /usr/bin/python3

DEMO_HOSTS ?= 3
DEMO_GPUS ?= 2

.PHONY: help
help: ## list these commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## set everything up, boot a small fleet with simulated GPUs, put MPS on it; it stays up
	@scripts/demo.sh $(DEMO_HOSTS) $(DEMO_GPUS)

.PHONY: test
test: setup lint lab-parts ## everything that must hold: style, units, contracts, real systemd hosts
	@$(MAKE) -j5 molecule controllers attackers unit contract sentences  # they wait more than they compute

.PHONY: setup
setup: $(VENV)/.complete ## install what the rest needs (apt packages, a Python environment in .venv)

$(VENV)/.complete: requirements.txt requirements-dev.txt scripts/setup.sh
	@PYTHON=$(PYTHON) scripts/setup.sh $(VENV)

.PHONY: lint
lint: setup ## ruff, mypy --strict, yamllint, ansible-lint (production profile)
	ruff check .
	ruff format --check .
	scripts/types.sh
	yamllint --strict .
	ansible-lint --offline --strict

.PHONY: unit
unit: setup lab-parts ## unit tests
	pytest -q -n 2 tests/unit

.PHONY: contract
contract: setup lab-parts ## contract tests against NVIDIA's control daemons 535, 550 and 555
	pytest -q tests/contract

.PHONY: sentences
sentences: setup ## no code reads a sentence: the unit tests of mpsctl with every sentence replaced by an id
	CI=true MPSCTL_MESSAGES=ids pytest -q tests/unit/mpsctl

.PHONY: controllers
controllers: setup lab-parts ## whole lab hosts: the oldest and the newest Ansible; a rollout that stops; runs that are killed; a real GPU's stand-in
	pytest -q -n 2 --dist loadfile tests/lab -m "not long"

.PHONY: attackers
attackers: setup lab-parts ## what a local user without rights can do, without what takes minutes (`make attack` has all)
	pytest -q tests/attack -m "not long"

.PHONY: attack
attack: setup lab-parts ## what a local user without rights can do to an instance, floods included
	pytest -q tests/attack

.PHONY: molecule
molecule: setup lab-parts ## the scenarios `default`, `reboot` and `faults` on real systemd hosts
	scripts/molecule.sh default reboot faults

.PHONY: molecule-gpu
molecule-gpu: setup ## the scenario `gpu` on GPU hosts of your own: MPS_GPU_INVENTORY=…, see molecule/gpu/molecule.yml
	@[ -n "$(MPS_GPU_INVENTORY)" ] || { echo "found no MPS_GPU_INVENTORY, expected the inventory of your GPU hosts"; exit 2; }
	MPS_GPU_INVENTORY=$(abspath $(MPS_GPU_INVENTORY)) molecule test --destroy=never --scenario-name gpu

.PHONY: lab-parts
lab-parts: setup ## fetch and build what the lab's hosts are made of
	lab/lab roots

.PHONY: build
build: setup ## build mpsctl into one file, build/mpsctl
	python scripts/build_mpsctl.py build/mpsctl

.PHONY: bench
bench: setup lab-parts ## what a fleet-wide run costs, against a ping task and against a plain role
	python tests/bench/fleet.py

.PHONY: soak
soak: setup lab-parts ## the long trials: the front door under kills, killed runs, long rollouts, thousands of strings against real daemons
	pytest -q tests/soak
	pytest -q tests/lab -m long
	MPS_ADMISSIONS=2500 pytest -q -n 2 tests/unit/mpsctl/test_door_places.py -k drift

.PHONY: gpu-bundle
gpu-bundle: setup ## pack what a GPU machine without internet needs into build/gpu-bundle.tar.xz
	tests/gpu/bundle.sh

.PHONY: gpu-test
gpu-test: ## on a GPU machine, as root: everything that needs silicon (PARTS=… chooses); it leaves the GPU's settings as found
	@[ -f build/gpu-bundle.tar.xz ] || { echo "found no build/gpu-bundle.tar.xz, expected one; run make gpu-bundle"; exit 2; }
	cd tests/gpu && exec /usr/bin/python3 gpu_test.py $(PARTS)

.PHONY: clean
clean: ## end the demo fleet and remove what was built (not what was downloaded)
	lab/lab down
	rm -rf build

.PHONY: distclean
distclean: clean ## remove everything that these commands made, downloads included
	rm -rf .lab .venv
