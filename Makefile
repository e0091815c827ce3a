# Every target makes what it needs: a new clone needs only Python 3.11 to 3.13, make, gcc and git.
# make test PYTHON=python3.13 tests under another Python, DEPENDENCIES=oldest (or newest) with the
# versions of tests/frameworks/oldest.txt: each in an environment of its own, as .venv-3.13.
PYTHON ?= python3
DEPENDENCIES ?=
CONSTRAINTS := $(if $(DEPENDENCIES),tests/frameworks/$(DEPENDENCIES).txt)
VERSION_OF = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv$(if $(filter file,$(origin PYTHON)),,-$(or $(VERSION_OF),$(error \
	there is no $(PYTHON): install that Python or name another)))$(addprefix -,$(DEPENDENCIES))
# The oldest are tried without frameworks: `make test-frameworks` has the oldest of those.
EXTRAS := $(if $(filter oldest,$(DEPENDENCIES)),test,dev)
TORCH := $(if $(DEPENDENCIES),torch -c $(CONSTRAINTS),torch==2.13.0)
BIN := $(VENV)/bin
# What a user installs, and what tests, lint and benches need besides
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
# Where torch comes from besides PyPI: its build without CUDA, a tenth of PyPI's, unless there is an
# NVIDIA driver, or the index cannot be reached (pip would ask it for minutes).
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(if $(wildcard /dev/nvidiactl),,$(shell $(PYTHON) -c \
	'from urllib.request import urlopen as o; o("$(CPU_INDEX)/torch/", timeout=5); print("$(CPU_INDEX)")' \
	2>/dev/null))
KERNELS := $(VENV)/.kernels
KERNEL_FOLDERS := balancer/planning/kernels sched/bubble_filling/kernels
# Three processes on two cores: tests of processes wait as much as they compute.
IN_PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
PACKAGES := balancer loader sched tools workers
# Bytecode is kept (empty means so): tests start hundreds of processes, and each would compile anew.
export PYTHONDONTWRITEBYTECODE :=

# Pages written by hand; those of `make docs` and of a bench are not.
PAGES := README.md AGENTS.md CONTRIBUTING.md CHANGELOG.md $(wildcard skills/*/references/*.md) \
	$(filter-out docs/reference/api.md docs/reference/cli.md docs/internals/protocol.md docs/benchmarks/papers.md, \
	$(wildcard docs/*.md docs/*/*.md))

.PHONY: demo test test-all soak kernels faults fuzz peer-suites test-frameworks constraints dist lint types size bench docs notebooks clean
demo: $(KERNELS)
	$(BIN)/counterpoise demo

test: $(STAMP) kernels
	$(BIN)/pytest $(IN_PARALLEL)

# also the tests marked `long`: many more cases of what `test` runs with a few
test-all: $(STAMP) kernels
	$(BIN)/pytest $(IN_PARALLEL) -m ''

# Hundreds of epochs of each kind of loop: nothing that is held or paid for a step may grow.
soak: $(STAMP) kernels
	$(BIN)/pytest -m long tests/soak

# What `pip install` compiles, anew where a source has changed since.
kernels: $(KERNELS)

