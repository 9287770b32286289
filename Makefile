# Each target is one readable line; bootstrap.py makes the environment and is quick when it is there.
SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c
PYTHON ?= python3
VENV = .venv
RUN = $(VENV)/bin/python
export POLAR_HOME ?= $(CURDIR)/.polar
export PYTHONUTF8 = 1
TESTS ?= tests
# Files of tests run in so many processes, each with services of its own; DIST=load: single tests.
JOBS ?= 2
DIST ?= loadfile
SPREAD = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist $(DIST) --no-loadscope-reorder)
SERVICE_VENV = .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

.PHONY: browser run up down test test-slow test-service drill check openapi docs bench lock compose-env clean env
.DEFAULT_GOAL = run

env:
	@$(PYTHON) bootstrap.py

run: env  ## fine-tune a small model end to end; ONCE=1 stops everything afterwards
	@$(RUN) -m polar run-sample $(if $(ONCE),--once)

up: env  ## start the stack and leave it running
	@$(RUN) -m polar up --detach

down: env  ## stop the stack
	@$(RUN) -m polar down

browser:
	@.ci/browser

test: env browser  ## everything but what takes minutes, a GPU or a rented machine
	@$(RUN) -m pytest $(SPREAD) -m "not slow and not drill and not gpu and not cloud" $(TESTS)

test-slow: env  ## what takes minutes each; real models alone: make test-slow TESTS=tests/real
	@$(RUN) -m pytest $(SPREAD) -m "slow and not drill and not gpu and not cloud" $(TESTS)

test-service:  ## everything but the training stack: make test-service PYTHON=python3.12
	@$(PYTHON) bootstrap.py --profile service --venv $(SERVICE_VENV)
	@$(SERVICE_VENV)/bin/python -m pytest -m "not train and not slow and not drill and not gpu and not cloud" $(TESTS)

drill: env  ## break everything in every moment of a job's life, and write docs/faults.md
	@POLAR_DRILL=all POLAR_WRITE_DOCS=1 $(RUN) -m pytest -s -m drill $(TESTS)

check: env  ## lint, format, types, import contracts, containers, known vulnerabilities
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/docker-compose config --no-interpolate --quiet
	@$(VENV)/bin/docker-compose -f docker-compose.yml -f docker-compose.minio.yml --profile gpu config --no-interpolate --quiet
	@$(VENV)/bin/hadolint Dockerfile.api Dockerfile.gpu
	@$(RUN) .ci/audit.py

openapi: env  ## write the API's description from its code, and the SDK's classes of answers from that
	@$(RUN) -m app openapi > openapi/openapi.json.new && mv openapi/openapi.json.new openapi/openapi.json
	@$(RUN) -m polar.sdk.generate < openapi/openapi.json > openapi/answers.py.new && mv openapi/answers.py.new polar/sdk/answers.py

docs: env  ## write the pages of what can be combined and of every field from their tables
	@for page in capabilities reference; do $(RUN) -m trainer_core $$page > docs/$$page.md.new && mv docs/$$page.md.new docs/$$page.md; done
	@$(RUN) -m polar.reference > docs/cli.md.new && mv docs/cli.md.new docs/cli.md

bench: env  ## measure against bare libraries, bare psycopg and Celery, and Ray
	@$(RUN) -m bench

lock: env  ## pin every dependency again, without URLs and without torch
	@$(VENV)/bin/uv pip compile --quiet --universal --no-header --no-annotate --extra service --extra train --extra stack --extra dev pyproject.toml -c requirements.in --override requirements-beside.in | grep -v "sys_platform == 'never'" > requirements.lock.new && mv requirements.lock.new requirements.lock

compose-env: .env  ## write new secrets for docker compose, once
.env:
	@umask 077; for name in POSTGRES_PASSWORD VALKEY_PASSWORD S3_ACCESS_KEY S3_SECRET_KEY POLAR_KEY; do echo "$$name=$$($(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(32))')"; done > $@.new && mv $@.new $@

clean:  ## remove environments and caches; data in .polar stay
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info
