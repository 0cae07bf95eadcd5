"""Probes of what collects, filters, evaluates and fine-tunes; see `settings_probes`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentrl_cli.collection.collect import run_collect
from agentrl_cli.config.digest import config_digest
from agentrl_cli.config.plan_memory import sft_memory
from agentrl_cli.config.plan_models import find_model
from agentrl_cli.config.schema import Config, OpenAISamplerConfig
from agentrl_cli.errors import AgentRLError
from agentrl_cli.evaluation.runner import evaluate_held_out
from agentrl_cli.filtering.filter import Chooser
from agentrl_cli.filtering.samples import read_sample
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.reporting import NullReporter
from agentrl_cli.rewards.compose import make_scorer
from agentrl_cli.runs import RunFolder
from agentrl_cli.sampler.loading import load_policy
from agentrl_cli.sampler.openai import OpenAIChatSampler
from agentrl_cli.training.sft import batch_of, load_rows, run_sft
from agentrl_cli.types import Problem, SamplingParams, ToolStatus
from tests.unit.settings_probes import Bench, finished, scripted_stack


class Endpoint:
    """A chat endpoint: /fail answers 500, /slow takes 0.4 s, anything else gives the right answer."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, float, str]] = []
        self.most_at_once = 0
        self._open = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Address without path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def note(self, path: str, body: dict[str, Any], key: str) -> None:
        """Remember a request and hold it long enough for others to arrive."""
        with self._lock:
            self.requests.append((path, body["model"], body["temperature"], key))
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
        time.sleep(0.4 if path.startswith("/slow") else 0.05)
        with self._lock:
            self._open -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.note(self.path, body, self.headers.get("Authorization", ""))
                message = {"role": "assistant", "content": "\\boxed{42}"}
                reply = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
                self.send_response(500 if self.path.startswith("/fail") else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


@contextmanager
def serving() -> Iterator[Endpoint]:
    """An endpoint for the length of a block."""
    endpoint = Endpoint()
    try:
        yield endpoint
    finally:
        endpoint.close()


def chat_request(config: Config, bench: Bench) -> object:
    """What a chat endpoint is asked, how often, and what comes of it; `base_url` gives the path alone."""
    sampler = config.sampler
    assert isinstance(sampler, OpenAISamplerConfig)
    with serving() as endpoint:
        address = sampler.model_copy(update={"base_url": endpoint.url + sampler.base_url.removeprefix("http://h")})

        async def ask() -> str:
            chat = OpenAIChatSampler(address, first_wait_s=0.01)
            try:
                params = SamplingParams(max_tokens=8, temperature=1.0, seed=0)
                return (await chat.complete([{"role": "user", "content": "?"}], [], params)).message["content"]
            except AgentRLError:
                return "failed"
            finally:
                await chat.close()

        return asyncio.run(ask()), endpoint.requests


def collected(config: Config, bench: Bench) -> object:
    """Trajectories that the scripted teacher is asked for."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        result = run_collect(config, problems=None, teacher="scripted", out=out, reporter=NullReporter())
        return result["problems"], result["in"], result["collected"]


def asked_teacher(config: Config, bench: Bench) -> object:
    """Temperature that an endpoint as a teacher is asked for, and most requests at once."""
    with serving() as endpoint, TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        teacher = f"openai:m@{endpoint.url}/v1"
        run_collect(config, problems="generated:sft", teacher=teacher, out=out, reporter=NullReporter())
        return {request[2] for request in endpoint.requests}, endpoint.most_at_once


def kept_rows(config: Config, bench: Bench) -> object:
    """Which of nine rows the filter keeps: right, wrong, without calls, with failed calls, and copies."""
    ok, error = ToolStatus.OK, ToolStatus.ERROR
    shown = {
        "right": (True, [ok], "apples"),
        "wrong": (False, [ok], "pears"),
        "no-call": (True, [], "plums"),
        "two-failed": (True, [error, error, ok], "cherries"),
        "last-failed": (True, [ok, error], "grapes"),
        "again": (True, [ok], "melons"),
        "copy": (True, [ok], "apples"),
        "near": (True, [ok], "apples too"),
    }
    chooser = Chooser(config.filter)
    kept = []
    for line, (name, (is_correct, statuses, what)) in enumerate(shown.items(), start=1):
        trajectory = finished(name, is_correct=is_correct, statuses=statuses)
        text = f"A shop sells forty two boxes of fine red ripe fruit every single day of the week, namely {what}"
        trajectory.problem = Problem("same" if name in ("right", "again") else name, text, "42")
        trajectory.messages[0]["content"] = text
        if chooser.accept(read_sample(trajectory_to_row(trajectory), line=line)):
            kept.append(name)
    return kept


def held_out_scores(config: Config, bench: Bench) -> object:
    """Requests of an evaluation during rl: how many, and how they are sampled."""
    log: list[Any] = []
    score = make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        out = Path(folder) / "run"
        with RunFolder.create(config, kind="rl", out=out, digest=config_digest(config)) as run:
            evaluate_held_out(
                scripted_stack(config, bench, runner, log),
                [Problem("p", "What is 6*7?", "42")],
                score,
                config=config.eval,
                seed=0,
                run=run,
                step=0,
                reporter=NullReporter(),
            )
    return sorted(log)


def sft_rows(folder: Path) -> Path:
    """Ten conversations of growing length."""
    file = folder / "rows.jsonl"
    with file.open("w") as stream:
        for i in range(10):
            answer = {"role": "assistant", "content": "It is " + "very " * (5 * i) + "\\boxed{42}."}
            stream.write(json.dumps({"messages": [{"role": "user", "content": "What is 6*7?"}, answer]}) + "\n")
    return file


def sft_data(config: Config, bench: Bench) -> object:
    """Rows to train on and held out, rows left out, and the first batch."""
    with TemporaryDirectory() as folder:
        rows = load_rows(sft_rows(Path(folder)), load_policy(config.model), config, reporter=NullReporter())
    first = batch_of(rows.train, 0, per_epoch=4, config=config.sft, seed=config.run.seed)
    return len(rows.train), len(rows.held_out), rows.num_too_long, [row.id for row in first]


def sft_updates(config: Config, bench: Bench) -> object:
    """Updates of a whole fine-tuning run."""
    with TemporaryDirectory() as folder:
        data = sft_rows(Path(folder))
        result = run_sft(config, data=data, out=Path(folder) / "run", resume=None, reporter=NullReporter())
    return result["steps"]


def sft_memory_bound(config: Config, bench: Bench) -> object:
    """Memory of a forward and backward pass: how rows are cut changes nothing else."""
    facts = find_model("builtin:tiny", hub_cache=bench.folder).facts
    assert facts is not None
    return sft_memory(config, facts).activations
