"""`agentrl collect`: every trajectory once, whatever stops it on the way; nothing mixed in that was made otherwise."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl_cli.collection.collect import plan_jobs, run_collect
from agentrl_cli.collection.teachers import TeacherSpec, endpoint_config, parse_teacher
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import OpenAISamplerConfig, TransformersSamplerConfig
from agentrl_cli.errors import AgentRLError, ConfigError, DataError, TrainingError
from agentrl_cli.files import RowWriter, read_rows
from agentrl_cli.records import row_to_trajectory, strip_times
from agentrl_cli.reporting import NullReporter
from agentrl_cli.types import Ending, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SOURCE = "generated:sft"


def collect(out: Path, *settings: str, teacher: str = "scripted", problems: str = SOURCE) -> dict[str, Any]:
    config = load_config("tiny", None, ["collect.num_problems=12", "sandbox.pool_size=1", *settings])
    return run_collect(config, problems=problems, teacher=teacher, out=out, reporter=NullReporter())


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows, torn = read_rows(path)
    assert not torn
    return [strip_times(row) for row in rows]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Twelve problems, two trajectories each, in one go; read only."""
    out = tmp_path_factory.mktemp("collected") / "t.jsonl"
    return out, collect(out, "trajectories_per_problem=2")


def test_trajectories_are_recorded_with_tools_and_verdicts(collected: tuple[Path, dict[str, Any]]) -> None:
    """Each problem has its trajectories, in order, with real tool results, verdict, reward and teacher."""
    out, result = collected
    rows, _ = read_rows(out)
    assert (result["in"], result["collected"], result["skipped"], result["failed"]) == (24, 24, 0, 0)
    problem_ids = list(dict.fromkeys(row["problem_id"] for row in rows))
    assert len(problem_ids) == 12
    assert [row["id"] for row in rows] == [f"{name}#{k}" for name in problem_ids for k in range(2)]
    trajectories = [row_to_trajectory(row) for row in rows]
    assert any(event.result.content.isdecimal() for t in trajectories for event in t.events)
    assert all(t.ending in (Ending.ANSWERED, Ending.NO_ANSWER) and t.verdict is not None for t in trajectories)
    assert result["correct"] == sum(t.verdict.correct for t in trajectories if t.verdict) > 0
    assert all(t.reward_parts["outcome"] == (1.0 if t.verdict and t.verdict.correct else -1.0) for t in trajectories)
    assert {row["meta"]["teacher"] for row in rows} == {"scripted"}


def test_the_card_says_how_the_rows_were_made(collected: tuple[Path, dict[str, Any]]) -> None:
    """Teacher, settings and counts lie beside the file."""
    out, result = collected
    assert result["card"] == str(out.with_name("t.card.json"))
    card = json.loads(out.with_name("t.card.json").read_text())
    assert (card["teacher"], card["rows"], card["valid"], card["correct"]) == ("scripted", 24, 24, result["correct"])
    assert card["settings"]["collect"] == {"temperature": 0.7}
    assert sorted(file.name for file in out.parent.iterdir()) == ["t.card.json", "t.jsonl"]