$(KERNELS): $(CORE) setup.py $(wildcard $(addsuffix /*.py*,$(KERNEL_FOLDERS)))
	$(BIN)/python setup.py -q build_ext --inplace --force
	touch $@

# Real processes over tcp, killed, stopped and cut off: make faults RUNS=100 JOBS=3 FIRST=7000
# Each process of loaders on one host, killed so often: make faults KILLS=100
KILLS ?=
RUNS ?= 3
JOBS ?= 2
FIRST ?= 0
faults: $(STAMP) $(KERNELS)
	PYTHONPATH=$(VENV)/typing $(BIN)/python -m tests.faults --runs $(RUNS) --jobs $(JOBS) --first $(FIRST) \
		$(if $(KILLS),--kills $(KILLS))

# Changed ledgers, damaged files, shards that change, hostile messages and bytes:
# make fuzz TARGET=ledgers RUNS=10000; all targets with their usual runs without.
# FUZZ=--report=FILE writes the report, --first=N other seeds.
TARGET ?=
FUZZ ?=
fuzz: $(STAMP) $(KERNELS)
	PYTHONPATH=$(VENV)/typing $(BIN)/python -m tests.fuzz $(TARGET) $(if $(filter command line environment,$(origin RUNS)),--runs $(RUNS)) $(FUZZ)

# Other people's own tests, with torch's loader and with ours: make peer-suites SUITES=DIR, a folder
# with their checkouts, under the names that CONTRIBUTING.md has. ARGS="--only lhotse" runs one.
SUITES ?=
ARGS ?=
PEERS ?= $(VENV)/peers
peer-suites: $(PEERS)/.installed
	PYTHONPATH=$(abspath $(PEERS))/import $(PEERS)/bin/python -m tests.peer_suites $(ARGS) "$(SUITES)"

$(PEERS)/.installed: tests/peer_suites/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install -q torch==2.13.0
	$(PEERS)/bin/pip install -q torch==2.13.0 -e . -r $<
	mkdir -p $(PEERS)/import && ln -sfn $(CURDIR)/tests $(PEERS)/import/tests
	touch $@

# The programs that people train with (tests/programs), each in an environment of its own:
# make test-frameworks PROGRAM=verl_sft (or a list, or all). SOURCES=DIR has checkouts of what is in
# no registry; without it such programs skip. NEWEST=1 takes the newest releases.
PROGRAM ?= $(if $(NEWEST),all)
PROGRAMS ?= $(VENV)/programs
SOURCES ?=
NEWEST ?=
AGE := $(if $(NEWEST),-newest)
ALL_PROGRAMS := $(patsubst tests/programs/%/requirements.txt,%,$(wildcard tests/programs/*/requirements.txt))
PROGRAM_NAMES := $(if $(filter all,$(PROGRAM)),$(ALL_PROGRAMS),$(PROGRAM))
ifneq ($(PROGRAM_NAMES),)
test-frameworks: $(PROGRAM_NAMES:%=test-program-%)
	@$(PYTHON) tests/programs/table.py $(PROGRAM_NAMES:%=$(PROGRAMS)/%$(AGE))

# `tests` as a package of one line: the wheels of verl and OpenRLHF bring a package of that name,
# which would win over a plain folder.
test-program-%: $(PROGRAMS)/%$(AGE)/.installed
	rm -f $(<D)/report.xml
	mkdir -p $(<D)/import/tests && ln -sfn $(CURDIR) $(<D)/import/counterpoise
	echo '__path__ = ["$(CURDIR)/tests"]' > $(<D)/import/tests/__init__.py
	PYTHONPATH=$(abspath $(<D)/import) SOURCES=$(abspath $(SOURCES)) $(<D)/bin/python -P -m pytest \
		-s -m '' -o timeout=3000 --junitxml=$(<D)/report.xml $(wildcard tests/programs/$*/check_*.py) \
		$(if $(NEWEST),|| test -f $(<D)/report.xml)

# The first line of requirements.txt is the program; NEWEST takes away pins, not upper limits.
.PRECIOUS: $(PROGRAMS)/%/.installed
$(PROGRAMS)/%/.installed: tests/programs/%/requirements.txt pyproject.toml
	$(install-program)
$(PROGRAMS)/%-newest/.installed: tests/programs/%/requirements.txt pyproject.toml
	$(install-program)

define install-program
	$(PYTHON) -m venv $(@D)
	sed '$(if $(NEWEST),s/==/>=/)' $< > $(@D)/requirements.txt
	$(@D)/bin/pip install -q $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch==2.13.0
	$(@D)/bin/pip install -q $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch==2.13.0 -e . \
		-r $(@D)/requirements.txt 'hypothesis>=6.100' 'pytest>=8.3' 'pytest-timeout>=2.3'
	$(if $(wildcard $(<D)/no-deps.txt),sed '$(if $(NEWEST),s/==/>=/)' $(<D)/no-deps.txt > $(@D)/no-deps.txt \
		&& $(@D)/bin/pip install -q --no-deps -r $(@D)/no-deps.txt)
	touch $@
endef
else

# All cases under the newest accelerate, transformers and lightning (`make test` runs a few of them)
# and under the oldest, with torchtitan and megatron-core, in an environment of its own.
FRAMEWORKS ?= $(VENV)/frameworks
test-frameworks: $(STAMP) $(KERNELS) $(FRAMEWORKS)/.installed
	$(BIN)/pytest -m '' tests/frameworks
	$(FRAMEWORKS)/bin/pytest -m '' tests/frameworks
endif

$(FRAMEWORKS)/.installed: tests/frameworks/oldest-adapters.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q -e . -r $<
	touch $@

