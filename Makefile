# One command each, from a fresh clone: every target first makes the environment it needs, and only that one, below
# `.make/`, out of requirements that are pinned with their hashes. A second run starts at once.
#
#     .make/core   what users get: `neli` and its runtime dependencies
#     .make/test   the same, with drivers and what the core tests need: no Spark, no Airflow, no type checker
#     .make/dev    everything
#     .make/docs, .make/release   what builds the documentation, and a release
#     .make/spark-4.3, .make/airflow-3.1 ...   everything, with another Spark or Airflow
#     .make/uv     the installer, which also compiles requirements/

CORE := .make/core
TEST := .make/test
DEV := .make/dev
DOCS := .make/docs
RELEASE := .make/release
UV := .make/uv
SPARK := .make/spark-4.3

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# On Linux, what a recipe runs ends when make is killed, and takes its servers with it.
ifeq ($(shell setpriv --pdeathsig TERM echo leashed 2>/dev/null),leashed)
SHELL := setpriv
.SHELLFLAGS := --pdeathsig TERM bash $(.SHELLFLAGS)
endif
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Tests start hundreds of processes. With this variable, which some containers set, each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: airflow airflows bench chaos check clean demo docs explore fetch format goneli help jars kafka lint lock pipeline plan prove quint release sparks test test-core types

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE)/ready ## Three processes share 256 partitions, one is killed, and its keys move
	$(CORE)/bin/neli demo

pipeline: $(DEV)/ready ## Three hosts' Spark jobs fill one table, one host is killed, and every tick lands once
	$(DEV)/bin/neli pipeline

airflow: $(DEV)/ready ## A local Airflow and two hosts' agents, until Ctrl-C (PORT=8081; LEDGER=postgresql: two Airflows)
	$(DEV)/bin/python -P -m neli_router.lab.local_airflow $(if $(PORT),--port $(PORT)) $(if $(LEDGER),--ledger $(LEDGER))

fetch: ## Bring what tests start: jars of Kafka and ZooKeeper (takes Java and Maven), goNELI (takes Go), Quint (takes npm)
	@$(MAKE) --no-print-directory -j4 jars goneli quint $(DEV)/kafka.jsa $(DEV)/spark.jsa

$(DEV)/kafka.jsa: $(DEV)/ready | jars
	@$(DEV)/bin/python -m tests.support.servers.kafka --archive

$(DEV)/spark.jsa: $(DEV)/ready
	@$(DEV)/bin/python -m tests.support.servers.spark

test: ## Every test that this machine can run, and a sample of the proofs
	@$(MAKE) --no-print-directory -j4 jars goneli quint $(DEV)/ready
	@$(DEV)/bin/python -m tests.proofs --check
	$(DEV)/bin/python -m tests.gate

test-core: $(TEST)/ready ## The tests that need neither a server, Spark, Airflow nor a browser
	$(TEST)/bin/python -m tests.gate core

prove: $(TEST)/ready quint ## Explore, simulate and mutate what has changed since it was proved (ALL=1 repeats everything)
	$(TEST)/bin/python -m tests.proofs $(if $(ALL),--all)

check: ## Format, lint, types, which module may import which, and the pages' links
	@$(MAKE) --no-print-directory -j4 --output-sync=line docs lint types plan

lint: $(DEV)/ready
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .

types: $(DEV)/ready
	$(DEV)/bin/mypy

plan: $(DEV)/ready
	$(DEV)/bin/python -m pytest --quiet tests/test_architecture.py

docs: $(DOCS)/ready ## The documentation as a site, in .make/site/html (a dead link is an error)
	@$(DOCS)/bin/python -m docs.reference --site

release: $(RELEASE)/ready $(UV)/ready ## Build what a release uploads, check it, install it, and upload nothing
	@.ci/release

bench: fetch ## Every benchmark, one table each
	$(DEV)/bin/python -m benchmarks --all

explore: $(CORE)/ready ## Every reachable state within the full bounds (some hours)
	$(CORE)/bin/neli explore --profile full
	$(CORE)/bin/neli explore --protocol neli --profile full
	$(CORE)/bin/neli explore --protocol fast-neli --profile full
	$(CORE)/bin/neli explore --protocol term --profile full
	$(CORE)/bin/neli explore --protocol gossip --profile full
	$(CORE)/bin/neli explore --protocol cells --profile full

chaos: fetch ## Ten minutes of faults each on members and three brokers, on PostgreSQL, on Redis, on three electors (needs root)
	NELI_TEST_SECONDS=600 $(DEV)/bin/python -m pytest -rP tests/chaos

airflows: $(DEV)/ready $(UV)/ready ## The provider on Airflow 3.1, 3.2, 3.3 and the 3.4 beta
	@$(DEV)/bin/python -m tests.provider.airflow_versions $(UV)/bin/uv

sparks: jars $(SPARK)/ready ## The tests of Spark on PySpark 4.3; `make test` has them on 4.2
	$(SPARK)/bin/python -m tests.gate spark

