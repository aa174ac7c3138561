# The commands of a checkout. They need make and Python 3.11 to 3.13. The first target that needs .venv makes it from
# the pinned requirements; a later target makes it again if the requirements have changed.

SHELL      := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS  += --no-builtin-rules --no-print-directory

VENV   := .venv
BIN    := $(VENV)/bin
PINNED := $(VENV)/.pinned
STAMP  := $(VENV)/.ready
ORACLE := $(VENV)/.oracle
PEERS  := .venv-bench
ARM    := build/arm
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
HOST   ?= 127.0.0.1
PORT   ?= 8080
# The documentation site, which the service serves at /guide, and all that it is made from.
GUIDE  := service/static/guide/index.html
PAGES  := mkdocs.yml openapi/openapi.json service/problems/types.py $(shell find docs backpass_client examples -type f -not -path '*/__pycache__/*')
# One process more than cores, because many tests wait for processes of the service.
JOBS   ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
IMAGE  ?= backpass
# A test that waits for ever fails by name after this time, in seconds, instead of stopping the run.
NO_HANG := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
# Python must write bytecode, because the tests start hundreds of processes that read the same sources.
export PYTHONDONTWRITEBYTECODE :=

# The newest supported Python on this machine; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo "$$p" && break; done)

.PHONY: help demo serve docs doctor test fast-tests test-all check lint types format bench bench-peers performance \
	test-arm test-gpu openapi catalogue lock image pin-image sbom secrets clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The pinned pip needs half of the time of the one that comes with Python 3.11; where the index has none, that one installs
# the same. Bytecode is made only of modules that are imported.
$(PINNED): requirements/dev.txt requirements/build.txt requirements/pip.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; name one with make PYTHON=..." >&2; exit 1; }
	@echo "making $(VENV) with $$("$(PYTHON)" --version) (once; about a minute)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) --no-compile --require-hashes -r requirements/pip.txt || echo "installing with the pip of $(PYTHON)" >&2
	@$(PIP) --no-compile --require-hashes -r requirements/build.txt -r requirements/dev.txt
	@touch $@

$(STAMP): $(PINNED) pyproject.toml
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Only the slow tests need PyTorch, JAX and Keras, to compare with them. The file has no hashes and pins no CUDA package, because builds
# of PyTorch differ between machines and require their own packages. Without PyTorch, pytest skips those tests.
$(ORACLE): $(STAMP) requirements/oracle.txt
	@echo "adding PyTorch to $(VENV), for the tests (once)"
	@if $(PIP) -r requirements/oracle.txt; then touch $@; else echo "cannot install PyTorch: pytest skips the comparisons with it" >&2; fi

demo: $(STAMP)  ## start the service, train the digits program over HTTP, stop the service
	@$(BIN)/python -m examples.demo

serve: $(STAMP)  ## run the service on HOST:PORT (127.0.0.1:8080) until Ctrl-C
	@$(MAKE) docs || echo "the service starts without its guide" >&2
	@BACKPASS_HOST=$(HOST) BACKPASS_PORT=$(PORT) $(BIN)/backpass serve

docs: $(STAMP) $(GUIDE)  ## build the documentation site, which the service serves at /guide

# `mkdocs build` writes the site anew; the line of the theme about the next version of MkDocs is not for readers here.
$(GUIDE): $(PAGES) | $(STAMP)
	@echo "building the guide"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

doctor: $(STAMP)  ## check settings, machine, disk and store, as the service would use them
	@$(BIN)/backpass doctor

# mypy keeps one core busy for most of a minute: the tests run beside it. If one of the two fails, the other one goes on.
test: lint  ## run lint, types, import contracts, and all tests except slow ones and many similar cases
	@$(MAKE) --no-print-directory --jobs=2 types fast-tests

fast-tests: $(STAMP)
	@echo "pytest"
	@$(BIN)/pytest -n $(JOBS) -m "not slow" $(NO_HANG)

test-all: check $(ORACLE)  ## run `test` with all cases, comparisons with PyTorch, 10 times the random programs, and machine code
	@echo "pytest, slow tests included"
	@BACKPASS_TEST_PROGRAMS=2000 $(BIN)/pytest -n $(JOBS)
	@echo "pytest --native"
	@$(BIN)/pytest -n $(JOBS) --native -m "not slow" --ignore tests/core/codegen \
		tests/core tests/service tests/end_to_end

