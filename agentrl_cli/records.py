"""Trajectories on disk: one JSON row each, token data in a sidecar beside it.

Rows are what people and other tools read: OpenAI messages, verdict, reward and its parts, group,
advantage. Token ids, masks and log-probabilities of training are numbers for machines and go to a
safetensors file of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError
from agentrl_cli.files import read_rows, write_atomic, write_rows
from agentrl_cli.types import (
    AnswerKind,
    Ending,
    Problem,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolStatus,
    Trajectory,
    Verdict,
    VerdictStatus,
)

SCHEMA = 1
"""Version of the rows and of the sidecar; each row holds it."""

_SIDECAR = {
    "ids",
    "mask",
    "sampler_logp",
    "prompt_ids",
    "num_tokens",
    "num_prompt_tokens",
    "turn_versions",
    "num_turns",
}


def trajectory_to_row(
    trajectory: Trajectory, *, step: int | None = None, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON-able record of a trajectory (without its tokens).

    Args:
        step: Training step that it belongs to.
        meta: Where it comes from, beside the problem's own under `problem`.
    """
    problem, verdict = trajectory.problem, trajectory.verdict
    return {
        "schema": SCHEMA,
        "id": trajectory.id,
        "problem_id": problem.id,
        "source": problem.source,
        "problem": problem.prompt,
        "answer": problem.answer,
        "kind": str(problem.kind),
        "family": problem.family,
        "level": problem.level,
        "messages": trajectory.messages,
        "tools": list(trajectory.tools),
        "ending": str(trajectory.ending),
        "error": trajectory.error,
        "verdict": None
        if verdict is None
        else {"correct": verdict.correct, "status": str(verdict.status), "extracted": verdict.extracted},
        "reward": trajectory.reward,
        "reward_parts": trajectory.reward_parts,
        "group_id": trajectory.group_id,
        "advantage": trajectory.advantage,
        "step": step,
        "seed": trajectory.seed,
        "events": [_event_to_row(event) for event in trajectory.events],
        "metrics": {
            "num_turns": trajectory.num_turns,
            "num_calls": trajectory.num_calls,
            "num_generated": trajectory.num_generated,
            "turn_tokens": trajectory.turn_tokens,
            "wall_s": trajectory.wall_s,
        },
        "meta": {**(meta or {}), "problem": dict(problem.meta)},
    }


