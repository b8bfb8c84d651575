# On a machine with Python 3.11+, make and a C++ compiler, each target sets up all it needs and then runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(wildcard src/stillhash/numeric/native/*)

.PHONY: demo test lint types contracts tests chromium bench clean

# Needs less than the tests do, and is set up sooner.
demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.demo)
	$(BIN)/stillhash demo $(ARGS)

test: lint types contracts tests

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

tests: $(VENV)/.installed chromium
	$(BIN)/pytest

# For the tests of the page, which are skipped without it.
chromium:
	@command -v chromium >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
		echo "chromium is not here: tests of the page in a browser are skipped (Debian: apt-get install chromium)"

bench: $(VENV)/.installed
	$(BIN)/stillhash bench learn
	$(BIN)/stillhash bench encode
	$(BIN)/stillhash bench scan
	$(BIN)/stillhash bench miwq
	$(BIN)/stillhash bench store --items 10000000
	$(BIN)/stillhash bench serve

# Editable, so only changes to the build itself ask for a new install.
$(VENV)/.demo: EXTRA := demo
$(VENV)/.installed: EXTRA := dev
$(VENV)/.demo $(VENV)/.installed: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "stillhash needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "stillhash needs a C++ compiler (Debian: apt-get install g++)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA)]'
	touch $@

clean:
	rm -rf $(VENV) build dist
