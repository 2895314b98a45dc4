# Needs Python 3.11+ and make; everything else goes into .venv, from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# What the cross-checks compare with, installed bare, as no extra could say: torchscale asks for an old
# timm, whose torchvision does not import beside this torch. The last five are x-transformers' needs.
CROSSCHECKS := torchscale x-transformers einops einx frozendict loguru torch-einops-utils

.PHONY: study test test-all bench ci clean

study: .venv/ready  ## the quick depth sweep on real text: table and figure
	$(BIN)/harness run quick
	$(BIN)/harness table quick
	@echo "figure: results/quick/depth_curve.svg (and .png)"

test: .venv/ready  ## all checks but the slow ones
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not slow and not gpu" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-all: .venv/ready  ## the slow ones too
	$(BIN)/pytest

bench: .venv/ready  ## what the harness costs around the step, as ratios
	$(BIN)/python tests/bench.py
	$(BIN)/python tests/bench_scale.py

ci: test study

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps $(CROSSCHECKS)
	touch $@

clean:
	rm -rf .venv
