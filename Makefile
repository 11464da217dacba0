# One command each; every target does its own set-up. See `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Many tests wait for something: two processes more than there are cores, six at most.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 5 ? n + 2 : 6)))
# A test process that crashes ends the run: with groups xdist would wait for its tests without end.
# The package is compiled first: the tests start it some hundred times, and where Python is told to
# write no bytecode each of these processes would compile it anew.
# Without columns in tracebacks: for them Python 3.11 parses the line, which fails ("AST constructor
# recursion depth mismatch") if the garbage collector logs an error of a lost connection meanwhile.
# A run that does not end is interrupted, as by Ctrl-C: what failed until then is shown.
LIMIT = 40m
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
SERVERS = postgresql mariadb postgresql-18 mariadb-11.8 mysql-9.7
OF_A_VERSION = tests/contract tests/store tests/upgrade tests/coordination tests/cli tests/test_alembic.py tests/test_ddl.py proof/crash
RUN_TESTS = $(BIN)/python -m compileall -q msgworker tests proof; PYTHONNODEBUGRANGES=1 timeout --foreground -s INT -k 60 $(LIMIT) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0

.PHONY: help demo demo-web quick lint test dist release version proof check format ddl keywords docs bench bench-peers performance torture model clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 14

# A virtual environment is made again when what it holds is declared anew.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml
	$(PIP) -e .
	touch $@

$(VENV)/.web: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[web]'
	touch $@ $(VENV)/.run

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(PIP) 'pip>=25.1'  # which reads groups
	$(PIP) -e '.[postgresql,mysql,oracle,redis,zookeeper]' --group dev
	touch $@ $(VENV)/.run

$(VENV)/.proof: $(VENV)/.dev
	pkg-config --exists libmariadb || $(BIN)/python -c "from tests.servers import install; install('gcc', 'libmariadb-dev', 'pkgconf')"  # mysqlclient comes as a source
	$(PIP) -e . --group proof
	touch $@

demo: $(VENV)/.run  ## real purchases through embedded SQLite: several processes, failures, one killed
	$(BIN)/msgworker demo

demo-web: $(VENV)/.web  ## the same, then its table in the dashboard until Ctrl-C
	$(BIN)/msgworker demo --web

test: $(VENV)/.dev  ## the quick suite, on SQLite, PostgreSQL, MariaDB, Redis and ZooKeeper (it starts servers)
	$(RUN_TESTS) -m "not long or today" $(PYTEST_ARGS)

proof: $(VENV)/.proof  ## the laboratory, all of it, two hours; goes on where it was stopped (PROOF_ARGS="fuzz", --again)
	$(BIN)/python -m tests.debian 3.14 3.13t
	$(BIN)/python -m proof $(PROOF_ARGS)

test-matrix: LIMIT = 2h
test-matrix: $(VENV)/.dev  ## contract, statements, upgrade, crashes and a short torture on each version of the servers (SERVERS="mysql-9.7", RECORD=1)
	for version in $(SERVERS); do \
	  export MSGWORKER_TEST_VARIANT=$$version; $(RUN_TESTS) $(OF_A_VERSION) -m "not long" --junitxml=.matrix/$$version.xml || exit 1; \
	  $(if $(RECORD),$(BIN)/python -m proof.matrix.record $$version .matrix/$$version.xml || exit 1;) done

servers: $(VENV)/.dev  ## start servers on free ports, say where, keep them until Ctrl-C (SERVERS="postgresql-18 mysql-9.7")
	$(BIN)/python -m tests.servers $(SERVERS)

quick: $(VENV)/.dev  ## the inner loop: lint, types, and the unit tests on SQLite; half a minute, no server
	$(MAKE) --no-print-directory lint
	$(RUN_TESTS) -m "not long" -k "not postgresql and not mariadb" $(UNITS) $(PYTEST_ARGS)

UNITS = tests/instance tests/db tests/config tests/store tests/test_events.py tests/test_message.py tests/test_payload.py tests/test_public_names.py

lint: $(VENV)/.dev  ## format, lint, types, layers of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## format, lint, types, tests

format: $(VENV)/.dev  ## put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ddl: $(VENV)/.dev  ## write ddl/*.sql anew: the scripts of the tables, and what an instance sends
	for name in oracle postgresql mysql mariadb sqlite; do \
	  $(BIN)/msgworker ddl --dialect $$name > ddl/$$name.sql || exit 1; done
	for name in sqlite postgresql mariadb mysql oracle; do \
	  $(BIN)/python -m tests.statements $$name > ddl/statements-$$name.sql || exit 1; done

keywords: $(VENV)/.dev  ## write the keywords of App anew from its settings
	mkdir -p build && $(BIN)/python -m tests.keywords > build/keywords.py && mv build/keywords.py msgworker/config/keywords.py

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(PIP) 'pip>=25.1'
	$(PIP) -e . --group docs
	touch $@

docs: $(VENV)/.docs  ## build the site into build/docs; a broken link is an error
	$(BIN)/python -m sphinx -q -W --keep-going -j auto -b html docs build/docs

screens: $(VENV)/.dev  ## take the pictures of the dashboard in docs/_static anew (needs Chromium)
	$(BIN)/python -m tests.web.screens

bench: $(VENV)/.dev  ## the scenarios, beside their limits, as one table (BENCH_ARGS=...)
	$(BIN)/python -m tests.servers -- $(BIN)/python -m bench $(BENCH_ARGS)

bench-peers: $(VENV)/.dev  ## other queues beside msgworker on one PostgreSQL, in folders of their own (PEERS_ARGS="--quick")
	$(BIN)/python -m tests.servers -- $(BIN)/python -m bench.peers $(PEERS_ARGS)

performance: $(VENV)/.dev  ## measure all of it and write docs/project/performance.md anew (PERFORMANCE_ARGS="--quick")
	$(BIN)/python -m tests.servers -- $(BIN)/python -m bench.performance $(PERFORMANCE_ARGS)

torture: $(VENV)/.dev  ## 60 s of kill -9, pauses, lost sessions, restarts and late commits, judged (TORTURE_ARGS=...)
	$(BIN)/python -m proof.crash.torture $(TORTURE_ARGS)

model:  ## check the models of the protocol with Spin, capped at 4 GB (MODEL_ARGS="--quick")
	$(PYTHON) -m proof.model $(MODEL_ARGS)

dist: $(VENV)/.dev  ## build the wheel and the source distribution, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

version: $(VENV)/.dev  ## write the version VERSION=X.Y.Z
	test -n "$(VERSION)"
	sed -i 's/^version = .*/version = "$(VERSION)"/' pyproject.toml
	sed -i 's/^__version__ = .*/__version__ = "$(VERSION)"/' msgworker/__init__.py
	$(BIN)/python -m msgworker.web.api > docs/reference/openapi.json

release: version  ## the same, and cut the changelog; see CONTRIBUTING.md
	sed -i "s/^## \[Unreleased\]$$/&\n\n## [$(VERSION)] - $$(date +%F)/" CHANGELOG.md

clean:  ## remove what was built
	rm -rf $(VENV) .nox .peers .proof .matrix build dist .hypothesis .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
