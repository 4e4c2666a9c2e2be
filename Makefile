# `make` prints the targets. PYTHON chooses the interpreter of .venv (3.11 to 3.13), ARGS goes to the command.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CONFIG ?= cartpole_vtrace
ARGS   ?=
# Tests at once: most of them wait for processes most of the time. ARGS=-n0: one after the other, in one process.
JOBS   ?= 3

# Both packages hold the same TensorFlow and must never stand together: the small one where no NVIDIA GPU is.
LEARNER ?= $(if $(wildcard /dev/nvidia0 /proc/driver/nvidia/version),learner,learner-cpu)
SOURCES := pipeline broker workers learner

.PHONY: help install run check lint test unit integration system format fuzz bench bench-peers compose-test pods-test clean
.DELETE_ON_ERROR:

help:
	@echo "make install      .venv with seedmq, TensorFlow, Atari and the tools in it"
	@echo "make run          seedmq run $(CONFIG); more arguments: make run ARGS='--set workers.count=4'"
	@echo "make check        what CI runs: make lint (format, lint, types, import contracts) and make test"
	@echo "make test         all tests; make unit, make integration, make system: one tier"
	@echo "make format       formats and fixes what can be fixed by itself"
	@echo "make chaos        faults at random for CHAOS_SECONDS in a pipeline of real processes, then its books"
	@echo "make chaos-kills  the learner killed at random until it was resumed CHAOS_KILLS times"
	@echo "make soak         a run that nothing befalls for SOAK_SECONDS: memory, descriptors, reconnects of each process"
	@echo "make fuzz         100 000 spoilt messages and unrolls, then each reader for FUZZ_SECONDS guided by coverage"
	@echo "make compose-test docker-compose for real, from a clean clone: solves, crashes, scaling, ports; COMPOSE_CYCLES=N"
	@echo "make pods-test    the pods of the Kubernetes manifests as containers of this machine's Docker engine"
	@echo "make bench        every benchmark against its baselines: an hour, on a machine that does nothing else"
	@echo "make bench-peers  the systems that the benchmarks compare with, each in an environment of its own"
	@echo "make clean        removes .venv and caches; runs/ stays"

install: $(STAMP)

$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "seedmq needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) -V 2>&1): make install PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) lacks venv: install it first (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[$(LEARNER),atari,dev]"
	@touch $@

run: $(STAMP)
	$(BIN)/seedmq run $(CONFIG) $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

unit integration system: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/$@ $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

check: lint test

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

FUZZ_SECONDS  ?= 60
FUZZ_MESSAGES ?= 100000
FUZZ_TARGETS  ?= protocol router request unroll config settings

fuzz: $(STAMP)
	FUZZ_MESSAGES=$(FUZZ_MESSAGES) $(BIN)/python -m pytest -s -o timeout=3600 tests/integration/test_hostile_input.py \
	  tests/integration/test_hostile_unrolls.py
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[fuzz]"
	for target in $(FUZZ_TARGETS); do $(BIN)/python -m tests.fuzz.coverage_guided $$target $(FUZZ_SECONDS) || exit 1; done

BENCHMARKS ?= transport inference store limits end_to_end scale

bench: $(STAMP)
	for name in $(BENCHMARKS); do $(BIN)/seedmq -q bench $$name $(ARGS) || exit 1; done

CHAOS_SECONDS ?= 1800
CHAOS_KILLS   ?= 50
SOAK_SECONDS  ?= 7200
.PHONY: chaos chaos-kills soak

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS) $(ARGS)

chaos-kills: $(STAMP)
	$(BIN)/python -m tests.chaos --learner-kills $(CHAOS_KILLS) $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.chaos.soak --seconds $(SOAK_SECONDS) $(ARGS)

PEERS := $(patsubst benchmarks/peers/%/requirements.txt,.venv-peers/%/.installed,$(wildcard benchmarks/peers/*/requirements.txt))

bench-peers: $(PEERS)

.venv-peers/%/.installed: benchmarks/peers/%/requirements.txt
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check -q -r $<
	@touch $@

compose-test:
	scripts/compose_test.sh

IMAGE_BUILD := docker build -q -f docker/Dockerfile $(foreach x,INDEX_URL EXTRA_INDEX_URL TRUSTED_HOST,--build-arg PIP_$(x))

pods-test: $(STAMP)
	$(IMAGE_BUILD) --build-arg EXTRAS=atari -t seedmq:pods-test .
	$(IMAGE_BUILD) --build-arg EXTRAS=learner-cpu,atari,report -t seedmq-learner:pods-test .
	SEEDMQ_IMAGE=seedmq:pods-test SEEDMQ_LEARNER_IMAGE=seedmq-learner:pods-test \
	  $(BIN)/python -m pytest tests/system/test_kubernetes_containers.py $(ARGS)

clean:
	rm -rf $(VENV) .venv-peers build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
