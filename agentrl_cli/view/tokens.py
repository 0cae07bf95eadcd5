"""The tokens of trajectories of training, and which of them the policy generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from agentrl_cli.config.load import load_run_config
from agentrl_cli.config.schema import ModelConfig
from agentrl_cli.errors import DataError, ModelError
from agentrl_cli.records import read_step_records
from agentrl_cli.runs import step_of
from agentrl_cli.runs_index.facts import latest_checkpoint, looks_like_run
from agentrl_cli.types import Trajectory
from agentrl_cli.view.render import escape_text

OPEN, CLOSE = "⟦", "⟧"


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens that were all generated, or all not (prompt, tool results, template)."""

    text: str
    num_tokens: int
    is_generated: bool


def read_spans(file: Path, places: Sequence[int]) -> list[list[Span]]:
    """Return the spans of the trajectories at these places of a step's file, decoded by the run's tokenizer.

    Raises:
        DataError: the file has no tokens beside it, or belongs to no run. ModelError: the tokenizer can't be loaded.
    """
    if not file.name.startswith("step-") or not file.with_suffix(".safetensors").is_file():
        raise DataError(
            f"{str(file)!r} has no token data beside it",
            hint="only trajectories of training have it: RUN/trajectories/step-000001.jsonl",
        )
    run = file.resolve().parent.parent
    if not looks_like_run(run):
        raise DataError(f"{str(file)!r} lies in no run, so its tokenizer is not known", hint="view it in its run")
    tokenizer = _load_tokenizer(run)
    trajectories = read_step_records(file.parent, step_of(file))
    return [spans_of(trajectories[place], tokenizer) for place in places]


def spans_of(trajectory: Trajectory, tokenizer: Any) -> list[Span]:
    """Return a trajectory's tokens, prompt first, cut where the mask changes and decoded."""
    tokens = [(token, 0) for token in trajectory.prompt_ids]
    tokens += zip(trajectory.ids, trajectory.mask, strict=True)
    spans = []
    for mask, group in groupby(tokens, key=lambda pair: pair[1]):
        ids = [token for token, _ in group]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        spans.append(Span(text, len(ids), bool(mask)))
    return spans


def render_spans(spans: Sequence[Span]) -> str:
    """Return the text of the tokens with generated ones in ⟦…⟧; such brackets in the text itself are escaped."""
    shown = "".join(f"{OPEN}{_plain(s.text)}{CLOSE}" if s.is_generated else _plain(s.text) for s in spans)
    generated = sum(span.num_tokens for span in spans if span.is_generated)
    total = sum(span.num_tokens for span in spans)
    return f"tokens: {generated} of {total} generated, in {OPEN}…{CLOSE}\n{shown}"


def _plain(text: str) -> str:
    return escape_text(text).replace(OPEN, "\\u27e6").replace(CLOSE, "\\u27e7")


def _load_tokenizer(run: Path) -> Any:
    """Load the tokenizer of a run's newest checkpoint, or of the model that it starts from."""
    from transformers import AutoTokenizer

    from agentrl_cli.sampler.loading import resolve_path

    config: ModelConfig = load_run_config(run, []).model
    checkpoint = latest_checkpoint(run)
    source = str(checkpoint) if checkpoint else resolve_path(config.path)
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=config.revision or None, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"can't load the tokenizer of {source!r}", hint="tokens are shown by the tokenizer of the run's model"
        ) from error
