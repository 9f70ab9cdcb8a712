PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DRIVER := .venv/installed-driver

.PHONY: help install demo real test real-test page-test lint exactness bench device clean

help:
	@echo "make demo       run every strategy on the embedded oracle beside plain decoding"
	@echo "make real       fetch SmolLM2-135M-Instruct, and run five strategies beside plain decoding on it"
	@echo "make test       all tests but the long exactness suite, those of the published model and those in a browser"
	@echo "make real-test  tests of the published model, once python -m oracles.smollm2 has fetched it"
	@echo "make page-test  the HTML page in a headless Chromium, with screenshots in runs/page-test"
	@echo "make lint       ruff and mypy"
	@echo "make exactness  the long exactness suite, then laws and tokens of every strategy"
	@echo "make bench      measure, and write the files of benchmarks/"
	@echo "make device     on a machine with a GPU: CUDA beside the CPU; installs nothing"
	@echo "make install    create .venv, as the others do first"
	@echo "make clean      remove .venv and build leftovers"

$(INSTALLED): setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/python -m experiments.demo

real: $(INSTALLED)
	$(BIN)/python -m oracles.smollm2
	$(BIN)/python -m experiments.spec_bench --oracle smollm2 --arithmetic int8 --turns all \
		--file experiments/prompts/conversations.jsonl --max-new-tokens 128 \
		--strategies prompt_lookup small_transformer eagle3 cascade lookahead

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not long and not real"

real-test: $(INSTALLED)
	$(BIN)/python -m pytest -m real -rs

$(DRIVER): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[page]'
	touch $@

page-test: $(DRIVER)
	$(BIN)/python -m pytest tests/page

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

exactness: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m long -rs
	$(BIN)/python -m experiments.exactness

bench: $(INSTALLED)
	$(BIN)/python -m experiments.bench

# The machine's own Python: torch for its GPU is there already.
device:
	$(PYTHON) -m experiments.studies.device --identity-prompts 32 --identity-tokens 400

clean:
	rm -rf .venv build *.egg-info
