# Every command of the project. `make report` and `make test` are all a fresh machine needs.

PYTHON ?= python3
CASE = data/demo/case.toml
OUT = reports
OLDEST := 3.11.0
TORCH := 2.13.0
WORKERS ?= 2

VENV := .venv
READY := $(VENV)/.ready
PY := $(VENV)/bin/python
LONG := docs/test-long.txt

# A PYTHON given by the user is taken or refused; the default may be too old, then its neighbours are tried.
PYTHONS := $(PYTHON) $(if $(filter file,$(origin PYTHON)),python3.13 python3.12 python3.11)

FIND_PYTHON = for python in $(PYTHONS); do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	    2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "eagle3lab needs Python 3.11, 3.12 or 3.13 with its venv module; none of these is one: $(strip $(PYTHONS))." >&2; \
	  echo "Install one (Debian and Ubuntu: python3 and python3-venv), or name yours: make PYTHON=/path/to/python3.12 ..." >&2; \
	  exit 1; \
	fi

# name==version of what pip would install, without local labels (torch's +cpu) and without this package.
define PINS
import json
found = [item["metadata"] for item in json.load(open("build/resolved.json"))["install"]]
pins = {item["name"]: item["version"].split("+")[0] for item in found}
ours = sorted(pins.keys() - {"eagle3lab", "setuptools"}, key=str.lower)
print(*(name + "==" + pins[name] for name in ours), sep="\n")
endef
export PINS
export PIP_DISABLE_PIP_VERSION_CHECK = 1
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help report test lab check lint format test-long bench constraints clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: $(READY) ## run all notebooks on CASE and write the pages to OUT (reports/index.html)
	$(PY) -m eagle3lab report $(CASE) -o $(OUT)

test: $(READY) ## run the tests (without the long ones)
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup

lab: $(READY) ## open the notebooks in JupyterLab
	$(PY) -m jupyterlab notebooks

check: $(READY) ## print the findings on CASE, without notebooks
	$(PY) -m eagle3lab check $(CASE)

lint: $(READY) ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY) ## put code and notebooks into the project's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test-long: $(READY) ## run the fault bench (docs/fault-bench.txt) and the long tests (docs/test-long.txt)
	$(PY) -m tests.faults 10 > docs/fault-bench.txt
	@{ echo "make test-long, $$(date -u +%Y-%m-%d), $$($(PY) -c 'import os, platform, torch; print(f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")')"; \
	  $(PY) -m pytest -n $(WORKERS) --dist loadgroup -m long --no-header -rfEsxXp --durations=0 --durations-min=1; \
	  echo $$? > $(VENV)/.long; } 2>&1 | tee $(LONG); exit $$(cat $(VENV)/.long)

bench: $(READY) ## run every benchmarks/bench_*.py
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(PY) $$script; done

constraints: $(READY) ## resolve the newest releases that Python 3.11 can run and pin them in constraints.txt
	mkdir -p build
	$(PY) -m pip install --quiet --dry-run --ignore-installed --report build/resolved.json --target build/nowhere \
	  --python-version $(OLDEST) --only-binary=:all: '.[test]' torch==$(TORCH)
	@{ grep '^#' constraints.txt; $(PY) -c "$$PINS"; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean: ## remove the environment, caches and build leftovers (reports stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find eagle3lab tests benchmarks notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamp is written last: an install that was interrupted leaves none, and the next one starts from an empty folder.
$(READY): pyproject.toml constraints.txt
	@set -e; if [ ! -e $@ ]; then $(FIND_PYTHON); "$$python" -m venv --clear $(VENV); fi
	@rm -f $@
	@echo "Installing the lab and its tests into $(VENV), once: minutes, depending on the network."
	@$(PY) -m pip install --constraint constraints.txt --editable '.[test]' >$(VENV)/install.log 2>&1 || \
	  { tail -n 25 $(VENV)/install.log >&2; echo "The install failed; all of its output: $(VENV)/install.log" >&2; exit 1; }
	@touch $@
