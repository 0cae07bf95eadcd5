# make demo     train the tiny preset from nothing, evaluate it, diagnose the run (minutes on two CPU cores)
# make test     all tests that need no GPU
# make check    what every commit must pass
# make docs     write docs/settings.md from the schema
# make starter  rebuild the checkpoint that ships, from nothing: collect, filter, sft (about half an hour)

VENV ?= .venv
PYTHON ?= python3
RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
STEPS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

STARTER := build/starter

.PHONY: demo test check docs starter
.DELETE_ON_ERROR:

$(VENV)/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/dev: $(VENV)/base
	$(PIP) -e ".[dev]"
	touch $@

demo: $(VENV)/base
	$(BIN)/agentrl rl --preset tiny --out $(RUN) $(if $(STEPS),--set run.steps=$(STEPS))
	$(BIN)/agentrl eval generated --model $(RUN)
	$(BIN)/agentrl diagnose $(RUN)

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not gpu"

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not gpu"

docs: $(VENV)/base
	$(BIN)/python -m agentrl_cli.config.docs > docs/settings.md

starter: $(VENV)/base
	$(BIN)/agentrl collect --preset tiny --problems generated:sft --teacher scripted --out $(STARTER)/collected.jsonl
	$(BIN)/agentrl filter $(STARTER)/collected.jsonl --preset tiny --out $(STARTER)/sft.jsonl
	$(BIN)/python -m agentrl_cli.training.starter fresh $(STARTER)/sft.jsonl $(STARTER)/fresh
	$(BIN)/agentrl sft --preset tiny --set model.path=$(STARTER)/fresh --set run.save_every_steps=200 --data $(STARTER)/sft.jsonl --out $(STARTER)/run
	$(BIN)/python -m agentrl_cli.training.starter ship $$(ls -d $(STARTER)/run/checkpoints/step-* | tail -n 1) agentrl_cli/assets/tiny