# A 64-bit ARM Python from Debian's packages, and the pinned wheels for it. The emulator starts no other programs, so
# tests with processes of their own stay out.
$(ARM)/.ready: requirements/dev.txt | $(STAMP)
	@command -v qemu-aarch64 apt-get >/dev/null && dpkg --print-foreign-architectures | grep -q arm64 || { echo "needs Debian with" \
		"the package qemu-user and the architecture arm64 (dpkg --add-architecture arm64; apt-get update)" >&2; exit 1; }
	@rm -rf $(ARM); mkdir -p $(ARM)/packages
	@cd $(ARM)/packages && apt-get download --quiet $(addsuffix :arm64,libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 \
		libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)
	@for each in $(ARM)/packages/*.deb; do dpkg -x $$each $(ARM)/root; done
	@$(PIP) --require-hashes --no-deps --only-binary=:all: --implementation cp --python-version 3.11 \
		$(patsubst %,--platform manylinux%_aarch64,2014 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34) \
		--target $(ARM)/site -r requirements/dev.txt
	@touch $@

# Needs the extra `gpu` in .venv. Without a GPU it says so, and fails.
test-gpu: $(STAMP)  ## check steps, ops, memory and failures on a GPU, and measure it (8 minutes, JSON lines)
	@timeout 480 $(BIN)/python -m tests.gpu

test-arm: $(ARM)/.ready  ## run the tests of machine code on an emulated 64-bit ARM CPU (qemu-user; about 20 minutes)
	@PYTHONPATH=$(ARM)/site:. qemu-aarch64 -L $(ARM)/root $(ARM)/root/usr/bin/python3.11 -m pytest -p no:xdist -m "not slow" \
		tests/core/codegen tests/core/plan tests/laws/test_native.py -k "not process"

check: lint types  ## check lint, formatting, types, import contracts

lint: $(STAMP)
	@echo "ruff check"; $(BIN)/ruff check --quiet .
	@echo "ruff format --check"; $(BIN)/ruff format --quiet --check --diff .
	@echo "lint-imports"; out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }

types: $(STAMP)
	@echo "mypy"; $(BIN)/mypy --no-error-summary

format: $(STAMP)  ## format the sources with ruff
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

MEASURES := steps first_gradient http_sessions memory roofline
BENCHES  := $(filter-out $(MEASURES) report,$(basename $(notdir $(shell grep -l '^def main' bench/*.py))))

bench: $(STAMP)  ## measure compilation, calls, and training in comparison with PyTorch, JAX and TensorFlow
	@test -f $(PEERS)/.ready || echo "no frameworks to compare with; \`make bench-peers\` installs them"
	@for each in $(BENCHES); do echo "bench.$$each"; $(BIN)/python -m "bench.$$each"; done
	@for each in $(MEASURES); do \
		echo "bench.$$each"; $(BIN)/python -m "bench.$$each" --json build/bench/$$each.json; done

# PyTorch, JAX and TensorFlow in a separate environment. Without hashes, for the same reason as PyTorch above.
bench-peers: $(PEERS)/.ready  ## install the frameworks that `make bench` compares with (2 GB)

$(PEERS)/.ready: requirements/bench.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; name one with make PYTHON=..." >&2; exit 1; }
	@echo "making $(PEERS) with PyTorch, JAX and TensorFlow (once; some minutes)"
	@"$(PYTHON)" -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	@touch $@

performance: $(STAMP)  ## write docs/performance.md from the last `make bench`
	@$(BIN)/python -m bench.report

openapi: $(STAMP)  ## write openapi/openapi.json from the code
	@$(BIN)/backpass openapi --output openapi/openapi.json

catalogue: $(STAMP)  ## write docs/ops, docs/options.md, and the client's ops and their types from the code
	@$(BIN)/backpass catalogue --output docs/ops
	@$(BIN)/backpass options --output docs/options.md
	@$(BIN)/backpass signatures --output backpass_client/builder/ops.json
	@$(BIN)/backpass signatures --stub --output backpass_client/_ops.pyi

lock: $(STAMP)  ## pin the newest allowed versions of all dependencies
	@$(PIP) uv==0.13.8
	@compile() { $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--generate-hashes --no-header --no-annotate "$$@"; }; \
	compile --upgrade --no-config pyproject.toml -o requirements/run.txt; \
	compile --upgrade --no-config pyproject.toml -c requirements/run.txt --extra dev -o requirements/dev.txt; \
	compile --upgrade --no-config requirements/build.in -o requirements/build.txt; \
	compile --upgrade --no-config requirements/pip.in -o requirements/pip.txt; \
	compile --upgrade --no-config requirements/docs.in -c requirements/dev.txt -o requirements/docs.txt; \
	compile --upgrade --no-config pyproject.toml -c requirements/dev.txt --extra postgres --extra telemetry \
		-o requirements/image.txt; \
	compile --upgrade --no-config requirements/sbom.in -c requirements/dev.txt -o requirements/sbom.txt; \
	compile --upgrade pyproject.toml -c requirements/run.txt --extra gpu -o requirements/gpu.txt; \
	compile --upgrade --no-config --no-generate-hashes requirements/oracle.in -c requirements/dev.txt \
		-c requirements/build.txt | grep -vE '^(cuda|nvidia|triton)' > requirements/oracle.txt; \
	compile --upgrade --no-config --no-generate-hashes requirements/bench.in -c requirements/dev.txt \
		-c requirements/build.txt -c requirements/oracle.txt | grep -vE '^(cuda|nvidia|triton)' > requirements/bench.txt

# The base image by digest. Builders without a registry: make image PYTHON_IMAGE=python:3.11-slim-bookworm
PYTHON_IMAGE ?= $(shell cat requirements/base-image.txt)

image:  ## build the CPU image on the pinned base image
	@docker build --target cpu --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) --tag $(IMAGE):cpu .

pin-image:  ## write the newest digest of the base image to requirements/base-image.txt and docker-compose.yml
	@name=$$(cut -d@ -f1 requirements/base-image.txt); \
	digest=$$(docker buildx imagetools inspect "$$name" --format '{{json .Manifest.Digest}}' | tr -d '"'); \
	sed -i "s|$$name@sha256:[0-9a-f]*|$$name@$$digest|" requirements/base-image.txt docker-compose.yml; \
	cat requirements/base-image.txt

# Images contain the SBOM of their own environment as /opt/backpass/sbom.cdx.json; this one is of the locked packages.
sbom: $(STAMP)  ## write build/sbom.cdx.json: the packages of the image with their hashes, as CycloneDX
	@test -x build/sbom/bin/cyclonedx-py || { "$(PYTHON)" -m venv build/sbom \
		&& build/sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/sbom.txt; }
	@build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file build/sbom.cdx.json requirements/image.txt
	@echo build/sbom.cdx.json

secrets:  ## write new secrets for docker-compose.yml into secrets/, unless they exist
	@$(PYTHON) deploy/make_secrets.py secrets

clean:  ## remove .venv, caches and build results
	@rm -rf $(VENV) $(PEERS) service/static/guide build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './$(PEERS)/*' -prune -exec rm -rf {} +