def row_to_trajectory(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a record; its token data stay empty.

    Raises:
        DataError: a field is missing or of another schema.
    """
    check_schema(row)
    try:
        return _read(row)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"record {row.get('id')!r} is incomplete: {type(error).__name__} {error}") from error


def check_schema(row: Mapping[str, Any]) -> None:
    """Refuse a row that is no record, or one of another version.

    Raises:
        DataError: it is.
    """
    if row.get("schema") != SCHEMA:
        raise DataError(
            f"record {row.get('id')!r} has schema {row.get('schema')!r}, this agentrl reads {SCHEMA}",
            hint="read it with the agentrl that wrote it",
        )


def _read(row: Mapping[str, Any]) -> Trajectory:
    verdict = row["verdict"]
    problem = Problem(
        id=row["problem_id"],
        prompt=row["problem"],
        answer=row["answer"],
        kind=AnswerKind(row["kind"]),
        source=row["source"],
        family=row["family"],
        level=row["level"],
        meta=row["meta"]["problem"],
    )
    return Trajectory(
        id=row["id"],
        problem=problem,
        group_id=row["group_id"],
        seed=row["seed"],
        messages=row["messages"],
        tools=row["tools"],
        turn_tokens=list(row["metrics"]["turn_tokens"]),
        events=[_row_to_event(event) for event in row["events"]],
        ending=Ending(row["ending"]),
        error=row["error"],
        verdict=verdict and Verdict(bool(verdict["correct"]), VerdictStatus(verdict["status"]), verdict["extracted"]),
        reward=row["reward"],
        reward_parts=dict(row["reward_parts"]),
        advantage=row["advantage"],
        wall_s=row["metrics"]["wall_s"],
    )


def _event_to_row(event: ToolEvent) -> dict[str, Any]:
    return {
        "turn": event.turn,
        "id": event.call.id,
        "name": event.call.name,
        "arguments": event.call.arguments,
        "call_error": event.call.error,
        "status": str(event.result.status),
        "content": event.result.content,
        "wall_s": event.result.wall_s,
    }


def _row_to_event(row: Mapping[str, Any]) -> ToolEvent:
    call = ToolCall(row["id"], row["name"], row["arguments"], row["call_error"])
    return ToolEvent(row["turn"], call, ToolResult(ToolStatus(row["status"]), row["content"], wall_s=row["wall_s"]))


def strip_times(value: Any) -> Any:
    """Return a record without its wall times, so that two equal runs compare equal."""
    if isinstance(value, dict):
        return {k: strip_times(v) for k, v in value.items() if k != "wall_s"}
    return [strip_times(v) for v in value] if isinstance(value, list) else value


def write_step_records(folder: Path, step: int, trajectories: Sequence[Trajectory]) -> None:
    """Write the trajectories of a step: `step-000001.jsonl`, and its tokens as `step-000001.safetensors`.

    The sidecar holds, over all trajectories in a row: `ids`, `mask`, `sampler_logp` of the tokens after
    the prompt, `prompt_ids`, the weight version of each turn (`turn_versions`), and the lengths that
    cut them apart (`num_tokens`, `num_prompt_tokens`, `num_turns`). Log-probabilities are float32.
    """
    import numpy as np
    from safetensors.numpy import save

    for t in trajectories:
        sizes = (len(t.ids), len(t.mask), len(t.sampler_logp))
        assert len(set(sizes)) == 1, f"{t.id}: ids, mask, sampler_logp have lengths {sizes}"

    def flat(rows: Sequence[Sequence[float]], dtype: Any) -> Any:
        return np.array([value for row in rows for value in row], dtype=dtype)

    tokens = {
        "ids": flat([t.ids for t in trajectories], np.int32),
        "mask": flat([t.mask for t in trajectories], np.uint8),
        "sampler_logp": flat([t.sampler_logp for t in trajectories], np.float32),
        "prompt_ids": flat([t.prompt_ids for t in trajectories], np.int32),
        "num_tokens": np.array([len(t.ids) for t in trajectories], dtype=np.int32),
        "num_prompt_tokens": np.array([len(t.prompt_ids) for t in trajectories], dtype=np.int32),
        "turn_versions": flat([t.turn_versions for t in trajectories], np.int32),
        "num_turns": np.array([len(t.turn_versions) for t in trajectories], dtype=np.int32),
    }
    write_atomic(folder / f"step-{step:06d}.safetensors", save(tokens, metadata={"schema": str(SCHEMA)}))
    write_rows(folder / f"step-{step:06d}.jsonl", [trajectory_to_row(t, step=step) for t in trajectories])


def read_step_records(folder: Path, step: int) -> list[Trajectory]:
    """Return the trajectories of a step with their tokens, as `write_step_records` wrote them.

    Raises:
        DataError: one of the two files is missing or broken, or they do not belong together.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    rows, _ = read_rows(folder / f"step-{step:06d}.jsonl")
    trajectories = [row_to_trajectory(row) for row in rows]
    sidecar = folder / f"step-{step:06d}.safetensors"
    try:
        tokens = {name: array.tolist() for name, array in load(sidecar.read_bytes()).items()}
    except (OSError, SafetensorError) as error:
        raise DataError(f"{str(sidecar)!r} can't be read: {error}") from error
    if set(tokens) != _SIDECAR or len(tokens["num_tokens"]) != len(trajectories):
        raise DataError(f"{str(sidecar)!r} does not belong to the {len(trajectories)} rows beside it")
    _set_tokens(trajectories, tokens)
    return trajectories


def _set_tokens(trajectories: Sequence[Trajectory], tokens: Mapping[str, list[Any]]) -> None:
    """Cut the rows of the sidecar apart."""
    at, prompt_at, turn_at = 0, 0, 0
    for i, trajectory in enumerate(trajectories):
        end = at + tokens["num_tokens"][i]
        prompt_end = prompt_at + tokens["num_prompt_tokens"][i]
        turn_end = turn_at + tokens["num_turns"][i]
        trajectory.ids = tokens["ids"][at:end]
        trajectory.mask = tokens["mask"][at:end]
        trajectory.sampler_logp = tokens["sampler_logp"][at:end]
        trajectory.prompt_ids = tokens["prompt_ids"][prompt_at:prompt_end]
        trajectory.turn_versions = tokens["turn_versions"][turn_at:turn_end]
        at, prompt_at, turn_at = end, prompt_end, turn_end
