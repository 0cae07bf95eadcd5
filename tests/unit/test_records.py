"""Records: what is written comes back, statuses and tokens included, and other files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.errors import DataError
from agentrl_cli.records import (
    read_step_records,
    row_to_trajectory,
    strip_times,
    trajectory_to_row,
    write_step_records,
)
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

TEXT = st.text(max_size=8)
SECONDS = st.floats(0, 1e6)
IDS = st.integers(0, 2**31 - 1)
META = st.dictionaries(TEXT, st.integers() | TEXT, max_size=2)
PROBLEMS = st.builds(
    Problem,
    id=TEXT,
    prompt=TEXT,
    answer=TEXT,
    kind=st.sampled_from(AnswerKind),
    source=TEXT,
    family=TEXT,
    level=st.integers(0, 5),
    meta=META,
)
EVENTS = st.builds(
    ToolEvent,
    turn=st.integers(0, 9),
    call=st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT, error=TEXT),
    result=st.builds(ToolResult, status=st.sampled_from(ToolStatus), content=TEXT, wall_s=SECONDS),
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Any trajectory, of a token engine or (without tokens) of a chat endpoint."""
    num_tokens = draw(st.integers(0, 6))
    num_turns = draw(st.integers(0, 3))

    def column(values: st.SearchStrategy, size: int) -> list:
        return draw(st.lists(values, min_size=size, max_size=size))

    return Trajectory(
        id=draw(TEXT),
        problem=draw(PROBLEMS),
        group_id=draw(TEXT),
        seed=draw(st.integers(0, 2**63 - 1)),
        messages=[{"role": "user", "content": draw(TEXT)}],
        tools=[{"type": "function", "function": {"name": "python"}}],
        prompt_ids=draw(st.lists(IDS, max_size=4)),
        ids=column(IDS, num_tokens),
        mask=column(st.integers(0, 1), num_tokens),
        sampler_logp=column(st.floats(-100, 0, width=32), num_tokens),
        turn_versions=column(IDS, num_turns),
        turn_tokens=column(st.integers(0, 99), num_turns),
        events=draw(st.lists(EVENTS, max_size=2)),
        ending=draw(st.sampled_from(Ending)),
        error=draw(TEXT),
        verdict=draw(
            st.none() | st.builds(Verdict, correct=st.booleans(), status=st.sampled_from(VerdictStatus), extracted=TEXT)
        ),
        reward=draw(st.floats(-2, 2)),
        reward_parts={"outcome": draw(st.floats(-1, 1))},
        advantage=draw(st.floats(-5, 5)),
        wall_s=draw(SECONDS),
    )


@settings(deadline=None, max_examples=60)
@given(batch=st.lists(trajectories(), max_size=3))
def test_a_step_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, batch: list[Trajectory]) -> None:
    """Every field survives the two files of a step; log-probabilities in float32, as engines give them."""
    folder = tmp_path_factory.mktemp("step")
    write_step_records(folder, 7, batch)
    assert sorted(file.name for file in folder.iterdir()) == ["step-000007.jsonl", "step-000007.safetensors"]
    assert read_step_records(folder, 7) == batch


@settings(deadline=None, max_examples=60)
@given(trajectory=trajectories())
def test_a_row_comes_back_without_its_tokens(trajectory: Trajectory) -> None:
    """A row alone holds all but the token data, also after JSON, whatever else its meta says."""
    row = json.loads(json.dumps(trajectory_to_row(trajectory, step=3, meta={"teacher": "x"})))
    bare = replace(trajectory, prompt_ids=[], ids=[], mask=[], sampler_logp=[], turn_versions=[])
    assert row_to_trajectory(row) == bare
    assert (row["step"], row["meta"]["teacher"]) == (3, "x")


def example() -> Trajectory:
    """Two calls, the first failed, and a right answer."""
    calls = [ToolCall("call_0_0", "python", '{"code": "1/0"}'), ToolCall("call_1_0", "python", '{"code": "6*7"}')]
    messages = [{"role": "user", "content": "6*7?"}]
    for call, output in zip(calls, ("ZeroDivisionError: division by zero", "42"), strict=True):
        function = {"name": call.name, "arguments": call.arguments}
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": call.id, "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": output})
    messages.append({"role": "assistant", "content": "\\boxed{42}"})
    return Trajectory(
        id="p#0",
        problem=Problem("p", "6*7?", "42", source="s", family="f", level=2, meta={"a": 6}),
        group_id="g",
        seed=5,
        messages=messages,
        tools=[],
        turn_tokens=[10, 11, 4],
        events=[
            ToolEvent(0, calls[0], ToolResult(ToolStatus.ERROR, "ZeroDivisionError: division by zero", wall_s=0.5)),
            ToolEvent(1, calls[1], ToolResult(ToolStatus.OK, "42", wall_s=0.25)),
        ],
        ending=Ending.ANSWERED,
        verdict=Verdict(True, VerdictStatus.OK, "42"),
        reward=1.0,
        reward_parts={"outcome": 1.0},
        wall_s=1.5,
    )