def test_a_collection_goes_on_and_grows(collected: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Some problems first, then all with more trajectories each, gives the same file as all at once."""
    out = tmp_path / "t.jsonl"
    assert collect(out, "collect.num_problems=5")["collected"] == 5
    grown = collect(out, "trajectories_per_problem=2")
    assert (grown["in"], grown["collected"], grown["skipped"]) == (24, 19, 5)
    assert rows_of(out) == rows_of(collected[0])
    card = out.with_name("t.card.json").read_text()
    again = collect(out, "trajectories_per_problem=2")
    assert (again["collected"], again["skipped"], again["correct"]) == (0, 24, collected[1]["correct"])
    assert out.with_name("t.card.json").read_text() == card


SCRIPT = """
import signal, sys
from pathlib import Path
from agentrl_cli.collection.collect import run_collect
from agentrl_cli.config.load import load_config
from agentrl_cli.reporting import NullReporter
settings = ["collect.num_problems=12", "sandbox.pool_size=1", "trajectories_per_problem=2", "collect.concurrency=2"]
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
config = load_config("tiny", None, settings)
run_collect(config, problems="generated:sft", teacher="scripted", out=Path(sys.argv[1]), reporter=NullReporter())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_collection_goes_on_where_it_was(
    collected: tuple[Path, dict[str, Any]], tmp_path: Path, how: signal.Signals
) -> None:
    """What was done before stays, what was cut is no failure, a torn line is repaired, the rest is added once."""
    out = tmp_path / "t.jsonl"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(how)
    num_done = out.read_bytes().count(b"\n")
    assert 3 <= num_done < 24
    with out.open("a") as file:
        file.write('{"schema": 1, "id": "to')
    result = collect(out, "trajectories_per_problem=2")
    assert (result["skipped"], result["collected"]) == (num_done, 24 - num_done)
    assert rows_of(out) == rows_of(collected[0])


@pytest.mark.parametrize(
    ("settings", "teacher", "changed"),
    [
        (["collect.temperature=0.1"], "scripted", "settings.collect.temperature"),
        (["agent.max_turns=3"], "scripted", "settings.agent.max_turns"),
        ([], "openai:m@http://localhost:1/v1", "teacher"),
    ],
)
def test_rows_made_otherwise_are_not_mixed_in(tmp_path: Path, settings: list[str], teacher: str, changed: str) -> None:
    """Another teacher or setting that matters is refused by name, before anything is asked; the file stays."""
    out = tmp_path / "t.jsonl"
    collect(out, "collect.num_problems=1")
    before = out.read_bytes()
    with pytest.raises(DataError, match=f"collected in another way: {changed} changed"):
        collect(out, *settings, teacher=teacher)
    assert out.read_bytes() == before


def test_settings_that_change_no_trajectory_may_change(tmp_path: Path) -> None:
    """Concurrency, pools and what belongs to training do not hinder going on."""
    out = tmp_path / "t.jsonl"
    collect(out, "collect.num_problems=1")
    result = collect(out, "collect.num_problems=2", "collect.concurrency=1", "sandbox.pool_size=2", "run.steps=9")
    assert (result["skipped"], result["collected"]) == (1, 1)


def test_files_of_unknown_origin_are_left_alone(tmp_path: Path) -> None:
    """Rows without a card, rows that are no records, and another problem under the same id are refused."""
    out = tmp_path / "t.jsonl"
    collect(out, "collect.num_problems=1")
    row = read_rows(out)[0][0]
    out.write_text(json.dumps(row | {"problem": "another"}) + "\n")
    with pytest.raises(DataError, match=r"line 1 .* another problem than now"):
        collect(out)
    out.write_text(json.dumps(row) + "\n")
    out.with_name("t.card.json").unlink()
    with pytest.raises(DataError, match="no card says how they were made"):
        collect(out)
    out.write_text('{"messages": []}\n')
    with pytest.raises(DataError, match=r"line 1 .* is no recorded trajectory"):
        collect(out)


def test_a_collection_that_can_not_begin_leaves_no_files(tmp_path: Path) -> None:
    """A problem that the teacher does not know, and a gold that can't be compared, are told at once."""
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"id": "x", "problem": "6*7?", "answer": "42"}\n')
    with pytest.raises(ConfigError, match="only knows generated problems, got 'x'"):
        collect(tmp_path / "t.jsonl", problems=str(problems))
    problems.write_text('{"id": "x", "problem": "6*7?", "answer": "forty", "kind": "integer"}\n')
    with pytest.raises(DataError, match=r"none of the 1 rows of .*p\.jsonl:1: the gold answer 'forty' is no integer"):
        collect(tmp_path / "t.jsonl", problems=str(problems))
    assert [file.name for file in tmp_path.iterdir()] == ["p.jsonl"]


