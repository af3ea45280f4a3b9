# SPDX-License-Identifier: Apache-2.0
# make run, make test: everything they need is set up first (setup.sh).
# make run WORKERS=8 ELEMENTS=64 LOSS=2 SEED=7 SWITCH=bmv2 KEEP=1 PCAP=dir

ROOMS := wire p4src switch controller worker topologies training bench traces tests
PY := .venv/bin/python
export PYTHON ?= python3

option = $(if $($1),--$2 "$($1)")
OPTIONS = $(call option,WORKERS,workers) $(call option,ELEMENTS,elements) $(call option,LOSS,loss) \
	$(call option,SEED,seed) $(call option,SWITCH,switch) $(if $(filter-out 0 no,$(KEEP)),--keep) $(call option,PCAP,pcap)

.PHONY: help setup run test test-slow fuzz lint p4 clean
help:
	@echo 'make run        train through the network (WORKERS ELEMENTS LOSS SEED SWITCH KEEP PCAP)'
	@echo 'make test       run every test that can run here'
	@echo 'make test-slow  run the long set'
	@echo 'make fuzz       random packets through the embedded switch under sanitizers, for SECONDS=60'
	@echo 'make setup lint p4 clean'
setup:
	@sh ./setup.sh setup
run: setup
	@sh ./setup.sh root .venv/bin/p4reduce train $(strip $(OPTIONS))
test: setup
	@sh ./setup.sh test -m 'not slow'
test-slow: setup
	@sh ./setup.sh test -m slow
fuzz: SECONDS = 60
fuzz: setup
	@$(PY) -m tests.switch.fuzz $(SECONDS)
lint: setup
	$(PY) -m ruff check $(ROOMS)
	$(PY) -m ruff format --check $(ROOMS)
	$(PY) -m mypy $(ROOMS)
p4: setup
	$(PY) -m p4src.compile
clean:
	@sh ./setup.sh clean