def test_the_layout_of_a_row_is_fixed() -> None:
    """Other tools read these keys: OpenAI messages with arguments as text, statuses, verdict, metrics."""
    row = trajectory_to_row(example(), step=None)
    assert list(row) == [
        *("schema", "id", "problem_id", "source", "problem", "answer", "kind", "family", "level", "messages", "tools"),
        *("ending", "error", "verdict", "reward", "reward_parts", "group_id", "advantage", "step", "seed", "events"),
        *("metrics", "meta"),
    ]
    assert row["schema"] == 1
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "python", "arguments": '{"code": "1/0"}'}
    assert [event["status"] for event in row["events"]] == ["error", "ok"]
    assert row["verdict"] == {"correct": True, "status": "ok", "extracted": "42"}
    # 10 + 11 + 4 tokens in three turns
    assert {k: row["metrics"][k] for k in ("num_turns", "num_calls", "num_generated")} == {
        "num_turns": 3,
        "num_calls": 2,
        "num_generated": 25,
    }


def test_rows_of_equal_runs_are_equal_without_their_times() -> None:
    """Two rollouts that differ in nothing but wall time differ only under `wall_s`."""
    first, second = example(), example()
    second.wall_s = 9.0
    second.events[0] = replace(second.events[0], result=replace(second.events[0].result, wall_s=8.0))
    rows = [trajectory_to_row(t, step=1) for t in (first, second)]
    assert rows[0] != rows[1]
    assert strip_times(rows[0]) == strip_times(rows[1])
    second.reward = 0.0
    assert strip_times(rows[0]) != strip_times(trajectory_to_row(second, step=1))


@pytest.mark.parametrize("schema", [None, 2, "1"])
def test_rows_of_another_schema_are_refused(schema: object) -> None:
    """A row of a newer version, or none of ours, is named, not misread."""
    row = trajectory_to_row(example()) | {"schema": schema}
    with pytest.raises(DataError, match=r"record 'p#0' has schema .* reads 1"):
        row_to_trajectory(row)


@pytest.mark.parametrize(
    "change",
    [{"verdict": {"correct": True}}, {"ending": "won"}, {"metrics": {}}, {"meta": None}, {"events": [{"turn": 0}]}],
)
def test_incomplete_rows_are_refused(change: dict) -> None:
    """A missing or unknown value names the record."""
    with pytest.raises(DataError, match="record 'p#0' is incomplete"):
        row_to_trajectory(trajectory_to_row(example()) | change)


def test_a_sidecar_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    """Missing, broken and foreign token files are errors, never empty tokens."""
    write_step_records(tmp_path, 1, [example(), example()])
    write_step_records(tmp_path, 2, [example()])
    sidecar = tmp_path / "step-000001.safetensors"
    sidecar.write_bytes((tmp_path / "step-000002.safetensors").read_bytes())
    with pytest.raises(DataError, match="does not belong to the 2 rows"):
        read_step_records(tmp_path, 1)
    sidecar.write_bytes(b"\x00")
    with pytest.raises(DataError, match="can't be read"):
        read_step_records(tmp_path, 1)
    sidecar.unlink()
    with pytest.raises(DataError, match="can't be read"):
        read_step_records(tmp_path, 1)


def test_unequal_token_columns_are_a_fault_of_ours(tmp_path: Path) -> None:
    """Ids without a mask would shift all later trajectories, so they are never written."""
    trajectory = replace(example(), ids=[1, 2], mask=[1], sampler_logp=[-0.5, -0.5])
    with pytest.raises(AssertionError, match=r"lengths \(2, 1, 2\)"):
        write_step_records(tmp_path, 1, [trajectory])
    assert list(tmp_path.iterdir()) == []


def test_the_sidecar_is_small(tmp_path: Path) -> None:
    """Nine bytes a token: an id and a log-probability of four each, and a mask of one."""
    num_tokens = 1000
    trajectory = replace(
        example(), ids=[1] * num_tokens, mask=[1] * num_tokens, sampler_logp=[float(np.float32(-0.1))] * num_tokens
    )
    write_step_records(tmp_path, 1, [trajectory])
    header = 1024
    assert 9 * num_tokens <= (tmp_path / "step-000001.safetensors").stat().st_size < 9 * num_tokens + header