class Endpoint(ThreadingHTTPServer):
    """A chat endpoint that calls the tool once and then answers, or refuses every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refused = 0
        """Requests still to be refused."""
        self.lock = threading.Lock()

    @property
    def spec(self) -> str:
        return f"openai:teacher@http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            is_refused = self.server.refused > 0
            self.server.refused -= is_refused
        function = {"name": "python", "arguments": '{"code": "6*7"}'}
        message: dict[str, Any] = {"content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        if body["messages"][-1]["role"] == "tool":
            message = {"content": f"\\boxed{{{body['messages'][-1]['content']}}}"}
        answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
        data = json.dumps(answer).encode()
        self.send_response(400 if is_refused else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A running endpoint."""
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def problem_file(path: Path, count: int) -> str:
    rows = [{"id": f"p{i}", "problem": f"{i}: what is 6*7?", "answer": "42"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_chat_endpoint_teaches_any_problems(endpoint: Endpoint, tmp_path: Path) -> None:
    """Its calls run in our sandbox, its answers are verified, its token counts kept."""
    out = tmp_path / "t.jsonl"
    result = collect(out, teacher=endpoint.spec, problems=problem_file(tmp_path / "p.jsonl", 3))
    assert (result["collected"], result["correct"]) == (3, 3)
    trajectory = row_to_trajectory(read_rows(out)[0][0])
    assert [m["role"] for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert (trajectory.messages[2]["content"], trajectory.turn_tokens) == ("42", [5, 5])


def test_infrastructure_failures_are_tried_again_by_the_next_call(endpoint: Endpoint, tmp_path: Path) -> None:
    """A trajectory that the endpoint refused is kept as such, recorded anew later, and stands once in the end."""
    out, problems = tmp_path / "t.jsonl", problem_file(tmp_path / "p.jsonl", 4)
    endpoint.refused = 2
    first = collect(out, "collect.concurrency=1", teacher=endpoint.spec, problems=problems)
    assert (first["collected"], first["failed"], first["correct"]) == (2, 2, 2)
    assert [row["ending"] for row in rows_of(out)] == ["infra_error", "infra_error", "answered", "answered"]
    second = collect(out, teacher=endpoint.spec, problems=problems)
    assert (second["skipped"], second["collected"], second["failed"], second["correct"]) == (2, 2, 0, 4)
    assert [(row["id"], row["ending"]) for row in rows_of(out)] == [(f"p{i}#0", "answered") for i in range(4)]


def test_a_collection_that_only_fails_stops(endpoint: Endpoint, tmp_path: Path) -> None:
    """At guard.min_infra_count failures beyond guard.max_infra_frac it ends with the reason, what was done stays."""
    out, problems = tmp_path / "t.jsonl", problem_file(tmp_path / "p.jsonl", 30)
    endpoint.refused = 1000
    settings = ["collect.num_problems=30", "collect.concurrency=1", "guard.min_infra_count=3"]
    with pytest.raises(TrainingError, match=r"3 of 3 trajectories failed by infrastructure; the last: .*status 400"):
        collect(out, *settings, teacher=endpoint.spec, problems=problems)
    assert len(rows_of(out)) == 3
    endpoint.refused = 0
    assert collect(out, *settings, teacher=endpoint.spec, problems=problems)["correct"] == 30


def test_one_failure_of_one_is_a_failed_collection(endpoint: Endpoint, tmp_path: Path) -> None:
    """Below the guard's count, a collection in which nothing worked is an error too."""
    endpoint.refused = 1
    with pytest.raises(TrainingError, match="1 of 1 trajectories"):
        collect(tmp_path / "t.jsonl", teacher=endpoint.spec, problems=problem_file(tmp_path / "p.jsonl", 1))


def test_a_second_collection_into_the_same_file_is_refused(tmp_path: Path) -> None:
    """While someone records into the file, another collection is turned away at once."""
    out = tmp_path / "t.jsonl"
    with RowWriter(out, exclusive=True), pytest.raises(DataError, match="another process writes"):
        collect(out)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("scripted", TeacherSpec("scripted")),
        ("model:runs/first", TeacherSpec("model", "runs/first")),
        ("model:Qwen/Qwen3-4B", TeacherSpec("model", "Qwen/Qwen3-4B")),
        ("openai:a@http://host:8000/v1/", TeacherSpec("openai", "a", "http://host:8000/v1")),
        ("openai:org/a:b@c@https://host/v1", TeacherSpec("openai", "org/a:b@c", "https://host/v1")),
    ],
)
def test_specs_are_read(spec: str, expected: TeacherSpec) -> None:
    """Names may hold slashes, colons and at signs."""
    assert parse_teacher(spec) == expected
    assert parse_teacher(expected.text) == expected


@pytest.mark.parametrize("spec", ["", "human", "model:", "openai:a", "openai:@http://h/v1", "openai:a@h/v1", "vllm:x"])
def test_unknown_specs_list_the_known_ones(spec: str) -> None:
    """The hint shows every form."""
    with pytest.raises(ConfigError, match="unknown teacher") as caught:
        parse_teacher(spec)
    assert all(word in caught.value.hint for word in ("scripted", "openai:NAME@URL", "model:PATH"))


def test_credentials_do_not_belong_into_the_spec() -> None:
    """The spec is written into every row, so a password in its address is refused and not repeated."""
    with pytest.raises(ConfigError, match="user name or password") as caught:
        parse_teacher("openai:a@https://me:secret@host/v1")
    assert "secret" not in caught.value.message + caught.value.hint


def test_the_key_goes_to_its_own_address_only() -> None:
    """[sampler] lends time limit and key to a teacher at its address, and to no other."""
    spec = TeacherSpec("openai", "big", "https://host/v1")
    assert endpoint_config(spec, TransformersSamplerConfig()).api_key_env == ""
    sampler = OpenAISamplerConfig(base_url="https://host/v1/", model="small", api_key_env="KEY", timeout_s=7.0)
    lent = endpoint_config(spec, sampler)
    assert (lent.model, lent.api_key_env, lent.timeout_s) == ("big", "KEY", 7.0)
    with pytest.raises(AgentRLError, match="base_url is"):
        endpoint_config(TeacherSpec("openai", "big", "https://other/v1"), sampler)


def test_jobs_depend_on_problem_and_number_alone() -> None:
    """More problems or more trajectories leave the seeds of the others as they were."""
    one, two = Problem("a", "?", "1"), Problem("b", "?", "1")
    few = {job.trajectory_id: job.seed for job in plan_jobs([two], per_problem=1, seed=0)}
    many = {job.trajectory_id: job.seed for job in plan_jobs([one, two], per_problem=3, seed=0)}
    assert few.items() <= many.items()
    assert len(set(many.values())) == 6
    assert plan_jobs([two], per_problem=1, seed=1)[0].seed != few["b#0"]


def test_scripted_collection_needs_no_torch() -> None:
    """Loading all that a scripted or remote teacher needs leaves torch out."""
    code = (
        "import sys; import agentrl_cli.collection.collect, agentrl_cli.sampler.openai; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> tuple[Path, Path]:
    """Two untrained models of the tiny architecture."""
    from agentrl_cli.data.tiny_model import build_model

    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("model")
        build_model(tiny_tokenizer, seed=seed).save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        folders.append(folder)
    return folders[0], folders[1]


def model_settings(path: Path) -> list[str]:
    return [f"model.path={path}", "agent.max_completion_length=48"]


def test_a_local_model_teaches_reproducibly(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Equal seeds give equal trajectories, also in more batches than one; the card holds the model's digest."""
    settings = ["collect.num_problems=2", "collect.concurrency=1", *model_settings(checkpoints[0])]
    outs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for out in outs:
        result = collect(out, *settings, teacher=f"model:{checkpoints[0]}")
        assert (result["collected"], result["failed"]) == (2, 0)
    assert rows_of(outs[0]) == rows_of(outs[1])
    assert all(row["metrics"]["num_generated"] > 0 for row in rows_of(outs[0]))
    card = json.loads((tmp_path / "a.card.json").read_text())
    assert len(card["identity"]["weights_sha256"]) == 64
    assert card["settings"]["model"]["dtype"] == "float32"


def test_another_model_at_the_same_path_is_not_mixed_in(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The digest of the weights tells, where the spec does not."""
    path, out = tmp_path / "model", tmp_path / "t.jsonl"
    shutil.copytree(checkpoints[0], path)
    settings = model_settings(path)
    collect(out, "collect.num_problems=1", *settings, teacher=f"model:{path}")
    shutil.copytree(checkpoints[1], path, dirs_exist_ok=True)
    with pytest.raises(DataError, match=r"in another way: identity\.weights_sha256 changed"):
        collect(out, "collect.num_problems=2", *settings, teacher=f"model:{path}")
