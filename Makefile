# One command each, from a fresh clone: every target first makes the environment it needs, and only that one, below
# `.make/`, out of requirements that are pinned with their hashes. A second run starts at once.
#
#     .make/core   what users get: `neli` and its runtime dependencies
#     .make/dev    the same, with the tests, the checks and the peers of the benchmarks
#     .make/lock   the compiler of requirements/

CORE := .make/core
DEV := .make/dev
LOCK := .make/lock

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: airflow bench chaos check clean demo explore fetch format help kafka lock pipeline test test-core

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE)/ready ## Three processes share 256 partitions, one is killed, and its keys move
	$(CORE)/bin/neli demo

pipeline: $(DEV)/ready ## Three hosts' Spark jobs fill one table, one host is killed, and every tick lands once
	$(DEV)/bin/neli pipeline

airflow: $(DEV)/ready ## A local Airflow and two hosts' agents, until Ctrl-C (PORT=8081 takes another port)
	$(DEV)/bin/python -P -m airflow_provider.local $(if $(PORT),--port $(PORT))

fetch: $(DEV)/ready ## Bring what tests start: jars of Kafka and ZooKeeper (takes Java and Maven), goNELI (takes Go)
	@$(DEV)/bin/python -m tests.support.servers.jars
	@$(DEV)/bin/python -m tests.support.servers.goneli

test: fetch ## Every test this machine can run: proofs, simulations and killed processes too
	$(DEV)/bin/python -m tests.gate

test-core: $(DEV)/ready ## The tests that need neither a server, a browser nor patience (three to four minutes)
	$(DEV)/bin/python -m tests.gate core

check: $(DEV)/ready ## Format, lint, types and which module may import which
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/mypy
	$(DEV)/bin/python -m pytest --quiet tests/test_architecture.py

bench: fetch ## Every benchmark, one table each
	$(DEV)/bin/python -m benchmarks --all

explore: $(CORE)/ready ## Every reachable state within the full bounds (some hours)
	$(CORE)/bin/neli explore --profile full
	$(CORE)/bin/neli explore --protocol neli --profile full
	$(CORE)/bin/neli explore --protocol fast-neli --profile full
	$(CORE)/bin/neli explore --protocol term --profile full
	$(CORE)/bin/neli explore --protocol gossip --profile full

chaos: fetch ## Ten minutes of faults each on members and three brokers, on Redis, on three electors (needs root)
	NELI_TEST_SECONDS=600 $(DEV)/bin/python -m pytest -rP tests/chaos

kafka: fetch ## A Kafka of your own to try things on, until Ctrl-C (takes Java and Maven)
	$(DEV)/bin/python -m tests.support.servers.kafka

format: $(DEV)/ready ## Lay out and tidy the code
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

lock: $(LOCK)/ready ## Compile requirements/ from pyproject.toml anew, to the latest versions
	$(call compile,core.txt,pyproject.toml)
	$(call compile,dev.txt,pyproject.toml --extra agent --extra airflow --extra columns --extra kafka --extra redis --extra spark --group dev)
	$(call compile,build.txt,--group build)
	$(call compile,lock.txt,--group lock)

clean: ## Remove the environments, caches and whatever was built
	find airflow_provider benchmarks dags neli_router tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .make build dist neli-pipeline.html htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(CORE)/ready: requirements/build.txt requirements/core.txt pyproject.toml
	$(call environment,$(@D))
	$(call install,$(@D),-r requirements/build.txt -r requirements/core.txt)
	$(call install_this_project,$(@D))
	@touch $@

$(DEV)/ready: requirements/dev.txt pyproject.toml
	$(call environment,$(@D))
	$(call install,$(@D),-r requirements/dev.txt)
	$(call install_this_project,$(@D))
	@touch $@

$(LOCK)/ready: requirements/lock.txt
	$(call environment,$(@D))
	$(call install,$(@D),-r requirements/lock.txt)
	@touch $@

# An environment is made anew rather than mended, or a package that we no longer ask for would stay importable.
# A `python3.12` on the path may be a stand-in that only says how to install one, so each candidate must show that it
# runs; one without ensurepip (Debian packs it apart, in python3-venv) could not make an environment.
define environment
	@rm -rf $(1)
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python3.14); do \
		if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "making $(1) with $$("$$python" --version)"; \
			exec "$$python" -m venv $(1); \
		fi; \
	done; \
	echo "wanted: a Python of 3.11 or newer that has venv and ensurepip; found: none as $(if $(PYTHON),$(PYTHON),python3 or python3.11 to python3.14)." >&2; \
	echo "Install one (on Debian and Ubuntu with its python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
	exit 1
endef

# Without a look at dependencies: the requirements name each of them, but for the one that requirements/overrides.txt
# leaves out, and pip would ask for it again.
define install
	@$(1)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps $(2)
endef

# Editable, so that a change needs no installation; without isolation, so that the pinned backend builds it.
define install_this_project
	@$(1)/bin/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps --editable .
endef

define compile
	@$(LOCK)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--override requirements/overrides.txt --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--output-file requirements/$(1) $(2)
endef
