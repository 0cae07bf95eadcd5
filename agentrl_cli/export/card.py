"""The README.md of an exported model: how it was made, in facts that the run has recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.config.digest import changed_settings
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.runs import step_of
from agentrl_cli.runs_index.facts import NOT_SET, RunFacts, held_out_results, lookup, read_facts, read_json

_BENCHMARK = ("benchmark", "model", "n", "k", "avg_at_k", "temperature")
_SECTIONS = {
    "sft": {"run", "model", "data", "agent", "sft"},
    "rl": {"run", "model", "data", "eval", "sampler", "sandbox", "tools", "agent", "rewards", "grpo", "optim"},
}
"""Sections of the settings that each command trains with."""


def model_card(checkpoint: Path, *, run: Path | None, is_merged: bool) -> str:
    """Return the model card of a checkpoint; without its run nothing is known of the training.

    Args:
        is_merged: Adapters were merged into their base for the export.
    """
    is_adapter = (checkpoint / "adapter_config.json").is_file()
    lines = ["---", f"library_name: {'peft' if is_adapter and not is_merged else 'transformers'}"]
    lines += ["tags:", "- agentrl", "---", "", f"# {_title(checkpoint, run)}", ""]
    lines.append(f"Exported by agentrl {__version__}.")
    if is_adapter:
        lines.append(
            "Low-rank adapters were merged into their base model."
            if is_merged
            else "These are low-rank adapters (peft); they need the base model that adapter_config.json names."
        )
    if not is_adapter or is_merged:
        lines += ["", *_usage(run)]
    if run is None:
        lines += ["", "No run is known that this checkpoint belongs to."]
    else:
        facts = read_facts(run)
        lines += ["", *_training(facts, step_of(checkpoint)), "", *_settings(facts)]
        lines += ["", *_figures(facts, checkpoint)]
    return "\n".join(lines) + "\n"


def _usage(run: Path | None) -> Iterator[str]:
    """Yield how to talk to the model: as in training, with the tools in its prompt."""
    prompt = read_facts(run).settings["agent"]["system_prompt"].strip() if run else ""
    system = f'{{"role": "system", "content": {json.dumps(prompt)}}}, ' if prompt else ""
    yield "## Use"
    yield ""
    yield "The model was trained with its tools in the prompt; without them it does not know what to call."
    yield ""
    yield "```python"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")'
    yield 'model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")'
    yield f"tools = {json.dumps([PYTHON_SCHEMA])}"
    yield f'messages = [{system}{{"role": "user", "content": "Tom has 12 bags of 34 beads. How many beads?"}}]'
    yield 'options = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}'
    yield "inputs = tokenizer.apply_chat_template(messages, tools=tools, **options)"
    yield 'print(tokenizer.decode(model.generate(**inputs, max_new_tokens=200)[0][len(inputs["input_ids"][0]):]))'
    yield "```"
    yield ""
    yield "`agentrl chat THIS_FOLDER` runs its calls, too."


def _title(checkpoint: Path, run: Path | None) -> str:
    return f"{run.resolve().name}, step {step_of(checkpoint)}" if run else checkpoint.resolve().name


def _training(facts: RunFacts, step: int) -> Iterator[str]:
    yield "## Training"
    yield ""
    planned = f" of {facts.planned}" if facts.planned is not None else ""
    yield f"- command: `agentrl {facts.kind}` of agentrl {facts.version}, begun {facts.created.date().isoformat()}"
    yield f"- steps: {step}{planned}"
    for name, value in facts.model.items():
        if value:
            yield f"- start {name}: `{_public(value)}`"


def _settings(facts: RunFacts) -> Iterator[str]:
    """Yield the settings that the training depends on and that are not agentrl's defaults."""
    yield "## Settings that differ from the defaults"
    yield ""
    defaults = resolved_dump(Config())
    for name in changed_settings(defaults, facts.settings):
        value = lookup(facts.settings, name)
        if name.partition(".")[0] in _SECTIONS[facts.kind] and value != NOT_SET:
            yield f"- `{name}`: `{_public(value)}`"


def _figures(facts: RunFacts, checkpoint: Path) -> Iterator[str]:
    """Yield what was measured at the start and of this very checkpoint."""
    yield "## Measured"
    yield ""
    rows = [row for row in held_out_results(facts.path) if row["step"] in (0, step_of(checkpoint))]
    for row in rows:
        stderr = "" if row["stderr"] is None else f" (standard error {row['stderr']:.3f})"
        yield (
            f"- held-out problems at step {row['step']}: accuracy {row['accuracy']:.3f}{stderr}, greedy "
            f"{row['accuracy_greedy']:.3f}; {row['n']} problems x {row['k']} samples"
        )
    benchmarks = [read_json(file, needs=_BENCHMARK) for file in sorted((facts.path / "eval").glob("*/result.json"))]
    mine = [row for row in benchmarks if Path(row["model"]).name == checkpoint.name]
    for row in mine:
        yield (
            f"- {row['benchmark']}: avg@{row['k']} {row['avg_at_k']:.3f}, {row['n']} problems, "
            f"temperature {row['temperature']:g}"
        )
    if not rows and not mine:
        yield "- nothing: no held-out problems were evaluated"


def _public(value: Any) -> Any:
    """Return a value without the folders of the machine that it was made on."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
