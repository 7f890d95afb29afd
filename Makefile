# Two commands matter: `make train` and `make test`. Each sets itself up first.

PYTHON ?= python3
BIN := .venv/bin
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# What `make train` and `make test` need; `make test-all` installs the others too.
TRANSPORTS := plugins/dingsdk-in-memory plugins/dingsdk-flask-fs
# What earlier checkouts installed themselves as; it would stay beside the new names.
FORMER := dingsdk dingsdk-in-memory dingsdk-flask-fs
# Where a second index cannot be reached, pip would ask it six times for each package.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	-c constraints.txt $(if $(PIP_EXTRA_INDEX_URL),--retries 1 --timeout 10)
# On all cores, where pip takes one; without what is rarely imported, which is half of it. What
# cannot be compiled are examples of an old Python.
RARE := tests?|pip|sympy|torch/(_dynamo|_inductor|_vendor|distributed|onnx|testing)
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j 0 -x '/($(RARE))/' .venv/lib || true
STAMP := .venv/installed
STAMP_ALL := .venv/installed-all
ARGS ?=
# .ci/run names another, which tries again what failed.
PYTEST ?= $(BIN)/python -m pytest
# One more than two cores, as some tests wait.
JOBS ?= 3
# Set, each process that a test starts would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
SEED ?= 0
COUNT ?= 120
AREA ?=
TESTS ?=

.PHONY: help train test test-all style lint mutate bench docs site dist release-check chaos soak clean

help:
	@echo "make train   train DQN on CartPole-v1 in parallel mode (options: ARGS=\"--seed 1\")"
	@echo "make test    lint, and run the quick tests (options: JOBS=4 ARGS=\"-k buffer\")"
	@echo "make test-all  type check too, and run the slow tests as well"
	@echo "make lint    lint and type check"
	@echo "make mutate  try one-line mutants of the code on the tests (options: SEED=1 AREA=buffer)"
	@echo "make chaos   train while processes are killed and the disk fills, and count what is lost (20 minutes)"
	@echo "make soak    train for half an hour, and see whether processes grow"
	@echo "make bench   run the benchmarks"
	@echo "make docs    write the generated reference pages again"
	@echo "make site    build the documentation as a web site in site/, without network"
	@echo "make dist    build wheels and sdists of all distributions in dist/"
	@echo "make release-check  the same, and test them on each Python that is found (needs network)"
	@echo "make clean   remove the virtual environment and all caches; runs/ stays"

# One resolve for everything, so that no two packages can pull in different versions.
$(STAMP): pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(TRANSPORTS))
	if test -x $(BIN)/python; then $(BIN)/python -m pip uninstall -qq --yes $(FORMER); \
		else $(PYTHON) -m venv .venv; fi
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[dev]' $(foreach plugin,$(TRANSPORTS),-e ./$(plugin))
	$(COMPILE)
	@touch $@

$(STAMP_ALL): $(STAMP) $(addsuffix /pyproject.toml,$(PLUGINS))
	$(PIP) --no-build-isolation -e '.[dev,dev-all]' $(foreach plugin,$(PLUGINS),-e ./$(plugin))
	$(COMPILE)
	@touch $@

train: $(STAMP)
	$(BIN)/dingsdk train cartpole-dqn --mode parallel --transport in_memory $(ARGS)

style: $(STAMP)
	@$(BIN)/ruff check && $(BIN)/ruff format --check

lint: style
	$(BIN)/mypy

# A process gets all tests of a file, in the order of the files: the short ones of tests/unit are
# last, so that none is left with a long file at the end.
RUN_TESTS = $(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: style
	@$(RUN_TESTS) $(TRANSPORTS) tests $(ARGS)

# Apart from all else: DI-engine asks for versions that cannot be installed beside ours.
DI_ENGINE := plugins/dingsdk-di-engine/requirements.txt
.venv/di-engine: $(STAMP_ALL) $(DI_ENGINE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $@ -r $(DI_ENGINE)
	@touch $@

# The type checker works beside the tests, and its output follows theirs.
test-all: $(STAMP_ALL) .venv/di-engine style
	@$(BIN)/mypy >.venv/mypy.log 2>&1 & types=$$!; \
	$(RUN_TESTS) plugins tests -m "" --hypothesis-profile=thorough $(ARGS); code=$$?; \
	wait $$types || code=1; echo "mypy:"; cat .venv/mypy.log; exit $$code

mutate: $(STAMP_ALL)
	$(BIN)/python -m tools.mutation --seed $(SEED) --count $(COUNT) --jobs $(JOBS) \
		--areas $(AREA) --tests $(TESTS) $(if $(SLOW),--slow)

# Whole runs of real processes: ten minutes each with and without faults, and half an hour.
chaos soak: $(STAMP)
	$(BIN)/python -m tools.chaos$(if $(filter soak,$@),.soak) $(ARGS)

bench: $(STAMP_ALL)
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(STAMP)
	$(BIN)/python docs/generate.py

# Strict: a link, an anchor or a reference that leads nowhere fails.
site: $(STAMP_ALL) docs
	$(BIN)/zensical build --clean --strict

dist: $(STAMP_ALL)
	rm -rf dist
	for project in . $(PLUGINS); do \
		(cd $$project && $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist) || exit 1; \
	done

release-check: $(STAMP_ALL)
	$(BIN)/python -m tools.release_check

clean:
	rm -rf .venv .cache build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