# The oldest and the newest of what pyproject.toml allows, for DEPENDENCIES=oldest or newest. What
# only tests use is not held back.
COMPILE := uv pip compile -q --upgrade --no-annotate --python-version 3.11 pyproject.toml \
	--custom-compile-command 'make constraints'
constraints: $(STAMP)
	$(BIN)/$(COMPILE) $(addprefix --extra ,media metrics parquet ray stores) \
		--resolution lowest-direct -o tests/frameworks/oldest.txt
	$(BIN)/$(COMPILE) --extra dev --universal -o tests/frameworks/newest.txt

# The files of a release in dist/, checked, and the wheel tried where nothing else is installed.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	PYTHONPATH=$(VENV)/typing $(BIN)/python -P -m tests.release dist/*.whl

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mdformat --check --compact-tables $(PAGES)

types: $(STAMP)
	MYPYPATH=$(VENV)/typing $(BIN)/mypy $(addprefix -p counterpoise.,$(PACKAGES)) -m counterpoise -p tests -p benchmarks

# Lines of the product, of the wheel, and of what loops import
size: $(STAMP)
	@PYTHONPATH=$(CURDIR)/$(VENV)/typing $(BIN)/python -P -m tests.size

# A bench of benchmarks/: make bench NAME=runtime ARGS='--rounds 5 --json'; without NAME, their list.
# NAME=peers: the plain loop beside other people's loaders, which are installed in an environment of
# their own, with the product: make bench NAME=peers ARGS='--workers 1 --pairs 4 --json'
NAME ?=
BENCH_PEERS ?= $(VENV)/bench-peers
BENCH_VENV := $(if $(filter peers,$(NAME)),$(BENCH_PEERS),$(VENV))
bench: $(if $(filter peers,$(NAME)),$(BENCH_PEERS)/.installed,$(STAMP) $(KERNELS))
	@PYTHONPATH=$(CURDIR)/$(BENCH_VENV)/typing $(BENCH_VENV)/bin/python -P -m benchmarks $(or $(NAME),--help) $(if $(NAME),$(ARGS))

$(BENCH_PEERS)/.installed: tests/benchmarks/peers.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH_PEERS)
	$(BENCH_PEERS)/bin/pip install -q torch==2.13.0
	$(BENCH_PEERS)/bin/pip install -q torch==2.13.0 -e . -r $<
	mkdir -p $(@D)/typing && ln -sfn $(CURDIR)/benchmarks $(@D)/typing/benchmarks
	touch $@

# The generated pages, the site in build/site, and a table of each page's words and readability.
# After a change that notebooks show: make notebooks, which runs them and keeps what they print.
docs: $(STAMP)
	PYTHONPATH=$(CURDIR)/$(VENV)/typing $(BIN)/python -P -m tests.docs.generate
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(CURDIR)/$(VENV)/typing $(BIN)/python -P -m mkdocs -q build --strict
	@PYTHONPATH=$(CURDIR)/$(VENV)/typing $(BIN)/python -P -m tests.docs.words

notebooks: $(KERNELS)
	PYTHONPATH=$(CURDIR)/$(VENV)/typing $(BIN)/python -P -m tests.docs.generate.execute

# torch first, by its exact version: a range would let pip take a build for another device. Named
# again with the rest: where pip has to go back, it takes a newer torch than the one installed.
# What builds the kernels is installed here and not in a build environment, which pip would make
# anew each time.
# The folder typing/ gives mypy the package under its own name, and `tests` and `benchmarks` to
# import.
$(CORE): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(addprefix --extra-index-url ,$(TORCH_INDEX)) $(TORCH) \
		'cython>=3.1' 'setuptools>=77'
	$(BIN)/pip install -q --no-build-isolation $(TORCH) -e .
	touch $@ $(KERNELS)

$(STAMP): $(CORE)
	$(BIN)/pip install -q --no-build-isolation $(TORCH) -e '.[$(EXTRAS)]'
	mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/counterpoise
	ln -sfn ../../tests $(VENV)/typing/tests
	ln -sfn ../../benchmarks $(VENV)/typing/benchmarks
	touch $@ $(KERNELS)

clean:
	rm -rf $(VENV) .editable build dist $(addsuffix /compiled.c,$(KERNEL_FOLDERS)) $(addsuffix /compiled.*.so,$(KERNEL_FOLDERS))
	rm -rf *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