$(SPARK)/ready: requirements/dev.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/dev.txt)
	@$(UV)/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps 'pyspark==4.3.0'

# None of them needs a package, so all are made while packages are installed.
jars: $(UV)/ready
	@$(UV)/bin/python -m tests.support.servers.jars

goneli: $(UV)/ready
	@$(UV)/bin/python -m tests.support.servers.goneli_build

quint: $(UV)/ready ## Quint, in which tests/quint has a model of induction (takes npm)
	@$(UV)/bin/python -m tests.support.servers.quint

kafka: jars $(TEST)/ready ## A Kafka of your own to try things on, until Ctrl-C (takes Java and Maven)
	@$(TEST)/bin/python -m tests.support.servers.kafka

format: $(DEV)/ready ## Lay out and tidy the code
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

lock: $(UV)/ready ## Compile requirements/ from pyproject.toml again, to the latest versions
	$(call compile,dev.txt,--upgrade pyproject.toml $(EXTRAS) --extra airflow --extra iceberg --extra messaging --extra spark --group dev)
	$(call compile,test.txt,--constraint requirements/dev.txt pyproject.toml $(EXTRAS) --group test)
	$(call compile,core.txt,--constraint requirements/dev.txt pyproject.toml)
	$(call compile,docs.txt,--constraint requirements/dev.txt pyproject.toml --extra agent --group build --group docs)
	$(call compile,release.txt,--constraint requirements/dev.txt pyproject.toml --group release)
	$(call compile,build.txt,--constraint requirements/dev.txt --group build)
	$(call compile,uv.txt,--upgrade --group uv)

EXTRAS := --extra agent --extra columns --extra kafka --extra postgresql --extra redis

clean: ## Remove the environments, caches and whatever was built
	find airflow_provider benchmarks dags docs examples neli_router tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .cache .make build dist neli-pipeline.html htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(CORE)/ready: requirements/build.txt requirements/core.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/build.txt -r requirements/core.txt)

$(TEST)/ready: requirements/test.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/test.txt)

$(DOCS)/ready: requirements/docs.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/docs.txt)

$(RELEASE)/ready: requirements/release.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/release.txt)

$(DEV)/ready: requirements/dev.txt pyproject.toml $(UV)/ready
	$(call environment,$(@D),-r requirements/dev.txt)

# A `python3.12` on the path may be a stand-in that only says how to install one, so each candidate must show that it
# runs; one without ensurepip (Debian packs it apart, in python3-venv) could not make an environment. A `python3` that
# was compiled without optimisations, as pyenv does by default, takes a seventh longer for every test: then the
# distribution's comes first.
is_plain := import sys, sysconfig; sys.exit("--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")))

$(UV)/ready: requirements/uv.txt
	@rm -rf $(@D)
	@candidates=(python3 python3.14 python3.13 python3.12 python3.11); \
	! python3 -c '$(is_plain)' 2>/dev/null || candidates=(/usr/bin/python3 "$${candidates[@]}"); \
	for python in $(if $(PYTHON),"$(PYTHON)","$${candidates[@]}"); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "$(@D): the installer, with $$("$$python" --version)"; \
			"$$python" -m venv $(@D); \
			break; \
		fi; \
	done; \
	if ! [ -d $(@D) ]; then \
		echo "no Python 3.11 or newer with venv and ensurepip: tried $(if $(PYTHON),$(PYTHON),$${candidates[*]})." >&2; \
		echo "Install one (on Debian and Ubuntu with its python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

# An environment is made from scratch, or a package that we no longer ask for would stay importable. Dependencies are
# not looked at: the requirements name each of them, but for the one that requirements/overrides.txt leaves out. The
# project is editable, so that a change needs no installation; without isolation, so that the pinned backend builds it.
# uv does not read pip's configuration, so an index that is set there is passed on.
define environment
	@echo "$(1): $$(cat $(filter %.txt,$(2)) | grep -c ==) packages"
	@index=$${PIP_INDEX_URL:-$$($(UV)/bin/python -m pip config get global.index-url 2>/dev/null || true)}; \
	[ -z "$$index" ] || export UV_DEFAULT_INDEX=$${UV_DEFAULT_INDEX:-$$index}; \
	[ -w "$${HOME:-/}" ] || export UV_CACHE_DIR="$${UV_CACHE_DIR:-$(CURDIR)/.make/cache}"; \
	export UV_NO_CONFIG=1 VIRTUAL_ENV="$(CURDIR)/$(1)"; \
	$(UV)/bin/uv venv --quiet --clear --python $(UV)/bin/python $(1); \
	$(UV)/bin/uv pip install --require-hashes --no-deps $(2) 2>&1 | sed -n '/^ [+~-] /!s/^/  /p'; \
	$(UV)/bin/uv pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@
endef

define compile
	@$(UV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--override requirements/overrides.txt --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--output-file requirements/$(1) $(2)
endef
